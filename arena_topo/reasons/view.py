"""A look at a job: its state, GPU load, drift, and the explanation; as text and JSON."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.engines import Backend, Event, JobStatus, unheard
from arena_topo.engines.opening import privileged
from arena_topo.errors import AccessDenied
from arena_topo.escaping import one_line
from arena_topo.layout import align, duration, fold, state, table
from arena_topo.reasons.launcher_log import failed_rank
from arena_topo.words import counted

if TYPE_CHECKING:
    from arena_topo.engines.metrics import GpuSample
    from arena_topo.reasons.drift import Difference
    from arena_topo.reasons.explanation import Explanation, Holder, Waiting

_FEW_REASONS = 2

_MINUTE = 60
"""Seconds."""

_DAY = 24
"""Hours."""

MOST_ROWS = 10
"""Jobs, nodes and events that are listed before the rest is counted."""


# ---------------------------------------------------------------- a look at a job


class SeenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job at one look: `drift` are differences from the plan, `samples` the load of its GPUs.

    `events` and `explanation` are None if they were not requested.
    """

    status: JobStatus
    drift: Sequence[Difference] = ()
    samples: Sequence[GpuSample] = ()
    events: Sequence[Event] | None = None
    explanation: Explanation | None = None

    def __repr__(self) -> str:
        """The job on one line, for a prompt."""
        return repr(self.status).replace("JobStatus", "SeenJob", 1)


def look(
    backend: Backend,
    name: str,
    namespace: str,
    *,
    drift: bool = True,
    metrics: bool = False,
    events: bool = False,
    explain: bool = False,
    tell: Callable[[str], None] = unheard,
) -> SeenJob:
    """Read a job, with the parts that are requested.

    `tell` gets the reason if the load of its GPUs is not known. JobNotFound if it does not exist;
    AccessDenied has arena's words.
    """
    may = f"get the training job in namespace {namespace}"
    with privileged(may):
        found = explained(backend, name, namespace) if explain else None
    try:
        with privileged(may):
            status = backend.job(name, namespace)
    except AccessDenied:
        # Without the right to list pods, the explanation has the status that could be read.
        if found is None:
            raise
        status = found.status
    return SeenJob(
        status=status,
        samples=measured(backend, status, tell=tell) if metrics else (),
        drift=_differences(backend, status) if drift else (),
        events=backend.events(status) if events else None,
        explanation=found,
    )


def explained(backend: Backend, name: str, namespace: str) -> Explanation:
    """The explanation of a job; JobNotFound if it does not exist."""
    from arena_topo.reasons import explanation  # noqa: PLC0415 - reads the solver

    return explanation.explain(backend, name, namespace, now=time.time())


def _differences(backend: Backend, status: JobStatus) -> Sequence[Difference]:
    if status.forecast is None or status.forecast.state != "placed":
        return ()
    from arena_topo.reasons import drift  # noqa: PLC0415 - only for placed jobs

    return drift.of(backend, status)


def measured(
    backend: Backend, status: JobStatus, *, tell: Callable[[str], None] = unheard
) -> tuple[GpuSample, ...]:
    """The load of the GPUs of a job's pods; `tell` gets the reason if it is not known.

    No request is made for a job without GPUs.
    """
    pods = {one.name for one in status.instances if one.node and not one.finished}
    if not pods or not status.request_gpus or status.phase.over:
        return ()
    samples = backend.metrics(status.namespace, pods=sorted(pods), tell=tell)
    here = {"", status.namespace}
    return tuple(one for one in samples if one.pod in pods and one.namespace in here)


# ---------------------------------------------------------------- as text


