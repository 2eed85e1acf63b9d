"""pods/exec of the fake API server: real processes of this machine behind a real WebSocket.

Protocols, channels and texts are those of a 1.36 API server with containerd.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import socket
import ssl
import struct
import subprocess
import termios
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from fake_resources import Object, Refused

if TYPE_CHECKING:
    from fake_http import Handler

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, SIZE, CLOSED = 0, 1, 2, 3, 4, 255
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PIECE = 1 << 15
_DRAINS = 5.0
"""Seconds for which a client may go on to send after the end of its command."""


class Execs:
    """What a test says about commands in pods, and sees of them."""

    def __init__(self) -> None:
        self.protocols = [PROTOCOL]
        self.environment: dict[str, str] = {}
        """What the processes have beside PATH, HOME, TERM and HOSTNAME."""
        self.programs: set[str] | None = None
        """The programs in images; None: all of this machine."""
        self.sizes: list[tuple[int, int]] = []
        self.pings = 0
        self.asked: list[list[tuple[str, str]]] = []
        self.chosen: list[str] = []
        self.deaf = False
        """Whether pings stay without an answer, and everything else too."""
        self.stuffed = False
        """Whether nothing at all is taken from who asks, so that connections fill up."""
        self.eager = False
        """Whether the consent leaves only with the first frame, over TLS in one record."""
        self.resets = False
        """Whether a connection is reset once the exit code is out, and never closed."""
        self.running: list[subprocess.Popen[bytes]] = []
        self.connections: list[socket.socket] = []
        self.ended = threading.Event()

    def cut(self) -> None:
        """Break all connections, as a network does."""
        for one in self.connections:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def check(pod: Object, query: list[tuple[str, str]]) -> None:
    """Refuse what no kubelet is asked."""
    wanted = dict(query).get("container")
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    kinds = ("containers", "initContainers", "ephemeralContainers")
    known = [one["name"] for kind in kinds for one in spec.get(kind) or ()]
    if wanted is None and len(spec["containers"]) > 1:
        raise Refused(
            400,
            "BadRequest",
            f"a container name must be specified for pod {name}, choose one of:"
            f" [{' '.join(known)}]",
        )
    if wanted is not None and wanted not in known:
        raise Refused(400, "BadRequest", f"container {wanted} is not valid for pod {name}")
    if not spec.get("nodeName"):
        raise Refused(400, "BadRequest", f"pod {name} does not have a host assigned")


def serve(handler: Handler, execs: Execs, pod: Object) -> None:
    """Take over a connection until its command has ended."""
    query = parse_qsl(urlsplit(handler.path).query, keep_blank_values=True)
    check(pod, query)
    wanted = [one.strip() for one in handler.headers["sec-websocket-protocol"].split(",")]
    chosen = next((one for one in wanted if one in execs.protocols), None)
    if chosen is None:
        raise Refused(403, "Forbidden", "unable to upgrade: unable to negotiate protocol")
    execs.asked.append(query)
    execs.chosen.append(chosen)
    digest = hashlib.sha1(handler.headers["sec-websocket-key"].encode() + _MAGIC).digest()
    consent = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        + f"Sec-WebSocket-Protocol: {chosen}\r\nSec-WebSocket-Accept: ".encode()
        + base64.b64encode(digest)
        + b"\r\n\r\n"
    )
    if not execs.eager:
        handler.wfile.write(consent)
        handler.wfile.flush()
        consent = b""
    execs.connections.append(handler.connection)
    try:
        _Session(handler.connection, execs, pod, query, consent).run()
    finally:
        execs.connections.remove(handler.connection)
        execs.ended.set()
    raise BrokenPipeError


class _Session:
    """One command, and the two sides of its streams."""

    def __init__(
        self,
        connection: socket.socket,
        execs: Execs,
        pod: Object,
        query: list[tuple[str, str]],
        held: bytes,
    ) -> None:
        self._connection, self._execs, self._pod = connection, execs, pod
        self._held = held
        self._command = [value for key, value in query if key == "command"]
        self._asked = {key for key, value in query if value == "true"}
        self._in = bytearray()
        self._typed = bytearray()
        self._input: int | None = None
        self._closing = False
        self._gone = False

    def run(self) -> None:
        program = self._command[0]
        programs = self._execs.programs
        known = shutil.which(program) is not None and (programs is None or program in programs)
        if not known:
            self._finish(
                {
                    "status": "Failure",
                    "reason": "InternalError",
                    "message": "Internal error occurred: error executing command in container:"
                    " failed to exec in container: failed to start exec: OCI runtime exec failed:"
                    " exec failed: unable to start container process: exec:"
                    f' "{program}": executable file not found in $PATH: unknown',
                }
            )
            return
        code = self._terminal() if "tty" in self._asked else self._pipes()
        if code is None:
            return
        if code == 0:
            self._finish({"status": "Success", "metadata": {}})
            return
        cause = {"reason": "ExitCode", "message": str(code)}
        self._finish(
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": f"command terminated with non-zero exit code: exit status {code}",
                "details": {"causes": [cause]},
            }
        )

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": "/",
            "HOSTNAME": self._pod["metadata"]["name"],
            **({"TERM": "xterm"} if "tty" in self._asked else {}),
            **self._execs.environment,
        }

    def _terminal(self) -> int | None:
        master, slave = os.openpty()
        # setsid makes the terminal its own, which no thread can do before an exec.
        child = subprocess.Popen(
            ["setsid", "--ctty", *self._command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=self._environment(),
        )
        os.close(slave)
        self._input = master
        return self._talk(child, {master: STDOUT})

    def _pipes(self) -> int | None:
        fed = "stdin" in self._asked
        child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
        )
        # Each end is closed once, here, by number.
        numbers = {}
        for stream, channel in ((child.stdout, STDOUT), (child.stderr, STDERR)):
            numbers[os.dup(stream.fileno())] = channel
            stream.close()
        if fed:
            self._input = os.dup(child.stdin.fileno())
            child.stdin.close()
        return self._talk(child, numbers)

    def _talk(self, child: subprocess.Popen[bytes], outputs: dict[int, int]) -> int | None:
        self._execs.running.append(child)
        tty = "tty" in self._asked
        if self._input is not None:
            os.set_blocking(self._input, False)
        try:
            while outputs and not self._gone:
                writes = [self._input] if self._typed and self._input is not None else []
                heard = [] if self._execs.stuffed else [self._connection]
                ready, writable, _ = select.select(
                    [*heard, *outputs], writes, [], 0 if self._pending() else None
                )
                if self._connection in ready or self._pending():
                    self._hear(tty=tty)
                for number in [one for one in outputs if one in ready]:
                    self._tell(number, outputs)
                if writable:
                    self._feed()
                if self._closing and not self._typed and self._input is not None and not tty:
                    os.close(self._input)
                    self._input = None
        finally:
            for number in {*outputs, *([self._input] if self._input is not None else [])}:
                with contextlib.suppress(OSError):
                    os.close(number)
            if self._gone:
                child.kill()
            code = child.wait()
        return None if self._gone else code if code >= 0 else 128 - code

    def _tell(self, number: int, outputs: dict[int, int]) -> None:
        try:
            data = os.read(number, _PIECE)
        except OSError:
            data = b""
        if data:
            self._send(outputs[number], data)
            return
        del outputs[number]
        if number != self._input:
            os.close(number)

    def _pending(self) -> bool:
        return isinstance(self._connection, ssl.SSLSocket) and self._connection.pending() > 0

    def _feed(self) -> None:
        assert self._input is not None
        try:
            sent = os.write(self._input, self._typed[:_PIECE])
            del self._typed[:sent]
        except BlockingIOError:
            return
        except OSError:
            self._typed.clear()

    def _hear(self, *, tty: bool) -> None:
        try:
            data = self._connection.recv(_PIECE)
        except OSError:
            data = b""
        if not data:
            self._gone = True
        self._in += data
        while (frame := self._frame()) is not None:
            opcode, payload = frame
            if opcode == 8:
                self._gone = True
            elif opcode == 9:
                self._execs.pings += 1
                if not self._execs.deaf:
                    self._raw(10, payload)
            elif payload[0] == STDIN:
                self._typed += payload[1:]
            elif payload[0] == CLOSED:
                assert payload[1] == STDIN
                self._closing = True
            elif payload[0] == SIZE and tty and self._input is not None:
                size = json.loads(payload[1:])
                self._execs.sizes.append((size["Width"], size["Height"]))
                value = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, value)

    def _frame(self) -> tuple[int, bytes] | None:
        data, head = self._in, 2
        if len(data) < head:
            return None
        assert data[1] & 0x80, "what clients send is masked"
        size = data[1] & 0x7F
        if size >= 126:
            form = ">H" if size == 126 else ">Q"
            head += struct.calcsize(form)
            if len(data) < head:
                return None
            (size,) = struct.unpack_from(form, data, 2)
        end = head + 4 + size
        if len(data) < end:
            return None
        mask, payload = bytes(data[head : head + 4]), bytes(data[head + 4 : end])
        opcode = data[0] & 0x0F
        del data[:end]
        key = int.from_bytes((mask * (size // 4 + 1))[:size])
        return opcode, (int.from_bytes(payload) ^ key).to_bytes(size)

    def _send(self, channel: int, data: bytes) -> None:
        self._raw(2, bytes([channel]) + data)

    def _raw(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([size])
        elif size < 1 << 16:
            head += bytes([126]) + struct.pack(">H", size)
        else:
            head += bytes([127]) + struct.pack(">Q", size)
        try:
            self._connection.sendall(self._held + head + payload)
            self._held = b""
        except OSError:
            self._gone = True

    def _finish(self, status: Object) -> None:
        more: dict[str, Any] = {"kind": "Status", "apiVersion": "v1"}
        self._send(STATUS, json.dumps({**more, **status}).encode())
        if self._execs.resets:
            linger = struct.pack("ii", 1, 0)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._connection.close()
            return
        self._raw(8, struct.pack(">H", 1000))
        if not self._execs.stuffed:
            self._drain()

    def _drain(self) -> None:
        """Read what the client still sends until it closes.

        A connection that is closed with unread bytes is reset, and what was sent before is lost.
        """
        end = time.monotonic() + _DRAINS
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                self._connection.settimeout(left)
                if not self._connection.recv(_PIECE):
                    return
