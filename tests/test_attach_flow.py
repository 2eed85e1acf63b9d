"""attach: what comes with the server's consent, and servers that take nothing more."""

from __future__ import annotations

import os
import select
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig
from test_attach import TLS, WAIT, Place

UNPINGED = """
import sys
from arena_topo import cli
from arena_topo.engines.kubernetes import podexec
podexec.PING = 1e6
sys.exit(cli.run(sys.argv[1:]))
"""
"""The program, which no ping of its own ever wakes."""

OFFERED = 64 << 20
"""Bytes of input: several times what sockets and those between them hold on the way."""


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_what_comes_together_with_the_consent_is_shown_at_once(tmp_path: Path, secure: bool):  # noqa: FBT001
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    api = FakeApi(tls=context if secure else None)
    api.execs.eager = True
    cluster = {"certificate-authority": str(TLS / "ca.pem")} if secure else {}
    try:
        place = Place(
            api,
            kubeconfig(tmp_path / "config", api.url, user={"username": "alice"}, cluster=cluster),
        )
        words = ["attach", "demo", "--", "sh", "-c", "echo ready; read x; echo $x"]
        line = [sys.executable, "-c", UNPINGED, f"--kubeconfig={place.config}", *words]
        with subprocess.Popen(line, stdin=-1, stdout=-1, stderr=-1) as inside:
            try:
                ready, _, _ = select.select([inside.stdout], [], [], WAIT)
                assert ready, "nothing is shown"
                assert inside.stdout.readline() == b"ready\n"
                assert inside.communicate(b"go\n", timeout=WAIT)[0] == b"go\n"
            finally:
                inside.kill()
        assert inside.returncode == 0
    finally:
        api.close()


def test_no_more_input_is_read_than_the_server_takes(tmp_path: Path):
    api = FakeApi()
    api.execs.stuffed = True
    try:
        config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
        place = Place(api, config)
        (tmp_path / "input").touch()
        os.truncate(tmp_path / "input", OFFERED)
        with (tmp_path / "input").open("rb", buffering=0) as offered:
            done = place.run("--timeout", "3", "--", "sleep", "600", stdin=offered)
            # Its place in the file is shared with the program that read it.
            assert offered.tell() < OFFERED // 2
        assert done.returncode == 6, done.stderr.decode()
    finally:
        api.execs.cut()
        api.close()
