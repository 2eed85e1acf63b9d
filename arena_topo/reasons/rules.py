"""The decision table of verdicts on a job: what it does or waits for, why, and what to try.

The rows of `RULES` are tried from the most specific cause to the least; the first that applies is
the verdict. A row detects its cause, mostly from the reasons of pods, nodes and events
(`Case.messages_of`), and has texts with fields. Its sections:

    ended      how the job ended, or what broke it
    suspended  who suspends it: Kueue, kube-queue, another manager, its user
    waiting    why it waits for GPUs
    pods       why its pods are not created or do not run; which component does not answer
    running    it runs, or starts

Reasons and texts of other systems are those of Kubernetes 1.36 (kubelet, pkg/kubelet/eviction,
images and lifecycle; scheduler; `DisruptionTarget`, KEP-3329), mpi-operator, Kueue and OpenSSH.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from arena_topo.clusters.objects import Object
from arena_topo.clusters.queues import KUBE_QUEUE, KUBE_QUEUE_NAME, KUEUE_LABEL, KUEUE_NAME, manager
from arena_topo.clusters.quota import shortfall
from arena_topo.clusters.records import NodeRecord, read_record
from arena_topo.clusters.rules import pod_over, time_limit
from arena_topo.engines import DEADLINE, JobStatus, Phase
from arena_topo.engines.kubernetes.facts import OPERATOR_GRACE
from arena_topo.engines.kubernetes.mpijob import (
    NOT_REVIVED,
    condition,
    condition_of,
    ignored,
    is_launcher,
    last_changed,
    overran,
    pinned_nodes,
    seconds,
)
from arena_topo.engines.kubernetes.queued import MOST_TRIES, parse_time
from arena_topo.gang import planning
from arena_topo.gang.fairness import STALE_RECORD_SECONDS
from arena_topo.gang.loss import (
    QUARANTINE,
    ended_workers,
    losing,
    ready,
    tolerations_of,
    troubled,
)
from arena_topo.job import NodeLoss
from arena_topo.joblogs import ranks_on_launcher
from arena_topo.layout import clock, duration
from arena_topo.manifests import (
    GATE,
    INCOMPLETE,
    MAP,
    RECORDED,
    TRIES_ANNOTATION,
    Guarantee,
    estimates,
)
from arena_topo.manifests.annotations import recorded_request
from arena_topo.manifests.cause import CauseCode
from arena_topo.manifests.versions import version_of
from arena_topo.numbers import parse_count
from arena_topo.queueing.patience import nodes_text
from arena_topo.reasons import launcher_log
from arena_topo.reasons.case import (
    PROGRAM,
    Case,
    Code,
    Diagnosis,
    ends,
    name_of,
    node_of,
    phase_of,
    waiting_states,
)
from arena_topo.reasons.training_line import recorded_training
from arena_topo.solver import Verdict as Fits
from arena_topo.topology import natural_key
from arena_topo.words import shortened

QUIET = 600.0
"""Seconds without output after which `why` mentions the silence of a running job."""

MAX_NAMED = 4
"""Pods or nodes that are named before the rest is counted."""

Words = Mapping[str, str]
"""The fields of a row's texts; `why` is the cause."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row: the code, the detection (None: the row does not apply), and the texts.

    The fields of the texts are those that the detection returns, and `Case.words`. A detection with
    several causes returns its own `what`, `hint` or `code`.
    """

    code: Code
    detect: Callable[[Case], Words | None]
    what: str = "{what}"
    hint: str = "{hint}"


def verdict(case: Case) -> Diagnosis:
    """The first row of the table that applies."""
    for rule in RULES:
        fields = rule.detect(case)
        if fields is not None:
            words = {**case.words, "code": rule.code, "hint": "", "why": "", **fields}
            what, why = rule.what.format_map(words), words["why"].strip()
            return Diagnosis(
                code=Code(words["code"]),
                what=what,
                # The reason of an engine may repeat the text of the row.
                why=why if why and why != what else None,
                hint=rule.hint.format_map(words) or None,
            )
    raise AssertionError("the last row always applies")


def _when(applies: object, **words: str | None) -> Words | None:
    return {name: text or "" for name, text in words.items()} if applies else None


def _pod_fields(messages: Mapping[str, str]) -> Words | None:
    """The fields of a text about pods, from a message for each; None without pods.

    They are `pods` with a verb in the right number (`demo-worker-0 and 2 more were`), and `pod`,
    the first.
    """
    if not messages:
        return None
    pod, *more = sorted(messages, key=natural_key)
    verbs = {"was": "were", "has": "have", "waits": "wait", "runs": "run"}
    return {
        **{verb: many if more else verb for verb, many in verbs.items()},
        "pods": f"{pod} and {len(more)} more" if more else pod,
        "pod": pod,
        "why": messages[pod],
    }


def _by_reason(
    reasons: str, *, unless: Callable[[Case], object] = lambda _: False
) -> Callable[[Case], Words | None]:
    """A detection of pods, nodes or events with a reason (a pattern)."""
    return lambda case: None if unless(case) else _pod_fields(case.messages_of(reasons))


def _by_pod(says: Callable[[Case, Object], str | None]) -> Callable[[Case], Words | None]:
    """A detection of single pods."""
    return lambda case: _pod_fields(
        {name_of(pod): why for pod in case.pods if (why := says(case, pod))}
    )


def _refused(pattern: str) -> Callable[[Case], Words | None]:
    """A detection of the newest event in which an API server refuses a pod, by its message."""

    def detect(case: Case) -> Words | None:
        for event in reversed(case.events):
            if event.kind == "Warning" and (match := re.search(pattern, event.message, re.DOTALL)):
                return {**match.groupdict(), "why": event.message}
        return None

    return detect


def _gates(pod: Object) -> list[str]:
    return [str(gate.get("name")) for gate in (pod.get("spec") or {}).get("schedulingGates") or ()]


# ---------------------------------------------------------------- ended: how, or what broke it


def _deleting(case: Case) -> Words | None:
    blocked = ", ".join(map(str, case.meta.get("finalizers") or ()))
    why = f"it stays until these are done with it: {blocked}" if blocked else ""
    return _when("deletionTimestamp" in case.meta, why=why)


_LOST = "NodeLost|NodeShutdown|DeletionByTaintManager|DeletionByPodGC"


def _lost_for_good(case: Case) -> Words | None:
    """The controller has left a gang failed that was ended from outside, and says why."""
    for event in reversed(case.events):
        if event.reason == NOT_REVIVED and case.status.phase is Phase.FAILED:
            return {"why": event.message.removeprefix("failed: ")}
    return None


def _node_lost(case: Case) -> Words | None:
    well = {name_of(pod) for pod in case.pods if phase_of(pod) == "Succeeded"}
    lost = {name: why for name, why in case.messages_of(_LOST).items() if name not in well}
    fields = None if case.rolled_back else _pod_fields(lost)
    workers = {name_of(pod) for pod in case.pods if not is_launcher(pod)}
    if fields is None or case.over or not workers & lost.keys():
        return fields and {**fields, "hint": case.words["again"]}
    nodes = {node_of(pod) for pod in case.pods if name_of(pod) in lost}
    return {**fields, **_moved(case, fields["why"], nodes)}


def _moved(case: Case, why: str, nodes: Collection[str]) -> Words:
    """Why a gang has to leave these nodes, and who moves it.

    The controller moves only gangs that arena-topo has placed and started.
    """
    chosen = recorded_request(case.mpijob).get("onNodeLoss")
    if case.state != "placed" or case.owner is not None:
        return {"why": why, "hint": case.words["again"]}
    replan = f"{case.words['replan']} moves it"
    if chosen == NodeLoss.FAIL:
        left = "the gang is left as it is, and holds its GPUs until MPI notices"
        return {"why": f"{why}; by --on-node-loss fail {left}", "hint": replan}
    if case.starts is not True:
        return {"why": why, "hint": replan}
    hold = chosen == NodeLoss.HOLD
    does = "suspends the gang, by --on-node-loss hold," if hold else "moves the gang"
    when = _in_time(case, nodes)
    if when is None:
        bears = "its pods tolerate that without limit; " if _any_troubled(case, nodes) else ""
        return {"why": why, "hint": f"{bears}{replan}"}
    does += when + ("" if hold else ", if it can start elsewhere then")
    return {"why": why, "hint": f"the controller {does}; {replan} now"}


def _in_time(case: Case, nodes: Collection[str]) -> str | None:
    """When these nodes are lost to the gang, as a clause, empty if they are; None: never."""
    deleting = any("deletionTimestamp" in pod["metadata"] for pod in case.pods)
    if deleting or ended_workers(case.pods, {}):
        return ""
    read = [case.nodes[name] for name in nodes if name in case.nodes]
    if None in read:
        return f" once the node has been gone for {QUARANTINE:g} s"
    borne = tolerations_of(case.pods)
    losses = [losing(node, borne, since=since) for node, since in _records(case, nodes)]
    times = [loss[0] - case.now for loss in losses if loss is not None]
    if not times:
        return None if losses else ""
    left = max(0.0, min(times))
    return f" once its pods no longer tolerate that, in {left:.0f} s" if left else ""


def _any_troubled(case: Case, nodes: Collection[str]) -> bool:
    return any(troubled(node) for node, _since in _records(case, nodes))


def _records(case: Case, nodes: Collection[str]) -> Iterator[tuple[NodeRecord, float]]:
    """The nodes that were read, and since when each is not ready: now, if that is not known."""
    for name in nodes:
        raw = case.nodes.get(name)
        node = None if raw is None else read_record("Node", raw)
        if raw is not None and isinstance(node, NodeRecord):
            silence = {} if ready(node) else condition_of(raw, "Ready") or {}
            yield node, parse_time(silence.get("lastTransitionTime")) or case.now


def _running_timeout(case: Case) -> Words | None:
    stopped_by_engine = not case.mpijob and (case.status.reason or "").startswith(DEADLINE)
    limit = time_limit(case.mpijob)
    why = f"its --running-timeout is {limit:.0f} s" if limit else ""
    return _when(
        case.status.phase is Phase.FAILED and (stopped_by_engine or overran(case.mpijob)), why=why
    )


_LOGIN = re.compile(
    r"ssh: connect to host \S+ port \d+: .*|ssh: Could not resolve hostname .*"
    # Anchored: a search that starts at each character takes minutes for the longest line.
    r"|(?m:^.*Permission denied \(publickey.*)|Host key verification failed.*"
    r"|kex_exchange_identification: .*|not ready after \d+ s: .*"
)
_NO_SSHD = re.compile(r"/sshd\b.*(no such file|not found|permission denied)", re.IGNORECASE)


def _no_login(case: Case) -> Words | None:
    """The launcher could not log in to a worker, as its log or its last message says."""
    line = None if case.runs else next(_refused_logins(case), None)
    return _when(line is not None, why=line)


def _refused_logins(case: Case) -> Iterator[str]:
    """The messages of the launcher, or of a worker without sshd, about a failed login."""
    for pod in case.pods:
        for text in (
            str(ending.get("message") or "") for ending in (*ends(pod), *waiting_states(pod))
        ):
            # The init container of the launcher names the workers that never answered.
            if is_launcher(pod) and (match := _LOGIN.search(text)):
                yield match[0].strip()
            elif not is_launcher(pod) and _NO_SSHD.search(text):
                yield f"{name_of(pod)}: {text.strip()}"
    log = case.log.text.splitlines() if case.log is not None else []
    yield from (match[0].strip() for line in reversed(log) if (match := _LOGIN.search(line)))


def _worker_failed(case: Case, pod: Object) -> str | None:
    """The failure of a worker that ended before the launcher."""
    if is_launcher(pod) or phase_of(pod) != "Failed" or "deletionTimestamp" in pod["metadata"]:
        return None
    chiefs = [_finish(end) for pod in case.pods if is_launcher(pod) for end in ends(pod)]
    bad = next((end for end in ends(pod) if end.get("exitCode")), None)
    if bad is None or (chiefs and _finish(bad) > max(chiefs)):
        return None
    last = str(bad.get("message") or "").strip().splitlines()[-1:]
    return ": ".join([name_of(pod), f"exit code {bad['exitCode']}", *last])


def _finish(ended: Object) -> float:
    return seconds(ended.get("finishedAt")) or 0.0


_NO_SLOTS = re.compile(r"not enough slots available in the system to satisfy the (\d{1,7})\s+slots")
"""Open MPI 4 and 5, help-orte-rmaps-base.txt and help-prte-rmaps-base.txt."""


def _hostfile_not_read(case: Case) -> Words | None:
    """The proof that mpirun knew nothing of the workers."""
    search = ranks_on_launcher.RanksOnLauncher(case.status)
    if any(map(search.see, case.start)):
        return {"what": search.sentence or ""}
    wanted = _NO_SLOTS.search(case.log.text) if case.log is not None else None
    slots = case.worker_count() * (
        parse_count((case.mpijob.get("spec") or {}).get("slotsPerWorker")) or 1
    )
    if wanted is None or int(wanted[1]) > slots:
        return None
    return {
        "what": f"mpirun found no slots for {wanted[1]} ranks, although the workers have {slots}"
    }


def _launcher_failed(case: Case) -> Words | None:
    code, log = case.status.exit_code, case.log
    if case.status.phase is not Phase.FAILED or not code:
        return None
    what = f"the launcher ended with exit code {code}"
    last = f"last line of its log: {log.lines[-1].strip()}" if log and log.lines else None
    rank = launcher_log.failed_rank(log.text) if log is not None else None
    if rank is None:
        return {"what": what, "why": last or case.status.reason or ""}
    sentence = launcher_log.sentence(rank, case.status)
    return {"what": sentence, "why": "; ".join(filter(None, (what, last)))}


# ---------------------------------------------------------------- suspended: by whom


def _kueue(case: Case) -> Words | None:
    """The state of Kueue's Workload: preempted, without quota, or undecided."""
    if case.queue != KUEUE_NAME and not (case.suspended and case.workload):
        return None
    labels, workload = case.meta.get("labels") or {}, case.workload
    queue = (workload.get("spec") or {}).get("queueName") or labels.get(KUEUE_LABEL) or "?"
    about = f"workload {name_of(workload)}" if workload else f"localqueue {queue}"
    hint = f"kubectl describe {about} -n {case.status.namespace}"
    evicted, reserved, admitted = (
        condition_of(workload, kind) or {} for kind in ("Evicted", "QuotaReserved", "Admitted")
    )
    if evicted.get("status") == "True":
        what = f"Kueue has stopped the job: {evicted.get('reason')}"
        if evicted.get("reason") == "Preempted":
            what = "Kueue has preempted the job, and starts it again when there is quota"
        why = (condition_of(workload, "Preempted") or evicted).get("message")
        return {"code": Code.PREEMPTED, "what": what, "why": str(why or ""), "hint": hint}
    last = admitted if reserved.get("status") == "True" else reserved
    phrases = [str(last.get(key) or "") for key in ("reason", "message")]
    # Older versions have the reason Pending for every cause.
    why = ": ".join(phrase for phrase in phrases if phrase not in {"", "Pending"})
    if reserved.get("status") == "False" and re.search(r"(?i)quota|flavor|topology", why):
        what = f"the Kueue queue {queue} has no quota for it"
        return {"code": Code.KUEUE_QUOTA, "what": what, "why": why, "hint": hint}
    unknown = "" if workload else "Kueue has not created a Workload for it"
    what = f"Kueue decides when it starts (queue {queue})"
    return {"what": what, "why": why or unknown, "hint": hint}


