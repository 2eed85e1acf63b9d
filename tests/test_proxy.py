"""The proxy of the tests: each trouble reaches the client as a real one would."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import clusters
import pytest
from clusters import Live
from proxy import Proxy
from wire_objects import config_map, made, names

pytestmark = pytest.mark.cluster

BROKEN = (ConnectionError, HTTPException)


@pytest.fixture
def proxy(live: Live) -> Iterator[Proxy]:
    one = Proxy(live.config)
    yield one
    one.close()


@pytest.fixture
def client(live: Live, proxy: Proxy, tmp_path: Path) -> Live:
    """Who goes through the proxy, without credentials."""
    return Live(proxy.kubeconfig(tmp_path / "proxied", live.namespace), live.namespace)


def test_what_goes_through_is_what_the_server_says(live: Live, client: Live, proxy: Proxy):
    made(client, config_map("c0", a="b"))
    path = client.path("configmaps", "c0")
    assert client.call("GET", path).body == live.call("GET", path).body
    assert client.call("GET", client.path("configmaps", "none")).status == 404
    change = client.call("PATCH", path, {"data": {"a": "c"}}, kind="merge")
    assert (change.body["data"], "date" in change.headers) == ({"a": "c"}, True)
    assert proxy.requests[1] == f"GET {path}"


def test_answers_are_late_or_errors_as_often_as_asked(client: Live, proxy: Proxy):
    path = client.path("configmaps")
    proxy.fail("GET", 429, retry_after=7)
    proxy.fail("GET", 500, times=2)
    proxy.slow("GET", 0.01)
    found = [client.call("GET", path) for _ in range(5)]
    assert [one.status for one in found] == [429, 500, 500, 200, 200]
    assert found[0].headers["retry-after"] == "7"


def test_a_list_breaks_off_in_its_middle(client: Live, proxy: Proxy):
    made(client, config_map("c0"))
    proxy.cut("GET", 40)
    with pytest.raises(BROKEN):
        client.call("GET", client.path("configmaps"))
    assert "c0" in names(client.call("GET", client.path("configmaps")).body)


def test_pages_expire_and_writes_collide(client: Live, proxy: Proxy):
    for index in range(3):
        made(client, config_map(f"c{index}"))
    path = client.path("configmaps")
    token = client.call("GET", path, limit="1").body["metadata"]["continue"]
    proxy.expire()
    gone = client.call("GET", path, limit="1", **{"continue": token})
    assert (gone.status, gone.body["reason"]) == (410, "Expired")
    proxy.conflicts("PATCH", 2)
    change = {"data": {"a": "1"}}
    answers = [client.call("PATCH", f"{path}/c0", change, kind="merge") for _ in range(3)]
    assert [one.status for one in answers] == [409, 409, 200]
    assert "the object has been modified" in answers[0].said


def test_a_watch_ends_early(client: Live, proxy: Proxy):
    if clusters.REAL:
        own = client.path("configmaps", "kube-root-ca.crt")
        client.until(lambda: client.call("GET", own).status == 200, "the namespace has its own")
    first = made(client, config_map("c0"))["metadata"]["resourceVersion"]
    for index in range(1, 4):
        made(client, config_map(f"c{index}"))
    path = client.path("configmaps")
    proxy.end_watch(after=2)
    seen = list(client.watch(path, resourceVersion=first))
    assert [one["object"]["metadata"]["name"] for one in seen] == ["c1", "c2"]
    rest = list(client.watch(path, resourceVersion=first, timeoutSeconds="1"))
    assert len(rest) == 3


def test_what_a_client_asked_for_last_is_done_though_it_never_hears_of_it(
    live: Live, client: Live, proxy: Proxy
):
    killed = []
    proxy.after(2, lambda: killed.append(True), match="POST")
    made(client, config_map("c0"))
    assert not killed
    with pytest.raises(BROKEN):
        made(client, config_map("c1"))
    assert killed
    assert live.call("GET", live.path("configmaps", "c1")).status == 200
    proxy.reset("POST")
    with pytest.raises(BROKEN):
        made(client, config_map("c2"))
    assert live.call("GET", live.path("configmaps", "c2")).status == 404
