"""Lists, watches and writes of the fake API server, which a real one must pass as well."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from clusters import Live
from fake_api import FakeApi, kubeconfig
from fake_resources import Refused
from wire_objects import config_map, gated, made, mpijob, names, pod

real_too = pytest.mark.cluster


def named(live: Live, prefix: str = "c") -> list[str]:
    """The ConfigMaps of the test, without those that every namespace has."""
    found = names(live.call("GET", live.path("configmaps")).body)
    return [one for one in found if one.startswith(prefix)]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()
    assert not fake.crashes, fake.crashes[0]


@pytest.fixture
def client(api: FakeApi, tmp_path) -> Live:
    return Live(kubeconfig(tmp_path / "c", api.url, user={"username": "alice"}), "default", api)


# Revisions, lists and pages.


@real_too
def test_a_list_at_an_exact_revision_is_the_state_at_that_revision(live: Live):
    made(live, config_map("c-a"))
    before = made(live, config_map("c-b", k="old"))["metadata"]["resourceVersion"]
    live.call("PATCH", live.path("configmaps", "c-b"), {"data": {"k": "new"}}, kind="merge")
    live.call("DELETE", live.path("configmaps", "c-a"))
    made(live, config_map("c-c"))
    exact = {"resourceVersion": before, "resourceVersionMatch": "Exact"}
    then = live.call("GET", live.path("configmaps"), **exact)
    assert then.body["metadata"]["resourceVersion"] == before
    data = {one["metadata"]["name"]: one.get("data") for one in then.body["items"]}
    assert data["c-b"] == {"k": "old"}
    assert "c-a" in data
    assert "c-c" not in data
    assert named(live) == ["c-b", "c-c"]


@real_too
def test_pages_go_on_at_the_revision_of_the_first(live: Live):
    for index in range(5):
        made(live, config_map(f"c{index}"))
    chosen = {"labelSelector": "!istio.io/config"}
    first = live.call("GET", live.path("configmaps"), limit="2", **chosen)
    live.call("DELETE", live.path("configmaps", "c3"))
    made(live, config_map("c9"))
    found, page = names(first.body), first.body
    while token := page["metadata"].get("continue"):
        page = live.call(
            "GET", live.path("configmaps"), limit="2", **chosen, **{"continue": token}
        ).body
        assert page["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]
        found += names(page)
    assert [one for one in found if one.startswith("c")] == ["c0", "c1", "c2", "c3", "c4"]


@real_too
@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        (
            {"resourceVersionMatch": "Exact"},
            422,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            422,
            'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        (
            {"resourceVersionMatch": "Exact", "resourceVersion": "1", "continue": "TOKEN"},
            422,
            "resourceVersionMatch is forbidden when continue is provided",
        ),
        (
            {"resourceVersion": "1", "continue": "TOKEN"},
            400,
            "specifying resource version is not allowed when using continue",
        ),
    ],
)
def test_list_options_that_exclude_each_other_are_refused(
    live: Live, query: dict[str, str], status: int, said: str
):
    for index in range(2):
        made(live, config_map(f"c{index}"))
    if "continue" in query:
        first = live.call("GET", live.path("configmaps"), limit="1")
        query = {**query, "continue": first.body["metadata"]["continue"]}
    answer = live.call("GET", live.path("configmaps"), **query)
    assert answer.status == status
    assert said in answer.said


@real_too
def test_a_limit_is_ignored_by_reads_from_the_cache(live: Live):
    for index in range(3):
        made(live, config_map(f"c{index}"))
    live.until(
        lambda: "c2" in names(live.call("GET", live.path("configmaps"), resourceVersion="0").body),
        "the cache sees what was written",
    )
    answer = live.call("GET", live.path("configmaps"), limit="1", resourceVersion="0").body
    assert {"c0", "c1", "c2"} <= set(names(answer))
    assert "continue" not in answer["metadata"]


def test_revisions_that_are_compacted_are_gone(api: FakeApi, client: Live):
    revision = made(client, config_map("c0"))["metadata"]["resourceVersion"]
    made(client, config_map("c1"))
    first = client.call("GET", client.path("configmaps"), limit="1")
    api.compact()
    exact = {"resourceVersion": revision, "resourceVersionMatch": "Exact"}
    gone = client.call("GET", client.path("configmaps"), **exact)
    assert (gone.status, gone.body["reason"]) == (410, "Expired")
    assert gone.said == "The resourceVersion for the provided list is too old."
    token = first.body["metadata"]["continue"]
    stale = client.call("GET", client.path("configmaps"), limit="1", **{"continue": token})
    assert stale.status == 410
    assert stale.said.startswith("The provided continue parameter is too old to display a")
    # The token of the refusal goes on, with what there is now.
    again = stale.body["metadata"]["continue"]
    rest = client.call("GET", client.path("configmaps"), limit="9", **{"continue": again})
    assert names(rest.body) == ["c1"]


def test_a_revision_that_has_yet_to_come_is_a_timeout(client: Live):
    answer = client.call("GET", client.path("configmaps"), resourceVersion="9999999")
    assert (answer.status, answer.body["reason"]) == (504, "Timeout")
    assert "Too large resource version: 9999999, current: 10" in answer.said


@real_too
def test_items_of_built_in_lists_have_no_kind_and_those_of_crds_do(live: Live):
    made(live, config_map("c0"))
    made(live, mpijob("j"), group="kubeflow.org/v2beta1")
    one = live.call("GET", live.path("configmaps")).body
    assert (one["kind"], one["apiVersion"]) == ("ConfigMapList", "v1")
    assert "kind" not in one["items"][0]
    jobs = live.call("GET", live.path("mpijobs", group="kubeflow.org/v2beta1")).body
    assert (jobs["kind"], jobs["apiVersion"]) == ("MPIJobList", "kubeflow.org/v2beta1")
    assert jobs["items"][0]["kind"] == "MPIJob"


@real_too
def test_selectors_choose_and_unknown_fields_are_refused(live: Live):
    for name, labels in (("p0", {"a": "1"}), ("p1", {"a": "2", "b": ""})):
        one = gated(name)
        one["metadata"]["labels"] = labels
        made(live, one)
    for label, chosen in (
        ("a=1", ["p0"]),
        ("a!=1", ["p1"]),
        ("a in (1, 2)", ["p0", "p1"]),
        ("a,!b", ["p0"]),
    ):
        answer = live.call("GET", live.path("pods"), labelSelector=label)
        assert names(answer.body) == chosen, label
    field = live.call("GET", live.path("pods"), fieldSelector="spec.nodeName=,metadata.name!=p0")
    assert names(field.body) == ["p1"]
    other = live.call("GET", live.path("pods"), fieldSelector="spec.hostname=a")
    assert (other.status, "field label not supported" in other.said) == (400, True)


def test_every_answer_carries_the_date_of_the_servers_clock(api: FakeApi, client: Live):
    api.now = 1_800_000_000.0
    for skew in (0.0, 5.0, -5.0):
        api.skew = skew
        for path in ("/version", client.path("configmaps"), client.path("configmaps", "none")):
            date = client.call("GET", path).headers["date"]
            assert parsedate_to_datetime(date).timestamp() == 1_800_000_000 + skew
    one = made(client, config_map("c0"))
    assert one["metadata"]["creationTimestamp"] == "2027-01-15T07:59:55Z"


# Watches.


@real_too
def test_a_watch_tells_what_was_written_after_a_revision(live: Live):
    first = made(live, config_map("c0"))["metadata"]["resourceVersion"]
    made(live, config_map("c1"))
    live.call("PATCH", live.path("configmaps", "c1"), {"data": {"a": "b"}}, kind="merge")
    live.call("DELETE", live.path("configmaps", "c1"))
    seen = [
        (one["type"], one["object"]["metadata"]["name"])
        for one in live.watch(live.path("configmaps"), resourceVersion=first, timeoutSeconds="1")
    ]
    assert [one for one in seen if one[1] == "c1"] == [
        ("ADDED", "c1"),
        ("MODIFIED", "c1"),
        ("DELETED", "c1"),
    ]


@real_too
def test_a_watch_without_a_revision_begins_with_what_there_is(live: Live):
    made(live, config_map("c0"))
    seen = list(live.watch(live.path("configmaps"), timeoutSeconds="1"))
    assert ("ADDED", "c0") in [(one["type"], one["object"]["metadata"]["name"]) for one in seen]


@real_too
def test_a_selector_turns_changes_into_comings_and_goings(live: Live):
    one = config_map("c0")
    start = made(live, one)["metadata"]["resourceVersion"]
    for labels in ({"a": "1"}, {"a": "1", "b": "2"}, {"a": None}):
        change = {"metadata": {"labels": labels}}
        live.call("PATCH", live.path("configmaps", "c0"), change, kind="merge")
    seen = live.watch(
        live.path("configmaps"), resourceVersion=start, timeoutSeconds="1", labelSelector="a=1"
    )
    assert [one["type"] for one in seen] == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watch_hears_at_once_and_ends_when_told(api: FakeApi, client: Live):
    events: list[Any] = []
    path, revision = client.path("configmaps"), str(api.revision)

    def listen() -> None:
        events.extend(client.watch(path, resourceVersion=revision, allowWatchBookmarks="true"))

    thread = threading.Thread(target=listen)
    thread.start()
    while not any("watch=true" in line for line in api.requests):
        time.sleep(0.001)
    api.add(config_map("c0"))
    api.close_watches()
    thread.join()
    assert [one["type"] for one in events] == ["ADDED"]
    ended = list(client.watch(path, timeoutSeconds="0.01", allowWatchBookmarks="true"))
    assert [one["type"] for one in ended] == ["ADDED", "BOOKMARK"]
    assert ended[-1]["object"]["metadata"] == {"resourceVersion": str(api.revision)}


def test_a_watch_from_a_compacted_revision_is_an_error_event(api: FakeApi, client: Live):
    api.add(config_map("c0"))
    api.compact()
    seen = list(client.watch(client.path("configmaps"), resourceVersion="101"))
    assert [one["type"] for one in seen] == ["ERROR"]
    assert seen[0]["object"]["code"] == 410
    assert seen[0]["object"]["message"] == f"too old resource version: 101 ({api.compacted})"


# Writes.


MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


@real_too
def test_a_write_to_a_stale_version_is_a_conflict(live: Live):
    old = made(live, config_map("c0", a="1"))
    path = live.path("configmaps", "c0")
    assert live.call("PATCH", path, {"data": {"a": "2"}}, kind="merge").status == 200
    put = live.call("PUT", path, old)
    assert (put.status, put.body["reason"]) == (409, "Conflict")
    assert put.said == f'Operation cannot be fulfilled on configmaps "c0": {MODIFIED}'
    version = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
    assert live.call("PATCH", path, version, kind="merge").status == 409
    # Without a version the last writer wins.
    del old["metadata"]["resourceVersion"]
    assert live.call("PUT", path, old).status == 200
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}
    group = "coordination.k8s.io/v1"
    lease = made(live, lease, group=group)
    path = live.path("leases", "l", group=group)
    live.call("PATCH", path, {"spec": {"holderIdentity": "a"}}, kind="merge")
    put = live.call("PUT", path, lease)
    assert (
        put.said == f'Operation cannot be fulfilled on leases.coordination.k8s.io "l": {MODIFIED}'
    )


@real_too
def test_a_json_patch_whose_test_fails_changes_nothing(live: Live):
    made(live, config_map("c0", a="1"))
    path = live.path("configmaps", "c0")
    steps = [
        {"op": "replace", "path": "/data/a", "value": "2"},
        {"op": "test", "path": "/data/a", "value": "3"},
    ]
    answer = live.call("PATCH", path, steps, kind="json")
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    assert answer.said == "the server rejected our request due to an error in our request"
    assert live.call("GET", path).body["data"] == {"a": "1"}
    steps[1]["value"] = "2"
    assert live.call("PATCH", path, steps, kind="json").body["data"] == {"a": "2"}


@real_too
@pytest.mark.parametrize(
    "step",
    [
        {"op": "remove", "path": "/data/none"},
        {"op": "replace", "path": "/none/deep", "value": "1"},
        {"op": "add", "path": "/none/deep", "value": "1"},
        {"op": "test", "path": "/metadata/annotations/none", "value": "1"},
    ],
)
def test_a_json_patch_of_what_is_not_there_is_refused(live: Live, step: dict[str, Any]):
    made(live, config_map("c0", a="1"))
    answer = live.call("PATCH", live.path("configmaps", "c0"), [step], kind="json")
    assert (answer.status, answer.said) == (
        422,
        "the server rejected our request due to an error in our request",
    )


@real_too
def test_a_json_patch_replaces_what_is_not_there_in_what_is(live: Live):
    made(live, config_map("c0", a="1"))
    step = {"op": "replace", "path": "/data/none", "value": "2"}
    answer = live.call("PATCH", live.path("configmaps", "c0"), [step], kind="json")
    assert (answer.status, answer.body["data"]) == (200, {"a": "1", "none": "2"})


@real_too
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_whole_object_is_not_taken_for_a_patch(live: Live, method: str):
    made(live, config_map("c0"))
    path = live.path("configmaps", "c0" if method == "PUT" else "")
    answer = live.call(method, path, config_map("c0"), kind="merge")
    assert (answer.status, answer.body["reason"]) == (415, "UnsupportedMediaType")
    assert answer.said == (
        "the body of the request was in an unknown format - accepted media types include:"
        " application/json, application/yaml, application/vnd.kubernetes.protobuf"
    )


@real_too
def test_a_job_that_says_nothing_gets_what_its_definition_says(live: Live):
    group = "kubeflow.org/v2beta1"
    body = mpijob("j")
    del body["spec"]["runPolicy"]["suspend"]
    body["spec"]["runPolicy"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    spec = made(live, body, group=group)["spec"]
    assert {key: spec[key] for key in spec if key not in {"runPolicy", "mpiReplicaSpecs"}} == {
        "launcherCreationPolicy": "AtStartup",
        "mpiImplementation": "OpenMPI",
        "runLauncherAsWorker": False,
        "slotsPerWorker": 1,
        "sshAuthMountPath": "/root/.ssh",
    }
    assert spec["runPolicy"]["suspend"] is False


@real_too
def test_a_launcher_keeps_its_labels_when_its_job_is_resumed_with_others(live: Live):
    group = "kubeflow.org/v2beta1"
    body = mpijob("j")
    template = body["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
    template["metadata"] = {"labels": {"a": "1", "b": "1"}, "annotations": {"c": "1"}}
    made(live, body, group=group)
    path = live.path("jobs", "j-launcher", group="batch/v1")
    live.until(lambda: live.call("GET", path).status == 200, "the launcher is there")
    changed = {"metadata": {"labels": {"a": None, "b": "2"}, "annotations": {"c": None}}}
    specs = {"Launcher": {"template": changed}}
    resumed = {"spec": {"runPolicy": {"suspend": False}, "mpiReplicaSpecs": specs}}
    live.call("PATCH", live.path("mpijobs", "j", group=group), resumed, kind="merge")
    live.until(
        lambda: live.call("GET", path).body["spec"]["suspend"] is False, "the launcher is resumed"
    )
    meta = live.call("GET", path).body["spec"]["template"]["metadata"]
    assert {key: meta["labels"][key] for key in "ab"} == {"a": "1", "b": "2"}
    assert meta["annotations"] == {"c": "1"}


@real_too
def test_keys_of_ssh_are_not_taken_without_a_private_one(live: Live):
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    body["type"] = "kubernetes.io/ssh-auth"
    path = live.path("secrets")
    answer = live.call("POST", path, body)
    assert (answer.status, answer.said) == (
        422,
        'Secret "s" is invalid: data[ssh-privatekey]: Required value',
    )
    assert live.call("POST", path, body | {"data": {"ssh-privatekey": "bm8="}}).status == 201


@real_too
def test_a_merge_patch_replaces_lists_and_null_removes(live: Live):
    made(live, gated("p"))
    change = {"metadata": {"annotations": {"a": "1", "b": None}}, "spec": {"schedulingGates": None}}
    answer = live.call("PATCH", live.path("pods", "p"), change, kind="merge")
    assert answer.body["metadata"]["annotations"] == {"a": "1"}
    assert "schedulingGates" not in answer.body["spec"]


@real_too
def test_custom_resources_know_no_strategic_merge(live: Live):
    group = "kubeflow.org/v2beta1"
    made(live, mpijob("j"), group=group)
    path = live.path("mpijobs", "j", group=group)
    answer = live.call("PATCH", path, {"spec": {}}, kind="strategic")
    assert (answer.status, answer.body["reason"]) == (415, "UnsupportedMediaType")


@real_too
def test_a_dry_run_is_checked_and_not_stored(live: Live):
    made(live, config_map("c0", a="1"))
    path = live.path("configmaps")
    assert live.call("POST", path, config_map("c1"), dryRun="All").status == 201
    taken = live.call("POST", path, config_map("c0"), dryRun="All")
    assert (taken.status, taken.said) == (409, 'configmaps "c0" already exists')
    for method, body, kind in (
        ("PATCH", {"data": {"a": "2"}}, "merge"),
        ("PUT", config_map("c0", a="2"), ""),
    ):
        answer = live.call(method, f"{path}/c0", body, kind=kind, dryRun="All")
        assert answer.body["data"] == {"a": "2"}
    assert live.call("DELETE", f"{path}/c0", dryRun="All").status == 200
    assert named(live) == ["c0"]
    assert live.call("GET", f"{path}/c0").body["data"] == {"a": "1"}


@real_too
def test_deletion_minds_its_preconditions(live: Live):
    one = made(live, config_map("c0"))["metadata"]
    path = live.path("configmaps", "c0")
    for wanted, word in (
        ({"uid": "other"}, "UID"),
        ({"resourceVersion": "1"}, "ResourceVersion"),
    ):
        answer = live.call("DELETE", path, {"preconditions": wanted})
        assert answer.status == 409
        assert f"the {word} in the precondition ({next(iter(wanted.values()))})" in answer.said
    kept = {"uid": one["uid"], "resourceVersion": one["resourceVersion"]}
    assert live.call("DELETE", path, {"preconditions": kept}).status == 200


@real_too
def test_what_does_not_change_keeps_its_version_and_the_generation_counts_specs(live: Live):
    group = "kubeflow.org/v2beta1"
    one = made(live, mpijob("j"), group=group)
    path = live.path("mpijobs", "j", group=group)
    assert one["metadata"]["generation"] == 1
    noted = live.call("PATCH", path, {"metadata": {"labels": {"a": "1"}}}, kind="merge").body
    assert noted["metadata"]["generation"] == 1
    again = live.call("PATCH", path, {"metadata": {"labels": {"a": "1"}}}, kind="merge").body
    same = again["metadata"]["resourceVersion"] == noted["metadata"]["resourceVersion"]
    # An operator at work may have written in between.
    assert same or live.fake is None
    run = live.call("PATCH", path, {"spec": {"slotsPerWorker": 3}}, kind="merge").body
    assert run["metadata"]["generation"] == 2


@real_too
def test_the_status_of_a_job_is_written_apart(live: Live):
    group = "kubeflow.org/v2beta1"
    body = {**mpijob("j"), "status": {"startTime": "2026-01-01T00:00:00Z"}}
    assert "startTime" not in made(live, body, group=group).get("status", {})
    path = live.path("mpijobs", "j", group=group)
    change = {"status": {"completionTime": "2026-01-01T00:00:00Z"}, "spec": {"slotsPerWorker": 2}}
    main = live.call("PATCH", path, change, kind="merge").body
    assert "completionTime" not in main.get("status", {})
    change["spec"]["slotsPerWorker"] = 3
    apart = live.call("PATCH", f"{path}/status", change, kind="merge").body
    assert apart["status"]["completionTime"] == "2026-01-01T00:00:00Z"
    assert apart["spec"]["slotsPerWorker"] == 2


@real_too
def test_a_job_is_replaced_only_at_a_version(live: Live):
    group = "kubeflow.org/v2beta1"
    one = made(live, mpijob("j"), group=group)
    del one["metadata"]["resourceVersion"]
    answer = live.call("PUT", live.path("mpijobs", "j", group=group), one)
    assert answer.status == 422
    assert "metadata.resourceVersion: Invalid value:" in answer.said
    assert "must be specified for an update" in answer.said


@real_too
def test_finalizers_hold_an_object_until_they_are_gone(live: Live):
    one = config_map("c0")
    one["metadata"]["finalizers"] = ["example.com/kept"]
    made(live, one)
    path = live.path("configmaps", "c0")
    live.call("DELETE", path)
    assert "deletionTimestamp" in live.call("GET", path).body["metadata"]
    live.call("PATCH", path, {"metadata": {"finalizers": None}}, kind="merge")
    assert live.call("GET", path).status == 404


def test_what_an_object_owns_goes_with_it_first_where_asked(api: FakeApi, client: Live):
    api.graceful = True
    one = made(client, config_map("c0"))
    owner = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "c0",
        "uid": one["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }
    owned = pod("p", nodeName="n")
    owned["metadata"]["ownerReferences"] = [owner]
    made(client, owned)
    path = client.path("configmaps", "c0")
    client.call("DELETE", path, {"propagationPolicy": "Foreground"})
    assert client.call("GET", path).body["metadata"]["finalizers"] == ["foregroundDeletion"]
    client.call("DELETE", client.path("pods", "p"), {"gracePeriodSeconds": 0})
    assert client.call("GET", path).status == 404


@real_too
def test_pods_on_a_node_stay_until_their_kubelet_confirms_and_others_go_at_once(live: Live):
    if live.living is not None:
        live.living.kubelets = False
    made(live, pod("bound", nodeName="no-such-machine"))
    made(live, gated("waiting"))
    for name in ("bound", "waiting"):
        live.call("DELETE", live.path("pods", name))
    assert live.call("GET", live.path("pods", "waiting")).status == 404
    left = live.call("GET", live.path("pods", "bound"))
    # A real one's pod collector may have come first.
    assert left.status == 404 or "deletionTimestamp" in left.body["metadata"]
    live.call("DELETE", live.path("pods", "bound"), {"gracePeriodSeconds": 0})
    assert live.call("GET", live.path("pods", "bound")).status == 404


# Hooks.


def test_hooks_run_before_and_after_a_request_and_its_faults(api: FakeApi, client: Live):
    seen = []
    api.before("POST", lambda: seen.append(named(client)))
    api.after("POST", lambda: seen.append(named(client)))
    made(client, config_map("c0"))
    made(client, config_map("c1"))
    assert seen == [[], ["c0"]]


def test_a_mistake_of_the_fake_is_an_answer_and_is_kept(api: FakeApi, client: Live):
    api.before("GET", lambda: json.loads("no"))
    answer = client.call("GET", client.path("configmaps"))
    assert answer.status == 500
    assert "JSONDecodeError" in answer.said
    assert api.crashes.pop()


def test_an_edit_is_a_revision_that_no_rule_refuses(api: FakeApi):
    api.add(pod("p", nodeName="n"))
    before = api.revision
    with api.edit("Pod", "p") as one:
        one["spec"]["nodeName"] = "m"
    assert api.revision == before + 1
    assert api.get("pods", "default", "p")["spec"]["nodeName"] == "m"
    with pytest.raises(Refused, match='pods "q" not found'), api.edit("Pod", "q"):
        pass
