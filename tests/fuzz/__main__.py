"""Fuzz by hand: `python -m tests.fuzz [TARGET ...]`.

A table at the end counts inputs and what went wrong, and below it stands each place where something
did, with a folder that has what it takes to see it again. Exit code 1 if there is any. Ctrl-C ends
the run after the chunks that have begun, with the table of what was run; a second one at once.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz import campaign, verdicts
from fuzz.campaign import Campaign, Chunk, Tally
from fuzz.targets import Target, every


def main() -> int:
    """Run a campaign, and show what came of it; the exit code."""
    targets = every()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help=f"any of {', '.join(targets)}; all of them")
    parser.add_argument("--inputs", type=int, default=100_000, help="of all targets together")
    parser.add_argument("--seed", type=int, help="from which all inputs are made")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which it ends")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this input of one target")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for what went wrong")
    given = parser.parse_args()
    if unknown := set(given.target) - set(targets):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    chosen = {name: targets[name] for name in given.target or targets}
    seed = random.randrange(10**6) if given.seed is None else given.seed
    keep = given.keep or Path(tempfile.mkdtemp(prefix="fuzz-found-"))
    begun = time.monotonic()
    run = Campaign(seed=seed, keep=keep, seconds=given.seconds)
    if given.only is not None:
        if len(chosen) != 1:
            parser.error("--only is a number of one target")
        work = [Chunk(target=next(iter(chosen)), first=given.only, count=1)]
    else:
        work = campaign.chunks(
            shares(chosen, given.inputs),
            rounds=max(1, min(campaign.ROUNDS, given.inputs // 20_000)),
        )
    signal.signal(signal.SIGINT, partial(_stopping, run))
    run.run(work, workers=given.workers, fresh=True, tell=_progress(begun))
    print(table(run.tallies))
    print(f"seed {seed}, {time.monotonic() - begun:.0f} s")
    for text in places(run.tallies):
        print(text)
    return int(any(one.found for one in run.tallies.values()))


def _stopping(run: Campaign, number: int, frame: object) -> None:
    del frame
    print("stopping after the chunks that have begun", file=sys.stderr, flush=True)
    run.stop()
    signal.signal(number, signal.SIG_DFL)


def shares(targets: Mapping[str, type[Target]], inputs: int) -> dict[str, int]:
    """How many of all inputs each target gets."""
    whole = sum(one.share for one in targets.values())
    return {name: max(1, round(inputs * one.share / whole)) for name, one in targets.items()}


def table(tallies: Mapping[str, Tally]) -> str:
    """The figures of each target."""
    kinds = (verdicts.TRACEBACK, verdicts.EXIT, verdicts.HANG, verdicts.OTHER)
    rows = [("target", "inputs", *kinds, "peak memory", "CPU each", "per second")]
    for name, one in tallies.items():
        counts = [f"{one.of(kind):,}" for kind in kinds]
        speed = f"{one.ran / one.seconds:.0f}" if one.seconds else "-"
        each = f"{one.computed / one.ran * 1000:.1f} ms" if one.computed else "-"
        rows.append((name, f"{one.ran:,}", *counts, f"{one.peak >> 20} MiB", each, speed))
    total = [f"{sum(one.of(kind) for one in tallies.values()):,}" for kind in kinds]
    ran = sum(one.ran for one in tallies.values())
    peak = max((one.peak for one in tallies.values()), default=0)
    rows.append(("all", f"{ran:,}", *total, f"{peak >> 20} MiB", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def places(tallies: Mapping[str, Tally]) -> list[str]:
    """Each place where something went wrong, the most frequent first."""
    found = [(name, one) for name, tally in tallies.items() for one in tally.found.values()]
    return [
        f"{one.times:6,}  {name}: {one.what} ({one.kind}; first input {one.number})\n"
        f"        {one.kept or one.detail}"
        for name, one in sorted(found, key=lambda pair: -pair[1].times)
    ]


def _progress(begun: float):
    def tell(said: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {said}", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    sys.exit(main())
