"""The keys of a job file, declared once for its reader, its JSON schema and the test of its page.

A file says the flags of `submit mpi` by their own names, without the dashes in front. Beside them
it may use the words that arena v2's schema has for the same things (kubeflow/arena,
keps/arena-v2/yaml-schema.md, version 0.1.0). What that schema has and no flag can say stands here
with the reason, so that it is refused and never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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
class Carried:
    """A key that means a flag. `written` makes the flag's text of the key's; `form` is its pattern.

    What `adds` may be said beside the flag itself.
    """

    field: str
    adds: bool = False
    written: Callable[[str], str] = str
    form: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """A key that may only have these values, for `why` there is no flag that would say others."""

    values: tuple[str, ...]
    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """A key that must agree with what follows from flags; the reader compares them at the end."""

    field: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A key of arena v2 that no flag can say."""

    why: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A mapping with keys of its own; `others` are values of a repeatable KEY=VALUE flag."""

    keys: Mapping[str, Entry]
    required: tuple[str, ...] = ()
    others: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list of mappings; `reader` names who turns one of them into flags, `fields` are those."""

    keys: Mapping[str, Entry]
    reader: str
    fields: tuple[str, ...]
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()


Entry = Carried | Only | Equal | Refused | Section | Items


def _days(text: str) -> str:
    """A time span in which arena v2 also writes days: `7d` is `168h`."""
    found = re.fullmatch(r"(\d+)d(.*)", text)
    return f"{int(found[1]) * 24}h{found[2]}" if found else text


_SPAN = r"0|(\d+d)?(\d+(\.\d*)?(h|ms|us|ns|m|s))*"

_ONE_ENVIRONMENT = "the launcher and all workers have the same variables"
_SOLVER = "which nodes workers share is what --gputopology works out"
_ELSEWHERE = "submit knows no flag for it"
_ROLES = "MPI jobs have a launcher and workers"

_PART = Carried(field="")
"""A key of a list's item; who reads the item knows what it means."""

