"""Patience: whether a gang waits for more bandwidth than is offered, for how long, and for whom."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import program
import pytest
from cube_mesh import HGX, V100, cluster, node
from hypothesis import given
from hypothesis import strategies as st
from replacing import replace
from test_controller import World, world

from arena_topo.engines import engine_choice
from arena_topo.engines.kubernetes.lease import LEASE_NAME, NAMESPACE
from arena_topo.engines.kubernetes.queued import written
from arena_topo.gang import Watcher, planning, submission
from arena_topo.gang.resume import resume_job
from arena_topo.gang.suspend import suspend_job
from arena_topo.job import Duration, KeyValue, MPIJob
from arena_topo.jobs import plan_view
from arena_topo.jobs.proposal import propose
from arena_topo.jobs.view import job_text, job_value
from arena_topo.manifests import HEAD_RESERVATION, STATE
from arena_topo.queueing import Running, Situation, Waiting, seats_of_placement
from arena_topo.queueing.patience import least_bandwidth, patient_request, waits_for
from arena_topo.queueing.reservation import head_of, left_for
from arena_topo.reasons.explanation import explain_job
from arena_topo.solver import Request
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, GPUSet, Holding, gpu_set
from arena_topo.topology.fabric import FabricFile, parse_fabric

__all__ = ["world"]
"""The fixture."""

DAY = 24 * 3600.0

TCP: FabricFile = parse_fabric(
    {"levels": [{"name": "rack", "label": "rack"}], "beyondGBps": 1.25}, where="test"
)
"""10 GbE, of known rate."""


# The rule


EIGHT = Request(workers=8, gpus=1)
HALVES = (0x0F, 0x0F)


def halves(rate: float | None) -> tuple[Cluster, Solver]:
    """Two machines with four free GPUs each, joined by a network of this rate, and both idle."""
    now = cluster(*(node(f"node-{at}", HGX, free) for at, free in enumerate(HALVES)), beyond=rate)
    return now, Solver(cluster(node("node-0", HGX), node("node-1", HGX), beyond=rate))


@pytest.mark.parametrize(("rate", "waits"), [(1.25, True), (None, False)], ids=["known", "assumed"])
def test_only_a_network_of_known_rate_is_worth_a_wait(rate: float | None, waits: object) -> None:
    now, idle = halves(rate)
    offer = Solver(now).place(EIGHT)
    wait = waits_for(EIGHT, offer, idle.find(EIGHT), until=5.0)
    assert (wait is not None) is waits
    if wait is not None:
        assert (wait.place, wait.until) == ("one node", 5.0)
        assert str(wait).startswith("one node: ")
        assert str(wait).endswith(" x slower on 2 now")


def test_from_a_third_of_the_best_band_on_a_gang_starts() -> None:
    """A pair of a DGX-1 with one NVLink is worth half of the best; one without a fourth."""
    pair, idle = Request(workers=1, gpus=2), Solver(cluster(node("node-0", V100)))
    for free, waits in ((0b10, False), (0b100000, True)):
        offer = Solver(cluster(node("node-0", V100, 1 | free))).place(pair)
        assert (waits_for(pair, offer, idle.find(pair), until=0.0) is not None) is waits
        assert waits_for(pair, offer, idle.find(pair), until=0.0, share=2 / 3) is not None


@pytest.mark.parametrize("blind", [True, False])
def test_nobody_waits_for_a_set_that_no_node_promises(blind: bool) -> None:  # noqa: FBT001
    """Four GPUs of a DGX-1 that others use too: the kubelet of an empty one picks no better."""
    four = Request(workers=1, gpus=4, blind=blind)
    idle = Solver(cluster(node("node-0", V100), node("node-1", V100)))
    now = Solver(cluster(node("node-0", V100, unattributed=4)))
    gang = Waiting(key="a/b", request=four, until=1.0)
    seen = Situation(cluster=idle.cluster, emptied=idle.cluster, running=(), now=0.0)
    assert (waits_for(four, now.place(four), idle.find(four), until=1.0) is None) is blind
    assert Solver(seen.cluster).find(patient_request(gang, seen)) is not None


def test_a_single_gpu_has_nothing_to_wait_for() -> None:
    one, idle = Request(workers=1, gpus=1), Solver(cluster(node("node-0", V100)))
    assert least_bandwidth(one, idle.find(one)) == 0.0
    offer = Solver(cluster(node("node-0", V100, 1))).place(one)
    assert waits_for(one, offer, idle.find(one), until=0) is None


def test_best_is_within_the_limits_of_the_gang_and_on_nodes_that_are_ready() -> None:
    shut = cluster(
        node("node-0", HGX, unavailable="cordoned"),
        node("node-1", HGX, unavailable="not ready"),
        node("node-2", HGX, 0x0F),
        node("node-3", HGX, 0x0F),
        beyond=1.25,
    )
    best = Solver(shut).place(EIGHT)
    assert waits_for(EIGHT, best, best, until=0.0) is None
    now, idle = halves(1.25)
    apart = replace(EIGHT, per_node=4)
    assert waits_for(apart, Solver(now).place(apart), idle.find(apart), until=0.0) is None


def test_the_head_reserves_no_place_for_which_it_would_not_end_its_wait() -> None:
    now, idle = halves(1.25)
    gang = Waiting(key="a/b", request=EIGHT, until=100.0)
    seen = Situation(cluster=now, emptied=idle.cluster, running=(), now=99.0)
    assert Solver(now).find(patient_request(gang, seen)) is None
    assert patient_request(gang, replace(seen, now=100.0)) == EIGHT


@given(st.randoms(use_true_random=False))
def test_a_job_without_end_on_every_node_ends_every_patience_in_turn(dice: random.Random) -> None:
    """Gangs of five to eight on machines of which half is in use for ever, over known 10 GbE."""
    number = dice.randint(2, 4)
    emptied = cluster(*(node(f"node-{at}", HGX) for at in range(number)), beyond=1.25)
    held = (Holding("a/endless", 4, GPUSet(0xF0)),)
    nodes = [replace(one, free=GPUSet(0x0F), holders=held) for one in emptied.nodes]
    now = replace(emptied, nodes=tuple(nodes))
    running = (Running(key="a/endless", started=0.0),)
    queue = [
        Waiting(
            key=f"a/gang-{at}",
            request=Request(workers=dice.randint(5, 8), gpus=1),
            since=float(at),
            until=DAY + dice.randint(0, 9) * 3600.0,
        )
        for at in range(3)
    ]
    ends = sorted({gang.until for gang in queue})
    for time in (99.0, *ends):
        for gang in list(queue):
            seen = Situation(cluster=now, emptied=emptied, running=running, now=time)
            head = head_of(queue, seen)
            assert head is not None
            left = now if head.gang is gang else left_for(head, now)
            place = Solver(left).find(patient_request(gang, seen))
            assert place is None or time >= gang.until
            if place is not None:
                queue.remove(gang)
                solver = Solver(now)
                for name, gpus in seats_of_placement(place):
                    one = next(one for one in solver.cluster.nodes if one.name == name)
                    solver.put(replace(one, free=GPUSet(one.free & ~gpu_set(gpus))))
                now = solver.cluster
    # Whoever waits now waits for GPUs: nobody of them fits, or the oldest is first.
    assert not queue or not Solver(now).fits(queue[0].request)


# The controller


GANG = MPIJob(name="gang", command="c", image="i", workers=8, gpus=1, gputopology=True)


def two_halves(here: World) -> None:
    """Two machines with a job on half of each: `a` on node-0, `b` on node-1."""
    for name in ("a", "x", "b", "y"):
        here.submit(name, workers=4)
    here.cluster.settle()
    for name in ("x", "y"):
        here.backend.delete(name, "default")
    here.cluster.settle()
    assert (here.nodes("a"), here.nodes("b")) == ({"node-0"}, {"node-1"})


def a_lease(here: World) -> None:
    """A controller is at work."""
    here.api.add(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": LEASE_NAME, "namespace": NAMESPACE},
            "spec": {"holderIdentity": "one", "renewTime": written(here.api.clock())},
        }
    )


def status(here: World, name: str) -> Any:
    return here.backend.job(name, "default")


def test_a_patient_gang_waits_for_one_node_and_then_starts_there(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8)
    here.rounds(2)
    assert here.state("gang") == "waiting"
    assert (here.reason("gang") or "").startswith("it waits for 5.66 GB/s on one node")
    here.backend.delete("a", "default")
    here.cluster.settle()
    here.rounds(2)
    assert here.nodes("gang") == {"node-0"}


def test_patience_ends_at_its_deadline_though_nothing_changes(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8, patience=600)
    here.rounds(2)
    here.later(597)
    here.rounds()
    assert not here.runs("gang")
    assert here.controller.due <= here.time + 4
    here.later(4)
    here.rounds(2)
    assert here.nodes("gang") == {"node-0", "node-1"}


def test_a_job_without_end_on_every_node_ends_every_patience(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8)
    here.submit("late", workers=8)
    here.rounds(2)
    here.later(DAY + 1)
    here.rounds(2)
    assert here.nodes("gang") == {"node-0", "node-1"}


@pytest.mark.parametrize("fabric", [TCP, None], ids=["known", "assumed"])
def test_patience_0_and_an_assumed_network_start_at_once(world, fabric: FabricFile | None) -> None:
    here = world(2, fabric=fabric)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8, patience=0 if fabric else DAY)
    assert here.runs("gang")
    here.cluster.settle()
    assert here.nodes("gang") == {"node-0", "node-1"}


def test_where_nobody_ends_the_wait_a_gang_starts_and_hears_what_it_did_not_wait_for(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    with here.cluster.running():
        done = submission.submit(
            MPIJob(
                name="gang",
                command="c",
                image="i",
                workers=8,
                gpus=1,
                gputopology=True,
                patience=Duration(3600),
            ),
            here.backend,
            namespace="default",
        )
    assert here.runs("gang")
    assert done.wait is not None
    assert done.wait.place == "one node"


def test_submit_wait_ends_the_patience_itself(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        here.backend.delete("a", "default")

    job = GANG
    with here.cluster.running():
        watcher = Watcher(stay=True, tell=tell)
        submission.submit(job, here.backend, namespace="default", watcher=watcher)
    assert "waits: it waits for 5.66 GB/s on one node" in told[0]
    assert here.nodes("gang") == {"node-0"}


def test_a_controller_knows_the_network_by_the_same_file_as_the_submitter(world, tmp_path) -> None:
    """Without it the controller would end the wait at once, as it knows no rate."""
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8)
    network = tmp_path / "net.yaml"
    network.write_text("levels: []\nbeyondGBps: 1.25\n")
    for words, runs in (([f"--fabric={network}"], False), ([], True)):
        line = ["controller", "--once", "--kubeconfig", here.config, *words]
        with here.cluster.running():
            done = program.run(line, env=os.environ)
        assert done.returncode == 0, done.stderr
        assert here.runs("gang") is runs


def test_resume_starts_a_patient_gang_wherever_it_fits(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8)
    assert not here.runs("gang")
    with here.cluster.running():
        assert resume_job(here.backend, "gang", "default").resumed
    assert here.nodes("gang") == {"node-0", "node-1"}


def test_a_rollback_does_not_begin_the_patience_anew(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8, patience=1200)
    first = status(here, "gang").until
    here.backend.delete("a", "default")
    here.cluster.settle()
    here.rounds(2)
    here.later(300)
    assert here.nodes("gang") == {"node-0"}
    # Half of a new machine is in use when the node of the gang is drained.
    here.machine("node-2")
    with here.api.edit("Node", "node-2", "") as new:
        new["metadata"].setdefault("labels", {})["new"] = "yes"
    here.submit("half", workers=4, selector=(KeyValue(key="new", value="yes"),))
    here.cluster.drain("node-0")
    here.cluster.settle()
    here.rounds(3)
    assert any("gang: rolled back" in line for line in here.said)
    assert not here.runs("gang")
    assert status(here, "gang").until == first


def test_a_suspension_begins_the_patience_anew(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8, patience=600)
    first = status(here, "gang").until
    here.later(300)
    here.rounds(2)
    assert status(here, "gang").until == first
    suspend_job(here.backend, "gang", "default")
    here.submit("more", workers=4, patience=0)
    here.later(100)
    with here.cluster.running():
        resume_job(here.backend, "gang", "default")
    assert not here.runs("gang")
    here.backend.delete("more", "default")
    here.cluster.settle()
    here.rounds(2)
    assert status(here, "gang").until == pytest.approx(first + 400, abs=30)


def test_the_head_reserves_a_node_while_it_is_patient(world) -> None:
    """And a younger gang gets the other half."""
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    here.submit("gang", workers=8)
    here.rounds(2)
    places = here.job("gang")["metadata"]["annotations"][HEAD_RESERVATION].partition(" ")[2]
    (kept,) = {place.partition("/")[0] for place in places.split(";")}
    here.submit("small", workers=4)
    here.cluster.settle()
    assert here.nodes("small") == {"node-0", "node-1"} - {kept}


def test_a_gang_that_another_queue_starts_never_waits_for_more_bandwidth(world) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    kueue = KeyValue(key="kueue.x-k8s.io/queue-name", value="research")
    job = replace(GANG, label=(kueue,))
    assert propose(job, here.backend, namespace="default").wait is None
    assert propose(GANG, here.backend, namespace="default").wait is not None
    here.submit("gang", workers=8, label=(kueue,))
    here.rounds()
    here.cluster.kueue.admit("gang")
    here.cluster.settle()
    here.rounds(2)
    assert here.nodes("gang") == {"node-0", "node-1"}


# Where it is given


_FILE = """
name: gang
image: i
workers: 8
gpus: 1
gputopology: true
command: c
"""

_TWO_HOURS = 'patience = "2h"\n'


@pytest.mark.parametrize(
    ("given", "hours"),
    [
        pytest.param(("", "", ""), 24, id="nowhere"),
        pytest.param(("", "", "--patience 2h"), 2, id="flag"),
        pytest.param(("", "patience: 2h\n", ""), 2, id="job file"),
        pytest.param((f"[submit]\n{_TWO_HOURS}", "", ""), 2, id="site"),
        pytest.param(
            (f"[submit]\npatience = 0\n[profile.lab.submit]\n{_TWO_HOURS}", "", "--profile lab"),
            2,
            id="profile",
        ),
        pytest.param((f"[submit]\n{_TWO_HOURS}", "patience: 2h\n", "--patience 0"), 0, id="none"),
    ],
)
def test_patience_is_a_flag_or_a_line_of_a_job_file_a_profile_or_a_site(
    world, tmp_path: Path, given: tuple[str, str, str], hours: int
) -> None:
    site, more, words = given
    here = world(2, fabric=TCP)
    two_halves(here)
    a_lease(here)
    network, settings, file = (tmp_path / name for name in ("net.yaml", "site.toml", "job.yaml"))
    network.write_text("levels: []\nbeyondGBps: 1.25\n")
    settings.write_text(site)
    file.write_text(_FILE + more)
    line = f"plan mpi -f {file} -o json --fabric {network} --kubeconfig {here.config} {words}"
    done = program.run(line.split(), env={**os.environ, "ARENA_TOPO_SETTINGS": str(settings)})
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    if not hours:
        assert (value["waitsFor"], value["until"]) == (None, None)
    else:
        assert value["waitsFor"]["place"] == "one node"
        assert value["until"] == pytest.approx(here.backend.queue.now() + hours * 3600, abs=60)


# What is said


def test_plan_why_and_get_say_what_is_waited_for_and_until_when(world, tmp_path) -> None:
    here = world(2, fabric=TCP)
    two_halves(here)
    job = GANG
    proposal = propose(job, here.backend, namespace="default")
    text = plan_view.plan_text(proposal)
    assert "No controller runs here; with --wait it would wait until " in text
    dump = tmp_path / "dump.json"
    kinds = ("Node", "ConfigMap", "MPIJob", "Pod")
    items = [thing for kind in kinds for thing in here.api.all(kind)]
    dump.write_text(json.dumps({"kind": "List", "items": items}))
    queue = planning.queue_in_dumps(engine_choice.read_queue([str(dump)], TCP), "default", job)
    proposal = propose(job, None, namespace="default", queue=queue)
    text, value = plan_view.plan_text(proposal), plan_view.plan_json(proposal)
    assert "Where a controller runs, or with --wait, it would wait until " in text
    assert value["waitsFor"] == {"place": "one node", "bandwidthGBps": 5.65685}
    a_lease(here)
    proposal = propose(job, here.backend, namespace="default")
    text, value = plan_view.plan_text(proposal), plan_view.plan_json(proposal)
    assert "\nIt would wait until " in text
    assert " x slower on 2 now; --patience 0 starts now\n" in text
    now = here.backend.queue.now()
    assert value["waitsFor"] == {"place": "one node", "bandwidthGBps": 5.65685}
    assert value["until"] == pytest.approx(now + DAY, abs=60)
    assert (value["verdict"], value["reservedBy"]) == ("Placeable", None)
    here.submit("gang", workers=8)
    here.rounds()
    said = explain_job(here.backend, "gang", "default", now=now)
    assert said.verdict.code == "WaitingForBandwidth"
    assert said.wait is not None
    found = status(here, "gang")
    assert job_value(found, now=now)["waitsFor"] == {"place": "one node", "bandwidthGBps": 5.66}
    assert job_value(found, now=now)["until"] == int(said.wait.until)
    assert "  starts wherever it fits from 2" in job_text(found, now=now)
    # No clock and no place in the queue are stored.
    assert here.reason("gang") == (
        "it waits for 5.66 GB/s on one node; less than a third of that is offered"
    )
    assert here.job("gang")["metadata"]["annotations"][STATE] == "waiting"
    late = propose(replace(job, name="late"), here.backend, namespace="default")
    assert plan_view.plan_json(late)["reservedBy"] == "default/gang"
