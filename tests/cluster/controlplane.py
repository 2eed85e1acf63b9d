"""A Kubernetes control plane of its own, with simulated kubelets and an MPI operator.

Everything is on loopback and in one folder, with a certificate and tokens made for this run. The
only ports are those of the API server and of the kubelets, who serve the logs of containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import definitions  # noqa: E402

Object = dict[str, Any]

ADMIN = "admin"
USERS = {
    ADMIN: ("system:masters",),
    "system:kube-controller-manager": (),
    "system:kube-scheduler": (),
    "kubelets": ("system:masters",),
    "mpi-operator": ("system:masters",),
}
"""Each user with groups; each has a token."""

STARTS = 50.0
"""Seconds within which each component has to be up."""
STOPS = 15.0
"""Seconds that a component has to end after SIGTERM."""
LEASE = 12
"""Seconds for which a kubelet's sign of life counts; a quarter of it is between two of them."""
GRACE = 20
"""Seconds of silence after which a machine counts as lost (40 on most clusters)."""
TOLERATED = 30
"""Seconds for which pods tolerate a machine that does not answer (300 on most clusters)."""
NEVER = 10**6
"""The same where no kubelet gives any."""


API_SERVER = (
    "--etcd-servers=unix://client:1",
    f"--default-not-ready-toleration-seconds={TOLERATED}",
    f"--default-unreachable-toleration-seconds={TOLERATED}",
    *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
    "--endpoint-reconciler-type=none",
    *("--tls-cert-file=server.pem", "--tls-private-key-file=server.key"),
    *("--token-auth-file=tokens.csv", "--anonymous-auth=false"),
    "--authorization-mode=RBAC",
    "--service-account-issuer=https://kubernetes.default.svc",
    "--service-account-key-file=accounts.key",
    "--service-account-signing-key-file=accounts.key",
    *("--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true"),
    "--kubelet-preferred-address-types=InternalIP",
    # Lists over watches need etcd 3.4.31, which is newer than Debian's.
    *("--feature-gates=WatchList=false", "--profiling=false"),
)
"""What each API server is started with, in the folder of the control plane."""
LOGS = "pods"
"""Below the folder: the logs of containers, as below /var/log/pods."""


class DidNotStart(Exception):
    """A component ended, or was not up in time; the message has the end of its log."""