def text(found: Explanation, *, width: int | None = None) -> str:
    """The verdict and its evidence; sentences are wrapped at `width` columns."""
    said, status = found.verdict, found.status
    # A code that repeats the status is left out.
    same = said.code.value.upper() == status.phase.value
    code = "" if same else f", {said.code.value}"
    head = [f"{status.name}: {state(status.phase.value)}{code}", f"  {one_line(said.what)}"]
    head += [f"  why:  {one_line(said.why)}"] if said.why else []
    head += [f"  try:  {one_line(said.hint)}"] if said.hint else []
    blocks = [
        _folded(head, width, 8),
        *_log(found),
        *_nodes(found),
        *_holders(found),
        _folded(_turn(found), width, 4),
        _folded([f"Nearest: it {one_line(found.nearest)}"] if found.nearest else [], width, 2),
        _folded(_events(found), width, 4),
        _folded(_denied(found), width, 6),
    ]
    return "\n".join(filter(None, blocks))


def below(seen: SeenJob, *, width: int | None) -> Iterator[str]:
    """Drift, and the explanation if it was requested, for the end of the screen of a job."""
    if seen.drift:
        line = one_line(f"Drift: {'; '.join(map(str, seen.drift))}")
        yield fold(line, width) + "\n"
    if seen.explanation is not None:
        lines = text(seen.explanation, width=None if width is None else width - 2).splitlines()
        yield "Why:\n" + "".join(f"  {line}".rstrip() + "\n" for line in lines)


def _folded(lines: Iterable[str], width: int | None, indent: int) -> str:
    return "".join(f"{fold(line, width, indent=' ' * indent)}\n" for line in lines)


def _log(found: Explanation) -> Iterator[str]:
    """The last lines of a launcher that failed, with their indentation."""
    if found.log is None or not found.log.lines or not found.status.phase.over:
        return
    shown = [f"Last lines of {found.log.pod}:"]
    for line in found.log.lines:
        words = line.lstrip(" \t")
        shown.append(f"  {line[: len(line) - len(words)].expandtabs()}{one_line(words)}")
    yield "\n".join(shown) + "\n"


def _nodes(found: Explanation) -> Iterator[str]:
    # The first sentence has up to two reasons already.
    if not found.refusals or (len(found.refusals) <= _FEW_REASONS and found.verdict.why):
        return
    rows = [
        (str(one.nodes), str(one.example), one.reason.value)
        for one in sorted(found.refusals, key=lambda one: -one.nodes)
    ]
    yield align(["Nodes:", *table(("NODES", "EXAMPLE", "REFUSED BECAUSE"), rows, indent="  ")])


def _holders(found: Explanation) -> Iterator[str]:
    rows = [
        (
            f"{one.namespace}/{one.name}",
            str(one.gpus),
            duration(max(0.0, found.now - one.since)),
            "-" if one.left is None else _remaining(one.left),
            _where(one),
        )
        for one in found.holders[:MOST_ROWS]
    ]
    if rest := found.holders[MOST_ROWS:]:
        rows.append((f"{len(rest)} more jobs", str(sum(one.gpus for one in rest)), "", "", ""))
    if found.unnamed:
        rows.append(("others", str(found.unnamed), "", "", ""))
    if rows:
        header = ("USED BY", "GPUS", "AGE", "LEFT", "NODES")
        aligned = align(["GPUs in use by:", *table(header, rows, indent="  ")])
        yield "".join(f"{line.rstrip()}\n" for line in aligned.splitlines())


def _where(one: Holder) -> str:
    shown = ",".join(one.nodes[:3]) or "not recorded"
    more = len(one.nodes) - 3
    note = " (terminating)" if one.terminating else "" if one.started else " (planned)"
    return f"{shown}{f' and {more} more' if more > 0 else ''}{note}"


def _turn(found: Explanation) -> Iterator[str]:
    turn = found.turn
    if turn is None:
        return
    where = "" if turn.whole else f" of namespace {found.status.namespace}"
    yield f"Queue: {turn.place} of {turn.of} waiting jobs{where}"
    if turn.ahead:
        shown = "; ".join(_ahead(one, found.now) for one in turn.ahead[:MOST_ROWS])
        more = len(turn.ahead) - MOST_ROWS
        yield f"  ahead of it: {one_line(shown)}{f'; and {more} more' if more > 0 else ''}"
    if found.starts_by is not None:
        left = _remaining(found.starts_by - found.now)
        yield f"Start: in {left} at the latest, once jobs on its GPUs reach their --running-timeout"


