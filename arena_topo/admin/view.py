"""What `check`, `check JOB` and `nodes list` show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arena_topo.escaping import one_line
from arena_topo.layout import NOTHING, align, fold, state, table

if TYPE_CHECKING:
    from arena_topo.admin.checks import CheckReport
    from arena_topo.admin.inspection import Inspection
    from arena_topo.admin.nodes import NodeState
    from arena_topo.reasons.drift import WorkerGpus


def check_text(result: CheckReport, *, width: int | None = None) -> str:
    """A row for each prerequisite, and below it the advice if it is not met.

    Sentences are wrapped at `width` columns in place.
    """
    findings = result.findings
    rows = [(item.name, state(item.outcome.value), one_line(item.finding)) for item in findings]
    heads = align(["CHECK\tRESULT\tFOUND", *(f"{name}\t{outcome}\t" for name, outcome, _ in rows)])
    first, *starts = heads.splitlines()
    start = first.index("FOUND")
    lines = [first]
    for head, finding, (_name, _outcome, text) in zip(starts, findings, rows, strict=True):
        lines.append(fold(head.ljust(start) + text, width, indent=" " * start))
        if finding.fix:
            fix = f"{' ' * start}fix: {one_line(finding.fix)}"
            lines.append(fold(fix, width, indent=" " * (start + 5)))
    return "\n".join(lines) + "\n"


def check_json(result: CheckReport) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "CheckReport",
        "namespace": result.namespace,
        "passed": result.passed,
        "checks": [
            {"name": row.name, "result": row.outcome.value, "found": row.finding, "fix": row.fix}
            for row in result.findings
        ],
    }


def node_states_table(states: Iterable[NodeState]) -> str:
    """Nodes with GPUs, their use, and what contradicts that."""
    rows = [(own.node, str(own.gpus), own.use.value, _remark(own)) for own in states]
    return _lines(align(table(("NODE", "GPUS", "USE", "REMARK"), rows)))


def _remark(own: NodeState) -> str:
    unready = None if own.ready else "not ready"
    return "; ".join(filter(None, (own.remark, "cordoned" if own.cordoned else None, unready)))


def _lines(text: str) -> str:
    """The same lines without trailing spaces."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def node_states_json(states: Iterable[NodeState]) -> dict[str, Any]:
    """The states of nodes as JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "NodeList",
        "items": [
            {
                "name": own.node,
                "gpus": own.gpus,
                "use": own.use.value,
                "remark": own.remark,
                "cordoned": own.cordoned,
                "ready": own.ready,
            }
            for own in states
        ],
    }


def inspection_text(result: Inspection) -> str:
    """The GPUs that each worker of a job sees beside the plan, and all other differences."""
    rows = [
        (
            worker.pod,
            worker.node,
            ",".join(map(str, worker.planned)) or NOTHING,
            state(result.outcome(worker).value),
            worker.trouble or _seen(worker),
        )
        for worker in result.workers
    ]
    workers = align(table(("WORKER", "NODE", "PLANNED", "RESULT", "SEES"), rows))
    drift = (f"Drift: {one_line(str(difference))}\n" for difference in result.differences)
    return _lines(workers) + "".join(drift)


def _seen(worker: WorkerGpus) -> str:
    """The GPUs that a worker sees, each by a prefix of its UUID that is unique there."""
    return ", ".join(gpu.uuid[:_UUID] for gpu in worker.seen) or "no GPUs"


_UUID = len("GPU-01234567")


def inspection_json(result: Inspection) -> dict[str, Any]:
    """The inspection as JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "JobInspection",
        "name": result.status.name,
        "namespace": result.status.namespace,
        "passed": result.passed,
        "drift": [str(difference) for difference in result.differences],
        "workers": [
            {
                "worker": worker.worker,
                "pod": worker.pod,
                "node": worker.node,
                "planned": list(worker.planned),
                "plannedUUIDs": list(worker.uuids),
                "result": result.outcome(worker).value,
                "seen": [
                    {"index": gpu.index, "name": gpu.name, "uuid": gpu.uuid} for gpu in worker.seen
                ],
                "trouble": worker.trouble,
            }
            for worker in result.workers
        ],
    }
