"""Gangs on a real cluster: bindings, the queue, machines that fail, and many submitters."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real import JOBS, Real, words

from arena_topo.manifests import MAP, STATE, TRIES_ANNOTATION
from arena_topo.manifests.annotations import parse_map

pytestmark = pytest.mark.cluster

SUBMITTING = Path(__file__).parents[1] / "submitting.py"


def test_a_gang_bound_by_admission_runs_exactly_where_it_was_planned(cluster: Real):
    cluster.machines(2)
    done = cluster.arena(*words("gang", 8, 2))
    assert done.code == 0, done.err
    assert "by an admission policy" in done.err
    cluster.until(lambda: cluster.exact("gang"), "all workers run where they were planned")
    uid = cluster.pods()["gang-worker-3"]["metadata"]["uid"]
    cluster.called("DELETE", cluster.live.path("pods", "gang-worker-3"))
    cluster.until(
        lambda: cluster.exact("gang") and cluster.pods()["gang-worker-3"]["metadata"]["uid"] != uid,
        "the worker that was created again is where the other one was",
    )


def test_a_job_ends_as_its_launcher_does_and_its_workers_go(cluster: Real):
    cluster.machines(1)
    assert cluster.arena(*words("good", 2, 1)).code == 0
    cluster.until(lambda: cluster.exact("good"), "the workers run")
    cluster.tell(cluster.launcher("good"), "exit", "0")
    done = cluster.arena("wait", "good", "--timeout=30s")
    assert done.code == 0, done.err
    cluster.until(lambda: not cluster.bound("good"), "the workers are gone")
    assert "SUCCEEDED" in cluster.arena("get", "good").out


def test_a_job_lasts_as_long_as_its_launcher_says(cluster: Real):
    cluster.machines(1)
    lasts = "--annotation=test.arena-topo.io/lasts=1s"
    assert cluster.arena(*words("short", 1, 1, lasts)).code == 0
    done = cluster.arena("wait", "short", "--timeout=30s")
    assert done.code == 0, done.err


def test_gangs_that_wait_are_started_in_their_turn(cluster: Real):
    cluster.machines(1)
    assert cluster.arena(*words("first", 1, 8)).code == 0
    for name in ("second", "third"):
        done = cluster.arena(*words(name, 2, 4))
        assert done.code == 0, done.err
        assert not cluster.planned(name)
    with cluster.controller():
        cluster.arena("delete", "first")
        cluster.until(lambda: cluster.exact("second"), "the older one starts")
        assert not cluster.planned("third")
        cluster.arena("delete", "second")
        cluster.until(lambda: cluster.exact("third"), "the younger one starts after it")


def on(node: str) -> str:
    """The flag that sends a job to a machine."""
    return f"--selector=kubernetes.io/hostname={node}"


def network(cluster: Real) -> str:
    """The flag that gives the speed of the network: without it nobody waits for a machine."""
    path = cluster.home / "fabric.json"
    path.write_text(json.dumps({"levels": [], "beyondGBps": 1.25}))
    return f"--fabric={path}"


def halved(cluster: Real) -> None:
    """Two machines, each with a job on half of it: `a` on node-0, `b` on node-1."""
    cluster.machines(2)
    for name, node in (("a", "node-0"), ("b", "node-1")):
        assert cluster.arena(*words(name, 1, 4, on(node))).code == 0
    cluster.until(lambda: cluster.exact("a") and cluster.exact("b"), "half of each is in use")


def at_work(cluster: Real, log: Path) -> None:
    """Wait until a controller has the Lease."""
    cluster.until(lambda: "is at work" in log.read_text(), "the controller is at work")


def test_a_patient_gang_waits_for_one_machine_and_the_end_of_its_patience(cluster: Real):
    halved(cluster)
    tcp = network(cluster)
    with cluster.controller(tcp) as log:
        at_work(cluster, log)
        for name, hours in (("brief", "12s"), ("long", "24h")):
            done = cluster.arena(*words(name, 8, 1, tcp, f"--patience={hours}"))
            assert done.code == 0, done.err
            assert not cluster.planned(name)
            if name == "brief":
                said = json.loads(cluster.arena("get", "brief", "-o=json").out)
                assert said["waitsFor"]["place"] == "one node"
                assert said["until"] == pytest.approx(time.time() + 12, abs=60)
        cluster.until(lambda: cluster.exact("brief"), "its patience has ended")
        assert set(cluster.bound("brief").values()) == {"node-0", "node-1"}
        cluster.arena("delete", "brief")
        cluster.arena("delete", "a")
        cluster.until(lambda: cluster.exact("long"), "one machine is free")
        assert set(cluster.bound("long").values()) == {"node-0"}


def test_without_a_controller_a_gang_starts_at_once_but_for_submit_wait(cluster: Real):
    halved(cluster)
    tcp = network(cluster)
    done = cluster.arena(*words("now", 8, 1, tcp, "--patience=1h"))
    assert done.code == 0, done.err
    assert "one node" in done.err
    cluster.until(lambda: cluster.exact("now"), "it starts at once")
    assert set(cluster.bound("now").values()) == {"node-0", "node-1"}
    cluster.arena("delete", "now")
    cluster.until(lambda: cluster.gone("now"), "its GPUs are free")
    lasts = "--annotation=test.arena-topo.io/lasts=1s"
    started = time.monotonic()
    done = cluster.arena(*words("stays", 8, 1, tcp, "--patience=6s", "--wait", lasts))
    assert done.code == 0, done.err
    assert "waits for" in done.err
    assert time.monotonic() - started >= 6


def test_priority_comes_before_age_and_a_second_controller_takes_over(cluster: Real):
    cluster.machines(1)
    high = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"high-{cluster.live.namespace}"},
        "value": 10,
    }
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    cluster.called("POST", path, high)
    try:
        assert cluster.arena(*words("first", 1, 8)).code == 0
        cluster.until(lambda: cluster.exact("first"), "the machine is in use")
        assert cluster.arena(*words("old", 1, 8)).code == 0
        urgent = words("urgent", 1, 8, f"--priority={high['metadata']['name']}")
        assert cluster.arena(*urgent).code == 0
        with cluster.controller(name="second") as second:
            with cluster.controller() as log:
                cluster.until(
                    lambda: "is at work" in log.read_text() + second.read_text(),
                    "a controller is at work",
                )
                cluster.arena("delete", "first")
                cluster.until(lambda: cluster.exact("urgent"), "the urgent gang starts")
                assert not cluster.planned("old")
            # One is left; which of them had the Lease does not matter.
            cluster.arena("delete", "urgent")
            cluster.until(lambda: cluster.exact("old"), "the other controller goes on")
    finally:
        cluster.live.call("DELETE", f"{path}/{high['metadata']['name']}")


def test_where_the_leading_controller_is_killed_the_second_starts_the_next_gang(cluster: Real):
    """A controller that is killed leaves its Lease, which the second has to wait for."""
    cluster.machines(1)
    assert cluster.arena(*words("first", 1, 8)).code == 0
    cluster.until(lambda: cluster.exact("first"), "the machine is in use")
    assert cluster.arena(*words("next", 1, 8)).code == 0
    leader, log = cluster.start_controller()
    try:
        at_work(cluster, log)
        with cluster.controller(name="second") as second:
            leader.kill()
            leader.wait()
            assert "this controller is at work" not in second.read_text()
            cluster.arena("delete", "first")
            cluster.until(lambda: cluster.exact("next"), second.read_text)
            assert "this controller is at work" in second.read_text()
    finally:
        leader.kill()
        leader.wait()


def test_who_ends_before_the_first_could_start_passes_it(cluster: Real):
    """Half of a machine is free; the other half is by its --running-timeout in ten minutes."""
    cluster.machines(1)
    assert cluster.arena(*words("runs", 1, 4, "--running-timeout=10m")).code == 0
    cluster.until(lambda: cluster.exact("runs"), "half of the machine is in use")
    assert cluster.arena(*words("head", 1, 8)).code == 0
    for name, limit, passes in (("long", "1h", False), ("short", "2m", True)):
        assert cluster.arena(*words(name, 1, 4, f"--running-timeout={limit}")).code == 0
        assert bool(cluster.planned(name)) is passes
    cluster.until(lambda: cluster.exact("short"), "it runs beside the reservation")
    assert json.loads(cluster.arena("get", "long", "-o=json").out)["reservedBy"].endswith("/head")


def test_reservations_read_the_same_in_plan_submit_and_why(cluster: Real):
    """Half of a machine is free, and reserved for a gang that needs both machines whole."""
    cluster.machines(2)
    for name, gpus in (("large", 8), ("small", 4)):
        assert cluster.arena(*words(name, 1, gpus)).code == 0
        cluster.until(lambda name=name: cluster.exact(name), "the GPUs are in use")
    [half] = set(cluster.bound("small").values())
    assert cluster.arena(*words("head", 2, 8)).code == 0
    first = f"{cluster.live.namespace}/head"
    kept = f"4 GPUs of {half} are reserved for {first}, which comes first in the queue"
    late = ("mpi", "--gpus=2", "--workers=1", "--gputopology", "--gang")
    planned = cluster.arena("plan", *late)
    assert planned.code == 3
    assert f"({half}): reserved for {first}" in " ".join(planned.err.split())
    assert " are free" not in planned.err
    submitted = cluster.arena(*words("late", 1, 2))
    assert submitted.code == 0
    assert kept in " ".join(submitted.err.split())
    why = json.loads(cluster.arena("why", "late", "-o=json").out)
    assert (why["code"], why["why"], why["nearest"]) == ("WaitingForTurn", kept, None)
    assert "--running-timeout" not in why["hint"]


def test_two_jobs_of_4_share_a_node_where_the_kubelet_picks_their_gpus(cluster: Real):
    """Half of a DGX-1 may be fast or slow, and nobody can promise which: no reason to go apart."""
    cluster.machines(3)
    for name in ("left", "right"):
        done = cluster.arena(*words(name, 1, 4))
        assert done.code == 0, done.err
        assert re.search(r"at worst 9\.97 GB/s .*: the kubelet picks the GPUs", done.err), done.err
        cluster.until(lambda name=name: cluster.exact(name), f"{name} runs")
    [node] = set(cluster.bound("left").values())
    assert set(cluster.bound("right").values()) == {node}
    # So the next gang that needs two machines whole has them.
    assert cluster.arena(*words("whole", 2, 8)).code == 0
    cluster.until(lambda: cluster.exact("whole"), "the large gang runs at once")
    assert node not in cluster.bound("whole").values()


def test_gates_that_nobody_opens_are_opened_by_the_controller(cluster: Real):
    cluster.machines(2)
    assert cluster.arena(*words("gang", 4, 4, "--binding=gates")).code == 0
    cluster.until(lambda: cluster.exact("gang"), "the submitter opens the gates")
    cluster.called("DELETE", cluster.live.path("pods", "gang-worker-1"))
    with cluster.controller():
        cluster.until(lambda: cluster.exact("gang"), "the controller opens that of the new worker")


def test_suspend_resume_and_replan_move_a_gang_whole(cluster: Real):
    cluster.machines(2)
    assert cluster.arena(*words("gang", 2, 4)).code == 0
    cluster.until(lambda: cluster.exact("gang"), "the gang runs")
    assert cluster.arena("suspend", "gang").code == 0
    cluster.until(lambda: not cluster.pods(), "its pods are gone, the launcher's as well")
    assert "SUSPENDED" in cluster.arena("get", "gang").out
    assert cluster.arena("resume", "gang").code == 0
    cluster.until(lambda: cluster.exact("gang"), "the gang runs again")
    [before] = set(cluster.bound("gang").values())
    cluster.kubectl("cordon", before)
    done = cluster.arena("replan", "gang", "--yes")
    assert done.code == 0, done.err
    cluster.until(lambda: cluster.exact("gang"), "the gang runs elsewhere")
    assert set(cluster.bound("gang").values()) == {"node-0", "node-1"} - {before}


LOSSES = {
    "drained": "job-worker-. was deleted from node {node}, which is cordoned",
    "tainted": "node {node} was lost: taint repair:NoExecute",
    "gone": "node {node} was lost: deleted",
    "silent": "node {node} was lost: not ready",
    "evicted": "job-worker-1 was evicted: The node was low on resource: memory",
}
"""What happens to a gang, and what its owner reads."""


def test_a_cordon_leaves_a_gang_and_what_ends_its_workers_takes_it_back_once(cluster: Real):
    """One machine is cordoned; the workers of other gangs are ended, in each way."""
    cluster.machines(10)
    for name in ("cordoned", *LOSSES):
        # Machines end the launcher as well, and at once, which ends a job without a retry.
        assert cluster.arena(*words(name, 2, 4)).code == 0
        cluster.until(lambda name=name: cluster.exact(name), f"{name} runs")
    node = {name: cluster.bound(name)[f"{name}-worker-0"] for name in ("cordoned", *LOSSES)}
    uids = {name: one["metadata"]["uid"] for name, one in cluster.pods().items()}

    def anew(name: str) -> bool:
        pods = cluster.pods()
        workers = [pods.get(f"{name}-worker-{index}") for index in range(2)]
        return cluster.exact(name) and all(
            one is not None and one["metadata"]["uid"] != uids[one["metadata"]["name"]]
            for one in workers
        )

    with cluster.controller() as log:
        cluster.until(lambda: "at work" in log.read_text(), "the controller leads")
        # It has to see what runs before that is ended.
        time.sleep(5)
        cluster.kubectl("cordon", node["cordoned"])
        cluster.kubectl("drain", node["drained"], "--ignore-daemonsets", "--delete-emptydir-data")
        cluster.silence(node["silent"])
        cluster.kubectl("taint", "nodes", node["tainted"], "repair=:NoExecute")
        cluster.kubectl("delete", "node", node["gone"])
        cluster.tell("evicted-worker-1", "evicted", "true")
        for name in LOSSES:
            # A silent machine is lost after 50 s, its pods are removed after 80, and on a busy
            # machine kubelets, schedulers and this test wait for their turn beside that.
            cluster.until(
                lambda name=name: anew(name), lambda name=name: f"{name}: {log.read_text()}", 600
            )
        told = log.read_text()
    for name, cause in LOSSES.items():
        why = cause.format(node=node[name]).replace("job-", f"{name}-")
        assert len(re.findall(rf"/{name}: rolled back: ", told)) == 1, told
        assert re.search(rf"/{name}: rolled back: {why}", told), told
        assert name == "evicted" or node[name] not in cluster.bound(name).values()
        # Not a failed start of its own, which a third time would be the last.
        assert cluster.job(name)["metadata"]["annotations"].get(TRIES_ANNOTATION, "0") == "0"
        for screen in ("get", "why"):
            assert re.search(rf"ago: {why}.*; 2nd start", cluster.arena(screen, name).out), screen
        events = cluster.kubectl("get", "events", "-n", cluster.live.namespace, "-o", "json")
        mine = [
            (one["reason"], one["message"])
            for one in json.loads(events)["items"]
            if one["involvedObject"]["kind"] == "MPIJob" and one["involvedObject"]["name"] == name
        ]
        assert [text for reason, text in mine if reason == "RolledBack" and re.search(why, text)]
    stays = {name: one["metadata"]["uid"] for name, one in cluster.pods().items()}
    assert {name: uid for name, uid in uids.items() if name.startswith("cordoned")} == {
        name: uid for name, uid in stays.items() if name.startswith("cordoned")
    }
    assert node["cordoned"] not in {one for name in LOSSES for one in cluster.bound(name).values()}


def test_a_gang_starts_soon_after_one_whose_quota_it_needs(cluster: Real):
    """The usage of a quota follows the end of pods, and is not watched."""
    cluster.machines(2)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
    }
    cluster.called("POST", cluster.live.path("resourcequotas"), quota)
    assert cluster.arena(*words("first", 1, 8)).code == 0
    cluster.until(lambda: cluster.exact("first"), "the quota is in use")
    assert cluster.arena(*words("next", 1, 8)).code == 0
    with cluster.controller() as log:
        at_work(cluster, log)
        time.sleep(12)
        cluster.tell(cluster.launcher("first"), "exit", "1")
        cluster.until(lambda: cluster.exact("next"), log.read_text, 20)


def test_a_launcher_on_a_silent_machine_is_no_failure_of_the_gang_that_starts_again(cluster: Real):
    """Its Job counts the launcher as failed once the pod is removed, and allows no failure."""
    cluster.machines(2)
    assert cluster.arena(*words("gang", 2, 4)).code == 0
    cluster.until(lambda: cluster.exact("gang"), "the gang runs")
    [lost] = set(cluster.bound("gang").values())
    launcher = cluster.launcher("gang")
    assert cluster.pods()[launcher]["spec"]["nodeName"] == lost
    with cluster.controller() as log:
        at_work(cluster, log)
        # It has to see what runs before that is ended.
        time.sleep(5)
        cluster.silence(lost)
        other = {"node-0", "node-1"} - {lost}
        cluster.until(
            lambda: cluster.exact("gang") and set(cluster.bound("gang").values()) == other,
            lambda: log.read_text() + cluster.arena("get", "gang").out,
            300,
        )
        for _ in range(20):
            assert not (cluster.job("gang")["status"].get("completionTime")), log.read_text()
            time.sleep(1)
        told = log.read_text()
    assert len(re.findall("/gang: rolled back: ", told)) == 1, told
    assert cluster.exact("gang")


def held(cluster: Real) -> dict[tuple[str, int], str]:
    """Each GPU that a running gang holds by its record, and who holds it; none has two holders."""
    found: dict[tuple[str, int], str] = {}
    for job in cluster.called("GET", cluster.live.path("mpijobs", group=JOBS))["items"]:
        notes = job["metadata"]["annotations"]
        if notes[STATE] != "placed" or job["spec"]["runPolicy"]["suspend"]:
            continue
        for index, node, gpus in parse_map(notes[MAP]):
            for gpu in gpus:
                worker = f"{job['metadata']['name']}-worker-{index}"
                other = found.setdefault((node, gpu), worker)
                assert other == worker, f"GPU {gpu} of {node}: {other} and {worker}"
    return found


def test_no_gpu_is_given_twice_to_200_gangs_of_eight_submitters(cluster: Real):
    """Each gang takes two GPUs, in two pods; 15 machines have room for 60 of them."""
    cluster.machines(15, kept=True)
    names = [f"gang-{index}" for index in range(200)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(SUBMITTING), cluster.live.config, *names[first::8]],
            env=cluster.env(SUBMITTING_NAMESPACE=cluster.live.namespace),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in range(8)
    ]
    try:
        while any(one.poll() is None for one in processes):
            held(cluster)
            time.sleep(1)
        for one in processes:
            out, err = one.communicate()
            assert one.returncode == 0, err
            assert not [line for line in map(json.loads, out.splitlines()) if "error" in line]
    finally:
        for one in processes:
            one.kill()
            one.wait()
    # Whoever yielded to one that yielded in its turn waits although there is room.
    assert 30 < len(started(cluster)) <= 60
    for name in sorted(started(cluster)):
        cluster.until(lambda name=name: cluster.exact(name), f"{name} runs where it was planned")


def started(cluster: Real) -> set[str]:
    """The gangs that hold GPUs."""
    return {worker.rpartition("-worker-")[0] for worker in held(cluster).values()}
