"""Everything around a fake API server that acts by itself: operators, scheduler, kubelets, Kueue.

Deterministic where a test calls `step` or `settle`; in a thread with `running`, for tests whose
clients are processes. All of it goes by the same rules and under the same lock as requests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fake_dra
from fake_api import FakeApi, Log
from fake_kueue import Kueue
from fake_machines import Controllers, Kubelets
from fake_operators import Operator, phase
from fake_resources import RESOURCES, Key, Object, rfc3339
from fake_scheduler import Scheduler
from fake_world import World

SETTLES = 200
"""Steps after which a world that still changes is taken to be wrong."""


class FakeCluster(World):
    """A cluster that lives: `step` lets everything in it act once."""

    def __init__(self, api: FakeApi, *, kueue: bool = False) -> None:
        super().__init__(api)
        self.api: FakeApi = api
        api.graceful = True
        self.kubelets = True
        """Whether machines answer at all; without, pods are bound and no more."""
        self.dead: set[str] = set()
        """Machines that do not answer."""
        self.counts = True
        """Whether Jobs take note of the end of their pods."""
        self.keeps_terminating = False
        """Whether pods that are deleted stay, as on a machine that is busy."""
        self.sshd = True
        """Whether workers become ready."""
        self.images: dict[str, float | str] = {}
        """Seconds that a pull takes, or why it fails: missing, denied, forbidden, timeout."""
        self.patience = 600.0
        """Seconds after which the launcher's init container gives up."""
        self.duration: float | None = None
        """Seconds after which launchers end well; None: when a test says so."""
        self.exits: dict[tuple[str, str], int] = {}
        self.serial = 0
        self.operates = True
        self.evicts = True
        """Whether pods that do not tolerate their machine are deleted."""
        self.schedules = True
        self.operator = Operator(self)
        self.controllers = Controllers(self)
        self.scheduler = Scheduler(self)
        self.machines = Kubelets(self)
        self.kueue = Kueue(self) if kueue else None
        self._stop = threading.Event()

    # Time passes.

    def step(self) -> bool:
        """Let everything act once; whether that changed something."""
        with self.api.lock:
            before = self.api.revision
            if self.kueue is not None:
                self.kueue.step()
            if self.operates:
                self.operator.step()
            self.controllers.step()
            fake_dra.step(self.api)
            if self.schedules:
                self.scheduler.step()
            self.machines.step()
            return self.api.revision != before

    def settle(self) -> None:
        """Let everything act until nothing changes any more."""
        for _ in range(SETTLES):
            if not self.step():
                return
        raise AssertionError(f"still changing after {SETTLES} steps")

    @contextmanager
    def running(self) -> Iterator[FakeCluster]:
        """Live in a thread: as soon as something changes, and every 50 ms."""
        self._stop.clear()
        thread = threading.Thread(target=self._live, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            with self.api.lock:
                self.api.lock.notify_all()
            thread.join()

    def _live(self) -> None:
        while not self._stop.is_set():
            changed = self.step()
            with self.api.lock:
                if not changed:
                    self.api.lock.wait(0.05)

    # What a world is made of.

    def node(
        self,
        name: str,
        gpus: int = 8,
        *,
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
        cpu: str = "64",
        memory: str = "512Gi",
        **more: str,
    ) -> Object:
        """Add a machine that is ready; `more` are further resources, such as `nvidia.com/mig`."""
        offers = {"cpu": cpu, "memory": memory, "pods": "110", **more}
        if gpus:
            offers["nvidia.com/gpu"] = str(gpus)
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        return self.api.add(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": meta,
                "spec": {"taints": taints} if taints else {},
                "status": {"capacity": offers, "allocatable": offers, "conditions": [ready]},
            }
        )

    def pod(
        self, name: str, node: str | None, gpus: int = 1, namespace: str = "default", **meta: Any
    ) -> Object:
        """Add a pod of somebody else, bound where a node is given."""
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        spec: Object = {"containers": [{"name": "main", "image": "theirs"}]}
        if limits:
            spec["containers"][0]["resources"] = {"limits": limits, "requests": limits}
        if node:
            spec["nodeName"] = node
        more = {"name": name, "namespace": namespace, **meta}
        return self.api.add({"apiVersion": "v1", "kind": "Pod", "metadata": more, "spec": spec})

    def quota(self, namespace: str = "default", name: str = "gpu-quota", **hard: str) -> Object:
        """Add a ResourceQuota; `gpus` is short for requests.nvidia.com/gpu."""
        if "gpus" in hard:
            hard["requests.nvidia.com/gpu"] = hard.pop("gpus")
        meta = {"name": name, "namespace": namespace}
        one = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": meta,
            "spec": {"hard": hard},
        }
        return self.api.add(one)

    # What happens in it.

    def finish(self, name: str, code: int = 0, namespace: str = "default") -> None:
        """Let the launcher of a job end with a code once it runs."""
        with self.api.lock:
            self.exits[namespace, name] = code
            self.api.lock.notify_all()

    def evict(self, pod: str, namespace: str = "default") -> None:
        """Evict a pod as a kubelet does that runs out of memory: it stays, Failed."""
        with self.api.edit("Pod", pod, namespace) as one:
            one["status"] |= {
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory. Threshold quantity: 100Mi,"
                " available: 60Mi. ",
            }
            for status in one["status"].get("containerStatuses") or ():
                status |= {"ready": False, "state": {"terminated": {"exitCode": 137}}}
        self.api.end_log(pod, namespace)

    def preempt(self, pod: str, namespace: str = "default") -> None:
        """Delete a pod as the scheduler does for one of higher priority."""
        with self.api.edit("Pod", pod, namespace) as one:
            self.event(one, "Preempted", "Preempted by a pod on the node", source="scheduler")
        said = "default-scheduler: preempting to accommodate a higher priority pod"
        self.api.disrupt(namespace, pod, "PreemptionByScheduler", said)

    def drain(self, node: str) -> None:
        """Cordon a machine, and evict all pods on it, as `kubectl drain` does."""
        self.cordon(node)
        with self.api.lock:
            for (space, name), entry in list(self.api.tables["pods"].items()):
                if entry.thing["spec"].get("nodeName") == node:
                    said = "Eviction API: evicting"
                    self.api.disrupt(space, name, "EvictionByEvictionAPI", said)

    def taint(self, node: str, key: str, effect: str = "NoExecute") -> None:
        """Add a taint to a machine, as `kubectl taint` does."""
        with self.api.edit("Node", node) as one:
            added = {"key": key, "effect": effect}
            if effect == "NoExecute":
                added["timeAdded"] = rfc3339(self.api.clock())
            one["spec"]["taints"] = [*(one["spec"].get("taints") or ()), added]

    def cordon(self, node: str, *, on: bool = True) -> None:
        with self.api.edit("Node", node) as one:
            spec = one.setdefault("spec", {})
            taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
            others = [other for other in spec.get("taints") or () if other["key"] != taint["key"]]
            spec["taints"] = [*others, taint] if on else others
            if on:
                spec["unschedulable"] = True
            else:
                spec.pop("unschedulable", None)

    def lose(self, node: str, *, answers: bool = False) -> None:
        """Let a machine fall silent: its pods stay for as long as they tolerate that.

        `answers`: its kubelet says itself that it is not ready, and its pods run on.
        """
        now = rfc3339(self.api.clock())
        if not answers:
            self.dead.add(node)
        key = f"node.kubernetes.io/{'not-ready' if answers else 'unreachable'}"
        with self.api.edit("Node", node) as one:
            one["status"]["conditions"] = [
                {
                    "type": "Ready",
                    "status": "False" if answers else "Unknown",
                    "reason": "KubeletNotReady" if answers else "NodeStatusUnknown",
                    "message": "container runtime is down"
                    if answers
                    else "Kubelet stopped posting node status.",
                    "lastTransitionTime": now,
                }
            ]
            one.setdefault("spec", {})["taints"] = [
                *(one["spec"].get("taints") or ()),
                *(
                    {"key": key, "effect": effect, "timeAdded": now}
                    for effect in ("NoSchedule", "NoExecute")
                ),
            ]

    def restore(self, node: str) -> None:
        """Let a machine answer again."""
        self.dead.discard(node)
        with self.api.edit("Node", node) as one:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            one["status"]["conditions"] = [ready]
            one["spec"]["taints"] = [
                taint
                for taint in one["spec"].get("taints") or ()
                if taint["key"].rpartition("/")[2] not in {"not-ready", "unreachable"}
            ]

    def remove_node(self, node: str) -> None:
        """Take a machine out of the cluster; its pods are collected."""
        with self.api.lock:
            self.api.remove(RESOURCES["nodes"], "", node)

    # What others in this world use.

    def workers(self, job: str, namespace: str = "default") -> list[Object]:
        """The worker pods of a job, by index."""
        with self.api.lock:
            found = {
                int(name.rpartition("-")[2]): entry.thing
                for (space, name), entry in self.api.tables["pods"].items()
                if space == namespace and name.startswith(f"{job}-worker-")
            }
        return [found[index] for index in sorted(found)]

    def phases(self, namespace: str = "default") -> dict[str, str]:
        """The phase of each pod of a namespace."""
        with self.api.lock:
            return {
                name: phase(entry.thing)
                for (space, name), entry in sorted(self.api.tables["pods"].items())
                if space == namespace
            }

    @staticmethod
    def new_log() -> Log:
        return Log()

    def _exists(self, _event: Object) -> bool:
        return _key(_event) in self.api.tables["events"]

    def _record(self, event: Object) -> Object:
        return self.api.add(event)

    def _repeat(self, event: Object) -> Object:
        self.api.store(RESOURCES["events"], _key(event), event)
        return event


def _key(event: Object) -> Key:
    return event["metadata"]["namespace"], event["metadata"]["name"]
