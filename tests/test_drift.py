"""Where what runs differs from the plan, and what workers see when they are asked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from cube_mesh import V100, cluster
from cube_mesh import node as known
from fake_api import FakeApi, kubeconfig
from job_shapes import CREATED, NOW, RUNNING, T0, at, launcher, mpijob, ours, runs, worker
from replacing import replace

from arena_topo import cli
from arena_topo.engines import Instance, JobStatus, Options, Phase
from arena_topo.engines.kubernetes import engine as kubernetes
from arena_topo.engines.kubernetes import podexec
from arena_topo.engines.kubernetes.connection import Connection
from arena_topo.engines.kubernetes.facts import Given, Sightings
from arena_topo.engines.kubernetes.podexec import Done
from arena_topo.errors import AccessDenied, ClusterError, NotFound, TimedOut
from arena_topo.manifests import PlacementForecast
from arena_topo.reasons import drift
from arena_topo.reasons.drift import DifferenceKind, SeenDevice, compare_sightings, parse_smi_list

PLAN = ((0, "a", (0, 3)), (1, "a", (1, 2)), (2, "b", (0, 3)), (3, "b", (1, 2)))


def runner(index: int, **more: Any) -> Instance:
    _, where, gpus = PLAN[index]
    usual = {
        "name": f"demo-worker-{index}",
        "status": "Running",
        "created": T0,
        "started": T0 + 5,
        "worker": index,
        "gpus": 2,
        "node": where,
        "devices": gpus,
    }
    return Instance(**{**usual, **more})


def status(*instances: Instance, phase: Phase = Phase.RUNNING, **more: Any) -> JobStatus:
    facts = {"state": "placed", "workers": PLAN, "binding": "admission", "guarantee": "gpus"}
    return JobStatus(
        uid="u",
        name="demo",
        namespace="team-a",
        phase=phase,
        created=T0,
        instances=instances,
        forecast=PlacementForecast(**{**facts, **more}),
    )


def all_well(**more: Any) -> list[Instance]:
    return [runner(index, **more) for index in range(4)]


def texts(*found: Any, **more: Any) -> list[str]:
    return [str(one) for one in compare_sightings(*found, **more)]


def test_a_job_that_runs_as_planned_has_no_drift():
    assert compare_sightings(status(*all_well())) == ()
    assert compare_sightings(status(*all_well(devices=None))) == ()


def test_a_worker_on_another_node_is_named_with_both():
    pods = all_well()
    pods[1] = runner(1, node="c")
    (found,) = compare_sightings(status(*pods))
    assert (found.kind, found.worker, found.planned, found.seen) == (
        DifferenceKind.NODE,
        1,
        "a",
        "c",
    )
    assert str(found) == "demo-worker-1 runs on c, planned was a"


def test_an_annotation_that_names_other_gpus_is_drift():
    pods = all_well()
    pods[2] = runner(2, devices=(0, 1))
    assert texts(status(*pods)) == [
        "demo-worker-2 has GPU 0,1 by its annotation, planned was GPU 0,3"
    ]
    pods[2] = runner(2, devices=(3, 0))
    assert texts(status(*pods)) == []


def test_one_template_for_several_workers_of_a_node_can_only_name_all_their_gpus():
    shared = [runner(index, devices=(0, 1, 2, 3)) for index in range(4)]
    assert texts(status(*shared, binding="template", guarantee="node")) == []
    assert len(texts(status(*shared))) == 4
    other = [runner(index, devices=(4, 5, 6, 7)) for index in range(4)]
    assert len(texts(status(*other, binding="template", guarantee="node"))) == 4


def test_a_worker_that_was_made_again_and_waits_at_its_gate_is_drift():
    gated = runner(0, status="SchedulingGated", node=None, started=None, pending=True, devices=None)
    pods = [gated, *all_well()[1:]]
    assert texts(status(*pods, phase=Phase.PENDING)) == [
        "demo-worker-0 was made again and waits at its gate for GPU 0,3 of a"
    ]
    # When the job has yet to begin, its gates are as they should be.
    every = [replace(gated, name=f"demo-worker-{index}", worker=index) for index in range(4)]
    assert texts(status(*every, phase=Phase.PENDING)) == []


def test_a_worker_that_is_missing_is_drift_once_the_job_runs():
    pods = all_well()[:3]
    assert texts(status(*pods)) == ["demo-worker-3 is missing, planned on GPU 1,2 of b"]
    assert texts(status(*pods, phase=Phase.PENDING)) == []
    # All of them are gone when the job has just ended.
    assert texts(status()) == []


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (Phase.SUCCEEDED, "placed"),
        (Phase.FAILED, "placed"),
        (Phase.SUSPENDED, "held"),
        (Phase.PENDING, "waiting"),
    ],
)
def test_a_job_that_does_not_run_by_a_plan_cannot_drift(phase: Phase, state: str):
    moved = [runner(index, node="c") for index in range(4)]
    assert compare_sightings(status(*moved, phase=phase, state=state)) == ()


def test_a_claim_on_other_gpus_than_the_workers_own_is_drift():
    def claims(*held: tuple[int, str, tuple[int, ...]]) -> Sightings:
        return Sightings(
            claims=tuple(
                Given(who=f"team-a/demo-worker-{index}", node=where, gpus=gpus)
                for index, where, gpus in held
            )
        )

    job = status(*all_well(devices=None), binding="claims")
    assert texts(job, claims(*PLAN)) == []
    elsewhere = Given(who="team-b/demo-worker-0", node="a", gpus=(1, 2))
    assert texts(job, Sightings(claims=(elsewhere,))) == []
    assert texts(job, claims((0, "a", (1, 2)))) == [
        "demo-worker-0 has GPU 1,2 of a by its claim, planned was GPU 0,3 of a"
    ]
    assert texts(job, claims((0, "b", (0, 3)))) == [
        "demo-worker-0 has GPU 0,3 of b by its claim, planned was GPU 0,3 of a"
    ]


def test_a_pod_of_others_on_our_gpus_is_drift_where_they_were_promised():
    given = (
        Given(who="ml/notebook-0", node="a", gpus=(3, 4)),
        Given(who="team-a/demo-worker-0", node="a", gpus=(6, 7)),
    )
    fresh = Sightings(kubelets=given, observed_at={"a": T0 + 60})
    assert texts(status(*all_well()), fresh) == [
        "pod ml/notebook-0 has GPU 3 of a, planned for demo-worker-0"
    ]
    # Seen before our pod began, it may have ended since.
    assert texts(status(*all_well()), replace(fresh, observed_at={"a": T0})) == []
    # Where the kubelet picks the devices, ours are not the ones planned either.
    assert texts(status(*all_well(), guarantee="node"), fresh) == []


# On the command line.


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.now = NOW
    fake.add({"kind": "Namespace", "metadata": {"name": "arena-topo-system"}})
    yield fake
    fake.close()


def moved(api: FakeApi, **more: Any) -> None:
    """A job that runs, whose third worker is not where it was planned."""
    record = ours("placed", map="a/0,3;a/1,2;b/0,3;b/1,2", binding="admission", guarantee="gpus")
    api.add(mpijob(CREATED, RUNNING, notes=record | more))
    api.add(launcher(**runs()))
    for index, where, gpus in PLAN:
        notes = {"topology.kubernetes.io/gpu-group": ",".join(map(str, gpus))}
        there = "c" if index == 2 else where
        api.add(worker(index, "Running", node=there, notes=notes, **runs()))


def test_get_shows_one_line_of_drift_and_a_list_in_json(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    moved(api)
    words = ("-n", "team-a", "--kubeconfig", kubeconfig(tmp_path / "config", api.url))
    assert cli.run(["get", "demo", *words]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\n\nDrift: demo-worker-2 runs on c, planned was b\n")
    assert cli.run(["get", "demo", "-o", "json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["drift"] == [
        {
            "kind": "OtherNode",
            "worker": 2,
            "pod": "demo-worker-2",
            "planned": "b",
            "seen": "c",
            "message": "demo-worker-2 runs on c, planned was b",
        }
    ]
    with api.edit("Pod", "demo-worker-2", "team-a") as pod:
        pod["spec"]["nodeName"] = "b"
    assert cli.run(["get", "demo", *words]) == 0
    assert "Drift" not in capsys.readouterr().out
    assert cli.run(["get", "demo", "-o", "json", *words]) == 0
    assert "drift" not in json.loads(capsys.readouterr().out)


def test_what_kubelets_gave_to_others_is_read_from_their_agents(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    moved(api)
    api.add(
        {
            "kind": "ConfigMap",
            "metadata": {
                "name": "a-gpu-topology",
                "namespace": "arena-topo-system",
                "labels": {"nodename": "a", "ack.node.gpu.schedule": "topology"},
            },
            "data": {
                "nodeName": "a",
                "allocations": '{"ml/notebook-0": [2]}',
                "observedAt": at(300),
            },
        }
    )
    words = ("-n", "team-a", "--kubeconfig", kubeconfig(tmp_path / "config", api.url))
    assert cli.run(["get", "demo", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "pod ml/notebook-0 has GPU 2 of a, planned for demo-worker-1" in out
    # Who may not read that is told of the rest.
    api.deny("list configmaps arena-topo-system")
    assert cli.run(["get", "demo", *words]) == 0
    assert "notebook" not in capsys.readouterr().out


def test_claims_are_compared_by_the_devices_that_slices_publish(api: FakeApi, tmp_path: Path):
    record = ours("placed", map="a/0,3;a/1,2;b/0,3;b/1,2", binding="claims", guarantee="gpus")
    api.add(mpijob(CREATED, RUNNING, notes=record))
    api.add(launcher(**runs()))
    for where in ("a", "b"):
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {
                    "uuid": {"string": f"GPU-{where}{index}"},
                    "index": {"int": index},
                    "productName": {"string": "Tesla V100-SXM2-32GB"},
                },
            }
            for index in range(4)
        ]
        pool = {"name": where, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": where, "pool": pool, "devices": devices}
        api.add({"kind": "ResourceSlice", "metadata": {"name": f"{where}-1"}, "spec": spec})
    for index, where, gpus in PLAN:
        api.add(worker(index, "Running", node=where, **runs()))
        held = (0, 1) if index == 2 else gpus
        results = [
            {"driver": "gpu.nvidia.com", "pool": where, "device": f"gpu-{gpu}", "request": "gpus"}
            for gpu in held
        ]
        api.add(
            {
                "kind": "ResourceClaim",
                "metadata": {"name": f"demo-worker-{index}", "namespace": "team-a"},
                "spec": {},
                "status": {
                    "allocation": {"devices": {"results": results}},
                    "reservedFor": [{"resource": "pods", "name": f"demo-worker-{index}"}],
                },
            }
        )
    config = kubeconfig(tmp_path / "config", api.url)
    backend = kubernetes.open_kubernetes(Options(kubeconfig=config))
    found = drift.drift_of(backend, backend.job("demo", "team-a"))
    assert [str(one) for one in found] == [
        "demo-worker-2 has GPU 0,1 of b by its claim, planned was GPU 0,3 of b"
    ]


# What nvidia-smi says.

UUIDS = [f"GPU-0000000{index}-1111-2222-3333-444444444444" for index in range(4)]
SAYS = "".join(f"GPU {i}: Tesla V100-SXM2-32GB (UUID: {one})\n" for i, one in enumerate(UUIDS))


def test_the_list_of_nvidia_smi_is_read_line_by_line():
    assert parse_smi_list(SAYS)[2] == SeenDevice(
        index=2, name="Tesla V100-SXM2-32GB", uuid=UUIDS[2]
    )
    assert len(parse_smi_list(SAYS)) == 4
    assert parse_smi_list("No devices found.\n") == ()
    assert parse_smi_list("") == ()


def test_a_gpu_that_is_cut_up_counts_as_its_slices():
    text = (
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUIDS[0]})\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-6b5c4aa2-0000-5555-9999-aaaaaaaaaaaa)\n"
        "  MIG 1g.5gb      Device  1: (UUID: MIG-6b5c4aa2-1111-5555-9999-aaaaaaaaaaaa)\n"
        f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {UUIDS[1]})\n"
    )
    assert [one.uuid for one in parse_smi_list(text)] == [
        "MIG-6b5c4aa2-0000-5555-9999-aaaaaaaaaaaa",
        "MIG-6b5c4aa2-1111-5555-9999-aaaaaaaaaaaa",
        UUIDS[1],
    ]


# Commands in pods, over a real WebSocket.

Answer = Callable[["Peer", dict[str, Any]], object]


class Peer:
    """The server's side of one WebSocket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, channel: int, data: bytes, opcode: int = 2) -> None:
        payload = bytes([channel]) + data
        size = len(payload)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([size])
        elif size < 1 << 16:
            head += bytes([126]) + struct.pack(">H", size)
        else:
            head += bytes([127]) + struct.pack(">Q", size)
        self._connection.sendall(head + payload)

    def finish(self, status: dict[str, Any]) -> None:
        self.send(3, json.dumps(status).encode())
        self._connection.sendall(bytes([0x88, 2]) + struct.pack(">H", 1000))

    def drop(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)


