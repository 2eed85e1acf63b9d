"""What is typed as a name is never made into another path of the API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig

UP = ".."
FAR = "../../../../x"

LINES = {
    "data list": ("data", "list", "-n", UP),
    "list": ("list", "-n", UP),
    "get": ("get", UP),
    "get in": ("get", "a", "-n", UP),
    "logs": ("logs", UP),
    "attach": ("attach", UP),
    "why": ("why", "a", "-n", UP),
    "wait": ("wait", UP),
    "suspend": ("suspend", UP),
    "resume": ("resume", "a", "-n", UP),
    "replan": ("replan", UP),
    "delete": ("delete", UP),
    "prune": ("prune", "-n", UP, "--since", "1h", "--yes"),
    "top job": ("top", "job", UP),
    "top jobs": ("top", "job", "-n", UP),
    "whoami": ("whoami", "--arena-namespace", FAR),
    "nodes topology": ("nodes", "topology", "../namespaces/default"),
    "nodes default": ("nodes", "default", "../namespaces/default", "--force"),
    "check": ("check", "-n", UP),
    "submit": ("submit", "mpi", "--name", "a", "--image", "i", "-n", UP, "true"),
}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi()
    config = kubeconfig(tmp_path / "config", fake.url, user={"username": "admin"})
    monkeypatch.setenv("KUBECONFIG", config)
    yield fake
    fake.close()


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_name_that_is_a_path_is_refused_and_no_server_sees_it(api, arena, line):
    code, out, err = arena(*line)
    assert (code, out) == (2, "")
    creates = line[0] == "submit"
    said = "no namespace can be called" if creates else "is not a name that anything in a cluster"
    assert said in err
    assert not [one for one in api.requests if ".." in one or "%2E" in one.upper()]
