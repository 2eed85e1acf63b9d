"""A job -> its Plan: the objects, through the templates, and with a placement their pins."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, NamedTuple

from arena_topo.errors import InvalidJob
from arena_topo.flag import flags_of, spelling
from arena_topo.job import (
    ConfigFile,
    Duration,
    MPIImplementation,
    MPIJob,
    PodShape,
    SyncMode,
    check_namespace,
)
from arena_topo.manifests import (
    ASKED_SHAPE,
    GPU_GROUP,
    GPU_VISIBLE,
    HCA_VARIABLE,
    Binding,
    Manifest,
    Mechanisms,
    PlacementForecast,
    Plan,
    digest,
)
from arena_topo.manifests.annotations import annotated
from arena_topo.manifests.binding import bind, offered, taint_effects
from arena_topo.manifests.cause import in_words
from arena_topo.manifests.claims import claims_of
from arena_topo.manifests.forecast import forecast_of
from arena_topo.manifests.hcas import HCAs, chosen_hcas, named_by_job
from arena_topo.manifests.pins import avoiding_reserved, with_pins
from arena_topo.manifests.serialize import manifests_yaml
from arena_topo.manifests.templates import render_template, template_objects
from arena_topo.manifests.versions import ApiVersion, versions_with
from arena_topo.solver import Placement, Request
from arena_topo.topology import Cluster
from arena_topo.topology.nics import RDMA_DEVICE
from arena_topo.topology.published import SCHEDULE_LABEL

CHART = "0.28.0"
"""The version of arena's chart that these objects look like; arena reads it back."""

LAUNCHER_WAIT = 7 * 24 * 3600
"""Seconds for which a launcher waits for workers that queue for GPUs like any pod. For workers with
a placement the limit is --gang-timeout."""


def build_plan(
    job: MPIJob,
    *,
    namespace: str,
    api: ApiVersion,
    owner: str,
    files: Mapping[ConfigFile, str],
    request: Request | None = None,
    placement: Placement | None = None,
    cluster: Cluster | None = None,
    waiting: str | None = None,
    binding: Binding | None = None,
    mechanisms: Mechanisms | None = None,
    avoids_reserved: bool = False,
) -> Plan:
    """Build every object of a job; with a placement, pinned by the strongest mechanism.

    `owner` is the user's name; `files` holds the text of each `--config-file`. A job that must
    wait is built suspended and unpinned. `binding` is for an engine that binds by itself; without
    it, `bind` chooses by the `mechanisms` of the cluster. `avoids_reserved`: a GPU job avoids the
    nodes that ACK's label reserves for topology jobs. InvalidJob if this version cannot express the
    job, or the namespace has no valid name.
    """
    check_namespace(namespace)
    check_expressible(job, api)
    pinned = None if waiting is not None else placement
    bound = None if pinned is None else binding or bind(job, pinned, cluster, api, mechanisms)
    first, *others = render(
        job,
        namespace=namespace,
        api=api,
        owner=owner,
        files=files,
        resource=offered(job, pinned, cluster, api),
        suspend=job.queue or waiting is not None,
        topology=job.gputopology or pinned is not None,
    )
    forecast, hcas = None, HCAs()
    if waiting is not None:
        emulated = cluster is not None and cluster.emulated
        forecast = PlacementForecast(state="waiting", cause=in_words(waiting), emulated=emulated)
    elif pinned is not None and bound is not None:
        forecast = forecast_of(pinned, cluster, bound)
        hcas = chosen_hcas(job, pinned, cluster, bound)
        effects = taint_effects(pinned, cluster)
        first = with_pins(first, pinned, bound, effects=effects, hcas=hcas.names)
        others += claims_of(first, pinned, bound, cluster)
    elif avoids_reserved and not any(label.key == SCHEDULE_LABEL for label in job.selector):
        first = avoiding_reserved(first)
    if forecast is not None:
        first = annotated(first, forecast)
    return Plan(
        job=job,
        namespace=namespace,
        api=api,
        objects=(first, *others),
        request=request,
        placement=placement,
        binding=bound,
        forecast=forecast,
        waiting=waiting,
        hcas=hcas.names,
        notes=(
            *version_remarks(job, api),
            *([f"--nccl-hca: {HCA_VARIABLE} is not set: {hcas.why}"] if hcas.why else []),
            *(cluster.notes if cluster is not None else ()),
        ),
    )


