"""The mechanisms of a cluster that bind placements, found by trying them.

An ordinary user cannot see whether an admission policy exists and works: only administrators may
read policies, and a policy has no status. So a worker is created in a dry run, which passes through
admission and stores nothing; the answer shows what the policies did to it.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.job_writer import part
from arena_topo.engines.kubernetes.mpijob import pinned_nodes
from arena_topo.engines.kubernetes.shapes import kube_object
from arena_topo.errors import (
    BAD_REQUEST,
    CONFLICT,
    FORBIDDEN,
    INVALID,
    SERVER_ERROR,
    TOO_LARGE,
    AccessDenied,
    ArenaError,
    ClusterError,
    NotFound,
)
from arena_topo.files import packaged
from arena_topo.manifests import (
    CLAIMS,
    FORMAT_ANNOTATION,
    GANG,
    GATE,
    GPU_GROUP,
    INLINE,
    MAP,
    MAP_FORMAT,
    PER_WORKER,
    POD_GROUPS,
    Manifest,
    Mechanisms,
)
from arena_topo.manifests.versions import INDEX_LABEL, JOB_LABEL

Object = dict[str, Any]

PLACEMENT_POLICY = "arena-topo-placement"
CLAIMS_POLICY = "arena-topo-claims"
GANG_POLICY = "arena-topo-gang"
FORMAT_LABEL = "arena-topo.io/map-format"
"""Label of the policy that names the format of the map it reads."""

_NODE = "arena-topo-probe"
_GROUP = "0,1"
_ADMISSION = "/apis/admissionregistration.k8s.io"
_NO_RIGHT = re.compile(r'cannot create resource "pods"')


def mechanisms(api: Connection, namespace: str) -> Mechanisms:
    """The mechanisms for jobs of a namespace; five requests in the usual case.

    A mechanism that may not be probed is None, with a note on what was refused. Raises only if the
    API server does not answer, or does not know the caller.
    """
    notes: list[str] = []
    tried = _tried(api, namespace, notes)
    classes, extended = _classes(api, notes)
    version = _pod_groups(api) if tried.gang else ""
    if tried.gang and not version:
        notes.append(
            f"the cluster serves no PodGroup of scheduling.k8s.io in {' or '.join(POD_GROUPS)} that"
            " you may ask for: workers are not joined to one"
        )
    return Mechanisms(
        admission=tried.admission,
        claims=tried.claims,
        gang=tried.gang and bool(version),
        gang_version=version,
        patches=_patches(api, namespace, notes),
        classes=classes,
        extended=extended,
        quotas=_quotas(api, namespace, notes),
        notes=tuple(notes),
    )


# The probe


def probe(labels: Mapping[str, str]) -> Manifest:
    """A worker as operators create it, for dry runs; meets PodSecurity `restricted`.

    It has small resource requests, because some quotas require them of every pod.
    """
    pod: Manifest = json.loads((packaged("templates") / "probe.json").read_bytes())
    pod["metadata"] = {
        # A new name each time: a name in use would be refused before admission.
        "name": f"arena-topo-probe-{secrets.token_hex(4)}",
        "labels": {
            JOB_LABEL: "arena-topo-probe",
            "training.kubeflow.org/job-role": "worker",
            INDEX_LABEL: "0",
            **labels,
        },
        "annotations": {FORMAT_ANNOTATION: "v1", MAP: f"{_NODE}/{_GROUP}"},
    }
    return pod


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """The effect on the probe: the policies that have changed it; None: not known."""

    admission: bool | None = None
    claims: bool | None = None
    gang: bool | None = None


def _tried(api: Connection, namespace: str, notes: list[str]) -> _Tried:
    """Let the API server admit a worker with the labels of all our policies."""
    inline = {INLINE: MAP_FORMAT}
    every = inline | {CLAIMS: PER_WORKER, GANG: "true"}
    try:
        return _effects(_admitted(api, namespace, every))
    except _Refused as refused:
        if refused.no_right:
            return _read(api, namespace, notes, refused)
        if "arena-topo-" not in refused.text:
            notes.append(_unasked(namespace, refused))
            return _Tried()
    # One of our own policies refused it: does the most important one work alone?
    try:
        return replace(_effects(_admitted(api, namespace, inline)), claims=False, gang=False)
    except _Refused as refused:
        notes.append(_unasked(namespace, refused))
        return _Tried()


class _Refused(Exception):
    """The probe was not admitted, for the server's reason."""

    def __init__(self, error: ArenaError) -> None:
        why = error.why if isinstance(error, AccessDenied) else error.message
        self.text = " ".join((why or error.message).split())
        super().__init__(self.text)

    @property
    def no_right(self) -> bool:
        """Whether the caller may not create pods at all."""
        return _NO_RIGHT.search(self.text) is not None


def _admitted(api: Connection, namespace: str, labels: Mapping[str, str]) -> Object:
    path = f"/api/v1/namespaces/{part(namespace)}/pods"
    try:
        return api.post(path, probe(labels), dryRun="All")[0]
    except NotFound as error:
        raise _Refused(error) from error
    except ClusterError as error:
        if error.status is None or not _is_about_the_pod(error.status):
            raise
        raise _Refused(error) from error