class ExecServer:
    """An API server of which only `pods/exec` is there; the protocols it knows can be chosen."""

    def __init__(self, answer: Answer, protocols: list[str], refusal: bytes = b"") -> None:
        self._answer, self._protocols, self._refusal = answer, protocols, refusal
        self.requests: list[dict[str, Any]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # Without it the thread goes on accepting, on whatever listens there next.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        first, *lines = head.decode().split("\r\n\r\n")[0].split("\r\n")
        headers = {key.lower(): value for key, value in (one.split(": ", 1) for one in lines)}
        split = urlsplit(first.split()[1])
        asked = {"path": split.path, "query": parse_qsl(split.query), "headers": headers}
        self.requests.append(asked)
        if self._refusal:
            connection.sendall(self._refusal)
            return
        wanted = [one.strip() for one in headers["sec-websocket-protocol"].split(",")]
        chosen = next(one for one in wanted if one in self._protocols)
        magic = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        digest = hashlib.sha1(headers["sec-websocket-key"].encode() + magic).digest()
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Protocol: {chosen}\r\n".encode()
            + b"Sec-WebSocket-Accept: "
            + base64.b64encode(digest)
            + b"\r\n\r\n"
        )
        asked["protocol"] = chosen
        self._answer(Peer(connection), asked)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[ExecServer, Connection]]]:
    servers: list[ExecServer] = []

    def start(
        answer: Answer = lambda _peer, _asked: None,
        *,
        protocols: tuple[str, ...] = (podexec.PROTOCOL,),
        refusal: bytes = b"",
    ) -> tuple[ExecServer, Connection]:
        server = ExecServer(answer, list(protocols), refusal)
        servers.append(server)
        config = kubeconfig(tmp_path / "config", server.url, user={"token": "secret-token"})
        return server, Connection(Options(kubeconfig=config))

    yield start
    for server in servers:
        server.close()


