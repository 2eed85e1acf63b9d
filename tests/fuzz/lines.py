"""Command lines: every flag with every hostile value, and lines of random flags."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import mutators
from .sandbox import Input, Sandbox
from .targets import Target, texts

from arena_topo.cli import catalogue  # isort: skip

FILES = {
    "state.json": texts("dumps/two-dgx-1.json")[0],
    "job.yaml": b"name: x\ngpus: 2\ngputopology: true\ncommand: mpirun x\n",
    "fabric.yaml": texts("fabrics/racks.yaml")[0],
    "machine.txt": texts("machines/dgx-1-v100-tabs.txt")[0],
    "nccl.log": texts("nccl/ib-2.10.3.log")[0],
    "kubeconfig": json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k"}}],
            "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        }
    ).encode(),
}
PATHS = (
    *FILES,
    *("nothing-there", "/dev/null", "/", ".", "/etc/hostname", "/proc/self/environ", "/dev/zero"),
    *("", "-", "./x" * 500, "/dev/stdin", "x" * 256, "/proc/self/mem"),
)
VALUES = (
    # What a shell can give: no NUL, and bytes that are no UTF-8 as Python shows them.
    *(one.replace("\ud800", "\udcff\udc80") for one in mutators.TEXTS if "\x00" not in one),
    *("1", "2", "8", "0.5", "1Gi", "10m", "1h30m", "99999999h", "a=b", "a=", "=b", "a", "default"),
    *("node-0", "dgx-1-v100", "dgx-1-v100:2", "dgx-1-v100:99999999", "dgx-a100:3,dgx-1-v100:2"),
    *("/a:/b", "c:/d", "all", "k=v:NoSchedule,Exists", "json", "yaml", "wide", "name", "svg"),
    *("client", "server", "always", "local", "kubernetes", "auto", "v1", "v1alpha1", "v2beta1"),
    *("debug", "spread", "adaptive", "claims", "1e5", "1e-5", "-5", "+5", "0x1F", "1Ki", "1E"),
    *("1e3Mi", "9" * 30, "0." + "0" * 400 + "1", "1" + "0" * 400, "inf", "-inf", "Infinity"),
    *("2262-01-01T00:00:00Z", "http://127.0.0.1:1", "http://[::1", "https://u:p@127.0.0.1:1"),
    *("file:///etc/passwd", "x/y@sha256:" + "0" * 64, "-h", "--help", "a,b,c", "{}", "[]"),
    *("'", '"', "\\", "a b", "a\tb", "mpirun x"),
)
SWITCHES = ("true", "false", "t", "F", "1", "0", "yes", "", "TRUE", "\x1b")
WORDS = (
    *("b", "a/b", "mpijob/b", "mpijob.kubeflow.org/b", "mpirun -np 4 python x.py", "'unclosed"),
    *("$(reboot)", "x;y", "a\nb", "--", "-", "", "x" * 256, *VALUES[:40]),
)
NO_FLAGS = ("--nope", "-Z", "--gpu", "--gputopolgy", "---", "--=x", "-=", "--\x1b[5;45m", "-é")
SANE = {"--name": "a", "--image": "local", "--gpus": "1", "--workers": "2"}
ENDLESS = {"--watch", "--follow", "-f", "-w", "--refresh", "-r"}
"""Flags with which a command goes on until it is stopped; but -f of a job is its file."""
WAITING = {("attach",), ("wait",), ("controller",)}
PLANNING = {("submit", "mpi"), ("plan", "mpi")}
VARIABLES = (
    *("COLUMNS", "LINES", "TERM", "TZ", "NO_COLOR", "ARENA_TOPO_LOG_ARCHIVE", "ARENA_CONFIG"),
    *(
        "ARENA_TOPO_LOCAL_LOG_LIMIT",
        "ARENA_TOPO_PROFILE",
        "KUBECONFIG",
        "HTTPS_PROXY",
        "HTTP_PROXY",
    ),
    *("ALL_PROXY", "KUBERNETES_SERVICE_HOST", "NODE_NAME", "HOME", "XDG_STATE_HOME"),
    "XDG_CACHE_HOME",
)
HOMES = ("", "/nonexistent", "relative", "/dev/null", "/proc", "/dev/null/x")


class Lines(Target):
    """Command lines and variables."""

    name = "lines"
    share = 50
    few = 120

    @contextmanager
    def opened(self, sandbox: Sandbox) -> Iterator[None]:
        """Look all commands up, and write the files that lines name."""
        del sandbox
        self._commands = [one for one in catalogue.commands() if one.path and not one.commands]
        self._common = [one for one in self._commands if one.path in PLANNING]
        for name, data in FILES.items():
            Path(name).write_bytes(data)
        yield

    def make(self, rng: random.Random) -> Input:
        one = rng.choice(self._commands if rng.random() < 0.6 else self._common)
        line = self._single(rng, one) if rng.random() < 0.5 else self._random(rng, one)
        variables = self._variables(rng, one) if rng.random() < 0.2 else {}
        stdin = rng.choice((b"", b"", b"y\n", b"\xff\x00{"))
        return Input(line=line, stdin=stdin, variables=variables)

    def _single(self, rng: random.Random, one: catalogue.Command) -> Sequence[str]:
        """A line that makes sense but for one flag."""
        option = rng.choice([option for option in one.options if not ENDLESS & set(option.names)])
        flag = rng.choice([name for name in option.names if name.startswith("--")])
        line = [*one.path, *self._around(one)]
        if one.path in PLANNING:
            line += [f"{name}={said}" for name, said in SANE.items() if name not in option.names]
            line += ["--state=state.json"] * (not {"--state", "--backend"} & set(option.names))
            line += ["--dry-run"] * (one.path[0] == "submit" and "--dry-run" not in option.names)
        line.append(f"{flag}={_value(rng, option)}")
        return line + (["mpirun x"] if one.path in PLANNING else ["b"] * bool(one.arguments))

    def _random(self, rng: random.Random, one: catalogue.Command) -> Sequence[str]:
        groups: list[Sequence[str]] = []
        if one.path in PLANNING and rng.random() < 0.8:
            groups += [[f"{name}={said}"] for name, said in SANE.items() if rng.random() < 0.93]
            groups += [["--gputopology"]] * rng.randrange(2)
            where = ("--state=state.json", "--backend=local", "--emulate=dgx-1-v100:2")
            groups.append([rng.choice(where)])
        if one.path[0] == "submit":
            groups.append([rng.choice(("--dry-run", "--dry-run=client", "--dry-run=server"))])
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 5, 9))):
            option = rng.choice(one.options)
            if option.metavar is None and ENDLESS & set(option.names):
                continue
            groups.append(_given(rng, option))
        groups += [[rng.choice(WORDS)] for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        if rng.random() < 0.05:
            groups.append([rng.choice(NO_FLAGS)])
        rng.shuffle(groups)
        line = [*one.path, *(word for group in groups for word in group), *self._around(one)]
        if rng.random() < 0.3:
            line += ["--backend", rng.choice(("local", "kubernetes"))]
        if rng.random() < 0.02:
            rng.shuffle(line)
        return line

    def _around(self, one: catalogue.Command) -> Sequence[str]:
        """What keeps a command within its time and away from a cluster."""
        line = ["--request-timeout", "1s", "--kubeconfig", "kubeconfig"]
        if one.path in WAITING:
            line += ["--timeout", "50ms"]
        if one.path == ("controller",):
            line.append("--once")
        return line

    def _variables(self, rng: random.Random, one: catalogue.Command) -> dict[str, str]:
        chosen = {}
        for _ in range(rng.choice((1, 1, 2))):
            option = rng.choice(one.options)
            if option.variables and not ENDLESS & set(option.names):
                chosen[rng.choice(option.variables)] = _value(rng, option)
        name = rng.choice(VARIABLES)
        homes = name == "HOME" or name.startswith("XDG_")
        chosen[name] = rng.choice(HOMES) if homes else rng.choice(VALUES)
        return {key: said for key, said in chosen.items() if _holds(said)}


def _given(rng: random.Random, option: catalogue.CatalogueOption) -> Sequence[str]:
    name = rng.choice(option.names)
    if option.metavar is None:
        return [name] if rng.random() < 0.6 else [f"{name}={rng.choice(SWITCHES)}"]
    said = _value(rng, option)
    match rng.randrange(10):
        case 0:
            return [name]
        case 1:
            return [name + said]
        case 2 | 3 | 4:
            return [name, said]
        case _:
            return [f"{name}={said}"]


def _value(rng: random.Random, option: catalogue.CatalogueOption) -> str:
    if option.metavar is None:
        return rng.choice(SWITCHES)
    if option.choices and rng.random() < 0.3:
        return rng.choice(option.choices)
    files = any(one in (option.metavar or "") for one in ("FILE", "PATH", "FOLDER"))
    return rng.choice(PATHS if rng.random() < (0.6 if files else 0.05) else VALUES)


def _holds(said: str) -> bool:
    """Whether a variable of a process can have this value."""
    try:
        os.fsencode(said)
    except UnicodeEncodeError:
        return False
    return "\x00" not in said
