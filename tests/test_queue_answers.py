"""One reading of the queue: `plan`, `submit` and `why` agree, and what they advise helps."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fake_api import FakeApi, kubeconfig
from kube_objects import config_map, node
from replacing import replace

from arena_topo import cli
from arena_topo.clusters import view
from arena_topo.engines import Options, engine_choice
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes.queued import written
from arena_topo.errors import NotNow
from arena_topo.gang import planning, submission
from arena_topo.gang.request import Site
from arena_topo.gang.resume import check_started, resume_job
from arena_topo.job import Duration, MPIJob
from arena_topo.jobs.plan_view import plan_json
from arena_topo.jobs.proposal import Proposal, propose
from arena_topo.manifests import (
    HEAD_RESERVATION,
    REQUEST,
    RESERVED_ANNOTATION,
    STOPPED,
    PlacementForecast,
    render,
)
from arena_topo.manifests.annotations import annotated, parse_map
from arena_topo.manifests.cause import CauseCode, because, encode_cause
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion
from arena_topo.nodes import fragmentation, overview, top_view
from arena_topo.reasons import view as why_view
from arena_topo.reasons.explanation import Explanation, explain_job
from arena_topo.solver import Unplaceable, Verdict

NOW = 1_900_000_000.0


class World:
    """Nodes, jobs that run, and gangs that wait, as objects of an API server."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.api = FakeApi()
        self.api.now = NOW
        config = kubeconfig(folder / "config", self.api.url, user={"username": "alice"})
        self.backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
        self.holders: dict[str, str] = {}
        for index in range(nodes):
            name = f"node-{index}"
            self.api.add(node(name))
            self.api.add(config_map(name))

    def job(self, name: str, workers: int, gpus: int, **more: Any) -> MPIJob:
        return MPIJob(
            name=name,
            command="c",
            image="i",
            workers=workers,
            gpus=gpus,
            gputopology=True,
            gang=True,
            **more,
        )

    def add(
        self,
        job: MPIJob,
        age: float,
        forecast: PlacementForecast,
        notes: Mapping[str, str] = MappingProxyType({}),
        **status: Any,
    ) -> None:
        waits = forecast.state == "waiting"
        plan = render.build_plan(
            job,
            namespace="default",
            api=ApiVersion.V2BETA1,
            owner="a",
            files={},
            waiting="" if waits else None,
        )
        made = annotated(plan.objects[0], forecast)
        made["metadata"]["annotations"] |= {REQUEST: request_annotation(job), **notes}
        made["metadata"] |= {
            "namespace": "default",
            "uid": f"uid-{job.name}",
            "creationTimestamp": written(NOW - age),
        }
        made["spec"]["runPolicy"]["suspend"] = waits
        self.api.add(made | {"status": status})

    def waits(self, name: str, workers: int, gpus: int, *, age: float, **more: Any) -> None:
        self.add(self.job(name, workers, gpus, **more), age, PlacementForecast(state="waiting"))

    def stopped(
        self, name: str, places: str, *, gpus: int = 4, age: float = 900, **more: Any
    ) -> None:
        """A gang that was taken back, and for which these GPUs wait."""
        workers = parse_map(places)
        job = self.job(name, len(workers), gpus, **more)
        cause = because(CauseCode.NODE_LOST, node="node-1", state="out of service")
        waiting = PlacementForecast(state="waiting", cause=cause)
        stop = json.dumps({"at": written(NOW - 360), "times": 1, **encode_cause(cause)})
        notes = {RESERVED_ANNOTATION: places, STOPPED: stop}
        self.add(job, age, waiting, notes, startTime=written(NOW - 700))

    def runs(self, name: str, places: str, **more: Any) -> None:
        workers = parse_map(places)
        job = self.job(name, len(workers), len(workers[0][2]), **more)
        placed = PlacementForecast(
            state="placed", workers=workers, binding="claims", guarantee="gpus"
        )
        self.holders[name] = places
        self.add(job, 1000.0, placed, startTime=written(NOW - 60))

    def end(self, name: str) -> None:
        self.holders.pop(name, None)
        path = f"/apis/kubeflow.org/v2beta1/namespaces/default/mpijobs/{name}"
        self.backend.api.delete(path)

    def end_node(self, name: str) -> None:
        self.backend.api.delete(f"/api/v1/nodes/{name}")

    def plan(self, workers: int, gpus: int, **more: Any) -> Proposal:
        job = self.job("new", workers, gpus, **more)
        return propose(job, self.backend, namespace="default")

    def why(self, name: str) -> Explanation:
        return explain_job(self.backend, name, "default", now=time.time())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.api.close()
    assert not made.api.crashes, made.api.crashes[-1]


KEPT = "4 GPUs of node-1 are reserved for default/head, which comes first in the queue"


