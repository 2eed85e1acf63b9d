"""`config view`: what is set, where it comes from, and which cluster that leads to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Annotated, Any

from arena_topo import layout
from arena_topo.cli import settings
from arena_topo.cli.arguments import PANEL, Output, OutputFlag
from arena_topo.cli.commands import variables
from arena_topo.cli.configuration_view import (
    HIDDEN,
    Configuration,
    Reached,
    Setting,
    configuration,
    configuration_value,
)
from arena_topo.cli.options import Globals, Seconds, complain, display, show, spread
from arena_topo.errors import UsageError
from arena_topo.flag import Flag, flags_of, spelling
from arena_topo.job import MPIJob

DEFAULT = "default"
"""The origin of what nobody has set."""


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
        known=lambda: params,
        values=True,
    )
    reached = _reached(everywhere)
    listed = tuple(_settings(params, [*(above if resolved else ()), *found.layers]))
    if resolved:
        listed = tuple(_completed(listed, reached, found.profile))
    answer = Configuration(
        files=tuple((one.path, one.there) for one in (*found.files, found.arena)),
        profile=found.profile,
        settings=listed,
        reached=reached,
    )
    if output_format is Output.WIDE:
        display(configuration(answer, home=settings.at_home("~")))
    elif output_format is Output.JSON:
        show(layout.to_json(configuration_value(answer)) + "\n")
    else:
        show(layout.to_yaml(configuration_value(answer)))
    problems = list({one.message: one for one in found.problems}.values())
    for one in problems[:-1]:
        complain(one)
    if problems:
        raise problems[-1]


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
    for record, table in ((Globals, ""), (MPIJob, f"{settings.SECTION}.")):
        flags = flags_of(record)
        for field in fields(record):
            flag = flags.get(field.name)
            if flag is None or flag.hidden:
                continue
            name = table + spelling(field.name, flag).removeprefix("--")
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
