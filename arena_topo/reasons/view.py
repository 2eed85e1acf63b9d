"""The drift and the explanation of a job, as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from arena_topo.engines import Event
from arena_topo.escaping import one_line
from arena_topo.layout import NOTHING, align, duration, fold, state, table
from arena_topo.words import counted, shortened_cell, shortened_clauses

if TYPE_CHECKING:
    from arena_topo.manifests.annotations import LastStop
    from arena_topo.reasons.drift import Difference
    from arena_topo.reasons.explanation import BlockingHolder, Explanation, WaitingGang
    from arena_topo.reasons.job_reading import SeenJob

_FEW_REASONS = 2
_FEW_NODES = 3

_MINUTE = 60
"""Seconds."""

_DAY = 24
"""Hours."""

MAX_EVIDENCE_ROWS = 10
"""Jobs, nodes and events that are listed before the rest is counted."""


# ---------------------------------------------------------------- as text


def explanation_text(explanation: Explanation, *, width: int | None = None) -> str:
    """The verdict and its evidence; sentences are wrapped at `width` columns."""
    diagnosis, status = explanation.verdict, explanation.status
    # A code that repeats the status is left out.
    same = diagnosis.code.value.upper() == status.phase.value
    code = "" if same else f", {diagnosis.code.value}"
    head = [f"{status.name}: {state(status.phase.value)}{code}", f"  {one_line(diagnosis.what)}"]
    head += [f"  why:  {one_line(diagnosis.why)}"] if diagnosis.why else []
    head += [f"  try:  {one_line(diagnosis.hint)}"] if diagnosis.hint else []
    stop = status.stop_sentence(explanation.now)
    head += [f"  stopped {stop}"] if stop else []
    blocks = [
        _folded(head, width, 8),
        _folded([f"note: {one_line(note)}" for note in explanation.notes], width, 2),
        *_log(explanation),
        *_nodes(explanation),
        *_holders(explanation),
        _folded(
            [f"Reserved: {one_line(explanation.reserved)}"] if explanation.reserved else [],
            width,
            2,
        ),
        *_own_reservation(explanation),
        _folded(_why_there(explanation), width, 2),
        _folded(_turn(explanation), width, 4),
        _folded(
            [f"Nearest: it {one_line(explanation.nearest)}"] if explanation.nearest else [],
            width,
            2,
        ),
        _folded(_events(explanation), width, 4),
        _folded(_denied(explanation), width, 6),
    ]
    return "\n".join(filter(None, blocks))


def below(seen: SeenJob, *, width: int | None) -> Iterator[str]:
    """Drift, and the explanation if it was requested, for the end of the screen of a job."""
    if seen.drift:
        line = one_line(f"Drift: {'; '.join(map(str, seen.drift))}")
        yield fold(line, width) + "\n"
    if seen.explanation is not None:
        lines = explanation_text(
            seen.explanation, width=None if width is None else width - 2
        ).splitlines()
        yield "Why:\n" + "".join(f"  {line}".rstrip() + "\n" for line in lines)


def _folded(lines: Iterable[str], width: int | None, indent: int) -> str:
    return "".join(f"{fold(line, width, indent=' ' * indent)}\n" for line in lines)


def _log(explanation: Explanation) -> Iterator[str]:
    """The last lines of a launcher that failed, with their indentation."""
    if explanation.log is None or not explanation.log.lines or not explanation.status.phase.over:
        return
    shown = [f"Last lines of {explanation.log.pod}:"]
    for line in explanation.log.lines:
        words = line.lstrip(" \t")
        shown.append(f"  {line[: len(line) - len(words)].expandtabs()}{one_line(words)}")
    yield "\n".join(shown) + "\n"


def _nodes(explanation: Explanation) -> Iterator[str]:
    # The first sentence has up to two reasons already.
    if not explanation.refusals or (
        len(explanation.refusals) <= _FEW_REASONS and explanation.verdict.why
    ):
        return
    rows = [
        (str(refusal.nodes), str(refusal.example), refusal.text)
        for refusal in sorted(explanation.refusals, key=lambda refusal: -refusal.nodes)
    ]
    yield align(["Nodes:", *table(("NODES", "EXAMPLE", "REFUSED BECAUSE"), rows, indent="  ")])


def _holders(explanation: Explanation) -> Iterator[str]:
    # Whoever reads the view of the controller may not list pods, and so does not see their nodes.
    view = bool(explanation.notes)
    rows = [
        (
            f"{'pod ' if holder.pod else ''}{holder.namespace}/{holder.name}",
            str(holder.gpus),
            "-" if holder.since is None else duration(max(0.0, explanation.now - holder.since)),
            "-" if holder.left is None else _remaining(holder.left),
            _where(holder, unread="not known; pods may not be listed" if view else "not recorded"),
        )
        for holder in explanation.holders[:MAX_EVIDENCE_ROWS]
    ]
    if rest := explanation.holders[MAX_EVIDENCE_ROWS:]:
        rows.append((f"{len(rest)} more", str(sum(holder.gpus for holder in rest)), "", "", ""))
    if explanation.unnamed:
        nodes = shortened_cell(explanation.unnamed_on, _FEW_NODES)
        rows.append(("others", str(explanation.unnamed), "", "", nodes))
    if rows:
        header = ("USED BY", "GPUS", "AGE", "LEFT", "NODES")
        aligned = align(["GPUs in use by:", *table(header, rows, indent="  ")])
        yield "".join(
            f"{line.rstrip()}\n" for line in (*aligned.splitlines(), *_details(explanation))
        )


def _own_reservation(explanation: Explanation) -> Iterator[str]:
    """The GPUs that are reserved for the job itself, while some of them are still in use."""
    entries = explanation.own
    gpus, free = sum(entry.gpus for entry in entries), sum(entry.free for entry in entries)
    if free == gpus:
        return
    rows = [
        (entry.node, ",".join(map(str, entry.indexes)) or NOTHING, f"{entry.free} of {entry.gpus}")
        for entry in entries[:MAX_EVIDENCE_ROWS]
    ]
    if rest := entries[MAX_EVIDENCE_ROWS:]:
        some, more = sum(entry.free for entry in rest), sum(entry.gpus for entry in rest)
        rows.append((f"{len(rest)} more", "", f"{some} of {more}"))
    are = "is" if gpus - free == 1 else "are"
    title = f"Reserved for it: {counted(gpus, 'GPU')}; {gpus - free} {are} still in use"
    yield align([title, *table(("NODE", "GPUS", "FREE"), rows, indent="  ")])


def _why_there(explanation: Explanation) -> Iterator[str]:
    """Why the reservation of the head may be on other nodes than the nearest change."""
    turn, reserved = explanation.turn, {entry.node for entry in explanation.own}
    if turn is None or turn.place > 1 or not reserved or explanation.nearest is None:
        return
    used = chain(*(holder.gpus_on for holder in explanation.holders), explanation.unnamed_on)
    if not reserved.issuperset(used):
        yield (
            "Reserved is where the fewest GPU-hours are missing; Nearest counts GPUs, and not for"
            " how long they are in use."
        )


def _where(holder: BlockingHolder, *, unread: str) -> str:
    note = " (terminating)" if holder.terminating else "" if holder.started else " (planned)"
    return (shortened_cell(tuple(holder.gpus_on), _FEW_NODES) or unread) + note


def _details(explanation: Explanation) -> Iterator[str]:
    """The command that shows the GPUs of the first nodes in use, and their pods."""
    nodes = [
        *chain.from_iterable(holder.gpus_on for holder in explanation.holders),
        *explanation.unnamed_on,
    ]
    if nodes:
        named = " ".join(list(dict.fromkeys(nodes))[:_FEW_NODES])
        yield f"  which GPUs: arena-topo top node -d {named}"


def _turn(explanation: Explanation) -> Iterator[str]:
    turn = explanation.turn
    if turn is None:
        return
    where = "" if turn.whole else f" of namespace {explanation.status.namespace}"
    yield f"Queue: {turn.place} of {turn.of} waiting jobs{where}"
    if turn.ahead:
        ahead = [_ahead(job, explanation.now) for job in turn.ahead]
        yield f"  ahead of it: {one_line(shortened_clauses(ahead, MAX_EVIDENCE_ROWS))}"
    if explanation.starts_by is not None:
        left = _remaining(explanation.starts_by - explanation.now)
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


def _ahead(gang: WaitingGang, now: float) -> str:
    priority = f", priority {gang.priority}" if gang.priority else ""
    gpus = counted(gang.gpus, "GPU")
    return f"{gang.namespace}/{gang.name} ({gpus}, {duration(now - gang.since)}{priority})"


def _events(explanation: Explanation) -> Iterator[str]:
    if explanation.events:
        yield "Current events:"
    for event in explanation.events[-MAX_EVIDENCE_ROWS:]:
        age = duration(explanation.now - event.when)
        yield "  " + one_line(f"{event.source}, {age} ago: [{event.reason}] {event.message}")


def _denied(explanation: Explanation) -> Iterator[str]:
    if explanation.denied:
        yield "Not readable:"
    for denial in explanation.denied:
        yield f"  {one_line(str(denial))}"
        if denial.why is None:
            yield f"    permission needed: {one_line(denial.rule)}"


# ---------------------------------------------------------------- for programs


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """The explanation for JSON and YAML; null for what is not known.

    Times are seconds; `startsBy` counts from now, `until` is Unix time.
    """
    status, diagnosis, now = explanation.status, explanation.verdict, explanation.now
    wait = explanation.wait
    return {
        "name": status.name,
        "namespace": status.namespace,
        "status": status.phase.value,
        "code": diagnosis.code.value,
        "verdict": diagnosis.what,
        "why": diagnosis.why,
        "hint": diagnosis.hint,
        "lastStop": stop_value(status.last_stop),
        "log": _log_value(explanation),
        "nodes": [
            {
                "reason": refusal.reason.value,
                "nodes": refusal.nodes,
                "example": str(refusal.example),
                "reservedFor": list(refusal.jobs),
            }
            for refusal in explanation.refusals
        ],
        "holders": [_holder_value(holder, now) for holder in explanation.holders],
        "heldByOthers": explanation.unnamed,
        "othersOn": list(explanation.unnamed_on),
        "reserved": explanation.reserved,
        "ownReservation": [asdict(entry) for entry in explanation.own],
        "queue": _turn_value(explanation),
        "startsBy": None
        if explanation.starts_by is None
        else max(0, int(explanation.starts_by - now)),
        "nearest": explanation.nearest,
        "notes": list(explanation.notes),
        "waitsFor": None if wait is None else wait.value,
        "until": None if wait is None else int(wait.until),
        "reservedBy": explanation.reserved_by,
        "events": [_event_value(event, now) for event in explanation.events],
        "denied": [
            {
                "verb": denial.verb,
                "resource": denial.resource,
                "group": denial.group,
                "namespace": denial.namespace or None,
                "reason": denial.why,
            }
            for denial in explanation.denied
        ],
    }


def stop_value(stop: LastStop | None) -> dict[str, Any] | None:
    """The last stop of a job by the controller, for JSON; `at` is Unix seconds."""
    return (
        None
        if stop is None
        else {"at": int(stop.at), "reason": str(stop.cause), "times": stop.times}
    )


def _log_value(explanation: Explanation) -> dict[str, Any] | None:
    """The end of the launcher's log; `age` is that of its last line."""
    log = explanation.log
    if log is None:
        return None
    from arena_topo.reasons.launcher_log import failed_rank  # noqa: PLC0415 - only to explain

    rank = failed_rank(log.text) if explanation.status.phase.over else None
    return {
        "pod": log.pod,
        "lines": list(log.lines),
        "age": None if log.written is None else max(0, int(explanation.now - log.written)),
        "failedRank": None if rank is None else msgspec.structs.asdict(rank),
    }


