"""`config view`: the settings, their sources, and the cluster that they lead to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any

from arena_topo.cli import settings
from arena_topo.cli.arguments import PANEL, Output, OutputFlag, document
from arena_topo.cli.commands import name_origin, variables
from arena_topo.cli.options import Globals, Seconds, display, show, spread
from arena_topo.errors import UsageError
from arena_topo.flag import Flag, flags_of, spelling
from arena_topo.job import MPIJob
from arena_topo.layout import align, table

_DEFAULT = "default"
"""The source of a setting that is not set."""

_SECRET = re.compile(
    r"token|secret|passw|pass(?:_|$)|credential|api_?key|access_?key|private_?key"
    r"|(?:^|_)(?:pat|pwd|auth|creds?|key)(?:_|$)",
    re.IGNORECASE,
)
"""Names of variables whose values are secrets."""

_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
"""User and password in a URL."""

_HIDDEN = "***"

Rows = dict[str, tuple[list[str], list[str]]]
"""Settings by their key in a file: the values of each, as typed, and their sources."""


@spread
def config_view(
    everywhere: Globals,
    *,
    resolved: Annotated[
        bool, Flag(help="Show every setting in effect, and its source.", panel=PANEL)
    ] = False,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Show the settings in the files; no server is asked.

    Examples:
      # Where each setting comes from
      config view
    """
    from arena_topo.cli.root import tree  # noqa: PLC0415 - the tree knows this command

    params = list(tree().commands["submit"].commands["mpi"].params)
    above = [
        *(one for one in settings.in_force.get() if one.origin == settings.LINE),
        *settings.from_environment(params, variables(takes_job=True)),
    ]
    found = settings.read(params, above=above, of_jobs=lambda: params)
    _check(params, settings.merged(params, found.layers))
    reached = _reached(everywhere)
    rows = _rows(params, [*(above if resolved else ()), *found.layers])
    if resolved:
        rows = _completed(rows, reached, found.profile)
    if output_format is Output.WIDE:
        display(_screen(found, rows, reached))
        return
    several = {_key(one) for one in params if getattr(one, "multiple", False)}
    name, origin = found.profile
    value = {
        "apiVersion": "arena-topo/v1",
        "kind": "Configuration",
        "files": [{"path": one.path, "read": one.there} for one in found.files],
        "profile": {"name": name, "origin": origin} if name else None,
        "settings": [
            {
                "name": key,
                "value": values if key in several else (values[0] if values else None),
                "origins": origins,
            }
            for key, (values, origins) in rows.items()
        ],
        "cluster": reached,
    }
    show(document(value, output_format))


def _check(params: Sequence[Any], values: Iterable[settings.Value]) -> None:
    """UsageError for the first value of a file that its option cannot read."""
    known = {param.name: param for param in params}
    for one in values:
        try:
            known[one.name].type(one.text, known[one.name], None)
        except UsageError as error:
            name_origin(error, params, [one])
            raise


def _key(param: Any) -> str:
    """The key of an option in a settings file, with its table."""
    name = next(text for text in param.opts if text.startswith("--")).removeprefix("--")
    return name if param.name in flags_of(Globals) else f"{settings.SECTION}.{name}"


def _rows(params: Iterable[Any], layers: list[settings.Layer]) -> Rows:
    """The settings of the layers, in the order of the options, the global ones first."""
    found: Rows = {}
    values = settings.merged(params, layers)
    for param in sorted(params, key=lambda one: one.name not in flags_of(Globals)):
        mine = [one for one in values if one.name == param.name]
        if mine:
            # The weakest source comes first in the order of a command line.
            origins = list(dict.fromkeys(one.origin for one in reversed(mine)))
            found[_key(param)] = [safe(one.text) for one in mine], origins
    return found


