"""A cluster, as a process of its own, in which a job of many workers writes: for `test_log_speed`.

The API server is the fake one; only logs are served from here: built in blocks that all followers
share, and sent at the pace of the writers however slowly anybody reads.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import ssl
import sys
import threading
import time
from calendar import timegm
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).parents[1]))

import fake_http
import fake_logs
from fake_api import FakeApi, rfc3339
from fake_operator import FakeOperator

from arena_topo.job import MPIJob
from arena_topo.manifests import render
from arena_topo.manifests.versions import ApiVersion

JOB = "train"
TLS = Path(__file__).parents[1] / "tls"
TICK = 0.02
"""Seconds between two writes to a connection; what a kubelet writes in one is less still."""

PIECE = 4096
"""Bytes that an API server reads at once of a kubelet's answer, and hands on in one chunk."""

TEXT = b" loss 2.3456 grad_norm 0.9871 lr 3.00e-04 tokens/s 31234 mem 61.2 GB\n"
"""What ends each line, for a hundred characters in all."""


@functools.lru_cache(maxsize=64)
def stamped(block: int, size: int, rate: int, epoch: float) -> list[tuple[bytes, bytes]]:
    """The times, to the microsecond, and the numbers of the lines of a block."""
    found = []
    for number in range(block * size, (block + 1) * size):
        whole, part = divmod(int((epoch + number / rate) * 1e6), 1_000_000)
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
        found.append((f"{text}.{part:06}".encode(), b"%08d" % number))
    return found