def _kube_queue(case: Case) -> Words | None:
    why = f"annotation {KUBE_QUEUE} is {case.notes.get(KUBE_QUEUE)}"
    return _when(case.queue == KUBE_QUEUE_NAME, why=why)


def _other_manager(case: Case) -> Words | None:
    other = manager(case.mpijob)
    why = "spec.runPolicy.managedBy says so, and cannot be changed"
    return _when(other is not None and not case.pods, why=why, manager=other)


_HELD_FOR = {
    CauseCode.NODE_LOST: Code.NODE_LOST,
    CauseCode.EVICTED: Code.EVICTED,
    CauseCode.WORKER_DELETED: Code.EVICTED,
}
"""The causes for which the controller suspends a gang until a person resumes it."""


def _suspended(case: Case) -> Words | None:
    held = case.state == "held"
    code = next(
        (code for cause, code in _HELD_FOR.items() if held and case.is_because(cause)), None
    )
    what = "a user or another program has suspended it"
    if held and case.cause is None:
        what = "it was suspended with `arena-topo suspend`"
    if code is not None:
        what = "the controller has suspended it, by --on-node-loss hold"
    why = str(case.cause or "") or ("" if held else "spec.runPolicy.suspend is true")
    suspended = case.status.phase is Phase.SUSPENDED
    return _when(suspended, code=code or Code.SUSPENDED_BY_USER, what=what, why=why)