ARENA: Mapping[str, Entry] = {
    "version": Only(values=("0.1.0",), why="it is the version of arena's schema that is known"),
    "description": Carried(
        field="annotation", adds=True, written=lambda text: f"{DESCRIPTION}={text}"
    ),
    "labels": Carried(field="label"),
    "annotations": Carried(field="annotation"),
    "run": Carried(field=COMMAND),
    "working_dir": Carried(field="working_dir"),
    "framework": Section(
        keys={
            "name": Only(
                values=("mpi",),
                why="only MPI jobs are submitted",
                hint="a job of Horovod or DeepSpeed whose command is mpirun is one: name: mpi",
            ),
            "options": Section(
                keys={
                    "slots_per_worker": Equal(
                        field="gpus", why="a worker has as many slots as it has GPUs, at least one"
                    ),
                    "mounts_on_launcher": Carried(field="mounts_on_launcher"),
                    "run_launcher_as_worker": Only(
                        values=("false",), why="the launcher gets no GPU and runs no rank"
                    ),
                    "nproc_per_node": Refused(why="it is an option of torchrun"),
                }
            ),
        },
        required=("name",),
    ),
    "envs": Carried(field="env"),
    "worker": Section(
        keys={
            "replicas": Carried(field="workers"),
            "envs": Refused(why=_ONE_ENVIRONMENT, hint="move them to envs at the top"),
            "resources": Section(
                keys={
                    "cpu": Carried(field="cpu"),
                    "memory": Carried(field="memory"),
                    "nvidia.com/gpu": Carried(field="gpus"),
                },
                others="device",
            ),
        }
    ),
    "launcher": Section(
        keys={
            "replicas": Only(values=("1",), why="there is one launcher"),
            "envs": Refused(why=_ONE_ENVIRONMENT, hint="move them to envs at the top"),
            "resources": Section(
                keys={
                    "cpu": Carried(field="launcher_cpu"),
                    "memory": Carried(field="launcher_memory"),
                    "nvidia.com/gpu": Only(values=("0",), why="the launcher gets no GPU"),
                }
            ),
        }
    ),
    "master": Refused(why=_ROLES),
    "chief": Refused(why=_ROLES),
    "ps": Refused(why=_ROLES),
    "evaluator": Refused(why=_ROLES),
    "sync": Items(
        keys={
            "git": _PART,
            "rsync": _PART,
            "hdfs": Refused(why="code is fetched by git or rsync"),
            "branch": _PART,
            "local_path": Equal(
                field="working_dir",
                why="code is put into the folder code of the working directory",
            ),
            "image": _PART,
            "mounts": Refused(
                why="the folder of the code is a volume of its own",
                hint="say volumes under storages",
            ),
        },
        reader="sync",
        fields=("sync_mode", "sync_source", "sync_image", "env"),
        required=("local_path",),
        one_of=("git", "rsync"),
    ),
    "init": Refused(
        why="jobs have no init containers but the one that fetches code",
        hint="put the commands before the one under run",
    ),
    "storages": Items(
        keys={
            "name": _PART,
            "mount_path": _PART,
            "pvc": _PART,
            "hostpath": _PART,
            "shm": _PART,
            "tmp": Refused(why=_ELSEWHERE, hint="a container may write to its own /tmp"),
            "configmap": Refused(
                why=_ELSEWHERE, hint="config-file puts a local file into the containers"
            ),
            "secret": Refused(why=_ELSEWHERE),
            "sub_path": Refused(why="a volume claim is mounted whole"),
            "key": Refused(why="it belongs to configmap and secret, which no flag can say"),
        },
        reader="storage",
        fields=("data", "data_dir", "share_memory"),
        required=("name",),
        one_of=("pvc", "hostpath", "shm"),
    ),
    "scheduling": Section(
        keys={
            "priority": Refused(
                why="Kubernetes takes the number from a priority class",
                hint="say priority_class_name",
            ),
            "priority_class_name": Carried(field="priority"),
            "gang": Section(keys={"enabled": Carried(field="gang")}),
            "scheduler_name": Carried(field="scheduler"),
            "queue": Refused(
                why="--queue only says that kube-queue decides when the job starts",
                hint="for Kueue say labels: {kueue.x-k8s.io/queue-name: NAME}",
            ),
            "node_selector": Carried(field="selector"),
            "tolerations": Items(
                keys={"key": _PART, "operator": _PART, "value": _PART, "effect": _PART},
                reader="toleration",
                fields=("toleration",),
            ),
            "affinity": Section(
                keys={
                    "policy": Only(values=("none",), why=_SOLVER),
                    "constraint": Refused(why=_SOLVER),
                    "target": Refused(why=_SOLVER),
                    "rules": Refused(why=_SOLVER, hint="say node_selector, or topology-required"),
                }
            ),
        }
    ),
    "lifecycle": Section(
        keys={
            "clean_pod_policy": Carried(field="clean_task_policy"),
            "active_deadline": Carried(field="running_timeout", written=_days, form=_SPAN),
            "ttl_after_finished": Carried(field="ttl_after_finished", written=_days, form=_SPAN),
            "backoff_limit": Carried(field="retry"),
            "success_policy": Refused(why="it belongs to TensorFlow jobs"),
        }
    ),
    "image_pull_policy": Carried(field="image_pull_policy"),
    "image_pull_secrets": Carried(field="image_pull_secret"),
    "service_account": Carried(field="service_account"),
    "restart": Only(values=("Never",), why="a rank that fails ends the MPI job; retry starts anew"),
    "host_network": Carried(field="host_network"),
    "host_ipc": Carried(field="host_ipc"),
    "host_pid": Carried(field="host_pid"),
    "logging": Section(
        keys={
            "tensorboard": Section(
                keys={
                    "enabled": Carried(field="tensorboard"),
                    "logdir": Carried(field="logdir"),
                    "image": Carried(field="tensorboard_image"),
                }
            ),
            "wandb": Refused(why="arena has not said what it means", hint="say it in envs"),
        }
    ),
}
"""Arena v2's keys but `name`, `namespace`, `image` and `shell`, which are spelled as ours.

Its defaults are not taken over: what a file leaves open is as it is without that flag.
"""

PARTS: Mapping[str, str] = {
    "sync[].git": "--sync-mode git --sync-source",
    "sync[].rsync": "--sync-mode rsync --sync-source",
    "sync[].branch": f"--env {BRANCH}=",
    "sync[].image": "--sync-image",
    "storages[].name": "the name inside the pod is not kept",
    "storages[].mount_path": "the path in --data and --data-dir",
    "storages[].pvc": "--data",
    "storages[].hostpath": "--data-dir",
    "storages[].shm": "--share-memory",
    "scheduling.tolerations[].key": "--toleration",
    "scheduling.tolerations[].operator": "--toleration",
    "scheduling.tolerations[].value": "--toleration",
    "scheduling.tolerations[].effect": "--toleration",
}
"""What the keys of items become."""


def verdicts(
    keys: Mapping[str, Entry] = ARENA, path: str = ""
) -> Iterator[tuple[str, str, str | None]]:
    """Every key of arena v2: its path, what it becomes, and why it cannot be said if it cannot."""
    for key, entry in keys.items():
        here = f"{path}{key}"
        match entry:
            case Carried():
                yield here, PARTS.get(here) or _flag(entry.field), None
            case Only():
                yield here, f"only {', '.join(entry.values)}", entry.why
            case Equal():
                yield here, f"must agree with {_flag(entry.field)}", entry.why
            case Refused():
                yield here, "not carried", entry.why
            case Section():
                yield from verdicts(entry.keys, f"{here}.")
                if entry.others:
                    yield f"{here}.*", _flag(entry.others), None
            case Items():
                yield from verdicts(entry.keys, f"{here}[].")


def _flag(name: str) -> str:
    return COMMAND if name == COMMAND else spelling(name, flags_of(MPIJob)[name])
