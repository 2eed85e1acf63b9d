"""Why a job is where it is, as text and as a value for JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from arena_topo.escaping import one_line
from arena_topo.layout import align, duration, fold, state, table
from arena_topo.reasons.drift import Difference
from arena_topo.reasons.explanation import Explanation, Holder, Waiting
from arena_topo.reasons.launcher_log import failed_rank

_FEW_REASONS = 2

MOST_ROWS = 10
"""Jobs, nodes and events that are listed before the rest is counted."""


def text(found: Explanation, *, width: int | None = None) -> str:
    """The verdict, then what it rests on; sentences are wrapped at `width` columns."""
    said, status = found.verdict, found.status
    # Where the code is the status again, once is enough.
    same = said.code.value.upper() == status.phase.value
    code = "" if same else f", {said.code.value}"
    lines = [f"{status.name}: {state(status.phase.value)}{code}", f"  {one_line(said.what)}"]
    lines += [f"  why:  {one_line(said.why)}"] if said.why else []
    lines += [f"  try:  {one_line(said.hint)}"] if said.hint else []
    first = "".join(f"{fold(line, width, indent='        ')}\n" for line in lines)
    blocks = [first, *_log(found), *_nodes(found), *_holders(found), *_turn(found, width)]
    blocks += [*_nearest(found, width), *_events(found, width), *_denied(found, width)]
    return "\n".join(blocks)


def block(found: Explanation, *, width: int | None = None) -> str:
    """The same as a part of another screen, under a heading."""
    return "Why:\n" + "".join(
        f"  {line}".rstrip() + "\n" for line in text(found, width=_less(width)).splitlines()
    )


def _less(width: int | None) -> int | None:
    return None if width is None else width - 2


def _log(found: Explanation) -> Iterator[str]:
    """The last lines of a launcher that failed."""
    if found.log is None or not found.log.lines or not found.status.phase.over:
        return
    lines = "".join(f"  {_indented(line)}\n" for line in found.log.lines)
    yield f"Last lines of {found.log.pod}:\n{lines}"


def _indented(line: str) -> str:
    """A line of a log as it was indented."""
    words = line.lstrip(" \t")
    return line[: len(line) - len(words)].expandtabs() + one_line(words)


def _nodes(found: Explanation) -> Iterator[str]:
    # Up to two reasons are in the first sentence as well.
    if not found.refusals or (len(found.refusals) <= _FEW_REASONS and found.verdict.why):
        return
    rows = [
        (str(one.nodes), str(one.example), one.reason.value)
        for one in sorted(found.refusals, key=lambda one: -one.nodes)
    ]
    yield align(["Nodes:", *table(("NODES", "SUCH AS", "REFUSED BECAUSE"), rows, indent="  ")])


def _holders(found: Explanation) -> Iterator[str]:
    if not found.holders and not found.unnamed:
        return
    rows = [
        (
            f"{one.namespace}/{one.name}",
            str(one.gpus),
            duration(max(0.0, found.now - one.since)),
            "-" if one.left is None else duration(one.left),
            _where(one),
        )
        for one in found.holders[:MOST_ROWS]
    ]
    rest = found.holders[MOST_ROWS:]
    if rest:
        rows.append((f"{len(rest)} more jobs", str(sum(one.gpus for one in rest)), "", "", ""))
    if found.unnamed:
        rows.append(("others", str(found.unnamed), "", "", ""))
    header = ("USED BY", "GPUS", "AGE", "LEFT", "NODES")
    yield _plain([*table(header, rows, indent="  ")], "GPUs in use by:")


def _plain(lines: list[str], heading: str) -> str:
    """A table under a heading, without blanks at the ends of its lines."""
    aligned = align([heading, *lines]).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in aligned)


def _where(one: Holder) -> str:
    shown = ",".join(one.nodes[:3]) or "?"
    more = len(one.nodes) - 3
    note = " (terminating)" if one.terminating else "" if one.started else " (planned)"
    return f"{shown}{f' and {more} more' if more > 0 else ''}{note}"


def _turn(found: Explanation, width: int | None) -> Iterator[str]:
    turn = found.turn
    if turn is None:
        return
    counted = "" if turn.whole else f" of namespace {found.status.namespace}"
    lines = [f"Queue: {turn.place} of {turn.of} waiting jobs{counted}"]
    if turn.ahead:
        shown = "; ".join(_ahead(one, found.now) for one in turn.ahead[:MOST_ROWS])
        more = len(turn.ahead) - MOST_ROWS
        lines.append(f"  ahead of it: {one_line(shown)}{f'; and {more} more' if more > 0 else ''}")
    if found.starts_by is not None:
        left = duration(max(0.0, found.starts_by - found.now))
        lines.append(
            f"Start: in {left} at the latest, when the --running-timeout of those who hold its GPUs"
            " is over"
        )
    yield "".join(f"{fold(line, width, indent='    ')}\n" for line in lines)


def _ahead(one: Waiting, now: float) -> str:
    priority = f", priority {one.priority}" if one.priority else ""
    gpus = f"{one.gpus} GPU{'s' if one.gpus != 1 else ''}"
    return f"{one.namespace}/{one.name} ({gpus}, {duration(now - one.since)}{priority})"


def _nearest(found: Explanation, width: int | None) -> Iterator[str]:
    if found.nearest is not None:
        yield fold(f"Nearest: it {one_line(found.nearest)}", width) + "\n"


def _events(found: Explanation, width: int | None) -> Iterator[str]:
    if not found.events:
        return
    lines: list[str] = []
    for one in found.events[-MOST_ROWS:]:
        age = duration(found.now - one.when)
        lines.append(one_line(f"{one.source}, {age} ago: [{one.reason}] {one.message}"))
    folded = (f"{fold(f'  {line}', width, indent='    ')}\n" for line in lines)
    yield "".join(["Current events:\n", *folded])


def _denied(found: Explanation, width: int | None) -> Iterator[str]:
    if not found.denied:
        return
    lines = ["Not looked at:"]
    for one in found.denied:
        lines.append(f"  {one_line(str(one))}")
        if one.why is None:
            lines.append(f"    ask for: {one_line(one.rule)}")
    yield "".join(f"{fold(line, width, indent='      ')}\n" for line in lines)


def value(found: Explanation) -> dict[str, Any]:
    """The same for JSON and YAML; null where nothing is known.

    Times are seconds; `startsBy` counts from now.
    """
    status, said = found.status, found.verdict
    return {
        "name": status.name,
        "namespace": status.namespace,
        "status": status.phase.value,
        "code": said.code.value,
        "verdict": said.what,
        "why": said.why,
        "hint": said.hint,
        "log": _log_value(found),
        "nodes": [
            {"reason": one.reason.value, "nodes": one.nodes, "example": str(one.example)}
            for one in found.refusals
        ],
        "holders": [_holder_value(one, found.now) for one in found.holders],
        "heldByOthers": found.unnamed,
        "queue": _turn_value(found),
        "startsBy": None if found.starts_by is None else max(0, int(found.starts_by - found.now)),
        "nearest": found.nearest,
        "events": [
            {
                "source": one.source,
                "type": one.kind,
                "reason": one.reason,
                "message": one.message,
                "age": int(found.now - one.when),
            }
            for one in found.events
        ],
        "denied": [
            {
                "verb": one.verb,
                "resource": one.resource,
                "group": one.group,
                "namespace": one.namespace or None,
                "reason": one.why,
            }
            for one in found.denied
        ],
    }


def _log_value(found: Explanation) -> Mapping[str, Any] | None:
    """The end of the launcher's log; `age` is how long ago its last line was written."""
    log = found.log
    if log is None:
        return None
    rank = failed_rank(log.text) if found.status.phase.over else None
    return {
        "pod": log.pod,
        "lines": list(log.lines),
        "age": None if log.written is None else max(0, int(found.now - log.written)),
        "failedRank": None if rank is None else asdict(rank),
    }


def _holder_value(one: Holder, now: float) -> Mapping[str, Any]:
    return {
        "name": one.name,
        "namespace": one.namespace,
        "gpus": one.gpus,
        "nodes": list(one.nodes),
        "age": max(0, int(now - one.since)),
        "left": None if one.left is None else int(one.left),
        "started": one.started,
        "terminating": one.terminating,
    }


def _turn_value(found: Explanation) -> Mapping[str, Any] | None:
    if found.turn is None:
        return None
    return {
        "place": found.turn.place,
        "of": found.turn.of,
        "allNamespaces": found.turn.whole,
        "ahead": [
            {
                "name": one.name,
                "namespace": one.namespace,
                "gpus": one.gpus,
                "priority": one.priority,
                "age": int(found.now - one.since),
            }
            for one in found.turn.ahead
        ],
    }


def difference_value(one: Difference) -> dict[str, Any]:
    """A difference from the plan for JSON."""
    return {
        "kind": one.kind.value,
        "worker": one.worker,
        "pod": one.pod,
        "planned": one.planned,
        "seen": one.seen,
        "message": str(one),
    }
