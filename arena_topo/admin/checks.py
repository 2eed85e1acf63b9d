"""`check`: the prerequisites of topology jobs in a cluster, and the rights of the caller.

A prerequisite that the caller may not read is `unknown`, with the missing right. A check fails if
jobs do not run or are not placed without it; it warns if they run with less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from arena_topo.admin.nodes import Use, node_states
from arena_topo.engines.kubernetes.admin import Administration
from arena_topo.engines.kubernetes.lease import LACKS
from arena_topo.engines.kubernetes.mpijob import seconds
from arena_topo.errors import UNKNOWN_CALLER, AccessDenied, ArenaError, TimedOut, UsageError
from arena_topo.manifests import MAP_FORMAT, install
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
from arena_topo.manifests.versions import BEST, versions_with
from arena_topo.topology import Knowledge, published
from arena_topo.words import counted, shortened

if TYPE_CHECKING:
    from arena_topo.manifests import Mechanisms
    from arena_topo.topology import Cluster

LEASE_FRESH_SECONDS = 60.0
"""Seconds after which a controller that has not renewed its Lease counts as stopped."""

_SHOWN = 4

_INSTALL = "arena-topo install --image IMAGE | kubectl apply -f -"
_DIFF = "arena-topo install --image IMAGE | kubectl diff -f -"


class CheckResult(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    """Jobs run, with less than possible."""
    FAIL = "fail"
    """Jobs do not run, or are not placed."""
    UNKNOWN = "unknown"
    """The caller may not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisite:
    """A prerequisite: the finding, and how to fix it."""

    name: str
    outcome: CheckResult
    finding: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All prerequisites of jobs in a namespace."""

    namespace: str
    findings: tuple[Prerequisite, ...]

    @property
    def passed(self) -> bool:
        """Whether no check fails; an unknown result is no failure."""
        return all(finding.outcome is not CheckResult.FAIL for finding in self.findings)


_Judged = tuple[CheckResult, str, str | None]
"""The result of a check: the outcome, the finding, and the advice."""


def _ok(finding: str) -> _Judged:
    return CheckResult.OK, finding, None


def _warn(finding: str, fix: str | None) -> _Judged:
    return CheckResult.WARN, finding, fix


def _fail(finding: str, fix: str | None) -> _Judged:
    return CheckResult.FAIL, finding, fix


class _Check:
    """The checks of one cluster; facts that several checks need are read once."""

    def __init__(self, admin: Administration, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace
        self.served: tuple[str, ...] = ()
        self.controlled = False

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes, and the GPUs in use on them."""
        return self.admin.backend.cluster()

    @cached_property
    def mechanisms(self) -> Mechanisms:
        """The mechanisms that bind workers to their GPUs here."""
        return self.admin.backend.mechanisms(self.namespace)

    # The operator

    @property
    def unsuspended(self) -> bool:
        """Whether no served version of MPIJob can be suspended."""
        return bool(self.served) and not {*self.served} & {
            *versions_with(lambda traits: traits.suspends)
        }

    def mpijobs(self) -> Iterator[_Judged]:
        self.served = self.admin.served()
        if not self.served:
            error = self.admin.no_operator()
            yield _fail("; ".join(filter(None, (error.message, error.why))), error.hint)
        elif self.unsuspended:
            yield _warn(
                f"{', '.join(self.served)}, which cannot be suspended: jobs cannot wait, and are"
                " pinned by their template alone",
                f"install an operator of {BEST}",
            )
        else:
            yield _ok(", ".join(self.served))

    def operator(self) -> Iterator[_Judged]:
        operators = self.admin.operators()
        if not operators:
            yield _warn(
                "no Deployment runs an image called mpi-operator or training-operator",
                "ignore this if jobs get their pods: the operator may have another name",
            )
        for operator in operators:
            metadata = operator["metadata"]
            name, space = metadata["name"], metadata.get("namespace", "")
            version = (metadata.get("labels") or {}).get("app.kubernetes.io/version")
            # Versions of an image differ in its name and tag, not in its registry.
            image = operator["image"].rpartition("/")[2].partition("@")[0]
            name_and_image = f"{space}/{name}: {image}" + (f" ({version})" if version else "")
            if (operator.get("status") or {}).get("availableReplicas"):
                yield _ok(name_and_image)
            else:
                yield _fail(
                    f"{name_and_image} has no pod that is available: jobs get no pods",
                    f"kubectl describe deployment {name} -n {space}",
                )

    def suspension(self) -> Iterator[_Judged]:
        if self.served and not self.unsuspended and not self.mechanisms.suspends:
            yield _warn(
                "the operator does not suspend jobs: they cannot wait, nor be rolled back",
                "install mpi-operator 0.4 or later",
            )

    # The mechanisms that place workers

    def placement(self) -> Iterator[_Judged]:
        mechanisms = self.mechanisms
        stored = _format(self.admin, PLACEMENT_POLICY)
        if stored is not None and stored != MAP_FORMAT:
            yield _warn(
                f"installed for maps of format {stored or 'unknown'}; this version writes"
                f" {MAP_FORMAT}, so that workers wait at their gates",
                _INSTALL,
            )
        elif mechanisms.admission:
            known = f" (map format {stored})" if stored else ""
            yield _ok(f"gives workers their nodes in namespace {self.namespace}{known}")
        elif mechanisms.admission is None:
            doubt = "; ".join(mechanisms.notes) or "it could not be asked"
            yield CheckResult.UNKNOWN, doubt, f"an administrator can tell: {_DIFF}"
        else:
            without = (
                "the submitter, or the controller, lifts the gate of each worker"
                if mechanisms.patches or self.controlled
                else "workers are pinned by their template alone: exact with one worker per node"
            )
            if stored:
                yield _warn(f"installed, but without effect: {without}", _DIFF)
            else:
                yield _warn(f"not installed: {without}", _INSTALL)

    def claims(self) -> Iterator[_Judged]:
        mechanisms = self.mechanisms
        if not mechanisms.classes:
            return
        drivers = ", ".join(sorted(mechanisms.classes))
        if mechanisms.claims:
            yield _ok(f"gives each worker its own GPUs of {drivers}")
        elif mechanisms.claims is None:
            doubt = "; ".join(mechanisms.notes) or "it could not be asked"
            yield CheckResult.UNKNOWN, doubt, f"kubectl get mutatingadmissionpolicy {CLAIMS_POLICY}"
        else:
            yield _warn(
                f"not effective: no job can be placed on the GPUs of {drivers} by claims",
                _INSTALL,
            )

    # The nodes

    def topology(self) -> Iterator[_Judged]:
        machines = [node for node in self.cluster.nodes if node.machine.gpus]
        nodes = [node for node in machines if node.shared is None]
        if not machines:
            yield _fail("no node has GPUs", "kubectl describe nodes | grep gpu")
            return
        doubts = {
            knowledge: [str(node.name) for node in nodes if node.machine.knowledge is knowledge]
            for knowledge in Knowledge
        }
        fix = f"arena-topo topology publish NODE, or an agent on each node: {_INSTALL}"
        if unknown := doubts[Knowledge.UNKNOWN]:
            consequence = "not known, and every path counts as the slowest"
            yield _warn(f"the links of {_named(unknown, 'node')} are {consequence}", fix)
        if assumed := doubts[Knowledge.ASSUMED]:
            product = "assumed from the GPU product and count"
            yield _warn(f"the links of {_named(assumed, 'node')} are {product}", fix)
        if not nodes:
            have = "has" if len(machines) == 1 else "have"
            yield _warn(
                f"only {_named([str(node.name) for node in machines], 'node')} {have} GPUs, and"
                " they are shared or cut up: no job is placed by topology",
                "arena-topo top node shows how each node is set up",
            )
        elif not unknown and not assumed:
            names = [str(node.name) for node in nodes]
            yield _ok(f"the links of {_named(names, 'node')} are published")
        old = []
        for config_map in self.admin.topologies(SYSTEM):
            data = config_map.get("data") or {}
            at = seconds(data.get("observedAt"))
            if at is not None and self.admin.now() - at > published.STALE_REPORT_SECONDS:
                old.append(str(data.get("nodeName") or config_map["metadata"]["name"]))
        if old:
            yield _warn(
                f"no agent has looked at {_named(old, 'node')} for"
                f" {_span(published.STALE_REPORT_SECONDS)} or"
                " more",
                f"kubectl get pods -n {SYSTEM} -o wide",
            )

    def nodes(self) -> Iterator[_Judged]:
        states = node_states(self.admin.nodes())
        contradictory = [node for node in states if node.remark]
        for node in contradictory[:_SHOWN]:
            fix = f"arena-topo nodes topology {node.node}, or nodes default {node.node}"
            yield _warn(f"{node.node} is {node.remark}", fix)
        if more := [node.node for node in contradictory[_SHOWN:]]:
            yield _warn(f"the same of {_named(more, 'node')}", "arena-topo nodes list")
        mixed = [str(node.name) for node in self.cluster.nodes if node.dedicated and node.foreign]
        if mixed:
            yield _warn(
                f"pods that arena-topo did not place use GPUs of {_named(mixed, 'node')}: the"
                " kubelet picks the GPUs of workers there (guarantee node)",
                f"kubectl get pods -A -o wide --field-selector spec.nodeName={mixed[0]}",
            )
        if not contradictory and not mixed:
            ours = [node.node for node in states if node.use == Use.TOPOLOGY]
            reserved = f"{_named(ours, 'node')} for topology jobs alone"
            yield _ok(reserved if ours else "none reserved")

    def health(self) -> Iterator[_Judged]:
        broken = [node for node in self.cluster.nodes if node.unhealthy_count and not node.shared]
        if broken:
            nodes = counted(len(broken), "node")
            which = shortened([f"{node.unhealthy_count} of {node.name}" for node in broken], _SHOWN)
            first = broken[0].name
            yield _warn(
                f"no job gets the unhealthy GPUs of {nodes}: {which}",
                f"arena-topo top node -d {first}; kubectl describe node {first}",
            )

    # The caller

    def security(self) -> Iterator[_Judged]:
        space = self.admin.namespace(self.namespace)
        if space is None:
            yield _fail(
                f"there is no namespace {self.namespace}",
                f"kubectl create namespace {self.namespace}, or name another with -n",
            )
            return
        labels = space["metadata"].get("labels") or {}
        level = labels.get("pod-security.kubernetes.io/enforce")
        if level == "restricted":
            yield _fail(
                "restricted, which refuses workers: their sshd runs as root",
                f"kubectl label namespace {self.namespace} --overwrite"
                " pod-security.kubernetes.io/enforce=baseline",
            )
        elif level == "baseline":
            yield _ok("baseline, which allows all but --pod-shape shared and host networks")
        else:
            yield _ok(f"{level or 'nothing'} is enforced in namespace {self.namespace}")

    def submitting(self) -> Iterator[_Judged]:
        missing = self._missing(SUBMITTER)
        needed = [right for right in missing if right.resource == "mpijobs"]
        optional = [right for right in missing if right not in needed]
        if needed:
            yield _fail(f"not allowed to {_listed(needed)}", self._grant(SUBMITTER))
        if optional:
            yield _warn(f"not allowed to {_listed(optional)}", self._grant(SUBMITTER))
        if not missing:
            yield _ok(f"all that submit, get, logs, delete and data list need in {self.namespace}")

    def attaching(self) -> Iterator[_Judged]:
        if missing := self._missing(ATTACH):
            denied = f"not allowed to {_listed(missing)}: neither attach nor check JOB"
            yield _warn(denied, self._grant(ATTACH))
        else:
            yield _ok(f"attach and check JOB run commands in the pods of {self.namespace}")

    def placing(self) -> Iterator[_Judged]:
        everywhere = self._missing(CLUSTER_READER)
        # What may not be watched is listed again and again while a gang waits.
        needed = [right for right in everywhere if right.verb != "watch"]
        # The submitter patches gates only if no policy lifts them.
        missing = needed or [*everywhere, *self._missing(SELF_PLACER)]
        denied = f"not allowed to {_listed(missing)}, and no controller places jobs"
        if not missing:
            yield _ok("all that placing jobs oneself needs")
        elif self.controlled:
            yield _ok("the controller places your jobs")
        elif everywhere:
            role = f"{CLUSTER_READER} --clusterrole={CLUSTER_READER}"
            judged = _fail if needed else _warn
            yield judged(denied, f"kubectl create clusterrolebinding {role} --user=YOU")
        else:
            yield _warn(denied, self._grant(SELF_PLACER))

    def _grant(self, role: str) -> str:
        return (
            f"kubectl create rolebinding {role} -n {self.namespace} --clusterrole={role} --user=YOU"
        )

    def _missing(self, role: str) -> list[Right]:
        return [
            right
            for right in install.rights(role)
            if right.group in _PRESENT and not self.admin.allowed(right, self.namespace)
        ]

    # The controller

    def controller(self) -> Iterator[_Judged]:
        stored = self.admin.lease() or {}
        lease = stored.get("spec") or {}
        renewed, holder = seconds(lease.get("renewTime")), lease.get("holderIdentity")
        if renewed is None or not holder:
            yield _warn(
                "none: users start their own waiting jobs, with submit --wait or resume", _INSTALL
            )
            return
        age = self.admin.now() - renewed
        if age > LEASE_FRESH_SECONDS:
            yield _warn(
                f"no sign of it for {_span(age)}: waiting jobs are not started",
                f"kubectl get pods -n {SYSTEM}",
            )
            return
        self.controlled = True
        yield _ok(f"{holder} is at work")
        if lacks := ((stored.get("metadata") or {}).get("annotations") or {}).get(LACKS):
            event_rights = [right for right in lacks.split(", ") if right.endswith(" events")]
            others = [right for right in lacks.split(", ") if right not in event_rights]
            for rights, what in (
                (event_rights, "what it does to a job stands on the job alone, and in why"),
                (others, "without --retry a gang stays failed whose worker was ended from outside"),
            ):
                if rights:
                    yield _warn(f"it may not {', '.join(rights)}: {what}", _INSTALL)
        observed = seconds(((self.admin.view() or {}).get("data") or {}).get("observedAt"))
        if observed is not None and self.admin.now() - observed > published.STALE_REPORT_SECONDS:
            yield _warn(
                f"cluster-view is {_span(self.admin.now() - observed)} old",
                f"kubectl logs -n {SYSTEM} deployment/{install.CONTROLLER}",
            )