@dataclass(slots=True)
class ControlPlane:
    """Components that run, from the programs of a folder; `close` ends all of them."""

    programs: Path
    folder: Path
    operator: Path | None = None
    """A real MPI operator; the simulated one where there is none."""
    steady: bool = False
    """Whether machines stay ready without any sign of life, and nobody runs their pods."""
    url: str = ""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    _trust: ssl.SSLContext | None = None

    def start(self) -> None:
        """Start everything, and wait until all of it works.

        Raises:
            DidNotStart: with the end of the log of what did not.
        """
        (self.folder / "logs").mkdir()
        self._keys()
        self._etcd()
        self._api_server()
        self._controllers()
        for one in (definitions.mpijob(), *definitions.kueue()):
            self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
        self._until("kube-controller-manager", self._has_accounts)
        self._until("kube-apiserver", lambda: self._serves("/apis/kubeflow.org/v2beta1/mpijobs"))
        if not self.steady:
            self._kubelets()
            self._operator()

    def close(self) -> None:
        """End all components, those that others depend on last."""
        for name, process in reversed(self.running.items()):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOPS)
            except subprocess.TimeoutExpired:
                print(f"{name} did not end and is killed", file=sys.stderr)
                process.kill()
                process.wait()
        self.running.clear()

    def ended(self) -> list[str]:
        """What each component said last that has ended by itself."""
        return [
            f"{name} ended with {process.returncode}:\n{self._said(name)}"
            for name, process in self.running.items()
            if process.poll() is not None
        ]

    # What tests use.

    def kubeconfig(self, user: str = ADMIN, namespace: str = "default") -> Path:
        """A kubeconfig of one of the users."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        trust = str(self.folder / "server.pem")
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": trust},
                }
            ],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [
                {
                    "name": "test",
                    "context": {"cluster": "test", "user": user, "namespace": namespace},
                }
            ],
        }
        path.write_text(json.dumps(document))
        return path

    def call(self, method: str, path: str, body: Object | None = None) -> Any:
        """One request as the administrator; the object or the text of the answer."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self._tokens[ADMIN]}",
                "content-type": "application/json",
            },
        )
        with urllib.request.urlopen(request, context=self._trust, timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    # The components.

    def _keys(self) -> None:
        """The server's certificate, which is its own authority, the key of accounts, the tokens."""
        self._openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=arena-topo-tests"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", "server.key", "-out", "server.pem"),
        )
        self._openssl("genrsa", "-out", "accounts.key", "2048")
        self._trust = ssl.create_default_context(cafile=str(self.folder / "server.pem"))
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        lines = [
            f'{self._tokens[user]},{user},{user},"{",".join(groups)}"\n'
            for user, groups in USERS.items()
        ]
        (self.folder / "tokens.csv").write_text("".join(lines))

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def _etcd(self) -> None:
        # Sockets in the folder: whoever may not read it reaches no etcd.
        self._run(
            *("etcd", "--name=test", "--data-dir=etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *("--listen-client-urls=unix://client:1", "--advertise-client-urls=unix://client:1"),
            *("--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=unix://peer:1"),
            *("--initial-cluster=test=unix://peer:1", "--quota-backend-bytes=4294967296"),
            program=("etcd",),
        )

    def _api_server(self) -> None:
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        self._run("kube-apiserver", f"--secure-port={port}", *API_SERVER)
        self._until("kube-apiserver", lambda: self._serves("/readyz"))

    def _controllers(self) -> None:
        who = "system:kube-controller-manager"
        self._run(
            *("kube-controller-manager", f"--kubeconfig={self.kubeconfig(who)}"),
            *("--secure-port=0", "--leader-elect=false", "--use-service-account-credentials"),
            *("--service-account-private-key-file=accounts.key", "--root-ca-file=server.pem"),
            f"--node-monitor-grace-period={NEVER if self.steady else GRACE}s",
            *("--node-monitor-period=2s", "--kube-api-qps=500", "--kube-api-burst=1000"),
            "--profiling=false",
        )
        who = "system:kube-scheduler"
        settings = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(self.kubeconfig(who)),
                "qps": 500,
                "burst": 1000,
            },
            "leaderElection": {"leaderElect": False},
            "enableProfiling": False,
        }
        (self.folder / "scheduler.json").write_text(json.dumps(settings))
        self._run("kube-scheduler", "--config=scheduler.json", "--secure-port=0")

    def _kubelets(self) -> None:
        config, port = self.kubeconfig("kubelets"), free_port()
        (self.folder / LOGS).mkdir()
        self._run(
            *("kubelet-logs", f"--kubeconfig={config}", f"--logs={LOGS}"),
            *(f"--address=127.0.0.1:{port}", "--tls-cert-file=server.pem"),
            "--tls-private-key-file=server.key",
        )
        stages = (HERE / "stages.yaml").read_text().replace("KUBELET_PORT", str(port))
        (self.folder / "stages.yaml").write_text(stages)
        self._run(
            *("kwok", f"--kubeconfig={config}"),
            *("--config=stages.yaml", "--node-ip=127.0.0.1", "--node-port=0"),
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector=arena-topo.io/kubelet",
            f"--node-lease-duration-seconds={LEASE}",
        )

    def _operator(self) -> None:
        config = self.kubeconfig("mpi-operator")
        if self.operator is None:
            program = (sys.executable, str(HERE / "mpi_operator.py"))
            self._run("operator", f"--kubeconfig={config}", program=program)
            log = self.folder / "logs" / "operator"
            self._until("operator", lambda: "ready" in log.read_text())
            return
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mpi-operator"}}
        self.call("POST", "/api/v1/namespaces", space)
        usage = subprocess.run([self.operator, "--help"], capture_output=True, check=False).stderr
        # Before 0.7 its queue has no limits that can be set.
        faster = ("--controller-queue-rate-limit=1000", "--controller-queue-burst=10000")
        self._run(
            *("operator", f"--kubeConfig={config}", "--lock-namespace=mpi-operator"),
            *("--kube-api-qps=500", "--kube-api-burst=1000"),
            *(faster if b"-controller-queue-burst" in usage else ()),
            program=(str(self.operator),),
        )

    # How they are started and watched.

    def _run(self, name: str, *words: str, program: tuple[str, ...] = ()) -> None:
        """Start a component, by default the program of its name; its log has that name as well."""
        command = program or (str(self.programs / name),)
        self.running[name] = spawned(self.folder, name, *command, *words)

    def _until(self, name: str, holds: Any) -> None:
        deadline = time.monotonic() + STARTS
        while not holds():
            if ended := self.ended():
                raise DidNotStart(ended[0])
            if time.monotonic() > deadline:
                raise DidNotStart(f"{name} is not up after {STARTS:.0f} s:\n{self._said(name)}")
            time.sleep(0.1)

    def _said(self, name: str) -> str:
        lines = (self.folder / "logs" / name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def _serves(self, path: str) -> bool:
        try:
            self.call("GET", path)
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _has_accounts(self) -> bool:
        return self._serves("/api/v1/namespaces/default/serviceaccounts/default")


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def spawned(folder: Path, name: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a component in the folder of a control plane; its log has the given name."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "KUBE_FEATURE_WatchListClient": "false",
    }
    with (folder / "logs" / name).open("ab") as log:
        return subprocess.Popen(
            # Where this process is killed, the kernel ends what it has started.
            ["setpriv", "--pdeathsig=KILL", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def started(
    programs: Path, *, operator: Path | None = None, steady: bool = False, logs: Path | None = None
) -> Iterator[ControlPlane]:
    """A control plane for as long as the block runs; `logs` is where its logs are left."""
    folder = Path(tempfile.mkdtemp(prefix="arena-topo-cluster-"))
    plane = ControlPlane(programs, folder, operator=operator, steady=steady)
    try:
        plane.start()
        yield plane
    finally:
        plane.close()
        if logs is not None:
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(folder / "logs", logs, dirs_exist_ok=True)
        shutil.rmtree(folder)