# ---------------------------------------------------------------- waiting: for GPUs, and a start


def _by_itself(case: Case, then: str) -> str:
    """A hint: who starts a job once it can start; `then` is the phrase for that time."""
    alone = f"the job starts by itself {then}"
    return alone if case.starts is True else f"{then}: {case.words['resume']}"


def _tries(case: Case) -> int:
    return parse_count(case.notes.get(TRIES_ANNOTATION)) or 0


def _young(case: Case) -> bool:
    return case.now - case.status.created < STALE_RECORD_SECONDS


def _incomplete(case: Case) -> Words | None:
    """Its ConfigMaps are missing, so `resume` would not help."""
    lacks = " and ".join(f"configmap {name}" for name in case.facts.missing)
    what = "its ConfigMaps do not exist yet" if _young(case) else "it was not created completely"
    return _when(lacks and case.pending, what=what, why=f"there is no {lacks}")


def _never(case: Case) -> Words | None:
    never = (case.waits or case.at_gates) and case.fit.verdict is Fits.NEVER
    hint = f"{case.words['delete']}, and submit what can be placed"
    if case.status.last_stop is not None:
        # It ran here: what excludes its nodes now may end.
        hint = f"{_by_itself(case, 'once its nodes are back')}; or {hint}"
    return _when(never, what=case.fit.message, why=case.fit.why, hint=hint)


