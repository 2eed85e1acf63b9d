"""A machine as `topology show -o json` prints it -> Machine.

    {"name": ..., "gpus": [{"index", "uuid", "model", "numa"}], "nics": [{"name", "attachment",
     "speedGBps"}], "nicsAssumed": ..., "links": [["X", "NV2"], ...], "nvswitch": ...,
     "pcieGeneration": ..., "knowledge": ...}

Only `gpus` and `links` are needed. Nothing else of a machine survives: bandwidths that somebody
measured or published belong to its node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

import msgspec

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
from arena_topo.topology.decoding import Refuse, check_length, tried
from arena_topo.topology.models import model_of
from arena_topo.topology.published import SELF

SLOWEST, FASTEST = 0.001, 1e6
"""GB/s between which all links and networks are; products of such rates neither vanish nor end."""

Rate = Annotated[float, msgspec.Meta(ge=SLOWEST, le=FASTEST)]

_SELVES = frozenset({SELF, "N/A", "X"})


class _GPU(msgspec.Struct):
    index: int | None = None
    uuid: str | None = None
    model: str | None = None
    # Linux numbers at most 1,024 NUMA nodes.
    numa: Annotated[int, msgspec.Meta(ge=0, lt=1024)] | None = None


class Card(msgspec.Struct):
    """A NIC as documents have it, its links in the words of nvidia-smi."""

    attachment: list[str]
    name: str | None = None
    speed: Rate | None = msgspec.field(default=None, name="speedGBps")


class _Machine(msgspec.Struct, rename="camel"):
    gpus: Annotated[list[_GPU], msgspec.Meta(min_length=1, max_length=MOST_GPUS)]
    links: list[list[str]]
    name: str | None = None
    nics: list[Card] | None = None
    nics_assumed: str | None = None
    nvswitch: bool | None = None
    pcie_generation: Annotated[int, msgspec.Meta(ge=1, le=7)] | None = None
    knowledge: Knowledge | None = None


def from_document(document: Mapping[str, Any], *, name: str, model: str | None = None) -> Machine:
    """The machine of a JSON document; UnreadableTopology names the path of what makes no sense.

    `name` is what the machine is called if it has no name, `model` the GPUs' where it has none.
    """
    told = tried(lambda: msgspec.convert(document, _Machine), _refuse)
    for at, one in enumerate(told.gpus):
        if one.index not in {None, at}:
            _refuse(f"gpus[{at}].index", f"is {one.index}, not {at}")
    gpus = tuple(
        GPU(index=at, uuid=one.uuid or None, model=model_of(one.model or model), numa=one.numa)
        for at, one in enumerate(told.gpus)
    )
    links = matrix(told.links, len(gpus), _refuse, "links")
    switched = behind_nvswitch(common_model(gpus), links)
    return Machine(
        name=told.name or name,
        gpus=gpus,
        links=links,
        nics=nics(told.nics or (), len(gpus), _refuse, "nics"),
        nics_assumed=told.nics_assumed or "",
        nvswitch=switched if told.nvswitch is None else told.nvswitch,
        pcie_generation=told.pcie_generation,
        knowledge=told.knowledge or Knowledge.MEASURED,
    )


def matrix(rows: Sequence[Sequence[str]], size: int, refuse: Refuse, path: str) -> Matrix:
    """The links of `size` GPUs, each row in the words of nvidia-smi."""
    check_square(rows, size, refuse, path)
    links: list[tuple[Link | None, ...]] = []
    for i, row in enumerate(rows):
        for j, word in enumerate(row):
            if (word in _SELVES) != (i == j):
                refuse(f"{path}[{i}][{j}]", f"is {word}, but {SELF} marks a GPU and itself")
            if j < i and word != rows[j][i]:
                refuse(f"{path}[{i}][{j}]", f"is {word}, but [{j}][{i}] is {rows[j][i]}")
        links.append(
            tuple(
                None if i == j else link(word, refuse, f"{path}[{i}][{j}]")
                for j, word in enumerate(row)
            )
        )
    return tuple(links)


def check_square(rows: Sequence[Sequence[Any]], size: int, refuse: Refuse, path: str) -> None:
    """Refuse what is no matrix with a row and a column for each of `size` GPUs."""
    check_length(rows, size, refuse, path)
    for i, row in enumerate(rows):
        check_length(row, size, refuse, f"{path}[{i}]")


def nics(cards: Sequence[Card], size: int, refuse: Refuse, path: str) -> tuple[NIC, ...]:
    """The NICs of a machine with `size` GPUs."""
    found = []
    for at, one in enumerate(cards):
        place = f"{path}[{at}].attachment"
        check_length(one.attachment, size, refuse, place)
        links = (link(word, refuse, f"{place}[{gpu}]") for gpu, word in enumerate(one.attachment))
        found.append(NIC(name=one.name or f"NIC{at}", attachment=tuple(links), speed=one.speed))
    return tuple(found)


def link(word: str, refuse: Refuse, path: str) -> Link:
    """One link in the words of nvidia-smi."""
    try:
        return Link.parse(word)
    except ValueError as error:
        refuse(path, str(error))


def _refuse(path: str, reason: str) -> NoReturn:
    raise UnreadableTopology(reason, where=path or "the document")