def test_reserved_gpus_read_the_same_in_plan_submit_and_why(world: World) -> None:
    """Half of a node is free, and reserved for a gang that needs both nodes whole."""
    world.runs("large", "node-0/0,1,2,3,4,5,6,7")
    world.runs("small", "node-1/0,1,2,3")
    world.waits("head", 2, 8, age=500)
    planned = world.plan(1, 2)
    assert planned.refused is not None
    cause = "1 node (node-0): not enough free GPUs; 1 node (node-1): reserved for default/head"
    assert (planned.refused.why, planned.refused.nearest) == (cause, None)
    assert planned.refused.hint == "arena-topo why head -n default shows what head waits for"
    assert KEPT in planned.notes
    done = submission.submit(world.job("late", 1, 2), world.backend, namespace="default")
    assert (done.nearest, KEPT in done.plan.notes) == (None, True)
    assert "default/head comes first in the queue" in str(done.plan.waiting)
    late = world.why("late")
    assert (late.verdict.code.value, late.verdict.why) == ("WaitingForTurn", KEPT)
    nodes = overview.read_overview(world.backend)
    shown = [line.split() for line in top_view.nodes_table(nodes.occupancy.nodes).splitlines()]
    at = shown[0].index("RESERVED")
    assert [(line[0], line[at]) for line in shown[1:3]] == [("node-0", "0"), ("node-1", "4")]
    shown = fragmentation.fragmentation_screen(
        fragmentation.measure_fragmentation(nodes.occupancy.cluster, world.backend)
    )
    assert shown.startswith("0 of 16 GPUs are free, and 4 are reserved for default/head.\n")
    table = shown.partition("\n\nNODES ")[2].splitlines()
    assert [(line.split()[:3], line.split()[-1]) for line in table[1:4]] == [
        (["1", "0/8", "0"], "node-0"),
        (["1", "0/8", "4"], "node-1"),
        (["2", "0/16", "4"], "all"),
    ]
    # GPUs that are reserved are not advised to be freed.
    larger = world.plan(1, 6)
    assert larger.refused is not None
    assert larger.refused.nearest is None


KEPT_FOR_JOB = "4 GPUs of node-0 are reserved for the next start of default/job"


@pytest.mark.parametrize(
    "places",
    ["node-0/4,5,6,7;node-1/0,1,2,3;node-1/4,5,6,7", "node-0/;node-1/;node-1/"],
    ids=["named GPUs", "counted GPUs"],
)
def test_gpus_reserved_for_a_stopped_gang_are_neither_used_nor_free(
    world: World, places: str
) -> None:
    """Its other node is lost, and others have half of what is left, so it is not the head."""
    world.runs("small", "node-0/0,1,2,3")
    world.stopped("job", places)
    world.end_node("node-1")
    planned = world.plan(1, 2)
    assert planned.refused is not None
    cause = "1 node (node-0): reserved for default/job"
    assert (planned.refused.why, planned.refused.nearest) == (cause, None)
    assert KEPT_FOR_JOB in planned.notes
    assert planned.reserved_by == "default/job"
    world.waits("late", 1, 2, age=100)
    late = world.why("late")
    assert (late.verdict.code.value, late.reserved) == ("WaitingForGPUs", KEPT_FOR_JOB)
    assert [(holder.name, holder.gpus) for holder in late.holders] == [("small", 4)]
    assert late.unnamed == 0
    nodes = overview.read_overview(world.backend)
    shown = [line.split() for line in top_view.nodes_table(nodes.occupancy.nodes).splitlines()]
    at = shown[0].index("RESERVED")
    assert [(line[0], line[at]) for line in shown[1:2]] == [("node-0", "4")]
    told = top_view.nodes_table(nodes.occupancy.nodes, now=NOW).splitlines()[-1]
    assert told.endswith(" for default/job, at most 0.4 GPU-hours so far")
    (status,) = nodes.occupancy.nodes
    assert status.planned == 0b1111
    screen = fragmentation.fragmentation_screen(
        fragmentation.measure_fragmentation(nodes.occupancy.cluster, world.backend)
    )
    assert screen.startswith("0 of 8 GPUs are free, and 4 are reserved for default/job.\n")
    shown = view.decode(view.encode(nodes.occupancy.cluster, observed_at=NOW), now=NOW)
    (node,) = shown.nodes
    assert (node.free_count, node.reserved_count) == (0, 4)
    assert planning.describe_reserved(planned.request, shown) == KEPT_FOR_JOB.replace(
        "default/job", "another gang"
    )


