"""The rules by which one verdict on a job is found: what it does or waits for, why, what to try.

Pure. `RULES` is a decision table: its rows are asked from the most specific cause to the least, and
the first that applies is the verdict. A row detects its cause in pods, nodes and events, and says
it. Its sections:

    ended      how it ended, or what broke it
    suspended  who holds it on purpose: Kueue, kube-queue, another manager, its user
    waiting    why it waits for GPUs
    pods       why its pods are not made, or do not run; who does not answer
    running    it runs, or starts

Texts of other systems are recognised as Kubernetes 1.36 (kubelet, pkg/kubelet/eviction and
lifecycle; scheduler; `DisruptionTarget`, KEP-3329), mpi-operator and OpenSSH's client write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from arena_topo.clusters.queues import KUBE_QUEUE, KUBE_QUEUE_NAME, KUEUE, KUEUE_LABEL, manager
from arena_topo.clusters.quota import shortfall
from arena_topo.clusters.usage import amount, pod_over
from arena_topo.engines import DEADLINE, JobStatus, Phase
from arena_topo.engines.kubernetes.facts import PATIENCE, Object
from arena_topo.engines.kubernetes.mpijob import (
    condition,
    condition_of,
    ignored,
    is_launcher,
    overran,
    pinned_nodes,
    seconds,
    time_limit,
    touched,
)
from arena_topo.engines.kubernetes.queued import MOST_TRIES, moment
from arena_topo.gang.fairness import STALE
from arena_topo.job import NodeLoss
from arena_topo.layout import duration
from arena_topo.manifests import GATE, INCOMPLETE, MAP, RECORDED, TRIES, Guarantee, estimates
from arena_topo.manifests.annotations import asked
from arena_topo.manifests.cause import Cause, CauseCode
from arena_topo.manifests.versions import version_of
from arena_topo.numbers import whole
from arena_topo.reasons import launcher_log
from arena_topo.reasons.case import PROGRAM, Case, Code, Diagnosis
from arena_topo.reasons.live_events import IMAGE_REASONS, waits
from arena_topo.solver import Verdict as Fits
from arena_topo.topology import natural

LOST_AFTER = 60.0
"""Seconds after which the controller moves a gang off a node that it should not use."""

QUIET = 600.0
"""Seconds without a line of its log after which `why` says so of a job that runs."""

MOST_NAMES = 4
"""Pods that are named before the rest is counted."""

Found = dict[str, str]
"""Words about pods, by the names of the pods; empty where the rule does not apply."""


def verdict(case: Case) -> Diagnosis:
    """The first row of the table that applies."""
    for row in RULES:
        said = row(case)
        if said is not None:
            # Engines give as a reason what some rows say themselves.
            return said if said.why != said.what else replace(said, why=None)
    raise AssertionError("the last row always applies")


def _said(code: Code, what: str, why: str | None = None, hint: str | None = None) -> Diagnosis:
    return Diagnosis(code=code, what=what, why=(why or "").strip() or None, hint=hint)


def _several(found: Iterable[str], one: str, many: str) -> str:
    """Pods and a verb in the right number: `demo-worker-0 and 2 more were`."""
    names = sorted(found, key=natural)
    return (
        f"{names[0]} {one}" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more {many}"
    )


def _first(found: Found) -> str:
    return next(iter(found.values()))


def _of_pods(code: Code, found: Found, verbs: str, what: str, hint: str) -> Diagnosis | None:
    """The verdict on the pods that something is the matter with, if there are any.

    `verbs` is the verb for one pod and for several: `was/were`.
    """
    if not found:
        return None
    return _said(code, f"{_several(found, *verbs.split('/'))} {what}", _first(found), hint)


# ---------------------------------------------------------------- what pods and nodes show


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def _phase(pod: Object) -> str:
    return str(_status(pod).get("phase") or "Unknown")


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _gates(pod: Object) -> list[str]:
    return [str(one.get("name")) for one in (pod.get("spec") or {}).get("schedulingGates") or ()]


def _ended(pod: Object) -> Iterator[Object]:
    """How containers of a pod ended, those that were started again included."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in _status(pod).get(kind) or ():
            for state in ("state", "lastState"):
                if ended := (one.get(state) or {}).get("terminated"):
                    yield ended


def _disrupted(pod: Object, *reasons: str) -> str | None:
    found = condition_of(pod, "DisruptionTarget") or {}
    if found.get("status") != "True" or found.get("reason") not in reasons:
        return None
    return str(found.get("message") or found["reason"])


def _unusable(name: str, nodes: Mapping[str, Object | None]) -> str | None:
    """Why nothing can run on a node at all; None if it can, or nobody has looked at it."""
    if nodes.get(name, {}) is None:
        return f"node {name} does not exist any more"
    ready = condition_of(nodes.get(name) or {}, "Ready")
    if ready is None or ready.get("status") == "True":
        return None
    said = str(ready.get("message") or ready.get("reason") or "").rstrip(".")
    return f"node {name} is not ready" + (f": {said}" if said else "")


def lost(pods: Iterable[Object], nodes: Mapping[str, Object | None]) -> Found:
    """Pods whose node is gone or silent, and what is known of it.

    Nodes that were not looked at are absent from `nodes`; those that do not exist are None there.
    """
    found: Found = {}
    for pod in pods:
        status = _status(pod)
        why = _disrupted(pod, "DeletionByTaintManager", "DeletionByPodGC")
        if status.get("reason") in {"NodeLost", "NodeShutdown"}:
            why = str(status.get("message") or status["reason"])
        why = why or _unusable(_node(pod), nodes)
        if why is not None and _phase(pod) != "Succeeded":
            found[_name(pod)] = why
    return found