def _is_about_the_pod(status: int) -> bool:
    # 500 is the code for a webhook that cannot be called.
    return status in {BAD_REQUEST, FORBIDDEN, CONFLICT, TOO_LARGE, INVALID, SERVER_ERROR}


def _effects(answer: Object) -> _Tried:
    pod = kube_object(answer)
    spec, notes = pod.spec, pod.metadata.annotations
    gated = any(gate.name == GATE for gate in spec.scheduling_gates)
    return _Tried(
        admission=not gated and notes.get(GPU_GROUP) == _GROUP and _NODE in pinned_nodes(answer),
        claims=any(claim.resource_claim_name for claim in spec.resource_claims),
        # The API server drops the field if the scheduler does not know gangs.
        gang=bool(spec.scheduling_group.pod_group_name),
    )


def _unasked(namespace: str, refused: _Refused) -> str:
    return (
        f"whether a policy places workers in namespace {namespace} could not be tried:"
        f" {refused.text}"
    )


# For callers who may not create pods


def _read(api: Connection, namespace: str, notes: list[str], refused: _Refused) -> _Tried:
    """The state of the policies by reading them, for callers who may not create pods."""
    placing = _bound(api, PLACEMENT_POLICY)
    if placing is None:
        notes.append(_unasked(namespace, refused))
        return _Tried()
    # A policy that reads no map has no format label. Without PodGroups the API server drops the
    # field that the third policy writes.
    claims, gang = (
        _bound(api, policy, unnamed=MAP_FORMAT) for policy in (CLAIMS_POLICY, GANG_POLICY)
    )
    return _Tried(admission=placing, claims=claims, gang=gang and bool(_pod_groups(api)))


def _bound(api: Connection, name: str, *, unnamed: str | None = None) -> bool | None:
    """Whether a policy for the present map format exists and is bound; None if unreadable."""
    for version in ("v1", "v1beta1"):
        root = f"{_ADMISSION}/{version}"
        with _forbidden() as denied, contextlib.suppress(NotFound):
            policy = kube_object(api.get(f"{root}/mutatingadmissionpolicies/{name}"))
            api.get(f"{root}/mutatingadmissionpolicybindings/{name}")
            return policy.metadata.labels.get(FORMAT_LABEL, unnamed) == MAP_FORMAT
        if denied:
            return None
    return False


def _pod_groups(api: Connection) -> str:
    """The version of scheduling.k8s.io for new PodGroups; "" if none is served.

    The group also serves versions without PodGroups: it has PriorityClasses too.
    """
    from arena_topo.manifests.claims import SCHEDULING  # noqa: PLC0415  only where it is read

    for version in POD_GROUPS:
        with _forbidden():
            if api.serves(SCHEDULING, version, "podgroups"):
                return version
    return ""


# Rights, classes and quotas


def _patches(api: Connection, namespace: str, notes: list[str]) -> bool | None:
    """Whether the caller may list and patch the pods of a namespace."""
    answer = None
    with _forbidden() as denied:
        answer = all(allowed(api, verb, "pods", namespace=namespace) for verb in ("list", "patch"))
    notes += [f"whether you may patch pods could not be asked: {denial}" for denial in denied]
    return answer


def allowed(
    api: Connection, verb: str, resource: str, *, group: str = "", namespace: str = ""
) -> bool:
    """Whether the caller has a right, in a namespace or, without one, in the whole cluster.

    `resource` may name a subresource: `pods/log`. Every authenticated user may ask.
    """
    resource, _, sub = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": resource}
    attributes |= {"subresource": sub} if sub else {}
    attributes |= {"namespace": namespace} if namespace else {}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer, _ = api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return kube_object(answer).status.allowed


def _classes(api: Connection, notes: list[str]) -> tuple[dict[str, str] | None, dict[str, str]]:
    """The DeviceClasses of whole devices, named like their drivers, and the extended resources."""
    device_classes: list[Object] = []
    with _forbidden() as denied, contextlib.suppress(NotFound):
        device_classes = api.collect("/apis/resource.k8s.io/v1/deviceclasses")
    if denied:
        notes.append(f"{denied[0]}: DeviceClasses are taken to be called as their drivers are")
        return None, {}
    extended = {
        device_class.metadata.name: device_class.spec.extended_resource_name
        for device_class in map(kube_object, device_classes)
    }
    return {name: name for name in extended}, {
        name: resource for name, resource in extended.items() if resource
    }


def _quotas(api: Connection, namespace: str, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    quotas: list[Object] = []
    with _forbidden() as denied:
        quotas = api.collect(f"/api/v1/namespaces/{part(namespace)}/resourcequotas")
    notes += [f"{denial}: whether a quota covers claims of GPUs is not known" for denial in denied]
    return tuple(quotas)


@contextlib.contextmanager
def _forbidden() -> Iterator[list[str]]:
    """Collect the messages of forbidden requests instead of raising."""
    denied: list[str] = []
    try:
        yield denied
    except AccessDenied as error:
        if error.status != FORBIDDEN:
            raise
        denied.append(error.message)