def test_gpus_reserved_for_the_next_start_of_a_gang_are_free_to_itself(world: World) -> None:
    """Another job took GPUs of its other node. It comes first in the queue, too."""
    world.runs("small", "node-0/0,1,2,3")
    world.runs("large", "node-1/0,1,2,3,4,5")
    world.stopped("job", "node-0/4,5,6,7;node-1/0,1,2,3")
    own = world.why("job")
    least = "fits now with --workers 1, or with --gpus 2"
    assert own.nearest == f"{least}; or when 4 more GPUs of node-0 are free"
    assert own.reserved is None
    assert own.verdict.why == (
        "1 node (node-0): room for some workers, and nowhere for the rest;"
        " 1 node (node-1): not enough free GPUs"
    )
    assert [(holder.name, holder.gpus) for holder in own.holders] == [("large", 6), ("small", 4)]
    assert own.unnamed == 0
    first = "4 GPUs of node-0 are reserved for default/job, which comes first in the queue"
    assert first in world.plan(1, 4).notes


@pytest.mark.parametrize(
    ("places", "where"),
    [
        ("node-0/4,5,6,7;node-1/0,1,2,3", "GPUs are reserved for its next start"),
        ("node-0/;gone/", "GPUs are reserved for its next start"),
        ("gone/0,1,2,3;gone/4,5,6,7", "GPUs are reserved for it once it comes first"),
    ],
)
def test_resume_says_of_a_stopped_gang_that_gpus_are_reserved_for_it_as_long_as_they_are(
    world: World, places: str, where: str
) -> None:
    world.runs("small", "node-0/0,1,2,3")
    world.runs("large", "node-1/0,1,2,3,4,5")
    world.stopped("job", places)
    outcome = resume_job(world.backend, "job", "default")
    with pytest.raises(NotNow) as refused:
        check_started(outcome, world.backend, "job", "default")
    assert refused.value.message == (
        f"job has to wait: it is in the queue now, and {where}; it needs another"
        " arena-topo resume job -n default when it fits"
    )


def test_a_stopped_gang_at_the_head_waits_for_others_alone(world: World) -> None:
    """Not for itself: what is reserved for its next start costs it nothing."""
    world.runs("small", "node-0/0,1,2,3", running_timeout=600)
    world.runs("large", "node-1/0,1,2,3,4,5", running_timeout=6000)
    world.stopped("job", "node-0/4,5,6,7;node-1/0,1,2,3")
    queue = world.backend.queue
    assert queue is not None
    head = planning.head_of_queue(queue.read(), queue, Site(backend=world.backend))
    assert head is not None
    assert {str(node) for node, _ in head.seats} == {"node-0"}
    assert head.starts == NOW - 60 + 600


def test_a_node_may_be_reserved_for_the_head_and_for_a_stopped_gang(world: World) -> None:
    world.runs("small", "node-0/0,1")
    world.runs("large", "node-1/0,1,2,3,4,5,6,7")
    world.stopped("job", "node-0/2,3", gpus=2, age=50)
    world.waits("head", 1, 6, age=500)
    planned = world.plan(1, 2)
    assert planned.refused is not None
    assert planned.refused.why == (
        "1 node (node-0): reserved for default/head and default/job;"
        " 1 node (node-1): not enough free GPUs"
    )
    assert planned.notes[-1] == (
        "4 GPUs of node-0 are reserved for default/head, which comes first in the queue;"
        " 2 GPUs of node-0 are reserved for the next start of default/job"
    )
    both = ["default/head", "default/job"]
    value = plan_json(planned)
    assert [row["reservedFor"] for row in value["refusals"]] == [both, []]
    assert value["reservedBy"] == "default/head"
    world.waits("late", 4, 2, age=10)
    said = why_view.explanation_json(world.why("late"))
    assert [row["reservedFor"] for row in said["nodes"]] == [both, []]
    cluster = overview.read_overview(world.backend).occupancy.cluster
    report = fragmentation.measure_fragmentation(cluster, world.backend)
    assert fragmentation.fragmentation_json(report)["kinds"][0]["reservedFor"] == both
    first = fragmentation.fragmentation_screen(report).partition("\n")[0]
    assert first == "0 of 16 GPUs are free, and 6 are reserved for default/head and default/job."


def test_a_plan_names_the_head_of_the_queue_before_a_gang_that_was_stopped(world: World) -> None:
    world.runs("small", "node-0/0,1,2,3")
    world.runs("large", "node-1/0,1,2,3")
    world.stopped("job", "node-0/4,5,6,7", age=50)
    world.waits("head", 1, 4, age=500)
    planned = world.plan(1, 2)
    assert planned.reserved_by == "default/head"


def test_resume_stores_what_the_head_reserves_and_top_node_what_that_costs(world: World) -> None:
    world.runs("large", "node-0/0,1,2,3,4,5,6,7")
    world.runs("small", "node-1/0,1,2,3")
    world.waits("head", 1, 8, age=500)
    resume_job(world.backend, "head", "default")
    assert world.backend.queue is not None
    stored = world.backend.queue.get("default", "head")
    assert stored is not None
    note = stored["metadata"]["annotations"][HEAD_RESERVATION]
    assert parse_map(note.partition(" ")[2])[0][1] == "node-1"
    nodes = overview.read_overview(world.backend).occupancy.nodes
    since = world.backend.queue.now()
    shown = top_view.nodes_table(nodes, now=since + 1800)
    wanted = r"Reserved and idle: 4 GPUs for default/head, at most 2\.[01] GPU-hours so far"
    assert re.fullmatch(wanted, shown.splitlines()[-1])


