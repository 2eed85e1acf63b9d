"""A fork that becomes the program, as other tests start it, is as good as a process of its own."""

import os
import signal
import subprocess

import program
import pytest

LINES = (
    ["version"],
    ["get", "nobody", "--backend=local"],
    ["plan", "mpi", "--workers=4", "--gpus=1", "--emulate=dgx-1-v100:2", "--backend=local"],
)


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_fork_says_and_returns_what_a_process_does_that_starts_from_nothing(words, tmp_path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ARENA_TOPO_NAMESPACE": "team"}
    line = [*program.LINE, *words]
    wanted = subprocess.run(
        line, env=env, cwd=tmp_path, capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    done = program.run(words, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (wanted.returncode, wanted.stdout)
    assert done.stderr == wanted.stderr


def test_a_fork_heeds_signals_though_its_tests_handle_them():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        words = ["list", "--watch", "--backend=local"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with program.start(words, **pipes) as watches:
            assert watches.stdout.readline()
            watches.terminate()
            watches.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert watches.returncode == 143
