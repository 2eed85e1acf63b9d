"""A machine as `topology show -o json` prints it -> Machine.

    {"name": ..., "gpus": [{"index", "uuid", "model", "numa"}], "nics": [{"name", "attachment",
     "speedGBps"}], "nicsAssumed": ..., "links": [["X", "NV2"], ...], "nvswitch": ...,
     "pcieGeneration": ..., "knowledge": ...}

Only `gpus` and `links` are needed. Nothing else of a machine survives: bandwidths that somebody
measured or published belong to its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from arena_topo.errors import UnreadableTopology
from arena_topo.topology import (
    GPU,
    MOST_GPUS,
    Knowledge,
    Machine,
    behind_nvswitch,
)
from arena_topo.topology.models import model_of
from arena_topo.topology.published import matrix, nic

_MOST_NUMA = 1023
"""The highest number that Linux gives a NUMA node."""

_GENERATIONS = range(1, 8)
"""PCIe generations that exist."""


def from_document(document: Mapping[str, Any], *, name: str, model: str | None = None) -> Machine:
    """The machine of a JSON document; UnreadableTopology names the path of what makes no sense.

    `name` is what the machine is called if it has no name, `model` the GPUs' where it has none.
    """
    size = len(_listed(document, "gpus"))
    if not 0 < size <= MOST_GPUS:
        _refuse("gpus", f"{size} GPUs; a machine has 1 to {MOST_GPUS}")
    gpus = tuple(_gpu(index, one, model) for index, one in enumerate(document["gpus"]))
    links = matrix(document.get("links"), size, "links", _refuse)
    models = {gpu.model for gpu in gpus}
    common = models.pop() if len(models) == 1 else None
    nvswitch = document.get("nvswitch")
    if not isinstance(nvswitch, bool | None):
        _refuse("nvswitch", f"{nvswitch!r} is neither true nor false")
    return Machine(
        name=_text(document, "name", "name") or name,
        gpus=gpus,
        links=links,
        nics=tuple(
            nic(one, index, size, f"nics[{index}]", _refuse)
            for index, one in enumerate(_listed(document, "nics"))
        ),
        nics_assumed=_text(document, "nicsAssumed", "nicsAssumed") or "",
        nvswitch=behind_nvswitch(common, links) if nvswitch is None else nvswitch,
        pcie_generation=_whole(document, "pcieGeneration", "pcieGeneration", _GENERATIONS),
        knowledge=_knowledge(document),
    )


def _gpu(index: int, one: Any, model: str | None) -> GPU:
    path = f"gpus[{index}]"
    if not isinstance(one, Mapping):
        _refuse(path, "is not an object")
    written = _whole(one, "index", f"{path}.index", range(MOST_GPUS))
    if written not in {None, index}:
        _refuse(f"{path}.index", f"is {written}, not {index}")
    return GPU(
        index=index,
        uuid=_text(one, "uuid", f"{path}.uuid"),
        model=model_of(_text(one, "model", f"{path}.model") or model),
        numa=_whole(one, "numa", f"{path}.numa", range(_MOST_NUMA + 1)),
    )


def _knowledge(document: Mapping[str, Any]) -> Knowledge:
    written = document.get("knowledge", Knowledge.MEASURED.value)
    known = {one.value: one for one in Knowledge}
    if not isinstance(written, str) or written not in known:
        _refuse("knowledge", f"{written!r} is not one of {', '.join(known)}")
    return known[written]


def _listed(document: Mapping[str, Any], key: str) -> list[Any]:
    found = document.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        _refuse(key, "is not a list")
    return found


def _text(document: Mapping[str, Any], key: str, path: str) -> str | None:
    found = document.get(key)
    if not isinstance(found, str | None):
        _refuse(path, f"{found!r} is not a text")
    return found or None


def _whole(document: Mapping[str, Any], key: str, path: str, allowed: range) -> int | None:
    found = document.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or found not in allowed:
        _refuse(path, f"{found!r} is not a whole number from {allowed[0]} to {allowed[-1]}")
    return found


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnreadableTopology(reason, where=path)
