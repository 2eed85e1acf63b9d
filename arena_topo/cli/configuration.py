"""`config view`: the settings, their sources, and the cluster that they lead to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any

from arena_topo.cli import settings
from arena_topo.cli.arguments import PANEL, Output, OutputFlag, format_document
from arena_topo.cli.commands import name_origin, variables
from arena_topo.cli.options import CommonOptions, Seconds
from arena_topo.cli.parameters import Parameter, command_from_records
from arena_topo.cli.session import Session
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


@command_from_records
def config_view(
    session: Session,
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
    from arena_topo.cli.root import command_tree  # noqa: PLC0415 - the tree knows this command

    params = command_tree().commands["submit"].commands["mpi"].declaration.options
    above = [
        *(layer for layer in session.layers if layer.origin == settings.LINE),
        *settings.from_environment(params, variables(takes_job=True)),
    ]
    in_files = settings.read_settings(params, above=above, of_jobs=lambda: params)
    _check(params, settings.merge_layers(params, in_files.layers))
    reached = _reached(session.common)
    rows = _rows(params, [*(above if resolved else ()), *in_files.layers])
    if resolved:
        rows = _completed(rows, reached, in_files.profile)
    if output_format is Output.WIDE:
        session.console.screen(_screen(in_files, rows, reached))
        return
    several = {_key(option) for option in params if option.repeats}
    name, origin = in_files.profile
    value = {
        "apiVersion": "arena-topo/v1",
        "kind": "Configuration",
        "files": [{"path": file.path, "read": file.exists} for file in in_files.files],
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
    session.console.write(format_document(value, output_format))


def _check(params: Sequence[Parameter], values: Iterable[settings.Value]) -> None:
    """UsageError for the first value of a file that its option cannot read."""
    known = {param.name: param for param in params}
    for value in values:
        try:
            known[value.name].parse(value.text)
        except UsageError as error:
            name_origin(error, params, [value])
            raise


def _key(option: Parameter) -> str:
    """The key of an option in a settings file, with its table."""
    return (
        option.key if option.name in flags_of(CommonOptions) else f"{settings.SECTION}.{option.key}"
    )


def _rows(params: Iterable[Parameter], layers: list[settings.Layer]) -> Rows:
    """The settings of the layers, in the order of the options, the global ones first."""
    rows: Rows = {}
    values = settings.merge_layers(params, layers)
    for param in sorted(params, key=lambda value: value.name not in flags_of(CommonOptions)):
        mine = [value for value in values if value.name == param.name]
        if mine:
            # The weakest source comes first in the order of a command line.
            origins = list(dict.fromkeys(value.origin for value in reversed(mine)))
            rows[_key(param)] = [mask_credentials(value.text) for value in mine], origins
    return rows


def _completed(rows: Rows, reached: Mapping[str, Any], profile: tuple[str, str]) -> Rows:
    """All settings; those that are not set with their defaults."""
    known = dict(rows)
    if profile[0]:
        known["profile"] = [profile[0]], [profile[1]]
    if reached["namespace"] and reached["context"]:
        known.setdefault("namespace", ([reached["namespace"]], [f"context {reached['context']}"]))
    completed: Rows = {}
    for record, prefix in ((CommonOptions, ""), (MPIJob, f"{settings.SECTION}.")):
        defaults = {field.name: field.default for field in fields(record)}
        for name, flag in flags_of(record).items():
            if not flag.hidden:
                key = prefix + spelling(name, flag).removeprefix("--")
                completed[key] = known.get(key) or (_default(defaults[name]), [_DEFAULT])
    return completed | known


def _default(value: object) -> list[str]:
    if value is None or value is MISSING or value in ("", ()):
        return []
    text = f"{value:g}" if isinstance(value, float) else str(value)
    text += "s" if isinstance(value, Seconds) else ""
    return [text.lower() if isinstance(value, bool) else text]


def _reached(common: CommonOptions) -> dict[str, Any]:
    """The engine and the cluster that the settings lead to, or the error."""
    from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415 - only this command

    options = common.options()
    reached: dict[str, Any] = {"backend": options.backend, "kubeconfig": []}
    names = ("context", "cluster", "user", "as", "asGroups", "server", "proxy", "namespace")
    reached |= dict.fromkeys((*names, "trouble"))
    reached["asGroups"] = []
    files = kubeconfig.read_from(options)
    try:
        if options.backend == "auto":
            configured = kubeconfig.configured(options)
            reached["backend"] = "kubernetes" if configured else "local"
        if reached["backend"] == "local":
            return reached | {"namespace": options.namespace or "default"}
        access = kubeconfig.resolve(options)
    except UsageError as error:
        return reached | {"kubeconfig": files, "trouble": error.message}
    login = f"://{_HIDDEN}@" if access.login else "://"
    return reached | {
        "kubeconfig": files,
        "context": access.context or (None if access.cluster else kubeconfig.IN_CLUSTER),
        "cluster": access.cluster,
        "user": access.identity,
        "as": access.headers.get("impersonate-user"),
        "asGroups": list(access.groups),
        "server": mask_credentials(access.server.replace("://", login, 1)) or None,
        "proxy": mask_credentials(access.proxy) if access.proxy else None,
        "namespace": options.namespace or access.namespace or "default",
    }


# ---------------------------------------------------------------- what is shown


def mask_credentials(text: str) -> str:
    """A value without credentials: logins in URLs, values of secret variables."""
    name, equals, _ = text.partition("=")
    shown = f"{name}={_HIDDEN}" if equals and _SECRET.search(name) else text
    return _LOGIN.sub(f"{_HIDDEN}@", shown)


def _screen(in_files: settings.Settings, rows: Rows, reached: Mapping[str, Any]) -> str:
    """Files, settings and the cluster, each under a heading; the home folder is written `~`."""
    home = settings.at_home("~")

    def short(path: str) -> str:
        return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path

    files = [(short(file.path), "read" if file.exists else "missing") for file in in_files.files]
    blocks = [align(table(("FILE", "STATE"), files))]
    name, origin = in_files.profile
    if name:
        blocks.append(align([f"Profile:\t{name} (chosen by {short(origin)})"]))
    cells = [
        (key, ", ".join(values) or "-", ", ".join(map(short, origins)))
        for key, (values, origins) in rows.items()
    ]
    listed = align(table(("SETTING", "VALUE", "FROM"), cells))
    blocks.append(listed if cells else "No settings file sets an option.\n")
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
