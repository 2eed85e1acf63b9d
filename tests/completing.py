"""Commands that leave names for completion, and what a shell is then offered."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from arena_topo import cli, completion
from arena_topo.completion import names

LOCAL = ["--image=local", "--gpus=2", "--workers=2"]
MPI = ["submit", "mpi", "--image=x", "--gpus=2", "--workers=2"]


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    """No test of who imports it lasts longer: whatever waits for ever is interrupted."""

    def late(*_):
        pytest.fail("it waits for something that does not happen")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(90)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def did(*line):
    assert cli.run(line) == 0, line


def submitted(*some, flags=()):
    for name in some:
        did(*flags, *MPI, f"--name={name}", "sleep 1")


def answer(*words):
    text = completion.answer("bash", list(words), dict(os.environ))
    return dict(one.partition("\t")[::2] for one in text.splitlines()[1:])


def offered(*words):
    return list(answer(*words))


def folder():
    return Path(names.folder(os.environ))


def file_of(kind):
    (found,) = folder().glob(f"*{kind}-*")
    return found


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
