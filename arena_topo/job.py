"""MPIJob and its small value types: everything a person can ask for, one declaration per flag.

The fields carry arena's names, defaults and error texts (arena v0.15.5, `pkg/argsbuilder`). What
arena drops in silence, such as an environment variable without `=`, is an error here that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Self

from arena_topo.errors import InvalidJob
from arena_topo.flag import Flag, flags_of, spelling


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A `KEY=VALUE` pair, split at the first `=`; the value may be empty, the key may not."""

    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `KEY=VALUE`; ValueError names what is missing."""
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise ValueError(f"expected KEY=VALUE, got {text!r}")
        return cls(key=key, value=value)

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class EnvVar(KeyValue):
    """An environment variable of every container."""

    __slots__ = ()


_QUANTITY = re.compile(
    r"\+?(?P<number>\d+\.?\d*|\.\d+)(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?"
)
_SCALE = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A Kubernetes quantity such as `500m` or `2Gi`, kept as written, with its exact amount."""

    text: str

    def __post_init__(self) -> None:
        if _QUANTITY.fullmatch(self.text) is None:
            raise ValueError(f"{self.text!r} is not a quantity such as 500m, 2 or 4Gi")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a quantity; ValueError if it is none."""
        return cls(text=text)

    @property
    def amount(self) -> Decimal:
        """The exact number meant, in cores or bytes."""
        found = _QUANTITY.fullmatch(self.text)
        if found is None:
            raise ValueError(f"{self.text!r} is not a quantity")
        number, suffix = Decimal(found["number"]), found["suffix"] or ""
        try:
            return number * (_SCALE[suffix] if suffix in _SCALE else Decimal("1" + suffix))
        except InvalidOperation as error:
            raise ValueError(f"{self.text!r} is out of range") from error

    def __str__(self) -> str:
        return self.text


_QUALIFIED = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An extended resource for every worker, such as `amd.com/gpu=1`."""

    name: str
    quantity: Quantity

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME=QUANTITY` with arena's texts for what is wrong."""
        name, equals, quantity = text.partition("=")
        if not (name and equals and quantity):
            raise ValueError(f"invalid device '{text}', refer to amd.com/gpu=1")
        if _QUALIFIED.fullmatch(name) is None:
            raise ValueError(f"device name '{name}' is not a qualified name")
        if name == "nvidia.com/gpu":
            raise ValueError(
                f"please use '--gpus {quantity}' instead of '--device nvidia.com/gpu={quantity}'"
            )
        try:
            return cls(name=name, quantity=Quantity.parse(quantity))
        except ValueError as error:
            raise ValueError(
                f"device value '{quantity}' is not a valid quantity, refer to amd.com/gpu=1"
            ) from error

    def __str__(self) -> str:
        return f"{self.name}={self.quantity}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A persistent volume claim and where it is mounted: `--data NAME:/PATH`."""

    name: str
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `NAME:/PATH` with arena's texts for what is wrong."""
        if text.count(":") != 1:
            raise ValueError(f"dataset {text} has incorrect format, should like data_name:/data0")
        name, _, path = text.partition(":")
        if len(name) == 1:
            raise ValueError(
                "volume name is too short, names should be at least two alphanumeric characters"
            )
        if re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", name) is None:
            raise ValueError(
                f"{name!r} includes invalid characters for a volume name, only"
                " '[a-zA-Z0-9][a-zA-Z0-9_.-]' are allowed"
            )
        if not path.startswith("/"):
            raise ValueError(f"invalid dataDir: '{path}' must be absolute")
        if not path.strip("/"):
            raise ValueError("invalid specification: dataDir can't be '/'")
        return cls(name=name, path=path)

    def __str__(self) -> str:
        return f"{self.name}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A folder of the node and where it is mounted: `--data-dir /HOST[:/CONTAINER]`."""

    host: str
    container: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `/HOST[:/CONTAINER]`; neither side may be relative or the root."""
        host, colon, container = text.partition(":")
        container = container if colon else host
        for path in (host, container):
            if not path.startswith("/") or not path.strip("/") or ":" in path:
                raise ValueError(f"invalid DataDir: '{text}'")
        return cls(host=host, container=container)

    def __str__(self) -> str:
        return f"{self.host}:{self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A local file that every container gets: `--config-file PATH[:/PATH/IN/CONTAINER]`.

    The path is kept as typed; the edge of the program expands it and reads the file.
    """

    source: str
    target: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PATH[:/PATH/IN/CONTAINER]` with arena's texts for what is wrong."""
        source, colon, target = text.partition(":")
        if not source or ":" in target:
            raise ValueError(
                "invalid format for assigning config file,it should be "
                "'--config-file <host_path_file>:<container_path_file>'"
            )
        if colon and not target.startswith("/"):
            raise ValueError("the path of file in container must be absolute path")
        return cls(source=source, target=target if colon else None)

    def __str__(self) -> str:
        return self.source if self.target is None else f"{self.source}:{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """What taint the pods bear; empty key with `Exists` bears all.

    `--toleration all`, or `--toleration KEY=VALUE:EFFECT,OPERATOR`.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read arena's form; anything else is a ValueError that shows the form."""
        if text == "all":
            return cls(operator="Exists")
        found = re.fullmatch(
            r"(?P<key>[^=:,]+)(=(?P<value>[^=:,]*))?:(?P<effect>[^,:]*)(,(?P<operator>\w+))?", text
        )
        form = f"expected 'all' or KEY=VALUE:EFFECT,OPERATOR, got {text!r}"
        if found is None:
            raise ValueError(form)
        operator = found["operator"] or ("Exists" if found["value"] is None else "Equal")
        if operator not in {"Equal", "Exists"}:
            raise ValueError(f"{form}: the operator is Equal or Exists")
        if found["effect"] not in {"", "NoSchedule", "PreferNoSchedule", "NoExecute"}:
            raise ValueError(
                f"{form}: the effect is NoSchedule, PreferNoSchedule, NoExecute or empty"
            )
        if operator == "Exists" and found["value"]:
            raise ValueError(f"{form}: the operator Exists takes no value")
        return cls(
            key=found["key"], operator=operator, value=found["value"] or "", effect=found["effect"]
        )

    def __str__(self) -> str:
        if not self.key:
            return "all"
        return f"{self.key}={self.value}:{self.effect},{self.operator}"

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Whether a taint is borne, by the rules of the Kubernetes scheduler."""
        if self.effect and self.effect != effect:
            return False
        if self.key and self.key != key:
            return False
        return self.operator == "Exists" or self.value == value


class CleanPodPolicy(StrEnum):
    """Which pods are deleted when the job ends."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class PlacementPolicy(StrEnum):
    """Which of the equally fast placements a job gets."""

    PACK = "pack"
    SPREAD = "spread"
    ADAPTIVE = "adaptive"


