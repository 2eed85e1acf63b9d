"""A process that runs inputs: it is told which on stdin, and tells what it found on stdout.

Each line of either is a JSON object. The campaign reads from a file in memory which input runs, so
that it knows which one has brought the process down or to a stop.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .sandbox import Input, Outcome, Sandbox, bounded_memory
from .targets import Target, every
from .verdicts import Finding

AT = struct.Struct("<Q")


def source(target: str, seed: int, number: int) -> random.Random:
    """What an input is made from."""
    return random.Random(f"{target} {seed} {number}")


def main() -> None:
    """Serve a campaign until it closes stdin."""
    told, says = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.umask(0o077)
    folder = Path.cwd()
    bounded_memory()
    sandbox = Sandbox(folder)
    mark = os.open("../at", os.O_WRONLY | os.O_CREAT, 0o600)
    for line in told:
        chunk = json.loads(line)
        answer = _chunk(
            sandbox,
            every()[chunk["target"]](),
            mark,
            lambda said: says.write(json.dumps(said) + "\n"),
            **{key: said for key, said in chunk.items() if key != "target"},
        )
        says.write(json.dumps(answer) + "\n")


def _chunk(
    sandbox: Sandbox,
    target: Target,
    mark: int,
    tell: Callable[[dict[str, Any]], object],
    *,
    seed: int,
    first: int,
    count: int,
    until: float,
    keep: str,
    only_keep: str = "",
) -> dict[str, Any]:
    """Run some inputs of a target, until a moment of `time.monotonic`; what that came to."""
    begun, computed, peak, ran = time.monotonic(), time.process_time(), 0, 0
    known: set[str] = set()
    keeper = _Keeper(Path(keep), target.name)
    with target.opened(sandbox):
        for number in range(first, first + count):
            if time.monotonic() > until and number > first:
                break
            os.pwrite(mark, AT.pack(number), 0)
            given = target.make(source(target.name, seed, number))
            if only_keep:
                return {"kept": keeper.keep(number, given, Finding(kind="", what=only_keep))}
            target.prepare(given)
            outcome = sandbox.run(given)
            ran += 1
            peak = max(peak, outcome.peak)
            for finding in target.judged(given, outcome):
                new = finding.what not in known
                known.add(finding.what)
                tell(
                    {
                        "found": finding.what,
                        "kind": finding.kind,
                        "number": number,
                        "kept": keeper.keep(number, given, finding, outcome) if new else "",
                        "detail": finding.detail[-4000:] if new else "",
                    }
                )
    return {
        "ran": ran,
        "peak": peak,
        "seconds": time.monotonic() - begun,
        "computed": time.process_time() - computed,
    }


@dataclass(frozen=True, slots=True)
class _Keeper:
    """Writes down how to see findings of a target again."""

    folder: Path
    target: str

    def keep(
        self, number: int, given: Input, finding: Finding, outcome: Outcome | None = None
    ) -> str:
        """Write down an input and what was seen; the folder where that is."""
        made = self.folder / self.target / hashlib.sha256(finding.what.encode()).hexdigest()[:10]
        (made / "files").mkdir(parents=True, exist_ok=True)
        said = [finding.what, f"target {self.target}, input {number}", given.about, given.shell()]
        text = "\n".join(filter(None, said)) + "\n"
        (made / "line").write_text(text, encoding="utf-8", errors="backslashreplace")
        for name, data in given.files.items():
            path = made / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if given.stdin:
            (made / "stdin").write_bytes(given.stdin)
        if finding.detail:
            detail = made / "detail"
            detail.write_text(finding.detail, encoding="utf-8", errors="backslashreplace")
        if outcome is not None:
            (made / "stdout").write_bytes(outcome.out[:1_000_000])
            (made / "stderr").write_bytes(outcome.err[:1_000_000])
        return str(made)


if __name__ == "__main__":
    main()