def test_topology_show_tells_reserved_gpus_from_free_ones(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.runs("large", "node-0/0,1,2,3,4,5,6,7")
    world.runs("small", "node-1/0,1,2")
    world.waits("head", 1, 8, age=500)

    def show(*words: str) -> str:
        line = ("topology", "show", *words, f"--kubeconfig={tmp_path / 'config'}")
        assert cli.run(line) == 0
        return capsys.readouterr().out

    assert show("--ascii").splitlines() == [
        "cluster (speed unknown): 2 nodes, 0 of 16 GPUs free, 5 reserved",
        "|- ########  0 free  8 x GPU  node-0",
        "`- ###rrrrr  0 free, 5 reserved  8 x GPU  node-1",
        "# in use  r reserved for a gang that waits",
    ]
    assert "0 of 16 GPUs free, 5 reserved" in show("-o=svg")
    node_1 = json.loads(show("-o=json"))["nodes"][1]
    assert (node_1["free"], node_1["reservedGPUs"]) == (0, 5)
    assert show("node-1").count("node-1: 8 x GPU; 5 reserved, 3 in use") == 1
    value = json.loads(show("node-1", "-o=json"))
    assert (value["free"], value["freeCount"], value["reservedGPUs"]) == ([], 0, 5)


def test_reserved_gpus_whose_indexes_are_unknown_are_counted(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of a node is in use, nobody knows which half, and the whole node is reserved."""
    job = world.job("small", 2, 2)
    workers = parse_map("node-0/;node-0/")
    placed = PlacementForecast(state="placed", workers=workers, guarantee="node")
    world.add(job, 1000.0, placed, startTime=written(NOW - 60))
    world.runs("large", "node-1/0,1,2,3,4,5,6,7", running_timeout=10**6)
    world.waits("head", 1, 8, age=500)

    def show(*words: str) -> str:
        assert cli.run((*words, f"--kubeconfig={tmp_path / 'config'}")) == 0
        return capsys.readouterr().out

    assert show("topology", "show", "--ascii").splitlines()[1:] == [
        "|- ????????  0 of 8 free, 4 reserved  8 x GPU  node-0",
        "`- ########  0 free  8 x GPU  node-1",
        "# in use  ? some of these are in use or reserved; it is not reported which",
    ]
    machine = show("topology", "show", "node-0", "--ascii")
    assert "\nnode-0: 8 x GPU; 0 of 8 free, 4 reserved\n" in machine
    doubt = "8 of the GPUs marked free? are not free: 4 in use, 4 reserved; not known which"
    assert doubt in " ".join(machine.split())
    detail = show("top", "node", "-d", "node-0")
    assert detail.count("  unknown  true") == 8
    for what in ("in use", "reserved"):
        assert f"  4 of the unknown GPUs are {what}; it is not reported which.\n" in detail


def test_gpus_that_are_only_reserved_are_not_called_in_use(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.runs("small", "node-0/0,1,2,3")
    world.stopped("job", "node-0/;node-1/", gpus=2)

    def show(*words: str) -> str:
        assert cli.run((*words, f"--kubeconfig={tmp_path / 'config'}")) == 0
        return capsys.readouterr().out

    assert show("topology", "show", "--ascii").splitlines()[-1] == (
        "# in use  r reserved for a gang that waits"
        "  ? some of these are reserved; it is not reported which"
    )
    machine = show("topology", "show", "node-1", "--ascii")
    assert "2 of the GPUs marked free? are reserved; not known which" in machine
    value = json.loads(show("topology", "show", "node-1", "-o=json"))
    assert (value["free"], value["opaque"], value["reservedGPUs"]) == (None, 0, 2)
    detail = show("top", "node", "-d", "node-1")
    assert "in use" not in detail
    assert "  2 of the unknown GPUs are reserved; it is not reported which.\n" in detail


def test_a_gang_that_waits_has_no_gpus_that_a_suspension_frees(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.waits("head", 1, 8, age=500)
    assert cli.run(("suspend", "head", f"--kubeconfig={tmp_path / 'config'}")) == 0
    assert capsys.readouterr().err == "Start it again: arena-topo resume head -n default\n"


def test_resume_advises_what_why_does(world: World) -> None:
    """A smaller job would be submitted anew, behind the next gang, which then gets the GPUs."""
    world.runs("large", "node-0/0,1,2,3,4,5,6,7")
    world.runs("small", "node-1/0,1,2,3")
    world.waits("first", 1, 8, age=500)
    world.waits("second", 1, 8, age=400)
    outcome = resume_job(world.backend, "first", "default")
    assert not outcome.resumed
    advised = world.why("first").nearest
    assert advised is not None
    assert "--gpus" not in advised
    assert outcome.decision.nearest == advised


def test_get_says_that_a_gang_fits_never_any_more_once_its_resume_was_refused(
    world: World,
) -> None:
    world.runs("large", "node-0/0,1,2,3,4,5,6,7")
    world.waits("job", 2, 8, age=500)
    resume_job(world.backend, "job", "default")
    assert "cannot be placed now" in str(world.backend.job("job", "default").reason)
    world.end_node("node-1")
    with pytest.raises(Unplaceable) as refused:
        resume_job(world.backend, "job", "default")
    assert refused.value.verdict is Verdict.NEVER
    assert "can never be placed" in str(world.backend.job("job", "default").reason)


def test_why_names_all_reserved_nodes_and_for_whom(world: World) -> None:
    """Also where the job would not fit without the reservation."""
    world.runs("small", "node-1/0,1,2,3")
    world.waits("head", 2, 8, age=500)
    world.waits("late", 4, 4, age=100)
    found = world.why("late")
    assert found.verdict.code.value == "WaitingForGPUs"
    shown = why_view.explanation_text(found)
    kept = "12 GPUs of node-0 and node-1 are reserved for default/head, which comes first in the"
    assert f"\nReserved: {kept} queue\n" in shown
    assert str(why_view.explanation_json(found)["reserved"]).startswith(kept)
    assert why_view.explanation_json(world.why("head"))["reserved"] is None


def test_why_of_the_head_of_the_queue_shows_what_is_reserved_for_it(world: World) -> None:
    world.runs("small", "node-1/0,1,2,3")
    world.runs("large", "node-0/0,1")
    world.waits("head", 2, 8, age=500)
    world.waits("late", 4, 4, age=100)
    head = world.why("head")
    assert (
        "\nReserved for it: 16 GPUs; 6 are still in use\n"
        "  NODE    GPUS             FREE\n"
        "  ----    ----             ----\n"
        "  node-0  0,1,2,3,4,5,6,7  6 of 8\n"
        "  node-1  0,1,2,3,4,5,6,7  4 of 8\n"
    ) in why_view.explanation_text(head)
    whole = list(range(8))
    assert json.loads(json.dumps(why_view.explanation_json(head)["ownReservation"])) == [
        {"node": "node-0", "gpus": 8, "free": 6, "indexes": whole},
        {"node": "node-1", "gpus": 8, "free": 4, "indexes": whole},
    ]
    late = world.why("late")
    assert why_view.explanation_json(late)["ownReservation"] == []
    assert "Reserved for it" not in why_view.explanation_text(late)


def test_why_of_the_head_says_why_its_reservation_is_not_where_the_fewest_gpus_are_missing(
    world: World,
) -> None:
    world.runs("short", "node-0/0,1,2", running_timeout=Duration(90))
    world.runs("long", "node-1/0,1")
    world.waits("head", 1, 8, age=500)
    shown = why_view.explanation_text(world.why("head"))
    assert "\n  node-0  0,1,2,3,4,5,6,7  5 of 8\n" in shown
    assert (
        "\nReserved is where the fewest GPU-hours are missing; Nearest counts GPUs, and not for how"
        " long they are in use.\n"
    ) in shown
    assert "when 2 more GPUs of node-1 are free\n" in shown


def test_why_of_a_stopped_gang_shows_what_is_reserved_for_its_next_start(world: World) -> None:
    world.runs("small", "node-0/0,1,2,3")
    world.runs("large", "node-1/0,1,2,3,4,5")
    world.waits("first", 2, 8, age=5000)
    world.stopped("job", "node-0/;node-1/")
    shown = why_view.explanation_text(world.why("job"))
    assert "\nReserved for it: 8 GPUs; 2 are still in use\n" in shown
    assert "\n  node-0  N/A   4 of 4\n  node-1  N/A   2 of 4\n" in shown


def dumped(world: World, path: Path, *more: Mapping[str, Any]) -> str:
    """A dump of the world, with objects that only this dump has."""
    kinds = ("Node", "ConfigMap", "MPIJob", "Pod")
    items = [*more, *(thing for kind in kinds for thing in world.api.all(kind))]
    path.write_text(json.dumps({"kind": "List", "items": items}))
    os.utime(path, (world.api.now, world.api.now))
    return str(path)


def test_a_dump_reserves_what_the_cluster_reserves(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan`, `top node` and `topology show` say the same of a cluster and of its dump."""
    world.runs("large", "node-0/0,1,2,3,4,5,6,7")
    world.runs("small", "node-1/0,1,2,3")
    world.waits("head", 1, 8, age=500)
    world.waits("second", 1, 8, age=400)
    state = dumped(world, tmp_path / "dump.json")

    def answers(*source: str) -> list[str]:
        shown = []
        for words in (
            ("plan", "mpi", "--gpus=4", "--gang", "-o=json"),
            ("top", "node"),
            ("top", "node", "--frag"),
            ("top", "node", "-d", "-o=json"),
            ("topology", "show", "--ascii"),
            ("topology", "show", "node-1"),
        ):
            cli.run((*words, *source))
            # What a reservation costs so far depends on the time.
            shown.append(re.sub(r", at most [0-9.]+ GPU-hours.*", "", capsys.readouterr().out))
        return shown

    living, old = answers(f"--kubeconfig={tmp_path / 'config'}"), answers(f"--state={state}")
    assert old[1:] == living[1:]
    assert old[1].endswith("Reserved and idle: 4 GPUs for default/head\n")
    seen, told = json.loads(living[0]), json.loads(old[0])
    for key in ("verdict", "refusals", "reservedBy"):
        assert told[key] == seen[key]
    assert told["reservedBy"] == "default/head"
    assert "0 free, 4 reserved" in old[4]


def test_a_dump_reserves_for_the_gang_of_the_highest_known_priority(
    world: World, tmp_path: Path
) -> None:
    """Without the value of a class a note says that the order may be another."""
    world.runs("small", "node-1/0,1,2,3")
    world.waits("old", 1, 8, age=500)
    world.waits("urgent", 2, 8, age=100, priority="high")
    name = tmp_path / "dump.json"
    group, kind = "scheduling.k8s.io/v1", "PriorityClass"
    value = {"apiVersion": group, "kind": kind, "metadata": {"name": "high"}, "value": 7}

    def reserved(*more: Mapping[str, Any]) -> tuple[Proposal, int]:
        queue = engine_choice.read_queue([dumped(world, name, *more)])
        left = planning.queue_in_dumps(queue, "default").left
        planned = propose(world.job("new", 1, 4), None, namespace="default", cluster=left)
        return planned, sum(node.reserved_count for node in left.nodes)

    planned, gpus = reserved()
    assert gpus == 8
    assert "this dump lacks priority class high: another gang may come first" in planned.notes
    planned, gpus = reserved(value)
    assert (gpus, planned.reserved_by) == (12, "default/urgent")
    assert not any("lacks" in note for note in planned.notes)


def test_a_dump_knows_what_waits_for_the_next_start_of_a_gang(world: World, tmp_path: Path) -> None:
    world.runs("small", "node-1/0,1,2,3")
    world.stopped("job", "node-0/0,1,2,3,4,5,6,7", gpus=8)
    queue = engine_choice.read_queue([dumped(world, tmp_path / "dump.json")])
    state = planning.queue_in_dumps(queue, "default").left
    planned = propose(world.job("new", 1, 8), None, namespace="default", cluster=state)
    assert planned.refused is not None
    assert planned.refused.why == (
        "1 node (node-0): reserved for default/job; 1 node (node-1): not enough free GPUs"
    )


def test_odd_objects_in_a_dump_change_no_other_answer(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that makes no sense, a record of the year 9999, a quota with scopes of a number."""
    world.runs("small", "node-1/0,1,2,3")
    world.waits("head", 1, 8, age=500)
    path = tmp_path / "dump.json"
    sound = next(job for job in world.api.all("MPIJob") if job["metadata"]["name"] == "head")

    def tenant(name: str, **annotations: str) -> Mapping[str, Any]:
        job = copy.deepcopy(sound)
        job["metadata"] |= {"name": name, "namespace": "tenant", "uid": name}
        for key, value in annotations.items():
            job["metadata"]["annotations"][f"arena-topo.io/{key}"] = value
        return job

    request = json.loads(sound["metadata"]["annotations"]["arena-topo.io/request"])
    odd = (
        tenant("odd", request=json.dumps({**request, "patience": 99999999999})),
        tenant("late", state="held", recorded="9999-12-31T23:59:59Z"),
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "quota", "namespace": "default"},
            "spec": {"scopes": 5},
        },
    )
    answers = []
    for more in ((), odd):
        state = dumped(world, path, *more)
        code = cli.run(["top", "node", f"--state={state}"])
        answers.append((code, capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert "for default/head" in answers[0][1]


def test_a_job_without_gputopology_is_not_in_the_queue(world: World) -> None:
    """The scheduler of the cluster may give it reserved GPUs."""
    world.runs("small", "node-1/0,1,2,3")
    world.waits("head", 2, 8, age=500)
    plain = replace(world.job("new", 1, 4), gputopology=False)
    proposal = propose(plain, world.backend, namespace="default")
    assert proposal.verdict is Verdict.NOT_NOW
    assert proposal.notes[-1].startswith("12 GPUs of node-0 and node-1 are reserved for default/h")
    assert proposal.comparison is not None
    assert proposal.comparison.first_fit is not None


def test_gpus_that_are_named_may_be_reserved(world: World) -> None:
    world.runs("small", "node-0/0,1")
    world.waits("head", 2, 8, age=500)
    job = world.job("new", 1, 4)
    named = propose(job, world.backend, namespace="default", on="node-0/0,1,2,3")
    assert named.refused is not None
    assert named.refused.why == (
        "GPUs 0, 1 of node-0 are in use by default/small;"
        " GPUs 2, 3 of node-0 are reserved for default/head"
    )


def test_a_reservation_is_named_only_to_a_job_that_it_limits(world: World) -> None:
    # Of the five free GPUs of node-0, which the head waits for, no set of four is promised either.
    world.runs("small", "node-0/0,1,2")
    world.runs("large", "node-1/4,5,6,7")
    world.waits("head", 1, 8, age=500)
    for workers, gpus in ((1, 4), (2, 2)):
        planned = world.plan(workers, gpus)
        assert planned.verdict is Verdict.PLACEABLE
        assert not any("reserved" in note for note in planned.notes)


@pytest.mark.parametrize(
    ("limit", "helps"),
    [(600, "shorter than 9m"), (150, "shorter than 1m"), (0, None), (90, None)],
    ids=str,
)
def test_advice_about_running_timeout_names_the_time_that_helps(
    world: World, limit: int, helps: str | None
) -> None:
    """Without a limit of the jobs that run, no limit of a younger job helps."""
    world.runs("large", "node-0/0,1,2,3,4,5,6,7", running_timeout=limit)
    world.runs("small", "node-1/0,1,2,3", running_timeout=limit)
    world.waits("head", 2, 8, age=500)
    world.waits("late", 1, 2, age=100)
    hint = world.why("late").verdict.hint or ""
    assert hint.startswith("after default/head: arena-topo resume late")
    assert re.findall("shorter.*?m|--running-timeout", hint)[1:] == ([helps] if helps else [])
    refused = world.plan(1, 2)
    assert refused.refused is not None
    assert re.findall("shorter.*?m|--running-timeout", refused.refused.hint or "")[1:] == (
        [helps] if helps else []
    )
    advice = [f"with a --running-timeout {helps} it may start first, as backfill"] if helps else []
    assert plan_json(refused)["advice"] == advice
    # A gang that does not fit without the reservation either is not helped.
    assert plan_json(world.plan(1, 8))["advice"] == []
    for asked, verdict in ((limit - 95, Verdict.PLACEABLE), (limit - 50, Verdict.NOT_NOW)):
        if helps:
            assert world.plan(1, 2, running_timeout=asked).verdict is verdict
    done = submission.submit(world.job("new", 1, 2), world.backend, namespace="default")
    assert done.nearest == (advice[0] if helps else None)


def test_a_gang_that_never_fits_is_ahead_of_no_other(world: World) -> None:
    world.runs("busy", "node-0/0,1,2,3")
    world.waits("huge", 3, 8, age=900)
    world.waits("head", 2, 8, age=500)
    world.waits("late", 2, 8, age=100)
    turn = world.why("late").turn
    assert turn is not None
    assert (turn.place, turn.of, [one.name for one in turn.ahead]) == (2, 2, ["head"])


@pytest.mark.parametrize(
    ("running", "asked", "nearest"),
    [
        (
            {"gang": "node-1/0,1,2,3,4,5,6,7;node-3/0,1,2,3,4,5,6,7", "small": "node-2/0"},
            (16, 1),
            "when 1 more GPU of node-2 is free",
        ),
        (
            {"gang": "node-0/0;node-3/0", "whole": "node-2/0,1,2,3,4,5,6,7", "pair": "node-1/0,1"},
            (1, 8),
            "when 1 more GPU of node-0 is free",
        ),
        (
            {
                "gang": "node-0/0,1;node-1/0,1;node-2/0,1",
                "four": "node-3/0,1,2,3",
            },
            (1, 8),
            "when 4 more GPUs of node-3 are free",
        ),
    ],
    ids=["a GPU of a small job", "as few GPUs", "a smaller job with more GPUs there"],
)
def test_of_several_releases_that_is_named_by_which_other_jobs_lose_least(
    tmp_path: Path, running: dict[str, str], asked: tuple[int, int], nearest: str
) -> None:
    """A gang of which one worker ends ends whole."""
    world = World(tmp_path, nodes=4)
    for name, places in running.items():
        world.runs(name, places)
    refused = world.plan(*asked).refused
    world.api.close()
    assert refused is not None
    assert (refused.nearest or "").endswith(nearest), refused.nearest


def changes(nearest: str | None) -> list[dict[str, int]]:
    """The sizes that an answer says to fit now."""
    now = re.match(r"fits now (.*?)(?:; or (?:for example )?when .*)?$", nearest or "")
    ways = now[1].split(", or ") if now else []
    return [
        {flag: int(number) for flag, number in re.findall(r"--(workers|gpus) (\d+)", way)}
        for way in ways
        if re.fullmatch(r"with --(workers|gpus) \d+(?: and --(workers|gpus) \d+)?", way)
    ]


Release = dict[str, tuple[int, set[int]]]
"""The number of GPUs to free of each node, and which count."""


def released(nearest: str | None) -> Release:
    """The GPUs that an answer says to free."""
    when = re.search(r"when (.*) (?:is|are) free$", nearest or "")
    if when is None:
        return {}
    if whole := re.fullmatch(r"all GPUs of (.*)", when[1]):
        return dict.fromkeys(re.split(r", | and ", whole[1]), (8, set(range(8))))
    found: Release = {}
    some = r"(?:(\d+)(?: more GPUs?)?(?: of the)?)? ?(?:GPUs? ([\d, and]+))? of (?:node )?(node-\d)"
    for number, which, name in re.findall(some, when[1]):
        gpus = set(map(int, re.findall(r"\d", which))) or set(range(8))
        found[name] = int(number or len(gpus)), gpus
    return found


def free(world: World, wanted: Release) -> None:
    """End jobs until so many more GPUs of each node are free."""
    for name, (number, which) in wanted.items():
        missing = number
        for holder, places in list(world.holders.items()):
            here = [gpu for _, at, gpus in parse_map(places) if at == name for gpu in gpus]
            if missing > 0 and which & {*here}:
                world.end(holder)
                missing -= len(which & {*here})


def filled(world: World, source: random.Random, nodes: int) -> list[str]:
    """Jobs on some of the GPUs, and one to three gangs that wait; their names."""
    for at in range(nodes):
        gpus = list(range(8))
        while gpus and source.random() < 0.75:
            size = min(len(gpus), source.choice([1, 2, 4, 8]))
            mine, gpus = gpus[:size], gpus[size:]
            world.runs(f"runs-{at}-{mine[0]}", f"node-{at}/{','.join(map(str, mine))}")
    shapes = [(1, 8), (2, 8), (1, 4), (2, 4), (4, 2), (3, 8), (8, 1)]
    waiting = [f"waits-{at}" for at in range(source.randint(1, 3))]
    for at, name in enumerate(waiting):
        world.waits(name, *source.choice(shapes), age=500.0 - at)
    return waiting


@pytest.mark.parametrize("seed", [*range(8), 139, 160])
def test_what_plan_and_why_advise_helps(tmp_path: Path, seed: int) -> None:
    """Each change that fits now can be planned, and a release lets the job start."""

    def made() -> tuple[World, list[str], tuple[int, int]]:
        source = random.Random(seed)
        (folder := tmp_path / str(source.random())).mkdir(exist_ok=True)
        nodes = source.randint(2, 3)
        world = World(folder, nodes)
        waiting = filled(world, source, nodes)
        return world, waiting, source.choice([(1, 8), (2, 4), (2, 8), (1, 6), (4, 4)])

    world, waiting, (workers, gpus) = made()
    refused = world.plan(workers, gpus).refused
    if refused is not None and refused.verdict is Verdict.NOT_NOW:
        for change in changes(refused.nearest):
            found = world.plan(**{"workers": workers, "gpus": gpus, **change})
            assert found.verdict is Verdict.PLACEABLE, refused.nearest
        done = submission.submit(
            world.job("new", workers, gpus), world.backend, namespace="default"
        )
        assert done.nearest == refused.nearest
        assert world.why("new").nearest == refused.nearest
        world.end("new")
        if released(refused.nearest):
            free(world, released(refused.nearest))
            assert world.plan(workers, gpus).verdict is Verdict.PLACEABLE, refused.nearest
    world.api.close()
    for name in waiting:
        world, _, _ = made()
        nearest = world.why(name).nearest
        if released(nearest):
            free(world, released(nearest))
            code = world.why(name).verdict.code.value
            assert code in {"NobodyStarts", "Starting"}, nearest
            world.api.close()
            world, _, _ = made()
        job = shape_of(world, name)
        world.end(name)
        for change in changes(nearest):
            found = world.plan(**{**job, **change})
            assert found.verdict is Verdict.PLACEABLE, nearest
        world.api.close()


def shape_of(world: World, name: str) -> dict[str, int]:
    stored = world.api.tables["mpijobs.kubeflow.org"]["default", name].thing
    worker = stored["spec"]["mpiReplicaSpecs"]["Worker"]
    limits = worker["template"]["spec"]["containers"][0]["resources"]["limits"]
    return {"workers": worker["replicas"], "gpus": int(limits["nvidia.com/gpu"])}
