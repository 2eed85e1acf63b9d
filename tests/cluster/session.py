"""One run of the tests of clusters: build, start, test, stop."""

from __future__ import annotations

import argparse
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
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
            return 0
        code = _tests(plane, options.pytest)
        for line in plane.ended():
            print(f"error: {line}", file=sys.stderr)
            code = code or 1
        _tell(f"tests ended after {time.monotonic() - began:.0f} s")
    return code


def _tests(plane: controlplane.ControlPlane, words: list[str]) -> int:
    environment = {
        **os.environ,
        "ARENA_TOPO_TEST_KUBECONFIG": str(plane.kubeconfig()),
        "ARENA_TOPO_TEST_KUBELETS": "kwok",
        "ARENA_TOPO_TEST_PROGRAMS": str(plane.programs),
    }
    paths = [] if any(not word.startswith("-") for word in words) else [*SUITE]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cluster", *words]
    command += [str(TESTS / path) for path in paths]
    return subprocess.run(command, cwd=TESTS.parent, env=environment, check=False).returncode


def _tell(line: str) -> None:
    print(f"+ {line}", flush=True)


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt
