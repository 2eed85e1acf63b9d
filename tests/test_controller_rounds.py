"""The rounds of the controller: nothing stops them, they stay short, and only one leads."""

from __future__ import annotations

from typing import Any, Never

from test_controller import World, world

from arena_topo.admin import controller
from arena_topo.admin.controller import LEASE_PERIOD, MOST_STARTS, PERIOD, Wake
from arena_topo.engines.kubernetes import jobs, lease
from arena_topo.engines.kubernetes.lease import DURATION
from arena_topo.gang import planning, pod_state
from arena_topo.job import MPIJob
from arena_topo.manifests import MAP, STATE, pins
from arena_topo.notes import Alert

__all__ = ["world"]
"""The fixture."""


def nonsense(*_args: object, **_more: object) -> Never:
    """What a job may lead to that nobody thought of."""
    raise KeyError("evil")


def test_a_running_job_that_makes_no_sense_does_not_stop_the_others_and_is_told_of_once(
    world, monkeypatch
):
    here = world(2)
    here.submit("evil", workers=8)
    here.submit("first", workers=8)
    here.submit("second", workers=8)
    places = pod_state.worker_places

    def evil(mpijob: dict, pods: list) -> list:
        return nonsense() if mpijob["metadata"]["name"] == "evil" else places(mpijob, pods)

    monkeypatch.setattr(pod_state, "worker_places", evil)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(3)
    assert here.runs("second")
    assert [line for line in here.said if "evil" in line] == ["default/evil: KeyError: 'evil'"]


def test_a_waiting_job_that_makes_no_sense_does_not_stop_the_others(world, monkeypatch):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("evil", workers=4)
    here.later(2)
    here.submit("fine", workers=4)
    here.backend.delete("first", "default")
    here.cluster.settle()
    decide = planning.decide

    def decided(job: MPIJob, *rest: Any, **more: Any) -> Any:
        return nonsense() if job.name == "evil" else decide(job, *rest, **more)

    monkeypatch.setattr(planning, "decide", decided)
    here.rounds()
    assert not here.runs("evil")
    assert here.runs("fine")
    assert "default/evil: KeyError: 'evil'" in here.said


def test_a_record_left_behind_that_makes_no_sense_does_not_stop_the_others(world, monkeypatch):
    here = world(1)
    here.submit("first", workers=4)
    for name in ("evil", "left"):
        here.submit(name, workers=8)
    for name in ("evil", "left"):
        with here.api.edit("MPIJob", name) as one:
            one["metadata"]["annotations"] |= {STATE: "placed", MAP: "node-9/0"}
    unplaced = pins.without_pins

    def evil(mpijob: dict) -> dict:
        return nonsense() if mpijob["metadata"]["name"] == "evil" else unplaced(mpijob)

    monkeypatch.setattr(pins, "without_pins", evil)
    here.rounds()
    assert (here.state("evil"), here.state("left")) == ("placed", "waiting")
    assert "default/evil: KeyError: 'evil'" in here.said


class Rounds(Wake):
    """Ends the rounds after so many; nobody really waits between them."""

    def __init__(self, world: World, rounds: int) -> None:
        super().__init__()
        self.world, self.left, self.waits = world, rounds, []

    def wait(self, least: float, most: float) -> bool:
        self.waits.append(most)
        self.world.later(most)
        self.world.caught_up()
        self.left -= 1
        if not self.left:
            self.stop()
        return least < most


def test_a_view_that_cannot_be_published_delays_nothing_and_is_told_of_once(world):
    here = world(1)
    here.submit("first", workers=8)
    here.submit("second", workers=8)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.api.fail("(POST|PUT) .*configmaps", status=403, times=1000)
    stop = Rounds(here, 12)
    controller._rounds(here.controller, here.backend.queue.lease("a"), stop, here.said.append)
    assert max(stop.waits) <= LEASE_PERIOD
    assert here.runs("second")
    assert len([line for line in here.said if "the published view" in line]) == 1