def _is_cordoned(name: str, nodes: Mapping[str, Object | None]) -> bool:
    return bool(((nodes.get(name) or {}).get("spec") or {}).get("unschedulable"))


def cordoned(pods: Iterable[Object], nodes: Mapping[str, Object | None]) -> list[str]:
    """The nodes of workers that take no new pods, while theirs run on."""
    names = {_node(pod) for pod in pods if not is_launcher(pod)}
    return [name for name in sorted(names, key=natural) if _is_cordoned(name, nodes)]


# ---------------------------------------------------------------- ended: how, or what broke it


def _deleting(case: Case) -> Diagnosis | None:
    meta = case.mpijob.get("metadata") or {}
    if "deletionTimestamp" not in meta:
        return None
    keepers = ", ".join(map(str, meta.get("finalizers") or ()))
    why = f"it stays until these are done with it: {keepers}" if keepers else None
    return _said(Code.DELETING, "the job is being deleted", why)


def _succeeded(case: Case) -> Diagnosis | None:
    if case.status.phase is not Phase.SUCCEEDED:
        return None
    return _said(Code.SUCCEEDED, "the job succeeded", hint=case.command("logs"))


def _out_of_memory(case: Case) -> Diagnosis | None:
    killed = {
        _name(pod): "the kernel ended a container at its memory limit (OOMKilled)"
        for pod in case.pods
        if any(ended.get("reason") == "OOMKilled" for ended in _ended(pod))
    }
    if case.status.phase is Phase.RUNNING:
        return None
    what = "killed for using more memory than the limit"
    hint = "submit it again with more --memory, or a smaller batch"
    return _of_pods(Code.OUT_OF_MEMORY, killed, "was/were", what, hint)


def _evicted(case: Case) -> Diagnosis | None:
    gone: Found = {}
    for pod in case.pods:
        why = _disrupted(pod, "EvictionByEvictionAPI", "TerminationByKubelet")
        if _status(pod).get("reason") == "Evicted":
            why = str(_status(pod).get("message") or "Evicted")
        if why is not None:
            gone[_name(pod)] = why
    if _rolled_back(case):
        return None
    return _of_pods(Code.EVICTED, gone, "was/were", "evicted from the node", case.again)


def _node_lost(case: Case) -> Diagnosis | None:
    gone = lost(case.pods, case.nodes)
    if not gone or _rolled_back(case):
        return None
    what, why, hint = f"{_several(gone, 'has', 'have')} lost the node", _first(gone), case.again
    if not case.status.phase.over and any(
        _name(pod) in gone and not is_launcher(pod) for pod in case.pods
    ):
        left = "the gang is left as it is, and holds its GPUs until MPI notices"
        why, hint = _moved(case, why, left)
    return _said(Code.NODE_LOST, what, why, hint)


def _rolled_back(case: Case) -> bool:
    """Whether the whole gang was rolled back, so that what broke its pods is over."""
    return case.suspended and not case.status.phase.over


def _moved(case: Case, why: str, left: str) -> tuple[str, str]:
    """Why a gang is where it should not stay, and who moves it; `left` is what else becomes of it.

    Only the gangs that arena-topo has placed and started are moved by its controller.
    """
    chosen = asked(case.mpijob).get("onNodeLoss")
    if case.state != "placed" or case.owner is not None:
        return why, case.again
    replan = f"{case.command('replan')} moves it"
    if chosen == NodeLoss.FAIL:
        return f"{why}; by --on-node-loss fail {left}", replan
    if case.starts is not True:
        return why, replan
    does = "moves the gang"
    if chosen == NodeLoss.HOLD:
        does = "suspends the gang, by --on-node-loss hold,"
    return why, f"the controller {does} after {LOST_AFTER:g} s; {replan} now"


_ADMISSION = re.compile(r"UnexpectedAdmissionError|OutOf\w|NodeAffinity|TopologyAffinityError")
"""Why a kubelet fails a pod that the scheduler gave it."""


def _rejected(case: Case) -> Diagnosis | None:
    gone = {
        _name(pod): str(_status(pod).get("message") or _status(pod)["reason"])
        for pod in case.pods
        if _phase(pod) == "Failed" and _ADMISSION.match(str(_status(pod).get("reason") or ""))
    }
    what = "not taken by the kubelet of the node"
    return _of_pods(Code.REJECTED_BY_NODE, gone, "was/were", what, case.again)


def _preempted(case: Case) -> Diagnosis | None:
    gone = {
        _name(pod): why
        for pod in case.pods
        if (why := _disrupted(pod, "PreemptionByScheduler")) is not None
    }
    for event in case.events:
        if event.reason == "Preempted":
            gone.setdefault(event.source.partition("/")[2], event.message)
    if case.status.phase is Phase.RUNNING:
        return None
    what, hint = "preempted by pods of higher priority", "submit it with a higher --priority, or"
    return _of_pods(Code.PREEMPTED, gone, "was/were", what, f"{hint} {case.again}")


