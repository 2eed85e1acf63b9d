"""What `check`, `check JOB` and `nodes list` show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from arena_topo.escaping import one_line
from arena_topo.layout import NOTHING, align, fold, state, table

if TYPE_CHECKING:
    from arena_topo.admin.checks import Report
    from arena_topo.admin.inspection import Inspection
    from arena_topo.admin.nodes import Standing
    from arena_topo.reasons.drift import Sight


def report(found: Report, *, width: int | None = None) -> str:
    """A row for each prerequisite, and below it the advice if it is not met.

    Sentences are wrapped at `width` columns in place.
    """
    rows = [(one.name, state(one.outcome.value), one_line(one.found)) for one in found.findings]
    heads = align(["CHECK\tRESULT\tFOUND", *(f"{name}\t{outcome}\t" for name, outcome, _ in rows)])
    first, *others = heads.splitlines()
    start = first.index("FOUND")
    lines = [first]
    for head, one, (_name, _outcome, said) in zip(others, found.findings, rows, strict=True):
        lines.append(fold(head.ljust(start) + said, width, indent=" " * start))
        if one.fix:
            fix = f"{' ' * start}fix: {one_line(one.fix)}"
            lines.append(fold(fix, width, indent=" " * (start + 5)))
    return "\n".join(lines) + "\n"


def report_value(found: Report) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "CheckReport",
        "namespace": found.namespace,
        "passed": found.passed,
        "checks": [
            {"name": one.name, "result": one.outcome.value, "found": one.found, "fix": one.fix}
            for one in found.findings
        ],
    }


def standings(found: Iterable[Standing]) -> str:
    """Nodes with GPUs, their use, and what contradicts that."""
    rows = [(one.node, str(one.gpus), one.use.value, one.odd or "") for one in found]
    return _lines(align(table(("NODE", "GPUS", "USE", "REMARK"), rows)))


def _lines(text: str) -> str:
    """The same lines without trailing spaces."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def standings_value(found: Iterable[Standing]) -> dict[str, Any]:
    """The states of nodes as JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "NodeList",
        "items": [
            {"name": one.node, "gpus": one.gpus, "use": one.use.value, "remark": one.odd}
            for one in found
        ],
    }


def inspection(found: Inspection) -> str:
    """The GPUs that each worker of a job sees beside the plan, and all other differences."""
    rows = [
        (
            one.pod,
            one.node,
            ",".join(map(str, one.planned)) or NOTHING,
            state(found.outcome(one).value),
            one.trouble or _seen(one),
        )
        for one in found.sights
    ]
    workers = align(table(("WORKER", "NODE", "PLANNED", "RESULT", "SEES"), rows))
    return _lines(workers) + "".join(f"Drift: {one_line(str(one))}\n" for one in found.differences)


def _seen(sight: Sight) -> str:
    """The GPUs that a worker sees, each by a prefix of its UUID that is unique there."""
    return ", ".join(one.uuid[:_UUID] for one in sight.seen) or "no GPUs"


_UUID = len("GPU-01234567")


def inspection_value(found: Inspection) -> dict[str, Any]:
    """The inspection as JSON."""
    return {
        "apiVersion": "arena-topo/v1",
        "kind": "JobInspection",
        "name": found.status.name,
        "namespace": found.status.namespace,
        "passed": found.passed,
        "drift": [str(one) for one in found.differences],
        "workers": [
            {
                "worker": one.worker,
                "pod": one.pod,
                "node": one.node,
                "planned": list(one.planned),
                "plannedUUIDs": list(one.uuids),
                "result": found.outcome(one).value,
                "seen": [
                    {"index": each.index, "name": each.name, "uuid": each.uuid} for each in one.seen
                ],
                "trouble": one.trouble,
            }
            for one in found.sights
        ],
    }
