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
    NIC,
    Knowledge,
    Link,
    Machine,
    Matrix,
    behind_nvswitch,
    common_model,
)
from arena_topo.topology.fields import Field
from arena_topo.topology.models import model_of
from arena_topo.topology.published import SELF

_SELVES = frozenset({SELF, "N/A", "X"})

_NUMA_NODES = range(1024)
"""The numbers that Linux gives NUMA nodes."""

_GENERATIONS = range(1, 8)
"""PCIe generations that exist."""


def from_document(document: Mapping[str, Any], *, name: str, model: str | None = None) -> Machine:
    """The machine of a JSON document; UnreadableTopology names the path of what makes no sense.

    `name` is what the machine is called if it has no name, `model` the GPUs' where it has none.
    """
    told = Field(document, "", _refuse)
    listed = told["gpus"].items(most=MOST_GPUS)
    if not listed:
        told["gpus"].refuse("has no entries")
    gpus = tuple(_gpu(index, one, model) for index, one in enumerate(listed))
    links = matrix(told["links"], len(gpus))
    switched = told["nvswitch"].maybe(Field.truth)
    known = {one.value: one for one in Knowledge}
    if told["knowledge"].maybe(Field.text) not in {None, *known}:
        told["knowledge"].wanted(f"one of {', '.join(known)}")
    return Machine(
        name=told["name"].maybe(Field.text) or name,
        gpus=gpus,
        links=links,
        nics=told["nics"].maybe(lambda one: nics(one, len(gpus))) or (),
        nics_assumed=told["nicsAssumed"].maybe(Field.text) or "",
        nvswitch=behind_nvswitch(common_model(gpus), links) if switched is None else switched,
        pcie_generation=told["pcieGeneration"].maybe(lambda one: one.whole(_GENERATIONS)),
        knowledge=known.get(told["knowledge"].value, Knowledge.MEASURED),
    )


def _gpu(index: int, told: Field, model: str | None) -> GPU:
    if told["index"].maybe(lambda one: one.whole(range(MOST_GPUS))) not in {None, index}:
        told["index"].wanted(str(index))
    return GPU(
        index=index,
        uuid=told["uuid"].maybe(Field.text) or None,
        model=model_of(told["model"].maybe(Field.text) or model),
        numa=told["numa"].maybe(lambda one: one.whole(_NUMA_NODES)),
    )


def matrix(told: Field, size: int) -> Matrix:
    """The links of `size` GPUs, each row in the words of nvidia-smi."""
    rows = [row.items(size) for row in told.items(size)]
    links: list[tuple[Link | None, ...]] = []
    for i, row in enumerate(rows):
        for j, one in enumerate(row):
            if (one.text() in _SELVES) != (i == j):
                one.refuse(f"is {one.value}, but {SELF} marks a GPU and itself")
        links.append(tuple(None if i == j else link(one) for j, one in enumerate(row)))
        for j, above in enumerate(links[:i]):
            if links[i][j] != above[i]:
                row[j].refuse(f"is {row[j].value}, but [{j}][{i}] is {rows[j][i].value}")
    return tuple(links)


def nics(told: Field, size: int) -> tuple[NIC, ...]:
    """The NICs of a machine with `size` GPUs, each with its links in the words of nvidia-smi."""
    return tuple(
        NIC(
            name=one["name"].maybe(Field.text) or f"NIC{at}",
            attachment=tuple(map(link, one["attachment"].items(size))),
            speed=one["speedGBps"].maybe(Field.rate),
        )
        for at, one in enumerate(told.items())
    )


def link(told: Field) -> Link:
    """One link in the words of nvidia-smi."""
    try:
        return Link.parse(told.text())
    except ValueError as error:
        told.refuse(str(error))


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnreadableTopology(reason, where=path or "the document")
