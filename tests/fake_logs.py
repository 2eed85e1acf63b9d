"""The logs of a fake API server: what containers wrote, and how kubelets hand it out.

Texts and habits are those of a 1.36 kubelet: `sinceTime` counts in whole seconds and lets its own
second through; `tailLines` are counted before that; a stream ends with its container. One thing is
harder for a reader: Kubernetes 1.36 sends the head of an answer at once, and here nothing comes
before there is a byte of the log, as from a server that does not flush the head.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fake_resources import Object, Refused

if TYPE_CHECKING:
    from fake_api import FakeApi
    from fake_http import Handler


PART = 16_384
"""Bytes of a line after which containerd starts another part (its max_container_log_line_size)."""


@dataclass(slots=True)
class Log:
    """What one run of a container has written: (time, line) pairs, and whether it is over."""

    lines: list[tuple[str, bytes]] = field(default_factory=list)
    ended: bool = False
    breaks_after: int | None = None
    """Followers lose their connection once after so many lines."""
    breaks_at: list[int] = field(default_factory=list)
    """The next readers lose theirs after so many bytes of the body, chunk sizes included."""
    previous: Log | None = None
    lingers: bool = False
    """Followers are not told of its end, as where a node was lost; only `cut_logs` ends that."""


def log_of(api: FakeApi, space: str, name: str, query: dict[str, str]) -> Log | None:
    """The log that is asked for; None of a pod without a node, 400 where there is none to read."""
    pod, wanted = api.get("pods", space, name), query.get("container")
    spec = pod.get("spec") or {}
    mains = [one["name"] for one in spec.get("containers", ())]
    inits = [one["name"] for one in spec.get("initContainers", ())]
    if wanted is None:
        if len(mains) > 1:
            raise _bad(
                f"a container name must be specified for pod {name}, choose one of:"
                f" [{' '.join(mains)}]"
                + (f" or one of the init containers: [{' '.join(inits)}]" if inits else "")
            )
        wanted = next(iter(mains), "")
    elif wanted not in {*mains, *inits}:
        raise _bad(f"container {wanted} is not valid for pod {name}")
    if not spec.get("nodeName") and (space, name) not in api.logs:
        return None
    log = api.container_logs.get((space, name, wanted))
    if wanted in mains:
        log = log or api.logs.get((space, name))
    status = _status(pod, wanted)
    if query.get("previous") == "true":
        if log is None or log.previous is None:
            raise _bad(f'previous terminated container "{wanted}" in pod "{name}" not found')
        return log.previous
    if log is None and {"running", "terminated"} & set(status.get("state") or {}):
        key = (space, name)
        log = Log(ended="terminated" in status["state"])
        if wanted in mains:
            api.logs[key] = log
        else:
            api.container_logs[*key, wanted] = log
    if log is None:
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or "ContainerCreating"
        raise _bad(f'container "{wanted}" in pod "{name}" is waiting to start: {reason}')
    return log


def _bad(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def _status(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return next((one for one in every if one.get("name") == container), {})


def restart(api: FakeApi, pod: str, namespace: str = "default", *, code: int = 1) -> None:
    """Let the first container of a pod end with a code, and run anew."""
    with api.edit("Pod", pod, namespace) as thing:
        status = thing["status"]["containerStatuses"][0]
        old = api.logs.setdefault((namespace, pod), Log())
        old.ended = True
        api.logs[namespace, pod] = Log(previous=old)
        status["restartCount"] = status.get("restartCount", 0) + 1
        status["lastState"] = {"terminated": {"exitCode": code, "reason": "Error"}}
        now = datetime.fromtimestamp(api.clock()).astimezone().isoformat(timespec="seconds")
        status["state"] = {"running": {"startedAt": now}}


def parts(data: bytes) -> list[bytes]:
    """Lines as a container runtime keeps them: in parts of 16 KiB."""
    return [
        line[start : start + PART]
        for line in re.findall(rb"[^\n]*\n|[^\n]+", data)
        for start in range(0, len(line), PART)
    ]


def rfc3339_nano(when: float) -> str:
    """A time as kubelets write it: with nanoseconds."""
    return f"{datetime.fromtimestamp(int(when), UTC):%Y-%m-%dT%H:%M:%S}.{int(when % 1 * 1e9):09}Z"


def second(text: str) -> float:
    """The whole second that an RFC 3339 time is in, as Unix time."""
    zone = "Z" if text.endswith("Z") else text[-6:]
    return datetime.fromisoformat(text[:19] + zone).timestamp()


class _Sender:
    """Answers with chunks, and may break off at any byte of them."""

    def __init__(self, handler: Handler, breaks_at: int | None) -> None:
        self._handler = handler
        self._left = breaks_at
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._handler.begin({"Content-Type": "text/plain"})

    def chunk(self, data: bytes) -> None:
        self.begin()
        wire = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        if self._left is not None:
            if len(wire) > self._left:
                self._handler.wfile.write(wire[: self._left])
                self.hang_up()
            self._left -= len(wire)
        self._handler.wfile.write(wire)

    def hang_up(self) -> None:
        self._handler.connection.shutdown(socket.SHUT_RDWR)
        raise BrokenPipeError


def serve(handler: Handler, space: str, name: str, query: dict[str, str]) -> None:
    """Answer a request for `pods/NAME/log`."""
    fake: FakeApi = handler.fake
    with fake.lock:
        log = log_of(fake, space, name, query)
        uid = fake.get("pods", space, name)["metadata"]["uid"]
        breaks_at = log.breaks_at.pop(0) if log is not None and log.breaks_at else None
        opened = fake.logging
    if log is None:
        handler.no_content()
        return
    follow, stamped = query.get("follow") == "true", query.get("timestamps") == "true"
    since = _since(fake, query)
    start = 0
    if "tailLines" in query:
        start = max(0, len(log.lines) - int(query["tailLines"]))
    sender = _Sender(handler, breaks_at)
    sent, midline = 0, False
    while True:
        with fake.lock:
            while follow and len(log.lines) <= start and not _over(fake, log, (space, name), uid):
                if opened != fake.logging:
                    sender.begin()
                    sender.hang_up()
                fake.lock.wait(1)
            lines, start = log.lines[start:], len(log.lines)
            ended = not follow or _over(fake, log, (space, name), uid)
        for at, line in lines:
            if since is not None and second(at) < since:
                continue
            # Of a line that the runtime has cut only the first part has a time.
            stamp = b"" if midline or not stamped else f"{at} ".encode()
            midline = not line.endswith(b"\n")
            sender.chunk(stamp + line)
            sent += 1
            if log.breaks_after == sent:
                log.breaks_after = None
                sender.hang_up()
        if ended and start == len(log.lines):
            break
    sender.chunk(b"")


def _over(fake: FakeApi, log: Log, key: tuple[str, str], uid: str) -> bool:
    entry: Any = fake.tables["pods"].get(key)
    if log.lingers:
        return False
    return log.ended or entry is None or entry.thing["metadata"]["uid"] != uid


def _since(fake: FakeApi, query: dict[str, str]) -> float | None:
    if "sinceTime" in query:
        return second(query["sinceTime"])
    if "sinceSeconds" in query:
        return (fake.now or time.time()) - int(query["sinceSeconds"])
    return None
