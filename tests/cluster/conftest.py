"""What the end-to-end tests on a real cluster start from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import real
from clusters import REAL, Live, opened

collect_ignore_glob = [] if real.here() else ["test_*.py"]


@pytest.fixture(scope="session")
def admin(tmp_path_factory: pytest.TempPathFactory) -> real.Real:
    """The administrator, in the namespace `default`."""
    assert REAL
    return real.Real(Live(REAL, "default"), tmp_path_factory.mktemp("admin"))


@pytest.fixture(scope="session")
def installed(admin: real.Real) -> Iterator[None]:
    """All that `arena-topo install` prints, applied by the server."""
    printed = admin.arena("install", f"--image={real.IMAGE}")
    assert printed.code == 0, printed.err
    admin.kubectl("apply", "--server-side", "-f", "-", text=printed.out)
    # Parts of the API server hear of policies after about a second.
    admin.until(
        lambda: "ok      gives workers" in admin.arena("check").out, "the policies take effect"
    )
    yield
    # The namespace may take its time: nobody waits for it.
    admin.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", text=printed.out)


@pytest.fixture
def cluster(installed: None, tmp_path: Path) -> Iterator[real.Real]:
    """A namespace of its own on a cluster where everything of arena-topo is installed."""
    del installed
    with opened(tmp_path) as live:
        one = real.Real(live, tmp_path)
        user = json.loads(Path(live.config).read_text())["users"][0]["user"]
        live.config = one.config(token=user["token"])
        with contextlib.closing(one):
            yield one
