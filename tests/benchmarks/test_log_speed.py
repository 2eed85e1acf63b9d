"""Following the logs of many pods: `python -m pytest tests/benchmarks/test_log_speed.py -s`.

Goal: 64 workers at 1,000 lines a second each, on one core, without falling behind, within 100 MB;
over TLS as well. The API server is a process of its own (`log_server`); beside arena-topo stands
kubectl where it is on the path. Lines have a hundred characters; a server sends each in a chunk of
its own, as kubelets do. Every row is one process (or 64), from its start to its end.

    lines/s   that came out, from the first to the last
    behind    seconds between writing a line and reading it from the output, while it was written:
              the median, and the last
    MB        of memory at most; of several processes their proportional shares in all
    CPU s     of it all, the start included
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_api import kubeconfig

JOB = "train"
"""What `log_server` calls its job."""

WORKERS, RATE, SECONDS = 64, 1000, 8
MANY = 10_000
"""Lines of each worker that were written before anybody looked."""
LONG = 1_000_000
"""Lines of one log that is read once."""

PIPE = 1 << 20
ARENA = [sys.executable, "-m", "arena_topo"]
FOLLOW = [*ARENA, "logs", JOB, "-f", "--all"]
SELECTED = ["-l", f"training.kubeflow.org/job-name={JOB}", "--max-log-requests=1000"]
KUBECTL = ["kubectl", "logs", "-f", *SELECTED, "--tail=-1", "--prefix"]
HEAD = (
    f"{'':34} {'lines':>9} {'lines/s':>8} {'behind':>7} {'last':>6} {'MB':>6} {'CPU s':>6}"
    f" {'threads':>7}"
)

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")


@dataclass(slots=True)
class Served:
    """A server in another process, if there is one, and the home of its clients."""

    process: subprocess.Popen[str] | None
    environment: dict[str, str]

    def say(self, word: str) -> dict[str, object]:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def served(folder: Path, *words: str) -> Iterator[Served]:
    command = [sys.executable, str(Path(__file__).with_name("log_server.py")), *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            user, cluster = {"username": "alice"}, {}
            if "--tls" in words:
                cluster["certificate-authority"] = str(Path(__file__).parents[1] / "tls" / "ca.pem")
            config = kubeconfig(folder / "config", url, user=user, cluster=cluster)
            home = {"HOME": str(folder), "KUBECONFIG": config}
            yield Served(process, {**os.environ, **home, "XDG_STATE_HOME": str(folder / "state")})
        finally:
            process.kill()


@dataclass(slots=True)
class Run:
    """What was seen of a client; `numbers` are (when, number of the line) of what came last."""

    lines: int = 0
    first: float = 0.0
    last: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    threads: int = 0
    code: int = 0
    numbers: list[tuple[float, int]] = field(default_factory=list)

    def row(self, name: str, *, epoch: float = 0.0, rate: int = 0) -> str:
        span = max(self.last - self.first, 1e-3)
        behind = [at - (epoch + number / rate) for at, number in self.numbers] if rate else []
        lag = f"{statistics.median(behind):7.2f} {behind[-1]:6.2f}" if behind else f"{'':14}"
        return (
            f"{name:34} {self.lines:9,} {self.lines / span:8,.0f} {lag} {self.memory / 1e6:6.0f}"
            f" {self.cpu:6.2f} {self.threads:7}{f'  exit {self.code}' if self.code else ''}"
        )


def watched(processes: Sequence[subprocess.Popen[bytes]], run: Run, done: threading.Event) -> None:
    """Look at the memory and the threads of clients until they are done."""
    several = len(processes) > 1
    while not done.wait(0.5 if several else 0.03):
        memory = threads = 0
        for one in processes:
            folder = Path("/proc", str(one.pid))
            with suppress(OSError, KeyError):
                status = figures(folder / "status")
                shares = figures(folder / "smaps_rollup")["Pss"] if several else status["VmHWM"]
                memory += shares * 1024
                threads += status["Threads"]
        run.memory, run.threads = max(run.memory, memory), max(run.threads, threads)


def figures(path: Path) -> dict[str, int]:
    """The numbers in a file of lines such as `VmHWM: 123 kB`."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()[:1]
        if value and value[0].isdigit():
            found[name] = int(value[0])
    return found


def follow(server: Served, *commands: Sequence[str], into: str | None = None) -> Run:
    """Run commands to their end and read what they write, all into one pipe or a file."""
    run, done = Run(), threading.Event()
    read, write = os.pipe()
    fcntl(write, F_SETPIPE_SZ, PIPE)
    out = os.open(into, os.O_WRONLY) if into else write
    complaints = Path(server.environment["HOME"], "complaints")
    with complaints.open("ab") as told:
        run.first = time.time()
        processes = [
            subprocess.Popen(one, stdout=out, stderr=told, env=server.environment)
            for one in commands
        ]
    os.close(write)
    if into:
        os.close(out)
    looking = threading.Thread(target=watched, args=(processes, run, done))
    looking.start()
    while piece := os.read(read, PIPE):
        now = time.time()
        run.first = now if not run.lines else run.first
        run.lines += piece.count(b"\n")
        run.last = now
        at = piece.rfind(b"step at=", 0, -16)
        if at >= 0:
            run.numbers.append((now, int(piece[at + 8 : at + 16])))
    os.close(read)
    for one in processes:
        _, status, used = os.wait4(one.pid, 0)
        one.returncode = run.code = os.waitstatus_to_exitcode(status)
        run.cpu += used.ru_utime + used.ru_stime
    run.last = run.last or time.time()
    done.set()
    looking.join()
    return run


