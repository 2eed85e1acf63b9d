"""Leader election: the active controller renews a Lease of the cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from arena_topo.engines.kubernetes.connection import CONFLICT, Connection
from arena_topo.engines.kubernetes.queued import written
from arena_topo.errors import AlreadyExists, ArenaError, ClusterError, NotFound
from arena_topo.manifests import install
from arena_topo.topology import published

Object = dict[str, Any]

NAMESPACE, NAME = published.OWN_NAMESPACE, install.CONTROLLER
"""Namespace and name of the Lease of the controllers."""

DURATION = 15.0
"""Seconds without a renewal after which a Lease has expired (client-go, leaderelection
defaults)."""

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"


class Lease:
    """The Lease of the active controller, which this controller has or waits for.

    Another holder's Lease expires after a time without changes, measured by this controller's own
    clock, so the clocks need not agree (client-go, tools/leaderelection).
    """

    def __init__(
        self, api: Connection, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._identity = identity
        self._clock = clock
        self._mine: Object | None = None
        self._theirs: tuple[str, float] | None = None

    def held(self) -> bool:
        """Acquire or renew the Lease; False while another controller has it."""
        if self._mine is not None and self._put(self._mine):
            return True
        found = self._api.find(PATH)
        if found is None:
            return self._created()
        spec = found.get("spec") or {}
        revision = found["metadata"]["resourceVersion"]
        if self._theirs is None or self._theirs[0] != revision:
            self._theirs = revision, self._clock()
        others = spec.get("holderIdentity") not in {None, "", self._identity}
        if others and self._clock() - self._theirs[1] < DURATION:
            return False
        moves = spec.get("leaseTransitions") or 0
        if spec.get("holderIdentity") != self._identity:
            moves, spec = moves + 1, {"acquireTime": self._now()}
        acquired = {"acquireTime": spec.get("acquireTime"), "leaseTransitions": moves}
        return self._put({**found, "spec": acquired})

    def release(self) -> None:
        """Release the Lease, so that the next controller need not wait for its end."""
        with contextlib.suppress(ArenaError):
            found = self._api.get(PATH)
            if (found.get("spec") or {}).get("holderIdentity") == self._identity:
                found["spec"]["holderIdentity"] = ""
                self._api.put(PATH, found)
        self._mine = None

    def _created(self) -> bool:
        spec = {"acquireTime": self._now(), "leaseTransitions": 0}
        body = self._renewed(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": NAME, "namespace": NAMESPACE},
                "spec": spec,
            }
        )
        try:
            self._mine, _ = self._api.post(PATH.rpartition("/")[0], body)
        except AlreadyExists:
            return False
        return True

    def _put(self, body: Object) -> bool:
        """Renew the Lease as last read; False if it has changed since."""
        self._mine = None
        try:
            self._mine = self._api.put(PATH, self._renewed(body))
        except NotFound:
            return False
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            return False
        return True

    def _renewed(self, body: Object) -> Object:
        mine = {"holderIdentity": self._identity, "leaseDurationSeconds": int(DURATION)}
        return {**body, "spec": {**body["spec"], **mine, "renewTime": self._now()}}

    def _now(self) -> str:
        # A MicroTime always has six digits after the second.
        text = written(self._api.now())
        return text if "." in text else text.replace("Z", ".000000Z")
