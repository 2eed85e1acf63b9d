"""Pages of the documentation whose screens a real cluster has to show."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import doc_worlds
import pytest
import real
from clusters import Live

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import compare  # noqa: E402
import screens  # noqa: E402

pytestmark = pytest.mark.cluster

STARTING = re.compile("PENDING: .* pods? (is|are) starting")
QUIET = 1.0
"""Seconds without a change after which nothing more is expected to happen."""


class World(doc_worlds.World):
    """The world of a page on the real cluster, in the namespace `default`."""

    def __init__(self, cluster: real.Real) -> None:
        super().__init__()
        self.real = cluster

    def settle(self) -> None:
        """Wait until jobs and pods have not changed for a while."""
        before, since = None, time.monotonic()
        while time.monotonic() - since < QUIET:
            paths = (self.real.live.path("mpijobs", group=real.JOBS), self.real.live.path("pods"))
            now = [
                one["metadata"]["resourceVersion"]
                for path in paths
                for one in self.real.called("GET", path)["items"]
            ]
            if now != before:
                before, since = now, time.monotonic()
            time.sleep(0.1)


@pytest.mark.usefixtures("installed")
def test_the_readme_shows_what_a_real_cluster_does(
    admin: real.Real, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def opened(name: str, home: Path) -> Iterator[World]:
        assert name == "cluster"
        cluster = real.Real(Live(admin.live.config, "default"), home)
        cluster.machines(len(doc_worlds.NODES))
        config = home / ".kube" / "config"
        config.parent.mkdir()
        config.write_text(json.dumps(json.loads(Path(admin.live.config).read_text())))
        try:
            yield World(cluster)
        finally:
            cluster.close()

    def same(shown: list[str], seen: list[str], changes: list[str]) -> bool:
        # A page does not show pods that are on their way; how many are depends on the machine.
        settled = [
            line for line in seen if not re.search("PENDING: .* pods? (is|are) starting", line)
        ]
        return compare.same(shown, settled, changes)

    monkeypatch.setattr(screens, "same", same)
    monkeypatch.setattr(doc_worlds, "opened", opened)
    assert [str(one) for one in screens.check(ROOT / "README.md")] == []
