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
from typing import Annotated, Any

from arena_topo.errors import InvalidJob
from arena_topo.flag import BY_KEY, Flag, flags_of, spelling
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

WORKING_DIR = "/root"
"""Where containers start unless told otherwise (arena's default)."""

_MOST = (1 << 31) - 1
"""The largest whole number in an MPIJob (its schema says int32)."""

_SHARE_MEMORY = Quantity(text="2Gi")
_GANG_TIMEOUT = Duration(600)
_UNLIMITED = Duration(0)

_RESOURCES = "Resources"
_PLACEMENT = "Placement"
_DATA = "Data and code"
_POD = "Pods"
_LIFE = "Lifecycle"


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIJob:
    """An MPI training job as a person asks for it; invalid ones cannot be made (InvalidJob).

    Every field but `command` is a flag of `submit mpi`, in the order of the help. A field also
    takes the text that is typed for it, one value for several, a mapping for KEY=VALUE, and
    numbers for quantities and seconds; it is kept as the field's own type.
    """

    name: Annotated[str, Flag(help="Name of the job.", metavar="NAME")]
    command: str
    image: Annotated[
        str, Flag(help="Container image; `local` runs on this machine.", metavar="IMAGE")
    ] = ""

    gpus: Annotated[int, Flag(help="GPUs of each worker.", panel=_RESOURCES, at_least=0)] = 0
    workers: Annotated[int, Flag(help="How many workers.", panel=_RESOURCES, at_least=1)] = 1
    cpu: Annotated[
        Quantity | None, Flag(help="CPU of each worker.", panel=_RESOURCES, metavar="QUANTITY")
    ] = None
    memory: Annotated[
        Quantity | None, Flag(help="Memory of each worker.", panel=_RESOURCES, metavar="QUANTITY")
    ] = None
    launcher_cpu: Annotated[
        Quantity | None,
        Flag(
            help="CPU of the launcher; else that of a worker.",
            panel=_RESOURCES,
            metavar="QUANTITY",
        ),
    ] = None
    launcher_memory: Annotated[
        Quantity | None,
        Flag(
            help="Memory of the launcher; else that of a worker.",
            panel=_RESOURCES,
            metavar="QUANTITY",
        ),
    ] = None
    share_memory: Annotated[
        Quantity,
        Flag(help="Size of /dev/shm in each container.", panel=_RESOURCES, metavar="QUANTITY"),
    ] = _SHARE_MEMORY
    device: Annotated[
        tuple[Device, ...],
        Flag(
            help="Another device for each worker; repeat for more.",
            panel=_RESOURCES,
            metavar="NAME=COUNT",
        ),
    ] = ()
    rdma: Annotated[
        bool, Flag(help="Give each worker the RDMA device rdma/hca.", panel=_RESOURCES)
    ] = False

    gputopology: Annotated[
        bool,
        Flag(help="Place the workers on the best-linked GPUs, all at once.", panel=_PLACEMENT),
    ] = False
    gang: Annotated[bool, Flag(help="Start all workers together or none.", panel=_PLACEMENT)] = (
        False
    )
    gpu_model: Annotated[
        str,
        Flag(
            help="Use only GPUs of this model, such as V100.",
            panel=_PLACEMENT,
            metavar="MODEL",
            completes="models",
            needs="gputopology",
        ),
    ] = ""
    mix_models: Annotated[
        bool,
        Flag(help="Let one gang use several GPU models.", panel=_PLACEMENT, needs="gputopology"),
    ] = False
    min_bandwidth: Annotated[
        float,
        Flag(
            help="Refuse placements whose pods can use less bus bandwidth than this.",
            panel=_PLACEMENT,
            metavar="GBPS",
            at_least=0,
            needs="gputopology",
        ),
    ] = 0.0
    max_nodes: Annotated[
        int,
        Flag(
            help="Refuse placements on more nodes than this; 0 is no limit.",
            panel=_PLACEMENT,
            at_least=0,
            needs="gputopology",
        ),
    ] = 0
    topology_required: Annotated[
        str,
        Flag(
            help="Level that all workers must share: node, nvlink, leaf, spine, zone, region or a"
            " name from --fabric.",
            panel=_PLACEMENT,
            metavar="LEVEL",
            completes="levels",
            needs="gputopology",
        ),
    ] = ""
    topology_preferred: Annotated[
        str,
        Flag(
            help="Level that all workers share wherever possible, even with less bandwidth.",
            panel=_PLACEMENT,
            metavar="LEVEL",
            completes="levels",
            needs="gputopology",
        ),
    ] = ""
    policy: Annotated[
        PlacementPolicy | None,
        Flag(
            help="Among equally fast placements: pack, spread (away from busy GPUs), or adaptive"
            " (spread while the cluster is lightly loaded); else pack.",
            panel=_PLACEMENT,
            needs="gputopology",
        ),
    ] = None
    pack_above: Annotated[
        float | None,
        Flag(
            help="Share of GPUs in use from which --policy adaptive packs; else 0.5.",
            panel=_PLACEMENT,
            metavar="SHARE",
            at_least=0,
        ),
    ] = None
    binding: Annotated[
        BindingChoice,
        Flag(
            help="How workers are held to their nodes and GPUs; auto is the firmest way there is.",
            panel=_PLACEMENT,
            needs="gputopology",
        ),
    ] = BindingChoice.AUTO
    pod_shape: Annotated[
        PodShape,
        Flag(
            help="Workers of a node: a pod each (separate), several in one pod (fused), or a pod"
            " each that share IPC and GPUs (shared).",
            panel=_PLACEMENT,
            needs="gputopology",
        ),
    ] = PodShape.SEPARATE
    gang_timeout: Annotated[
        Duration,
        Flag(
            help="Take the whole gang back if it makes no progress for this long.",
            panel=_PLACEMENT,
            metavar="DURATION",
            at_least=1,
        ),
    ] = _GANG_TIMEOUT
    on_node_loss: Annotated[
        NodeLoss,
        Flag(
            help="When a node is lost: place the gang anew (replan), suspend it (hold) or"
            " leave it to MPI, which fails (fail).",
            panel=_PLACEMENT,
            needs="gputopology",
        ),
    ] = NodeLoss.REPLAN
    selector: Annotated[
        tuple[KeyValue, ...],
        Flag(
            help="Use only nodes with this label; repeat for more.",
            panel=_PLACEMENT,
            metavar="KEY=VALUE",
        ),
    ] = ()
    toleration: Annotated[
        tuple[Toleration, ...],
        Flag(
            help="Taint to bear: KEY=VALUE:EFFECT,OPERATOR or all; repeat for more.",
            panel=_PLACEMENT,
            metavar="TOLERATION",
        ),
    ] = ()
    scheduler: Annotated[
        str, Flag(help="Name of the scheduler for the pods.", panel=_PLACEMENT, metavar="NAME")
    ] = ""
    priority: Annotated[
        str,
        Flag(
            help="Priority class of the pods.",
            panel=_PLACEMENT,
            short="-p",
            metavar="CLASS",
            completes="priorities",
        ),
    ] = ""
    queue: Annotated[
        bool, Flag(help="Submit suspended; kube-queue decides when it starts.", panel=_PLACEMENT)
    ] = False

    env: Annotated[
        tuple[EnvVar, ...],
        Flag(
            help="Environment variable; repeat for more.",
            panel=_POD,
            short="-e",
            metavar="KEY=VALUE",
        ),
    ] = ()
    nccl_debug: Annotated[
        bool,
        Flag(
            help="Have NCCL say how it joins the GPUs, for logs --nccl.",
            panel=_POD,
        ),
    ] = False
    working_dir: Annotated[
        str,
        Flag(
            help="Folder that the command starts in.",
            panel=_POD,
            deprecated=("--workingDir",),
            metavar="PATH",
        ),
    ] = WORKING_DIR
    shell: Annotated[
        str, Flag(help="Shell that runs the command.", panel=_POD, metavar="SHELL")
    ] = "sh"
    label: Annotated[
        tuple[KeyValue, ...],
        Flag(
            help="Label of job and pods; repeat for more.",
            panel=_POD,
            short="-l",
            metavar="KEY=VALUE",
        ),
    ] = ()
    annotation: Annotated[
        tuple[KeyValue, ...],
        Flag(
            help="Annotation of job and pods; repeat for more.",
            panel=_POD,
            short="-a",
            metavar="KEY=VALUE",
        ),
    ] = ()
    image_pull_secret: Annotated[
        tuple[str, ...],
        Flag(help="Secret to pull the image with; repeat for more.", panel=_POD, metavar="NAME"),
    ] = ()
    image_pull_policy: Annotated[
        ImagePullPolicy,
        Flag(help="When to pull the image: Always, IfNotPresent, Never.", panel=_POD),
    ] = ImagePullPolicy.ALWAYS
    service_account: Annotated[
        str,
        Flag(help="Service account of the pods; else default.", panel=_POD, metavar="NAME"),
    ] = ""
    mpi_implementation: Annotated[
        MPIImplementation,
        Flag(help="Whose mpirun the image has: OpenMPI, Intel, MPICH.", panel=_POD),
    ] = MPIImplementation.OPENMPI
    ssh_auth_mount_path: Annotated[
        str,
        Flag(
            help="Folder in which sshd of the image looks for keys; else /root/.ssh.",
            panel=_POD,
            metavar="PATH",
        ),
    ] = ""
    host_network: Annotated[
        bool, Flag(help="Use the node's network.", panel=_POD, name="--hostNetwork")
    ] = False
    host_ipc: Annotated[
        bool, Flag(help="Use the node's IPC namespace.", panel=_POD, name="--hostIPC")
    ] = False
    host_pid: Annotated[
        bool, Flag(help="Use the node's process namespace.", panel=_POD, name="--hostPID")
    ] = False

    data: Annotated[
        tuple[Claim, ...],
        Flag(
            help="Volume claim to mount; repeat for more.",
            panel=_DATA,
            short="-d",
            metavar="CLAIM:/PATH",
            completes="claims",
        ),
    ] = ()
    data_dir: Annotated[
        tuple[HostPath, ...],
        Flag(
            help="Folder of the node to mount; repeat for more.",
            panel=_DATA,
            deprecated=("--dataDir",),
            metavar="/HOST[:/PATH]",
            completes="folders",
        ),
    ] = ()
    config_file: Annotated[
        tuple[ConfigFile, ...],
        Flag(
            help="Local file to put into the containers; repeat for more.",
            panel=_DATA,
            metavar="FILE[:/PATH]",
            completes="files",
        ),
    ] = ()
    sync_mode: Annotated[
        SyncMode,
        Flag(
            help="Fetch code before the start: git or rsync.",
            panel=_DATA,
            deprecated=("--syncMode",),
            metavar="MODE",
        ),
    ] = SyncMode.NONE
    sync_source: Annotated[
        str,
        Flag(
            help="Where the code is fetched from.",
            panel=_DATA,
            deprecated=("--syncSource",),
            metavar="URL",
        ),
    ] = ""
    sync_image: Annotated[
        str,
        Flag(
            help="Image that fetches the code.",
            panel=_DATA,
            deprecated=("--syncImage",),
            metavar="IMAGE",
        ),
    ] = ""
    mounts_on_launcher: Annotated[
        bool, Flag(help="Mount the data in the launcher too.", panel=_DATA)
    ] = False
    tensorboard: Annotated[bool, Flag(help="Serve TensorBoard for the job.", panel=_DATA)] = False
    tensorboard_image: Annotated[
        str,
        Flag(
            help="Image of TensorBoard.",
            panel=_DATA,
            deprecated=("--tensorboardImage",),
            metavar="IMAGE",
        ),
    ] = ""
    logdir: Annotated[
        str, Flag(help="Folder that TensorBoard reads.", panel=_DATA, metavar="PATH")
    ] = "/training_logs"
    model_name: Annotated[
        str, Flag(help="Name of the model that the job makes.", panel=_DATA, metavar="NAME")
    ] = ""
    model_source: Annotated[
        str, Flag(help="Where the model will be found.", panel=_DATA, metavar="URL")
    ] = ""

    running_timeout: Annotated[
        Duration,
        Flag(
            help="End the job when it has run this long; 0 is no limit.",
            panel=_LIFE,
            metavar="DURATION",
            at_least=0,
        ),
    ] = _UNLIMITED
    ttl_after_finished: Annotated[
        Duration | None,
        Flag(
            help="Delete the job this long after its end; else it is kept.",
            panel=_LIFE,
            metavar="DURATION",
            at_least=0,
        ),
    ] = None
    retry: Annotated[
        int, Flag(help="How often a failed launcher starts again.", panel=_LIFE, at_least=0)
    ] = 0
    clean_task_policy: Annotated[
        CleanPodPolicy,
        Flag(help="Which pods are deleted at the end: None, Running, All.", panel=_LIFE),
    ] = CleanPodPolicy.ALL

    def __post_init__(self) -> None:
        self._take()
        if not self.command.strip():
            raise InvalidJob(
                "not found command args",
                hint='put the command last, in quotes: "mpirun -np 4 python train.py"',
            )
        _check_name(self.name)
        if not self.image:
            raise InvalidJob("--image must be set ")
        flags = flags_of(MPIJob)
        for field in fields(MPIJob):
            if field.name in flags:
                self._check(field.name, flags[field.name], field.default)
        if self.pack_above is not None and self.pack_above > 1:
            raise InvalidJob(
                "--pack-above is invalid",
                why=f"{self.pack_above:g} is more than all GPUs",
                hint="it is a share: 0.5 is half of them",
            )
        if self.pack_above is not None and self.policy is not PlacementPolicy.ADAPTIVE:
            raise InvalidJob("--pack-above needs --policy adaptive", hint="add --policy adaptive")
        if self.sync_mode is not SyncMode.NONE and not self.sync_source:
            raise InvalidJob("--syncSource should be set when syncMode is set")
        if self.model_name and not self.model_source:
            raise InvalidJob(
                "model version source must be specified when registering a model version"
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

    def _check(self, field: str, flag: Flag, default: object) -> None:
        value, name = getattr(self, field), spelling(field, flag)
        if flag.at_least is not None and value is not None and value < flag.at_least:
            raise InvalidJob(f"{name} is invalid", why=f"{value:g} is less than {flag.at_least}")
        if isinstance(value, int) and value > _MOST:
            raise InvalidJob(f"{name} is invalid", why=f"{value} is more than {_MOST}")
        if flag.needs and value != default and not getattr(self, flag.needs):
            needed = spelling(flag.needs, flags_of(MPIJob)[flag.needs])
            raise InvalidJob(f"{name} needs {needed}", hint=f"add {needed}")

    @property
    def total_gpus(self) -> int:
        """GPUs of all workers together."""
        return self.workers * self.gpus


class _Described:
    """What `help` says of a record: its docstring, and what each of its flags is for.

    It is put together when somebody asks.
    """

    def __init__(self, text: str | None) -> None:
        self._text = text or ""

    def __get__(self, _one: object, record: type) -> str:
        from inspect import cleandoc  # noqa: PLC0415 - only for who asks for help

        told = [f"    {field}: {flag.help}" for field, flag in flags_of(record).items()]
        return "\n".join([cleandoc(self._text), "", "Fields:", *told, ""])


def _readable(record: Any) -> None:
    """Let `help` show the types of the fields alone, without their flags."""
    shown = record.__init__.__annotations__
    for field, hint in shown.items():
        if hint and hint.startswith("Annotated["):
            shown[field] = hint[len("Annotated[") : hint.index(", Flag(")]
    record.__doc__ = _Described(record.__doc__)


_readable(MPIJob)


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