def _remaining(seconds: float) -> str:
    """The time until a deadline, rounded up so that it is not too short: `45s`, `1h59m`, `3d4h`."""
    if seconds <= _MINUTE:
        return f"{math.ceil(max(0.0, seconds))}s"
    hours, minutes = divmod(math.ceil(seconds / _MINUTE), 60)
    if hours < 1:
        return f"{minutes}m"
    if hours < _DAY:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(hours + (minutes > 0), _DAY)
    return f"{days}d{hours}h" if hours else f"{days}d"


def _ahead(one: Waiting, now: float) -> str:
    priority = f", priority {one.priority}" if one.priority else ""
    gpus = counted(one.gpus, "GPU")
    return f"{one.namespace}/{one.name} ({gpus}, {duration(now - one.since)}{priority})"


def _events(found: Explanation) -> Iterator[str]:
    if found.events:
        yield "Current events:"
    for one in found.events[-MOST_ROWS:]:
        age = duration(found.now - one.when)
        yield "  " + one_line(f"{one.source}, {age} ago: [{one.reason}] {one.message}")


def _denied(found: Explanation) -> Iterator[str]:
    if found.denied:
        yield "Not looked at:"
    for one in found.denied:
        yield f"  {one_line(str(one))}"
        if one.why is None:
            yield f"    ask for: {one_line(one.rule)}"


# ---------------------------------------------------------------- for programs


def value(found: Explanation) -> dict[str, Any]:
    """The explanation for JSON and YAML; null for what is not known.

    Times are seconds; `startsBy` counts from now.
    """
    status, said, now = found.status, found.verdict, found.now
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
        "holders": [_holder_value(one, now) for one in found.holders],
        "heldByOthers": found.unnamed,
        "queue": _turn_value(found),
        "startsBy": None if found.starts_by is None else max(0, int(found.starts_by - now)),
        "nearest": found.nearest,
        "events": [_event_value(one, now) for one in found.events],
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


def _log_value(found: Explanation) -> dict[str, Any] | None:
    """The end of the launcher's log; `age` is that of its last line."""
    log = found.log
    if log is None:
        return None
    rank = failed_rank(log.text) if found.status.phase.over else None
    return {
        "pod": log.pod,
        "lines": list(log.lines),
        "age": None if log.written is None else max(0, int(found.now - log.written)),
        "failedRank": None if rank is None else msgspec.structs.asdict(rank),
    }


def _event_value(one: Event, now: float) -> dict[str, Any]:
    return {
        "source": one.source,
        "type": one.kind,
        "reason": one.reason,
        "message": one.message,
        "age": int(now - one.when),
    }


def _aged(one: Holder | Waiting, now: float) -> dict[str, Any]:
    """The fields of a job, its age in seconds in place of `since`."""
    fields = asdict(one) | {"since": max(0, int(now - one.since))}
    return {"age" if name == "since" else name: field for name, field in fields.items()}


def _holder_value(one: Holder, now: float) -> dict[str, Any]:
    left = None if one.left is None else int(one.left)
    return {**_aged(one, now), "nodes": list(one.nodes), "left": left}


def _turn_value(found: Explanation) -> dict[str, Any] | None:
    turn = found.turn
    if turn is None:
        return None
    ahead = [_aged(one, found.now) for one in turn.ahead]
    return {"place": turn.place, "of": turn.of, "allNamespaces": turn.whole, "ahead": ahead}


def difference_value(one: Difference) -> dict[str, Any]:
    """A difference from the plan for JSON."""
    return {**msgspec.structs.asdict(one), "kind": one.kind.value, "message": str(one)}
