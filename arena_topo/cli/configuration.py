"""`config view`: what is set, where it comes from, and which cluster that leads to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

from arena_topo.cli import settings
from arena_topo.cli.arguments import PANEL, Output, OutputFlag, document
from arena_topo.cli.commands import variables
from arena_topo.cli.options import Globals, Seconds, display, show, spread
from arena_topo.errors import UsageError
from arena_topo.flag import Flag, flags_of, spelling
from arena_topo.job import MPIJob
from arena_topo.layout import align, table

DEFAULT = "default"
"""The origin of what nobody has set."""


_SECRET = re.compile(
    r"token|secret|passw|pass(?:_|$)|credential|api_?key|access_?key|private_?key"
    r"|(?:^|_)(?:pat|pwd|auth|creds?|key)(?:_|$)",
    re.IGNORECASE,
)
"""Names of variables whose values are nobody's business."""

_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
"""Who logs in, and how, in a URL."""

HIDDEN = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: `values` as typed, one unless it may be repeated, and where they come from."""

    name: str
    values: tuple[str, ...]
    origins: tuple[str, ...]
    several: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the settings lead to: an engine, and a cluster of the kubeconfig.

    `trouble` says why none is reached.
    """

    backend: str
    kubeconfig: tuple[str, ...] = ()
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    acting: str | None = None
    groups: tuple[str, ...] = ()
    namespace: str | None = None
    server: str | None = None
    proxy: str | None = None
    trouble: str | None = None


