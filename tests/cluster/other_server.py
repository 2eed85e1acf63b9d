"""A second API server on the etcd of the control plane, which a test may kill and start again.

Nobody but the test uses it. Its audit log has all requests, also those of before a restart.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from clusters import Live
from controlplane import API_SERVER, STARTS, DidNotStart, free_port, spawned

NAME = "second-kube-apiserver"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def complete_lines(path: Path) -> list[str]:
    """The lines of a file that another process writes; its last may not be complete yet."""
    return path.read_text().rpartition("\n")[0].splitlines()


@dataclass(slots=True)
class OtherServer:
    """A second API server; `programs` and `folder` are those of the control plane."""

    programs: Path
    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the server, the same after a restart."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def _audit(self) -> Path:
        return self.folder / f"{NAME}.audit"

    def start(self, live: Live) -> None:
        """Start it, and wait until it serves whoever `live` is.

        Raises:
            DidNotStart: with its whole log.
        """
        (self.folder / "audit.json").write_text(json.dumps(POLICY))
        self._process = spawned(
            *(self.folder, NAME, str(self.programs / "kube-apiserver")),
            *(f"--secure-port={self.port}", *API_SERVER),
            *("--audit-policy-file=audit.json", f"--audit-log-path={self._audit}"),
        )
        deadline = time.monotonic() + STARTS
        while True:
            try:
                if live.call("GET", "/readyz").status == 200:
                    return
            except Exception:  # noqa: BLE001  it does not answer yet, in one way or another
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise DidNotStart((self.folder / "logs" / NAME).read_text()) from None
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it, and all connections with it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def requests(self, namespace: str) -> Counter[str]:
        """How often each thing was asked for in a namespace, such as `list pods`."""
        asked: dict[str, str] = {}
        for line in complete_lines(self._audit):
            record = json.loads(line)
            thing = record.get("objectRef") or {}
            if thing.get("namespace") == namespace:
                what = "/".join(filter(None, (thing["resource"], thing.get("subresource"))))
                asked[record["auditID"]] = f"{record['verb']} {what}"
        return Counter(asked.values())