def live(folder: Path, name: str, *commands: Sequence[str], into: str | None = None, words=()):
    """A row: what clients do with lines while they are written."""
    size = ("--workers", str(WORKERS), "--rate", str(RATE), "--seconds", str(SECONDS), *words)
    with served(folder, *size) as server:
        epoch = float(str(server.say("start")["epoch"]))
        run = follow(server, *commands, into=into)
        rate = RATE * WORKERS if "--tagged" in words else RATE
        told(folder)
        print(run.row(name, epoch=epoch, rate=rate))
        assert not server.say("state")["crashes"]
        return run


def told(folder: Path) -> None:
    """Print what clients wrote to stderr, which should be little."""
    path = folder / "complaints"
    text = path.read_text(errors="replace") if path.exists() else ""
    path.unlink(missing_ok=True)
    for line in text.splitlines()[:6]:
        print(f"    stderr: {line[:160]}")


ALL = WORKERS * RATE * SECONDS


@needs_kubectl
def test_kubectl_follows(tmp_path: Path):
    print(f"\n{WORKERS} workers, {RATE:,} lines/s each, {SECONDS} s\n{HEAD}")
    live(tmp_path, "kubectl logs -f -l --prefix", KUBECTL)
    live(tmp_path, "  with --timestamps", [*KUBECTL, "--timestamps"])
    single = [["kubectl", "logs", "-f", f"{JOB}-worker-{rank}"] for rank in range(WORKERS)]
    live(tmp_path, f"kubectl logs -f POD, {WORKERS} times", *single)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        pytest.param((), (), id="text"),
        pytest.param(("--timestamps",), (), id="timestamps"),
        pytest.param(("--keep=false",), (), id="not kept"),
        pytest.param(("--fold=false",), (), id="not folded"),
        pytest.param(("-o", "json"), (), id="json"),
        pytest.param(("-o", "raw"), (), id="raw"),
        pytest.param(("--only", "worker:0-3"), (), id="four of them"),
        pytest.param(("--include", "at=0000[0-4]"), (), id="include"),
        pytest.param(("--highlight", "loss"), (), id="highlight"),
        pytest.param(("--color", "always"), (), id="coloured"),
        pytest.param((), ("--same",), id="all say the same"),
        pytest.param((), ("--tagged",), id="mpirun says it all"),
        pytest.param((), ("--tls",), id="over TLS"),
    ],
)
def test_arena_topo_follows_all(tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]):
    command = [*FOLLOW, *more]
    name = "arena-topo logs -f --all " + " ".join((*more, *words)).replace("--", "")
    run = live(tmp_path, name[:34], command, words=words)
    if more[:1] not in {("--only",), ("--include",)} and "--same" not in words:
        assert run.lines == ALL


def test_arena_topo_follows_into_nothing(tmp_path: Path):
    live(tmp_path, "arena-topo logs -f --all >/dev/null", FOLLOW, into="/dev/null")


def test_following_one_pod(tmp_path: Path):
    name = f"{JOB}-worker-0"
    live(tmp_path, "arena-topo logs -f -i POD", [*ARENA, "logs", JOB, "-f", "-i", name])
    if shutil.which("kubectl"):
        live(tmp_path, "kubectl logs -f POD", ["kubectl", "logs", "-f", name])


def test_following_what_mpirun_says(tmp_path: Path):
    launcher = f"{JOB}-launcher-x7k2p"
    words = ("--tagged",)
    live(tmp_path, "arena-topo logs -f, mpirun", [*ARENA, "logs", JOB, "-f"], words=words)
    only = [*ARENA, "logs", JOB, "-f", "--only", "rank:0-3"]
    live(tmp_path, "arena-topo logs -f --only rank:0-3", only, words=words)
    if shutil.which("kubectl"):
        command = ["kubectl", "logs", "-f", launcher]
        live(tmp_path, "kubectl logs -f LAUNCHER", command, words=words)


def flood(folder: Path, name: str, command: Sequence[str], *words: str) -> Run:
    """A row: what a client does with lines that are there, as fast as it can."""
    with served(folder, *words) as server:
        server.say("start")
        run = follow(server, command)
        told(folder)
        print(run.row(name))
        assert not server.say("state")["crashes"]
        return run


