"""MPIJob: everything a person can ask for, one declaration per flag.

    values      the small values of its fields, each read from the text that is typed
    given       what a program may give for a field
    syntax      what of a job no cluster would take

The fields carry arena's names, defaults and error texts (arena v0.15.5, `pkg/argsbuilder`). What
arena drops in silence, such as an environment variable without `=`, is an error here that names it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Self

from arena_topo.errors import InvalidJob
from arena_topo.flag import BY_KEY, Flag, check, flag, flags_of, spelling
from arena_topo.job import syntax
from arena_topo.job.given import taken
from arena_topo.job.values import (
    Claim,
    ConfigFile,
    Device,
    Duration,
    EnvVar,
    HostPath,
    KeyValue,
    Quantity,
    Toleration,
)
from arena_topo.names import is_dns_label

__all__ = [
    "BY_KEY",
    "NAME_LIMIT",
    "SKETCH",
    "WORKING_DIR",
    "BindingChoice",
    "Claim",
    "CleanPodPolicy",
    "ConfigFile",
    "Device",
    "Duration",
    "EnvVar",
    "HostPath",
    "ImagePullPolicy",
    "KeyValue",
    "MPIImplementation",
    "MPIJob",
    "NodeLoss",
    "PlacementPolicy",
    "PodShape",
    "Quantity",
    "SyncMode",
    "Toleration",
]


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when the job ends."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class ImagePullPolicy(StrEnum):
    """When nodes pull the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PlacementPolicy(StrEnum):
    """Which of the equally fast placements a job gets."""

    PACK = "pack"
    SPREAD = "spread"
    ADAPTIVE = "adaptive"


class BindingChoice(StrEnum):
    """By what means workers are held to their nodes and GPUs; `auto` is the firmest there is."""

    AUTO = "auto"
    CLAIMS = "claims"
    ADMISSION = "admission"
    GATES = "gates"
    TEMPLATE = "template"


class PodShape(StrEnum):
    """How the workers of one node become pods."""

    SEPARATE = "separate"
    """A pod for each worker, which NCCL joins like two hosts (arena's way)."""
    FUSED = "fused"
    """One pod for several workers, the same number of them in each."""
    SHARED = "shared"
    """A pod for each worker; they share IPC and see each other's GPUs."""
    AUTO = "auto"
    """Fused where that gives more and is possible, else separate; decided at creation."""


class NodeLoss(StrEnum):
    """What becomes of a gang when one of its nodes is lost."""

    REPLAN = "replan"
    HOLD = "hold"
    FAIL = "fail"


class MPIImplementation(StrEnum):
    """Whose mpirun the image has: the operator writes the list of hosts in its format."""

    OPENMPI = "OpenMPI"
    INTEL = "Intel"
    MPICH = "MPICH"


class SyncMode(StrEnum):
    """How the code gets into the containers before they start."""

    NONE = ""
    GIT = "git"
    RSYNC = "rsync"


NAME_LIMIT = 49
"""Characters a job name may have, so that the names of its pods stay legal (arena's limit)."""

SKETCH = {"name": "job", "image": "local", "command": "true"}
"""What stands for the fields that every job has, where it is only planned."""

WORKING_DIR = "/root"
"""Where containers start unless told otherwise (arena's default)."""

_MOST = (1 << 31) - 1
"""The largest whole number in an MPIJob (its schema says int32)."""

_SHARE_MEMORY = Quantity(text="2Gi")
_GANG_TIMEOUT = Duration(600)
_UNLIMITED = Duration(0)