def test_a_command_returns_its_exit_code_and_both_outputs(serve: Any):
    def answer(peer: Peer, _asked: dict[str, Any]) -> None:
        peer.send(1, b"out-")
        peer.send(2, b"err")
        peer.send(1, b"put")
        cause = {"reason": "ExitCode", "message": "7"}
        peer.finish(
            {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
        )

    server, api = serve(answer)
    done = podexec.execute(api, "team-a", "demo-worker-0", ["sh", "-c", "exit 7"], container="mpi")
    assert done == Done(code=7, stdout=b"out-put", stderr=b"err")
    (asked,) = server.requests
    assert asked["path"] == "/api/v1/namespaces/team-a/pods/demo-worker-0/exec"
    assert asked["query"] == [
        ("command", "sh"),
        ("command", "-c"),
        ("command", "exit 7"),
        ("stdout", "true"),
        ("stderr", "true"),
        ("container", "mpi"),
    ]
    assert asked["headers"]["authorization"] == "Bearer secret-token"
    assert "origin" not in asked["headers"]
    assert asked["protocol"] == "v5.channel.k8s.io"


@pytest.mark.parametrize("channel", [1, 2])
def test_output_without_end_is_given_up(serve: Any, channel: int):
    def answer(peer: Peer, _asked: dict[str, Any]) -> None:
        with suppress(OSError):
            for _ in range(400):
                peer.send(channel, b"y\n" * (1 << 15))

    _, api = serve(answer)
    with pytest.raises(ClusterError) as caught:
        podexec.execute(api, "team-a", "demo-worker-0", ["nvidia-smi", "-L"])
    assert caught.value.message == "`nvidia-smi -L` in pod demo-worker-0 prints more than 4 MiB"


def test_a_command_runs_in_a_process_with_thousands_of_open_files(serve: Any):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    _, api = serve(lambda peer, _asked: peer.finish({"status": "Success"}))
    null = os.open(os.devnull, os.O_RDONLY)
    files = [null, *(os.dup(null) for _ in range(1100))]
    try:
        assert podexec.execute(api, "team-a", "demo-worker-0", ["true"]) == Done(code=0)
    finally:
        for one in files:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_long_output_arrives_whole(serve: Any):
    text = bytes(range(256)) * 1000

    def answer(peer: Peer, _asked: dict[str, Any]) -> None:
        peer.send(1, b"")
        peer.send(1, text)
        # The server closes each channel as it ends.
        peer.send(255, bytes([1]))
        peer.finish({"status": "Success"})

    _, api = serve(answer)
    done = podexec.execute(api, "team-a", "demo-worker-0", ["nvidia-smi", "-L"])
    assert done == Done(code=0, stdout=text)


def test_a_command_that_cannot_be_started_says_why(serve: Any):
    def answer(peer: Peer, _asked: dict[str, Any]) -> None:
        peer.finish(
            {
                "status": "Failure",
                "reason": "InternalError",
                "message": 'exec: "nvidia-smi": executable file not found in $PATH',
            }
        )

    _, api = serve(answer)
    with pytest.raises(ClusterError, match="`nvidia-smi -L` cannot be run in pod") as caught:
        podexec.execute(api, "team-a", "demo-worker-0", ["nvidia-smi", "-L"])
    assert "executable file not found" in (caught.value.why or "")


def status_of(code: int, reason: str, message: str) -> bytes:
    body = json.dumps({"kind": "Status", "reason": reason, "message": message, "code": code})
    return (
        f"HTTP/1.1 {code} No\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def test_who_may_not_run_commands_is_told_the_right(serve: Any):
    text = 'pods "demo-worker-0" is forbidden: User "alice" cannot create resource "pods/exec"'
    _, api = serve(refusal=status_of(403, "Forbidden", text))
    with pytest.raises(AccessDenied) as caught:
        podexec.execute(api, "team-a", "demo-worker-0", ["true"])
    assert caught.value.message == "not allowed to create pods/exec in namespace team-a"
    assert caught.value.why == text
    assert 'resources: ["pods/exec"], verbs: ["create"]' in (caught.value.hint or "")


def test_a_pod_that_is_gone_is_not_found(serve: Any):
    _, api = serve(refusal=status_of(404, "NotFound", 'pods "demo-worker-0" not found'))
    with pytest.raises(NotFound, match='pods "demo-worker-0" not found'):
        podexec.execute(api, "team-a", "demo-worker-0", ["true"])


def test_a_command_that_hangs_and_a_connection_that_breaks_are_told_apart(serve: Any):
    hold = threading.Event()
    _, api = serve(lambda _peer, _asked: hold.wait(10))
    with pytest.raises(TimedOut, match=r"did not end within 0\.3 s"):
        podexec.execute(api, "team-a", "demo-worker-0", ["sleep", "1"], timeout=0.3)
    hold.set()

    def half(peer: Peer, _asked: dict[str, Any]) -> None:
        peer.send(1, b"half")
        peer.drop()

    _, api = serve(half)
    with pytest.raises(ClusterError, match="broke the connection to pod demo-worker-0"):
        podexec.execute(api, "team-a", "demo-worker-0", ["true"])
    server, api = serve()
    server.close()
    with pytest.raises(ClusterError):
        podexec.execute(api, "team-a", "demo-worker-0", ["true"])


def test_a_connection_that_closes_before_the_end_is_no_success(serve: Any):
    def answer(peer: Peer, _asked: dict[str, Any]) -> None:
        peer.send(1, b"all is w")
        peer._connection.sendall(bytes([0x88, 2]) + struct.pack(">H", 1000))

    _, api = serve(answer)
    with pytest.raises(ClusterError, match="broke the connection to pod demo-worker-0"):
        podexec.execute(api, "team-a", "demo-worker-0", ["true"])


def test_an_exit_code_that_has_arrived_outlives_the_connection(serve: Any):
    def answer(peer: Peer, _asked: dict[str, Any]) -> None:
        peer.send(1, b"all")
        peer.send(3, json.dumps({"status": "Success"}).encode())
        linger = struct.pack("ii", 1, 0)
        peer._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    _, api = serve(answer)
    done = podexec.execute(api, "team-a", "demo-worker-0", ["true"])
    assert done == Done(code=0, stdout=b"all")


# A look into the workers of a job.


class Looked:
    """A cluster of which only this matters: what nvidia-smi says in each pod."""

    def __init__(self, cluster: Any, answers: dict[str, Any]) -> None:
        self._cluster, self._answers = cluster, answers

    def cluster(self) -> Any:
        return self._cluster

    def execute(self, _namespace: str, pod: str, command: Any) -> Done:
        assert tuple(command) == ("nvidia-smi", "-L")
        answer = self._answers[pod]
        if isinstance(answer, Exception):
            raise answer
        return answer


def world(*, published: bool) -> Any:
    machines = []
    for where in ("a", "b"):
        gpus = tuple(
            replace(one, uuid=f"GPU-{where}-{one.index}" if published else None)
            for one in V100.gpus
        )
        machines.append(known(where, replace(V100, name=where, gpus=gpus)))
    return cluster(*machines)


def says(*uuids: str) -> Done:
    lines = (f"GPU {at}: Tesla V100-SXM2-32GB (UUID: {one})" for at, one in enumerate(uuids))
    return Done(code=0, stdout="\n".join(lines).encode() + b"\n")


def test_workers_are_compared_by_uuid_where_those_are_published():
    answers = {
        "demo-worker-0": says("GPU-a-3", "GPU-a-0"),
        "demo-worker-1": says("GPU-a-1", "GPU-a-4"),
        "demo-worker-2": ClusterError("`nvidia-smi -L` cannot be run", why="not found in $PATH"),
        "demo-worker-3": Done(code=9, stderr=b"NVIDIA-SMI has failed\n"),
    }
    found = drift.ask_workers(Looked(world(published=True), answers), status(*all_well()))
    assert [one.agrees for one in found] == [True, False, None, None]
    assert found[1].uuids == ("GPU-a-1", "GPU-a-2")
    assert found[2].trouble == "`nvidia-smi -L` cannot be run: not found in $PATH"
    assert found[3].trouble == "nvidia-smi ended with 9: NVIDIA-SMI has failed"


def test_a_claim_may_give_a_worker_any_group_that_was_planned_for_its_node():
    answers = {
        "demo-worker-0": says("GPU-a-1", "GPU-a-2"),
        "demo-worker-1": says("GPU-a-3", "GPU-a-0"),
        "demo-worker-2": says("GPU-b-0", "GPU-b-1"),
        "demo-worker-3": says("GPU-a-1", "GPU-a-2"),
    }
    looked = Looked(world(published=True), answers)
    found = drift.ask_workers(looked, status(*all_well(), binding="claims"))
    assert [one.agrees for one in found] == [True, True, False, False]
    # Everywhere else each worker has its own.
    found = drift.ask_workers(looked, status(*all_well()))
    assert not any(one.agrees for one in found)


def test_without_uuids_the_number_of_gpus_is_compared():
    answers = {f"demo-worker-{index}": says(*UUIDS[:2]) for index in range(4)}
    answers["demo-worker-3"] = says(*UUIDS)
    found = drift.ask_workers(Looked(world(published=False), answers), status(*all_well()))
    assert [one.agrees for one in found] == [True, True, True, False]


def test_workers_that_do_not_run_are_not_asked():
    pods = [runner(0, started=None), *all_well()[1:3]]
    answers = {name: says(*UUIDS[:2]) for name in ("demo-worker-1", "demo-worker-2")}
    found = drift.ask_workers(Looked(world(published=False), answers), status(*pods))
    assert [one.trouble for one in found] == ["it does not run", None, None, "it does not run"]
