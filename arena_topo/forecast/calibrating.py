"""`calibrate`: the bandwidths of a pool of machines from a few measured placements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated

from arena_topo.bandwidth import Estimate, Host, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.cli.arguments import Output, OutputFlag, format_document, option
from arena_topo.cli.options import PROGRAM
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.errors import UsageError
from arena_topo.flag import Word
from arena_topo.forecast import PoolRequest
from arena_topo.forecast.command import machine_of
from arena_topo.job import KeyValue
from arena_topo.names import is_key, is_label_value, is_subdomain
from arena_topo.nccl.bandwidth_tables import measured_on
from arena_topo.topology import Machine, PoolRates, gpu_set
from arena_topo.training.calibration import Calibration, Kind, calibrate, next_measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest(PoolRequest):
    """The measurements of a calibration, and the pool that they were made in."""

    measured: tuple[str, ...] = option(
        (),
        "A measurement: output of nccl-tests, or CSV with the columns placement and step_ms or"
        " gbps; repeat for more. PLACEMENT is NODESxGPUS or the GPUs of each node, 4+4+2.",
        "[PLACEMENT=]FILE",
        completes="files",
    )
    pattern: str = option(
        "", "Read the milliseconds of a step in other logs: a regular expression with one group."
    )
    name: str = option("", "The name of the calibration (default that of the machine).", "NAME")
    date: str = option("", "The day of the measurements (default today).", "YYYY-MM-DD")
    nccl: str = option("", "The version of NCCL, for files that do not tell it.", "VERSION")
    label: KeyValue | None = option(
        None,
        "A label of the nodes of the pool, if other nodes with such machines have another network.",
        "KEY=VALUE",
    )


@command_from_records
def calibrate_command(
    target: Annotated[str, Word("MACHINE", "presets nodes files")],
    session: Session,
    request: CalibrationRequest,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Fit the bandwidths of a pool of machines to two to eight measured placements.

    MACHINE is what forecast takes. The result says how well it fits, what it cannot tell, and what
    to measure next. With -o yaml it is a ConfigMap. plan, submit and forecast take that file, or
    its name once an administrator has applied it, with --calibration.

    Examples:
      # From logs of nccl-tests on one node, two and four
      calibrate hgx-h100 --measured one.log --measured two.log --measured four.log
      # From the steps of a training, as a ConfigMap for kubectl apply
      calibrate pool.txt --tcp --measured steps.csv --workload bert-base-squad -o yaml
    """
    from arena_topo.forecast import calibration_view as view  # noqa: PLC0415 - not for help
    from arena_topo.forecast import forecasting, measurements  # noqa: PLC0415 - as above
    from arena_topo.topology.calibrations import calibration_map  # noqa: PLC0415 - as above

    if not request.measured:
        raise UsageError(
            "nothing measured is named", hint=f"{PROGRAM} calibrate MACHINE --measured FILE"
        )
    measured, versions = measurements.read_measured(request.measured, request.pattern)
    machine = forecasting.machine_for(machine_of(target, session), request, nodes=2)
    measurements.check_models(measured, machine)
    wire = Wire.TCP if request.tcp or not machine.nics else Wire.RDMA
    alone = next((row for row in measured if row.hosts == (1,)), None)
    if alone is not None and request.step_time is not None:
        raise UsageError(
            f"--step-time and {alone.where} both say how long a step takes on one GPU",
            hint="leave out one of them",
        )
    known = forecasting.workload_for(machine, request, solo=alone is not None)
    computed = partial(_estimate, machine, wire)
    fit = calibrate(measurements.placements_of(measured, known[0] if known else None, computed))
    day = _day(request.date, session.console.clock())
    when = measured_on(day, {request.nccl} if request.nccl else versions)
    pool = _pool(fit, machine, wire, request, when)
    size = len(machine.gpus)
    kinds = {kind: computed((size,) * (at + 1)) for at, kind in enumerate(Kind) if at or size > 1}
    following = next_measurement(fit, kinds)
    if output_format is Output.WIDE:
        session.console.screen(view.calibration_text(fit, pool, following))
        return
    document = calibration_map(pool, view.fit_json(fit, following))
    session.console.write(format_document(document, output_format))


def _estimate(machine: Machine, wire: Wire, hosts: tuple[int, ...]) -> Estimate:
    """The computed bandwidth of the first GPUs of machines alike."""
    size = len(machine.gpus)
    if max(hosts) > size:
        raise UsageError(f"{max(hosts)} GPUs of a node were measured; {machine.name} has {size}")
    nodes = [replace(machine, name=f"{machine.name}-{at}") for at in range(len(hosts))]
    placed = [Host.of(node, gpu_set(range(gpus))) for node, gpus in zip(nodes, hosts, strict=True)]
    value = estimate(placed, wire=wire if len(hosts) > 1 else None)
    assert value is not None, "a placement has several GPUs"
    return value


def _day(text: str, today: float) -> date:
    """The day of the measurements; without a text it is today (Unix seconds)."""
    try:
        return date.fromisoformat(text) if text else datetime.fromtimestamp(today, UTC).date()
    except ValueError as error:
        raise UsageError(f"--date {text}: expected a day such as 2026-05-31") from error


def _pool(
    fit: Calibration, machine: Machine, wire: Wire, request: CalibrationRequest, when: str
) -> PoolRates:
    name, label = request.name or machine.name, request.label
    if label is not None and not (is_key(label.key) and is_label_value(label.value)):
        raise UsageError(f"--label {label}: nodes cannot have this label")
    if not is_subdomain(name):
        raise UsageError(
            f"{name!r} is not a name that a ConfigMap can have",
            hint="give a name in small letters: --name pool-1",
        )
    rates = fit.rates
    return PoolRates(
        name=name,
        measured=when,
        model=machine.model,
        gpus=len(machine.gpus),
        wire=str(wire),
        inside=rates.get(Kind.INSIDE),
        two=rates.get(Kind.TWO),
        more=rates.get(Kind.MORE),
        each=bool(fit.each),
        hosts=max(len(row.hosts) for row in fit.placements),
        workload=next((row.workload.name for row in fit.placements if row.workload), ""),
        floor=fit.floor,
        hidden=fit.hidden,
        label=str(label or ""),
    )