def _running_timeout(case: Case) -> Diagnosis | None:
    told = case.facts is None and (case.status.reason or "").startswith(DEADLINE)
    if case.status.phase is not Phase.FAILED or not (told or overran(case.mpijob)):
        return None
    limit = time_limit(case.mpijob)
    return _said(
        Code.RUNNING_TIMEOUT,
        "the job ran longer than it may, and was ended",
        f"its --running-timeout is {limit:.0f} s" if limit else None,
        "submit it again with a longer --running-timeout",
    )


_LOGIN = re.compile(
    r"ssh: connect to host \S+ port \d+: .*|ssh: Could not resolve hostname .*"
    r"|.*Permission denied \(publickey.*|Host key verification failed.*"
    r"|kex_exchange_identification: .*|not ready after \d+ s: .*"
)
_NO_SSHD = re.compile(r"/sshd\b.*(no such file|not found|permission denied)", re.IGNORECASE)


def _no_login(case: Case) -> Diagnosis | None:
    """The launcher could not log in to a worker: in its log, or in its last words."""
    log = case.log.text if case.log is not None else ""
    line = next(_refused_logins(case.pods, log), None)
    if line is None or case.status.phase in {Phase.SUCCEEDED, Phase.RUNNING}:
        return None
    return _said(
        Code.NO_SSHD,
        "the launcher cannot log in to a worker",
        line,
        "the image needs an sshd that the workers can start: /usr/sbin/sshd, host keys and the"
        " user of --ssh-auth-mount-path",
    )


def _refused_logins(pods: Iterable[Object], log: str) -> Iterator[str]:
    """The words by which the launcher, or a worker without sshd, says that nobody can log in."""
    for pod in pods:
        said = [str(ended.get("message") or "") for ended in _ended(pod)]
        for text in [*said, *(message for _container, _reason, message in waits(pod))]:
            # The launcher says in its init container which workers never answered.
            if is_launcher(pod) and (found := _LOGIN.search(text)):
                yield found[0].strip()
            elif not is_launcher(pod) and _NO_SSHD.search(text):
                yield f"{_name(pod)}: {text.strip()}"
    yield from (
        found[0].strip() for line in log.splitlines()[::-1] if (found := _LOGIN.search(line))
    )


def _worker_failed(case: Case) -> Diagnosis | None:
    """Workers that ended badly before the launcher did."""
    ends = [_finish(end) for pod in case.pods if is_launcher(pod) for end in _ended(pod)]
    gone: Found = {}
    for pod in case.pods:
        if is_launcher(pod) or _phase(pod) != "Failed" or "deletionTimestamp" in pod["metadata"]:
            continue
        bad = next((end for end in _ended(pod) if end.get("exitCode")), None)
        if bad is not None and (not ends or _finish(bad) <= max(ends)):
            last = str(bad.get("message") or "").strip().splitlines()[-1:]
            gone[_name(pod)] = ": ".join([f"exit code {bad['exitCode']}", *last])
    if not gone:
        return None
    name, why = next(iter(gone.items()))
    what = f"{_several(gone, 'has', 'have')} ended before the launcher"
    return _said(Code.WORKER_FAILED, what, f"{name}: {why}", f"{case.command('logs')} -i {name}")


def _finish(ended: Object) -> float:
    return seconds(ended.get("finishedAt")) or 0.0


def _failed(case: Case) -> Diagnosis | None:
    code, logs = case.status.exit_code, case.command("logs")
    if case.status.phase is not Phase.FAILED:
        return None
    if not code:
        return _said(Code.FAILED, "the job has failed", case.status.reason, logs)
    what = f"the launcher ended with exit code {code}"
    lines = case.log.lines if case.log is not None else ()
    last = f"last line of its log: {lines[-1].strip()}" if lines else None
    why = last or case.status.reason
    rank = launcher_log.failed_rank(case.log.text) if case.log is not None else None
    if rank is not None:
        what, why = (
            launcher_log.sentence(rank, case.status),
            "; ".join(filter(None, (what, last))),
        )
    return _said(Code.LAUNCHER_FAILED, what, why, logs)


# ---------------------------------------------------------------- suspended: by whom


_KUEUE_REASONS = {
    "WaitingForQuota": ("the Kueue queue {} has no quota left for it now", ""),
    "ExceedsMaxQuota": (
        "it asks for more than the Kueue queue {} can ever give",
        "submit it with fewer --workers, or ask for more quota; ",
    ),
    "TopologyPlacementFailed": (
        "Kueue finds no place for it in its topology, for the queue {}",
        "",
    ),
    "NoMatchingFlavor": (
        "no flavor of the Kueue queue {} is for such nodes as it asks for",
        "submit it with another --selector or --toleration; ",
    ),
}
"""Why Kueue reserves no quota (kueue, apis/kueue/v1beta2, WorkloadQuotaReservedReason...): what to
say of a queue, and what can be done about it besides asking Kueue."""


