"""The local engine's own files: those of one job broken, and commands about it and about others.

Jobs are submitted once, for real; what they leave below the state folder is copied for each input.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arena_topo.engines import JobStatus, Phase
from arena_topo.engines.archive import Archive
from arena_topo.engines.lines import Line, LogTurn, Notice, Source, stamped

from . import mutators, verdicts
from .sandbox import Input, Outcome, Sandbox
from .targets import Target

PATIENCE = 60.0
JOB = ("--gpus=1", "--workers=1", "--image=local", "--gputopology")
ENGINE = {"ARENA_TOPO_EMULATE": "dgx-1-v100:2", "ARENA_TOPO_BACKEND": "local"}
TEMPLATE, LIVE = "template", "live"
JOBS = {
    "done": (*JOB, "echo hello"),
    "fail": (*JOB, "exit 3"),
    "gone": (*JOB, "echo to keep; echo more"),
    "held": (*JOB, "sleep 7200"),
    "run": ("--gpus=8", *JOB[1:], "--workers=2", "sleep 7200"),
    "wait": ("--gang", *JOB, "true"),
}
PHASES = {
    "done": "SUCCEEDED",
    "fail": "FAILED",
    "gone": "SUCCEEDED",
    "held": "RUNNING",
    "run": "RUNNING",
}
_SIGNAL = re.compile(r"signal (\d+) to (\d+)")


class _Engine(Target):
    """What the engine has written, and copies of it in which one file or two are changed."""

    log = True
    jobs: Sequence[str]
    """Those that it needs."""

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[None]:
        """Submit the jobs, and note what they leave and what other commands answer."""
        shutil.rmtree(TEMPLATE, ignore_errors=True)
        state = {**ENGINE, "XDG_STATE_HOME": str(Path(TEMPLATE).absolute())}

        def asked(*line: str) -> bytes:
            outcome = sandbox.run(Input(line=line, variables=state))
            assert outcome.code == 0, (line, outcome.err)
            return outcome.out

        try:
            with sandbox.trusted():
                self._submit(asked)
            self._files = {
                str(path.relative_to(TEMPLATE)): path.read_bytes()
                for path in sorted(Path(TEMPLATE).rglob("*"))
                if path.is_file()
            }
            self._learn(sandbox)
            yield
        finally:
            with sandbox.trusted():
                for name in {"wait", "run", "held"}.intersection(self.jobs):
                    sandbox.run(Input(line=("delete", name), variables=state))

    def _submit(self, asked: Any) -> None:
        for name in self.jobs:
            asked("submit", "mpi", f"--name={name}", *JOBS[name])
            self._until(asked, name)
            if name == "held":
                asked("suspend", name)
            elif name == "gone":
                asked("delete", name)

    def _until(self, asked: Any, name: str) -> None:
        end = time.monotonic() + PATIENCE
        wanted = PHASES.get(name)
        while wanted and json.loads(asked("get", name, "-o", "json"))["status"] != wanted:
            assert time.monotonic() < end, f"{name} is not {wanted}"
            time.sleep(0.1)

    def _learn(self, sandbox: Sandbox) -> None:
        """See what the target needs, of jobs whose files are whole."""

    def prepare(self, given: Input) -> None:
        """Copy all files, with those of the input as they are there."""
        shutil.rmtree(LIVE, ignore_errors=True)
        for name, data in (self._files | dict(given.files)).items():
            path = Path(LIVE, name)
            try:
                path.write_bytes(data)
            except FileNotFoundError:
                path.parent.mkdir(parents=True)
                path.write_bytes(data)

    def _input(self, line: Sequence[str], files: Mapping[str, bytes], about: str = "") -> Input:
        state = {**ENGINE, "XDG_STATE_HOME": str(Path(LIVE).absolute())}
        return Input(line=line, files=files, variables=state, about=about)

    def judged(self, given: Input, outcome: Outcome) -> Iterator[verdicts.Finding]:
        """A damaged file makes no command reach beyond its job and the state folder."""
        yield from super().judged(given, outcome)
        for one in outcome.refused:
            if one.startswith("a change to"):
                what = f"`{given.line[0]}` reaches beyond the state folder"
                yield verdicts.Finding(kind=verdicts.OTHER, what=what, detail=one)


class LocalJobs(_Engine):
    """Files of jobs."""

    name = "local"
    share = 12
    few = 30
    about_it = (
        *(("list",), ("list", "-o", "json"), ("get", "X"), ("get", "X", "-o", "json")),
        *(("get", "X", "--events"), ("logs", "X"), ("logs", "X", "--timestamps"), ("why", "X")),
        *(
            ("logs", "X", "--previous"),
            ("logs", "X", "--since", "1h"),
            ("logs", "X", "--tail", "1"),
        ),
        *(("top", "node", "-d"), ("top", "job"), ("top", "job", "X"), ("delete", "X")),
        *(("resume", "X"), ("suspend", "X"), ("replan", "X", "-y"), ("logs", "X", "--nccl")),
        ("wait", "X", "--for", "running", "--timeout", "100ms"),
        ("prune", "--since", "0s", "--yes"),
        ("submit", "mpi", "--name=other", *JOB, "true"),
        ("plan", "mpi", "--name=other", *JOB, "true"),
        ("submit", "mpi", "--name=X", *JOB, "--exists", "ok", "true"),
        *(("attach", "X", "--", "true"), ("list", "-l", "app=mpijob"), ("check", "X")),
        ("logs", "X", "-i", "X-worker-0"),
    )
    about_others = (
        *(("get", "O"), ("logs", "O"), ("why", "O"), ("list",), ("top", "node"), ("delete", "O")),
        ("submit", "mpi", "--name=other", *JOB, "--dry-run", "true"),
    )
    others = ("done", "fail")
    jobs = ("done", "fail", "held", "run", "wait")
    likely = frozenset({"record", "submission.json", "manifest.json", "events", "0-0.log"})

    def _learn(self, sandbox: Sandbox) -> None:
        found = [name for name in self._files if "/jobs/" in name]
        self._of = {
            job: [name for name in found if f"/{job}/" in name and "/arena-topo-bin/" not in name]
            for job in self.jobs
        }
        self._codes = {}
        for line in self.about_others:
            for other in self.others:
                given = self._input(_named(line, other), {})
                self.prepare(given)
                self._codes[given.line] = sandbox.run(given).code

    def make(self, rng: random.Random) -> Input:
        job = rng.choice(self.jobs)
        names = self._of[job]
        likely = [name for name in names if Path(name).name in self.likely]
        files = {}
        for _ in range(rng.choice((1, 1, 2))):
            name = rng.choice(likely if rng.random() < 0.8 else names)
            files[name] = _damaged(rng, self._files[name])
        if rng.random() < 0.3:
            other = rng.choice([one for one in self.others if one != job])
            line = _named(rng.choice(self.about_others), other)
        else:
            line = _named(rng.choice(self.about_it), job)
        return self._input(line, files, about=job)

    def judged(self, given: Input, outcome: Outcome) -> Iterator[verdicts.Finding]:
        """Commands about other jobs end as ever, and no process of another job hears a signal."""
        yield from super().judged(given, outcome)
        named = {given.about, f"--name={given.about}"} & set(given.line)
        expected = outcome.code if named else self._codes.get(given.line, outcome.code)
        # The GPUs of a job that cannot be read count as free, so that there may be room now.
        if outcome.code not in {expected, 0}:
            said = outcome.err.decode("utf-8", "replace")
            what = f"another job's files stop `{given.line[0]}`"
            yield verdicts.Finding(kind=verdicts.OTHER, what=what, detail=said)
        for number, pid in (found.groups() for one in outcome.refused for found in _signals(one)):
            if not _belongs(int(pid), given.about):
                what = f"`{given.line[0]}` sends signals to another job"
                detail = f"signal {number} to {pid}"
                yield verdicts.Finding(kind=verdicts.OTHER, what=what, detail=detail)
                return


class KeptLogs(_Engine):
    """The archive of logs: `gone` is a local job that was deleted, `seen` one that was followed."""

    name = "kept"
    share = 10
    few = 30
    jobs = ("done", "gone")
    lines = (
        *(("logs", "gone"), ("logs", "gone", "--timestamps"), ("logs", "gone", "--tail", "1")),
        *(("logs", "gone", "--since", "1h"), ("logs", "gone", "-i", "gone-launcher")),
        *(("logs", "gone", "--save", "saved"), ("logs", "gone", "--previous"), ("delete", "done")),
        *(("logs", "gone", "--all-pods"), ("logs", "gone", "--nccl")),
    )

    def _submit(self, asked: Any) -> None:
        super()._submit(asked)
        job = JobStatus(
            uid="1",
            name="seen",
            namespace="default",
            phase=Phase.SUCCEEDED,
            created=1.0,
            exit_code=0,
        )
        source = Source(pod="seen-launcher", uid="2", container="mpi", chief=True)
        lines = [Line(source, at, stamped(at), b"hello") for at in range(1, 9)]
        archive = Archive(Path(TEMPLATE, "arena-topo/logs").absolute())
        with archive.keeping("local", job, whole=True) as keeping:
            keeping.write([*lines, Notice(turn=LogTurn.ENDED, source=source)])
            keeping.close(job)

    def _learn(self, sandbox: Sandbox) -> None:
        del sandbox
        self._kept = [name for name, data in self._files.items() if "/logs/" in name and data]
        assert self._kept

    def make(self, rng: random.Random) -> Input:
        name = rng.choice(self._kept)
        files = {name: _damaged(rng, self._files[name])}
        job = "seen" if "/seen." in name else "gone"
        line = [word.replace("gone", job) for word in rng.choice(self.lines)]
        return self._input(line, files)

    def prepare(self, given: Input) -> None:
        """Nothing is saved yet."""
        super().prepare(given)
        shutil.rmtree("saved", ignore_errors=True)


def _named(line: Sequence[str], job: str) -> tuple[str, ...]:
    names = {"X": job, "O": job, "--name=X": f"--name={job}", "X-worker-0": f"{job}-worker-0"}
    return tuple(names.get(word, word) for word in line)


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """A file with other contents: of its format, most times."""
    lines = data.split(b"\n")
    try:
        whole = [json.loads(data)]
        at = None
    except ValueError:
        try:
            at = rng.randrange(len(lines))
            whole = [json.loads(lines[at])]
        except ValueError:
            return mutators.text(rng, data)
    changed = mutators.encoded(mutators.value(rng, mutators.Sample.of(whole[0])), rng)
    if at is not None:
        changed = b"\n".join([*lines[:at], changed, *lines[at + 1 :]])
    return mutators.text(rng, changed) if rng.random() < 0.2 else changed


def _signals(refused: str) -> Iterator[re.Match[str]]:
    found = _SIGNAL.fullmatch(refused)
    if found is not None:
        yield found


def _belongs(pid: int, job: str) -> bool:
    """Whether a process is of a job, by its command line and what its environment names."""
    try:
        said = b"\0".join(
            Path("/proc", str(pid), one).read_bytes() for one in ("cmdline", "environ")
        )
    except OSError:
        return True  # it is gone
    return f"/{job}".encode() in said or f"={job}-".encode() in said
