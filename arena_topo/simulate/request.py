"""What the request of a simulation means: the cluster, the trace, and the cases to replay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from arena_topo.bandwidth import Wire
from arena_topo.errors import InvalidValue, UsageError, near
from arena_topo.job import Duration
from arena_topo.simulate import Durations, ReplayPolicy, SimulationRequest
from arena_topo.simulate.emulation import NETWORKS, emulated_cluster
from arena_topo.simulate.replay import QUEUE_RULES, ReplayRules
from arena_topo.simulate.running import SimulationPlan, cases_of
from arena_topo.simulate.traces import Poisson, read_trace
from arena_topo.topology import BEYOND, Cluster
from arena_topo.topology.fabric import FabricFile
from arena_topo.topology.models import MODELS

_Value = TypeVar("_Value")

MAX_SEEDS, MAX_LOAD = 1_000, 10.0
"""The most seeds, and the largest load."""


def plan_of(
    trace: str, request: SimulationRequest, fabric: FabricFile | None = None
) -> SimulationPlan:
    """The plan of a simulation; UsageError for an invalid request.

    `fabric` is the network between the nodes of a dump, and has calibrations of emulated ones too.
    """
    if bool(trace) == bool(request.generate):
        raise UsageError(
            "no trace is named" if not trace else "a trace and --generate exclude each other",
            hint="give the file of a trace, or --generate poisson:2000",
        )
    if not (request.nodes or request.state):
        raise UsageError(
            "no cluster is named",
            hint="give --nodes 64xdgx-1-v100, or --state FILE of your cluster",
        )
    if request.seeds > MAX_SEEDS:
        raise UsageError(f"--seeds {request.seeds}: there can be 1 to {MAX_SEEDS:,}")
    loads = _loads(request.load)
    if request.generate and loads == (None,):
        raise UsageError("--generate needs --load", hint="add --load 0.8")
    pools = () if fabric is None else fabric.pools
    if request.state:
        from arena_topo.simulate.dumps import (  # noqa: PLC0415 - YAML, only for dumps
            read_running_cluster,
        )

        cluster, running = read_running_cluster(request.state, fabric)
        # As `plan` on the same dump: no pod gets RDMA from nodes that offer none.
        offered = Wire.RDMA if all(node.rdma for node in cluster.nodes) else Wire.TCP
        wire = request.network or offered
        network = f"{wire.upper()}, {network_text(cluster)}"
    else:
        wire = request.network or Wire.RDMA
        cluster, running = emulated_cluster(request.nodes, wire, pools), ()
        network = NETWORKS[wire].text
    for pool in pools:
        if pool.wire != wire or all(node.machine.pool != pool for node in cluster.nodes):
            raise UsageError(
                f"calibration {pool.name} fits nothing in this simulation",
                why=f"it is of nodes with {pool.gpus} x {pool.model or 'GPU'} over"
                f" {pool.wire.upper()}",
                hint="--network names the transport",
            )
        network += f"; {pool}"
    rules = ReplayRules(
        cluster=cluster,
        wire=wire,
        running=running,
        as_run=request.durations is Durations.AS_RUN,
        speeds=_speeds(request.speed),
        window=_window(request.window),
    )
    cases = cases_of(
        [ReplayPolicy(word) for word in _words("--policy", request.policy, ReplayPolicy)],
        _words("--queue", request.queue, QUEUE_RULES),
        _each("--patience", request.patience, _seconds),
        loads,
        request.seeds,
    )
    source = Poisson.parse(request.generate) if request.generate else read_trace(trace)
    return SimulationPlan(source=source, rules=rules, cases=cases, network=network)


def network_text(cluster: Cluster) -> str:
    """The rates of the network of a cluster: `leaf 40 GB/s, beyond an unknown rate`."""
    levels = [*((tier.name, tier.bandwidth) for tier in reversed(cluster.tiers))]
    return ", ".join(
        f"{name} {'an unknown rate' if rate is None else f'{rate:g} GB/s'}"
        for name, rate in [*levels, (BEYOND, cluster.beyond)]
    )


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _each(name: str, text: str, read: Callable[[str], _Value]) -> tuple[_Value, ...]:
    """The values of a text with commas, each once; UsageError names the option."""
    values = []
    for part in _parts(text):
        try:
            values.append(read(part))
        except ValueError as error:
            raise UsageError(f"{name} is invalid", why=str(error), flag=name) from error
    return tuple(dict.fromkeys(values))


def _words(name: str, text: str, known: Iterable[str]) -> tuple[str, ...]:
    words = list(map(str, known))
    for part in _parts(text):
        if part not in words:
            raise UsageError(
                f"{name} is invalid",
                why=f"expected some of {', '.join(words)}, got {part!r}",
                hint=near(part, words),
                flag=name,
            )
    return tuple(dict.fromkeys(_parts(text)))


def _seconds(text: str) -> float:
    try:
        return float(Duration.parse("0s" if text == "0" else text))
    except InvalidValue as error:
        raise ValueError(error.message) from error


def _loads(text: str) -> tuple[float | None, ...]:
    def read(part: str) -> float:
        match = re.fullmatch(r"[0-9]{0,3}(\.[0-9]{1,6})?", part)
        value = float(part) if match and part else 0.0
        if not 0 < value <= MAX_LOAD:
            raise ValueError(f"expected a share such as 0.8, up to {MAX_LOAD:g}, got {part!r}")
        return value

    return _each("--load", text, read) if text else (None,)


def _window(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"([0-9]{1,3})%?-([0-9]{1,3})%", text.strip())
    begin, end = (int(match[1]), int(match[2])) if match else (1, 0)
    if not 0 <= begin < end <= 100:  # noqa: PLR2004 - per cent
        raise UsageError(
            "--window is invalid",
            why=f"expected two shares such as 20%-80%, got {text!r}",
            flag="--window",
        )
    return begin / 100, end / 100


def _speeds(text: str) -> dict[str, float]:
    def read(part: str) -> tuple[str, float]:
        model, _, factor = part.partition("=")
        match = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", factor)
        if match is None or float(factor) <= 0:
            raise ValueError(f"expected MODEL=FACTOR such as A100=2.5, got {part!r}")
        if model not in MODELS:
            hint = near(model, MODELS)
            raise ValueError(f"there is no GPU model {model!r}" + (f"; {hint}" if hint else ""))
        return model, float(factor)

    return dict(_each("--speed", text, read)) if text else {}
