"""A simulation as pictures: four plots on one sheet, and a page of HTML with the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from arena_topo.drawing.sheet import SMALL_TEXT, Sheet, lines, stack
from arena_topo.simulate.measures import (
    HOUR,
    QUANTILES,
    SIZE_CLASSES,
    ReplayMeasures,
    by_setting,
    mean_min_max,
)
from arena_topo.simulate.running import Simulation
from arena_topo.simulate.view import cluster_text, notes_on, setting_words, source_text

_WIDE, _HIGH, _ROOM = 400.0, 220.0, 52.0
"""Width and height of a plot, and the room for the numbers to its left, in pixels."""

_STEPS = 4
"""The horizontal lines of a plot."""

_CSS = ("lit", "slow", "seen", "link", "lit dashed", "slow dashed")
"""The classes of lines that a person can tell apart."""

MAX_CURVES = len(_CSS)
"""The most settings that a picture shows."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """A plot: its curves with their CSS classes, and the words of its axes."""

    title: str
    curves: Sequence[tuple[str, Points]]
    across: str
    up: str
    named: Sequence[tuple[float, str]] = ()
    least: float = 0.0


def simulation_svg(simulation: Simulation) -> str:
    """Draw a simulation: waiting, completion against load, GPUs over time, and slowdown."""
    title = "Replay of jobs on a cluster"
    return _sheet(simulation, title).finish(title, source_text(simulation.plan))


def _sheet(simulation: Simulation, title: str) -> Sheet:
    every = list(by_setting(simulation.runs).values())
    loads = list(dict.fromkeys(runs[0].case.load for runs in every))
    chosen = [runs for runs in every if runs[0].case.load == loads[-1]][:MAX_CURVES]
    head = [
        (title, "head"),
        (source_text(simulation.plan), ""),
        (cluster_text(simulation.plan), "dim"),
        *((note, "dim") for note in notes_on(simulation)),
    ]
    if len(loads) > 1:
        head.append((f"All but the second plot are of load {loads[-1]:g}.", "dim"))
    plots = [
        _drawn(plot)
        for plot in (
            _waiting(chosen),
            _completion(every, [runs[0].setting[1:] for runs in chosen]),
            _over_time(chosen),
            _slowdown(chosen),
        )
    ]
    return stack(
        [
            lines(head, 2 * (_WIDE + _ROOM) + 24),
            _legend(chosen),
            stack(plots[:2], across=True, gap=24),
            stack(plots[2:], across=True, gap=24),
        ],
        gap=18,
    )


def _legend(chosen: Sequence[list[ReplayMeasures]]) -> Sheet:
    sheet = Sheet()
    for at, runs in enumerate(chosen):
        left, top = (at % 3) * 300.0, (at // 3) * 20.0
        sheet.line([(left, top), (left + 26, top)], _CSS[at], thick=3)
        words = ", ".join(setting_words(runs)[1:])
        sheet.text((left + 34, top + 4), words, "small", room=250, size=SMALL_TEXT)
    return sheet


def _waiting(chosen: Sequence[list[ReplayMeasures]]) -> _Plot:
    """How long jobs on several GPUs wait: the share of them that has started after some hours."""
    curves = []
    for at, runs in enumerate(chosen):
        points = []
        for which, share in enumerate(QUANTILES):
            weighted = [
                (run.sizes[size].curve[which], run.sizes[size].jobs)
                for run in runs
                for size in range(1, len(SIZE_CLASSES))
            ]
            jobs = sum(number for _, number in weighted)
            hours = sum(value * number for value, number in weighted) / jobs if jobs else 0.0
            points.append((share, hours))
        curves.append((_CSS[at], points))
    return _Plot(
        title="Waiting of jobs on 2 and more GPUs",
        curves=curves,
        across="share of the jobs that wait less",
        up="hours",
        named=[(share, f"{100 * share:.0f}%") for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
    )


def _completion(
    every: Sequence[list[ReplayMeasures]], shown: Sequence[tuple[object, ...]]
) -> _Plot:
    """The mean completion time by load, with the least and the largest of the seeds."""
    curves: list[tuple[str, Points]] = []
    loads: set[float] = set()
    for at, setting in enumerate(shown):
        rows = [
            (
                mean_min_max(run.load for run in runs)[0],
                mean_min_max(run.completion for run in runs),
            )
            for runs in every
            if runs[0].setting[1:] == setting
        ]
        rows.sort()
        loads.update(load for load, _ in rows)
        curves.append((_CSS[at], [(load, mean) for load, (mean, _, _) in rows]))
        for load, (_, least, most) in rows:
            # A band at each load: the whiskers stand a little beside each other.
            beside = load + (at - len(shown) / 2) * _APART
            curves.append((_CSS[at].split(" ", maxsplit=1)[0], [(beside, least), (beside, most)]))
    return _Plot(
        title="Completion time",
        curves=curves,
        across="load, with the least and the largest of the seeds",
        up="hours",
        named=[(load, f"{load:.2f}") for load in sorted(loads)],
    )


_APART = 0.004
"""How far the whiskers of settings stand apart, in units of the load."""


def _over_time(chosen: Sequence[list[ReplayMeasures]]) -> _Plot:
    """The GPUs in use over time, of the first seed; dashed those that waiting jobs ask for."""
    curves: list[tuple[str, Points]] = []
    for at, runs in enumerate(chosen[:3]):
        css = _CSS[at]
        samples = runs[0].samples
        curves.append((css, [(sample.at / HOUR, sample.used) for sample in samples]))
        curves.append((f"{css} dashed", [(sample.at / HOUR, sample.queued) for sample in samples]))
    end = max((points[-1][0] for _, points in curves if points), default=0.0)
    return _Plot(
        title="GPUs in use, and dashed asked for by waiting jobs",
        curves=curves,
        across="hours; first seed, at most three settings",
        up="GPUs",
        named=[(end * part / 4, f"{end * part / 4:.0f}") for part in range(5)],
    )


def _slowdown(chosen: Sequence[list[ReplayMeasures]]) -> _Plot:
    """How many times longer steps take than on the best placement, by number of GPUs."""

    def mean(runs: list[ReplayMeasures], size: int) -> float:
        return mean_min_max(run.sizes[size].slowdown for run in runs if run.sizes[size].jobs)[0]

    return _Plot(
        title="Steps beside those on the best placement",
        curves=[
            (
                _CSS[at],
                [
                    (float(size), mean(runs, size))
                    for size in range(len(SIZE_CLASSES))
                    if any(run.sizes[size].jobs for run in runs)
                ],
            )
            for at, runs in enumerate(chosen)
        ],
        across="GPUs",
        up="times",
        named=[(float(at), name) for at, (name, _, _) in enumerate(SIZE_CLASSES)],
        least=1.0,
    )


def _drawn(plot: _Plot) -> Sheet:
    sheet = Sheet()
    points = [point for _, curve in plot.curves for point in curve]
    xs = [x for x, _ in points] + [x for x, _ in plot.named]
    first, last = min(xs, default=0.0), max(xs, default=1.0)
    if first == last:
        first, last = first - 0.5, last + 0.5
    most = max([y for _, y in points] + [plot.least])
    most = most if most > plot.least else plot.least + 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        along, high = (x - first) / (last - first), (y - plot.least) / (most - plot.least)
        return _ROOM + _WIDE * along, 30 + _HIGH * (1 - high)

    sheet.text((_ROOM, 12), plot.title, "strong", room=_WIDE)
    sheet.text((0, 22), plot.up, "small dim", size=SMALL_TEXT)
    sheet.box((_ROOM, 30), (_WIDE, _HIGH), "frame", corner=0)
    for step in range(_STEPS + 1):
        value = plot.least + (most - plot.least) * step / _STEPS
        at = place(first, value)[1]
        sheet.line([(_ROOM, at), (_ROOM + _WIDE, at)], "faint", thick=1)
        sheet.text((_ROOM - 6, at + 4), f"{value:.3g}", "small dim end", size=SMALL_TEXT)
    for x, words in plot.named:
        along = place(x, plot.least)[0]
        sheet.text((along, _HIGH + 48), words, "small dim middle", size=SMALL_TEXT)
    sheet.text((_ROOM + _WIDE, _HIGH + 66), plot.across, "small dim end", size=SMALL_TEXT)
    for css, curve in plot.curves:
        if len(curve) == 1:
            x, y = place(*curve[0])
            sheet.line([(x - 5, y), (x + 5, y)], css, thick=3)
        elif curve:
            sheet.line([place(*point) for point in curve], css, thick=2)
    return sheet


def simulation_html(simulation: Simulation, screen: str) -> str:
    """A page with the pictures and the whole screen, in one file."""
    svg = simulation_svg(simulation)
    # Sentences wrap; a table keeps its columns and scrolls.
    blocks = "\n".join(
        f'<pre class="{"table" if block.startswith("LOAD ") else "words"}">{escape(block)}</pre>'
        for block in screen.strip().split("\n\n")
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>Simulation</title>\n'
        "<style>body{max-width:64rem;margin:1rem auto;padding:0 1rem;font-family:sans-serif}"
        "svg{max-width:100%;height:auto}pre{overflow-x:auto}"
        ".words{white-space:pre-wrap}"
        "@media (prefers-color-scheme:dark){body{background:#111;color:#ddd}}</style>\n"
        f"</head>\n<body>\n{svg}{blocks}\n</body>\n</html>\n"
    )
