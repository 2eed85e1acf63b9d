"""MPIJob: everything a person can ask for, one declaration per flag.

    values      the small values of its fields, each read from the text that is typed
    given       what a program may give for a field
    syntax      what of a job no cluster would take

The fields carry arena's names, defaults and error texts (arena v0.15.5, `pkg/argsbuilder`). What
arena drops in silence, such as an environment variable without `=`, is an error here that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Self

from arena_topo.errors import InvalidJob
from arena_topo.flag import BY_KEY, Flag, check, flags_of, spelling
from arena_topo.job import given, syntax
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

_resource = partial(Flag, panel="Resources")
_placement = partial(Flag, panel="Placement")
_chosen = partial(_placement, needs=("--gputopology",))
_pod = partial(Flag, panel="Pods")
_data = partial(Flag, panel="Data and code")
_life = partial(Flag, panel="Lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIJob:
    """An MPI training job as a person asks for it; invalid ones cannot be made (InvalidJob).

    Every field but `command` is a flag of `submit mpi`, in the order of the help. A field also
    takes the text that is typed for it, one value for several, a mapping for KEY=VALUE, and
    numbers for quantities and seconds; it is kept as the field's own type.
    """

    name: Annotated[str, Flag("Name of the job.", "NAME")]
    command: str
    image: Annotated[str, Flag("Container image; `local` runs on this machine.", "IMAGE")] = ""

    gpus: Annotated[int, _resource("GPUs of each worker.", at_least=0)] = 0
    workers: Annotated[int, _resource("How many workers.", at_least=1)] = 1
    cpu: Annotated[Quantity | None, _resource("CPU of each worker.", "QUANTITY")] = None
    memory: Annotated[Quantity | None, _resource("Memory of each worker.", "QUANTITY")] = None
    launcher_cpu: Annotated[
        Quantity | None, _resource("CPU of the launcher; else that of a worker.", "QUANTITY")
    ] = None
    launcher_memory: Annotated[
        Quantity | None, _resource("Memory of the launcher; else that of a worker.", "QUANTITY")
    ] = None
    share_memory: Annotated[
        Quantity, _resource("Size of /dev/shm in each container.", "QUANTITY")
    ] = _SHARE_MEMORY
    device: Annotated[
        tuple[Device, ...],
        _resource("Another device for each worker; repeat for more.", "NAME=COUNT"),
    ] = ()
    rdma: Annotated[bool, _resource("Give each worker the RDMA device rdma/hca.")] = False

    gputopology: Annotated[
        bool, _placement("Place the workers on the best-linked GPUs, all at once.")
    ] = False
    gang: Annotated[bool, _placement("Start all workers together or none.")] = False
    gpu_model: Annotated[
        str, _chosen("Use only GPUs of this model, such as V100.", "MODEL", completes="models")
    ] = ""
    mix_models: Annotated[bool, _chosen("Let one gang use several GPU models.")] = False
    min_bandwidth: Annotated[
        float,
        _chosen(
            "Refuse placements whose pods can use less bus bandwidth than this.", "GBPS", at_least=0
        ),
    ] = 0.0
    max_nodes: Annotated[
        int, _chosen("Refuse placements on more nodes than this; 0 is no limit.", at_least=0)
    ] = 0
    topology_required: Annotated[
        str,
        _chosen(
            "Level that all workers must share: node, nvlink, leaf, spine, zone, region or a"
            " name from --fabric.",
            "LEVEL",
            completes="levels",
        ),
    ] = ""
    topology_preferred: Annotated[
        str,
        _chosen(
            "Level that all workers share wherever possible, even with less bandwidth.",
            "LEVEL",
            completes="levels",
        ),
    ] = ""
    policy: Annotated[
        PlacementPolicy | None,
        _chosen(
            "Among equally fast placements: pack, spread (away from busy GPUs), or adaptive"
            " (spread while the cluster is lightly loaded); else pack."
        ),
    ] = None
    pack_above: Annotated[
        float | None,
        _placement(
            "Share of GPUs in use from which --policy adaptive packs; else 0.5.",
            "SHARE",
            at_least=0,
            needs=("--policy adaptive",),
        ),
    ] = None
    binding: Annotated[
        BindingChoice,
        _chosen(
            "How workers are pinned to nodes and GPUs; auto takes the strongest way that works."
        ),
    ] = BindingChoice.AUTO
    pod_shape: Annotated[
        PodShape,
        _chosen(
            "Workers of a node: a pod each (separate), several in one pod (fused), or a pod"
            " each that share IPC and GPUs (shared). auto: fused where the pods get more by it and"
            " the command does not say where ranks run, else separate."
        ),
    ] = PodShape.SEPARATE
    gang_timeout: Annotated[
        Duration,
        _placement(
            "Roll back the whole gang if it makes no progress for this long.",
            "DURATION",
            at_least=1,
        ),
    ] = _GANG_TIMEOUT
    on_node_loss: Annotated[
        NodeLoss,
        _chosen(
            "When a node is lost: place the gang anew (replan), suspend it (hold) or"
            " leave it to MPI, which fails (fail)."
        ),
    ] = NodeLoss.REPLAN
    selector: Annotated[
        tuple[KeyValue, ...],
        _placement("Use only nodes with this label; repeat for more.", "KEY=VALUE"),
    ] = ()
    toleration: Annotated[
        tuple[Toleration, ...],
        _placement(
            "Taint to tolerate: KEY=VALUE:EFFECT,OPERATOR or all; repeat for more.", "TOLERATION"
        ),
    ] = ()
    scheduler: Annotated[str, _placement("Name of the scheduler for the pods.", "NAME")] = ""
    priority: Annotated[
        str, _placement("Priority class of the pods.", "CLASS", short="-p", completes="priorities")
    ] = ""
    queue: Annotated[bool, _placement("Submit suspended; kube-queue decides when it starts.")] = (
        False
    )

    env: Annotated[
        tuple[EnvVar, ...], _pod("Environment variable; repeat for more.", "KEY=VALUE", short="-e")
    ] = ()
    nccl_debug: Annotated[bool, _pod("Have NCCL say how it joins the GPUs, for logs --nccl.")] = (
        False
    )
    nccl_hca: Annotated[
        bool,
        _pod(
            "Have NCCL use the NICs nearest to the job's GPUs and no others (NCCL_IB_HCA).",
            needs=("--gputopology",),
        ),
    ] = False
    working_dir: Annotated[
        str, _pod("Folder that the command starts in.", "PATH", deprecated=("--workingDir",))
    ] = WORKING_DIR
    shell: Annotated[str, _pod("Shell that runs the command.", "SHELL")] = "sh"
    label: Annotated[
        tuple[KeyValue, ...],
        _pod("Label of job and pods; repeat for more.", "KEY=VALUE", short="-l"),
    ] = ()
    annotation: Annotated[
        tuple[KeyValue, ...],
        _pod("Annotation of job and pods; repeat for more.", "KEY=VALUE", short="-a"),
    ] = ()
    image_pull_secret: Annotated[
        tuple[str, ...], _pod("Secret to pull the image with; repeat for more.", "NAME")
    ] = ()
    image_pull_policy: Annotated[
        ImagePullPolicy, _pod("When to pull the image: Always, IfNotPresent, Never.")
    ] = ImagePullPolicy.ALWAYS
    service_account: Annotated[str, _pod("Service account of the pods; else default.", "NAME")] = ""
    mpi_implementation: Annotated[
        MPIImplementation, _pod("Whose mpirun the image has: OpenMPI, Intel, MPICH.")
    ] = MPIImplementation.OPENMPI
    ssh_auth_mount_path: Annotated[
        str, _pod("Folder in which sshd of the image looks for keys; else /root/.ssh.", "PATH")
    ] = ""
    host_network: Annotated[bool, _pod("Use the node's network.", name="--hostNetwork")] = False
    host_ipc: Annotated[bool, _pod("Use the node's IPC namespace.", name="--hostIPC")] = False
    host_pid: Annotated[bool, _pod("Use the node's process namespace.", name="--hostPID")] = False

    data: Annotated[
        tuple[Claim, ...],
        _data(
            "Volume claim to mount; repeat for more.", "CLAIM:/PATH", short="-d", completes="claims"
        ),
    ] = ()
    data_dir: Annotated[
        tuple[HostPath, ...],
        _data(
            "Folder of the node to mount; repeat for more.",
            "/HOST[:/PATH]",
            deprecated=("--dataDir",),
            completes="folders",
        ),
    ] = ()
    config_file: Annotated[
        tuple[ConfigFile, ...],
        _data(
            "Local file to put into the containers; repeat for more.",
            "FILE[:/PATH]",
            completes="files",
        ),
    ] = ()
    sync_mode: Annotated[
        SyncMode,
        _data(
            "Fetch code before the start: git or rsync.",
            "MODE",
            deprecated=("--syncMode",),
            needs=("--sync-source", "--sync-image"),
        ),
    ] = SyncMode.NONE
    sync_source: Annotated[
        str, _data("Where the code is fetched from.", "URL", deprecated=("--syncSource",))
    ] = ""
    sync_image: Annotated[
        str, _data("Image that fetches the code.", "IMAGE", deprecated=("--syncImage",))
    ] = ""
    mounts_on_launcher: Annotated[bool, _data("Mount the data in the launcher too.")] = False
    tensorboard: Annotated[
        bool, _data("Serve TensorBoard for the job.", needs=("--tensorboard-image",))
    ] = False
    tensorboard_image: Annotated[
        str, _data("Image of TensorBoard.", "IMAGE", deprecated=("--tensorboardImage",))
    ] = ""
    logdir: Annotated[str, _data("Folder that TensorBoard reads.", "PATH")] = "/training_logs"
    model_name: Annotated[
        str,
        _data("Name of the model that the job makes.", "NAME", needs=("--model-source",)),
    ] = ""
    model_source: Annotated[str, _data("Where the model will be found.", "URL")] = ""

    running_timeout: Annotated[
        Duration,
        _life("End the job when it has run this long; 0 is no limit.", "DURATION", at_least=0),
    ] = _UNLIMITED
    ttl_after_finished: Annotated[
        Duration | None,
        _life("Delete the job this long after its end; else it is kept.", "DURATION", at_least=0),
    ] = None
    retry: Annotated[int, _life("How often a failed launcher starts again.", at_least=0)] = 0
    clean_task_policy: Annotated[
        CleanPodPolicy, _life("Which pods are deleted at the end: None, Running, All.")
    ] = CleanPodPolicy.ALL

    def __post_init__(self) -> None:
        self._take()
        self._check_whole()
        _check_name(self.name)
        flags = {spelling(field, flag): flag for field, flag in flags_of(MPIJob).items()}
        said = {}
        for field in fields(MPIJob):
            if (flag := flags_of(MPIJob).get(field.name)) is not None:
                self._check(field.name, flag)
                if (value := getattr(self, field.name)) != field.default:
                    said[spelling(field.name, flag)] = value
        check(flags, said, known=flags, wrong=InvalidJob)
        if self.pack_above is not None and self.pack_above > 1:
            raise InvalidJob(
                "--pack-above is invalid",
                flag="--pack-above",
                why=f"{self.pack_above:g} is more than all GPUs",
                hint="it is a share: 0.5 is half of them",
            )
        names = [claim.name for claim in self.data]
        for name in names:
            if names.count(name) > 1:
                raise InvalidJob(f"your PVC name: {name} is repeated, please check it")
        syntax.check(self)

    def _take(self) -> None:
        """Have the values of the fields' own types, whatever a program gave for them."""
        flags = flags_of(MPIJob)
        for field in fields(MPIJob):
            value = getattr(self, field.name)
            # Most are as they were declared.
            if value is not field.default:
                made = given.taken(MPIJob, field.name, value, flags.get(field.name))
                object.__setattr__(self, field.name, made)

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

    def _check(self, field: str, flag: Flag) -> None:
        value, name = getattr(self, field), spelling(field, flag)
        if isinstance(value, int) and value > _MOST:
            raise InvalidJob(f"{name} is invalid", why=f"{value} is more than {_MOST}", flag=name)

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