class Writers:
    """What all pods of the job write: the n-th line of each at `epoch + n / rate`.

    A pod is known by its rank, the launcher by -1. `rate` and `lines` are those of one pod.
    """

    def __init__(self, asked: argparse.Namespace, api: FakeApi) -> None:
        self.api = api
        self.workers = asked.workers
        self.same = asked.same
        self.tagged = asked.tagged
        self.past = asked.lines > 0
        self.rate = asked.rate * (asked.workers if asked.tagged else 1)
        self.lines = asked.lines or asked.seconds * self.rate
        self.idle = not self.lines
        self.size = max(1, round((self.rate or 1) * TICK))
        self.epoch = time.time() - (self.lines / self.rate if self.past else 0)
        self.begun, self.over = threading.Event(), threading.Event()
        self.open = 0
        self.ended: set[int] = set()
        self.sent = 0
        self.built = {rank: self.whole(rank) for rank in self.speakers()} if self.past else {}

    def speakers(self) -> range:
        """The ranks of the pods that write."""
        return range(-1, 0) if self.tagged else range(self.workers)

    def texts(self, rank: int, numbered: list[tuple[bytes, bytes]], *, stamps: bool) -> list[bytes]:
        """The lines of a block: their time if wanted, who speaks, and their number."""
        zone = b"%03dZ " % (rank + 1)
        if self.tagged:
            return [
                (at + zone if stamps else b"")
                + b"[1,%d]<stdout>:step at=" % (int(number) % self.workers)
                + number
                + TEXT
                for at, number in numbered
            ]
        said = b"step at=" if self.same else b"rank %d step at=" % rank
        if stamps:
            zone += said
            return [at + zone + number + TEXT for at, number in numbered]
        return [said + number + TEXT for _, number in numbered]

    def block(self, rank: int, block: int, *, stamps: bool) -> bytes:
        """A block of lines, each a chunk of its own as it is on its way from a kubelet."""
        lines = self.texts(rank, stamped(block, self.size, self.rate, self.epoch), stamps=stamps)
        head = b"%x\r\n" % len(lines[0])
        if len(lines[0]) == len(lines[-1]) and not self.tagged:
            return head + (b"\r\n" + head).join(lines) + b"\r\n"
        return b"".join([b"%x\r\n%b\r\n" % (len(line), line) for line in lines])

    def whole(self, rank: int) -> tuple[bytes, bytes]:
        """All that was written, without and with times, in chunks of an API server's size."""
        found = []
        for stamps in (False, True):
            lines = []
            for block in range(-(-self.lines // self.size)):
                numbered = stamped(block, self.size, self.rate, self.epoch)
                lines += self.texts(rank, numbered, stamps=stamps)
            raw = memoryview(b"".join(lines[: self.lines]))
            pieces = [raw[at : at + PIECE] for at in range(0, len(raw), PIECE)]
            found.append(b"".join([b"%x\r\n%b\r\n" % (len(one), one) for one in pieces]))
        return found[0], found[1]

    def start(self) -> float:
        """Let all begin to write now; when that is (Unix seconds)."""
        if not self.past:
            self.epoch = time.time()
            if not self.idle:
                threading.Timer(self.lines / self.rate, self.over.set).start()
        self.begun.set()
        return self.epoch

    def end(self, rank: int) -> None:
        """Let a pod be over, and the job with its launcher or with its last worker."""
        name = f"{JOB}-worker-{rank}" if rank >= 0 else f"{JOB}-launcher-x7k2p"
        with self.api.lock:
            self.ended.add(rank)
            if self.api.find("Pod", name)["status"]["phase"] != "Running":
                return
            now = rfc3339(self.api.clock())
            with self.api.edit("Pod", name) as pod:
                pod["status"]["phase"] = "Succeeded"
                state = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
                one = pod["status"]["containerStatuses"][0]
                one |= {"ready": False, "state": {"terminated": state}}
        if rank < 0:
            with self.api.edit("MPIJob", JOB) as job:
                done = {"type": "Succeeded", "status": "True", "lastTransitionTime": now}
                job["status"] |= {"conditions": [done], "completionTime": now}
        elif self.past:
            # Who follows only some of them is to see an end too.
            threading.Timer(1, self.finish).start()

    def finish(self) -> None:
        """Let the launcher end, as soon as nobody reads a worker any more."""
        if self.open <= 1:
            self.over.set()


class Log:
    """What the fake API server answers who asks for a log: what the writers write."""

    def __init__(self, writers: Writers) -> None:
        self.writers = writers

    def serve(
        self, handler: fake_http.Handler, space: str, name: str, query: dict[str, str]
    ) -> None:
        writers = self.writers
        with writers.api.lock:
            writers.api.get("pods", space, name)
        rank = int(name.rpartition("-")[2]) if "-worker-" in name else -1
        writers.open += 1
        try:
            self._wait(rank, query)
            # As of a kubelet, no head of an answer comes before there is a byte to send.
            handler.begin({"Content-Type": "text/plain"})
            self._send(handler.wfile, rank, query)
        finally:
            writers.open -= 1
        handler.chunk(b"")
        if query.get("follow") == "true":
            writers.end(rank)

    def _wait(self, rank: int, query: dict[str, str]) -> None:
        """Return when there is something to send, or never will be."""
        writers = self.writers
        if query.get("follow") == "true":
            if rank not in writers.speakers() or writers.idle:
                writers.over.wait()
            else:
                writers.begun.wait()

    def _send(self, out: BinaryIO, rank: int, query: dict[str, str]) -> None:
        writers = self.writers
        stamps, follow = "timestamps" in query, query.get("follow") == "true"
        since = query.get("sinceTime")
        if rank not in writers.speakers() or writers.idle:
            return
        if writers.past and since is None:
            out.write(writers.built[rank][stamps])
        else:
            block = self._first(writers, since)
            # They write at different times, as real ones do.
            own = TICK * rank / writers.workers
            while block * writers.size < writers.lines:
                due = writers.epoch + (block + 1) * writers.size / writers.rate + own
                if (left := due - time.time()) > 0:
                    if not follow:
                        break
                    time.sleep(left)
                out.write(writers.block(rank, block, stamps=stamps))
                block += 1

    @staticmethod
    def _first(writers: Writers, since: str | None) -> int:
        if since is None:
            return 0
        at = timegm(time.strptime(since.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S"))
        return max(0, int((at - writers.epoch) * writers.rate) // writers.size)


def running(api: FakeApi, workers: int) -> None:
    """A job of so many workers, all of which run."""
    offers = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    status = {"capacity": offers, "allocatable": offers}
    api.add({"kind": "Node", "metadata": {"name": "node-0"}, "status": status})
    job = MPIJob(name=JOB, command="mpirun train", image="train:1", workers=workers, gpus=1)
    plan = render.build_plan(
        job, namespace="default", api=ApiVersion.V2BETA1, owner="alice", files={}, binding=None
    )
    for one in plan.objects:
        api.add(one)
    FakeOperator(api).start(JOB)


def serve() -> None:
    """Serve what is asked for; the words on stdin: start, state, quit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--lines", type=int, default=0, help="of each, written before")
    parser.add_argument("--same", action="store_true", help="all say the same")
    parser.add_argument("--tagged", action="store_true", help="mpirun says it all")
    parser.add_argument("--tls", action="store_true")
    asked = parser.parse_args()
    context = None
    if asked.tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    api = FakeApi(tls=context)
    running(api, asked.workers)
    writers = Writers(asked, api)
    fake_logs.serve = Log(writers).serve

    def answer(**found: Any) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()

    answer(url=api.url)
    for word in sys.stdin:
        match word.strip():
            case "start":
                answer(epoch=writers.start())
            case "state":
                answer(open=writers.open, cpu=time.process_time(), crashes=api.crashes)
            case "quit":
                break
    writers.over.set()
    with contextlib.suppress(OSError):
        api.close()


if __name__ == "__main__":
    serve()
