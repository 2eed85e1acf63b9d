"""The command that explains a job: why."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from arena_topo import output
from arena_topo.backends import Backend, JobStatus
from arena_topo.cli.arguments import Name, PlanFormat, PlanFormatFlag, document
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import Globals, display, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.errors import NotFound
from arena_topo.escaping import one_line

if TYPE_CHECKING:
    from arena_topo.workflow.drift import Difference
    from arena_topo.workflow.why import Explanation


@spread
def why(
    name: Name,
    everywhere: Globals,
    *,
    output_format: PlanFormatFlag = PlanFormat.WIDE,
) -> None:
    """Say why a job waits, failed or runs where it does: one verdict, its cause, what to try."""
    from arena_topo.output import why as explanations  # noqa: PLC0415 - reads the solver

    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    found = explained(backend, name, namespace, time.time())
    if output_format is PlanFormat.WIDE:
        display(explanations.text(found, width=wrapped(sys.stdout)))
    else:
        show(document(explanations.value(found), output_format))


def explained(backend: Backend, name: str, namespace: str, now: float) -> Explanation:
    """Why a job is where it is; NotFound in arena's words. `now` is Unix seconds."""
    from arena_topo.workflow.why import explain  # noqa: PLC0415 - the verbs load what they need

    try:
        return explain(backend, name, namespace, now=now)
    except NotFound:
        raise missing(name, namespace, backend) from None


def drifted(backend: Backend, status: JobStatus) -> Sequence[Difference]:
    """What of a placed job is not as planned."""
    if status.forecast is None or status.forecast.state != "placed":
        return ()
    from arena_topo.workflow import drift  # noqa: PLC0415 - only for placed jobs

    return drift.of(backend, status)


def values(drift: Sequence[Difference], found: Explanation | None) -> dict[str, Any]:
    """The keys that `get` adds: what is not as planned, and the explanation asked for."""
    if not drift and found is None:
        return {}
    from arena_topo.output import why as explanations  # noqa: PLC0415 - reads the solver

    added: dict[str, Any] = {}
    if drift:
        added["drift"] = [explanations.difference_value(one) for one in drift]
    if found is not None:
        added["explanation"] = explanations.value(found)
    return added


def blocks(
    drift: Sequence[Difference], found: Explanation | None, *, width: int | None
) -> Iterator[str]:
    """The same as text to go below the screen of `get`."""
    if drift:
        line = one_line(f"Drift: {'; '.join(map(str, drift))}")
        yield output.fold(line, width) + "\n"
    if found is not None:
        from arena_topo.output import why as explanations  # noqa: PLC0415 - reads the solver

        yield explanations.block(found, width=width)
