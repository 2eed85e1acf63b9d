"""The program as it is typed at a prompt, against every engine with a world around it."""

from __future__ import annotations

import io
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from replacing import replace
from worlds import WORLDS, World

from arena_topo import cli
from arena_topo.manifests import Plan

AGO = 3700
"""Seconds since the first job of a cluster, roughly; those of the local engine are new."""


def relabelled(plan: Plan, labels: Mapping[str, str]) -> Plan:
    """The plan of a job that carries other labels too."""
    mpijob, *others = plan.objects
    meta = {**mpijob["metadata"], "labels": {**mpijob["metadata"]["labels"], **labels}}
    return replace(plan, objects=({**mpijob, "metadata": meta}, *others))


def prepared(words: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command line in this process and this environment, as a process of its own would.

    For what a test only needs around it: a third of the time goes into starting a process.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with (
        mock.patch.dict(os.environ, env, clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = cli.run(words)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(list(words), code, *texts)


@dataclass
class Prompt:
    """A prompt in a world; `flags` are what every command line needs to find it."""

    world: World
    flags: tuple[str, ...]
    capfd: Any

    def __call__(self, *line: str) -> tuple[int, str, str]:
        """Run a command line; (exit code, stdout, stderr)."""
        self.capfd.readouterr()
        code = cli.run([*self.flags, *line])
        return code, *self.capfd.readouterr()

    def applied(self, name: str, **more: Any) -> None:
        """Create a job without the command line."""
        self.world.backend.apply(self.world.plan(self.world.job(name, **more)))

    def finished(self, name: str, code: int = 0, **more: Any) -> None:
        """Create a job, and let it run and end."""
        self.applied(name, **more)
        self.world.start(name)
        self.world.finish(name, code)


@contextmanager
def opened(which: str, folder: Path, capfd: Any) -> Iterator[Prompt]:
    """A prompt in one of the worlds."""
    with WORLDS[which](folder) as world:
        flags = (
            ("--backend=local", "--emulate=dgx-1-v100:2")
            if which == "local"
            else (f"--kubeconfig={folder / 'config'}",)
        )
        if which != "local":
            # Its clock goes on by itself with each job, and must stay in the past.
            world.api.now = time.time() - AGO
        yield Prompt(world, flags, capfd)


@pytest.fixture(params=WORLDS)
def in_each_world(request: pytest.FixtureRequest, tmp_path: Path, capfd: Any) -> Iterator[Prompt]:
    """A prompt in each world."""
    with opened(request.param, tmp_path, capfd) as one:
        yield one


@pytest.fixture(params=[name for name in WORLDS if name != "kubernetes-v1alpha1"])
def where_jobs_wait(request: pytest.FixtureRequest, tmp_path: Path, capfd: Any) -> Iterator[Prompt]:
    """A prompt in each world whose jobs can be suspended."""
    with opened(request.param, tmp_path, capfd) as one:
        yield one


@pytest.fixture
def in_one_world(tmp_path: Path, capfd: Any) -> Iterator[Prompt]:
    """A prompt in one world, for what no engine has a say in."""
    with opened("kubernetes-v2beta1", tmp_path, capfd) as one:
        yield one