def _kueue(case: Case) -> Diagnosis | None:
    """What Kueue's Workload says: preempted, no quota, or not decided."""
    if case.queue != KUEUE and not (case.suspended and case.workload):
        return None
    labels = (case.mpijob.get("metadata") or {}).get("labels") or {}
    queue = (case.workload.get("spec") or {}).get("queueName") or labels.get(KUEUE_LABEL) or "?"
    name = (case.workload.get("metadata") or {}).get("name")
    about = f"workload {name}" if name else f"localqueue {queue}"
    ask = f"kubectl describe {about} -n {case.status.namespace}"
    evicted, preempted, reserved, admitted = (
        condition_of(case.workload, kind) or {}
        for kind in ("Evicted", "Preempted", "QuotaReserved", "Admitted")
    )
    message = str(reserved.get("message") or "")
    if evicted.get("status") == "True":
        what = f"Kueue has stopped the job: {evicted.get('reason')}"
        if evicted.get("reason") == "Preempted":
            what = "Kueue has preempted the job, and starts it again when there is quota"
        why = str(preempted.get("message") or evicted.get("message") or "")
        return _said(Code.PREEMPTED, what, why, ask)
    known = _KUEUE_REASONS.get(str(reserved.get("reason")))
    if reserved.get("status") == "False" and known is not None:
        return _said(Code.KUEUE_QUOTA, known[0].format(queue), message, f"{known[1]}{ask}")
    # Older versions of Kueue, and those without its feature UnadmittedWorkloadsObservability, say
    # Pending whatever the cause is.
    by_quota = re.search(r"quota|flavor|topology", message, re.IGNORECASE)
    if reserved.get("status") == "False" and by_quota:
        what = f"the Kueue queue {queue} has no quota for it"
        return _said(Code.KUEUE_QUOTA, what, message, ask)
    if reserved.get("status") == "True":
        message = str(admitted.get("message") or "")
    unknown = None if case.workload else "Kueue has not made a Workload for it"
    what = f"Kueue decides when it starts (queue {queue})"
    return _said(Code.SUSPENDED_BY_KUEUE, what, message or unknown, ask)


def _kube_queue(case: Case) -> Diagnosis | None:
    if case.queue != KUBE_QUEUE_NAME:
        return None
    return _said(
        Code.SUSPENDED_BY_KUBE_QUEUE,
        "kube-queue decides when it starts",
        f"annotation {KUBE_QUEUE} is {case.notes.get(KUBE_QUEUE)}",
        f"kubectl get queueunits -n {case.status.namespace}",
    )


def _other_manager(case: Case) -> Diagnosis | None:
    other = manager(case.mpijob)
    if other is None or case.pods:
        return None
    return _said(
        Code.SUSPENDED_BY_MANAGER,
        f"{other} runs the job, not the MPI operator of this cluster",
        "spec.runPolicy.managedBy says so, and cannot be changed",
        _describe(case),
    )


def _describe(case: Case) -> str:
    return f"kubectl describe mpijob {case.status.name} -n {case.status.namespace}"


_HELD_FOR = {CauseCode.NODE_LOST: Code.NODE_LOST, CauseCode.EVICTED: Code.EVICTED}
"""Why the controller suspends a gang until somebody resumes it."""


def _by_controller_or_user(case: Case) -> Diagnosis | None:
    if case.status.phase is not Phase.SUSPENDED:
        return None
    resume, held = case.command("resume"), case.state == "held"
    for cause, code in _HELD_FOR.items():
        if held and case.is_because(cause):
            what = "the controller has suspended it, by --on-node-loss hold"
            return _said(
                code, what, case.recorded_reason, f"{resume} starts it on what is free then"
            )
    why = case.recorded_reason or ("" if held else "spec.runPolicy.suspend is true")
    return _said(Code.SUSPENDED_BY_USER, "somebody has suspended it", why, resume)


# ---------------------------------------------------------------- waiting: for GPUs, and a start


def _waits(case: Case) -> bool:
    alone = case.facts is None or case.suspended
    return case.state == "waiting" and case.status.phase is Phase.PENDING and alone


def _at_gates(case: Case) -> bool:
    """Whether a queue has started it, and its workers are to be placed only now."""
    started = case.owner is not None and not case.suspended
    return case.state == "waiting" and case.status.phase is Phase.PENDING and started


def _by_itself(case: Case, then: str) -> str:
    """Who starts a job once what it waits for is there; `then` are the words for `resume`."""
    return (
        "it starts by itself then" if case.starts is True else f"{then}: {case.command('resume')}"
    )


def _incomplete(case: Case) -> Diagnosis | None:
    """Its files are not there, so that resuming it would not help."""
    if case.facts is None or not case.facts.missing or case.status.phase is not Phase.PENDING:
        return None
    lacks = " and ".join(f"configmap {one}" for one in case.facts.missing)
    start_over = f"{case.command('delete')}, and submit it again"
    if case.now - case.status.created < STALE:
        what, why = "its files are not there yet", f"there is no {lacks}"
        hint = f"if whoever submits it was stopped: {start_over}"
        return _said(Code.NOT_RESUMED, what, why, hint)
    why = f"whoever submitted it was stopped before its files were there: no {lacks}"
    return _said(Code.NOT_RESUMED, "it was not created completely", why, start_over)


def _never(case: Case) -> Diagnosis | None:
    waits_for_gpus = _waits(case) or _at_gates(case)
    if not waits_for_gpus or case.fit is None or case.fit.verdict is not Fits.NEVER:
        return None
    hint = f"{case.command('delete')}, and submit what can be placed"
    return _said(Code.NEVER_FITS, case.fit.message, case.fit.why, hint)


def _unmarked(case: Case) -> Diagnosis | None:
    """All that it needs is there, and the mark that keeps others from starting it still stands."""
    if not _waits(case) or INCOMPLETE not in case.notes or case.now - case.status.created < STALE:
        return None
    return _said(
        Code.NOT_RESUMED,
        "it waits, and no controller starts it",
        "whoever submitted it was stopped before it could be left to others",
        case.command("resume"),
    )


