"""One run of the tests of clusters: build, start, test, stop."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import binaries
import controlplane

TESTS = Path(__file__).parents[1]
SUITE = (
    "test_on_a_cluster.py",
    "test_server_dry_run.py",
    "test_fake_api.py",
    "test_fake_pods.py",
    "test_proxy.py",
    "test_clusters.py",
    "cluster",
)
"""Everything with a test that a real cluster must pass."""


LOOK = 0.5
"""Seconds between two looks at whether all components run."""


def main(words: list[str]) -> int:
    """Build, start a control plane, run the tests on it, and stop it again."""
    options = _options(words)
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _interrupted)
    if lacking := binaries.missing():
        print(f"NOT RUN: the test cluster needs {' and '.join(lacking)}", file=sys.stderr)
        return 3
    try:
        programs = binaries.build(_tell)
        if options.build:
            return 0
        return _on_a_cluster(programs, options)
    except (binaries.CannotBuild, controlplane.DidNotStart) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/cluster/run", description=__doc__)
    parser.add_argument("--build", action="store_true", help="build what is missing, and no more")
    parser.add_argument(
        "--operator",
        type=lambda name: Path(name).resolve(),
        metavar="BINARY",
        help="a real MPI operator (v2beta1) in place of the simulated one",
    )
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="where to leave the logs of the components"
    )
    parser.add_argument(
        "--serve", action="store_true", help="run no tests: say how to reach it, until Ctrl-C"
    )
    parser.add_argument("pytest", nargs="*", help="words for pytest, after `--`")
    return parser.parse_args(words)


def _on_a_cluster(programs: Path, options: argparse.Namespace) -> int:
    began = time.monotonic()
    with controlplane.started(programs, operator=options.operator, logs=options.logs) as plane:
        _tell(f"Kubernetes is up after {time.monotonic() - began:.1f} s at {plane.url}")
        if options.serve:
            print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                while not _reported(plane):
                    time.sleep(LOOK)
                return 1
            return 0
        code = _tests(plane, options.pytest)
        _tell(f"tests ended after {time.monotonic() - began:.0f} s")
    return code


def _tests(plane: controlplane.ControlPlane, words: list[str]) -> int:
    environment = {
        **os.environ,
        "ARENA_TOPO_TEST_KUBECONFIG": str(plane.kubeconfig()),
        "ARENA_TOPO_TEST_KUBELETS": "kwok",
        "ARENA_TOPO_TEST_PROGRAMS": str(plane.programs),
        "ARENA_TOPO_TEST_FOLDER": str(plane.folder),
    }
    paths = [] if any(not word.startswith("-") for word in words) else [*SUITE]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cluster", *words]
    command += [str(TESTS / path) for path in paths]
    return tested(plane, command, environment)


def tested(
    plane: controlplane.ControlPlane, command: list[str], environment: dict[str, str]
) -> int:
    """Run a command on a control plane; its code, or 1 as soon as a component has ended."""
    tests = subprocess.Popen(command, cwd=TESTS.parent, env=environment or None)
    try:
        while tests.poll() is None and not plane.ended():
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(LOOK)
        if _reported(plane):
            # As Ctrl-C: the tests end what they have started.
            tests.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(controlplane.STOPS)
            return 1
        return tests.returncode
    finally:
        tests.kill()
        tests.wait()


def _reported(plane: controlplane.ControlPlane) -> bool:
    """Whether a component has ended by itself; its exit code and last words are an error then."""
    ended = plane.ended()
    for line in ended:
        print(f"error: {line}", file=sys.stderr)
    return bool(ended)


def _tell(line: str) -> None:
    print(f"+ {line}", flush=True)


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt
