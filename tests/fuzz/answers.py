"""Answers of API servers: commands that read and that write, while a proxy spoils the answers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fake_api import Refused, kubeconfig
from fake_resources import RESOURCES

from . import clusters, faults, verdicts
from .sandbox import Input, Outcome, Sandbox
from .targets import Target

TOKEN = "a-token-that-nobody-else-may-see"
BOUND = 20.0
"""Seconds that a command with these limits may take, on a busy machine too."""
LIMITS = ("--request-timeout", "500ms", "--timeout", "1500ms")
GANG = ("--gpus=2", "--workers=2", "--gputopology", "--image=example/train:1")


class _Answers(Target):
    """A cluster with a job, and a proxy before it."""

    world = "cluster"
    lines: Sequence[Sequence[str]]
    log = True

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[None]:
        """Start cluster and proxy, and submit the job `b`."""
        self._sandbox = sandbox
        user = {"token": TOKEN}
        with clusters.opened(self.world) as (world, _):
            api = world.cluster.api
            api.tokens[TOKEN] = "admin"
            direct = kubeconfig(Path("direct").absolute(), api.url, user=user)
            self._world, self._direct = world, direct
            clusters.submitted(sandbox, world, direct, "b")
            world.happens(["say", "b-launcher", "hello"])
            proxy = self._proxy = faults.FaultyProxy(api.url)
            kubeconfig(Path("kubeconfig").absolute(), proxy.url, user=user)
            Path("settings").write_text("one\n", encoding="utf-8")
            try:
                yield
            finally:
                proxy.close()

    def make(self, rng: random.Random) -> Input:
        fault = faults.Fault(
            kind=rng.choice(faults.KINDS),
            at=int(rng.expovariate(0.25)),
            lasting=rng.random() < 0.2,
            seed=rng.randrange(1 << 30),
        )
        line = (*rng.choice(self.lines), "--kubeconfig", "kubeconfig", *LIMITS)
        about = {"kind": fault.kind, "at": fault.at, "lasting": fault.lasting, "seed": fault.seed}
        return Input(line=line, about=json.dumps(about))

    def prepare(self, given: Input) -> None:
        """Let the next requests go wrong."""
        self._proxy.expect(faults.Fault(**json.loads(given.about)))

    def judged(self, given: Input, outcome: Outcome) -> Iterator[verdicts.Finding]:
        """A fault is never slow, never followed elsewhere, and the token is nobody's."""
        strangers, lines = list(self._proxy.strangers), list(self._proxy.lines)
        self._proxy.expect(None)
        yield from super().judged(given, outcome)
        kind = json.loads(given.about)["kind"]
        detail = "\n".join([*lines, outcome.err.decode("utf-8", "replace")])
        said = outcome.out + outcome.err
        checks = {
            "the token is shown": TOKEN.encode() in said,
            "the token goes to another host": any(TOKEN.encode() in one for one in strangers),
            "a redirect is followed": bool(strangers),
            "a login page is shown": b"<html" in said or b"alert(1)" in said,
        }
        for what, wrong in checks.items():
            if wrong:
                yield verdicts.Finding(kind=verdicts.OTHER, what=what, detail=detail)
        if outcome.took > BOUND and outcome.ended is None:
            what = f"`{given.line[0]}` takes more than {BOUND:.0f} s where a server has {kind!r}"
            yield verdicts.Finding(kind=verdicts.HANG, what=what, detail=detail)


class Reads(_Answers):
    """Commands that look."""

    name = "reads"
    share = 2
    few = 12
    lines = (
        *(("list",), ("list", "-o", "json"), ("get", "b"), ("get", "b", "-o", "json", "--events")),
        *(("why", "b"), ("top", "node", "-d"), ("top", "job", "-A"), ("logs", "b"), ("check",)),
        ("plan", "mpi", "--name=z", *GANG, "x"),
        *(("whoami",), ("nodes", "list"), ("data", "list"), ("wait", "b", "--for", "running")),
        *(("topology", "show"), ("prune", "--since", "0s", "--dry-run"), ("check", "b")),
        ("submit", "mpi", "--name=z", "--image=x", "--dry-run=server", "x"),
        ("install", "--remove"),
    )


class Writes(_Answers):
    """Commands that change something."""

    name = "writes"
    share = 0.5
    few = 4
    lines = (
        ("submit", "mpi", "--name=n", *GANG, "x"),
        ("submit", "mpi", "--name=n", "--gpus=1", "--workers=1", "--image=x/y:1", "sleep 1"),
        ("submit", "mpi", "--name=n", *GANG, "--exists", "ok", "x"),
        ("submit", "mpi", "--name=n", *GANG, "--config-file", "settings:/etc/x", "x"),
        *(("delete", "n"), ("suspend", "n"), ("resume", "n"), ("replan", "n", "-y")),
        ("topology", "publish", "node-3", "--preset", "dgx-1-v100"),
        ("prune", "--since", "0s", "--yes"),
    )

    def prepare(self, given: Input) -> None:
        """Have the job `n` where a command is about one, and none where it makes one."""
        self._proxy.expect(None)
        self._remove()
        if given.line[-len(LIMITS) - 3] == "n":
            clusters.submitted(self._sandbox, self._world, self._direct, "n")
            if given.line[0] == "resume":
                line = ("suspend", "n", "--kubeconfig", self._direct)
                self._sandbox.run(Input(line=line))
                self._world.settle()
        super().prepare(given)

    def judged(self, given: Input, outcome: Outcome) -> Iterator[verdicts.Finding]:
        """A job that is said to be there is there."""
        yield from super().judged(given, outcome)
        api = self._world.cluster.api
        made = api.find("MPIJob", "n") is not None
        detail = outcome.err.decode("utf-8", "replace")
        if given.line[0] == "submit" and outcome.code == 0 and not made:
            what = "`submit` ends well and there is no job"
            yield verdicts.Finding(kind=verdicts.OTHER, what=what, detail=detail)
        if api.find("MPIJob", "b") is None and given.line[0] != "prune":
            what = f"`{given.line[0]}` removes another job"
            yield verdicts.Finding(kind=verdicts.OTHER, what=what, detail=detail)

    def _remove(self) -> None:
        api, end = self._world.cluster.api, time.monotonic() + 30
        while True:
            with api.lock:
                left = [key for key in api.tables["mpijobs.kubeflow.org"] if key[1] != "b"]
                for key in left:
                    with suppress(Refused):
                        api.remove(RESOURCES["mpijobs.kubeflow.org"], *key)
            self._world.settle()
            if not left:
                return
            assert time.monotonic() < end, left


class Claims(Writes):
    """The same on a cluster whose GPUs a DRA driver publishes."""

    name = "claims"
    world = "dra"
