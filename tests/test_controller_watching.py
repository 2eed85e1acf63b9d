"""The controller watches: nothing is listed twice, and no broken or late watch leads it astray."""

from __future__ import annotations

import random
import re
import time

import pytest
from exhaustive import all_but
from test_controller import World, world

from arena_topo.admin import controller
from arena_topo.admin.controller import PERIOD, Wake
from arena_topo.engines.kubernetes import connection, watch_cache
from arena_topo.engines.kubernetes.queued import MOST_TRIES
from arena_topo.errors import ClusterError
from arena_topo.gang.loss import TOLERATED
from arena_topo.gang.resume import resume_job
from arena_topo.manifests import MAP, STATE, TRIES_ANNOTATION
from arena_topo.manifests.annotations import parse_map

__all__ = ["world"]
"""The fixture."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again at once."""
    monkeypatch.setattr(watch_cache, "_FIRST_DELAY", 0.001)
    monkeypatch.setattr(watch_cache, "_LAST_DELAY", 0.02)
    monkeypatch.setattr(connection, "_FIRST_DELAY", 0.001)


def lists(here: World) -> list[str]:
    """The lists that were asked for since the last look."""
    found = [one for one in here.api.requests if re.fullmatch(r"GET \S+/[a-z]+(\?.*)?", one)]
    here.api.requests.clear()
    kinds = ("nodes", "pods", "mpijobs", "configmaps", "priorityclasses", "resourceslices")
    return [
        one
        for one in found
        if one.partition("?")[0].endswith(kinds) and "watch=1" not in one and "dryRun" not in one
    ]


def until(holds, what: str) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def test_a_controller_lists_once_and_then_asks_for_nothing_while_nothing_happens(world):
    here = world(2)
    here.submit("job", workers=4)
    here.rounds()
    here.api.requests.clear()
    here.rounds(5)
    assert [one for one in here.api.requests if "/version" not in one] == []


@pytest.mark.parametrize("break_off", ["closed", "forgotten"])
def test_what_happened_while_a_watch_was_broken_is_not_missed(world, break_off):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("second", workers=8)
    here.rounds()
    here.api.requests.clear()
    here.backend.delete("first", "default")
    here.cluster.settle()
    if break_off == "closed":
        here.api.close_watches()
    else:
        here.api.compact()
    here.rounds(2)
    assert here.runs("second")


def test_a_watch_goes_on_from_where_it_was_and_lists_again_only_where_that_is_forgotten(world):
    here = world(1)
    here.rounds()
    lists(here)
    here.api.close_watches()
    here.cluster.node("another")
    here.caught_up()
    assert lists(here) == []
    here.api.compact()
    here.cluster.node("a-third")
    here.caught_up()
    assert [one.partition("?")[0] for one in lists(here)].count("GET /api/v1/nodes") == 1
    assert {node.name for node in here.queue.read().cluster().nodes} == {
        "node-0",
        "another",
        "a-third",
    }


def test_a_deletion_that_no_watch_delivered_is_seen_by_the_next_list(world, monkeypatch):
    here = world(2)
    here.rounds()
    with here.api.lock:
        lost = next(key for key in here.api.tables["nodes"] if "node-1" in key)
        del here.api.tables["nodes"][lost]
    monkeypatch.setattr(watch_cache, "LIST_AGAIN", 0.0, raising=False)
    monkeypatch.setattr(watch_cache, "WATCH", 0.1)
    here.api.close_watches()
    until(
        lambda: [node.name for node in here.queue.read().cluster().nodes] == ["node-0"],
        "the node is gone",
    )


def test_a_list_that_is_read_again_without_a_change_wakes_nobody(world, monkeypatch):
    monkeypatch.setattr(watch_cache, "LIST_AGAIN", 0.0, raising=False)
    monkeypatch.setattr(watch_cache, "WATCH", 0.1)
    here = world(1)
    here.queue.unwatch()
    woken: list[float] = []
    here.queue.watch(lambda: woken.append(time.monotonic()))
    here.rounds()
    before, again = len(woken), []
    here.api.close_watches()

    def listed_again() -> bool:
        again.extend(one for one in lists(here) if "/nodes" in one)
        return len(again) > 2

    until(listed_again, "the nodes are listed again")
    assert len(woken) == before


