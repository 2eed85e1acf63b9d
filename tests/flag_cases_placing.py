"""The cases of the flags about the job, its resources and its placement, as in the help."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flag_cases import (
    ABSENT,
    BOARD,
    CODE,
    GIT,
    MAIN,
    NEAR_WORKERS,
    PLACED,
    POD_GROUP,
    PREFERRED,
    V1ALPHA1,
    V2BETA1,
    VOID,
    WAIT,
    Case,
    asking,
    needs_operator,
    pair,
)

from arena_topo.job import (
    BindingChoice,
    Device,
    Duration,
    NodeLoss,
    PlacementPolicy,
    PodShape,
    Quantity,
    Toleration,
)

CASES: Mapping[str, tuple[Case, ...]] = {
    # The name is everywhere: `test_every_flag` says how.
    "name": (Case(said={"name": "other"}),),
    "command": (
        Case(
            said={"command": "mpirun -x A=1 echo 'a: b' # c"},
            changes={f"launcher:{MAIN}.command[2]": "mpirun -x A=1 echo 'a: b' # c"},
            more={V1ALPHA1: {f"pods:{MAIN}.command[2]": "mpirun -x A=1 echo 'a: b' # c"}},
        ),
    ),
    "image": (
        Case(
            said={"image": "registry:5000/team/train:2"},
            changes={f"pods:{MAIN}.image": "registry:5000/team/train:2"},
            more={V2BETA1: {f"launcher:{WAIT}.image": "registry:5000/team/train:2"}},
        ),
    ),
    "gpus": (
        Case(
            said={"gpus": 4},
            changes={
                "job:metadata.annotations.requestGPUsOfJobOwner": "8",
                "pods:metadata.annotations.requestGPUsOfJobOwner": "8",
                f"worker:{MAIN}.resources": asking(**{"nvidia.com/gpu": "4"}),
                f"pods:{MAIN}.env[gpus].value": "4",
                "job:spec.slotsPerWorker": 4,
            },
            more={V1ALPHA1: {"job:spec.slotsPerWorker": None}},
            asks={"gpus": 4},
        ),
        # Images of NVIDIA take all GPUs unless they are told otherwise.
        Case(
            note="none",
            said={"gpus": 0},
            changes={
                "job:metadata.annotations.requestGPUsOfJobOwner": "0",
                "pods:metadata.annotations.requestGPUsOfJobOwner": "0",
                f"worker:{MAIN}.resources": ABSENT,
                f"pods:{MAIN}.env[gpus].value": "0",
                f"pods:{MAIN}.env[NVIDIA_VISIBLE_DEVICES]": VOID,
                "job:spec.slotsPerWorker": 1,
            },
            more={V1ALPHA1: {"job:spec.slotsPerWorker": None}},
            asks={"gpus": 0},
        ),
        # ... and are not, where the job shares GPUs by another way.
        Case(
            note="none-shared",
            said={"gpus": 0},
            within={"device": (Device.parse("aliyun.com/gpu-mem=8"),)},
            changes={
                "job:metadata.annotations.requestGPUsOfJobOwner": "0",
                "pods:metadata.annotations.requestGPUsOfJobOwner": "0",
                f"worker:{MAIN}.resources.requests[nvidia.com/gpu]": ABSENT,
                f"worker:{MAIN}.resources.limits[nvidia.com/gpu]": ABSENT,
                f"pods:{MAIN}.env[gpus].value": "0",
                "job:spec.slotsPerWorker": 1,
            },
            more={V1ALPHA1: {"job:spec.slotsPerWorker": None}},
            asks={"gpus": 0},
        ),
    ),
    "workers": (
        Case(
            said={"workers": 3},
            changes={
                "job:metadata.annotations.requestGPUsOfJobOwner": "6",
                "pods:metadata.annotations.requestGPUsOfJobOwner": "6",
                f"pods:{MAIN}.env[workers].value": "3",
                "job:spec.mpiReplicaSpecs.Worker.replicas": 3,
            },
            more={
                V2BETA1: {f"launcher:{WAIT}.command[5]": "3"},
                V1ALPHA1: {
                    "job:spec.mpiReplicaSpecs.Worker.replicas": None,
                    "job:spec.replicas": 3,
                },
            },
            asks={"workers": 3},
        ),
    ),
    "cpu": (
        Case(
            said={"cpu": Quantity.parse("4")},
            changes={f"pods:{MAIN}.resources": asking(cpu="4")},
            more={V2BETA1: {f"launcher:{WAIT}.resources": asking(cpu="4")}},
        ),
        Case(
            note="of-init-containers",
            said={"cpu": Quantity.parse("4")},
            within=GIT,
            changes={
                f"pods:{MAIN}.resources": asking(cpu="4"),
                f"pods:{CODE}.resources": asking(cpu="4"),
            },
            more={V2BETA1: {f"launcher:{WAIT}.resources": asking(cpu="4")}},
        ),
    ),
    "memory": (
        Case(
            said={"memory": Quantity.parse("16Gi")},
            changes={f"pods:{MAIN}.resources": asking(memory="16Gi")},
            more={V2BETA1: {f"launcher:{WAIT}.resources": asking(memory="16Gi")}},
        ),
    ),
    "launcher_cpu": (
        Case(
            said={"launcher_cpu": Quantity.parse("500m")},
            within={"cpu": Quantity.parse("4"), "memory": Quantity.parse("8Gi")},
            changes={f"launcher:{MAIN}.resources": asking(cpu="500m")},
            more={
                V2BETA1: {f"launcher:{WAIT}.resources": asking(cpu="500m")},
                V1ALPHA1: {"job:spec.launcherResources": asking(cpu="500m", memory="8Gi")},
            },
        ),
        Case(
            note="alone",
            said={"launcher_cpu": Quantity.parse("500m")},
            changes={f"launcher:{MAIN}.resources": asking(cpu="500m")},
            more={
                V2BETA1: {f"launcher:{WAIT}.resources": asking(cpu="500m")},
                V1ALPHA1: {"job:spec.launcherResources": asking(cpu="500m")},
            },
        ),
    ),
    "launcher_memory": (
        Case(
            said={"launcher_memory": Quantity.parse("1Gi")},
            within=GIT,
            changes={
                f"launcher:{MAIN}.resources": asking(memory="1Gi"),
                f"launcher:{CODE}.resources": asking(memory="1Gi"),
            },
            more={
                V2BETA1: {f"launcher:{WAIT}.resources": asking(memory="1Gi")},
                V1ALPHA1: {"job:spec.launcherResources": asking(memory="1Gi")},
            },
        ),
    ),
    "share_memory": (
        Case(
            said={"share_memory": Quantity.parse("32Gi")},
            changes={"worker:spec.volumes[dshm].emptyDir.sizeLimit": "32Gi"},
        ),
    ),
    "device": (
        Case(
            said={"device": (Device.parse("amd.com/gpu=1"), Device.parse("rdma/hca=2"))},
            changes={f"worker:{MAIN}.resources": asking(**{"amd.com/gpu": "1", "rdma/hca": "2"})},
        ),
    ),
    "rdma": (
        Case(
            said={"rdma": True},
            changes={
                f"worker:{MAIN}.resources": asking(**{"rdma/hca": "1"}),
                f"worker:{MAIN}.securityContext.capabilities.add": ["IPC_LOCK"],
            },
        ),
        Case(
            note="and-its-device",
            said={"rdma": True},
            within={"device": (Device.parse("rdma/hca=2"),)},
            changes={f"worker:{MAIN}.securityContext.capabilities.add": ["IPC_LOCK"]},
        ),
    ),
    "gputopology": (
        Case(
            said=PLACED,
            changes={
                "worker:metadata.labels.gpu-topology": "demo",
                "worker:metadata.labels.gpu-topology-replica": "2",
                f"launcher:{PREFERRED}": NEAR_WORKERS,
            },
            more={
                # The launcher of a gang that starts waits no longer than the gang may take.
                V2BETA1: {f"launcher:{WAIT}.command[7]": "600"},
                # Arena's own, whose workers are not reached through a port of the node.
                V1ALPHA1: {
                    f"worker:{MAIN}.resources": asking(**{"aliyun.com/gpu": "2"}),
                    f"worker:{MAIN}.resources.requests[nvidia.com/gpu]": ABSENT,
                    f"worker:{MAIN}.resources.limits[nvidia.com/gpu]": ABSENT,
                    "pods:spec.hostNetwork": True,
                    "pods:spec.dnsPolicy": "ClusterFirstWithHostNet",
                },
            },
        ),
    ),
    "gang": (
        Case(
            said={"gang": True},
            changes={
                f"worker:{POD_GROUP}name]": "mpijob-demo",
                f"worker:{POD_GROUP}min-available]": "2",
                "run:schedulingPolicy.minAvailable": 2,
            },
        ),
    ),
    "gpu_model": (Case(said={"gpu_model": "V100"}, within=PLACED, asks={"model": "V100"}),),
    "mix_models": (Case(said={"mix_models": True}, within=PLACED, asks={"mixModels": True}),),
    "min_bandwidth": (
        Case(said={"min_bandwidth": 2.0}, within=PLACED, asks={"minBandwidthGBps": 2.0}),
    ),
    "max_nodes": (Case(said={"max_nodes": 2}, within=PLACED, asks={"maxNodes": 2}),),
    "topology_required": (
        Case(said={"topology_required": "node"}, within=PLACED, asks={"required": "node"}),
    ),
    "topology_preferred": (
        Case(said={"topology_preferred": "node"}, within=PLACED, asks={"preferred": "node"}),
    ),
    "policy": (
        Case(said={"policy": PlacementPolicy.SPREAD}, within=PLACED, asks={"policy": "spread"}),
    ),
    "pack_above": (
        Case(
            said={"pack_above": 0.25},
            within={**PLACED, "policy": PlacementPolicy.ADAPTIVE},
            asks={"packAbove": 0.25},
        ),
    ),
    "binding": (
        Case(said={"binding": BindingChoice.TEMPLATE}, within=PLACED, asks={"binding": "template"}),
    ),
    "pod_shape": (
        Case(
            said={"pod_shape": PodShape.SHARED},
            within=PLACED,
            changes={
                "worker:spec.hostIPC": True,
                "worker:spec.volumes": ABSENT,
                f"worker:{MAIN}.volumeMounts": ABSENT,
                f"worker:{MAIN}.command": [
                    "sh",
                    "-c",
                    re.compile(
                        r'said="NCCL_HOSTID=.*exec /usr/sbin/sshd -De -o "SetEnv=\$said"\n',
                        re.DOTALL,
                    ),
                ],
                f"worker:{MAIN}.env[ARENA_TOPO_NODE]": {
                    "name": "ARENA_TOPO_NODE",
                    "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
                },
                f"worker:{MAIN}.env[NCCL_HOSTID]": {
                    "name": "NCCL_HOSTID",
                    "value": "$(ARENA_TOPO_NODE)/team-a/demo",
                },
                f"worker:{MAIN}.env[NCCL_CUMEM_ENABLE]": {
                    "name": "NCCL_CUMEM_ENABLE",
                    "value": "0",
                },
            },
            refused=needs_operator("--pod-shape shared"),
            asks={"podShape": "shared"},
        ),
        # What becomes of the workers is decided with the placement: `test_pod_shape`.
        Case(
            note="fused",
            said={"pod_shape": PodShape.FUSED},
            within=PLACED,
            asks={"podShape": "fused"},
        ),
    ),
    "gang_timeout": (
        Case(
            said={"gang_timeout": Duration.parse("20m")},
            within=PLACED,
            more={V2BETA1: {f"launcher:{WAIT}.command[7]": "1200"}},
            asks={"gangTimeout": 1200},
        ),
    ),
    "patience": (
        Case(said={"patience": Duration.parse("2h")}, within=PLACED, asks={"patience": 7200}),
    ),
    "on_node_loss": (
        Case(said={"on_node_loss": NodeLoss.HOLD}, within=PLACED, asks={"onNodeLoss": "hold"}),
    ),
    "selector": (
        Case(
            said={"selector": (pair("pool=a100"), pair("example.com/zone=b"))},
            changes={"pods:spec.nodeSelector": {"pool": "a100", "example.com/zone": "b"}},
        ),
    ),
    "toleration": (
        Case(
            said={
                "toleration": (
                    Toleration.parse("gpu=only:NoSchedule,Equal"),
                    Toleration.parse("spot:NoExecute"),
                )
            },
            changes={
                "pods:spec.tolerations": [
                    {"key": "gpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"},
                    {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
                ]
            },
        ),
        Case(
            note="all-and-tensorboard",
            said={"toleration": (Toleration.parse("all"),)},
            within=BOARD,
            changes={
                "pods:spec.tolerations": [{"operator": "Exists"}],
                "Deployment/demo-tensorboard:spec.template.spec.tolerations": [
                    {"operator": "Exists"}
                ],
            },
        ),
    ),
    "scheduler": (
        Case(said={"scheduler": "volcano"}, changes={"pods:spec.schedulerName": "volcano"}),
    ),
    "priority": (Case(said={"priority": "high"}, changes={"pods:spec.priorityClassName": "high"}),),
    "queue": (
        Case(
            said={"queue": True},
            changes={
                "job:metadata.annotations[scheduling.x-k8s.io/suspend]": "true",
                "pods:metadata.annotations[scheduling.x-k8s.io/suspend]": "true",
                "run:suspend": True,
            },
        ),
    ),
    "workload": (Case(said={"workload": "vgg16"}, within=PLACED, asks={"workload": "vgg16"}),),
    "batch": (
        Case(said={"batch": 64}, within={**PLACED, "workload": "vgg16"}, asks={"batch": 64}),
    ),
    "gradient_bytes": (
        Case(
            said={"gradient_bytes": "553MB", "step_time": "180ms"},
            within=PLACED,
            asks={"gradientBytes": "553MB", "stepTime": "180ms"},
        ),
    ),
    "step_time": (
        Case(
            said={"step_time": "180ms"},
            within={**PLACED, "workload": "vgg16"},
            asks={"stepTime": "180ms"},
        ),
    ),
}