_PRESENT = frozenset({"", "apps", "batch", "kubeflow.org", "resource.k8s.io"})
"""Groups that matter on every cluster; rights on Kueue and PodGroups matter only if they are
installed."""


def check_cluster(admin: Administration, namespace: str) -> CheckReport:
    """Check every prerequisite of jobs in a namespace; ArenaError if the API server is unreachable.

    AccessDenied if the API server does not know the caller.
    """
    version = admin.version()
    work = _Check(admin, namespace)
    steps: Sequence[tuple[str, Callable[[], Iterable[_Judged]]]] = (
        ("mpijobs", work.mpijobs),
        ("operator", work.operator),
        ("controller", work.controller),
        ("placement policy", work.placement),
        ("claims policy", work.claims),
        ("suspension", work.suspension),
        ("topology", work.topology),
        ("topology nodes", work.nodes),
        ("GPU health", work.health),
        ("pod security", work.security),
        ("rights to submit", work.submitting),
        ("rights to attach", work.attaching),
        ("rights to place", work.placing),
    )
    findings = [Prerequisite(name="API server", outcome=CheckResult.OK, finding=version)]
    for name, look in steps:
        findings += [
            Prerequisite(name=name, outcome=outcome, finding=finding, fix=fix)
            for outcome, finding, fix in _tried(look)
        ]
    return CheckReport(namespace=namespace, findings=tuple(findings))


