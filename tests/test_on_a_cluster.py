"""Placement, binding, race, rights and faults, as a real cluster must pass them unchanged.

Everything is asked for and looked at over HTTP. Machines are made up, with a product whose links
are known, and every job of a test keeps to those of that test.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clusters import Live
from exhaustive import all_but
from fake_api import kubeconfig
from proxy import Proxy

from arena_topo import cli
from arena_topo.admin import controller
from arena_topo.engines import Options, Phase
from arena_topo.engines.kubernetes import connection
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.errors import AccessDenied
from arena_topo.gang import Watcher, submission
from arena_topo.gang.replan import replan_job
from arena_topo.gang.resume import resume_job
from arena_topo.gang.suspend import suspend_job
from arena_topo.job import BindingChoice, KeyValue, MPIJob
from arena_topo.manifests import FORECAST, GPU_GROUP, MAP, STATE, install
from arena_topo.manifests.annotations import parse_map
from arena_topo.topology import TAINT

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
Arena = Callable[..., tuple[int, str, str]]

JOBS = "kubeflow.org/v2beta1"
PRODUCT = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
MINE = "test.example/run"
"""Label of the machines of one test."""
PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}


@dataclass(slots=True)
class Site:
    """Two machines with eight GPUs each, and whoever submits to them."""

    live: Live
    nodes: tuple[str, ...] = ()
    told: list[str] = field(default_factory=list)

    @property
    def label(self) -> KeyValue:
        """What only the machines of this test carry."""
        return KeyValue(key=MINE, value=self.live.run)

    def backend(self, config: str | None = None) -> kubernetes.KubernetesBackend:
        return kubernetes.open_kubernetes(Options(kubeconfig=config or self.live.config))

    def job(self, name: str, workers: int = 4, gpus: int = 2, **more: Any) -> MPIJob:
        return MPIJob(
            name=name,
            command="mpirun true",
            image="fine",
            workers=workers,
            gpus=gpus,
            gputopology=True,
            gang=True,
            selector=(self.label,),
            **more,
        )

    def words(self, name: str, workers: int = 4, gpus: int = 2) -> tuple[str, ...]:
        """The same as a command line."""
        return (
            *("submit", "mpi", f"--name={name}", "--image=fine", f"--workers={workers}"),
            *(f"--gpus={gpus}", "--gputopology", "--gang"),
            *(f"--selector={self.label.key}={self.label.value}", "mpirun true"),
        )

    def submit(self, name: str, workers: int = 4, gpus: int = 2, **more: Any) -> Any:
        job = self.job(name, workers, gpus, **more)
        return submission.submit(
            job,
            self.backend(),
            namespace=self.live.namespace,
            watcher=Watcher(tell=self.told.append),
        )

    def resume(self, name: str) -> bool:
        return resume_job(self.backend(), name, self.live.namespace).resumed

    def delete(self, name: str) -> None:
        """Delete a job, and wait until its pods have let go of their GPUs."""
        self.backend().delete(name, self.live.namespace)
        self.live.until(lambda: not self.pods(name), f"the pods of {name} end")

    # What the server says.

    def stored(self, name: str) -> Object | None:
        answer = self.live.call("GET", self.live.path("mpijobs", name, group=JOBS))
        assert answer.status in {200, 404}, answer.said
        return answer.body if answer.status == 200 else None

    def there(self, name: str) -> Object:
        found = self.stored(name)
        assert found is not None, f"there is no job {name}"
        return found

    def names(self) -> list[str]:
        found = self.live.call("GET", self.live.path("mpijobs", group=JOBS)).body["items"]
        return sorted(one["metadata"]["name"] for one in found)

    def pods(self, name: str) -> dict[int, Object]:
        """The workers of a job that are there, by index; those on their way out too."""
        found = self.live.call("GET", self.live.path("pods")).body["items"]
        prefix = f"{name}-worker-"
        return {
            int(one["metadata"]["name"].removeprefix(prefix)): one
            for one in found
            if one["metadata"]["name"].startswith(prefix)
        }

    def bound(self, name: str) -> dict[int, str]:
        """The node of each worker that has one and stays."""
        return {
            index: pod["spec"]["nodeName"]
            for index, pod in self.pods(name).items()
            if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        }

    def record(self, name: str) -> dict[int, tuple[str, tuple[int, ...]]]:
        """The node and the GPUs of each worker, as they are recorded on the job."""
        text = self.there(name)["metadata"]["annotations"][MAP]
        return {index: (node, gpus) for index, node, gpus in parse_map(text)}

    def runs(self, name: str) -> bool:
        found = self.there(name)
        state = found["metadata"]["annotations"][STATE]
        return state == "placed" and found["spec"]["runPolicy"]["suspend"] is False

    def whole(self, name: str, workers: int = 4) -> None:
        """A gang that runs: every worker is on the node that the record says."""
        assert self.runs(name), self.there(name)["metadata"]["annotations"]
        planned = {index: node for index, (node, _) in self.record(name).items()}
        assert len(planned) == workers
        self.live.until(lambda: self.bound(name) == planned, f"{name} is where it should be")

    def queued(self, name: str, state: str = "waiting") -> str:
        """A gang that holds nothing; the reason it gives."""
        found = self.there(name)
        notes = found["metadata"]["annotations"]
        assert (notes[STATE], found["spec"]["runPolicy"]["suspend"]) == (state, True)
        assert MAP not in notes
        template = found["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        assert not template["spec"].get("schedulingGates"), "its workers are pinned no more"
        self.live.until(lambda: not self.pods(name), f"{name} has no pods")
        return str(json.loads(notes[FORECAST]).get("reason"))

    def twice(self) -> list[str]:
        """The GPUs that two workers hold: by the records at one moment, and by the bound pods."""
        found: dict[tuple[str, str, int], list[str]] = {}
        for job in self.live.call("GET", self.live.path("mpijobs", group=JOBS)).body["items"]:
            name, notes = job["metadata"]["name"], job["metadata"]["annotations"]
            if job["spec"]["runPolicy"]["suspend"] is False:
                for index, node, gpus in parse_map(notes[MAP]):
                    for gpu in gpus:
                        found.setdefault(("record", node, gpu), []).append(f"{name}-{index}")
        for pod in self.live.call("GET", self.live.path("pods")).body["items"]:
            gpus = (pod["metadata"].get("annotations") or {}).get(GPU_GROUP)
            if gpus and (node := pod["spec"].get("nodeName")):
                for gpu in gpus.split(","):
                    found.setdefault(("pod", node, int(gpu)), []).append(pod["metadata"]["name"])
        return [f"{gpu}: {holders}" for gpu, holders in found.items() if len(holders) > 1]


@pytest.fixture
def site(live: Live, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The parameter `kept`: machines that arena-topo alone fills, so that it chooses GPUs there."""
    site, kept = Site(live), getattr(request, "param", "") == "kept"
    labels = PRODUCT | {MINE: live.run} | ({TAINT: "true"} if kept else {})
    taints = [{"key": TAINT, "value": "true", "effect": "NoSchedule"}] if kept else []
    site.nodes = tuple(
        live.node(f"node-{index}", labels=labels, taints=taints) for index in range(2)
    )

    def usable() -> bool:
        found = [live.call("GET", f"/api/v1/nodes/{name}").body for name in site.nodes]
        left = [one for node in found for one in node["spec"].get("taints") or ()]
        return all(one["key"] == TAINT for one in left)

    with live.alive():
        live.until(usable, "the control plane takes the made-up machines for ready")
        yield site