_resource = partial(flag, panel="Resources")
_placement = partial(flag, panel="Placement")
_chosen = partial(_placement, needs=("--gputopology",))
_pod = partial(flag, panel="Pods")
_data = partial(flag, panel="Data and code")
_life = partial(flag, panel="Lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIJob:
    """An MPI training job as a person asks for it; invalid ones cannot be made (InvalidJob).

    Every field but `command` is a flag of `submit mpi`, in the order of the help. A field also
    takes the text that is typed for it, one value for several, a mapping for KEY=VALUE, and
    numbers for quantities and seconds; it is kept as the field's own type.
    """

    name: Annotated[str, Flag("Name of the job.", "NAME")]
    command: str
    image: str = flag("", "Container image; `local` runs on this machine.", "IMAGE")

    gpus: int = _resource(0, "GPUs of each worker.", at_least=0)
    workers: int = _resource(1, "How many workers.", at_least=1)
    cpu: Quantity | None = _resource(None, "CPU of each worker.", "QUANTITY")
    memory: Quantity | None = _resource(None, "Memory of each worker.", "QUANTITY")
    launcher_cpu: Quantity | None = _resource(
        None, "CPU of the launcher; else that of a worker.", "QUANTITY"
    )
    launcher_memory: Quantity | None = _resource(
        None, "Memory of the launcher; else that of a worker.", "QUANTITY"
    )
    share_memory: Quantity = _resource(
        _SHARE_MEMORY, "Size of /dev/shm in each container.", "QUANTITY"
    )
    device: tuple[Device, ...] = _resource(
        (), "Another device for each worker; repeat for more.", "NAME=COUNT"
    )
    rdma: bool = _resource(False, "Give each worker the RDMA device rdma/hca.")

    gputopology: bool = _placement(False, "Place the workers on the best-linked GPUs, all at once.")
    gang: bool = _placement(False, "Start all workers together or none.")
    gpu_model: str = _chosen(
        "", "Use only GPUs of this model, such as V100.", "MODEL", completes="models"
    )
    mix_models: bool = _chosen(False, "Let one gang use several GPU models.")
    min_bandwidth: float = _chosen(
        0.0,
        "Refuse placements whose pods can use less bus bandwidth than this.",
        "GBPS",
        at_least=0,
    )
    max_nodes: int = _chosen(
        0, "Refuse placements on more nodes than this; 0 is no limit.", at_least=0
    )
    topology_required: str = _chosen(
        "",
        "Level that all workers must share: node, nvlink, leaf, spine, zone, region or a name from"
        " --fabric.",
        "LEVEL",
        completes="levels",
    )
    topology_preferred: str = _chosen(
        "",
        "Level that all workers share wherever possible, even with less bandwidth.",
        "LEVEL",
        completes="levels",
    )
    policy: PlacementPolicy | None = _chosen(
        None,
        "Among equally fast placements: pack, spread (away from busy GPUs), or adaptive (spread"
        " while the cluster is lightly loaded); else pack.",
    )
    pack_above: float | None = _placement(
        None,
        "Share of GPUs in use from which --policy adaptive packs; else 0.5.",
        "SHARE",
        at_least=0,
        needs=("--policy adaptive",),
    )
    binding: BindingChoice = _chosen(
        BindingChoice.AUTO,
        "How workers are pinned to nodes and GPUs; auto takes the strongest way that works.",
    )
    pod_shape: PodShape = _chosen(
        PodShape.SEPARATE,
        "Workers of a node: a pod each (separate), several in one pod (fused), or a pod each that"
        " share IPC and GPUs (shared). auto: fused where the pods get more by it and the command"
        " does not say where ranks run, else separate.",
    )
    gang_timeout: Duration = _placement(
        _GANG_TIMEOUT,
        "Roll back the whole gang if it makes no progress for this long.",
        "DURATION",
        at_least=1,
    )
    on_node_loss: NodeLoss = _chosen(
        NodeLoss.REPLAN,
        "When a node is lost: place the gang anew (replan), suspend it (hold) or leave it to MPI,"
        " which fails (fail).",
    )
    selector: tuple[KeyValue, ...] = _placement(
        (), "Use only nodes with this label; repeat for more.", "KEY=VALUE"
    )
    toleration: tuple[Toleration, ...] = _placement(
        (), "Taint to tolerate: KEY=VALUE:EFFECT,OPERATOR or all; repeat for more.", "TOLERATION"
    )
    scheduler: str = _placement("", "Name of the scheduler for the pods.", "NAME")
    priority: str = _placement(
        "", "Priority class of the pods.", "CLASS", short="-p", completes="priorities"
    )
    queue: bool = _placement(False, "Submit suspended; kube-queue decides when it starts.")

    env: tuple[EnvVar, ...] = _pod(
        (), "Environment variable; repeat for more.", "KEY=VALUE", short="-e"
    )
    nccl_debug: bool = _pod(False, "Have NCCL say how it joins the GPUs, for logs --nccl.")
    nccl_hca: bool = _pod(
        False,
        "Have NCCL use the NICs nearest to the job's GPUs and no others (NCCL_IB_HCA).",
        needs=("--gputopology",),
    )
    working_dir: str = _pod(
        WORKING_DIR, "Folder that the command starts in.", "PATH", deprecated=("--workingDir",)
    )
    shell: str = _pod("sh", "Shell that runs the command.", "SHELL")
    label: tuple[KeyValue, ...] = _pod(
        (), "Label of job and pods; repeat for more.", "KEY=VALUE", short="-l"
    )
    annotation: tuple[KeyValue, ...] = _pod(
        (), "Annotation of job and pods; repeat for more.", "KEY=VALUE", short="-a"
    )
    image_pull_secret: tuple[str, ...] = _pod(
        (), "Secret to pull the image with; repeat for more.", "NAME"
    )
    image_pull_policy: ImagePullPolicy = _pod(
        ImagePullPolicy.ALWAYS, "When to pull the image: Always, IfNotPresent, Never."
    )
    service_account: str = _pod("", "Service account of the pods; else default.", "NAME")
    mpi_implementation: MPIImplementation = _pod(
        MPIImplementation.OPENMPI, "Whose mpirun the image has: OpenMPI, Intel, MPICH."
    )
    ssh_auth_mount_path: str = _pod(
        "", "Folder in which sshd of the image looks for keys; else /root/.ssh.", "PATH"
    )
    host_network: bool = _pod(False, "Use the node's network.", name="--hostNetwork")
    host_ipc: bool = _pod(False, "Use the node's IPC namespace.", name="--hostIPC")
    host_pid: bool = _pod(False, "Use the node's process namespace.", name="--hostPID")

    data: tuple[Claim, ...] = _data(
        (), "Volume claim to mount; repeat for more.", "CLAIM:/PATH", short="-d", completes="claims"
    )
    data_dir: tuple[HostPath, ...] = _data(
        (),
        "Folder of the node to mount; repeat for more.",
        "/HOST[:/PATH]",
        deprecated=("--dataDir",),
        completes="folders",
    )
    config_file: tuple[ConfigFile, ...] = _data(
        (),
        "Local file to put into the containers; repeat for more.",
        "FILE[:/PATH]",
        completes="files",
    )
    sync_mode: SyncMode = _data(
        SyncMode.NONE,
        "Fetch code before the start: git or rsync.",
        "MODE",
        deprecated=("--syncMode",),
        needs=("--sync-source", "--sync-image"),
    )
    sync_source: str = _data(
        "", "Where the code is fetched from.", "URL", deprecated=("--syncSource",)
    )
    sync_image: str = _data(
        "", "Image that fetches the code.", "IMAGE", deprecated=("--syncImage",)
    )
    mounts_on_launcher: bool = _data(False, "Mount the data in the launcher too.")
    tensorboard: bool = _data(
        False, "Serve TensorBoard for the job.", needs=("--tensorboard-image",)
    )
    tensorboard_image: str = _data(
        "", "Image of TensorBoard.", "IMAGE", deprecated=("--tensorboardImage",)
    )
    logdir: str = _data("/training_logs", "Folder that TensorBoard reads.", "PATH")
    model_name: str = _data(
        "", "Name of the model that the job makes.", "NAME", needs=("--model-source",)
    )
    model_source: str = _data("", "Where the model will be found.", "URL")

    running_timeout: Duration = _life(
        _UNLIMITED, "End the job when it has run this long; 0 is no limit.", "DURATION", at_least=0
    )
    ttl_after_finished: Duration | None = _life(
        None, "Delete the job this long after its end; else it is kept.", "DURATION", at_least=0
    )
    retry: int = _life(0, "How often a failed launcher starts again.", at_least=0)
    clean_task_policy: CleanPodPolicy = _life(
        CleanPodPolicy.ALL, "Which pods are deleted at the end: None, Running, All."
    )

    def __post_init__(self) -> None:
        flags, given = {}, {}
        for field in fields(MPIJob):
            value, found = getattr(self, field.name), flags_of(MPIJob).get(field.name)
            # Most are as they were declared.
            if value is not field.default:
                value = taken(MPIJob, field.name, value, found)
                object.__setattr__(self, field.name, value)
            if found is not None:
                name = spelling(field.name, found)
                flags[name] = found
                if value != field.default:
                    given[name] = value
                if isinstance(value, int) and value > _MOST:
                    raise InvalidJob(
                        f"{name} is invalid", why=f"{value} is more than {_MOST}", flag=name
                    )
        self._check_whole()
        check(flags, given, known=flags, wrong=InvalidJob)
        if self.pack_above is not None and self.pack_above > 1:
            raise InvalidJob(
                "--pack-above is invalid",
                flag="--pack-above",
                why=f"{self.pack_above:g} is more than all GPUs",
                hint="it is a share: 0.5 is half of them",
            )
        names = Counter(claim.name for claim in self.data)
        if twice := next((name for name, times in names.items() if times > 1), None):
            raise InvalidJob(f"your PVC name: {twice} is repeated, please check it")
        syntax.check(self)

    def _check_whole(self) -> None:
        """Name all that a job must have and this one has not."""
        parts = {"--name": self.name, "--image": self.image, "the command": self.command.strip()}
        missing = [part for part, text in parts.items() if not text]
        if len(missing) > 1:
            *some, last = missing
            raise InvalidJob(
                f"{', '.join(some)} and {last} are missing",
                hint="--name NAME --image IMAGE 'mpirun -np 4 python train.py'",
            )
        if missing == ["--image"]:
            raise InvalidJob("--image must be set", flag="--image")
        if missing == ["the command"]:
            raise InvalidJob(
                "not found command args",
                hint='put the command last, in quotes: "mpirun -np 4 python train.py"',
            )
        _check_name(self.name)

    @classmethod
    def sketch(cls, **fields: Any) -> Self:
        """A job that is only planned: it needs no name, image or command."""
        return cls(**SKETCH | fields)

    @property
    def total_gpus(self) -> int:
        """GPUs of all workers together."""
        return self.workers * self.gpus


def _check_name(name: str) -> None:
    if not name:
        raise InvalidJob(
            'required flag(s) "name" not set', hint="add --name NAME or --generate-name PREFIX"
        )
    if len(name) > NAME_LIMIT:
        raise InvalidJob(
            f"the len {len(name)} of name {name} is too long, it should be less than {NAME_LIMIT}"
        )
    if not is_dns_label(name):
        raise InvalidJob(
            "the job name must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character",
            why=f"{name!r} does not",
        )
