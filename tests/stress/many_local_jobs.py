"""Many jobs of the local engine at once, submitted by several processes at the same time.

    python tests/stress/many_local_jobs.py [JOBS [SUBMITTERS]]

Every job must run once, with its own exit code and its own log, and no GPU may be given to two jobs
at the same time. Exits with 1 where one of that is not so. It uses an empty state folder and
emulated GPUs, and leaves nothing behind.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from arena_topo import Client

MACHINES = "dgx-1-v100:2"
SHAPES = ((1, 1), (1, 2), (2, 2), (4, 1), (8, 1), (1, 4), (4, 2))
"""GPUs of each worker, and workers."""
CODES = (0, 0, 0, 7)
SUBMIT_LIMIT = 600.0
"""Seconds that one submit may take."""
END_LIMIT = 15.0
"""Seconds for each job, on average, until all are over."""


@dataclass(frozen=True)
class Job:
    """One job, and what is expected of it."""

    name: str
    gpus: int
    workers: int
    code: int


@dataclass(frozen=True)
class Run:
    """What the jobs themselves wrote down: nanoseconds at which each began and ended."""

    begun: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def main(count: int, submitters: int) -> int:
    """Run the jobs, and print what is wrong."""
    choose = random.Random(7)
    jobs = [
        Job(f"job-{number}", *choose.choice(SHAPES), code=CODES[number % len(CODES)])
        for number in range(count)
    ]
    with tempfile.TemporaryDirectory(prefix="arena-topo-stress-") as folder:
        os.environ |= {
            "HOME": folder,
            "XDG_STATE_HOME": f"{folder}/state",
            "XDG_CACHE_HOME": f"{folder}/cache",
            "ARENA_TOPO_BACKEND": "local",
            "ARENA_TOPO_EMULATE": MACHINES,
        }
        journal = Path(folder, "journal")
        journal.touch()
        begun = time.monotonic()
        problems = submit(jobs, submitters, journal)
        submitted = time.monotonic()
        try:
            wait(len(jobs) - len(problems), END_LIMIT * count)
            over = time.monotonic()
            problems += list(wrong(jobs, read(journal)))
        finally:
            remove_all()
    for problem in problems:
        print(problem)
    print(
        f"{count} jobs by {submitters} submitters: submitted in {submitted - begun:.0f} s,"
        f" over after {over - begun:.0f} s, {len(problems)} problems"
    )
    return 1 if problems else 0


def submit(jobs: Iterable[Job], submitters: int, journal: Path) -> list[str]:
    """Submit all jobs from several threads, each job by a process of its own."""
    left, lock, problems = iter(jobs), threading.Lock(), list[str]()

    def work() -> None:
        while True:
            with lock:
                job = next(left, None)
            if job is None:
                return
            note = f"{job.name} $(date +%s%N) >> {journal}"
            command = (
                f"echo begins {note}; echo log of {job.name}; sleep 0.3; echo ends {note};"
                f" exit {job.code}"
            )
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "arena_topo", "submit", "mpi", "--image=local"),
                    *(f"--name={job.name}", f"--gpus={job.gpus}", f"--workers={job.workers}"),
                    *("--gputopology", command),
                ],
                capture_output=True,
                text=True,
                timeout=SUBMIT_LIMIT,
                check=False,
            )
            if done.returncode:
                problems.append(f"{job.name}: submit ended with {done.returncode}: {done.stderr}")

    threads = [threading.Thread(target=work) for _ in range(submitters)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return problems


def wait(count: int, limit: float) -> None:
    """Wait until so many jobs are over."""
    until = time.monotonic() + limit
    while True:
        phases = Counter(one.phase for one in Client().list_jobs())
        if sum(phases[phase] for phase in phases if phase.over) >= count:
            return
        if time.monotonic() > until:
            print(f"not over after {limit:.0f} s: {dict(phases)}")
            return
        time.sleep(1.0)


def read(journal: Path) -> Run:
    """What the jobs wrote down."""
    found = Run()
    for line in journal.read_text().splitlines():
        what, name, when = line.split()
        times = found.begun if what == "begins" else found.ended
        times[name].append(int(when))
    return found


def wrong(jobs: Iterable[Job], run: Run) -> Iterator[str]:
    """What is wrong with the end, the log and the GPUs of each job."""
    known = {one.name: one for one in Client().list_jobs()}
    spans: dict[tuple[str, int], list[tuple[int, int, str]]] = defaultdict(list)
    for job in jobs:
        status = known.get(job.name)
        if status is None:
            yield f"{job.name}: it is not listed"
            continue
        phase = "SUCCEEDED" if job.code == 0 else "FAILED"
        if (status.phase, status.exit_code) != (phase, job.code):
            said = f"{status.phase} with exit code {status.exit_code} ({status.reason})"
            yield f"{job.name}: {said} in place of {phase} with {job.code}"
        if (len(run.begun[job.name]), len(run.ended[job.name])) != (1, 1):
            yield f"{job.name}: begun {run.begun[job.name]}, ended {run.ended[job.name]}"
            continue
        lines = [line.message for line in Client().logs(job.name)]
        if lines != [f"log of {job.name}"]:
            yield f"{job.name}: its log is {lines}"
        workers = status.forecast.workers if status.forecast else ()
        gpus = {(node, gpu) for _, node, some in workers for gpu in some}
        if len(gpus) != job.gpus * job.workers:
            yield f"{job.name}: {len(gpus)} GPUs in place of {job.gpus * job.workers}"
        for one in gpus:
            spans[one].append((run.begun[job.name][0], run.ended[job.name][0], job.name))
    for (node, gpu), some in spans.items():
        for first, second in itertools.pairwise(sorted(some)):
            if second[0] < first[1]:
                yield f"GPU {gpu} of {node} is given to {first[2]} and {second[2]} at once"


def remove_all() -> None:
    """Delete all jobs, whatever has become of them."""
    for one in Client().list_jobs():
        Client().delete(one.name, ignore_not_found=True)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(given + [200, 10][len(given) :])))
