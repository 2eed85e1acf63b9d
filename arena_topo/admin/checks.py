"""What a cluster and its caller lack for jobs to be placed, and how to get it.

Whatever may not be looked at is `unknown` with the missing right, and the rest is looked at all the
same. Only what keeps jobs from running fails; what makes them run with less is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from arena_topo.admin.nodes import Use, standings
from arena_topo.engines.kubernetes.admin import GANG_GROUPS, Administration
from arena_topo.engines.kubernetes.mpijob import seconds
from arena_topo.errors import AccessDenied, ArenaError, TimedOut, UsageError
from arena_topo.manifests import MAP_FORMAT, POD_GROUPS, install
from arena_topo.manifests.claims import SCHEDULING
from arena_topo.manifests.install import (
    ATTACH,
    CLAIMS_POLICY,
    CLUSTER_READER,
    FORMAT_LABEL,
    PLACEMENT_POLICY,
    SELF_PLACER,
    SUBMITTER,
    SYSTEM,
    Right,
)
from arena_topo.manifests.versions import BEST, having
from arena_topo.topology import Knowledge, published

if TYPE_CHECKING:
    from arena_topo.manifests import Mechanisms
    from arena_topo.topology import Cluster

FRESH = 60.0
"""Seconds after which a controller that has not renewed its Lease is not at work."""

_SHOWN = 4
_UNKNOWN_CALLER = 401

_INSTALL = "arena-topo install --image IMAGE | kubectl apply -f -"


class Outcome(StrEnum):
    """What a check has found."""

    OK = "ok"
    WARN = "warn"
    """Jobs run, with less than there could be."""
    FAIL = "fail"
    """Jobs do not run, or are not placed."""
    UNKNOWN = "unknown"
    """The caller may not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One prerequisite: what was found of it, and what to do where it is not as it should be."""

    name: str
    outcome: Outcome
    found: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All prerequisites of jobs in a namespace."""

    namespace: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing fails; what could not be looked at does not count."""
        return all(one.outcome is not Outcome.FAIL for one in self.findings)


class _Check:
    """The checks of one cluster; what several of them look at is read once."""

    def __init__(self, admin: Administration, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace
        self.served: tuple[str, ...] = ()
        self.controlled: bool | None = None
        self._mechanisms: Mechanisms | None = None
        self._cluster: Cluster | None = None

    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self.admin.backend.cluster()
        return self._cluster

    def mechanisms(self) -> Mechanisms:
        if self._mechanisms is None:
            self._mechanisms = self.admin.backend.mechanisms(self.namespace)
        return self._mechanisms

    # The operator

    @property
    def unsuspended(self) -> bool:
        """Whether no version that is served knows suspension."""
        return bool(self.served) and not {*self.served} & {*having(lambda one: one.suspends)}

    def mpijobs(self) -> Iterator[Finding]:
        self.served = self.admin.served()
        name = "mpijobs"
        if not self.served:
            yield _fail(
                name,
                "this cluster serves no MPIJob",
                "install the MPI operator: https://github.com/kubeflow/mpi-operator/releases",
            )
        elif self.unsuspended:
            yield _warn(
                name,
                f"{', '.join(self.served)}, which cannot be suspended: jobs cannot wait, and are"
                " pinned by their template alone",
                f"install an operator of {BEST}",
            )
        else:
            yield _ok(name, ", ".join(self.served))

    def operator(self) -> Iterator[Finding]:
        name = "operator"
        running = []
        for one in self.admin.operators():
            metadata = one["metadata"]
            there = (one.get("status") or {}).get("availableReplicas") or 0
            version = (metadata.get("labels") or {}).get("app.kubernetes.io/version")
            what = f"{metadata.get('namespace', '')}/{metadata['name']}: {_image(one['image'])}"
            running.append((f"{what} ({version})" if version else what, int(there)))
        if not running:
            yield _warn(
                name,
                "no Deployment runs an image called mpi-operator or training-operator",
                "is it called otherwise? a job without pods a minute after submit says the same",
            )
        for what, there in running:
            if there:
                yield _ok(name, what)
            else:
                where = what.partition(":")[0]
                space, _, deployment = where.partition("/")
                yield _fail(
                    name,
                    f"{what} has no pod that is available: jobs get no pods",
                    f"kubectl describe deployment {deployment} -n {space}",
                )

    # What places workers

    def placement(self) -> Iterator[Finding]:
        name = "placement policy"
        found = self.mechanisms()
        stored = _format(self.admin, PLACEMENT_POLICY)
        if stored is not None and stored != MAP_FORMAT:
            yield _warn(
                name,
                f"installed for maps of format {stored or 'unknown'}; this version writes"
                f" {MAP_FORMAT}, so that workers wait at their gates",
                _INSTALL,
            )
        elif found.admission:
            known = f" (map format {stored})" if stored else ""
            yield _ok(name, f"gives workers their nodes in namespace {self.namespace}{known}")
        elif found.admission is None:
            yield Finding(
                name=name,
                outcome=Outcome.UNKNOWN,
                found="; ".join(found.notes) or "it could not be asked",
                fix=f"an administrator can tell: {_INSTALL.partition(' |')[0]} --diff",
            )
        else:
            without = (
                "the submitter, or the controller, lifts the gate of each worker"
                if found.patches or self.controlled
                else "workers are pinned by their template alone: exact with one worker per node"
            )
            if stored:
                fix = f"{_INSTALL.partition(' |')[0]} --diff"
                yield _warn(name, f"installed, but without effect: {without}", fix)
            else:
                yield _warn(name, f"not installed: {without}", _INSTALL)

    def claims(self) -> Iterator[Finding]:
        found = self.mechanisms()
        if not found.classes:
            return
        name, drivers = "claims policy", ", ".join(sorted(found.classes))
        if found.claims:
            yield _ok(name, f"gives each worker its own GPUs of {drivers}")
        elif found.claims is None:
            yield Finding(
                name=name,
                outcome=Outcome.UNKNOWN,
                found="; ".join(found.notes) or "it could not be asked",
                fix=f"kubectl get mutatingadmissionpolicy {CLAIMS_POLICY}",
            )
        else:
            yield _warn(
                name,
                f"not effective: no worker gets the GPUs of {drivers} that are chosen for it, so"
                " that no job is placed on them by claims",
                _INSTALL,
            )

    def suspension(self) -> Iterator[Finding]:
        if not self.served or self.unsuspended or self.mechanisms().suspends:
            return
        yield _warn(
            "suspension",
            "the operator does not suspend jobs: they cannot wait, nor be taken back whole",
            "install mpi-operator 0.4 or later",
        )

    def gang(self) -> Iterator[Finding]:
        name, found = "gang scheduler", self.admin.gangs()
        served = found.get(SCHEDULING, ())
        written = next((one for one in POD_GROUPS if one in served), None)
        if served and written is None:
            yield _warn(
                name,
                f"{GANG_GROUPS[SCHEDULING]} serves PodGroups as {', '.join(served)}, arena-topo"
                f" writes {' and '.join(POD_GROUPS)}: --gang-scheduling does nothing here",
                None,
            )
        elif found:
            names = {one: f"{one}/{written}" if one == SCHEDULING else one for one in found}
            yield _ok(name, ", ".join(f"{GANG_GROUPS[one]} ({names[one]})" for one in found))
        else:
            yield _ok(name, "none; arena-topo itself starts gangs whole, or not at all")

    # What is known of the nodes

    def topology(self) -> Iterator[Finding]:
        name = "topology"
        cluster = self.cluster()
        nodes = [node for node in cluster.nodes if node.machine.gpus]
        if not nodes:
            yield _fail(name, "no node has GPUs", "kubectl describe nodes | grep gpu")
            return
        yield from self._links(cluster)
        yield from self._age(name)

    def _links(self, cluster: Cluster) -> Iterator[Finding]:
        name = "topology"
        machines = [node for node in cluster.nodes if node.machine.gpus]
        nodes = [node for node in machines if node.shared is None]
        if machines and not nodes:
            names = [str(one.name) for one in machines]
            have = "has" if len(names) == 1 else "have"
            yield _warn(
                name,
                f"only {_some(names, 'node')} {have} GPUs, and they are shared or cut up: no job"
                " is placed by topology",
                "arena-topo top node shows how each node is set up",
            )
            return
        fix = f"arena-topo topology publish NODE, or an agent on each node: {_INSTALL}"
        doubts = (
            (Knowledge.UNKNOWN, "not known, and every path counts as the slowest"),
            (Knowledge.ASSUMED, "assumed from the GPU product and count"),
        )
        quiet = True
        for knowledge, words in doubts:
            names = [str(one.name) for one in nodes if one.machine.knowledge is knowledge]
            if names:
                quiet = False
                yield _warn(name, f"the links of {_some(names, 'node')} are {words}", fix)
        if quiet:
            measured = [str(one.name) for one in nodes]
            yield _ok(name, f"the links of {_some(measured, 'node')} are published")

    def _age(self, name: str) -> Iterator[Finding]:
        maps = self.admin.topologies(SYSTEM)
        old = []
        for one in maps:
            data = one.get("data") or {}
            at = seconds(data.get("observedAt"))
            if at is not None and self.admin.now() - at > published.STALE:
                old.append(str(data.get("nodeName") or one["metadata"]["name"]))
        if old:
            yield _warn(
                name,
                f"nobody has looked at {_some(old, 'node')} for {_span(published.STALE)} or more",
                f"kubectl get pods -n {SYSTEM} -o wide",
            )

    def nodes(self) -> Iterator[Finding]:
        name = "topology nodes"
        found = standings(self.admin.nodes())
        odd = [one for one in found if one.odd]
        for one in odd[:_SHOWN]:
            yield _warn(
                name,
                f"{one.node} is {one.odd}",
                f"arena-topo nodes topology {one.node}, or nodes default {one.node}",
            )
        if len(odd) > _SHOWN:
            rest = [one.node for one in odd[_SHOWN:]]
            are = "is node" if len(rest) == 1 else f"are {len(rest)} more nodes:"
            yield _warn(name, f"so {are} {_few(rest)}", "arena-topo nodes list")
        mixed = [str(one.name) for one in self.cluster().nodes if one.dedicated and one.foreign]
        if mixed:
            yield _warn(
                name,
                f"pods that arena-topo did not place hold GPUs of {_some(mixed, 'node')}: devices"
                " are not injected there, and the guarantee is node",
                "kubectl get pods -A -o wide --field-selector spec.nodeName=" + mixed[0],
            )
        if odd or mixed:
            return
        ours = [one.node for one in found if one.use == Use.TOPOLOGY]
        said = f"{_some(ours, 'node')} for topology jobs alone" if ours else "none"
        yield _ok(name, said)

    # The caller

    def security(self) -> Iterator[Finding]:
        name = "pod security"
        space = self.admin.namespace(self.namespace)
        if space is None:
            yield _fail(
                name,
                f"there is no namespace {self.namespace}",
                f"kubectl create namespace {self.namespace}, or name another with -n",
            )
            return
        labels = space["metadata"].get("labels") or {}
        level = labels.get("pod-security.kubernetes.io/enforce")
        if level == "restricted":
            yield _fail(
                name,
                "restricted, which refuses workers: their sshd runs as root",
                f"kubectl label namespace {self.namespace} --overwrite"
                " pod-security.kubernetes.io/enforce=baseline",
            )
        elif level == "baseline":
            yield _ok(name, "baseline, which allows all but --pod-shape shared and host networks")
        else:
            yield _ok(name, f"{level or 'none'} in namespace {self.namespace}")

    def submitting(self) -> Iterator[Finding]:
        missing = [one for one in self._missing(SUBMITTER) if one.resource != _CLAIMS]
        name, grant = "rights to submit", self._grant(SUBMITTER)
        needed = [one for one in missing if one.resource == "mpijobs"]
        if needed:
            yield _fail(name, f"not allowed to {_said(needed)}", grant)
        rest = [one for one in missing if one not in needed]
        if rest:
            yield _warn(name, f"not allowed to {_said(rest)}", grant)
        if not missing:
            yield _ok(name, f"all that submit, get, logs and delete need in {self.namespace}")

    def listing(self) -> Iterator[Finding]:
        name = "rights to list data"
        missing = [one for one in self._missing(SUBMITTER) if one.resource == _CLAIMS]
        if missing:
            found = f"not allowed to {_said(missing)}: data list shows nothing"
            yield _warn(name, found, self._grant(SUBMITTER))
        else:
            yield _ok(name, f"data list shows the claims of {self.namespace}")

    def attaching(self) -> Iterator[Finding]:
        name = "rights to attach"
        missing = self._missing(ATTACH)
        if missing:
            found = f"not allowed to {_said(missing)}: neither attach nor check JOB"
            yield _warn(name, found, self._grant(ATTACH))
        else:
            yield _ok(name, f"attach and check JOB run commands in the pods of {self.namespace}")

    def _grant(self, role: str) -> str:
        return (
            f"kubectl create rolebinding {role} -n {self.namespace} --clusterrole={role} --user=YOU"
        )

    def placing(self) -> Iterator[Finding]:
        name = "rights to place"
        missing = self._missing(CLUSTER_READER)
        if not missing:
            # Gates are patched by the submitter only where no policy lifts them.
            missing = self._missing(SELF_PLACER)
        if not missing:
            yield _ok(name, "all that placing jobs oneself needs")
        elif self.controlled:
            yield _ok(name, "the controller places your jobs")
        else:
            cluster = any(one.everywhere for one in missing)
            role = CLUSTER_READER if cluster else SELF_PLACER
            kind = "clusterrolebinding" if cluster else "rolebinding"
            where = "" if cluster else f" -n {self.namespace}"
            fix = f"kubectl create {kind} {role}{where} --clusterrole={role} --user=YOU"
            judge = _fail if cluster else _warn
            yield judge(
                name, f"not allowed to {_said(missing)}, and no controller is known to do it", fix
            )

    def _missing(self, role: str) -> list[Right]:
        return [
            one
            for one in install.rights(role)
            if one.group in _PRESENT and not self.admin.allowed(one, self.namespace)
        ]

    # Who starts what waits

    def controller(self) -> Iterator[Finding]:
        name = "controller"
        lease = self.admin.lease()
        renewed = seconds(((lease or {}).get("spec") or {}).get("renewTime"))
        self.controlled = False
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity")
        if renewed is None or not holder:
            yield _warn(
                name,
                "none: whoever submits a job that waits starts it, with --wait or resume",
                _INSTALL,
            )
            return
        age = self.admin.now() - renewed
        if age > FRESH:
            yield _warn(
                name,
                f"it has not been heard of for {_span(age)}: nobody starts jobs that wait",
                f"kubectl get pods -n {SYSTEM}",
            )
            return
        self.controlled = True
        yield _ok(name, f"{holder} is at work")
        view = self.admin.view()
        seen = seconds(((view or {}).get("data") or {}).get("observedAt"))
        if view is not None and seen is not None and self.admin.now() - seen > published.STALE:
            yield _warn(
                name,
                f"cluster-view is {_span(self.admin.now() - seen)} old",
                f"kubectl logs -n {SYSTEM} deployment/{install.CONTROLLER}",
            )


_CLAIMS = "persistentvolumeclaims"

_PRESENT = frozenset({"", "apps", "batch", "kubeflow.org", "resource.k8s.io"})
"""Groups that matter on every cluster; rights on Kueue and PodGroups only where they are."""


def check(admin: Administration, namespace: str) -> Report:
    """Look at every prerequisite of jobs in a namespace; ArenaError if the cluster is out of reach.

    AccessDenied where the API server does not know who is asking.
    """
    version = admin.version()
    work = _Check(admin, namespace)
    steps: Sequence[tuple[str, Callable[[], Iterable[Finding]]]] = (
        ("mpijobs", work.mpijobs),
        ("operator", work.operator),
        ("controller", work.controller),
        ("placement policy", work.placement),
        ("claims policy", work.claims),
        ("suspension", work.suspension),
        ("gang scheduler", work.gang),
        ("topology", work.topology),
        ("topology nodes", work.nodes),
        ("pod security", work.security),
        ("rights to submit", work.submitting),
        ("rights to list data", work.listing),
        ("rights to attach", work.attaching),
        ("rights to place", work.placing),
    )
    findings = [_ok("API server", version)]
    for name, look in steps:
        findings += _tried(name, look)
    return Report(namespace=namespace, findings=tuple(findings))


def _tried(name: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What a check finds; a right that is missing makes it unknown, another refusal a failure."""
    try:
        yield from look()
    except AccessDenied as error:
        if error.status == _UNKNOWN_CALLER:
            raise
        yield Finding(name=name, outcome=Outcome.UNKNOWN, found=error.message, fix=error.hint)
    except (TimedOut, UsageError):
        raise
    except ArenaError as error:
        yield _fail(name, error.message, error.hint)


