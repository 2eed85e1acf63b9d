"""The cases of the flags about pods, data and code, and the end of a job, as in the help."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flag_cases import (
    ABSENT,
    BOARD,
    BOARD_LABELS,
    BOARD_MAIN,
    CODE,
    FILE,
    FOLDER,
    GIT,
    LOGS,
    LOGS_MOUNT,
    MAIN,
    NEAR_V1,
    NEAR_V1ALPHA1,
    PLACED,
    V1ALPHA1,
    V2BETA1,
    WAIT,
    Case,
    board,
    claimed,
    env,
    needs_operator,
    on_node,
    pair,
    synced,
)

from arena_topo.job import (
    Claim,
    CleanPodPolicy,
    Duration,
    EnvVar,
    HostPath,
    ImagePullPolicy,
    MPIImplementation,
    SyncMode,
)

SPEAKING = {
    f"pods:{MAIN}.env[NCCL_DEBUG]": {"name": "NCCL_DEBUG", "value": "INFO"},
    f"pods:{MAIN}.env[NCCL_DEBUG_SUBSYS]": {
        "name": "NCCL_DEBUG_SUBSYS",
        "value": "INIT,BOOTSTRAP,ENV,GRAPH,NET",
    },
}
NAMING = re.compile(r"said=\n.*NCCL_IB_HCA.*exec /usr/sbin/sshd -De\n", re.DOTALL)
TELLING = re.compile(r'said="NCCL_DEBUG=.*exec /usr/sbin/sshd -De\n', re.DOTALL)

CASES: Mapping[str, tuple[Case, ...]] = {
    "env": (
        Case(
            said={"env": (EnvVar(key="A", value='b "c" $D'), EnvVar(key="workers", value="9"))},
            # How many workers there are is not for the user to say.
            changes={f"pods:{MAIN}.env[A]": {"name": "A", "value": 'b "c" $D'}},
        ),
        Case(
            note="of-init-containers",
            said={"env": (EnvVar(key="A", value="b"),)},
            within=GIT,
            changes={
                f"pods:{MAIN}.env[A]": {"name": "A", "value": "b"},
                f"pods:{CODE}.env[A]": {"name": "A", "value": "b"},
            },
        ),
    ),
    "nccl_debug": (
        Case(
            said={"nccl_debug": True},
            changes=SPEAKING,
            # Nothing of a container's environment reaches ranks that are started over ssh.
            more={V2BETA1: {f"worker:{MAIN}.command": ["sh", "-c", TELLING]}},
        ),
        Case(
            note="as-the-user-says",
            said={"nccl_debug": True},
            within={"env": (EnvVar(key="NCCL_DEBUG", value="TRACE"),)},
            changes={**SPEAKING, f"pods:{MAIN}.env[NCCL_DEBUG]": None},
            more={V2BETA1: {f"worker:{MAIN}.command": ["sh", "-c", TELLING]}},
        ),
        # Code is fetched without NCCL.
        Case(
            note="not-of-init-containers",
            said={"nccl_debug": True},
            within=GIT,
            changes=SPEAKING,
            more={V2BETA1: {f"worker:{MAIN}.command": ["sh", "-c", TELLING]}},
        ),
    ),
    "nccl_hca": (
        Case(
            said={"nccl_hca": True},
            within=PLACED,
            more={V2BETA1: {f"worker:{MAIN}.command": ["sh", "-c", NAMING]}},
            asks={"ncclHca": True},
        ),
        # Who says the variable in --env or by mpirun -x is not asked again.
        Case(
            note="as-the-user-says",
            said={"nccl_hca": True},
            within={**PLACED, "env": (EnvVar(key="NCCL_IB_HCA", value="mlx5_7"),)},
            asks={"ncclHca": True},
        ),
        Case(
            note="as-the-command-says",
            said={"nccl_hca": True},
            within={**PLACED, "command": "mpirun -x NCCL_IB_HCA=mlx5_7 train"},
            asks={"ncclHca": True},
        ),
        Case(
            note="beside-debug",
            said={"nccl_hca": True},
            within={**PLACED, "nccl_debug": True},
            more={
                V2BETA1: {
                    f"worker:{MAIN}.command[2]": re.compile(
                        r'said="NCCL_DEBUG=.*NCCL_IB_HCA=.*exec /usr/sbin/sshd -De\n', re.DOTALL
                    )
                }
            },
            asks={"ncclHca": True},
        ),
    ),
    "working_dir": (
        Case(said={"working_dir": "/app"}, changes={f"pods:{MAIN}.workingDir": "/app"}),
        Case(
            note="of-the-code",
            said={"working_dir": "/app/"},
            within=GIT,
            changes={
                f"pods:{MAIN}.workingDir": "/app/",
                f"pods:{MAIN}.volumeMounts[code-sync].mountPath": "/app/code",
            },
        ),
    ),
    "shell": (
        Case(
            said={"shell": "bash"},
            changes={f"launcher:{MAIN}.command[0]": "bash"},
            more={V1ALPHA1: {f"pods:{MAIN}.command[0]": "bash"}},
        ),
    ),
    "label": (
        Case(
            said={"label": (pair("team=nlp"),)},
            changes={
                "job:metadata.labels.team": "nlp",
                "pods:metadata.labels.team": "nlp",
            },
        ),
        Case(
            note="shares-gpus",
            said={"label": (pair("aliyun.com/gpu-count=1"),)},
            within={"gpus": 0},
            changes={
                "job:metadata.labels[aliyun.com/gpu-count]": "1",
                "pods:metadata.labels[aliyun.com/gpu-count]": "1",
                f"pods:{MAIN}.env[NVIDIA_VISIBLE_DEVICES]": ABSENT,
            },
        ),
    ),
    "annotation": (
        Case(
            said={"annotation": (pair("example.com/note=any {text}: at all"),)},
            changes={
                "job:metadata.annotations[example.com/note]": "any {text}: at all",
                "pods:metadata.annotations[example.com/note]": "any {text}: at all",
            },
        ),
        # Pods with a network card of their own keep off the network of the node.
        Case(
            note="eni",
            said={"annotation": (pair("k8s.aliyun.com/eni=true"),)},
            within={"host_network": True},
            changes={
                "job:metadata.annotations[k8s.aliyun.com/eni]": "true",
                "pods:metadata.annotations[k8s.aliyun.com/eni]": "true",
                "pods:spec.hostNetwork": ABSENT,
                "pods:spec.dnsPolicy": ABSENT,
            },
        ),
    ),
    "image_pull_secret": (
        Case(
            said={"image_pull_secret": ("mine", "ours")},
            within=BOARD,
            changes={
                "pods:spec.imagePullSecrets": [{"name": "mine"}, {"name": "ours"}],
                "Deployment/demo-tensorboard:spec.template.spec.imagePullSecrets": [
                    {"name": "mine"},
                    {"name": "ours"},
                ],
            },
        ),
    ),
    "image_pull_policy": (
        Case(
            said={"image_pull_policy": ImagePullPolicy.IF_NOT_PRESENT},
            within={**GIT, **BOARD},
            changes={
                f"pods:{MAIN}.imagePullPolicy": "IfNotPresent",
                f"pods:{CODE}.imagePullPolicy": "IfNotPresent",
                f"{BOARD_MAIN}.imagePullPolicy": "IfNotPresent",
            },
            more={V2BETA1: {f"launcher:{WAIT}.imagePullPolicy": "IfNotPresent"}},
        ),
    ),
    "service_account": (
        Case(
            said={"service_account": "trainer"},
            changes={"pods:spec.serviceAccountName": "trainer"},
        ),
    ),
    "mpi_implementation": (
        Case(
            said={"mpi_implementation": MPIImplementation.INTEL},
            changes={
                "job:spec.mpiImplementation": "Intel",
                # These speak to Open MPI alone.
                f"launcher:{MAIN}.env[PRTE_MCA_plm_ssh_args]": ABSENT,
                f"launcher:{MAIN}.env[PRTE_MCA_prte_default_hostfile]": ABSENT,
                f"launcher:{MAIN}.env[PRTE_MCA_prte_keep_fqdn_hostnames]": ABSENT,
            },
            refused=needs_operator("--mpi-implementation Intel"),
        ),
    ),
    "ssh_auth_mount_path": (
        Case(
            said={"ssh_auth_mount_path": "/keys/.ssh"},
            changes={"job:spec.sshAuthMountPath": "/keys/.ssh"},
            refused=needs_operator("--ssh-auth-mount-path"),
        ),
    ),
    "host_network": (
        Case(
            said={"host_network": True},
            changes={
                "pods:spec.hostNetwork": True,
                "pods:spec.dnsPolicy": "ClusterFirstWithHostNet",
            },
        ),
    ),
    "host_ipc": (Case(said={"host_ipc": True}, changes={"pods:spec.hostIPC": True}),),
    "host_pid": (Case(said={"host_pid": True}, changes={"pods:spec.hostPID": True}),),
    "data": (
        Case(
            said={"data": (Claim(name="imagenet", path="/data"),)},
            changes=claimed("worker", "imagenet", "/data"),
        ),
    ),
    "data_dir": (
        Case(
            said={"data_dir": (HostPath(host="/mnt/a", container="/a"),)},
            changes=on_node("worker", "training-data-0", "/mnt/a", "/a"),
        ),
    ),
    "config_file": (
        Case(
            said={"config_file": (FILE,)},
            changes={
                f"pods:spec.volumes[{FOLDER}]": {
                    "name": FOLDER,
                    "configMap": {"name": f"demo-{FOLDER}"},
                },
                f"pods:{MAIN}.volumeMounts[{FOLDER}]": {"name": FOLDER, "mountPath": "/etc/app"},
                f"ConfigMap/demo-{FOLDER}": {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": f"demo-{FOLDER}",
                        "namespace": "team-a",
                        "labels": {key: BOARD_LABELS[key] for key in BOARD_LABELS if key != "role"},
                    },
                    "data": {"app.json": '{"a": 1}\n'},
                },
            },
        ),
    ),
    "sync_mode": (
        Case(
            note="git",
            said=GIT,
            changes=synced(
                "git-sync:v3",
                env=env(
                    GIT_SYNC_REPO="https://example.com/team/model.git",
                    GIT_SYNC_DEST="model",
                    GIT_SYNC_ROOT="/code",
                    GIT_SYNC_ONE_TIME="true",
                ),
            ),
        ),
        Case(
            note="rsync",
            said={
                "sync_mode": SyncMode.RSYNC,
                "sync_source": "10.0.0.1::backup/code",
                "sync_image": "rsync:3",
            },
            changes=synced(
                "rsync:3",
                env=env(),
                command=["rsync", "-avP", "10.0.0.1::backup/code", "/code"],
            ),
        ),
    ),
    "sync_source": (
        Case(
            said={"sync_source": "https://example.com/team/other"},
            within=GIT,
            changes={
                f"pods:{CODE}.env[GIT_SYNC_REPO].value": "https://example.com/team/other",
                f"pods:{CODE}.env[GIT_SYNC_DEST].value": "other",
            },
        ),
    ),
    "sync_image": (
        Case(
            said={"sync_image": "git-sync:v4"},
            within=GIT,
            changes={f"pods:{CODE}.image": "git-sync:v4"},
        ),
    ),
    "mounts_on_launcher": (
        Case(
            said={"mounts_on_launcher": True},
            within={
                "data": (Claim(name="imagenet", path="/data"),),
                "data_dir": (HostPath(host="/mnt/a", container="/a"),),
            },
            changes={
                **claimed("launcher", "imagenet", "/data"),
                **on_node("launcher", "training-data-0", "/mnt/a", "/a"),
            },
            more={V1ALPHA1: {"job:spec.mountsOnLauncher": True}},
        ),
    ),
    "tensorboard": (
        # Logs on no volume are kept on the node of the first worker, and read there.
        Case(
            note="local-logs",
            said=BOARD,
            changes={
                "worker:spec.volumes[training-logs-volume]": LOGS,
                f"worker:{MAIN}.volumeMounts[training-logs-volume]": LOGS_MOUNT,
                **board(volumes=[LOGS], mounts=[LOGS_MOUNT], near=NEAR_V1),
            },
            more={V1ALPHA1: board(volumes=[LOGS], mounts=[LOGS_MOUNT], near=NEAR_V1ALPHA1)},
        ),
        Case(
            note="logs-on-a-claim",
            said=BOARD,
            within={"data": (Claim(name="logs", path="/training_logs"),)},
            changes=board(
                volumes=[
                    {"name": "training-claim-0", "persistentVolumeClaim": {"claimName": "logs"}}
                ],
                mounts=[{"name": "training-claim-0", "mountPath": "/training_logs"}],
            ),
        ),
    ),
    "tensorboard_image": (
        Case(
            said={"tensorboard_image": "tensorflow:3"},
            within=BOARD,
            changes={f"{BOARD_MAIN}.image": "tensorflow:3"},
        ),
    ),
    "logdir": (
        Case(
            said={"logdir": "/logs"},
            within=BOARD,
            changes={
                f"worker:{MAIN}.volumeMounts[training-logs-volume].mountPath": "/logs",
                f"{BOARD_MAIN}.volumeMounts[training-logs-volume].mountPath": "/logs",
                f"{BOARD_MAIN}.command[2]": "/logs",
            },
        ),
        # TensorBoard reads other stores by itself.
        Case(
            note="elsewhere",
            said={"logdir": "s3://bucket/logs"},
            within=BOARD,
            changes={
                "worker:spec.volumes[training-logs-volume]": ABSENT,
                f"worker:{MAIN}.volumeMounts[training-logs-volume]": ABSENT,
                "Deployment/demo-tensorboard:spec.template.spec.volumes": ABSENT,
                "Deployment/demo-tensorboard:spec.template.spec.affinity": ABSENT,
                f"{BOARD_MAIN}.volumeMounts": ABSENT,
                f"{BOARD_MAIN}.command[2]": "s3://bucket/logs",
            },
        ),
    ),
    "model_name": (
        Case(
            said={"model_name": "resnet", "model_source": "s3://models/resnet"},
            changes={
                "job:metadata.labels.modelName": "resnet",
                "pods:metadata.labels.modelName": "resnet",
                "job:metadata.annotations.modelSource": "s3://models/resnet",
                "pods:metadata.annotations.modelSource": "s3://models/resnet",
            },
        ),
    ),
    "model_source": (
        Case(
            said={"model_source": "s3://models/other"},
            within={"model_name": "resnet", "model_source": "s3://models/resnet"},
            changes={
                "job:metadata.annotations.modelSource": "s3://models/other",
                "pods:metadata.annotations.modelSource": "s3://models/other",
            },
        ),
    ),
    "running_timeout": (
        Case(
            said={"running_timeout": Duration.parse("1h30m")},
            changes={"run:activeDeadlineSeconds": 5400},
            refused={V1ALPHA1: "--running-timeout needs MPIJob v1 or v2beta1"},
        ),
    ),
    "ttl_after_finished": (
        Case(
            said={"ttl_after_finished": Duration.parse("24h")},
            changes={"run:ttlSecondsAfterFinished": 86400},
            refused={V1ALPHA1: "--ttl-after-finished needs MPIJob v1 or v2beta1"},
        ),
        Case(
            note="at-once",
            said={"ttl_after_finished": Duration(0)},
            changes={"run:ttlSecondsAfterFinished": 0},
            refused={V1ALPHA1: "--ttl-after-finished needs MPIJob v1 or v2beta1"},
        ),
    ),
    "retry": (
        Case(
            said={"retry": 4},
            changes={"run:backoffLimit": 4},
            more={V1ALPHA1: {"job:spec.backoffLimit": 4}},
        ),
    ),
    "clean_task_policy": (
        Case(
            said={"clean_task_policy": CleanPodPolicy.RUNNING},
            changes={"run:cleanPodPolicy": "Running"},
            more={V1ALPHA1: {"job:spec.cleanPodPolicy": "Running"}},
        ),
    ),
}