def check_expressible(job: MPIJob, api: ApiVersion) -> None:
    """Refuse, with InvalidJob, what one version of MPIJob or Kubernetes itself cannot express."""
    last = f"{job.name}-worker-{job.workers - 1}"
    if len(last) > 63:  # noqa: PLR2004 - a DNS label (RFC 1035)
        raise InvalidJob(
            f"the name {job.name} is too long for {job.workers} workers",
            why=f"{last} has {len(last)} characters, and the name of a pod may have 63",
            hint=f"use a name of at most {63 - len(last) + len(job.name)} characters",
        )
    if not job.name[0].isalpha() and (api.traits.sshd or job.tensorboard):
        namer = f"MPIJob {api}" if api.traits.sshd else "--tensorboard"
        raise InvalidJob(
            f"the name {job.name} must begin with a letter",
            why=f"{namer} names a Service after it",
            hint=f"use a name such as job-{job.name}",
        )
    for name, value in _flags(job).items():
        texts = value if isinstance(value, list) else [value]
        if any(re.search(r"[\ud800-\udfff\0]", str(text)) for text in texts):
            raise _wrong(name, "it holds bytes that are not UTF-8, or a NUL, and a manifest cannot")
    path = job.ssh_auth_mount_path
    if path and not path.startswith("/"):
        raise _wrong("ssh-auth-mount-path", f"{path!r} is no absolute path")
    for flag, is_asked, trait in (
        (
            f"--mpi-implementation {job.mpi_implementation}",
            job.mpi_implementation is not MPIImplementation.OPENMPI,
            "sshd",
        ),
        ("--ssh-auth-mount-path", path, "sshd"),
        ("--pod-shape shared", job.pod_shape is PodShape.SHARED, "sshd"),
        ("--running-timeout", job.running_timeout, "deadline"),
        ("--ttl-after-finished", job.ttl_after_finished is not None, "ttl"),
    ):
        serves = attrgetter(trait)
        if is_asked and not serves(api.traits):
            raise InvalidJob(
                f"{flag} needs MPIJob {' or '.join(reversed(versions_with(serves)))}",
                why=f"MPIJob {api} has no field for it, or its operator no way to do it",
                hint="leave it out, or install an operator that serves another version",
                flag=flag,
            )
    _check_ours(job)


def _wrong(flag: str, why: str) -> InvalidJob:
    return InvalidJob(f"--{flag} is invalid", why=why, flag=f"--{flag}")


_OWNER = frozenset({"arena.kubeflow.org/uid", "arena.kubeflow.org/username"})
"""The keys that name the owner of a job, which only the submitter knows."""


def _check_ours(job: MPIJob) -> None:
    """Refuse labels and annotations that only we write: they would be dropped, or be forged."""
    labels = _labels(job, "") | _worker_labels(job, topology=job.gputopology)
    for flag, pairs, ours, why in (
        ("--label", job.label, labels, "the pods of the job are found by it"),
        ("--annotation", job.annotation, _annotations(job, ""), "arena-topo shows the job by it"),
        ("--selector", job.selector, {}, ""),
    ):
        for pair in pairs:
            if pair.key == ASKED_SHAPE and flag == "--annotation":
                # For information only: a job is placed by its request.
                continue
            message = f"{flag}: {pair.key} is written by arena-topo alone"
            if pair.key.startswith("arena-topo.io/") or pair.key in {GPU_GROUP, GPU_VISIBLE}:
                raise InvalidJob(message, why="its value decides where jobs run")
            if pair.key in _OWNER & ours.keys() or pair.value != ours.get(pair.key, pair.value):
                raise InvalidJob(message, why=why, hint="leave it out, or use a name of your own")


def version_remarks(job: MPIJob, api: ApiVersion) -> tuple[str, ...]:
    """Notes about flags that one version of MPIJob treats differently."""
    if not (job.on_host_network and api.traits.sshd):
        return ()
    return (
        "--hostNetwork: no two pods of workers share a node, as sshd has its port there; where"
        " the node itself or another job listens there, it fails"
        if job.gputopology
        else "--hostNetwork: of workers that meet on a node all but one fail, as each sshd has"
        " the same port there; --gputopology gives each a node of its own",
    )


# The objects