def _tried(look: Callable[[], Iterable[_Judged]]) -> Iterator[_Judged]:
    """The findings of a check: a missing right makes it unknown, another error a failure."""
    try:
        yield from look()
    except AccessDenied as error:
        if error.status == UNKNOWN_CALLER:
            raise
        yield CheckResult.UNKNOWN, error.message, error.hint
    except (TimedOut, UsageError):
        raise
    except ArenaError as error:
        yield _fail(error.message, error.hint)


def _format(admin: Administration, policy: str) -> str | None:
    """The map format of an installed policy, "" without a label; None if it is not known."""
    try:
        stored = admin.policy(policy)
    except AccessDenied:
        return None
    if stored is None:
        return None
    return str((stored["metadata"].get("labels") or {}).get(FORMAT_LABEL, ""))


def _named(names: Sequence[str], noun: str) -> str:
    """Some things by number and name: `3 nodes (a, b, c)`, or a single one by its name."""
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{counted(len(names), noun)} ({shortened(names, _SHOWN)})"


def _listed(rights: Sequence[Right]) -> str:
    """Rights in a sentence: `create mpijobs.kubeflow.org, list pods and 3 more`."""
    return shortened([*map(str, rights)], _SHOWN)


def _span(age: float) -> str:
    return f"{age / 60:.0f} min" if age < 7200 else f"{age / 3600:.0f} h"  # noqa: PLR2004
