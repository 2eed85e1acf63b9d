"""The table of GPU models: one row per model, and all other tables derive from the rows.

Sources: NVIDIA data sheets and architecture white papers (NVLinks, PCIe, usual network cards); NCCL
src/graph/topo.h, SM60/70/80/86/90/100_NVLINK_BW (rates); pci-ids.ucw.cz, vendor 10de (ids); Puget
Systems, "NVLink on NVIDIA GeForce RTX 2080 & 2080 Ti" (GeForce cards since Turing reach each other
over NVLink alone).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType


class Architecture(StrEnum):
    """A generation of GPUs, oldest first."""

    KEPLER = "kepler"
    MAXWELL = "maxwell"
    PASCAL = "pascal"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One GPU model.

    A product belongs to the model with the longest `name` that its own name begins with, without
    maker and brand; of a name of a single word (H100), any word of the product counts.

    `nvlinks` is the number of NVLinks of one GPU, `lane_rate` the rate that NCCL gets from one of
    them in one direction (GB/s; the nominal rates of data sheets are 20, 25, 25, 14, 25 and 50);
    None if there are none or the number differs between boards. `pcie` is the PCIe generation of
    the GPU. `p2p` is False if the driver never lets two GPUs reach each other over PCIe. `nic` is
    the network bandwidth per GPU (GB/s) of the maker's reference machine. `domain` is the GPUs of
    its NVLink domain if that leaves the machine (GH200 NVL32, GB200 and GB300 NVL72). `nvls` is
    False if the only measured row has rings where other models of its architecture have NVLS
    (`tests/bandwidth/busbw.tsv`). `ids` are PCI
    device ids, `capability` is the CUDA compute capability if no other model with NVLinks shares
    it.
    """

    name: str
    architecture: Architecture
    pcie: int
    nvlinks: int | None = None
    lane_rate: float | None = None
    p2p: bool = True
    nic: float | None = None
    domain: int | None = None
    nvls: bool = True
    ids: tuple[str, ...] = ()
    capability: str | None = None


_BLACKWELL = partial(Model, architecture=Architecture.BLACKWELL, nvlinks=18, lane_rate=40.1)
_BLACKWELL_CARD = partial(Model, architecture=Architecture.BLACKWELL, pcie=5)
_HOPPER = partial(Model, architecture=Architecture.HOPPER, pcie=5, nvlinks=18, lane_rate=20.6)
_AMPERE_SXM = partial(Model, architecture=Architecture.AMPERE, pcie=4, nvlinks=12, lane_rate=20.0)
_AMPERE = partial(Model, architecture=Architecture.AMPERE, pcie=4)
_AMPERE_BRIDGED = partial(_AMPERE, lane_rate=12.0)
_ADA = partial(Model, architecture=Architecture.ADA, pcie=4)
_TURING = partial(Model, architecture=Architecture.TURING, pcie=3)
_TURING_BRIDGED = partial(_TURING, lane_rate=20.0)
_VOLTA = partial(Model, architecture=Architecture.VOLTA, pcie=3, nvlinks=6, lane_rate=20.0)
_PASCAL = partial(Model, architecture=Architecture.PASCAL, pcie=3)

