"""The real control plane of `tests/cluster/run`, as far as it can be looked at without one."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "cluster"


def test_where_something_is_missing_one_line_says_what_and_nothing_is_built(tmp_path: Path):
    nothing = tmp_path / "bin"
    nothing.mkdir()
    done = subprocess.run(
        [sys.executable, str(HERE / "run"), "--build"],
        env={"PATH": str(nothing), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "NOT RUN: the test cluster needs go and etcd and openssl and setpriv\n"
    assert list(tmp_path.iterdir()) == [nothing]


def test_a_component_that_ends_at_its_start_ends_the_run_at_once_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(str(HERE))
    session = importlib.import_module("session")
    plane = importlib.import_module("controlplane").ControlPlane(tmp_path, tmp_path)
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / "operator").open("wb") as log:
        refuses = "echo 'unknown flag: --lock-namespace'; exit 2"
        plane.running["operator"] = subprocess.Popen(["sh", "-c", refuses], stdout=log)
    tests = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert session.tested(plane, tests, {}) == 1
    said = "error: operator ended with 2:\nunknown flag: --lock-namespace\n"
    assert said in capfd.readouterr().err
    plane.running.clear()
    assert session.tested(plane, [sys.executable, "-c", "raise SystemExit(5)"], {}) == 5


def test_all_modules_of_kubernetes_are_of_one_release():
    text = (HERE / "controlplane" / "go.mod").read_text()
    [release] = re.findall(r"k8s\.io/kubernetes v1\.(\d+\.\d+)$", text, re.MULTILINE)
    staging = re.findall(r"^\tk8s\.io/(\S+) => k8s\.io/(\S+) v0\.(\S+)$", text, re.MULTILINE)
    assert len(staging) >= 25
    assert {(name, version) for name, _, version in staging} == {
        (name, release) for _, name, _ in staging
    }


def test_the_definition_of_jobs_is_as_strict_as_the_recorded_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(HERE))
    definitions = importlib.import_module("definitions")
    [version] = definitions.mpijob()["spec"]["versions"]
    made = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    recorded = json.loads((HERE.parent / "schemas" / "mpijob.v2beta1.json").read_text())["MPIJob"]
    assert set(made["properties"]) == {key.rstrip("!") for key in recorded["spec"]}
    assert made["required"] == ["mpiReplicaSpecs"]
    assert "x-kubernetes-preserve-unknown-fields" not in made