def created(live: Live, body: Object) -> str | None:
    """Create an object of any kind; its path, None where there is one of that name already."""
    meta, version = body["metadata"], body["apiVersion"]
    plural = PLURALS.get(body["kind"], f"{body['kind'].lower()}s")
    space = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    root = f"{'/api' if version == 'v1' else '/apis'}/{version}{space}/{plural}"
    answer = live.call("POST", root, body)
    assert answer.status in {201, 409}, answer.said
    return f"{root}/{meta['name']}" if answer.status == 201 else None


@pytest.fixture
def system(site: Site) -> Iterator[str]:
    """The namespace of the controller, which goes again unless it was there before."""
    live, name = site.live, install.SYSTEM
    path = f"/api/v1/namespaces/{name}"
    # One that the test before has deleted may still be on its way out.
    live.until(
        lambda: not (live.call("GET", path).body.get("metadata") or {}).get("deletionTimestamp"),
        f"namespace {name} is gone",
    )
    mine = created(live, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    if mine:
        live.call("DELETE", mine)


@pytest.fixture
def arena(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Arena:
    """Run a command line with a kubeconfig; (exit code, stdout, stderr)."""

    def run(config: str, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("KUBECONFIG", config)
        capfd.readouterr()
        code = cli.run(words)
        return code, *capfd.readouterr()

    return run


# Placement


def test_two_gangs_land_whole_and_apart(site: Site, arena: Arena):
    space = f"--namespace={site.live.namespace}"
    code, _, err = arena(site.live.config, *site.words("one"), space)
    assert code == 0, err
    assert site.submit("two").starter is None
    for name in ("one", "two"):
        site.whole(name)
    used = [{node for node, _ in site.record(name).values()} for name in ("one", "two")]
    assert sorted(used, key=min) == sorted(({one} for one in site.nodes), key=min)
    assert site.twice() == []
    code, out, err = arena(site.live.config, "get", "one", space, "-o", "json")
    assert code == 0, err
    assert site.nodes[0] in out or site.nodes[1] in out


def test_a_gang_that_does_not_fit_waits_with_the_reason_until_it_is_resumed(site: Site):
    site.submit("first", gpus=4)
    done = site.submit("late", gpus=4)
    assert "GPU" in site.queued("late")
    assert done.plan.waiting == site.queued("late")
    assert "arena-topo resume late" in done.starter
    assert not site.resume("late")
    site.queued("late")
    site.delete("first")
    assert site.resume("late")
    site.whole("late")


@pytest.mark.usefixtures("system")
def test_a_gang_that_waits_is_started_by_the_controller_once_there_is_room(site: Site):
    site.submit("first", gpus=4)
    site.submit("late", gpus=4)
    controller.run_controller(site.backend(), once=True)
    site.queued("late")
    site.delete("first")
    started(site, "late")
    site.whole("late")


def started(site: Site, name: str, config: str | None = None) -> None:
    """Let a controller do its rounds until all workers of a job have their nodes."""
    said: list[str] = []

    def done() -> bool:
        controller.run_controller(site.backend(config), once=True, tell=said.append)
        return site.runs(name) and len(site.bound(name)) == len(site.record(name))

    site.live.until(done, f"the controller starts {name}: {said}")
    assert [line for line in said if f"/{name}: " in line] in (
        [f"{site.live.namespace}/{name}: started"],
        [],
    )


def test_a_gang_is_suspended_and_resumed(site: Site):
    site.submit("gang", gpus=4)
    suspend_job(site.backend(), "gang", site.live.namespace)
    site.queued("gang", "held")
    assert site.backend().job("gang", site.live.namespace).phase is Phase.SUSPENDED
    assert site.submit("next", gpus=4).starter is None
    site.delete("next")
    assert site.resume("gang")
    site.whole("gang")


def test_a_gang_leaves_a_cordoned_node_when_it_is_placed_anew(site: Site):
    site.submit("gang", 1, 8)
    [(before, _)] = site.record("gang").values()
    off = {"spec": {"unschedulable": True}}
    assert site.live.call("PATCH", f"/api/v1/nodes/{before}", off, kind="merge").status == 200
    watcher = Watcher(tell=site.told.append)
    outcome = replan_job(site.backend(), "gang", site.live.namespace, watcher)
    assert outcome.resumed
    site.whole("gang", 1)
    assert set(site.bound("gang").values()) == set(site.nodes) - {before}


# Binding


@pytest.fixture
def policies(site: Site) -> Iterator[None]:
    """The placement policy as `install` prints it, for as long as the test runs."""
    live = site.live
    served = live.call("GET", "/apis/admissionregistration.k8s.io/v1").body.get("resources") or ()
    if not any(one["name"] == PLURALS["MutatingAdmissionPolicy"] for one in served):
        pytest.skip("the cluster serves no MutatingAdmissionPolicy v1 (Kubernetes 1.36)")
    wanted = [
        one
        for one in install.installation_objects(install.Installation(image="any"))
        if one["kind"] in PLURALS and one["metadata"]["name"] == install.PLACEMENT_POLICY
    ]
    assert len(wanted) == 2

    def works(*, expected: bool) -> Callable[[], bool]:
        return lambda: bool(site.backend().mechanisms(live.namespace).admission) is expected

    mine = [path for one in wanted if (path := created(live, one))]
    try:
        live.until(works(expected=True), "the policy takes effect")
        yield
    finally:
        for path in mine:
            live.call("DELETE", path)
    if mine:
        live.until(works(expected=False), "the policy is gone")


def created_again(site: Site, name: str, index: int) -> None:
    """Delete a worker, and wait until the operator has made another one."""
    before = site.pods(name)[index]["metadata"]
    path = site.live.path("pods", before["name"])
    assert site.live.call("DELETE", path).status == 200

    def other() -> bool:
        now = site.pods(name).get(index)
        return now is not None and now["metadata"]["uid"] != before["uid"]

    site.live.until(other, f"{before['name']} is created again")


@pytest.mark.usefixtures("policies")
def test_admission_sends_each_worker_to_its_place_and_again_when_it_is_created_again(site: Site):
    done = site.submit("gang", gpus=4, binding=BindingChoice.ADMISSION)
    assert (done.plan.binding.name, done.plan.binding.confirmed) == ("admission", True)
    site.whole("gang")
    assert set(site.bound("gang").values()) == set(site.nodes)
    created_again(site, "gang", 2)
    site.whole("gang")
    assert site.twice() == []


@pytest.mark.usefixtures("system")
def test_gates_send_each_worker_to_its_place_and_again_after_a_round_of_the_controller(site: Site):
    done = site.submit("gang", gpus=4, binding=BindingChoice.GATES)
    assert done.plan.binding.name == "gates"
    site.whole("gang")
    assert set(site.bound("gang").values()) == set(site.nodes)
    created_again(site, "gang", 2)
    assert 2 not in site.bound("gang")
    started(site, "gang")
    site.whole("gang")
    assert site.twice() == []


def test_a_template_sends_as_many_workers_to_each_node_as_planned(site: Site):
    done = site.submit("gang", gpus=4, binding=BindingChoice.TEMPLATE)
    assert done.plan.binding.name == "template"
    assert site.runs("gang")
    planned = Counter(node for node, _ in site.record("gang").values())
    assert planned == dict.fromkeys(site.nodes, 2)
    site.live.until(
        lambda: Counter(site.bound("gang").values()) == planned, "all workers have their nodes"
    )


# Race


@pytest.mark.parametrize("site", ["kept"], indirect=True)
def test_no_gpu_is_given_twice_to_twelve_gangs_of_four_submitters_where_four_fit(site: Site):
    failed: list[BaseException] = []

    def submits(first: int) -> None:
        try:
            for index in range(first, 12, 4):
                site.submit(f"gang-{index}", 2, 2)
        except BaseException as error:  # noqa: BLE001 - the test says it
            failed.append(error)

    threads = [threading.Thread(target=submits, args=(first,)) for first in range(4)]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        assert site.twice() == []
        threads[0].join(0.1)
    assert failed == []
    names = [f"gang-{index}" for index in range(12)]
    assert site.names() == sorted(names)
    waiting = [name for name in names if not site.runs(name)]
    assert len(waiting) >= 8
    # Whoever yielded to one that yielded in its turn waits although there is room.
    for name in waiting[: len(waiting) - 8]:
        assert site.resume(name)
    waiting = [name for name in names if not site.runs(name)]
    assert len(waiting) == 8
    for name in waiting:
        assert "GPU" in site.queued(name) or "first in the queue" in site.queued(name)
    for name in set(names) - set(waiting):
        site.whole(name, 2)
    assert not site.resume(waiting[0])
    assert site.twice() == []


# Rights


@pytest.fixture
def proxy(site: Site) -> Iterator[Proxy]:
    one = Proxy(site.live.config)
    yield one
    one.close()


@dataclass(slots=True, kw_only=True)
class People:
    """Kubeconfigs of people with few rights, whom the proxy impersonates."""

    proxy: Proxy
    folder: Path
    namespace: str

    def config(self, name: str) -> str:
        path = self.folder / name.replace(":", "-")
        return kubeconfig(path, self.proxy.url, user={"as": name}, namespace=self.namespace)


CONTROLLER = f"system:serviceaccount:{install.SYSTEM}:{install.CONTROLLER}"
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def people(site: Site, system: str, proxy: Proxy, tmp_path: Path) -> Iterator[People]:
    """All roles as `install` prints them; `sub` may submit, `stranger` has none."""
    live = site.live
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    objects = [
        one
        for one in install.installation_objects(install.Installation(image="any", agent=False))
        if one["kind"] in kinds
    ]
    assert {one["metadata"].get("namespace", system) for one in objects} <= {system, "kube-system"}
    objects.append(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "sub", "namespace": live.namespace},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": install.SUBMITTER},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "sub"}],
        }
    )
    with ExitStack() as stack:
        for one in objects:
            if path := created(live, one):
                stack.callback(live.call, "DELETE", path)
        these = People(proxy=proxy, folder=tmp_path, namespace=live.namespace)
        # Roles take effect once every part of the control plane has heard of them.
        sub = Live(these.config("sub"), live.namespace)
        path = live.path("mpijobs", group=JOBS)
        live.until(lambda: sub.call("GET", path).status == 200, "the roles take effect")
        assert sub.call("GET", "/api/v1/nodes").status == 403
        yield these


@pytest.fixture
def at_work(site: Site, people: People) -> Iterator[str]:
    """The kubeconfig of a controller that has the Lease, and has looked at everything once."""
    config = people.config(CONTROLLER)
    queue = site.backend(config).queue
    assert queue is not None
    lease = queue.lease("test")
    assert lease.held()
    said: list[str] = []
    controller.run_controller(site.backend(config), once=True, tell=said.append)
    assert said == []
    yield config
    lease.release()


def test_what_somebody_submits_who_may_only_submit_is_placed_by_the_controller(
    site: Site, people: People, at_work: str, arena: Arena
):
    code, _, err = arena(people.config("sub"), *site.words("gang"))
    assert code == 0, err
    assert "The controller starts it" in err
    site.queued("gang")
    started(site, "gang", at_work)
    site.whole("gang")
    code, out, err = arena(people.config("sub"), "get", "gang")
    assert (code, "gang-worker-3" in out) == (0, True), err
    assert arena(people.config("sub"), "delete", "gang")[0] == 0
    site.live.until(lambda: not site.pods("gang"), "the pods end")


@pytest.mark.usefixtures("at_work")
def test_who_may_not_submit_is_told_so(site: Site, people: People, arena: Arena):
    refused(site, arena, people.config("stranger"), "not allowed to create mpijobs in namespace")


def test_who_may_not_look_where_no_controller_is_is_told_so(
    site: Site, people: People, arena: Arena
):
    refused(site, arena, people.config("sub"), "not allowed to list nodes")


def refused(site: Site, arena: Arena, config: str, said: str) -> None:
    """What is missing is named, with the rule to ask for, and nothing is left behind."""
    code, out, err = arena(config, *site.words("gang"))
    assert (code, out) == (AccessDenied.exit_code, "")
    assert err.startswith(f"error: {said}")
    assert "try:  ask for " in err
    assert "verbs: [" in err
    assert site.names() == []


# Faults

WRITE = "POST .*/mpijobs(\\?(?!.*dryRun)|$)"
RECORD = "PATCH .*/mpijobs/gang"


@pytest.fixture
def proxied(site: Site, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kubeconfig of somebody who goes through the proxy; lists come in pages of one."""
    monkeypatch.setattr(connection, "PAGE", 1)
    return proxy.kubeconfig(tmp_path / "proxied", site.live.namespace)


PASSING: dict[str, Callable[[Proxy], None]] = {
    "write 500": lambda proxy: proxy.fail(WRITE, 500),
    "jobs 500": lambda proxy: proxy.fail("GET .*resourceVersionMatch=Exact", 500, times=2),
    "page cut": lambda proxy: proxy.cut("GET .*continue=", 200),
    "list reset": lambda proxy: proxy.reset("GET .*/pods", times=2),
    "continue 410": lambda proxy: proxy.expire(),
    "jobs conflict": lambda proxy: proxy.conflicts(RECORD, 4),
    "pods conflict": lambda proxy: proxy.conflicts("PATCH .*/pods/gang-worker-", 8),
    "reads 429": lambda proxy: proxy.fail("GET .*/mpijobs", 429, retry_after=1),
    "write 429": lambda proxy: proxy.fail(WRITE, 429, retry_after=1),
    "write reset": lambda proxy: proxy.reset(WRITE),
    "write reset when it was done": lambda proxy: proxy.reset(WRITE, late=True),
    "nodes 500": lambda proxy: proxy.fail("GET /api/v1/nodes", 500),
    "list cut": lambda proxy: proxy.cut("GET /api/v1/nodes", 200),
    "pods 500": lambda proxy: proxy.fail("PATCH .*/pods/gang-worker-", 500, times=4),
    "slow": lambda proxy: proxy.slow(".", 0.03, times=30),
}


@pytest.mark.parametrize("fault", all_but(7, PASSING))
def test_a_gang_runs_whole_in_spite_of_a_fault_that_passes(
    site: Site, proxy: Proxy, proxied: str, arena: Arena, fault: str
):
    PASSING[fault](proxy)
    code, _, err = arena(proxied, *site.words("gang"), "--binding=gates")
    assert code == 0, err
    assert "error: " not in err
    assert [one.times for one in proxy.troubles] == [0], "the fault was met"
    site.whole("gang")


LOST: dict[str, Callable[[Proxy], None]] = {
    "reads 503 for good": lambda proxy: proxy.fail("GET /api/v1/", 503, times=999),
    "write 500": lambda proxy: proxy.fail(WRITE, 500, times=99),
    "resume reset": lambda proxy: proxy.reset(RECORD, times=99),
    "too slow to resume": lambda proxy: proxy.slow(RECORD, 5.0),
    "write reset": lambda proxy: proxy.reset(WRITE, times=99),
    "write reset when it was done": lambda proxy: proxy.reset(WRITE, times=99, late=True),
    "resume 500": lambda proxy: proxy.fail(RECORD, 500, times=99),
    "too slow to read": lambda proxy: proxy.slow("GET /api/v1/nodes", 5.0),
}


@pytest.mark.parametrize("fault", all_but(4, LOST))
def test_a_fault_that_stays_is_one_clear_line_and_nothing_half_is_left(
    site: Site, proxy: Proxy, proxied: str, arena: Arena, fault: str
):
    LOST[fault](proxy)
    slow = fault.startswith("too slow")
    # Reads are tried until the time is over; what was not taken is an error at once.
    seconds = 2 if slow else 5 if fault.startswith("reads") else 60
    limit = f"--timeout={seconds}"
    code, _, err = arena(proxied, *site.words("gang"), "--binding=gates", limit)
    assert code == (6 if slow else 1), err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert "Traceback" not in err
    met = [line for line in proxy.requests if "mpijobs" in line or "nodes" in line]
    assert met
    found = site.stored("gang")
    if found is None:
        assert site.pods("gang") == {}
    else:
        # It is there whole, asleep: nothing of it runs, and others can have it or clear it away.
        assert found["spec"]["runPolicy"]["suspend"] is True
        assert site.pods("gang") == {}
        site.delete("gang")
    proxy.troubles.clear()
    code, _, err = arena(proxied, *site.words("gang"), "--binding=gates")
    assert code == 0, err
    site.whole("gang")
