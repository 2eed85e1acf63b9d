"""Names for TAB that are not cached yet: read as a command would read them, and cached.

Flags, variables and settings count as for every command. Nothing is printed, and no password is
asked for. TAB waits for at most a moment (`completion.names`).
"""

from __future__ import annotations

from collections.abc import Sequence

from arena_topo.cli import settings
from arena_topo.cli.commands import make_command
from arena_topo.cli.console import Console
from arena_topo.cli.name_cache import CachedNames
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of
from arena_topo.completion import names
from arena_topo.engines import engine_choice


def ask(kind: str, given: Sequence[tuple[str, str]]) -> None:
    """Read the names of a kind for a line with these options, and cache them.

    Any exception where they cannot be read.
    """

    @command_from_records
    def look(session: Session) -> None:
        """Read names."""
        _look(kind, session)

    line = [f"--{name}={text}" for name, text in given if name in {*names.FLAGS, "namespace"}]
    line.append(f"--request-timeout={names.TAB_TIMEOUT:g}s")
    make_command(look, "names", steady=True).main(
        args=line, prog_name=PROGRAM, standalone_mode=False, obj=Console()
    )


def _look(kind: str, session: Session) -> None:
    cached = CachedNames(session.common, session.layers)
    options = session.common.options()
    if kind == "profiles":
        files = settings.read_settings().files
        cached.own(kind, {name for file in files for name in file.table("profile")})
        return
    if kind in names.OWN:
        from arena_topo.engines.kubernetes import kubeconfig  # noqa: PLC0415 - loads YAML

        for each, entry in kubeconfig.entries(options).items():
            cached.own(each, entry)
        return
    backend = engine_choice.open_backend(options)
    namespace = namespace_of(session, backend)
    if kind in {"jobs", "instances"}:
        cached.jobs(backend, namespace, backend.jobs(namespace), whole=True)
    elif kind == "claims":
        cached.claims(backend, backend.volumes(namespace), namespace)
    elif backend.name != "local":
        cached.others(backend, kind, engine_choice.administration(backend).named(kind))
    elif kind == "nodes":
        cached.nodes(backend, backend.cluster())
    else:
        spaces = {"default", *(job.namespace for job in backend.jobs(None))}
        cached.others(backend, kind, dict.fromkeys(spaces if kind == "namespaces" else (), ""))