def _unmarked(case: Case) -> Words | None:
    """The job is complete, but still marked as incomplete, so no other program starts it."""
    why = "its submission stopped just before it was complete"
    return _when(case.waits and INCOMPLETE in case.notes and not _young(case), why=why)


def _no_image(case: Case) -> Words | None:
    """A gang that was rolled back because of its image, and is not started again."""
    given_up = case.waits and case.is_because(CauseCode.IMAGE)
    given_up = given_up and (_tries(case) >= MOST_TRIES or case.starts is not True)
    return _when(given_up, why=str(case.cause))


def _gave_up(case: Case) -> Words | None:
    given_up = case.waits and _tries(case) >= MOST_TRIES
    return _when(given_up, tries=str(_tries(case)), why=case.status.reason)


def _old_pods(case: Case) -> Words | None:
    """Pods of the last run still exist, so the gang is not started."""
    left = {name_of(pod): pod for pod in case.pods if not pod_over(pod)}
    if not case.waits or not left:
        return None
    names = sorted(left, key=natural_key)
    on_nodes = [f"{pod} on {node_of(left[pod]) or 'no node yet'}" for pod in names]
    why = shortened(on_nodes, MAX_NAMED)
    gone = [text for name, text in case.messages_of(_LOST).items() if name in left]
    hint = _by_itself(case, "once they have ended")
    if gone or _overdue(left.values(), case.now):
        delete = f"kubectl delete pod {' '.join(names)} -n {case.status.namespace}"
        forced = f"{delete} --grace-period=0 --force; {_by_itself(case, 'then')}"
        hint = f"restore the node, or, if it is gone for good: {forced}"
    return {"why": "; ".join([why, *gone[:1]]), "hint": hint}


def _short_of_quota(case: Case) -> Words | None:
    """GPUs are free or unknown, and the quota of the namespace has no room."""
    free = case.fit.verdict in {Fits.PLACEABLE, None} and case.fit.behind is None
    if not (case.waits and case.mpijob and free):
        return None
    quotas = case.facts.quotas
    recorded = case.cause if case.is_because(CauseCode.QUOTA) else None
    recorded_resource = recorded.parameters.get("resource", "") if recorded else ""
    short = shortfall(dict(case.mpijob), quotas or ())
    # The count of claims is only in the record.
    if short is None and (quotas is None or ".k8s.io" in recorded_resource):
        short = recorded
    hint = f"end other jobs of the namespace, or ask for more quota; {_by_itself(case, 'then')}"
    quota = short.parameters.get("quota", "?") if short is not None else ""
    return _when(short is not None, quota=quota, why=str(short), hint=hint)