def _completed(rows: Rows, reached: Mapping[str, Any], profile: tuple[str, str]) -> Rows:
    """All settings; those that are not set with their defaults."""
    known = dict(rows)
    if profile[0]:
        known["profile"] = [profile[0]], [profile[1]]
    if reached["namespace"] and reached["context"]:
        known.setdefault("namespace", ([reached["namespace"]], [f"context {reached['context']}"]))
    found: Rows = {}
    for record, prefix in ((Globals, ""), (MPIJob, f"{settings.SECTION}.")):
        defaults = {field.name: field.default for field in fields(record)}
        for name, flag in flags_of(record).items():
            if not flag.hidden:
                key = prefix + spelling(name, flag).removeprefix("--")
                found[key] = known.get(key) or (_default(defaults[name]), [_DEFAULT])
    return found | known


def _default(value: object) -> list[str]:
    if value is None or value is MISSING or value in ("", ()):
        return []
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text += "s" if isinstance(value, Seconds) else ""
    return [text.lower() if isinstance(value, bool) else text]


def _reached(everywhere: Globals) -> dict[str, Any]:
    """The engine and the cluster that the settings lead to, or the error."""
    from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415 - only this command

    options = everywhere.options()
    found: dict[str, Any] = {"backend": options.backend, "kubeconfig": []}
    names = ("context", "cluster", "user", "as", "asGroups", "server", "proxy", "namespace")
    found |= dict.fromkeys((*names, "trouble"))
    found["asGroups"] = []
    files = kubeconfig.read_from(options)
    try:
        if options.backend == "auto":
            configured = kubeconfig.configured(options)
            found["backend"] = "kubernetes" if configured else "local"
        if found["backend"] == "local":
            return found | {"namespace": options.namespace or "default"}
        access = kubeconfig.resolve(options)
    except UsageError as error:
        return found | {"kubeconfig": files, "trouble": error.message}
    login = f"://{_HIDDEN}@" if access.login else "://"
    return found | {
        "kubeconfig": files,
        "context": access.context or (None if access.cluster else kubeconfig.IN_CLUSTER),
        "cluster": access.cluster,
        "user": access.identity,
        "as": access.headers.get("impersonate-user"),
        "asGroups": list(access.groups),
        "server": safe(access.server.replace("://", login, 1)) or None,
        "proxy": safe(access.proxy) if access.proxy else None,
        "namespace": options.namespace or access.namespace or "default",
    }


# ---------------------------------------------------------------- what is shown


def safe(text: str) -> str:
    """A value without credentials: logins in URLs, values of secret variables."""
    name, equals, _ = text.partition("=")
    shown = f"{name}={_HIDDEN}" if equals and _SECRET.search(name) else text
    return _LOGIN.sub(f"{_HIDDEN}@", shown)


def _screen(found: settings.Settings, rows: Rows, reached: Mapping[str, Any]) -> str:
    """Files, settings and the cluster, each under a heading; the home folder is written `~`."""
    home = settings.at_home("~")

    def short(path: str) -> str:
        return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path

    files = [(short(one.path), "read" if one.there else "not there") for one in found.files]
    blocks = [align(table(("FILE", "STATE"), files))]
    name, origin = found.profile
    if name:
        blocks.append(align([f"Profile:\t{name} (chosen by {short(origin)})"]))
    cells = [
        (key, ", ".join(values) or "-", ", ".join(map(short, origins)))
        for key, (values, origins) in rows.items()
    ]
    listed = align(table(("SETTING", "VALUE", "FROM"), cells))
    blocks.append(listed if cells else "No file sets anything.\n")
    groups = f" in {', '.join(reached['asGroups'])}" if reached["asGroups"] else ""
    lines = {
        "Backend": reached["backend"],
        "Kubeconfig": ", ".join(map(short, reached["kubeconfig"])),
        **{key: reached[key.lower()] for key in ("Context", "Cluster", "User")},
        "Acting as": reached["as"] and f"{reached['as']}{groups}",
        **{key: reached[key.lower()] for key in ("Server", "Proxy", "Namespace", "Trouble")},
    }
    blocks.append(align([f"{key}:\t{value}" for key, value in lines.items() if value]))
    return "\n".join(blocks)