def test_a_controller_whose_requests_fail_tries_often_enough_to_keep_its_lease(world):
    here = world(1)
    here.queue.unwatch()
    here.api.fail("GET .*/nodes", status=400, times=1000)
    stop = Rounds(here, 8)
    controller._rounds(here.controller, here.backend.queue.lease("a"), stop, here.said.append)
    assert PERIOD < max(stop.waits) < DURATION / 2
    assert len([line for line in here.said if isinstance(line, Alert)]) == 8


def test_a_round_ends_at_once_when_another_controller_has_the_lease(world):
    here = world(2)
    for name in ("a", "b", "c"):
        here.submit(name, workers=16)
    here.backend.delete("a", "default")
    here.cluster.settle()
    answers = iter([True] * 2)
    here.controller.round(lambda: next(answers, False))
    assert not here.runs("b")
    here.rounds()
    assert here.runs("b")


def test_the_lease_is_renewed_within_a_long_round(world):
    here = world(2)
    for index in range(4):
        here.submit(f"job-{index}", workers=2)
    renewed: list[str] = []

    def slow() -> None:
        here.later(DURATION)
        renewed.append(
            here.api.find("Lease", lease.LEASE_NAME, lease.NAMESPACE)["spec"]["renewTime"]
        )

    # Looking after each of them takes long.
    for index in range(4):
        with here.api.edit("Pod", f"job-{index}-worker-0") as pod:
            pod["status"]["phase"] = "Pending"
    here.cluster.operates = False
    here.api.before("GET .*/events", slow, times=4)
    stop = Rounds(here, 1)
    controller._rounds(here.controller, here.backend.queue.lease("a"), stop, here.said.append)
    assert len(set(renewed)) == 4


def test_a_round_starts_ten_gangs_at_most_and_reads_the_cluster_twice_for_each(world):
    here = world(2)
    here.submit("first", workers=16)
    for index in range(12):
        here.submit(f"job-{index:02}", workers=1)
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.api.requests.clear()
    here.rounds()
    reads = [line for line in here.api.requests if line.startswith("GET /api/v1/nodes")]
    assert len(reads) <= 2 * MOST_STARTS + 1
    assert sum(here.runs(f"job-{index:02}") for index in range(12)) == MOST_STARTS
    here.rounds()
    assert all(here.runs(f"job-{index:02}") for index in range(12))


def test_policies_are_looked_at_anew_after_a_minute(world, monkeypatch):
    here = world(1)

    def probes() -> int:
        here.api.requests.clear()
        here.backend.mechanisms("default")
        return sum("pods?dryRun=All" in line for line in here.api.requests)

    assert (probes(), probes()) == (1, 0)
    monkeypatch.setattr(jobs, "PROBED", 0.0)
    assert probes() == 1


def test_a_quota_that_is_counted_late_delays_a_gang_that_fits_for_seconds(world):
    """The usage of a quota is not watched, and follows the end of pods."""
    here = world(2)
    here.cluster.quota(gpus="4")
    here.submit("first", workers=4)
    here.submit("next", workers=4)
    here.rounds(2)
    here.later(40)
    here.rounds(2)
    here.api.counts_quotas = False
    here.backend.delete("first", "default")
    here.cluster.settle()
    here.rounds(2)
    assert not here.runs("next")
    here.api.counts_quotas = True
    with here.api.edit("ResourceQuota", "gpu-quota"):
        pass
    for _ in range(2):
        here.later(2)
        here.rounds()
    assert here.runs("next")
    # Nothing else happens: it is looked at more and more seldom.
    here.submit("last", workers=4)
    here.rounds(2)
    here.api.requests.clear()
    for _ in range(60):
        here.later(2)
        here.rounds()
    assert 4 <= sum("resourcequotas" in line for line in here.api.requests) <= 16


def test_many_gangs_whose_quota_is_short_take_one_list_of_quotas_in_a_round(world):
    here = world(8)
    here.cluster.quota(gpus="4")
    here.submit("first", workers=4)
    here.rounds()
    for nth in range(6):
        here.submit(f"waits-{nth}", workers=4)
    here.caught_up()
    here.api.requests.clear()
    here.controller.round()
    assert sum("resourcequotas" in line for line in here.api.requests) == 1
