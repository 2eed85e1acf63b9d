"""Values that many tests start from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import clusters
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that a real cluster must pass as well."""
    config.addinivalue_line(
        "markers",
        f"cluster(needs): runs against the fake cluster, and against the real one that"
        f" {clusters.VARIABLE} names; `needs` says what the fake one does not have",
    )


@pytest.fixture
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[clusters.Live]:
    """The cluster of a test with the marker `cluster`: a real one where there is one."""
    marker = request.node.get_closest_marker("cluster")
    assert marker is not None, "who uses `live` says so with the marker `cluster`"
    needs = marker.kwargs.get("needs")
    if needs and not clusters.REAL:
        pytest.skip(f"{clusters.VARIABLE} names no cluster, and the fake one has no {needs}")
    with clusters.opened(tmp_path) as one:
        yield one


@pytest.fixture(autouse=True)
def _nobodys_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """No test sees the kubeconfig, the state or the settings of whoever runs it."""
    home = tmp_path_factory.mktemp("home")
    for name in list(os.environ):
        if name.startswith(("ARENA_", "KUBE", "XDG_", "LC_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LANG", "C.UTF-8")