def _gave_up(case: Case) -> Diagnosis | None:
    """A gang that was rolled back, and that nobody starts again by itself."""
    tries = whole(case.notes.get(TRIES)) or 0
    if _waits(case) and case.is_because(CauseCode.IMAGE):
        if case.starts is True and tries < MOST_TRIES:
            return None
        hint = "and submit it with the right --image or --image-pull-secret"
        return _said(
            Code.IMAGE_PULL,
            "it was rolled back, as its image cannot be pulled",
            case.recorded_reason,
            f"{case.command('delete')}, {hint}; resume does not change them",
        )
    if not _waits(case) or tries < MOST_TRIES:
        return None
    what = f"it was started {tries} times, and rolled back each time"
    hint = f"once that is settled: {case.command('resume')}"
    return _said(Code.TAKEN_BACK, what, case.status.reason, hint)


def _old_pods(case: Case) -> Diagnosis | None:
    """Nobody starts a gang whose old pods are still there."""
    left = {_name(pod): pod for pod in case.pods if not pod_over(pod)}
    if not _waits(case) or not left:
        return None
    names = sorted(left, key=natural)
    why = ", ".join(f"{one} on {_node(left[one]) or 'no node yet'}" for one in names[:MOST_NAMES])
    why += f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    what = "it waits until the pods of its last run have ended"
    gone = lost(case.pods, case.nodes)
    ends = [seconds(pod["metadata"].get("deletionTimestamp")) for pod in left.values()]
    if not gone and not any(end is not None and case.now - end > PATIENCE for end in ends):
        hint = _by_itself(case, "once they have ended")
        return _said(Code.PODS_TERMINATING, what, why, hint)
    stuck = " ".join([one for one in names if one in gone] or names)
    delete = f"kubectl delete pod {stuck} -n {case.status.namespace} --grace-period=0 --force"
    hint = f"restore the node, or, if it is gone for good: {delete}"
    if case.starts is True and gone:
        hint = (
            f"restore the node; else the controller deletes them {LOST_AFTER:g} s after it was"
            f" lost; by hand: {delete}"
        )
    elif case.starts is not True:
        hint += f"; then: {case.command('resume')}"
    why += f"; {_first(gone)}" if gone else ""
    return _said(Code.PODS_TERMINATING, what, why, hint)


def _short_of_quota(case: Case) -> Diagnosis | None:
    """GPUs are free for it, or nobody can say; the quota of its namespace is not."""
    if not _waits(case) or case.facts is None or case.fit is None or case.fit.behind is not None:
        return None
    short = _shortage(case, case.facts.quotas)
    if short is None or case.fit.verdict not in {Fits.PLACEABLE, None}:
        return None
    name = short.parameters.get("quota", "?")
    return _said(
        Code.QUOTA_EXCEEDED,
        f"the quota {name} of namespace {case.status.namespace} has no room for the gang",
        str(short),
        f"end other jobs of the namespace, or ask for more quota; {_by_itself(case, 'then')}",
    )


def _shortage(case: Case, quotas: Iterable[Object] | None) -> Cause | None:
    """What the quotas leave too little of for a gang; None if there is room now.

    The record knows the claims too, so what the gang needs is taken from there; what is left is
    what the quota says now. Where quotas may not be read (None) the record stands.
    """
    recorded = case.cause if case.is_because(CauseCode.QUOTA) else None
    if quotas is None:
        return recorded
    found = shortfall(dict(case.mpijob), quotas)
    if found is not None or recorded is None:
        return found
    said = recorded.parameters
    status = next((_status(one) for one in quotas if _name(one) == said.get("quota")), {})
    try:
        hard, used = (amount((status.get(key) or {})[said["resource"]]) for key in ("hard", "used"))
        left = max(0.0, hard - used)
        short = float(said["needs"]) > left
    except (KeyError, ValueError):
        return None
    return replace(recorded, parameters={**said, "left": f"{left:g}"}) if short else None


def _no_room(case: Case) -> Diagnosis | None:
    if not (_waits(case) or _at_gates(case)) or case.fit is None:
        return None
    if case.fit.verdict is None and case.status.reason:
        # Nobody could look. What was found when it was submitted is better than nothing.
        what = "it waits for GPUs, as was found when somebody last tried to place it"
        return _said(Code.WAITING_FOR_GPUS, what, case.status.reason)
    if case.fit.verdict is not Fits.NOT_NOW:
        return None
    hint = "the job starts by itself once enough GPUs are free"
    if case.starts is not True:
        hint = f"once enough GPUs are free: {case.command('resume')}"
    return _said(Code.WAITING_FOR_GPUS, case.fit.message, case.fit.why, hint)


def _fits(case: Case) -> bool:
    return _waits(case) and case.fit is not None and case.fit.verdict is Fits.PLACEABLE


def _turn(case: Case) -> Diagnosis | None:
    behind = case.fit.behind if case.fit is not None else None
    if not _fits(case) or behind is None:
        return None
    return _said(
        Code.WAITING_FOR_TURN,
        f"it fits, but {behind} waits longer or has more priority",
        f"the GPUs it would take are kept for {behind}",
        # An engine without objects keeps to the order of age.
        "a shorter --running-timeout may let a job pass those that wait for longer"
        if case.facts is not None
        else f"it starts by itself after {behind}",
    )


def _nobody_starts(case: Case) -> Diagnosis | None:
    if not _fits(case) or case.starts is not False:
        return None
    return _said(
        Code.NOBODY_STARTS,
        "it fits now, but no controller starts it",
        "the controller of arena-topo does not run in this cluster",
        case.command("resume"),
    )