def _no_room(case: Case) -> Words | None:
    if not (case.waits or case.at_gates):
        return None
    if case.fit.verdict is None and case.status.reason:
        # The cluster cannot be read: the recorded reason is the last known.
        what = "it waits for GPUs, as was found when it was last tried"
        return {"what": what, "why": case.status.reason}
    if case.fit.verdict is not Fits.NOT_NOW:
        return None
    hint = _by_itself(case, "once enough GPUs are free")
    return {"what": case.fit.message, "why": case.fit.why or "", "hint": hint}


def _fits(case: Case) -> bool:
    return case.waits and case.fit.verdict is Fits.PLACEABLE


def _turn(case: Case) -> Words | None:
    behind, opening = case.fit.behind, case.fit.opening
    if behind is None or not _fits(case):
        return None
    # As backfill, or on GPUs that become free elsewhere, it may start before the other.
    hint = _by_itself(case, "in its turn" if case.starts is True else f"after {behind}")
    if (advice := planning.backfill_advice(opening)) is not None:
        hint += f"; {advice}"
    why = case.fit.why or f"the GPUs that it would use are reserved for {behind}"
    return {"behind": behind, "why": why, "hint": hint}


def _patience(case: Case) -> Words | None:
    """It fits, but a far better placement is worth the wait to whoever starts it."""
    wait = case.fit.wait
    if wait is None or not _fits(case) or case.starts is False:
        return None
    why = f"it would be {wait.times:.1f} x slower on {nodes_text(wait.offer)} now"
    hint = f"from {clock(wait.until)} on it starts wherever it fits; now: {{resume}}"
    return {"place": wait.place, "why": why, "hint": hint.format_map(case.words)}


def _nobody_starts(case: Case) -> Words | None:
    why = "the controller of arena-topo does not run in this cluster"
    return _when(_fits(case) and case.starts is False, why=why)


def _not_resumed(case: Case) -> Words | None:
    recorded = parse_time(case.notes.get(RECORDED))
    fresh = recorded is not None and case.now - recorded < STALE_RECORD_SECONDS
    why = "its submission stopped halfway; other jobs may take its GPUs now"
    placed = case.state == "placed" and case.suspended and case.pending
    return _when(placed and not fresh, why=why)


# ---------------------------------------------------------------- pods: not made, or not running


def _mapped(_case: Case, pod: Object) -> str | None:
    """A worker at our gate whose map was not taken by the policy."""
    why = "the worker still carries the map that the policy arena-topo-placement would have taken"
    noted = MAP in (pod["metadata"].get("annotations") or {})
    return why if noted and GATE in _gates(pod) else None


def _gated(case: Case, pod: Object) -> str | None:
    """A worker at our gate, without a program that lifts it."""
    if GATE not in _gates(pod) or case.starts is True:
        return None
    gone = f"{case.owner} has started it" if case.owner else "the command that submitted it is gone"
    return f"{gone}, and no controller of arena-topo runs here"


def _gated_by_others(case: Case) -> Words | None:
    gates = {name_of(pod): gate for pod in case.pods for gate in _gates(pod) if gate != GATE}
    fields = _pod_fields(gates)
    if fields is None:
        return None
    label = f"{version_of(case.mpijob).traits.job_labels[0]}={case.status.name}"
    why = "the program that set this gate has to lift it"
    return {**fields, "gate": fields["why"], "why": why, "label": label}


def _unbound(pod: Object) -> bool:
    """Whether a pod waits for a scheduler."""
    return phase_of(pod) == "Pending" and not node_of(pod) and not _gates(pod)


def _pinned(case: Case) -> Words | None:
    """A worker is pinned to a node that takes no pods."""
    for pod in filter(_unbound, case.pods):
        for name in pinned_nodes(pod):
            cordoned = f"node {name} is cordoned" if case.cordoned(name) else None
            if why := case.unusable(name) or cordoned:
                message = (condition_of(pod, "PodScheduled") or {}).get("message")
                why += f"; the scheduler says: {message}" if message else ""
                return {"pod": name_of(pod), "node": name, "why": why}
    return None


def _no_scheduler(case: Case) -> Words | None:
    for pod in filter(_unbound, case.pods):
        created = seconds(pod["metadata"].get("creationTimestamp")) or case.now
        if condition_of(pod, "PodScheduled") is None and case.now - created > OPERATOR_GRACE:
            scheduler = str((pod.get("spec") or {}).get("schedulerName") or "default-scheduler")
            why = "the pod is over a minute old and has no PodScheduled condition"
            return {"scheduler": scheduler, "pod": name_of(pod), "why": why}
    return None


