"""`simulate`: how long jobs of a trace wait and run on a cluster, under several policies."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

from arena_topo.cli.arguments import FabricFlag, Output, format_document, output
from arena_topo.cli.console import LogLevel
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.site_flags import CalibrationFlag
from arena_topo.cli.targets import calibrations_of_option, network_of_option
from arena_topo.errors import UsageError
from arena_topo.flag import Word
from arena_topo.simulate import SimulationRequest
from arena_topo.words import counted

if TYPE_CHECKING:
    from arena_topo.simulate.running import Simulation

_OutputFlag = Annotated[
    Output | None,
    output(
        *(Output.WIDE, Output.JSON, Output.YAML, Output.CSV, Output.SVG, Output.HTML),
        help="How to show it; wide adds lost and reserved GPU-hours and more.",
    ),
]


@command_from_records
def simulate_command(
    source: Annotated[str, Word("[TRACE]", "files")],
    session: Session,
    request: SimulationRequest,
    *,
    fabric: FabricFlag = "",
    calibration: CalibrationFlag = (),
    output_format: _OutputFlag = None,
) -> None:
    """Replay a trace of jobs on a cluster, to compare policies, queue rules and patience.

    TRACE is a CSV file with the columns job_id, submit_s, duration_s and gpus, a trace of Helios,
    Acme, Tiresias or openb, the job log of Philly, or the output of sacct -P; - is standard input.
    Starts are decided by the rule of the queue and the solver that decide on a cluster. Nothing but
    a calibration by name is asked of a cluster, and nothing is created.

    Examples:
      # How long jobs of your Slurm would wait on 64 machines
      simulate jobs.txt --nodes 64xdgx-1-v100
      # Which patience for a slow network
      simulate --generate poisson:2000 --load 0.8 --seeds 5 --network tcp
        --nodes 32xdgx-1-v100 --patience 0,4h,24h
    """
    from arena_topo.simulate import request as simulation_request  # noqa: PLC0415 - not for help
    from arena_topo.simulate import running  # noqa: PLC0415 - as above

    if fabric and not request.state:
        raise UsageError("--fabric needs --state", hint="emulated nodes have a network: --network")
    pools = calibrations_of_option(calibration, session)
    known = network_of_option(fabric, request.state, pools=pools)
    plan = simulation_request.plan_of(source, request, known)
    simulation = running.Simulation(plan=plan)
    try:
        _run(session, simulation, request, keep_jobs=output_format is Output.CSV)
    except KeyboardInterrupt:
        # A second interrupt ends the program at once.
        _show(session, simulation, output_format)
        raise
    _show(session, simulation, output_format)


def _run(
    session: Session, simulation: Simulation, request: SimulationRequest, *, keep_jobs: bool
) -> None:
    """Replay all, with the number of replays that are done on a terminal."""
    from arena_topo.cli.live import live  # noqa: PLC0415 - as above
    from arena_topo.simulate import running  # noqa: PLC0415 - as above

    console, words = session.console, [""]
    cases = counted(len(simulation.plan.cases), "replay")

    def tell(number: int) -> None:
        words[0] = f"{number} of {cases}"
        console.info(words[0], LogLevel.DEBUG)

    def draw(_columns: int) -> str:
        return words[0]

    stream = console.stderr
    shows = console.shows_progress and stream is not None
    with live(console, stream, draw) if shows and stream is not None else nullcontext():
        running.simulate_plan(
            simulation,
            processes=request.processes or running.usable_processors(),
            keep_jobs=keep_jobs,
            tell=tell,
        )


def _show(session: Session, simulation: Simulation, output_format: Output | None) -> None:
    from arena_topo.simulate import view  # noqa: PLC0415 - as above

    console = session.console
    if output_format is Output.CSV:
        console.write(view.simulation_csv(simulation))
        console.notes(view.notes_on(simulation))
    elif output_format in {Output.SVG, Output.HTML}:
        from arena_topo.simulate import picture  # noqa: PLC0415 - as above

        if output_format is Output.SVG:
            console.write(picture.simulation_svg(simulation))
        else:
            screen = view.simulation_text(simulation, wide=True)
            console.write(picture.simulation_html(simulation, screen))
    elif output_format in {None, Output.WIDE}:
        wide = output_format is Output.WIDE
        console.screen(view.simulation_text(simulation, wide=wide))
    else:
        console.write(format_document(view.simulation_json(simulation), output_format))