def _not_resumed(case: Case) -> Diagnosis | None:
    if case.state != "placed" or not case.suspended or case.status.phase is not Phase.PENDING:
        return None
    recorded = moment(case.notes.get(RECORDED))
    if recorded is not None and case.now - recorded < STALE:
        return None
    return _said(
        Code.NOT_RESUMED,
        "it has its GPUs, but was never started",
        "whoever submitted it was stopped in between; others may take its GPUs now",
        case.command("resume"),
    )


# ---------------------------------------------------------------- pods: not made, or not running


_REFUSALS = (
    (
        Code.QUOTA_EXCEEDED,
        re.compile(r"(?:exceeded|failed) quota: ([^\s,:]+)"),
        "the quota {0} of namespace {namespace} has no room for its pods",
        "end other jobs of the namespace, ask for more quota, or submit it with fewer --workers",
    ),
    (
        Code.POD_SECURITY,
        re.compile(r"violates PodSecurity"),
        "namespace {namespace} allows no such pods",
        "leave out what it names (as --hostIPC or --data-dir), or use another namespace",
    ),
    (
        Code.POLICY_DENIED,
        re.compile(
            r"^(?:.*?(?:policy '([^']+)'|webhook \"([^\"]+)\"))?"
            r".*(?:denied (?:the )?request|forbidden: .*(?:maximum|minimum|PriorityClass))",
            re.DOTALL,
        ),
        "{0} refuses its pods",
        "",
    ),
    (
        Code.FORBIDDEN,
        re.compile(r'is forbidden: User "([^"]+)" cannot (\S+) resource "([^"]+)"'),
        "the operator cannot make its pods: {0} may not {1} {2}",
        "an administrator grants that",
    ),
    (
        Code.PODS_REFUSED,
        re.compile(r"worker pod created failed|Error creating|create Pod .* failed"),
        "the cluster refuses its pods",
        "",
    ),
)
"""What API servers say of a pod that they refuse, and what to say and do about it."""


def _refused(case: Case) -> Diagnosis | None:
    """The newest refusal of one of its pods, by the most specific of these texts."""
    texts = [event.message for event in reversed(case.events) if event.kind == "Warning"]
    for code, pattern, what, hint in _REFUSALS:
        found = next(((text, seen) for text in texts if (seen := pattern.search(text))), None)
        if found is not None:
            text, seen = found
            names = [name for name in seen.groups() if name] or ["the cluster"]
            said = what.format(*names, namespace=case.status.namespace)
            return _said(code, said, text, hint or _describe(case))
    return None


def _invalid(case: Case) -> Diagnosis | None:
    """The operator finds the job itself wrong."""
    found = [event.message for event in case.events if event.reason == "ValidationError"]
    if not found or case.pods:
        return None
    hint = f"{case.command('delete')}, and submit it corrected"
    return _said(Code.INVALID_JOB, "the MPI operator does not accept the job", found[-1], hint)


def _image(case: Case) -> Diagnosis | None:
    for pod in case.pods:
        for container, reason, message in waits(pod):
            if reason not in IMAGE_REASONS:
                continue
            # A pod that backs off has forgotten the cause; its events have not.
            pulls = [
                event.message
                for event in case.events
                if event.source == f"pod/{_name(pod)}" and "Failed to pull" in event.message
            ]
            why = pulls[-1] if pulls else message or reason
            return _said(
                Code.IMAGE_PULL,
                f"the image {_image_of(pod, container)} cannot be pulled",
                f"{_name(pod)}: {why}",
                "check its name and tag; a private one needs --image-pull-secret",
            )
    return None


def _image_of(pod: Object, container: str) -> str:
    spec = pod.get("spec") or {}
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        if one.get("name") == container:
            return str(one.get("image") or "?")
    return "?"


_BROKEN = {
    "CreateContainerConfigError": "cannot be made",
    "CreateContainerError": "cannot be made",
    "RunContainerError": "cannot be started",
    "CrashLoopBackOff": "ends again and again",
}


def _container(case: Case) -> Diagnosis | None:
    for pod in case.pods:
        for container, reason, message in waits(pod):
            if reason in _BROKEN:
                what = f"container {container} of {_name(pod)} {_BROKEN[reason]}"
                why = f"{reason}: {message}" if message else reason
                return _said(Code.CONTAINER_ERROR, what, why, case.command("logs"))
    return None


def _volume(case: Case) -> Diagnosis | None:
    for event in case.events:
        if event.reason in {"FailedMount", "FailedAttachVolume"}:
            why = f"{event.source.partition('/')[2]}: {event.message}"
            hint = "check --data, --data-dir, --config-file"
            return _said(Code.VOLUME_MISSING, "a volume cannot be mounted", why, hint)
    return None


def _gated(case: Case) -> Diagnosis | None:
    """Workers wait at our gate: no policy took their map, or nobody is there to lift it."""
    ours = [pod for pod in case.pods if GATE in _gates(pod)]
    mapped = [_name(pod) for pod in ours if MAP in (pod["metadata"].get("annotations") or {})]
    if mapped:
        return _said(
            Code.POLICY_NOT_EFFECTIVE,
            f"{_several(mapped, 'waits', 'wait')} at the gate: no policy has answered",
            "the worker still carries the map that the policy arena-topo-placement would have"
            " taken",
            f"{case.command('resume')}; an administrator runs: {PROGRAM} install",
        )
    if not ours or case.starts is True:
        return None
    gone = f"{case.owner} has started it" if case.owner else "whoever submitted the job is gone"
    return _said(
        Code.GATED_NO_PATCHER,
        f"{_several(map(_name, ours), 'waits', 'wait')} at the gate without a node",
        f"{gone}, and no controller of arena-topo runs here",
        case.command("resume"),
    )