class SyncMode(StrEnum):
    """How the code gets into the containers before they start."""

    NONE = ""
    GIT = "git"
    RSYNC = "rsync"


NAME_LIMIT = 49
"""Characters a job name may have, so that the names of its pods stay legal (arena's limit)."""

WORKING_DIR = "/root"
"""Where containers start unless told otherwise (arena's default)."""

_RESOURCES = "Resources"
_PLACEMENT = "Placement"
_DATA = "Data and code"
_POD = "Pods"
_LIFE = "Lifecycle"


@dataclass(frozen=True, slots=True, kw_only=True)
class MPIJob:
    """An MPI training job as a person asks for it; invalid ones cannot be made (InvalidJob).

    Every field but `command` is a flag of `submit mpi`, in the order of the help.
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
    share_memory: Annotated[
        Quantity,
        Flag(help="Size of /dev/shm in each container.", panel=_RESOURCES, metavar="QUANTITY"),
    ] = Quantity(text="2Gi")
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
            help="Refuse placements with less bus bandwidth than this.",
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
            needs="gputopology",
        ),
    ] = ""
    topology_preferred: Annotated[
        str,
        Flag(
            help="Level that all workers share wherever possible, even with less bandwidth.",
            panel=_PLACEMENT,
            metavar="LEVEL",
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
        str, Flag(help="Priority class of the pods.", panel=_PLACEMENT, short="-p", metavar="CLASS")
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
        str, Flag(help="When to pull the image.", panel=_POD, metavar="POLICY")
    ] = "Always"
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
        ),
    ] = ()
    data_dir: Annotated[
        tuple[HostPath, ...],
        Flag(
            help="Folder of the node to mount; repeat for more.",
            panel=_DATA,
            deprecated=("--dataDir",),
            metavar="/HOST[:/PATH]",
        ),
    ] = ()
    config_file: Annotated[
        tuple[ConfigFile, ...],
        Flag(
            help="Local file to put into the containers; repeat for more.",
            panel=_DATA,
            metavar="FILE[:/PATH]",
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

    retry: Annotated[
        int, Flag(help="How often a failed launcher starts again.", panel=_LIFE, at_least=0)
    ] = 0
    clean_task_policy: Annotated[
        CleanPodPolicy,
        Flag(help="Which pods are deleted at the end: None, Running, All.", panel=_LIFE),
    ] = CleanPodPolicy.ALL

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise InvalidJob(
                "not found command args",
                hint='put the command last, in quotes: "mpirun -np 4 python train.py"',
            )
        _check_name(self.name)
        if not self.image:
            raise InvalidJob("--image must be set ")
        for field, flag in flags_of(MPIJob).items():
            self._check(field, flag)
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

    def _check(self, field: str, flag: Flag) -> None:
        value, name = getattr(self, field), spelling(field, flag)
        if flag.at_least is not None and value is not None and value < flag.at_least:
            raise InvalidJob(f"{name} is invalid", why=f"{value:g} is less than {flag.at_least}")
        if flag.needs and value and not getattr(self, flag.needs):
            needed = spelling(flag.needs, flags_of(MPIJob)[flag.needs])
            raise InvalidJob(f"{name} needs {needed}", hint=f"add {needed}")

    @property
    def total_gpus(self) -> int:
        """GPUs of all workers together."""
        return self.workers * self.gpus


def _check_name(name: str) -> None:
    if not name:
        raise InvalidJob('required flag(s) "name" not set', hint="add --name NAME")
    if len(name) > NAME_LIMIT:
        raise InvalidJob(
            f"the len {len(name)} of name {name} is too long, it should be less than {NAME_LIMIT}"
        )
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) is None:
        raise InvalidJob(
            "the job name must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character",
            why=f"{name!r} does not",
        )