def test_all_that_was_written_before(tmp_path: Path):
    print(f"\n{WORKERS} workers with {MANY:,} lines each, as fast as can be\n{HEAD}")
    words = ("--workers", str(WORKERS), "--lines", str(MANY))
    total = WORKERS * MANY
    if shutil.which("kubectl"):
        flood(tmp_path, "kubectl logs -f -l --prefix", KUBECTL, *words)
    for more in ((), ("-o", "json"), ("-o", "raw"), ("--only", "worker:0-3")):
        name = f"arena-topo logs -f --all {' '.join(more)}"
        run = flood(tmp_path, name[:34], [*FOLLOW, *more], *words)
        assert run.lines == (MANY * 4 if "--only" in more else total)
    command = [*ARENA, "logs", JOB, "--all"]
    assert flood(tmp_path, "arena-topo logs --all", command, *words).lines == total


def test_one_long_log(tmp_path: Path):
    print(f"\none log of {LONG:,} lines\n{HEAD}")
    words = ("--workers", "2", "--rate", str(RATE), "--lines", str(LONG), "--tagged")
    launcher = f"{JOB}-launcher-x7k2p"
    if shutil.which("kubectl"):
        flood(tmp_path, "kubectl logs", ["kubectl", "logs", launcher], *words)
    for name, more in (("logs", ()), ("logs -o raw", ("-o", "raw")), ("logs -f", ("-f",))):
        run = flood(tmp_path, f"arena-topo {name}", [*ARENA, "logs", JOB, *more], *words)
        assert run.lines == LONG


IDLE = f"{'':34} {'s':>6} {'MB':>6} {'CPU s':>6} {'threads':>7} {'files':>6} {'to go, s':>8}"


def silent(folder: Path, name: str, workers: int, command: Sequence[str], *words: str) -> None:
    """A row: what it takes to follow workers that say nothing, and how long the end takes."""
    with served(folder, "--workers", str(workers), "--rate", "1", *words) as server:
        server.say("start")
        begun = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=server.environment
        )
        until(lambda: int(str(server.say("state")["open"])) >= workers, process)
        joined = time.monotonic() - begun
        time.sleep(3)
        folder = Path("/proc", str(process.pid))
        status, files = figures(folder / "status"), len(list((folder / "fd").iterdir()))
        left = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        print(
            f"{name:34} {joined:6.2f} {status['VmHWM'] * 1024 / 1e6:6.0f}"
            f" {used.ru_utime + used.ru_stime:6.2f} {status['Threads']:7} {files:6}"
            f" {time.monotonic() - left:8.2f}"
        )


def until(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_workers_that_say_nothing(tmp_path: Path):
    print(f"\nworkers that say nothing, after 3 s\n{IDLE}")
    for workers in (64, 256, 512):
        silent(tmp_path, f"arena-topo logs -f --all, {workers}", workers, FOLLOW)
    silent(tmp_path, "  over TLS, 512", 512, FOLLOW, "--tls")
    # It opens five a second: hundreds would take minutes.
    if shutil.which("kubectl"):
        silent(tmp_path, "kubectl logs -f -l, 64", 64, KUBECTL)


WRITER = """
import sys, time
epoch, rate, tick = time.time(), int(sys.argv[1]), 0.02
size = int(rate * tick)
end = b" loss 2.3456 grad_norm 0.9871 lr 3.00e-04 tokens/s 31234 mem 61.2 GB\\n"
print(f"epoch={epoch}", flush=True)
for block in range(int(int(sys.argv[2]) / tick)):
    numbers = range(block * size, (block + 1) * size)
    lines = [b"[1,%d]<stdout>:step at=%08d" % (number % 64, number) + end for number in numbers]
    time.sleep(max(0, epoch + (block + 1) * tick - time.time()))
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
"""
"""A launcher that says what all ranks say, at a pace, and when it began."""


def test_following_on_the_local_engine(tmp_path: Path):
    total = RATE * WORKERS
    print(f"\nthe local engine: a launcher that writes {total:,} lines/s for {SECONDS} s\n{HEAD}")
    program = tmp_path / "writer.py"
    program.write_text(WRITER)
    here = ["--backend", "local", "--emulate", "dgx-1-v100:1"]
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    # With their times the lines are more than is kept unless that is said.
    environment["ARENA_TOPO_LOCAL_LOG_LIMIT"] = "0"
    for number, more in enumerate(((), ("-o", "json"), ("--all",))):
        name = f"train-{number}"
        command = f"{sys.executable} {program} {total} {SECONDS}"
        words = f"submit mpi --name {name} --workers 1 --image none".split()
        subprocess.run(
            [*ARENA, *words, *here, command], env=environment, check=True, capture_output=True
        )
        server = Served(None, environment)
        run = follow(server, [*ARENA, "logs", name, "-f", *here, *more])
        told(tmp_path)
        written = subprocess.run(
            [*ARENA, "logs", name, *here], env=environment, check=True, capture_output=True
        ).stdout
        epoch = float(written[: 1 << 16].partition(b"epoch=")[2].split(b"\n", 1)[0])
        print(run.row(f"arena-topo logs -f {' '.join(more)}", epoch=epoch, rate=total))