def _gated_by_others(case: Case) -> Diagnosis | None:
    gates = {_name(pod): gate for pod in case.pods for gate in _gates(pod) if gate != GATE}
    if not gates:
        return None
    label = version_of(case.mpijob).traits.job_labels[0]
    return _said(
        Code.GATED_BY_OTHERS,
        f"{_several(gates, 'waits', 'wait')} at the gate {_first(gates)}",
        "whoever put up that gate has to lift it",
        f"kubectl get pods -n {case.status.namespace} -l {label}={case.status.name} -o yaml",
    )


def _unbound(case: Case) -> Iterator[tuple[Object, Object]]:
    """The pods that a scheduler is to find a node for, and what it says of each."""
    for pod in case.pods:
        if _phase(pod) == "Pending" and not _node(pod) and not _gates(pod):
            yield pod, condition_of(pod, "PodScheduled") or {}


def _pinned(case: Case) -> Diagnosis | None:
    """A worker waits for the node that it is pinned to, which takes no pods."""
    for pod, scheduled in _unbound(case):
        for name in pinned_nodes(pod):
            why = _unusable(name, case.nodes)
            if why is None and _is_cordoned(name, case.nodes):
                why = f"node {name} is cordoned"
            if why is not None:
                what = f"{_name(pod)} may only run on node {name}, which takes no pods"
                said = scheduled.get("message")
                why += f"; the scheduler says: {said}" if said else ""
                return _said(Code.PINNED_NODE_GONE, what, why, case.again)
    return None


def _unschedulable(case: Case) -> Diagnosis | None:
    found = {
        _name(pod): str(said.get("message") or said["reason"])
        for pod, said in _unbound(case)
        if said.get("status") == "False"
        and said.get("reason") in {"Unschedulable", "SchedulerError"}
    }
    return _of_pods(Code.UNSCHEDULABLE, found, "has/have", "no node to run on", case.again)


def _no_scheduler(case: Case) -> Diagnosis | None:
    for pod, scheduled in _unbound(case):
        created = seconds(pod["metadata"].get("creationTimestamp"))
        if not scheduled and created is not None and case.now - created > PATIENCE:
            scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
            return _said(
                Code.NO_SCHEDULER,
                f"the scheduler {scheduler} does not look at {_name(pod)}",
                "the pod is older than a minute and says nothing of having been scheduled",
                "is that scheduler installed, and does it wait for the rest of the gang?",
            )
    return None


def _no_sshd(case: Case) -> Diagnosis | None:
    """Workers have run for a while without their sshd answering the probe."""
    told = {one.source: one.message for one in case.events if one.reason == "Unhealthy"}
    found: Found = {}
    for pod in case.pods:
        if is_launcher(pod) or _phase(pod) != "Running" or condition(pod, "Ready") != "False":
            continue
        starts = [
            at
            for one in _status(pod).get("containerStatuses") or ()
            if (at := seconds(((one.get("state") or {}).get("running") or {}).get("startedAt")))
        ]
        said = told.get(f"pod/{_name(pod)}", "")
        probes = [
            str(one.get("readinessProbe"))
            for one in (pod.get("spec") or {}).get("containers") or ()
        ]
        asks_sshd = said or any("ssh" in probe for probe in probes)
        if starts and case.now - max(starts) > PATIENCE and asks_sshd:
            found[_name(pod)] = said
    if not found:
        return None
    return _said(
        Code.NO_SSHD,
        f"{_several(found, 'runs', 'run')} without an sshd that answers",
        _first(found) or "its readiness probe fails",
        f"{case.command('logs')} -i {next(iter(found))}; the image needs /usr/sbin/sshd",
    )


def _operator(case: Case) -> Diagnosis | None:
    if case.facts is None or case.suspended or case.pods or not ignored(case.mpijob):
        return None
    if case.now - touched(case.mpijob) < PATIENCE or _pods_hidden(case):
        return None
    found = case.facts.operators
    nothing = "has written nothing on the job for a minute"
    if found is None:
        why = f"it {nothing}; whether it runs may not be read"
    elif not found:
        why = "no Deployment of an MPI operator was found"
    elif not any(found.values()):
        why = f"{', '.join(found)} has no ready pod"
    else:
        why = f"{', '.join(found)} runs, but {nothing}"
    hint = "kubectl get deployments -A | grep -e mpi-operator -e training-operator"
    what = "the MPI operator does nothing with the job"
    return _said(Code.OPERATOR_NOT_RESPONDING, what, why, hint)


def _pods_hidden(case: Case) -> bool:
    denied = case.facts.denied if case.facts is not None else ()
    return any(one.resource == "pods" for one in denied)


def _hidden(case: Case) -> Diagnosis | None:
    """What would decide may not be read."""
    if case.facts is None or not case.facts.denied or case.status.phase is not Phase.PENDING:
        return None
    blind = _waits(case) and (case.fit is None or case.fit.verdict is None)
    if not blind and not _pods_hidden(case):
        return None
    rights = [one for one in case.facts.denied if one.resource in {"pods", "nodes", "mpijobs"}]
    missing = (rights or list(case.facts.denied))[0]
    what, why = f"it waits, and you are {missing}", "what keeps it waiting stands in there"
    if missing.why is not None:
        what, why = f"it waits, and {missing.resource} cannot be read", missing.why
    return _said(Code.FORBIDDEN, what, why, f"ask for the rule {missing.rule}")