def render(
    job: MPIJob,
    *,
    namespace: str,
    api: ApiVersion,
    owner: str,
    files: Mapping[ConfigFile, str],
    resource: str,
    suspend: bool = False,
    topology: bool = False,
) -> tuple[Manifest, ...]:
    """Render the templates: the MPIJob first, then the objects that it will own, without pins.

    `resource` is the GPU resource of the workers; `suspend` and `topology` say how the job starts.
    """
    context = _context(job, namespace, api, owner, topology=topology)
    context |= {
        "resources": _resources(job, resource),
        "suspend": suspend,
        "topology": topology,
        "patience": int(job.gang_timeout) if topology else LAUNCHER_WAIT,
        "host_network": context["host_network"] or (topology and api.traits.arenas),
        "chart": CHART,
        "values": manifests_yaml([_flags(job)]),
        "folders": _folders(job, files),
    }
    names = [f"mpijob/{api.traits.template}", "mpijob/configmaps.yaml.j2"]
    if job.tensorboard:
        names.append("mpijob/tensorboard.yaml.j2")
    return tuple(
        manifest for name in names for manifest in template_objects(render_template(name, context))
    )


def _context(
    job: MPIJob, namespace: str, api: ApiVersion, owner: str, *, topology: bool
) -> dict[str, Any]:
    """The context of the templates that is the same with and without a placement."""
    ours, workers = _labels(job, owner), _worker_labels(job, topology=topology)
    labels = ours | {pair.key: pair.value for pair in job.label if pair.key not in ours | workers}
    notes = _annotations(job, owner)
    synced = _environment(job)
    environment = (_SPEAKING if job.nccl_debug else {}) | synced
    shared = job.pod_shape is PodShape.SHARED
    volumes = _mounted(job, namespace)
    if shared:
        volumes = [mount for mount in volumes if mount.flag != "--share-memory"]
    stored = (mount for mount in volumes if _STORAGE & mount.source.keys())
    logs = [mount for mount in stored if _inside(job.logdir, mount)]
    roles = {
        "worker": volumes,
        "launcher": [mount for mount in volumes if mount.launcher],
    }
    compute = _compute(job)
    return {
        "job": job,
        "namespace": namespace,
        "slots": max(1, job.gpus),
        "api": str(api),
        "sshd": api.traits.sshd,
        "shared": shared,
        "names_hcas": job.nccl_hca and not named_by_job(job),
        "labels": labels,
        "worker_labels": labels | workers,
        "annotations": {pair.key: pair.value for pair in job.annotation} | notes,
        "selector": {pair.key: pair.value for pair in job.selector},
        "tolerations": [
            {key: value for key, value in asdict(own).items() if value} for own in job.toleration
        ],
        "host_network": job.on_host_network,
        # Init containers request no more than their pod, so that they add nothing to it.
        "compute": compute,
        "launcher_resources": {"requests": compute["launcher"], "limits": compute["launcher"]}
        if job.launcher_cpu or job.launcher_memory
        else {},
        "env": {
            "worker": _joined(job, namespace, environment) if shared else _variables(environment),
            "launcher": _variables(_launching(job, api) | environment),
        },
        "sync_env": _variables(synced | _sync(job)),
        "volumes": {role: [mount.volume for mount in mounts] for role, mounts in roles.items()},
        "mounts": {role: [mount.mount for mount in mounts] for role, mounts in roles.items()},
        "tensorboard_labels": labels | {"role": "tensorboard"},
        "tensorboard_volumes": [mount.volume for mount in logs],
        "tensorboard_mounts": [mount.mount for mount in logs],
        "logs_on_node": any("hostPath" in mount.source for mount in logs),
        "first_worker": {
            key: value.format(job=job.name) for key, value in api.traits.first_worker.items()
        },
    }


def _labels(job: MPIJob, owner: str) -> dict[str, str]:
    """The labels of ours that all objects of a job have."""
    labels = {
        "app": "mpijob",
        "chart": f"mpijob-{CHART}",
        "release": job.name,
        "heritage": "Helm",
        "createdBy": "MPIJob",
        "arena.kubeflow.org/uid": digest(owner),
    }
    return labels | ({"modelName": job.model_name} if job.model_name else {})


def _annotations(job: MPIJob, owner: str) -> dict[str, str]:
    """The annotations of ours that job and pods have."""
    notes = {
        "arena.kubeflow.org/username": owner,
        "requestGPUsOfJobOwner": str(job.total_gpus),
    }
    if job.queue:
        notes["scheduling.x-k8s.io/suspend"] = "true"
    return notes | ({"modelSource": job.model_source} if job.model_source else {})


def _worker_labels(job: MPIJob, *, topology: bool) -> dict[str, str]:
    """The additional labels of ours on workers."""
    labels = {}
    if job.gang:
        labels["pod-group.scheduling.sigs.k8s.io/name"] = f"mpijob-{job.name}"
        labels["pod-group.scheduling.sigs.k8s.io/min-available"] = str(job.workers)
    if topology:
        labels["gpu-topology"] = job.name
        labels["gpu-topology-replica"] = str(job.workers)
    return labels


