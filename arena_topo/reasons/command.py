"""The command that explains a job: why."""

from __future__ import annotations

from arena_topo.cli.arguments import Name, Output, OutputFlag, format_document
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import job_not_found, namespace_of, open_engine
from arena_topo.errors import JobNotFound
from arena_topo.reasons import view
from arena_topo.reasons.job_reading import explain_now


@command_from_records
def why(
    name: Name,
    session: Session,
    *,
    output_format: OutputFlag = Output.WIDE,
) -> None:
    """Say why a job waits, failed or runs where it does: one verdict, its cause, what to try.

    Examples:
      # Why does it wait, or why did it fail?
      why bert
    """
    backend = open_engine(session)
    namespace = namespace_of(session, backend)
    try:
        explanation = explain_now(backend, name, namespace)
    except JobNotFound:
        raise job_not_found(name, namespace, backend) from None
    if output_format is Output.WIDE:
        session.console.screen(view.explanation_text(explanation, width=session.console.width))
    else:
        session.console.write(format_document(view.explanation_json(explanation), output_format))