@spread
def config_view(
    everywhere: Globals,
    *,
    resolved: Annotated[
        bool, Flag(help="Show every setting as it counts here, and its origin.", panel=PANEL)
    ] = False,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Show what the files of settings say; nothing is asked of any server."""
    from arena_topo.cli.root import tree  # noqa: PLC0415 - the tree knows this command

    submit = tree().commands["submit"].commands["mpi"]
    params = list(submit.params)
    above = [
        *(one for one in settings.in_force.get() if one.origin == settings.LINE),
        *settings.from_environment(params, variables(takes_job=True)),
    ]
    chosen = next((one for one in settings.merged(params, above) if one.name == "profile"), None)
    found = settings.read(
        params,
        profile=(chosen.text, chosen.origin) if chosen else ("", ""),
        of_jobs=lambda: params,
    )
    reached = _reached(everywhere)
    listed = tuple(_settings(params, [*(above if resolved else ()), *found.layers]))
    if resolved:
        listed = tuple(_completed(listed, reached, found.profile))
    if output_format is Output.WIDE:
        display(_screen(found, listed, reached, settings.at_home("~")))
    else:
        show(document(_value(found, listed, reached), output_format))


def _key(param: Any) -> str:
    """The setting as a file would have it, with its table."""
    name = next(text for text in param.opts if text.startswith("--")).removeprefix("--")
    return name if param.name in flags_of(Globals) else f"{settings.SECTION}.{name}"


def _settings(params: Iterable[Any], layers: list[settings.Layer]) -> Iterator[Setting]:
    """What the layers set, in the order of the options, the global ones first."""
    values = settings.merged(params, layers)
    for param in sorted(params, key=lambda one: one.name not in flags_of(Globals)):
        mine = [one for one in values if one.name == param.name]
        if not mine:
            continue
        several = bool(getattr(param, "multiple", False))
        yield Setting(
            name=_key(param),
            values=tuple(one.text for one in (mine if several else mine[-1:])),
            # The softest source comes first in the order of a command line.
            origins=tuple(dict.fromkeys(one.origin for one in reversed(mine))),
            several=several,
        )


def _completed(
    listed: Iterable[Setting], reached: Reached, profile: tuple[str, str]
) -> Iterator[Setting]:
    """All settings, those that nobody has set with what counts then."""
    known = {one.name: one for one in listed}
    if profile[0]:
        known["profile"] = Setting(name="profile", values=profile[:1], origins=profile[1:])
    if reached.namespace and reached.context and "namespace" not in known:
        known["namespace"] = Setting(
            name="namespace", values=(reached.namespace,), origins=(f"context {reached.context}",)
        )
    for record, prefix in ((Globals, ""), (MPIJob, f"{settings.SECTION}.")):
        flags = flags_of(record)
        for field in fields(record):
            flag = flags.get(field.name)
            if flag is None or flag.hidden:
                continue
            name = prefix + spelling(field.name, flag).removeprefix("--")
            yield known.pop(name) if name in known else _default(name, field.default)
    yield from known.values()


def _default(name: str, value: object) -> Setting:
    if isinstance(value, tuple):
        return Setting(name=name, values=(), origins=(DEFAULT,), several=True)
    empty = value is None or value is MISSING or value == ""
    text = f"{value:g}" if type(value) is float else str(value)
    text = f"{value:g}s" if isinstance(value, Seconds) else text
    text = text.lower() if isinstance(value, bool) else text
    return Setting(name=name, values=() if empty else (text,), origins=(DEFAULT,))


def _reached(everywhere: Globals) -> Reached:
    from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415 - only this command

    options = everywhere.options()
    backend = options.backend
    files = tuple(path for path, there in kubeconfig.read_from(options) if there)
    try:
        if backend == "auto":
            backend = "kubernetes" if kubeconfig.configured(options) else "local"
        if backend == "local":
            return Reached(backend=backend, namespace=options.namespace or "default")
        access = kubeconfig.resolve(options)
    except UsageError as error:
        return Reached(backend=backend, kubeconfig=files, trouble=error.message)
    login = f"://{HIDDEN}@" if access.login else "://"
    return Reached(
        backend=backend,
        kubeconfig=files,
        context=access.context or (access.plugin if not access.server else None),
        cluster=access.cluster,
        user=access.identity,
        acting=access.headers.get("impersonate-user"),
        groups=access.groups,
        namespace=options.namespace or access.namespace or "default",
        server=access.server.replace("://", login, 1) or None,
        proxy=access.proxy,
    )


# ---------------------------------------------------------------- what is shown


def safe(text: str) -> str:
    """A value without what proves who somebody is: logins in URLs, values of secret variables."""
    name, equals, _ = text.partition("=")
    if equals and _SECRET.search(name):
        return f"{name}={HIDDEN}"
    return _LOGIN.sub(f"{HIDDEN}@", text)


def _screen(
    found: settings.Settings, listed: Sequence[Setting], reached: Reached, home: str
) -> str:
    """Files, settings and the cluster, each part with a head of its own; `home` is written ~."""

    def short(path: str) -> str:
        return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path

    blocks = [
        align(
            table(
                ("FILE", "STATE"),
                ((short(one.path), "read" if one.there else "not there") for one in found.files),
            )
        )
    ]
    name, origin = found.profile
    if name:
        blocks.append(align([f"Profile:\t{name} (chosen by {short(origin)})"]))
    if listed:
        rows = (
            (
                one.name,
                ", ".join(map(safe, one.values)) or "-",
                ", ".join(short(origin) for origin in one.origins),
            )
            for one in listed
        )
        blocks.append(align(table(("SETTING", "VALUE", "FROM"), rows)))
    else:
        blocks.append("No file sets anything.\n")
    blocks.append(align([f"{key}:\t{value}" for key, value in _lines(reached, short)]))
    return "\n".join(blocks)


def _lines(found: Reached, short: Callable[[str], str]) -> list[tuple[str, str]]:
    groups = f" in {', '.join(found.groups)}" if found.groups else ""
    lines = [
        ("Backend", found.backend),
        ("Kubeconfig", ", ".join(map(short, found.kubeconfig))),
        ("Context", found.context),
        ("Cluster", found.cluster),
        ("User", found.user),
        ("Acting as", found.acting and f"{found.acting}{groups}"),
        ("Server", found.server and safe(found.server)),
        ("Proxy", found.proxy and safe(found.proxy)),
        ("Namespace", found.namespace),
        ("Trouble", found.trouble),
    ]
    return [(key, value) for key, value in lines if value]


def _value(found: settings.Settings, listed: Sequence[Setting], reached: Reached) -> dict[str, Any]:
    """The same for programs."""
    name, origin = found.profile
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "Configuration",
        "files": [{"path": one.path, "read": one.there} for one in found.files],
        "profile": {"name": name, "origin": origin} if name else None,
        "settings": [_setting_value(one) for one in listed],
        "cluster": {
            "backend": reached.backend,
            "kubeconfig": list(reached.kubeconfig),
            "context": reached.context,
            "cluster": reached.cluster,
            "user": reached.user,
            "as": reached.acting,
            "asGroups": list(reached.groups),
            "server": safe(reached.server) if reached.server else None,
            "proxy": safe(reached.proxy) if reached.proxy else None,
            "namespace": reached.namespace,
            "trouble": reached.trouble,
        },
    }


def _setting_value(one: Setting) -> dict[str, Any]:
    shown = [safe(text) for text in one.values]
    value = shown if one.several else (shown[0] if shown else None)
    return {"name": one.name, "value": value, "origins": list(one.origins)}