def _event_value(event: Event, now: float) -> dict[str, Any]:
    return {
        "source": event.source,
        "type": event.kind,
        "reason": event.reason,
        "message": event.message,
        "age": int(now - event.when),
    }


def _aged(holder: BlockingHolder | WaitingGang, now: float) -> dict[str, Any]:
    """The fields of a job, its age in seconds in place of `since`."""
    fields = asdict(holder) | {
        "since": None if holder.since is None else max(0, int(now - holder.since))
    }
    return {"age" if name == "since" else name: field for name, field in fields.items()}


def _holder_value(holder: BlockingHolder, now: float) -> dict[str, Any]:
    fields = _aged(holder, now)
    gpus_on = fields.pop("gpus_on")
    left = None if holder.left is None else int(holder.left)
    return {**fields, "nodes": list(gpus_on), "gpusOn": gpus_on, "left": left}


def _turn_value(explanation: Explanation) -> dict[str, Any] | None:
    turn = explanation.turn
    if turn is None:
        return None
    ahead = [_aged(gang, explanation.now) for gang in turn.ahead]
    return {"place": turn.place, "of": turn.of, "allNamespaces": turn.whole, "ahead": ahead}


def difference_value(difference: Difference) -> dict[str, Any]:
    """A difference from the plan for JSON."""
    return {
        **msgspec.structs.asdict(difference),
        "kind": difference.kind.value,
        "message": str(difference),
    }