def _no_sshd(case: Case, pod: Object) -> str | None:
    """A worker runs, but its sshd has not answered the probe for a minute."""
    if is_launcher(pod) or phase_of(pod) != "Running" or condition(pod, "Ready") != "False":
        return None
    starts = [
        at
        for container in (pod.get("status") or {}).get("containerStatuses") or ()
        if (at := seconds(((container.get("state") or {}).get("running") or {}).get("startedAt")))
    ]
    message = case.messages_of("Unhealthy").get(name_of(pod))
    probes = [
        container.get("readinessProbe")
        for container in (pod.get("spec") or {}).get("containers") or ()
    ]
    if (
        not starts
        or case.now - max(starts) <= OPERATOR_GRACE
        or not (message or "ssh" in str(probes))
    ):
        return None
    return message or "its readiness probe fails"


def _operator(case: Case) -> Words | None:
    if not case.mpijob or case.suspended or case.pods or not ignored(case.mpijob):
        return None
    if case.now - last_changed(case.mpijob) < OPERATOR_GRACE or _pods_hidden(case):
        return None
    operators = case.facts.operators
    ready = "no Deployment of an MPI operator was found"
    if operators is None:
        ready = "whether it runs may not be read"
    elif operators:
        ready = "ready pods: " + ", ".join(f"{name} {many}" for name, many in operators.items())
    return {"why": f"the job has had no status for a minute; {ready}"}


def _pods_hidden(case: Case) -> bool:
    return any(denial.resource == "pods" for denial in case.facts.denied)


def _hidden(case: Case) -> Words | None:
    """The objects that would give the reason may not be read."""
    blind = (case.waits and case.fit.verdict is None) or _pods_hidden(case)
    denied = case.facts.denied
    if not denied or not case.pending or not blind:
        return None
    deciding = [denial for denial in denied if denial.resource in {"pods", "nodes", "mpijobs"}]
    missing = [*deciding, *denied][0]
    what, why = f"it waits, and you are {missing}", "the reason is recorded there"
    if missing.why is not None:
        what, why = f"it waits, and {missing.resource} cannot be read", missing.why
    return {"what": what, "why": why, "hint": f"ask for the rule {missing.rule}"}


# ---------------------------------------------------------------- running, or starting


def _running(case: Case) -> Words | None:
    if not case.runs:
        return None
    where = _where(case.status)
    what = f"the job runs{f' on {where}' if where else ''}"
    fields: Words = {"why": "", "hint": f"{case.words['logs']} -f"}
    nodes = {node_of(pod) for pod in case.pods if not is_launcher(pod)}
    names, silence = sorted(filter(case.cordoned, nodes), key=natural_key), _silence(case)
    if overdue := _overdue(case.pods, case.now):
        ending = shortened([f"{pod} on {node}" for pod, node in overdue.items()], MAX_NAMED)
        delete = f"kubectl delete pod {' '.join(overdue)} -n {case.status.namespace}"
        fields = {
            "why": f"deleted, but not ended since its grace period: {ending}",
            "hint": "look at the kubelet of the node; if the node is gone for good:"
            f" {delete} --grace-period=0 --force",
        }
    elif names:
        trouble = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} cordoned"
        fields = {**fields, "why": f"{trouble}; the pods that run there stay"}
    elif silence is not None:
        look = f"{case.words['logs']}; look into it: {case.words['attach']} -- ps aux"
        fields = {"why": f"no output for {duration(silence)}", "hint": look}
    sentences = (fields["why"], case.status.reason, *_worth(case.status))
    return {**fields, "what": what, "why": "; ".join(filter(None, sentences))}


def _overdue(pods: Collection[Object], now: float) -> dict[str, str]:
    """The pods that should have ended a while ago, each with its node."""
    late = {}
    for pod in sorted(pods, key=lambda pod: natural_key(name_of(pod))):
        due = seconds(pod["metadata"].get("deletionTimestamp"))
        if due is not None and now - due > OPERATOR_GRACE and not pod_over(pod):
            late[name_of(pod)] = node_of(pod) or "no node yet"
    return late


def _silence(case: Case) -> float | None:
    """Seconds since the last line of a running launcher; None if fewer than `QUIET`."""
    chief = case.status.chief
    if case.log is None or chief is None:
        return None
    last = case.log.written or chief.started
    return case.now - last if last is not None and case.now - last >= QUIET else None


def _where(status: JobStatus) -> str:
    """The nodes of the workers, with their GPUs if the guarantee is `gpus`."""
    forecast = status.forecast
    sure = forecast is not None and forecast.guarantee == Guarantee.GPUS
    nodes: dict[str, list[str]] = {}
    for _index, node, gpus in sorted(forecast.workers) if forecast is not None else ():
        nodes.setdefault(node, []).extend([",".join(map(str, gpus))] if gpus and sure else [])
    if not nodes:
        nodes = {
            instance.node: []
            for instance in status.instances
            if not instance.chief and instance.node
        }
    shown = [
        f"{name} (GPUs {'; '.join(sets)})" if (sets := nodes[name]) else name
        for name in sorted(nodes, key=natural_key)
    ]
    return shortened(shown, MAX_NAMED, "more nodes")