def test_a_cluster_that_cannot_be_watched_any_more_is_not_taken_for_one_that_stands_still(world):
    here = world(1)
    here.rounds()
    here.api.fail("GET .*/pods", status=400, times=10**6)
    here.api.close_watches()
    until(lambda: not readable(here), "the controller knows that it does not see pods any more")
    here.api.faults.clear()
    until(lambda: readable(here), "pods are read again")
    here.rounds()


def readable(here: World) -> bool:
    try:
        here.controller.round()
    except ClusterError:
        return False
    return True


def test_what_may_be_listed_but_not_watched_is_listed_again_after_a_while(world, monkeypatch):
    monkeypatch.setattr(watch_cache, "ASK_AGAIN", 0.05)
    here = world(1)
    here.queue.unwatch()
    here.api.deny("watch configmaps .*")
    here.queue.watch(lambda: None)
    here.rounds()
    here.machine("late")

    def known() -> int:
        nodes = here.queue.read().cluster().nodes
        return [one.machine.knowledge for one in nodes].count(nodes[-1].machine.knowledge)

    until(lambda: known() == 2, "what is published of the late node is known as of the first")


def test_a_priority_class_counts_as_soon_as_it_is_there(world):
    here = world(1)
    here.submit("first", workers=8)
    here.rounds()
    here.api.add(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        }
    )
    here.submit("ordinary", workers=8)
    here.later(2)
    here.submit("pressing", workers=8, priority="urgent")
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert (here.runs("ordinary"), here.runs("pressing")) == (False, True)


@pytest.mark.parametrize("classed", ["old", "young"])
def test_a_gang_without_a_priority_class_has_that_of_the_default(world, classed):
    here = world(1)
    for name, value, default in (("usual", 1000, True), ("low", 100, False)):
        here.api.add(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": name},
                "value": value,
                "globalDefault": default,
            }
        )
    here.submit("first", workers=8)
    for name in ("old", "young"):
        here.submit(name, workers=8, priority="low" if name == classed else "")
        here.later(2)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.submit("last", workers=8, priority="low")
    assert not here.runs("last")
    here.rounds(2)
    assert not here.runs(classed)
    assert here.runs("young" if classed == "old" else "old")


def late(here: World, kind: str) -> None:
    """From now on the controller hears nothing more of objects of a kind."""
    for one in here.queue._cache._watches:
        if one.source.kind == kind:
            one._take = lambda *_args, **_more: False


def test_a_node_that_is_back_moves_nobody_though_the_controller_has_not_heard_of_it(world):
    here = world(2)
    here.submit("job", workers=4)
    (node,) = here.nodes("job")
    here.cluster.lose(node)
    here.rounds()
    late(here, "Node")
    here.cluster.restore(node)
    here.later(TOLERATED + 1)
    here.rounds(2)
    assert here.runs("job")
    assert here.nodes("job") == {node}


def test_an_eviction_that_is_no_longer_there_stops_no_gang(
    world,
):
    here = world(1)
    here.submit("job", workers=4)
    with here.api.edit("Pod", "job-worker-2") as pod:
        before = dict(pod["status"])
        pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "disk"}
    here.cluster.operates = False
    here.caught_up()
    late(here, "Pod")
    with here.api.edit("Pod", "job-worker-2") as pod:
        pod["status"] = before
    here.rounds(2)
    assert here.runs("job")
    assert not [line for line in here.said if "taken back" in line]


def test_a_worker_at_its_gate_goes_where_the_record_says_now(world):
    here = world(2)
    here.submit("job", workers=2)
    (node,) = here.nodes("job")
    other = ({"node-0", "node-1"} - {node}).pop()
    here.caught_up()
    late(here, "MPIJob")
    with here.api.edit("MPIJob", "job") as one:
        notes = one["metadata"]["annotations"]
        notes[MAP] = notes[MAP].replace(node, other)
    here.api.remove("pods", "default", "job-worker-1", {})
    here.cluster.settle()
    here.rounds(2)
    assert here.cluster.workers("job")[1]["spec"]["nodeName"] == other


class Awaken(Wake):
    """Lets something happen while the controller waits for the third time."""

    def __init__(self, here: World) -> None:
        super().__init__()
        self.here, self.waits, self.ended = here, [], False

    def wait(self, least: float, most: float) -> bool:
        assert least <= most
        self.waits.append(most)
        if len(self.waits) < 3:
            return super().wait(0.0, 0.05)
        self.here.cluster.cordon("node-0")
        self.ended = super().wait(0.0, 60.0)
        self.stop()
        return self.ended


