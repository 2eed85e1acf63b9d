"""Machines: read from files or from this machine, and checked before they are published."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from arena_topo.engines.backend import Backend
from arena_topo.errors import ArenaError, UnreadableTopology, UsageError
from arena_topo.escaping import one_line
from arena_topo.files import STDIN, encoding, opened
from arena_topo.names import is_subdomain
from arena_topo.topology import (
    Knowledge,
    LinkKind,
    Machine,
    documents,
    nccl_xml,
    nvidia,
    presets,
)
from arena_topo.topology.nvidia import Reading
from arena_topo.words import with_extra

MAX_MACHINE_BYTES = 4_000_000
"""The size limit of a file of a machine in bytes; its readers have lower limits."""


_HINT = "make one on the machine: nvidia-smi topo -m > FILE"


def read_description(source: str) -> Reading:
    """The machine that a file describes (`-`: standard input), and notes on ignored parts.

    Formats: the output of `nvidia-smi topo -m`, NCCL's XML, JSON of `topology show`, and a
    published ConfigMap as JSON. UsageError with the name of the file, and the line, if it cannot be
    read.
    """
    text, name, shown = _text(source)
    try:
        return _parsed(text, name)
    except UnreadableTopology as error:
        where = f"{shown}, {error.where}" if error.where else shown
        raise UsageError(f"{where}: {error.reason}", hint=error.hint or _HINT) from error


def _parsed(text: str, name: str) -> Reading:
    first = text.lstrip()[:1]
    if first == "<":
        return nccl_xml.read_xml(text, name=name)
    if first == "{":
        return _document(text, name)
    return Reading(machine=nvidia.parse_topo(text, name=name))


def _document(text: str, name: str) -> Reading:
    try:
        document = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise UnreadableTopology(
            f"this JSON is not complete: {error.msg}", where=f"line {error.lineno}"
        ) from error
    except (RecursionError, ValueError) as error:
        raise UnreadableTopology(f"this is not the JSON of a machine: {error}") from error
    if document.get("kind") == "ConfigMap":
        return Reading(machine=documents.gpus_from_config_map(document).machine)
    if "gpus" not in document:
        what = f"a {document['kind']}" if isinstance(document.get("kind"), str) else "other JSON"
        raise UnreadableTopology(
            f"this is {what}, not a machine as `topology show -o json` prints it",
            hint="dumps of kubectl are read with --state FILE",
        )
    return Reading(machine=documents.machine_from_document(document, name=name))


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _text(source: str, *, hint: str = _HINT) -> tuple[str, str, str]:
    """The text of a file, the name of a machine in it, and the name of the file in errors."""
    name, shown = ("stdin", "standard input") if source == STDIN else (Path(source).stem, source)
    try:
        with opened(source) as file:
            data = file.read(MAX_MACHINE_BYTES + 1)
        text = data.decode(encoding(data))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {shown}", why=why, hint=hint) from error
    if len(data) > MAX_MACHINE_BYTES:
        why = f"more than {MAX_MACHINE_BYTES // 1_000_000} MB are no machine"
        raise UsageError(f"cannot read {shown}", why=why, hint=hint)
    return text, name, shown


def discover() -> Machine:
    """This machine with its GPUs and NICs; ArenaError without GPUs, with what to install."""
    from arena_topo.engines.local import scheduler  # noqa: PLC0415 - loads the solver

    detected = scheduler.detect_machine()
    if isinstance(detected, Machine):
        return scheduler.with_local_nics(detected)
    raise ArenaError(
        "this machine has no GPUs that NVML or nvidia-smi can list",
        why="; ".join(detected),
        hint=f"install NVIDIA's driver and {with_extra('gpu')}, or read a file that was made"
        " elsewhere: nvidia-smi topo -m > FILE, and --from FILE here",
    )


def publishing(node: str, *, source: str = "", preset: str = "") -> Reading:
    """The machine to publish for a node, under the node's name, and notes on ignored parts.

    The source is a file, a preset, or this machine. Without `node` the name is that of NODE_NAME,
    or of the host for this machine. UsageError without a name, and for a machine with unknown
    links.
    """
    name = node or os.environ.get("NODE_NAME", "")
    if not name and (source or preset):
        raise UsageError(
            "the name of the node is missing",
            why="neither a file nor a preset contains it",
            hint="arena-topo topology publish NODE, or set NODE_NAME",
        )
    if source:
        reading = read_description(source)
    elif preset:
        known = presets.preset_machine(preset, preset)
        reading = Reading(machine=replace(known, knowledge=Knowledge.ASSUMED))
    else:
        reading = Reading(machine=discover())
    machine = replace(reading.machine, name=name or reading.machine.name)
    _check(machine)
    return replace(reading, machine=machine)


def known(backend: Backend, node: str) -> Reading:
    """The machine of a node as the cluster knows it; UsageError if its links are unknown."""
    for other in backend.cluster().nodes:
        if other.name == node:
            machine = replace(other.machine, name=node)
            _check(machine)
            return Reading(machine=machine)
    raise UsageError(
        f"there is no node {node} in this cluster", hint="kubectl get nodes lists them"
    )


def with_measured(reading: Reading, source: str) -> Reading:
    """The same machine with the bandwidths in a file (`-`: standard input).

    The file is a JSON object of GPUs and GB/s, `{"0,1,2,3": 82.1}`, or has this object as its
    `busBandwidth`, with the day and the version of NCCL as `measured`. UsageError if it does not
    fit this machine, or names another node.
    """
    machine = reading.machine
    text, _name, shown = _text(source, hint=_TABLE)
    try:
        table = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown}: this is not valid JSON: {error}", hint=_TABLE) from error
    when = ""
    if isinstance(table, dict) and "busBandwidth" in table:
        when = one_line(str(table.get("measured") or ""))[: documents.MAX_WHEN]
        node, table = table.get("node"), table["busBandwidth"]
        if node is not None and node != machine.name:
            raise UsageError(
                f"{shown}: this was measured on node {one_line(str(node))}",
                why=f"it would be published for node {machine.name}",
            )

    def refuse(path: str, reason: str) -> NoReturn:
        raise UsageError(f"{shown}{path}: {reason}", hint=_TABLE)

    measured = documents.parse_measured(table or {}, len(machine.gpus), refuse)
    if not measured:
        raise UsageError(f"{shown}: there is no bandwidth in it", hint=_TABLE)
    return replace(reading, machine=replace(machine, measured=measured, measured_on=when))


_TABLE = 'make one: arena-topo logs JOB --nccl --bus-bandwidth; it looks like {"0,1,2,3": 82.1}'


def _check(machine: Machine) -> None:
    if not is_subdomain(machine.name):
        raise UsageError(
            f"{machine.name!r} is not a name that a node can have",
            hint="name the node: arena-topo topology publish NODE",
        )
    linked = any(
        link is not None and link.kind is LinkKind.NVLINK for row in machine.links for link in row
    )
    if machine.knowledge is Knowledge.UNKNOWN or (
        machine.knowledge is Knowledge.ASSUMED and not linked
    ):
        raise UsageError(
            f"it is not known how the GPUs of {machine.name} are linked",
            why="what is published counts as the truth, and here it would be that there are no"
            " NVLinks",
            hint="publish the output of nvidia-smi topo -m, made on the node",
        )
