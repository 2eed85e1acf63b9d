"""The commands about machines and the program: topology, version, whoami, completion."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from arena_topo import __version__, output
from arena_topo.cli.jobs import PlanFormat, engine
from arena_topo.cli.options import PROGRAM, Globals, say, show, spread, tell
from arena_topo.errors import UsageError
from arena_topo.flag import Flag
from arena_topo.topology import Cluster, Machine

_PANEL = "Options"

COMPLETE_VARIABLE = "_ARENA_TOPO_COMPLETE"
"""Set by the completion scripts when they ask the program for words."""

SHELLS = ("bash", "zsh", "fish", "powershell")


@spread
def topology_presets(everywhere: Globals) -> None:
    """List the machines that are known by name."""
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    del everywhere
    show(output.machines((name, presets.machine(name, name)) for name in presets.names()))


@spread
def topology_show(
    target: Annotated[str, typer.Argument(metavar="[PRESET|NODE]", show_default=False)],
    everywhere: Globals,
    source: Annotated[
        str,
        Flag(
            help="Read the output of nvidia-smi topo -m from this file; - is standard input.",
            name="--from",
            panel=_PANEL,
            metavar="FILE",
        ),
    ] = "",
    state: Annotated[
        tuple[str, ...],
        Flag(
            help="Look for the node in this dump of kubectl get -o json; repeat for more.",
            panel=_PANEL,
            metavar="FILE",
        ),
    ] = (),
    output_format: Annotated[
        PlanFormat, Flag(help="How to show it.", name="--output", short="-o", panel=_PANEL)
    ] = PlanFormat.WIDE,
) -> None:
    """Show how the GPUs of one machine are linked."""
    machine = _machine(target, source, state, everywhere)
    if output_format is PlanFormat.JSON:
        show(output.to_json(output.machine_value(machine)) + "\n")
    elif output_format is PlanFormat.YAML:
        show(output.to_yaml(output.machine_value(machine)))
    else:
        show(output.matrix(machine))


def _machine(target: str, source: str, state: tuple[str, ...], everywhere: Globals) -> Machine:
    if source and target:
        raise UsageError("--from and the name of a machine exclude each other")
    if source:
        return _read_matrix(source)
    if not target:
        raise UsageError(
            "which machine?", hint=f"{PROGRAM} topology show PRESET, NODE, or --from FILE"
        )
    from arena_topo import workflow  # noqa: PLC0415 - the verbs load what they need
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    if state:
        return _node(target, workflow.read_state(state))
    if target in presets.names():
        return presets.machine(target, target)
    return _node(target, engine(everywhere).cluster())


def _read_matrix(source: str) -> Machine:
    from arena_topo.topology import nvidia  # noqa: PLC0415 - only for matrices

    try:
        if source == "-":
            text, name = sys.stdin.read(), "stdin"
        else:
            text, name = Path(source).read_text(encoding="utf-8"), Path(source).stem
    except OSError as error:
        raise UsageError(f"cannot read {source}", why=error.strerror) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {source}", why="it is not UTF-8 text") from error
    reading = nvidia.read_topo(text, name=name)
    tell(reading.notes)
    return reading.machine


def _node(name: str, cluster: Cluster) -> Machine:
    from arena_topo.topology import presets  # noqa: PLC0415 - reads the matrices

    tell(cluster.notes)
    if cluster.emulated:
        say(output.EMULATED)
    names = [*(node.name for node in cluster.nodes), *presets.names()]
    for node in cluster.nodes:
        if node.name == name:
            return node.machine
    near = difflib.get_close_matches(name, names, n=1)
    raise UsageError(
        f"there is no node or preset {name}", hint=f"did you mean {near[0]}?" if near else None
    )


@spread
def version(
    everywhere: Globals,
    *,
    short: Annotated[bool, Flag(help="Only the version.", panel=_PANEL)] = False,
) -> None:
    """Show the version of the program."""
    del everywhere
    show(f"{PROGRAM}: v{__version__}\n")
    if not short:
        show(f"  PythonVersion: {platform.python_version()}\n")
        show(f"  Platform: {sys.platform}/{os.uname().machine}\n")


@spread
def whoami(everywhere: Globals) -> None:
    """Show the name that jobs are submitted under."""
    name = engine(everywhere).owner()
    # An identifier that arena derives in the same way, not a secret.
    identity = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    shown = {"Name": name, "Id": identity, "IsAdminUser": False}
    show(json.dumps(shown, separators=(",", ":"), ensure_ascii=False) + "\n")


@spread
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", show_default=False)],
    everywhere: Globals,
) -> None:
    """Print the completion script for bash, zsh, fish or powershell."""
    from typer._completion_shared import (  # noqa: PLC0415 - no public name prints them
        get_completion_script,
    )

    del everywhere
    if shell not in SHELLS:
        *some, last = SHELLS
        raise UsageError(
            f"Invalid shell {shell!r}. The supported shells are {', '.join(some)} and {last}.",
            hint=f"source <({PROGRAM} completion bash)",
        )
    script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell)
    show(script + "\n")