def _worth(status: JobStatus) -> Iterator[str]:
    """The recorded bandwidth of a job's placement, and its guarantee."""
    forecast = status.forecast
    if forecast is None or not forecast.workers:
        return
    if forecast.usable is not None:
        best = ", no placement had more at its start" if forecast.optimal else ""
        yield f"bus bandwidth {estimates.estimate_sentence(forecast)}{best}"
        yield estimates.in_one_pod(forecast) or ""
    if (trained := recorded_training(status)) is not None:
        yield f"training of {trained.text}"
    if forecast.guarantee is not None:
        yield f"guarantee {estimates.guarantee_sentence(forecast)}"


def _starting(case: Case) -> Words | None:
    resume, why = case.words["resume"], case.status.reason or ""
    if not case.pending:
        return None
    if _fits(case):
        return {"what": "it fits now, and is about to be started"}
    if case.state == "placed" and case.suspended:
        what = "it has its GPUs, and is about to be started"
        return {"what": what, "hint": f"if the command that submitted it was stopped: {resume}"}
    if case.at_gates:
        what = f"{case.owner} has started it; its workers wait at their gates to be placed"
        hint = "the controller places them" if case.starts is True else f"{resume} places them"
        return {"what": what, "why": str(case.cause or why), "hint": hint}
    if case.suspended:
        return {"what": "only the version of arena-topo that recorded it starts it", "why": why}
    return {"what": "it is starting", "why": why}