# ---------------------------------------------------------------- running, or starting


_SURE = {
    Guarantee.GPUS: "each worker has these GPUs",
    Guarantee.NODE: "each worker has its node, and the kubelet picked the GPUs",
    Guarantee.ADVISORY: "nothing enforces the plan",
}


def _running(case: Case) -> Diagnosis | None:
    if case.status.phase is not Phase.RUNNING:
        return None
    where = _where(case.status)
    what = f"the job runs{f' on {where}' if where else ''}"
    hint, trouble = f"{case.command('logs')} -f", None
    names, silence = cordoned(case.pods, case.nodes), _silence(case)
    if names and case.state == "placed":
        trouble = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} cordoned"
        trouble, hint = _moved(case, trouble, "the gang stays there")
    elif silence is not None:
        trouble = f"no output for {duration(silence)}"
        hint = f"{case.command('logs')}; look into it: {case.command('attach')} -- ps aux"
    why = "; ".join(filter(None, (trouble, case.status.reason, _worth(case.status))))
    return _said(Code.RUNNING, what, why, hint)


def _silence(case: Case) -> float | None:
    """Seconds since the launcher of a running job wrote a line; None where it is not long ago."""
    chief = case.status.chief
    if case.log is None or chief is None:
        return None
    last = case.log.written or chief.started
    return case.now - last if last is not None and case.now - last >= QUIET else None


def _where(status: JobStatus) -> str:
    """The nodes of the workers, with their GPUs where those are sure to be the recorded ones."""
    found = status.forecast
    recorded = found.workers if found is not None else ()
    sure = found is not None and found.guarantee == Guarantee.GPUS
    nodes: dict[str, list[str]] = {}
    for _index, node, gpus in sorted(recorded):
        nodes.setdefault(node, []).extend([",".join(map(str, gpus))] if gpus and sure else [])
    if not nodes:
        workers = [one for one in status.instances if not one.chief and one.node]
        nodes = {str(one.node): [] for one in workers}
    shown = [
        f"{name} (GPUs {'; '.join(sets)})" if (sets := nodes[name]) else name
        for name in sorted(nodes, key=natural)
    ]
    more = len(shown) - MOST_NAMES
    return ", ".join(shown[:MOST_NAMES]) + (f" and {more} more nodes" if more > 0 else "")


def _worth(status: JobStatus) -> str | None:
    """What the solver expected of the place of a job, and how firmly it holds."""
    found = status.forecast
    if found is None or not found.workers:
        return None
    said = []
    if found.usable is not None:
        assumed = " (assumed)" if found.assumed else ""
        where = estimates.recorded_limit(found)
        best = "the best that there was" if found.optimal else ""
        speed = f"{estimates.recorded(found)}{assumed} of bus bandwidth"
        said.append(", ".join(filter(None, (speed, where, best))))
        if found.falls_short and found.bus_bandwidth is not None:
            said.append(f"one host would reach {estimates.amount(found.bus_bandwidth)} GB/s there")
    if found.guarantee in set(Guarantee):
        by = f", by {found.binding}" if found.binding else ""
        doubt = "" if found.confirmed else ", unconfirmed"
        said.append(f"{_SURE[Guarantee(found.guarantee)]}{by}{doubt}")
    return "; ".join(said) or None


def _starting(case: Case) -> Diagnosis | None:
    if case.status.phase is not Phase.PENDING:
        return None
    what, why, hint = "it is starting", case.status.reason, None
    resume = case.command("resume")
    if _fits(case):
        what, why = "it fits now, and is about to be started", None
    elif case.state == "placed" and case.suspended:
        what, why = "it has its GPUs; whoever placed it is about to start it", None
        hint = f"if that was stopped or killed: {resume}"
    elif _at_gates(case):
        what = f"{case.owner} has started it; its workers wait at their gates to be placed"
        why = case.recorded_reason or why
        hint = "the controller places them" if case.starts is True else f"{resume} places them"
    return _said(Code.STARTING, what, why, hint)


def _unknown(case: Case) -> Diagnosis | None:
    return _said(Code.UNKNOWN, "nothing is known of what the job does", case.status.reason)


RULES: tuple[Callable[[Case], Diagnosis | None], ...] = (
    # ended
    _deleting,
    _succeeded,
    _out_of_memory,
    _evicted,
    _node_lost,
    _rejected,
    _preempted,
    _running_timeout,
    _no_login,
    _worker_failed,
    _failed,
    # suspended
    _kueue,
    _kube_queue,
    _other_manager,
    _by_controller_or_user,
    # waiting
    _incomplete,
    _never,
    _unmarked,
    _gave_up,
    _old_pods,
    _short_of_quota,
    _no_room,
    _turn,
    _nobody_starts,
    _not_resumed,
    # pods
    _refused,
    _invalid,
    _image,
    _container,
    _volume,
    _gated,
    _gated_by_others,
    _pinned,
    _unschedulable,
    _no_scheduler,
    _no_sshd,
    _operator,
    _hidden,
    # running
    _running,
    _starting,
    _unknown,
)
"""The decision table, from the most specific cause to the least."""