def test_a_change_ends_the_wait_of_an_idle_controller(world):
    here = world(1)
    here.queue.unwatch()
    wake = Awaken(here)
    controller._rounds(here.controller, here.queue.lease("a"), wake, here.said.append)
    assert wake.ended
    assert wake.waits[-1] > PERIOD


# ---------------------------------------------------------------- hours with broken watches


class Life:
    """Gangs come and go and machines fail, and so do the watches of the controller."""

    def __init__(self, here: World, dice: random.Random) -> None:
        self.here, self.dice, self.made = here, dice, 0
        self.silent: dict[str, float] = {}

    def step(self) -> None:
        here, dice = self.here, self.dice
        dice.choice((self.arrive, self.leave, self.fall_silent, self.come_back, self.evict))()
        match dice.randrange(8):
            case 0:
                here.api.close_watches()
            case 1:
                here.api.compact()
            case 2:
                here.api.fail(r"GET .*watch=1", status=500, times=dice.randrange(1, 4))
                here.api.close_watches()
            case 3:
                here.api.fail(r"GET .*watch=1", reset=True, times=dice.randrange(1, 6))
                here.api.close_watches()
            case 4:
                here.api.fail(r"GET .*/(pods|nodes|mpijobs)\?", status=410, times=2)
                here.api.compact()
            case _:
                pass
        here.cluster.settle()
        here.rounds()
        for _ in range(dice.randrange(1, 4)):
            here.later(dice.choice((2, 15, 70, 400)))
            here.rounds()

    def arrive(self) -> None:
        self.made += 1
        workers = self.dice.choice((2, 4, 8, 12))
        self.here.submit(f"gang-{self.made}", workers=workers, gang_timeout=600)

    def leave(self) -> None:
        if jobs := self.jobs():
            name = self.dice.choice(jobs)["metadata"]["name"]
            self.here.backend.delete(name, "default")

    def fall_silent(self) -> None:
        node = f"node-{self.dice.randrange(3)}"
        if node not in self.silent and len(self.silent) < 2:
            self.here.cluster.lose(node)
            self.silent[node] = self.here.time

    def come_back(self) -> None:
        if self.silent:
            node = self.dice.choice(sorted(self.silent))
            self.here.cluster.restore(node)
            del self.silent[node]

    def evict(self) -> None:
        if running := [
            pod["metadata"]["name"]
            for pod in self.here.api.all("Pod")
            if "-worker-" in pod["metadata"]["name"]
            and pod["spec"].get("nodeName") not in {None, *self.silent}
        ]:
            self.here.cluster.evict(self.dice.choice(running))

    def jobs(self) -> list[dict]:
        return self.here.api.all("MPIJob")

    def check(self) -> None:
        """No GPU is given to two gangs, and none stays on a machine that was lost long ago."""
        held: set[tuple[str, int]] = set()
        for job in self.jobs():
            notes = job["metadata"]["annotations"]
            if notes[STATE] != "placed":
                continue
            for _, node, gpus in parse_map(notes[MAP]):
                mine = {(node, gpu) for gpu in gpus}
                assert not held & mine, (job["metadata"]["name"], node)
                held |= mine
                lost = self.silent.get(node)
                assert lost is None or self.here.time - lost <= TOLERATED, node


@pytest.mark.parametrize("seed", all_but(1, range(4)))
def test_hours_of_a_life_with_broken_watches(world, seed):
    here = world(3)
    life = Life(here, random.Random(seed))
    begun = here.time
    while here.time - begun < 2 * 3600:
        life.step()
        life.check()
    # All that is in the way goes. Who waits then starts, and so does a gang that was evicted too
    # often to be tried again, once its owner resumes it.
    here.api.faults.clear()
    for node in sorted(life.silent):
        here.cluster.restore(node)
    life.silent.clear()
    here.later(200)
    here.rounds(3)
    for _ in range(life.made):
        for job in life.jobs():
            name = job["metadata"]["name"]
            if job["spec"]["runPolicy"].get("suspend") is not True:
                here.backend.delete(name, "default")
            elif int(job["metadata"]["annotations"].get(TRIES_ANNOTATION, 0)) >= MOST_TRIES:
                with here.cluster.running():
                    resume_job(here.backend, name, "default")
        here.cluster.settle()
        here.later(40)
        here.rounds(2)
        if not life.jobs():
            break
    assert life.jobs() == []
