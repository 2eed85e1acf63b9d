"""The command that explains a job: why."""

from __future__ import annotations

import sys

from arena_topo.cli.arguments import Name, Output, OutputFlag, document
from arena_topo.cli.opening import engine, missing, namespace_of
from arena_topo.cli.options import Globals, display, show, spread
from arena_topo.cli.terminal import wrapped
from arena_topo.errors import JobNotFound
from arena_topo.reasons import view


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
    backend = engine(everywhere)
    namespace = namespace_of(everywhere, backend)
    try:
        found = view.explained(backend, name, namespace)
    except JobNotFound:
        raise missing(name, namespace, backend) from None
    if output_format is Output.WIDE:
        display(view.text(found, width=wrapped(sys.stdout)))
    else:
        show(document(view.value(found), output_format))
