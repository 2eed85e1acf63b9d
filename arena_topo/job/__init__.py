"""MPIJob: the request for a job, with one declaration per flag, and the values of its fields.

The fields have arena's names and defaults (arena v0.15.5, `pkg/argsbuilder`). Input that arena
drops silently, such as an environment variable without `=`, is an error here that names it. `parse`
reads a value from its text on the command line; it raises InvalidValue, a ValueError, and the
reader of the command line adds the flag.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Self

from arena_topo.errors import InvalidJob, InvalidValue
from arena_topo.flag import BY_KEY as BY_KEY
from arena_topo.flag import Flag, check_flags, flag, flags_of, kinds_of, spelling
from arena_topo.names import is_dns_label, is_key, is_label_value, is_subdomain, is_variable
from arena_topo.numbers import A_QUANTITY, LARGEST_QUANTITY, parse_span, quantity, shown
from arena_topo.words import listed

# The choices


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
    """The choice among equally fast placements."""

    PACK = "pack"
    SPREAD = "spread"
    ADAPTIVE = "adaptive"


class BindingChoice(StrEnum):
    """The mechanism that binds workers to nodes and GPUs; `auto` is the strongest available."""

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
    """Fused if that gives more and is possible, else separate; decided at creation."""


class NodeLoss(StrEnum):
    """The reaction of a gang to the loss of one of its nodes."""

    REPLAN = "replan"
    HOLD = "hold"
    FAIL = "fail"


class MPIImplementation(StrEnum):
    """The MPI implementation in the image: it decides the format of the operator's host list."""

    OPENMPI = "OpenMPI"
    INTEL = "Intel"
    MPICH = "MPICH"


class SyncMode(StrEnum):
    """How the code gets into the containers before they start."""

    NONE = ""
    GIT = "git"
    RSYNC = "rsync"


