"""The command that explains a job: why."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from arena_topo import layout
from arena_topo.cli.arguments import Name, Output, OutputFlag, document
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import Globals, display, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.engines.opening import UnknownJob
from arena_topo.escaping import one_line

if TYPE_CHECKING:
    from arena_topo.reasons.drift import Difference
    from arena_topo.reasons.explanation import Explanation


@spread
def why(
    name: Name,
    everywhere: Globals,
    *,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Say why a job waits, failed or runs where it does: one verdict, its cause, what to try.

    Examples:
      # Why does it wait, or why did it fail?
      why bert
    """
    from arena_topo.reasons import view as explanations  # noqa: PLC0415 - reads the solver
    from arena_topo.reasons import viewing  # noqa: PLC0415 - the verbs are loaded late

    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    try:
        found = viewing.explained(backend, name, namespace)
    except UnknownJob:
        raise missing(name, namespace, backend) from None
    if output_format is Output.WIDE:
        display(explanations.text(found, width=wrapped(sys.stdout)))
    else:
        show(document(explanations.value(found), output_format))


def blocks(
    drift: Sequence[Difference], found: Explanation | None, *, width: int | None
) -> Iterator[str]:
    """What is not as planned, and the explanation asked for, to go below the screen of `get`."""
    if drift:
        line = one_line(f"Drift: {'; '.join(map(str, drift))}")
        yield layout.fold(line, width) + "\n"
    if found is not None:
        from arena_topo.reasons import view as explanations  # noqa: PLC0415 - reads the solver

        yield explanations.block(found, width=width)
