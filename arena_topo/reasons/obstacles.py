"""What keeps the pods of a job from being made, and from running: rows of the decision table."""

from __future__ import annotations

import re

from arena_topo.engines.kubernetes import symptoms
from arena_topo.engines.kubernetes.facts import PATIENCE
from arena_topo.manifests.versions import version_of
from arena_topo.reasons.cases import PROGRAM, Case, Said

# ---------------------------------------------------------------- why they are not made


def _refusal(case: Case, pattern: str) -> str | None:
    """The newest refusal of one of its pods that matches."""
    for event in reversed(case.events):
        if event.kind == "Warning" and re.search(pattern, event.message):
            return event.message
    return None


def quota(case: Case) -> Said | None:
    """The namespace has no quota left for a pod."""
    text = _refusal(case, r"exceeded quota: |failed quota: ")
    if text is None:
        return None
    quotas = case.facts.quotas if case.facts is not None else None
    found = re.search(r"(?:exceeded|failed) quota: ([^\s,:]+)", text)
    name = found[1] if found else "?"
    return Said(
        f"the quota {name} of namespace {case.status.namespace} has no room for its pods",
        symptoms.quota_used(quotas or (), name, text),
        "end other jobs of the namespace, ask for more quota, or submit it with fewer --workers",
    )


def pod_security(case: Case) -> Said | None:
    """PodSecurity does not allow pods like these in the namespace."""
    text = _refusal(case, r"violates PodSecurity")
    if text is None:
        return None
    found = re.search(r'violates PodSecurity "([^"]+)": (.*)', text)
    return Said(
        f"namespace {case.status.namespace} allows no such pods",
        f"PodSecurity {found[1]}: {found[2]}" if found else text,
        "leave out what it names (such as --hostIPC, --hostPID, --data-dir), or use another"
        " namespace",
    )


def denied(case: Case) -> Said | None:
    """A policy, a webhook or a limit of the cluster refuses a pod."""
    text = _refusal(case, r"denied (the )?request|forbidden: .*(maximum|minimum|PriorityClass)")
    if text is None:
        return None
    found = re.search(r"(?:policy '([^']+)'|webhook \"([^\"]+)\")", text)
    who = (found[1] or found[2]) if found else "the cluster"
    return Said(
        f"{who} refuses its pods",
        text,
        f"kubectl describe mpijob {case.status.name} -n {case.status.namespace}",
    )


def no_right(case: Case) -> Said | None:
    """The operator itself lacks the right to make pods."""
    text = _refusal(case, r'is forbidden: User "[^"]+" cannot')
    if text is None:
        return None
    found = re.search(r'User "([^"]+)" cannot (\S+) resource "([^"]+)"', text)
    who = f"{found[1]} may not {found[2]} {found[3]}" if found else "the operator has no right to"
    return Said(f"the operator cannot make its pods: {who}", text, "an administrator grants that")


def refused(case: Case) -> Said | None:
    """A pod is refused for a reason that nobody has put into a rule yet."""
    text = _refusal(case, r"worker pod created failed|Error creating|create Pod .* failed")
    if text is None:
        return None
    return Said(
        "the cluster refuses its pods",
        text,
        f"kubectl describe mpijob {case.status.name} -n {case.status.namespace}",
    )


def invalid(case: Case) -> Said | None:
    """The operator finds the job itself wrong."""
    found = [event for event in case.events if event.reason == "ValidationError"]
    if not found or case.pods:
        return None
    return Said(
        "the MPI operator does not accept the job",
        found[-1].message,
        f"{case.command('delete')}, and submit it corrected",
    )


# ---------------------------------------------------------------- why they do not run


def image(case: Case) -> Said | None:
    """An image cannot be pulled."""
    found = symptoms.image(case.pods, case.events)
    if found is None:
        return None
    image, why = found
    return Said(
        f"the image {image} cannot be pulled",
        why,
        "check its name and tag; a private one needs --image-pull-secret",
    )


def container(case: Case) -> Said | None:
    """A container cannot be started, or does not stay."""
    found = symptoms.container_error(case.pods)
    if found is None:
        return None
    return Said(*found, hint=case.command("logs"))


def volume(case: Case) -> Said | None:
    """A volume cannot be mounted."""
    found = symptoms.volume(case.events)
    if found is None:
        return None
    return Said("a volume cannot be mounted", found, "check --data, --data-dir, --config-file")


def policy(case: Case) -> Said | None:
    """Workers wait at our gate with the map still on them: no policy has taken it."""
    held = symptoms.with_map(case.pods)
    if not held:
        return None
    return Said(
        f"{symptoms.several(held, 'waits', 'wait')} at the gate: no policy has answered",
        "the worker still carries the map that the policy arena-topo-placement would have taken",
        f"{case.command('resume')}; an administrator runs: {PROGRAM} install",
    )


def gated(case: Case) -> Said | None:
    """Workers wait at our gate without a map, and nobody is there to lift it."""
    held = symptoms.at_gate(case.pods)
    if not held or case.starts is True:
        return None
    gone = "whoever submitted the job is gone"
    if case.owner is not None:
        gone = f"{case.owner} has started it"
    return Said(
        f"{symptoms.several(held, 'waits', 'wait')} at the gate, and nobody names a node",
        f"{gone}, and no controller of arena-topo runs here",
        case.command("resume"),
    )


def gated_elsewhere(case: Case) -> Said | None:
    """Pods wait at the gate of somebody else."""
    gates = symptoms.other_gates(case.pods)
    if not gates:
        return None
    return Said(
        f"{symptoms.several(gates, 'waits', 'wait')} at the gate {next(iter(gates.values()))}",
        "whoever put up that gate has to lift it",
        f"kubectl get pods -n {case.status.namespace} -l "
        f"{version_of(case.mpijob).traits.job_labels[0]}={case.status.name} -o yaml",
    )


def pinned(case: Case) -> Said | None:
    """A worker waits for the node that it is pinned to, which takes no pods."""
    found = symptoms.pinned(case.pods, case.facts.nodes if case.facts is not None else {})
    if found is None:
        return None
    return Said(*found, hint=case.again)


def unschedulable(case: Case) -> Said | None:
    """The scheduler finds no node for a pod."""
    held = symptoms.unschedulable(case.pods)
    if not held:
        return None
    return Said(
        f"{symptoms.several(held, 'has', 'have')} no node to run on",
        next(iter(held.values())),
        case.again,
    )


def no_scheduler(case: Case) -> Said | None:
    """No scheduler looks at a pod."""
    found = symptoms.unseen(case.pods, now=case.now, patience=PATIENCE)
    if found is None:
        return None
    pod, scheduler = found
    return Said(
        f"the scheduler {scheduler} does not look at {pod}",
        "the pod is older than a minute and says nothing of having been scheduled",
        "is that scheduler installed, and does it wait for the rest of the gang?",
    )


def no_sshd(case: Case) -> Said | None:
    """Workers run, but their sshd does not answer the probe."""
    held = symptoms.unready(case.pods, case.events, now=case.now, patience=PATIENCE)
    if not held:
        return None
    return Said(
        f"{symptoms.several(held, 'runs', 'run')} without an sshd that answers",
        next(iter(held.values())) or "its readiness probe fails",
        f"{case.command('logs')} -i {next(iter(held))}; the image needs /usr/sbin/sshd",
    )