RULES = (
    # ended
    Rule(Code.DELETING, _deleting, "the job is being deleted"),
    Rule(Code.HOSTFILE_NOT_READ, _hostfile_not_read, hint=ranks_on_launcher.HOSTFILE_HINT),
    Rule(
        Code.SUCCEEDED,
        lambda case: _when(case.status.phase is Phase.SUCCEEDED),
        "the job succeeded",
        "{logs}",
    ),
    Rule(
        Code.OUT_OF_MEMORY,
        _by_reason("OOMKilled", unless=lambda case: case.runs),
        "{pods} {was} killed for using more memory than the limit",
        "submit it again with more --memory, or a smaller batch",
    ),
    Rule(
        Code.EVICTED,
        _by_reason(
            "Evicted|EvictionByEvictionAPI|TerminationByKubelet",
            unless=lambda case: case.rolled_back,
        ),
        "{pods} {was} evicted from the node",
        "{again}",
    ),
    Rule(
        Code.NODE_LOST,
        _lost_for_good,
        "the job has failed, as the gang was ended from outside",
        "{again}",
    ),
    Rule(Code.NODE_LOST, _node_lost, "{pods} {was} on a node that is lost"),
    Rule(
        Code.REJECTED_BY_NODE,
        _by_reason(
            r"UnexpectedAdmissionError|OutOf(?!Memory)\w+|NodeAffinity|TopologyAffinityError"
        ),
        "the kubelet rejected {pods}",
        "{again}",
    ),
    Rule(
        Code.PREEMPTED,
        _by_reason("PreemptionByScheduler|Preempted", unless=lambda case: case.runs),
        "{pods} {was} preempted by pods of higher priority",
        "submit it with a higher --priority, or {again}",
    ),
    Rule(
        Code.RUNNING_TIMEOUT,
        _running_timeout,
        "the job exceeded its --running-timeout and was stopped",
        "submit it again with a longer --running-timeout",
    ),
    Rule(
        Code.NO_SSHD,
        _no_login,
        "the launcher cannot log in to a worker",
        "the image needs an sshd that the workers can start: /usr/sbin/sshd, host keys and the"
        " user of --ssh-auth-mount-path",
    ),
    Rule(
        Code.WORKER_FAILED,
        _by_pod(_worker_failed),
        "{pods} {has} ended before the launcher",
        "{logs} -i {pod}",
    ),
    Rule(Code.LAUNCHER_FAILED, _launcher_failed, hint="{logs}"),
    Rule(
        Code.FAILED,
        lambda case: _when(case.status.phase is Phase.FAILED, why=case.status.reason),
        "the job has failed",
        "{logs}",
    ),
    # suspended
    Rule(Code.SUSPENDED_BY_KUEUE, _kueue),
    Rule(
        Code.SUSPENDED_BY_KUBE_QUEUE,
        _kube_queue,
        "kube-queue decides when it starts",
        "kubectl get queueunits -n {namespace}",
    ),
    Rule(
        Code.SUSPENDED_BY_MANAGER,
        _other_manager,
        "{manager} runs the job, not the MPI operator of this cluster",
        "{describe}",
    ),
    Rule(Code.SUSPENDED_BY_USER, _suspended, hint="{resume}"),
    # waiting
    Rule(Code.NOT_RESUMED, _incomplete, hint="if the command that submits it was stopped: {anew}"),
    Rule(Code.NEVER_FITS, _never),
    Rule(Code.NOT_RESUMED, _unmarked, "it waits, and no controller starts it", "{resume}"),
    Rule(
        Code.IMAGE_PULL,
        _no_image,
        "it was rolled back, as its image cannot be pulled",
        "{delete}, and submit it with the right --image or --image-pull-secret; resume does not"
        " change them",
    ),
    Rule(
        Code.TAKEN_BACK,
        _gave_up,
        "its last {tries} starts were rolled back",
        "after fixing the cause: {resume}",
    ),
    Rule(Code.PODS_TERMINATING, _old_pods, "it waits until the pods of its last run have ended"),
    Rule(
        Code.QUOTA_EXCEEDED,
        _short_of_quota,
        "the quota {quota} of namespace {namespace} has no room for the gang",
    ),
    Rule(Code.WAITING_FOR_GPUS, _no_room),
    Rule(Code.WAITING_FOR_TURN, _turn, "it fits, but {behind} comes first in the queue"),
    Rule(
        Code.WAITING_FOR_BANDWIDTH,
        _patience,
        "it is patient: it waits for {place}, where it has more bandwidth",
    ),
    Rule(
        Code.NOBODY_STARTS, _nobody_starts, "it fits now, but no controller starts it", "{resume}"
    ),
    Rule(Code.NOT_RESUMED, _not_resumed, "it has its GPUs, but was never started", "{resume}"),
    # pods
    Rule(
        Code.QUOTA_EXCEEDED,
        _refused(r"(?:exceeded|failed) quota: (?P<quota>[^\s,:]+)"),
        "the quota {quota} of namespace {namespace} has no room for its pods",
        "end other jobs of the namespace, ask for more quota, or submit it with fewer --workers",
    ),
    Rule(
        Code.POD_SECURITY,
        _refused(r"violates PodSecurity"),
        "namespace {namespace} allows no such pods",
        "leave out what it names (as --hostIPC or --data-dir), or use another namespace",
    ),
    Rule(
        Code.POLICY_DENIED,
        _refused(r"denied (?:the )?request|forbidden: .*(?:maximum|minimum|PriorityClass)"),
        "a policy of the cluster refuses its pods",
        "{describe}",
    ),
    Rule(
        Code.FORBIDDEN,
        _refused(
            r'is forbidden: User "(?P<user>[^"]+)" cannot (?P<verb>\S+) resource "(?P<kind>\w+)'
        ),
        "the operator cannot make its pods: {user} may not {verb} {kind}",
        "ask an administrator to grant it",
    ),
    Rule(
        Code.PODS_REFUSED,
        _refused(r"worker pod created failed|Error creating|create Pod .* failed"),
        "the cluster refuses its pods",
        "{describe}",
    ),
    Rule(
        Code.NAME_TAKEN,
        _by_reason("ErrResourceExists", unless=lambda case: case.pods),
        "another object already has a name that this job needs",
        "wait until that object is gone, or delete it; else {delete}, and submit it under another"
        " name",
    ),
    Rule(
        Code.INVALID_JOB,
        _by_reason("ValidationError", unless=lambda case: case.pods),
        "the MPI operator does not accept the job",
        "{delete}, and submit it corrected",
    ),
    Rule(
        Code.IMAGE_PULL,
        _by_reason(
            "ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|RegistryUnavailable"
            "|SignatureValidationFailed"
        ),
        "the image of {pods} cannot be pulled",
        "check its name and tag; a private one needs --image-pull-secret",
    ),
    Rule(
        Code.CONTAINER_ERROR,
        _by_reason("CreateContainer(Config)?Error|RunContainerError|CrashLoopBackOff"),
        "a container of {pods} cannot start, or keeps crashing",
        "{logs}",
    ),
    Rule(
        Code.VOLUME_MISSING,
        _by_reason("FailedMount|FailedAttachVolume"),
        "a volume of {pods} cannot be mounted",
        "check --data, --data-dir, --config-file",
    ),
    Rule(
        Code.POLICY_NOT_EFFECTIVE,
        _by_pod(_mapped),
        "{pods} {waits} at the gate: no policy has answered",
        f"{{resume}}; an administrator runs: {PROGRAM} install",
    ),
    Rule(
        Code.GATED_NO_PATCHER,
        _by_pod(_gated),
        "{pods} {waits} at the gate without a node",
        "{resume}",
    ),
    Rule(
        Code.GATED_BY_OTHERS,
        _gated_by_others,
        "{pods} {waits} at the gate {gate}",
        "kubectl get pods -n {namespace} -l {label} -o yaml",
    ),
    Rule(
        Code.PINNED_NODE_GONE,
        _pinned,
        "{pod} may only run on node {node}, which takes no pods",
        "{again}",
    ),
    Rule(
        Code.UNSCHEDULABLE,
        _by_reason("Unschedulable|SchedulerError"),
        "{pods} {has} no node to run on",
        "{room}",
    ),
    Rule(
        Code.NO_SCHEDULER,
        _no_scheduler,
        "the scheduler {scheduler} has not handled {pod}",
        "check that scheduler {scheduler} is installed; a gang scheduler may wait for the"
        " other pods",
    ),
    Rule(
        Code.NO_SSHD,
        _by_pod(_no_sshd),
        "{pods} {runs} without an sshd that answers",
        "{logs} -i {pod}; the image needs /usr/sbin/sshd",
    ),
    Rule(
        Code.OPERATOR_NOT_RESPONDING,
        _operator,
        "the MPI operator has not acted on the job",
        "kubectl get deployments -A | grep -e mpi-operator -e training-operator",
    ),
    Rule(Code.FORBIDDEN, _hidden),
    # running
    Rule(Code.RUNNING, _running),
    Rule(Code.STARTING, _starting),
    Rule(
        Code.UNKNOWN,
        lambda case: _when(True, why=case.status.reason),
        "the state of the job is unknown",
    ),
)
"""The decision table, from the most specific cause to the least."""