# The small values


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A `KEY=VALUE` pair, split at the first `=`; the value may be empty, the key may not."""

    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `KEY=VALUE`; InvalidValue names what is missing."""
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InvalidValue(f"expected KEY=VALUE, got {text!r}")
        return cls(key=key, value=value)

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class EnvVar(KeyValue):
    """An environment variable of every container."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A Kubernetes quantity such as `500m` or `2Gi`, as written, with its exact amount."""

    text: str

    def __post_init__(self) -> None:
        try:
            quantity(self.text)
        except ValueError as error:
            raise InvalidValue(str(error)) from error

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a quantity; InvalidValue for an invalid one."""
        return cls(text=text)

    @property
    def amount(self) -> Decimal:
        """The exact number, in cores or bytes; an amount between 0 and 1n counts as 1n."""
        return quantity(self.text)[2]

    def times(self, count: int) -> Self:
        """The amount times a number, in the same unit; at most the largest quantity."""
        number, unit, amount = quantity(self.text)
        if amount * count > LARGEST_QUANTITY:
            return type(self)(text=str(LARGEST_QUANTITY))
        return type(self)(text=f"{(number * count).normalize():f}{unit}")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An extended resource for every worker, such as `amd.com/gpu=1`."""

    name: str
    quantity: Quantity

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=QUANTITY`; InvalidValue names the own flag of a resource that has one."""
        name, _, amount = text.partition("=")
        own = {"nvidia.com/gpu": "gpus", "cpu": "cpu", "memory": "memory"}.get(name)
        if own is not None:
            raise InvalidValue(f"please use '--{own} {amount}' instead of '--device {text}'")
        # A resource without a vendor must be one of Kubernetes itself.
        known = "/" in name or name.startswith("hugepages-") or name == "ephemeral-storage"
        if not (amount and known and is_key(name)):
            raise InvalidValue(f"invalid device {text!r}, refer to amd.com/gpu=1")
        device = cls(name=name, quantity=Quantity.parse(amount))
        if "/" in name and device.quantity.amount % 1:
            raise InvalidValue(f"device value {amount!r} is no whole number of devices")
        return device

    def __str__(self) -> str:
        return f"{self.name}={self.quantity}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A persistent volume claim and its mount path: `--data NAME:/PATH`."""

    name: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME:/PATH`; the path may be neither relative nor the root."""
        name, _, path = text.partition(":")
        if not (name and _is_folder(path)):
            raise InvalidValue(f"expected CLAIM:/PATH, got {text!r}")
        return cls(name=name, path=path)

    def __str__(self) -> str:
        return f"{self.name}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A folder of the node and its mount path: `--data-dir /HOST[:/CONTAINER]`."""

    host: str
    container: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `/HOST[:/CONTAINER]`; neither side may be relative or the root."""
        host, colon, container = text.partition(":")
        container = container if colon else host
        if not (_is_folder(host) and _is_folder(container)):
            raise InvalidValue(f"expected /HOST[:/PATH], got {text!r}")
        return cls(host=host, container=container)

    def __str__(self) -> str:
        return f"{self.host}:{self.container}"


def _is_folder(path: str) -> bool:
    return path.startswith("/") and bool(path.strip("/")) and ":" not in path


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A local file for every container: `--config-file PATH[:/PATH/IN/CONTAINER]`.

    The path is stored as typed; the caller expands it and reads the file.
    """

    source: str
    target: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PATH[:/PATH/IN/CONTAINER]`; the path in the containers may not be relative."""
        source, colon, target = text.partition(":")
        if not source or ":" in target or (colon and not target.startswith("/")):
            raise InvalidValue(f"expected FILE[:/PATH], got {text!r}")
        return cls(source=source, target=target if colon else None)

    def __str__(self) -> str:
        return self.source if self.target is None else f"{self.source}:{self.target}"


_TOLERATION = re.compile(
    r"(?P<key>[^=:,\s]+)(=(?P<value>[^=:,]*))?"
    r"(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)?(,(?P<operator>Equal|Exists))?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that the pods tolerate; an empty key with `Exists` tolerates all.

    `--toleration all`, or `--toleration KEY=VALUE:EFFECT,OPERATOR`, of which KEY is enough: arena's
    guide shows that form (docs/training/mpijob/toleration.md), though its code drops it (v0.15.5).
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read arena's form; InvalidValue shows the form for any other text."""
        if text == "all":
            return cls(operator="Exists")
        match = _TOLERATION.fullmatch(text)
        parts = match.groupdict(default="") if match else {}
        if match and not parts["operator"]:
            parts["operator"] = "Exists" if match["value"] is None else "Equal"
        if not parts or (parts["operator"] == "Exists" and parts["value"]):
            raise InvalidValue(
                f"expected 'all' or KEY=VALUE:EFFECT,OPERATOR, got {text!r}: the effect is"
                " NoSchedule, PreferNoSchedule, NoExecute or empty, the operator Equal, or Exists"
                " without a value"
            )
        return cls(**parts)

    def __str__(self) -> str:
        if not self.key:
            return "all"
        return f"{self.key}={self.value}:{self.effect},{self.operator}"

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether it tolerates a taint, by the rules of the Kubernetes scheduler."""
        if self.effect and self.effect != effect:
            return False
        if self.key and self.key != key:
            return False
        return self.operator == "Exists" or self.value == value


class Duration(int):
    """A time span in whole seconds, read and shown as Go writes it: `90s`, `10m`, `1h30m`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a span, rounded up to a second; InvalidValue shows the form."""
        try:
            seconds = parse_span(text)
        except ValueError as error:
            raise InvalidValue(str(error)) from None
        return cls(math.ceil(seconds))

    def __str__(self) -> str:
        hours, rest = divmod(int(self), 3600)
        minutes, seconds = divmod(rest, 60)
        parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
        return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


_SIZE = re.compile(r"(?P<amount>.*[0-9kMGTi])B")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """A number of bytes as written: `553MB`, `0.55GB`, `512MiB`."""

    text: str

    def __post_init__(self) -> None:
        match = _SIZE.fullmatch(self.text)
        try:
            amount = quantity(match["amount"])[2] if match else Decimal(0)
        except ValueError:
            amount = Decimal(0)
        if amount < 1:
            raise InvalidValue(f"expected a size such as 553MB or 1.4GB, got {shown(self.text)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a size; InvalidValue for none, or for no bytes."""
        return cls(text=text)

    @property
    def bytes(self) -> int:
        """The number of bytes."""
        return int(quantity(self.text.removesuffix("B"))[2])

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The time of a training step as written: `180ms`, `1.2s`."""

    text: str

    def __post_init__(self) -> None:
        try:
            seconds = parse_span(self.text)
        except ValueError:
            seconds = Decimal(0)
        if seconds <= 0:
            raise InvalidValue(f"expected a time such as 180ms or 1.2s, got {shown(self.text)}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a time; InvalidValue for none."""
        return cls(text=text)

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return float(parse_span(self.text))

    def __str__(self) -> str:
        return self.text


_training = partial(Flag, panel="Training")

WorkloadFlag = Annotated[
    str,
    _training(
        "Training whose steps are compared on several placements: vgg16, resnet50, bert-base, ...",
        "NAME",
        choices=("vgg16", "resnet50", "bert-base", "gpt2", "llama-8b"),
    ),
]
BatchFlag = Annotated[
    int | None,
    _training(
        "Batch of each GPU with --workload; else the largest measured one.",
        at_least=1,
        needs=("--workload",),
        excludes=("--step-time",),
    ),
]
GradientBytesFlag = Annotated[
    DataSize | None,
    _training(
        "Bytes of gradients that each step of a training of your own reduces.",
        "SIZE",
        needs=("--step-time",),
        excludes=("--workload",),
    ),
]
StepTimeFlag = Annotated[
    StepTime | None, _training("Step of your training, measured on one GPU: 180ms.", "DURATION")
]


def check_step(step: StepTime | None, workload: str, size: DataSize | None) -> None:
    """Raise InvalidJob for the step of a training of which nothing else is known."""
    if step is not None and not workload and size is None:
        raise InvalidJob(
            "--step-time needs --workload or --gradient-bytes",
            hint="add --workload NAME or --gradient-bytes SIZE",
            flag="--step-time",
        )


# Values of fields that a program passes


_FORMS: Mapping[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Quantity: A_QUANTITY,
    Duration: "a time such as 90s, 10m or 1h30m",
    DataSize: "a size such as 553MB or 1.4GB",
    StepTime: "a time such as 180ms or 1.2s",
    KeyValue: "KEY=VALUE",
    EnvVar: "KEY=VALUE",
}


def _taken(field: str, value: Any) -> Any:
    """The value of a field from a program's argument; ValueError names the accepted form.

    A field accepts its own type, and the text of the command line. A repeatable field accepts a
    single value; a field of `KEY=VALUE` accepts a mapping. Numbers are accepted for quantities, and
    for seconds.
    """
    kind, several, optional = kinds_of(MPIJob)[field]
    if value is None and optional:
        return None
    if not several:
        return _single_value(kind, value)
    if isinstance(value, Mapping) and issubclass(kind, (KeyValue, Device)):
        if all(type(key) is str and type(item) in {str, int} for key, item in value.items()):
            return tuple(_single_value(kind, f"{key}={item}") for key, item in value.items())
    elif isinstance(value, Iterable) and not isinstance(value, (str, kind, Mapping)):
        return tuple(_single_value(kind, item) for item in value)
    return (_single_value(kind, value),)


def _single_value(kind: Any, value: Any) -> Any:
    number = type(value) in {int, float} and math.isfinite(value)
    if type(value) is kind and (number or kind is not float):
        return value
    if number and kind in {float, Duration}:
        return kind(math.ceil(value)) if kind is Duration else kind(value)
    if issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(value)
    elif kind not in {bool, int, float, str} and (
        isinstance(value, str) or (number and kind is Quantity)
    ):
        return kind.parse(str(value))
    raise InvalidValue(f"expected {_form(kind)}, got {value!r}")


def _form(kind: Any) -> str:
    if issubclass(kind, StrEnum):
        *some, last = (member.value for member in kind if member.value)
        return f"{', '.join(some)} or {last}"
    return _FORMS.get(kind) or kind.__name__


# The job


NAME_LIMIT = 49
"""Characters a job name may have, so that the names of its pods stay legal (arena's limit)."""

SKETCH = {"name": "job", "image": "local", "command": "true"}
"""Placeholders for the required fields of a job that is only planned."""

WORKING_DIR = "/root"
"""The default working directory of containers (arena's default)."""

_MOST = (1 << 31) - 1
"""The largest whole number in an MPIJob (its schema says int32)."""

_SHARE_MEMORY = Quantity(text="2Gi")
_GANG_TIMEOUT = Duration(600)
_PATIENCE = Duration(24 * 3600)
_UNLIMITED = Duration(0)

_resource = partial(flag, panel="Resources")
_placement = partial(flag, panel="Placement")
_chosen = partial(_placement, needs=("--gputopology",))
_pod = partial(flag, panel="Pods")
_data = partial(flag, panel="Data and code")
_life = partial(flag, panel="Lifecycle")


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIJob:
    """The request for an MPI training job; an invalid one raises InvalidJob at construction.

    Every field but `command` is a flag of `submit mpi`, in the order of the help. A field also
    accepts the text of the command line, a single value for a repeatable one, a mapping for
    KEY=VALUE, and numbers for quantities and seconds; it is stored in the field's own type.
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
        "Level that all workers must share: node, nvlink, leaf, spine, zone, region, a name from"
        " --fabric, or beyond (any nodes).",
        "LEVEL",
        completes="levels",
    )
    topology_preferred: str = _chosen(
        "",
        "Level that all workers share wherever possible, even with less bandwidth; words as of"
        " --topology-required.",
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
        " share IPC and GPUs (shared). auto: fused where that gives more bandwidth and the command"
        " does not say where ranks run, else separate.",
    )
    gang_timeout: Duration = _placement(
        _GANG_TIMEOUT,
        "Roll back the whole gang if it makes no progress for this long.",
        "DURATION",
        at_least=1,
    )
    patience: Duration = _placement(
        _PATIENCE,
        "Wait at most this long while less than a third of the best bandwidth is offered; 0 starts"
        " wherever it fits.",
        "DURATION",
        at_least=0,
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

    workload: WorkloadFlag = ""
    batch: BatchFlag = None
    gradient_bytes: GradientBytesFlag = None
    step_time: StepTimeFlag = None

    env: tuple[EnvVar, ...] = _pod(
        (), "Environment variable; repeat for more.", "KEY=VALUE", short="-e"
    )
    nccl_debug: bool = _pod(
        False, "Set NCCL_DEBUG=INFO, so that logs --nccl can show rings and transports."
    )
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
        MPIImplementation.OPENMPI, "MPI in the image: OpenMPI, Intel, MPICH."
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
            value, flag = getattr(self, field.name), flags_of(MPIJob).get(field.name)
            name = spelling(field.name, flag) if flag is not None else field.name
            # Most fields have their default.
            if value is not field.default:
                try:
                    value = _taken(field.name, value)
                except (ValueError, ArithmeticError) as error:
                    raise _invalid(name, str(error)) from None
                if field.name in BY_KEY:
                    # Of a key that is given twice the last value counts.
                    value = tuple({pair.key: pair for pair in value}.values())
                object.__setattr__(self, field.name, value)
            if flag is not None:
                flags[name] = flag
                if value != field.default:
                    given[name] = value
                if isinstance(value, int) and value > _MOST:
                    raise _invalid(name, f"{value} is more than {_MOST}")
        parts = {"--name": self.name, "--image": self.image, "the command": self.command.strip()}
        if missing := [part for part, text in parts.items() if not text]:
            raise InvalidJob(
                f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing",
                hint="arena-topo submit mpi --name NAME --image IMAGE 'mpirun python train.py'",
                flag=missing[0] if missing[0].startswith("--") else "",
            )
        check_flags(flags, given, known=flags, wrong=InvalidJob)
        check_step(self.step_time, self.workload, self.gradient_bytes)
        if self.pack_above is not None and self.pack_above > 1:
            why = f"{self.pack_above:g} is more than all GPUs"
            raise _invalid("--pack-above", why, "a share: 0.5 is half of them")
        _check_texts(self)

    @classmethod
    def sketch(cls, **fields: Any) -> Self:
        """A job that is only planned: it needs no name, image or command.

        It is placed by topology if another field asks for that and `gputopology` is not given.
        """
        placed = {"gputopology": True} if implying_placement(fields) else {}
        return cls(**SKETCH | fields | placed)

    def without_choices(self) -> Self:
        """The job without the choices that make sense with --gputopology alone."""
        left_out, defaults = {"--gputopology"}, dict[str, Any]()
        # Fields stand below those that they need.
        for name, of in flags_of(MPIJob).items():
            if left_out.intersection(need.partition(" ")[0] for need in of.needs):
                left_out.add(spelling(name, of))
                defaults[name] = MPIJob.__dataclass_fields__[name].default
        return replace(self, **defaults)

    @property
    def on_host_network(self) -> bool:
        """Whether the job uses the network of its nodes, without a network interface of its own."""
        eni = {pair.key: pair.value for pair in self.annotation}.get("k8s.aliyun.com/eni") == "true"
        return self.host_network and not eni

    @property
    def total_gpus(self) -> int:
        """GPUs of all workers together."""
        return self.workers * self.gpus


def implying_placement(values: Mapping[str, Any]) -> str:
    """The first flag among these values of fields that makes sense with --gputopology alone.

    Empty without such a flag, and where --gputopology itself is given, also as false.
    """
    if "gputopology" in values:
        return ""
    flags = flags_of(MPIJob)
    implying = (
        spelling(name, flags[name])
        for name, value in values.items()
        if name in flags
        and "--gputopology" in flags[name].needs
        and value is not None
        and value != MPIJob.__dataclass_fields__[name].default
        # A choice that is left open needs nothing.
        and str(value) != "auto"
    )
    return next(implying, "")


# Texts that every cluster refuses. Arena accepts them, and the API server or the kubelet refuses
# the pods long after the submission. The rules are in `names`.

_WORD = "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
_VALUE = ("{} is no value of a label", _WORD)
_KEY = (
    "{} is no key",
    f"{_WORD}, after a DNS name and '/' if need be: team or example.com/team",
)
_VARIABLE = (
    "{} is no name of a variable",
    "letters, digits, '_', '-' and '.', no digit and no '..' first, and not '.' alone",
)
_NAME = (
    "nothing can be called {}",
    "at most 253 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
)
_LABEL = "at most {} lower case letters, digits and '-', with a letter or digit at both ends"
_IMAGE = ("{} is no image", "the name of an image, such as team/train:1")
_SHELL = ("{} is no shell", "a program such as sh or bash")
"""For each kind of text: the error and the accepted form."""


def check_namespace(text: str) -> None:
    """Raise InvalidJob for an invalid namespace: it must be a DNS label (RFC 1123)."""
    words = ("no namespace can be called {}", _LABEL.format(63))
    _check("--namespace", [text], is_dns_label, words)


def _check_texts(job: MPIJob) -> None:
    """Raise InvalidJob for the first text that every cluster refuses, with its flag."""
    if len(job.name) > NAME_LIMIT:
        raise _invalid("--name", f"it has {len(job.name)} characters, and may have {NAME_LIMIT}")
    words = ("no job can be called {}", _LABEL.format(NAME_LIMIT))
    _check("--name", [job.name], is_dns_label, words)
    for where, pairs in (("--label", job.label), ("--selector", job.selector)):
        _check(where, [pair.key for pair in pairs], is_key, _KEY)
        _check(where, [pair.value for pair in pairs], is_label_value, _VALUE)
    _check(
        "--toleration",
        [toleration.key for toleration in job.toleration if toleration.key],
        is_key,
        _KEY,
    )
    _check(
        "--toleration", [toleration.value for toleration in job.toleration], is_label_value, _VALUE
    )
    # Only in keys of annotations the DNS name before the slash may have upper case.
    _check(
        "--annotation", [annotation.key for annotation in job.annotation], _is_any_case_key, _KEY
    )
    _check("--model-name", [job.model_name], is_label_value, _VALUE)
    _check("--env", [variable.key for variable in job.env], is_variable, _VARIABLE)
    _check("--image-pull-secret", filter(None, job.image_pull_secret), is_subdomain, _NAME)
    _check("--service-account", filter(None, [job.service_account]), is_subdomain, _NAME)
    _check("--priority", filter(None, [job.priority]), is_subdomain, _NAME)
    _check("--data", [volume.name for volume in job.data], is_subdomain, _NAME)
    _check("--image", [job.image], _is_one_word, _IMAGE)
    _check("--sync-image", filter(None, [job.sync_image]), _is_one_word, _IMAGE)
    _check("--tensorboard-image", filter(None, [job.tensorboard_image]), _is_one_word, _IMAGE)
    _check("--shell", [job.shell], _is_one_word, _SHELL)


def _check(
    flag: str, texts: Iterable[str], is_legal: Callable[[str], bool], words: tuple[str, str]
) -> None:
    for text in texts:
        if not is_legal(text):
            raise _invalid(flag, words[0].format(shown(text)), words[1])


def _is_any_case_key(text: str) -> bool:
    return is_key(text.lower())


def _is_one_word(text: str) -> bool:
    return re.fullmatch(r"\S+", text) is not None


def _invalid(flag: str, why: str, form: str = "") -> InvalidJob:
    hint = f"it takes {form}" if form else None
    return InvalidJob(f"{flag} is invalid", why=why, hint=hint, flag=flag)