def _environment(job: MPIJob) -> dict[str, str]:
    environment = {pair.key: pair.value for pair in job.env}
    shared = any(label.key == "aliyun.com/gpu-count" for label in job.label) or any(
        device.name == "aliyun.com/gpu-mem" for device in job.device
    )
    if not job.gpus and not shared:
        # Images of NVIDIA request all GPUs by default.
        environment["NVIDIA_VISIBLE_DEVICES"] = "void"
    return environment | {"workers": str(job.workers), "gpus": str(job.gpus)}


_SPEAKING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,GRAPH,NET"}
"""Variables that make NCCL print the lines that `arena_topo.nccl` reads; --env overrides them.

Connections, channels and versions are INIT, settings ENV, rings GRAPH, network cards and GPUDirect
NET, the interface of the bootstrap BOOTSTRAP (INIT before 2.23; a version ignores words that it
does not know). NCCL 2.7 to 2.15 print settings only on request (NVIDIA/nccl, src/debug.cc).
"""


def _variables(environment: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": environment[name]} for name in sorted(environment)]


def _launching(job: MPIJob, api: ApiVersion) -> dict[str, str]:
    """The variables with which the launcher of Open MPI 5, PRRTE, finds and reaches the workers.

    Operators set them for Open MPI 4 only: OMPI_MCA_orte_default_hostfile, _keep_fqdn_hostnames,
    plm_rsh_args, plm_rsh_agent (kubeflow/mpi-operator issue 842). PRRTE reads PRTE_MCA_ and has no
    rsh component; its names are those registered in prte_mca_params.c and plm_ssh_component.c.
    """
    openmpi = job.mpi_implementation is MPIImplementation.OPENMPI
    return dict(api.traits.launcher_env) if openmpi else {}


def _joined(job: MPIJob, namespace: str, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The variables of workers that share IPC: NCCL then treats the pods of a node as one host.

    NCCL joins processes directly if their host ids are the same (NCCL_HOSTID, else hostname and
    boot id) and /dev/shm is the same device (pull request 248 to NVIDIA/nccl). Its cuMem buffers
    are passed on through abstract Unix sockets (src/misc/ipcsocket.cc), which end at a network
    namespace; pods have one each, since each runs sshd on the same port. So without cuMem.
    """
    node = "ARENA_TOPO_NODE"
    joined = {
        "NCCL_HOSTID": f"$({node})/{namespace}/{job.name}",
        "NCCL_CUMEM_ENABLE": "0",
    }
    source = {"name": node, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    # Kubernetes replaces $(NAME) by the value of a variable earlier in the list.
    return [source, *_variables(joined | {**environment})]


def _sync(job: MPIJob) -> dict[str, str]:
    if job.sync_mode is not SyncMode.GIT:
        return {}
    # As in arena the folder has the name up to the first `.git`: `me.github.io.git` is `me` there.
    project = job.sync_source.rstrip("/").rpartition("/")[2].partition(".git")[0]
    return {
        "GIT_SYNC_REPO": job.sync_source,
        "GIT_SYNC_DEST": project,
        "GIT_SYNC_ROOT": "/code",
        "GIT_SYNC_ONE_TIME": "true",
    }


def _compute(job: MPIJob) -> dict[str, dict[str, str]]:
    """CPU and memory of each kind of pod."""
    worker = {"cpu": job.cpu, "memory": job.memory}
    launcher = {"cpu": job.launcher_cpu or job.cpu, "memory": job.launcher_memory or job.memory}
    return {
        role: {name: amount.text for name, amount in amounts.items() if amount}
        for role, amounts in (("worker", worker), ("launcher", launcher))
    }


def _resources(job: MPIJob, resource: str) -> dict[str, dict[str, str]]:
    """The same with GPUs and other devices."""
    compute = _compute(job)
    worker = {device.name: device.quantity.text for device in job.device}
    if job.gpus:
        worker[resource] = str(job.gpus)
    if job.rdma:
        worker.setdefault(RDMA_DEVICE, "1")
    worker |= compute["worker"]
    return {"worker": worker, "launcher": compute["launcher"]}


def _flags(job: MPIJob) -> dict[str, Any]:
    """The flags that differ from their defaults, as plain values by their names."""
    flags = flags_of(MPIJob)
    values = {own.name: getattr(job, own.name) for own in fields(MPIJob)}
    return {
        spelling(own.name, flags[own.name]).lstrip("-") if own.name in flags else own.name: _plain(
            values[own.name]
        )
        for own in fields(MPIJob)
        if values[own.name] != own.default
    }


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    is_number = isinstance(value, bool | int | float) and not isinstance(value, Duration)
    return value if is_number else str(value)


# Mounts


class _Mount(NamedTuple):
    """A volume and its path; `flag` is its option. `launcher`: the launcher mounts it too."""

    name: str
    source: Manifest
    path: str
    flag: str
    launcher: bool = False

    @property
    def volume(self) -> Manifest:
        return {"name": self.name, **self.source}

    @property
    def mount(self) -> Manifest:
        return {"mountPath": self.path, "name": self.name}


_STORAGE = {"hostPath", "persistentVolumeClaim"}
"""Volumes that persist after their pod."""


def _mounted(job: MPIJob, namespace: str) -> list[_Mount]:
    """Every volume in arena's order; InvalidJob if two would be mounted at one path."""
    volumes = []
    for folder in dict.fromkeys(_place(file)[0] for file in job.config_file):
        source = {"configMap": {"name": f"{job.name}-{_key(folder)}"}}
        volumes.append(_Mount(_key(folder), source, folder, "--config-file", launcher=True))
    claims = [
        (claim.path, {"persistentVolumeClaim": {"claimName": claim.name}}) for claim in job.data
    ]
    folders = [(folder.container, {"hostPath": {"path": folder.host}}) for folder in job.data_dir]
    stored = [
        _Mount(f"training-{kind}-{index}", source, path, flag, job.mounts_on_launcher)
        for kind, flag, paths in (("claim", "--data", claims), ("data", "--data-dir", folders))
        for index, (path, source) in enumerate(paths)
    ]
    covered = any(_inside(job.logdir, mount) for mount in stored)
    if job.tensorboard and job.logdir.startswith("/") and not covered:
        number = int(digest(f"{namespace}/{job.name}"), 16) % 10**9
        host = {"hostPath": {"path": f"/arena_logs/training{number:09}"}}
        volumes.append(_Mount("training-logs-volume", host, job.logdir, "--logdir"))
    if job.sync_mode is not SyncMode.NONE:
        code = job.working_dir.rstrip("/") + "/code"
        volumes.append(_Mount("code-sync", {"emptyDir": {}}, code, "--sync-mode", launcher=True))
    memory = {"emptyDir": {"medium": "Memory", "sizeLimit": job.share_memory.text}}
    # /dev/shm is NCCL's shared memory in the container.
    volumes += [*stored, _Mount("dshm", memory, "/dev/shm", "--share-memory")]  # noqa: S108
    flags: dict[str, str] = {}
    for mount in volumes:
        path = mount.path.rstrip("/")
        if path in flags:
            raise InvalidJob(
                f"two things would be mounted at {path}", why=f"{flags[path]} and {mount.flag}"
            )
        flags[path] = mount.flag
    return volumes


def _inside(path: str, mount: _Mount) -> bool:
    """Whether a folder of the containers is in a volume."""
    return (path.rstrip("/") + "/").startswith(mount.path.rstrip("/") + "/")


def _place(file: ConfigFile) -> tuple[str, str]:
    """The folder and name of a file in the containers; without a target, as on this host."""
    # Path would leave `..` as it is, and raise for an unknown `~user`.
    source = os.path.abspath(os.path.expanduser(file.source))  # noqa: PTH100, PTH111 - see above
    return posixpath.split(posixpath.normpath(file.target or source))


def _key(folder: str) -> str:
    """The name of the ConfigMap and the volume of a folder, as in arena."""
    return digest(folder)[:15]


def _folders(job: MPIJob, files: Mapping[ConfigFile, str]) -> list[dict[str, Any]]:
    """The config files grouped by their folder: a ConfigMap is mounted over a whole folder.

    InvalidJob for two files at one path, and for names that no ConfigMap can have.
    """
    grouped: dict[str, dict[str, str]] = {}
    for file in dict.fromkeys(job.config_file):
        folder, name = _place(file)
        texts = grouped.setdefault(folder, {})
        if name in texts:
            raise InvalidJob(f"two files would be put at {folder}/{name}", why=f"one is {file}")
        if re.fullmatch(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}", name) is None:
            raise InvalidJob(
                f"no file of --config-file can be called {name!r} in the containers",
                why="Kubernetes allows letters, digits, '-', '_' and '.'",
                hint=f"give it another name there: {file.source}:{folder.rstrip('/')}/NAME",
            )
        texts[name] = files[file]
    return [{"key": _key(folder), "files": texts} for folder, texts in grouped.items()]
