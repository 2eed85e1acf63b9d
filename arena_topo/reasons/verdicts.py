"""One verdict on a job: what it does or waits for, why, and what to try.

Pure. `TABLE` is the decision table: its rows are asked from the most specific cause to the least,
and the first that applies is the verdict. In that order:

1. how it ended or what broke it: deleted, succeeded, out of memory, evicted, ...
2. who holds it on purpose: Kueue and its quota, kube-queue, another manager, its user
3. why it waits for GPUs: never fits, given up, its old pods, quota, not now, an older gang's turn,
   nobody starts it
4. why its pods are not made: quota, PodSecurity, policies, rights
5. why its pods do not run: image, container, volume, gate, pinned node, scheduler, sshd
6. who does not answer: the operator, or the API server (missing rights)
7. it runs, or starts

Texts of other systems are recognised as Kubernetes 1.36 and mpi-operator write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from arena_topo.clusters.queues import KUBE_QUEUE, KUBE_QUEUE_NAME, KUEUE, KUEUE_LABEL, manager
from arena_topo.engines import DEADLINE, JobStatus, Phase
from arena_topo.engines.kubernetes import symptoms
from arena_topo.engines.kubernetes.facts import PATIENCE
from arena_topo.engines.kubernetes.mpijob import (
    condition_of,
    ignored,
    is_launcher,
    overran,
    time_limit,
    touched,
)
from arena_topo.engines.kubernetes.queued import MOST_TRIES, moment
from arena_topo.gang.fairness import STALE
from arena_topo.job import NodeLoss
from arena_topo.layout import duration
from arena_topo.manifests import INCOMPLETE, RECORDED, TRIES, Guarantee, estimates
from arena_topo.manifests.annotations import asked
from arena_topo.manifests.cause import CauseCode
from arena_topo.numbers import whole
from arena_topo.reasons import launcher_log, obstacles
from arena_topo.reasons.cases import Case, Code, Diagnosis, Said
from arena_topo.solver import Verdict as Fits
from arena_topo.topology import natural

LOST_AFTER = 60.0
"""Seconds after which the controller moves a gang off a node that it should not use."""

QUIET = 600.0
"""Seconds without a line of its log after which `why` says so of a job that runs."""

MOST_NAMES = 4
"""Pods that are named before the rest is counted."""


Row = Callable[[Case], Said | None]


def verdict(case: Case) -> Diagnosis:
    """The first row of the table that applies."""
    for code, row in TABLE:
        said = row(case)
        if said is not None:
            why = (said.why or "").strip() or None
            # Engines give as a reason what some rows say themselves.
            told = why if why != said.what else None
            return Diagnosis(code=code, what=said.what, why=told, hint=said.hint)
    raise AssertionError("the last row always applies")


# ---------------------------------------------------------------- 1. how it ended, what broke it


def _succeeded(case: Case) -> Said | None:
    if case.status.phase is not Phase.SUCCEEDED:
        return None
    return Said("the job succeeded", hint=case.command("logs"))


def _out_of_memory(case: Case) -> Said | None:
    killed = symptoms.killed_for_memory(case.pods)
    if not killed or case.status.phase is Phase.RUNNING:
        return None
    return Said(
        f"{symptoms.several(killed, 'was', 'were')} killed for using more memory than the limit",
        "the kernel ended a container at its memory limit (OOMKilled)",
        "submit it again with more --memory, or a smaller batch",
    )


def _evicted(case: Case) -> Said | None:
    gone = symptoms.evicted(case.pods)
    if not gone or _taken(case):
        return None
    return Said(
        f"{symptoms.several(gone, 'was', 'were')} evicted from the node",
        next(iter(gone.values())),
        case.again,
    )


def _node_lost(case: Case) -> Said | None:
    lost = symptoms.lost(case.pods, case.nodes)
    if not lost or _taken(case):
        return None
    what, why = f"{symptoms.several(lost, 'has', 'have')} lost the node", next(iter(lost.values()))
    if case.status.phase.over or not any(
        str(pod["metadata"]["name"]) in lost and not is_launcher(pod) for pod in case.pods
    ):
        return Said(what, why, case.again)
    left = "the gang is left as it is, and holds its GPUs until MPI notices"
    return Said(what, *_moved(case, why, left))


def _taken(case: Case) -> bool:
    """Whether the whole gang was taken back, so that what broke its pods is over."""
    return case.suspended and not case.status.phase.over


def _moved(case: Case, why: str, left: str) -> tuple[str, str]:
    """Why a gang is where it should not stay, and who moves it; `left` is what else becomes of it.

    Only the gangs that arena-topo has placed and started are moved by its controller.
    """
    chosen = asked(case.mpijob).get("onNodeLoss")
    if case.state != "placed" or case.owner is not None:
        return why, case.again
    if chosen == NodeLoss.FAIL:
        return f"{why}; by --on-node-loss fail {left}", f"{case.command('replan')} moves it"
    if case.starts is not True:
        return why, f"{case.command('replan')} moves it"
    does = "moves the gang"
    if chosen == NodeLoss.HOLD:
        does = "suspends the gang, by --on-node-loss hold,"
    return (
        why,
        f"the controller {does} after {LOST_AFTER:g} s; {case.command('replan')} moves it now",
    )


def _rejected(case: Case) -> Said | None:
    gone = symptoms.rejected(case.pods)
    if not gone:
        return None
    return Said(
        f"{symptoms.several(gone, 'was', 'were')} not taken by the kubelet of the node",
        next(iter(gone.values())),
        case.again,
    )


def _preempted(case: Case) -> Said | None:
    gone = symptoms.preempted(case.pods, case.events)
    if not gone or case.status.phase is Phase.RUNNING:
        return None
    return Said(
        f"{symptoms.several(gone, 'was', 'were')} preempted by pods of higher priority",
        next(iter(gone.values())),
        f"submit it with a higher --priority, or {case.again}",
    )


def _running_timeout(case: Case) -> Said | None:
    told = (case.status.reason or "").startswith(DEADLINE) and case.facts is None
    if case.status.phase is not Phase.FAILED or not (told or overran(case.mpijob)):
        return None
    limit = time_limit(case.mpijob)
    return Said(
        "the job ran longer than it may, and was ended",
        f"its --running-timeout is {limit:.0f} s" if limit else None,
        "submit it again with a longer --running-timeout",
    )


def _no_way_in(case: Case) -> Said | None:
    """The launcher could not log in to a worker: in its log, or in its last words."""
    line = symptoms.refused_login(case.pods, case.log.text if case.log is not None else "")
    if line is None or case.status.phase in {Phase.SUCCEEDED, Phase.RUNNING}:
        return None
    return Said(
        "the launcher cannot log in to a worker",
        line,
        "the image needs an sshd that the workers can start: /usr/sbin/sshd, host keys and the"
        " user of --ssh-auth-mount-path",
    )


def _worker_failed(case: Case) -> Said | None:
    gone = symptoms.worker_failed(case.pods)
    if not gone:
        return None
    name, why = next(iter(gone.items()))
    return Said(
        f"{symptoms.several(gone, 'has', 'have')} ended before the launcher",
        f"{name}: {why}",
        f"{case.command('logs')} -i {name}",
    )


def _launcher_failed(case: Case) -> Said | None:
    code = case.status.exit_code
    if case.status.phase is not Phase.FAILED or not code:
        return None
    ended = f"the launcher ended with exit code {code}"
    lines = case.log.lines if case.log is not None else ()
    last = f"last line of its log: {lines[-1].strip()}" if lines else None
    rank = launcher_log.failed_rank(case.log.text) if case.log is not None else None
    if rank is None:
        return Said(ended, last or case.status.reason, case.command("logs"))
    why = "; ".join(filter(None, (ended, last)))
    return Said(launcher_log.sentence(rank, case.status), why, case.command("logs"))


def _failed(case: Case) -> Said | None:
    if case.status.phase is not Phase.FAILED:
        return None
    return Said("the job has failed", case.status.reason, case.command("logs"))


def _deleting(case: Case) -> Said | None:
    meta = case.mpijob.get("metadata") or {}
    if "deletionTimestamp" not in meta:
        return None
    keepers = ", ".join(map(str, meta.get("finalizers") or ()))
    return Said(
        "the job is being deleted",
        f"it stays until these are done with it: {keepers}" if keepers else None,
    )


# ---------------------------------------------------------------- 2. who holds it on purpose


def _held_by_kueue(case: Case) -> bool:
    return case.queue == KUEUE or (case.suspended and bool(case.workload))


def _queue(case: Case) -> str:
    labels = (case.mpijob.get("metadata") or {}).get("labels") or {}
    name = (case.workload.get("spec") or {}).get("queueName")
    return str(name or labels.get(KUEUE_LABEL) or "?")


def _preempted_by_kueue(case: Case) -> Said | None:
    evicted = condition_of(case.workload, "Evicted") or {}
    if not _held_by_kueue(case) or evicted.get("status") != "True":
        return None
    preempted = condition_of(case.workload, "Preempted") or {}
    return Said(
        "Kueue has preempted the job, and starts it again when there is quota"
        if evicted.get("reason") == "Preempted"
        else f"Kueue has stopped the job: {evicted.get('reason')}",
        str(preempted.get("message") or evicted.get("message") or "") or None,
        _ask_kueue(case),
    )


def _ask_kueue(case: Case) -> str:
    name = (case.workload.get("metadata") or {}).get("name")
    what = f"workload {name}" if name else f"localqueue {_queue(case)}"
    return f"kubectl describe {what} -n {case.status.namespace}"


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


def _kueue_quota(case: Case) -> Said | None:
    reserved = condition_of(case.workload, "QuotaReserved") or {}
    message = str(reserved.get("message") or "")
    if not _held_by_kueue(case) or reserved.get("status") != "False":
        return None
    if (known := _KUEUE_REASONS.get(str(reserved.get("reason")))) is not None:
        what, advice = known
        return Said(what.format(_queue(case)), message or None, f"{advice}{_ask_kueue(case)}")
    # Older versions of Kueue, and those without its feature UnadmittedWorkloadsObservability, say
    # Pending whatever the cause is.
    if not re.search(r"quota|flavor|topology", message, re.IGNORECASE):
        return None
    return Said(f"the Kueue queue {_queue(case)} has no quota for it", message, _ask_kueue(case))


def _kueue(case: Case) -> Said | None:
    if not _held_by_kueue(case):
        return None
    reserved = condition_of(case.workload, "QuotaReserved") or {}
    admitted = condition_of(case.workload, "Admitted") or {}
    said = admitted if reserved.get("status") == "True" else reserved
    return Said(
        f"Kueue decides when it starts (queue {_queue(case)})",
        str(said.get("message") or "")
        or (None if case.workload else "Kueue has not made a Workload for it"),
        _ask_kueue(case),
    )


def _kube_queue(case: Case) -> Said | None:
    if case.queue != KUBE_QUEUE_NAME:
        return None
    return Said(
        "kube-queue decides when it starts",
        f"annotation {KUBE_QUEUE} is {case.notes.get(KUBE_QUEUE)}",
        f"kubectl get queueunits -n {case.status.namespace}",
    )


def _other_manager(case: Case) -> Said | None:
    other = manager(case.mpijob)
    if other is None or case.pods:
        return None
    return Said(
        f"{other} runs the job, not the MPI operator of this cluster",
        "spec.runPolicy.managedBy says so, and cannot be changed",
        f"kubectl describe mpijob {case.status.name} -n {case.status.namespace}",
    )


def _held_for(case: Case, code: CauseCode) -> Said | None:
    """A gang that the controller has suspended, and why, where that is this cause."""
    why = case.recorded_reason
    held = case.state == "held" and case.status.phase is Phase.SUSPENDED
    if not held or not case.is_because(code):
        return None
    hint = f"{case.command('resume')} starts it on what is free then"
    return Said("the controller has suspended it, by --on-node-loss hold", why, hint)


def _held_for_node(case: Case) -> Said | None:
    return _held_for(case, CauseCode.NODE_LOST)


def _held_for_pod(case: Case) -> Said | None:
    return _held_for(case, CauseCode.EVICTED)


def _user(case: Case) -> Said | None:
    if case.status.phase is not Phase.SUSPENDED:
        return None
    why = "" if case.state == "held" else "spec.runPolicy.suspend is true"
    return Said(
        "somebody has suspended it", case.recorded_reason or why or None, case.command("resume")
    )


# ---------------------------------------------------------------- 3. why it waits for GPUs


def _waits(case: Case) -> bool:
    alone = case.facts is None or case.suspended
    return case.state == "waiting" and case.status.phase is Phase.PENDING and alone


def _at_gates(case: Case) -> bool:
    """Whether a queue has started it, and its workers are to be placed only now."""
    started = case.owner is not None and not case.suspended
    return case.state == "waiting" and case.status.phase is Phase.PENDING and started


def _never(case: Case) -> Said | None:
    if (
        not (_waits(case) or _at_gates(case))
        or case.fit is None
        or case.fit.verdict is not Fits.NEVER
    ):
        return None
    return Said(
        case.fit.message, case.fit.why, f"{case.command('delete')}, and submit what can be placed"
    )


def _no_image(case: Case) -> Said | None:
    """A gang that was taken back for its image, and that nobody starts again by itself."""
    again = case.starts is True and (whole(case.notes.get(TRIES)) or 0) < MOST_TRIES
    if not _waits(case) or again or not case.is_because(CauseCode.IMAGE):
        return None
    return Said(
        "it was rolled back, as its image cannot be pulled",
        case.recorded_reason,
        f"{case.command('delete')}, and submit it with the right --image or --image-pull-secret;"
        " resume does not change them",
    )


def _haunted(case: Case) -> Said | None:
    """Nobody starts a gang whose old pods are still there."""
    left = symptoms.remaining(case.pods)
    if not _waits(case) or not left:
        return None
    names = sorted(left, key=natural)
    shown = ", ".join(f"{one} on {left[one] or 'no node yet'}" for one in names[:MOST_NAMES])
    more = len(names) - MOST_NAMES
    lost = symptoms.lost(case.pods, case.nodes)
    why = shown + (f" and {more} more" if more > 0 else "")
    why += f"; {next(iter(lost.values()))}" if lost else ""
    what = "it waits until the pods of its last run have ended"
    if not lost and not symptoms.overdue(case.pods, now=case.now, patience=PATIENCE):
        then = "it starts by itself then"
        if case.starts is not True:
            then = f"once they have ended: {case.command('resume')}"
        return Said(what, why, then)
    gone = [one for one in names if one in lost] or names
    command = f"kubectl delete pod {' '.join(gone)} -n {case.status.namespace}"
    command += " --grace-period=0 --force"
    if case.starts is True and lost:
        return Said(
            what,
            why,
            f"restore the node; else the controller deletes them {LOST_AFTER:g} s after it was"
            f" lost; by hand: {command}",
        )
    then = "" if case.starts is True else f"; then: {case.command('resume')}"
    return Said(what, why, f"restore the node, or, if it is gone for good: {command}{then}")


def _taken_back(case: Case) -> Said | None:
    tries = whole(case.notes.get(TRIES)) or 0
    if not _waits(case) or tries < MOST_TRIES:
        return None
    return Said(
        f"it was started {tries} times, and rolled back each time",
        case.status.reason,
        f"once that is settled: {case.command('resume')}",
    )


def _short_of_quota(case: Case) -> Said | None:
    """GPUs are free for it, or nobody can say; the quota of its namespace is not."""
    if not _waits(case) or case.facts is None or case.fit is None or case.fit.behind is not None:
        return None
    if case.fit.verdict not in {Fits.PLACEABLE, None}:
        return None
    found = symptoms.short_of_quota(case.mpijob, case.facts.quotas, case.cause)
    if found is None:
        return None
    name, then = found.parameters.get("quota", "?"), "it starts by itself then"
    if case.starts is not True:
        then = f"then: {case.command('resume')}"
    return Said(
        f"the quota {name} of namespace {case.status.namespace} has no room for the gang",
        str(found),
        f"end other jobs of the namespace, or ask for more quota; {then}",
    )


def _no_room(case: Case) -> Said | None:
    if not (_waits(case) or _at_gates(case)) or case.fit is None:
        return None
    if case.fit.verdict is None:
        # Nobody could look. What was found when it was submitted is better than nothing.
        if not case.status.reason:
            return None
        return Said(
            "it waits for GPUs, as was found when somebody last tried to place it",
            case.status.reason,
            None,
        )
    if case.fit.verdict is not Fits.NOT_NOW:
        return None
    starter = "the job starts by itself once enough GPUs are free"
    if case.starts is not True:
        starter = f"once enough GPUs are free: {case.command('resume')}"
    return Said(case.fit.message, case.fit.why, starter)


def _placeable(case: Case) -> bool:
    return _waits(case) and case.fit is not None and case.fit.verdict is Fits.PLACEABLE


def _turn(case: Case) -> Said | None:
    if not _placeable(case) or case.fit is None or case.fit.behind is None:
        return None
    return Said(
        f"it fits, but {case.fit.behind} waits longer or has more priority",
        f"the GPUs it would take are kept for {case.fit.behind}",
        # An engine without objects keeps to the order of age.
        "a shorter --running-timeout may let a job pass those that wait for longer"
        if case.facts is not None
        else f"it starts by itself after {case.fit.behind}",
    )


def _nobody(case: Case) -> Said | None:
    if not _placeable(case) or case.starts is not False:
        return None
    return Said(
        "it fits now, but no controller starts it",
        "the controller of arena-topo does not run in this cluster",
        case.command("resume"),
    )


def _incomplete(case: Case) -> Said | None:
    """Its files are not there, so that resuming it would not help."""
    if case.facts is None or not case.facts.missing or case.status.phase is not Phase.PENDING:
        return None
    lacks = " and ".join(f"configmap {one}" for one in case.facts.missing)
    start_over = f"{case.command('delete')}, and submit it again"
    if case.now - case.status.created < STALE:
        return Said(
            "its files are not there yet",
            f"there is no {lacks}",
            f"if whoever submits it was stopped: {start_over}",
        )
    return Said(
        "it was not created completely",
        f"whoever submitted it was stopped before its files were there: no {lacks}",
        start_over,
    )


def _unmarked(case: Case) -> Said | None:
    """All that it needs is there, and the mark that keeps others from starting it still stands."""
    if not _waits(case) or INCOMPLETE not in case.notes or case.now - case.status.created < STALE:
        return None
    return Said(
        "it waits, and nobody starts it",
        "whoever submitted it was stopped before it could be left to others",
        case.command("resume"),
    )


def _not_resumed(case: Case) -> Said | None:
    if case.state != "placed" or not case.suspended or case.status.phase is not Phase.PENDING:
        return None
    recorded = moment(case.notes.get(RECORDED))
    if recorded is not None and case.now - recorded < STALE:
        return None
    return Said(
        "it has its GPUs, but was never started",
        "whoever submitted it was stopped in between; others may take its GPUs now",
        case.command("resume"),
    )


# ---------------------------------------------------------------- 6. who does not answer


def _operator(case: Case) -> Said | None:
    if case.facts is None or case.suspended or case.pods or not ignored(case.mpijob):
        return None
    if case.now - touched(case.mpijob) < PATIENCE or _pods_hidden(case):
        return None
    return Said(
        "the MPI operator does nothing with the job",
        symptoms.operators(case.facts.operators),
        "kubectl get deployments -A | grep -e mpi-operator -e training-operator",
    )


def _pods_hidden(case: Case) -> bool:
    denied = case.facts.denied if case.facts is not None else ()
    return any(one.resource == "pods" for one in denied)


def _hidden(case: Case) -> Said | None:
    """What would decide may not be read."""
    if case.facts is None or not case.facts.denied or case.status.phase is not Phase.PENDING:
        return None
    blind = _waits(case) and (case.fit is None or case.fit.verdict is None)
    if not blind and not _pods_hidden(case):
        return None
    rights = [one for one in case.facts.denied if one.resource in {"pods", "nodes", "mpijobs"}]
    missing = (rights or list(case.facts.denied))[0]
    return Said(
        f"it waits, and you are {missing}",
        "what keeps it waiting stands in there" if missing.why is None else missing.why,
        f"ask for the rule {missing.rule}",
    )


# ---------------------------------------------------------------- 7. it runs, or starts


_SURE = {
    Guarantee.GPUS: "each worker has these GPUs",
    Guarantee.NODE: "each worker has its node, and the kubelet picked the GPUs",
    Guarantee.ADVISORY: "nothing enforces the plan",
}


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


def _running(case: Case) -> Said | None:
    if case.status.phase is not Phase.RUNNING:
        return None
    where = _where(case.status)
    what = f"the job runs{f' on {where}' if where else ''}"
    why = "; ".join(filter(None, (case.status.reason, _worth(case.status)))) or None
    cordoned = symptoms.cordoned(case.pods, case.nodes)
    if cordoned and case.state == "placed":
        verb = "is" if len(cordoned) == 1 else "are"
        trouble = f"{', '.join(cordoned)} {verb} cordoned"
        trouble, hint = _moved(case, trouble, "the gang stays there")
        return Said(what, f"{trouble}; {why}" if why else trouble, hint)
    silence = _silence(case)
    if silence is not None:
        said = f"no output for {duration(silence)}" + (f"; {why}" if why else "")
        logs, attach = case.command("logs"), case.command("attach")
        return Said(what, said, f"{logs}; look into it: {attach} -- ps aux")
    return Said(what, why, f"{case.command('logs')} -f")


def _silence(case: Case) -> float | None:
    """Seconds since the launcher of a running job wrote a line; None where it is not long ago."""
    chief = case.status.chief
    if case.log is None or chief is None:
        return None
    last = case.log.written or chief.started
    return case.now - last if last is not None and case.now - last >= QUIET else None


def _starting(case: Case) -> Said | None:
    if case.status.phase is not Phase.PENDING:
        return None
    if _placeable(case):
        return Said("it fits now, and is about to be started")
    if case.state == "placed" and case.suspended:
        return Said(
            "it has its GPUs; whoever placed it is about to start it",
            hint=f"if that was stopped or killed: {case.command('resume')}",
        )
    if _at_gates(case):
        return Said(
            f"{case.owner} has started it; its workers wait at their gates to be placed",
            case.recorded_reason or case.status.reason,
            "the controller places them"
            if case.starts is True
            else f"{case.command('resume')} places them",
        )
    return Said("it is starting", case.status.reason)


def _unknown(case: Case) -> Said | None:
    return Said("nothing is known of what the job does", case.status.reason)


TABLE: tuple[tuple[Code, Row], ...] = (
    (Code.DELETING, _deleting),
    (Code.SUCCEEDED, _succeeded),
    (Code.OUT_OF_MEMORY, _out_of_memory),
    (Code.EVICTED, _evicted),
    (Code.NODE_LOST, _node_lost),
    (Code.REJECTED_BY_NODE, _rejected),
    (Code.PREEMPTED, _preempted),
    (Code.RUNNING_TIMEOUT, _running_timeout),
    (Code.NO_SSHD, _no_way_in),
    (Code.WORKER_FAILED, _worker_failed),
    (Code.LAUNCHER_FAILED, _launcher_failed),
    (Code.FAILED, _failed),
    (Code.PREEMPTED, _preempted_by_kueue),
    (Code.KUEUE_QUOTA, _kueue_quota),
    (Code.SUSPENDED_BY_KUEUE, _kueue),
    (Code.SUSPENDED_BY_KUBE_QUEUE, _kube_queue),
    (Code.SUSPENDED_BY_MANAGER, _other_manager),
    (Code.NODE_LOST, _held_for_node),
    (Code.EVICTED, _held_for_pod),
    (Code.SUSPENDED_BY_USER, _user),
    (Code.NOT_RESUMED, _incomplete),
    (Code.NEVER_FITS, _never),
    (Code.NOT_RESUMED, _unmarked),
    (Code.IMAGE_PULL, _no_image),
    (Code.TAKEN_BACK, _taken_back),
    (Code.PODS_TERMINATING, _haunted),
    (Code.QUOTA_EXCEEDED, _short_of_quota),
    (Code.WAITING_FOR_GPUS, _no_room),
    (Code.WAITING_FOR_TURN, _turn),
    (Code.NOBODY_STARTS, _nobody),
    (Code.NOT_RESUMED, _not_resumed),
    (Code.QUOTA_EXCEEDED, obstacles.quota),
    (Code.POD_SECURITY, obstacles.pod_security),
    (Code.POLICY_DENIED, obstacles.denied),
    (Code.FORBIDDEN, obstacles.no_right),
    (Code.PODS_REFUSED, obstacles.refused),
    (Code.INVALID_JOB, obstacles.invalid),
    (Code.IMAGE_PULL, obstacles.image),
    (Code.CONTAINER_ERROR, obstacles.container),
    (Code.VOLUME_MISSING, obstacles.volume),
    (Code.POLICY_NOT_EFFECTIVE, obstacles.policy),
    (Code.GATED_NO_PATCHER, obstacles.gated),
    (Code.GATED_BY_OTHERS, obstacles.gated_elsewhere),
    (Code.PINNED_NODE_GONE, obstacles.pinned),
    (Code.UNSCHEDULABLE, obstacles.unschedulable),
    (Code.NO_SCHEDULER, obstacles.no_scheduler),
    (Code.NO_SSHD, obstacles.no_sshd),
    (Code.OPERATOR_NOT_RESPONDING, _operator),
    (Code.FORBIDDEN, _hidden),
    (Code.RUNNING, _running),
    (Code.STARTING, _starting),
    (Code.UNKNOWN, _unknown),
)
"""The decision table, from the most specific cause to the least."""