_ROWS = (
    _BLACKWELL(name="GB300", pcie=6, nic=100.0, domain=72, ids=("31c2", "31c3")),
    _BLACKWELL(name="GB200", pcie=5, nic=50.0, domain=72, ids=("2941",)),
    _HOPPER(name="GH200", nic=25.0, domain=32),
    _BLACKWELL(name="B300", pcie=6, nic=100.0),
    _BLACKWELL(name="B200", pcie=5, nic=50.0, ids=("2901",)),
    _BLACKWELL(name="B100", pcie=5, nic=50.0),
    _BLACKWELL_CARD(name="GB10", nic=25.0),
    _HOPPER(name="H200", nic=50.0, ids=("2335", "233b")),
    _HOPPER(name="H100", nic=50.0, ids=("2321", "2330", "2331")),
    _HOPPER(name="H800", nic=50.0, ids=("2322", "2324")),
    _HOPPER(name="H20", nic=50.0, nvls=False, ids=("2329",)),
    _AMPERE_SXM(name="A100", nic=25.0, ids=("20b0", "20b1", "20b2", "20b5", "20f1")),
    _AMPERE_SXM(name="A800", nic=25.0),
    _AMPERE(name="A30", nvlinks=4, lane_rate=20.0, ids=("20b7",)),
    _AMPERE_BRIDGED(name="A40", ids=("2235",)),
    _AMPERE_BRIDGED(name="A10", ids=("2236",)),
    _AMPERE(name="A10G", ids=("2237",)),
    _AMPERE(name="A16"),
    _AMPERE(name="A2"),
    _AMPERE_BRIDGED(name="RTX A6000"),
    _AMPERE_BRIDGED(name="RTX A5500"),
    _AMPERE_BRIDGED(name="RTX A5000"),
    _AMPERE(name="RTX A4500", lane_rate=12.0),
    _AMPERE(name="RTX A4000"),
    _AMPERE(name="RTX A2000"),
    _AMPERE_BRIDGED(name="RTX 3090 Ti", p2p=False),
    _AMPERE_BRIDGED(name="RTX 3090", p2p=False),
    _AMPERE(name="RTX 3080", p2p=False),
    _ADA(name="RTX 4090 D", p2p=False),
    _ADA(name="RTX 4090", p2p=False),
    _ADA(name="RTX 4080", p2p=False),
    _ADA(name="RTX 6000 Ada"),
    _ADA(name="RTX 5000 Ada"),
    _ADA(name="RTX 4500 Ada"),
    _ADA(name="RTX 4000 Ada"),
    _BLACKWELL_CARD(name="RTX 5090 D", p2p=False),
    _BLACKWELL_CARD(name="RTX 5090", p2p=False),
    _BLACKWELL_CARD(name="RTX 5080", p2p=False),
    _BLACKWELL_CARD(name="RTX PRO 6000"),
    _BLACKWELL_CARD(name="RTX PRO 5000"),
    _BLACKWELL_CARD(name="RTX PRO 4500"),
    _BLACKWELL_CARD(name="RTX PRO 4000"),
    _BLACKWELL_CARD(name="RTX 6000D"),
    _ADA(name="L40S", ids=("26b9",)),
    _ADA(name="L40", ids=("26b5",)),
    _ADA(name="L20"),
    _ADA(name="L4", ids=("27b8",)),
    _ADA(name="L2"),
    _VOLTA(name="V100", nic=6.25, ids=("1db1", "1db4", "1db5", "1db6", "1db8"), capability="70"),
    _PASCAL(
        name="P100",
        nvlinks=4,
        lane_rate=18.0,
        nic=6.25,
        ids=("15f7", "15f8", "15f9"),
        capability="60",
    ),
    _PASCAL(name="P40"),
    _PASCAL(name="P4"),
    _TURING(name="T4", ids=("1eb8",)),
    _TURING_BRIDGED(name="RTX 2080 Ti", p2p=False),
    _TURING_BRIDGED(name="TITAN RTX", p2p=False),
    _TURING_BRIDGED(name="RTX 8000"),
    _TURING_BRIDGED(name="RTX 6000"),
    _TURING_BRIDGED(name="RTX 5000"),
    Model(name="K80", architecture=Architecture.KEPLER, pcie=3),
    Model(name="M60", architecture=Architecture.MAXWELL, pcie=3),
)

MODELS: Mapping[str, Model] = MappingProxyType({model.name: model for model in _ROWS})

LANES_PER_GPU: Mapping[str, int] = MappingProxyType(
    {model.name: model.nvlinks for model in MODELS.values() if model.nvlinks is not None}
)
"""NVLinks of one GPU, for models with a fixed number."""

MOST_LANES = max(LANES_PER_GPU.values())

BY_ID: Mapping[str, str] = MappingProxyType(
    {pci_id: model.name for model in MODELS.values() for pci_id in model.ids}
)
"""Models by PCI device id."""

BY_CAPABILITY: Mapping[str, str] = MappingProxyType(
    {model.capability: model.name for model in MODELS.values() if model.capability}
)
"""Compute capabilities with NVLink that only one data centre GPU has. 80 may be an A100, an A800 or
an A30, 90 an H100, H200, H800 or H20, whose NVLinks differ, so they do not identify the model."""

_WORDS = re.compile(
    r"\b(" + "|".join((*(name for name in MODELS if " " not in name), "V100S")) + r")\b"
)

_BEGINNINGS = re.compile(
    "("
    + "|".join(sorted((name for name in MODELS if " " in name), key=len, reverse=True))
    + r")\b",
    re.IGNORECASE,
)
"""Names of several words, which begin the product names of workstation and consumer cards."""

_CANONICAL = {name.lower(): name for name in MODELS}


def model_of(product: str | None) -> str | None:
    """The model in a product name: `NVIDIA-H100-80GB-HBM3` is `H100`; the product if unknown."""
    if not product:
        return None
    name = re.sub(r"[-_\s]+", " ", product).strip()
    name = re.sub(r"^((NVIDIA|Tesla|GeForce|Quadro)\s+)+", "", name).strip()
    if match := _BEGINNINGS.match(name):
        return _CANONICAL[match[1].lower()]
    if match := _WORDS.search(name):
        return "V100" if match[1] == "V100S" else match[1]
    return name or None
