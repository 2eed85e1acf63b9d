"""The keys of a job file, declared once for its reader, its JSON schema and the test of its page.

A file says the flags of `submit mpi` by their own names, without the dashes in front. Beside them
it may use the words that arena v2's schema has for the same things (kubeflow/arena,
keps/arena-v2/yaml-schema.md, version 0.1.0). What that schema has and no flag can say stands here
with the reason, so that it is refused and never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from arena_topo.flag import flags_of, spelling
from arena_topo.job import MPIJob

COMMAND = "command"
"""The one field of a job that is no flag."""

DESCRIPTION = "kubernetes.io/description"
"""The well-known annotation for a text about an object (kubernetes.io, well-known labels)."""

BRANCH = "GIT_SYNC_BRANCH"
"""What git-sync v3 takes the branch from; job variables reach it, as they do in arena."""


def own_keys() -> dict[str, str]:
    """Keys that are flags of a job, with the field of each; `command` and `namespace` beside."""
    flags = {spelling(name, flag)[2:]: name for name, flag in flags_of(MPIJob).items()}
    return {**flags, COMMAND: COMMAND, "namespace": "namespace", "generate-name": "generate_name"}


@cache  # a schema asks for each field
def kinds() -> Mapping[str, tuple[Any, bool]]:
    """The type of each field of a job, and whether its flag may be repeated."""
    found: dict[str, tuple[Any, bool]] = {}
    for name, hint in get_type_hints(MPIJob).items():
        kind = hint
        if get_origin(kind) is tuple:
            found[name] = get_args(kind)[0], True
            continue
        some = [one for one in get_args(kind) if one is not type(None)]
        found[name] = (some[0] if some else kind), False
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of arena v2, and what becomes of it.

    It means the flag of a `field`, or a part of one (`becomes`); with `adds`, that key of a
    KEY=VALUE flag, which may be said beside the flag itself; with `days` its time span may have
    days. Or it may have `only` these values, or must agree with what follows from a field
    (`agrees`), for the reason `why`. Else no flag can say it. A key that is `needed` must be there
    if its mapping is.
    """

    field: str = ""
    becomes: str = ""
    adds: str = ""
    days: bool = False
    only: tuple[str, ...] = ()
    agrees: str = ""
    why: str = ""
    hint: str | None = None
    needed: bool = False

    @property
    def refused(self) -> bool:
        """Whether no flag can say it."""
        return not (self.field or self.becomes or self.only or self.agrees)

    def written(self, text: str) -> str:
        """The text of the flag: `7d` is `168h`."""
        if self.adds:
            return f"{self.adds}={text}"
        found = re.fullmatch(r"(\d+)d(.*)", text) if self.days else None
        return f"{int(found[1]) * 24}h{found[2]}" if found else text


def _flag(field: str, *, days: bool = False, adds: str = "") -> Key:
    return Key(field=field, days=days, adds=adds)


def _part(becomes: str, *, needed: bool = False) -> Key:
    return Key(becomes=becomes, needed=needed)


def _only(*values: str, why: str, hint: str | None = None, needed: bool = False) -> Key:
    return Key(only=values, why=why, hint=hint, needed=needed)


def _refused(why: str, hint: str | None = None) -> Key:
    return Key(why=why, hint=hint)


DAYS = r"0|(\d+d)?(\d+(\.\d*)?(h|ms|us|ns|m|s))*"
"""The form of a time span that may have days."""

_ONE_ENVIRONMENT = "the launcher and all workers have the same variables"
_AT_THE_TOP = "move them to envs at the top"
_SOLVER = "which nodes workers share is what --gputopology works out"
_ELSEWHERE = "submit knows no flag for it"
_ROLES = "MPI jobs have a launcher and workers"