def _format(admin: Administration, policy: str) -> str | None:
    """The format that an installed policy is for, "" where it does not say; None: not known."""
    try:
        stored = admin.policy(policy)
    except AccessDenied:
        return None
    if stored is None:
        return None
    return str((stored["metadata"].get("labels") or {}).get(FORMAT_LABEL, ""))


def _ok(name: str, found: str) -> Finding:
    return Finding(name=name, outcome=Outcome.OK, found=found)


def _warn(name: str, found: str, fix: str | None) -> Finding:
    return Finding(name=name, outcome=Outcome.WARN, found=found, fix=fix)


def _fail(name: str, found: str, fix: str | None) -> Finding:
    return Finding(name=name, outcome=Outcome.FAIL, found=found, fix=fix)


def _some(names: Sequence[str], noun: str) -> str:
    """So many things, with the names of a few: `3 nodes (a, b, c)`, or the one by its name."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{len(names)} {noun}s ({_few(names)})"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _said(rights: Sequence[Right]) -> str:
    """Rights in a sentence: `create mpijobs.kubeflow.org, list pods and 3 more`."""
    more = f" and {len(rights) - _SHOWN} more" if len(rights) > _SHOWN else ""
    return ", ".join(map(str, rights[:_SHOWN])) + more


def _span(age: float) -> str:
    return f"{age / 60:.0f} min" if age < 7200 else f"{age / 3600:.0f} h"  # noqa: PLR2004


def _image(image: str) -> str:
    """An image without its registry: what tells versions apart."""
    return image.rpartition("/")[2].partition("@")[0]
