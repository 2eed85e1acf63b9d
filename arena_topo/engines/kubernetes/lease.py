"""Leader election: the active controller renews a Lease of the cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.queued import written
from arena_topo.engines.write_conflict import unless_overtaken
from arena_topo.errors import AlreadyExists, ArenaError, ClusterError, NotFound
from arena_topo.manifests import install
from arena_topo.topology import published

Object = dict[str, Any]

NAMESPACE, LEASE_NAME = published.OWN_NAMESPACE, install.CONTROLLER
"""Namespace and name of the Lease of the controllers."""

DURATION = 15.0
"""Seconds without a renewal after which a Lease has expired (client-go, leaderelection
defaults)."""

LACKS = "arena-topo.io/lacks"
"""On the Lease: the rights that its holder would use and does not have, for `check`."""

LEASES_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"


class NoNamespace(ClusterError):
    """The namespace of the Lease does not exist."""

    def __init__(self) -> None:
        super().__init__(
            f"there is no namespace {NAMESPACE} in this cluster",
            why="controllers keep the Lease of the active one there",
            hint="arena-topo install --without-controller --without-agent | kubectl apply -f -"
            " creates it",
        )


class Lease:
    """The Lease of the active controller, which this controller has or waits for.

    Another holder's Lease expires after a time without changes, measured by this controller's own
    clock, so the clocks need not agree (client-go, tools/leaderelection).
    """

    def __init__(
        self,
        api: Connection,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        lacks: Iterable[str] = (),
    ) -> None:
        self._lacks = ", ".join(lacks)
        self._api = api
        self._identity = identity
        self._clock = clock
        self._mine: Object | None = None
        self._theirs: tuple[str, float] | None = None

    def held(self) -> bool:
        """Acquire or renew the Lease; False while another controller has it.

        NoNamespace if its namespace does not exist.
        """
        if self._mine is not None and self._put(self._mine):
            return True
        lease = self._api.find(LEASES_PATH)
        if lease is None:
            return self._created()
        spec = lease.get("spec") or {}
        revision = lease["metadata"]["resourceVersion"]
        if self._theirs is None or self._theirs[0] != revision:
            self._theirs = revision, self._clock()
        others = spec.get("holderIdentity") not in {None, "", self._identity}
        if others and self._clock() - self._theirs[1] < DURATION:
            return False
        moves = spec.get("leaseTransitions") or 0
        if spec.get("holderIdentity") != self._identity:
            moves, spec = moves + 1, {"acquireTime": self._now()}
        acquired = {"acquireTime": spec.get("acquireTime"), "leaseTransitions": moves}
        return self._put({**lease, "spec": acquired})

    def release(self) -> None:
        """Release the Lease, so that the next controller need not wait for its end."""
        with contextlib.suppress(ArenaError):
            lease = self._api.get(LEASES_PATH)
            if (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                self._api.put(LEASES_PATH, lease)
        self._mine = None

    def _created(self) -> bool:
        spec = {"acquireTime": self._now(), "leaseTransitions": 0}
        body = self._renewed(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE_NAME, "namespace": NAMESPACE},
                "spec": spec,
            }
        )
        try:
            self._mine, _ = self._api.post(LEASES_PATH.rpartition("/")[0], body)
        except AlreadyExists:
            return False
        except NotFound as error:
            raise NoNamespace from error
        return True

    def _put(self, body: Object) -> bool:
        """Renew the Lease as last read; False if it has changed since."""
        self._mine = None
        with unless_overtaken():
            self._mine = self._api.put(LEASES_PATH, self._renewed(body))
        return self._mine is not None

    def _renewed(self, body: Object) -> Object:
        mine = {"holderIdentity": self._identity, "leaseDurationSeconds": int(DURATION)}
        notes = {**(body["metadata"].get("annotations") or {}), LACKS: self._lacks}
        return {
            **body,
            "metadata": {**body["metadata"], "annotations": notes},
            "spec": {**body["spec"], **mine, "renewTime": self._now()},
        }

    def _now(self) -> str:
        # A MicroTime always has six digits after the second.
        text = written(self._api.now())
        return text if "." in text else text.replace("Z", ".000000Z")