ARENA: Mapping[str, Key] = {
    "version": _only("0.1.0", why="it is the version of arena's schema that is known"),
    "description": _flag("annotation", adds=DESCRIPTION),
    "labels": _flag("label"),
    "annotations": _flag("annotation"),
    "run": _flag(COMMAND),
    "working_dir": _flag("working_dir"),
    "framework.name": _only(
        "mpi",
        why="only MPI jobs are submitted",
        hint="a job of Horovod or DeepSpeed whose command is mpirun is one: name: mpi",
        needed=True,
    ),
    "framework.options.slots_per_worker": Key(
        agrees="gpus", why="a worker has as many slots as it has GPUs, at least one"
    ),
    "framework.options.mounts_on_launcher": _flag("mounts_on_launcher"),
    "framework.options.run_launcher_as_worker": _only(
        "false", why="the launcher gets no GPU and runs no rank"
    ),
    "framework.options.nproc_per_node": _refused("it is an option of torchrun"),
    "envs": _flag("env"),
    "worker.replicas": _flag("workers"),
    "worker.envs": _refused(_ONE_ENVIRONMENT, _AT_THE_TOP),
    "worker.resources.cpu": _flag("cpu"),
    "worker.resources.memory": _flag("memory"),
    "worker.resources.nvidia.com/gpu": _flag("gpus"),
    "worker.resources.*": _flag("device"),
    "launcher.replicas": _only("1", why="there is one launcher"),
    "launcher.envs": _refused(_ONE_ENVIRONMENT, _AT_THE_TOP),
    "launcher.resources.cpu": _flag("launcher_cpu"),
    "launcher.resources.memory": _flag("launcher_memory"),
    "launcher.resources.nvidia.com/gpu": _only("0", why="the launcher gets no GPU"),
    "master": _refused(_ROLES),
    "chief": _refused(_ROLES),
    "ps": _refused(_ROLES),
    "evaluator": _refused(_ROLES),
    "sync[].git": _part("--sync-mode git --sync-source"),
    "sync[].rsync": _part("--sync-mode rsync --sync-source"),
    "sync[].hdfs": _refused("code is fetched by git or rsync"),
    "sync[].branch": _part(f"--env {BRANCH}="),
    "sync[].local_path": Key(
        agrees="working_dir",
        why="code is put into the folder code of the working directory",
        needed=True,
    ),
    "sync[].image": _part("--sync-image"),
    "sync[].mounts": _refused(
        "the folder of the code is a volume of its own", "say volumes under storages"
    ),
    "init": _refused(
        "jobs have no init containers but the one that fetches code",
        "put the commands before the one under run",
    ),
    "storages[].name": _part("the name inside the pod is not kept", needed=True),
    "storages[].mount_path": _part("the path in --data and --data-dir"),
    "storages[].pvc": _part("--data"),
    "storages[].hostpath": _part("--data-dir"),
    "storages[].shm": _part("--share-memory"),
    "storages[].tmp": _refused(_ELSEWHERE, "a container may write to its own /tmp"),
    "storages[].configmap": _refused(
        _ELSEWHERE, "config-file puts a local file into the containers"
    ),
    "storages[].secret": _refused(_ELSEWHERE),
    "storages[].sub_path": _refused("a volume claim is mounted whole"),
    "storages[].key": _refused("it belongs to configmap and secret, which no flag can say"),
    "scheduling.priority": _refused(
        "Kubernetes takes the number from a priority class", "say priority_class_name"
    ),
    "scheduling.priority_class_name": _flag("priority"),
    "scheduling.gang.enabled": _flag("gang"),
    "scheduling.scheduler_name": _flag("scheduler"),
    "scheduling.queue": _refused(
        "--queue only says that kube-queue decides when the job starts",
        "for Kueue say labels: {kueue.x-k8s.io/queue-name: NAME}",
    ),
    "scheduling.node_selector": _flag("selector"),
    "scheduling.tolerations[].key": _part("--toleration"),
    "scheduling.tolerations[].operator": _part("--toleration"),
    "scheduling.tolerations[].value": _part("--toleration"),
    "scheduling.tolerations[].effect": _part("--toleration"),
    "scheduling.affinity.policy": _only("none", why=_SOLVER),
    "scheduling.affinity.constraint": _refused(_SOLVER),
    "scheduling.affinity.target": _refused(_SOLVER),
    "scheduling.affinity.rules": _refused(_SOLVER, "say node_selector, or topology-required"),
    "lifecycle.clean_pod_policy": _flag("clean_task_policy"),
    "lifecycle.active_deadline": _flag("running_timeout", days=True),
    "lifecycle.ttl_after_finished": _flag("ttl_after_finished", days=True),
    "lifecycle.backoff_limit": _flag("retry"),
    "lifecycle.success_policy": _refused("it belongs to TensorFlow jobs"),
    "image_pull_policy": _flag("image_pull_policy"),
    "image_pull_secrets": _flag("image_pull_secret"),
    "service_account": _flag("service_account"),
    "restart": _only("Never", why="a rank that fails ends the MPI job; retry starts anew"),
    "host_network": _flag("host_network"),
    "host_ipc": _flag("host_ipc"),
    "host_pid": _flag("host_pid"),
    "logging.tensorboard.enabled": _flag("tensorboard"),
    "logging.tensorboard.logdir": _flag("logdir"),
    "logging.tensorboard.image": _flag("tensorboard_image"),
    "logging.wandb": _refused("arena has not said what it means", "say it in envs"),
}
"""Arena v2's keys but `name`, `namespace`, `image` and `shell`, which are spelled as ours: by their
paths, in which `[]` is any item of a list and `*` any other resource.

Its defaults are not taken over: what a file leaves open is as it is without that flag.
"""

ONE_OF = {"sync[]": ("git", "rsync"), "storages[]": ("pvc", "hostpath", "shm")}
"""Keys of which an item has exactly one."""


@cache
def below(path: str = "") -> Mapping[str, str]:
    """The keys right below a path of arena's, and the path of each; `[]` ends that of a list."""
    start = path and f"{path}."
    found: dict[str, str] = {}
    for whole in ARENA:
        if whole.startswith(start):
            rest = whole[len(start) :]
            # The name of a resource may have dots.
            first = rest if path.endswith("resources") else rest.partition(".")[0]
            found.setdefault(first.removesuffix("[]"), start + first)
    found.pop("*", None)
    return found


def verdicts() -> Iterator[tuple[str, str, str | None]]:
    """Every key of arena v2: its path, what it becomes, and why it cannot be said if it cannot."""
    flags = flags_of(MPIJob)
    for path, key in ARENA.items():
        if key.only:
            yield path, f"only {', '.join(key.only)}", key.why
        elif key.agrees:
            yield path, f"must agree with {spelling(key.agrees, flags[key.agrees])}", key.why
        elif key.refused:
            yield path, "not carried", key.why
        else:
            named = key.field and key.field != COMMAND
            flag = spelling(key.field, flags[key.field]) if named else key.field
            yield path, key.becomes or flag, None
