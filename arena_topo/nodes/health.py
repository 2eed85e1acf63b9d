"""Which GPUs of this machine answer, and what is wrong with the others: NVML, else nvidia-smi.

`scheduler.look` says what the machine is; here is what may change while it runs: a GPU that falls
off the bus, one that the driver reports critical errors of, MIG devices that come and go.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from arena_topo.errors import ArenaError

APPLICATION_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program causes and its GPU survives: graphics engine exception, page fault, stopped
processing, cleanup, video processor exception, context switch timeout. The list is that of NVIDIA's
device plugin (k8s-device-plugin, internal/rm/health.go, v0.20), so that both judge alike."""

_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")

_REOPEN = 20
"""Looks after which NVML is opened anew, which alone notices GPUs that have come or come back."""

_TIMEOUT = 30.0
"""Seconds for nvidia-smi, which initialises each GPU where no daemon keeps them so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What was seen of the GPUs: `uuids` by index of those that answer, `ill` reasons by UUID.

    `parts` are the MIG devices: the UUID of each, and that of its GPU.
    """

    uuids: Mapping[int, str]
    ill: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


class Watch:
    """Looks at the GPUs again and again. ArenaError if they cannot be listed at all.

    NVML is kept open in between, as it reports errors (Xids) only to those who listen; without it
    nvidia-smi tells which GPUs there are. A GPU with a critical error stays ill until it has gone,
    as a reset makes it, or until another watch begins.
    """

    def __init__(self, nvml: Any | None = None) -> None:
        self._nvml: Any = nvml
        self._events: Any = None
        self._open = False
        self._looks = 0
        self._ill: dict[str, str] = {}

    def look(self) -> Sight:
        """The GPUs now."""
        if self._nvml is None:
            # The driver may come later than we.
            self._nvml = _pynvml()
        if self._nvml is None:
            return _smi()
        try:
            return self._look()
        except self._nvml.NVMLError as error:
            self.close()
            raise ArenaError(f"NVML does not list the GPUs: {error}") from error

    def close(self) -> None:
        """Let go of the driver."""
        if self._open:
            with contextlib.suppress(self._nvml.NVMLError):
                if self._events is not None:
                    self._nvml.nvmlEventSetFree(self._events)
                self._nvml.nvmlShutdown()
        self._open, self._events = False, None

    def _look(self) -> Sight:
        self._listen()
        if self._open and self._looks % _REOPEN == 0:
            self.close()
        if not self._open:
            self._begin()
        self._looks += 1
        nvml = self._nvml
        uuids: dict[int, str] = {}
        parts: dict[str, str] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = self._handle(index)
            if handle is None:
                # So that one that comes back is seen at once.
                self._looks = 0
                continue
            uuids[index] = str(nvml.nvmlDeviceGetUUID(handle))
            parts |= dict.fromkeys(self._migs(handle), uuids[index])
        self._ill = {uuid: why for uuid, why in self._ill.items() if uuid in uuids.values()}
        return Sight(uuids=uuids, ill=dict(self._ill), parts=parts)

    def _listen(self) -> None:
        """Note the critical errors that GPUs have reported since the last look; never waits."""
        nvml = self._nvml
        if self._events is None:
            return
        with contextlib.suppress(nvml.NVMLError):  # the time is over: there are no more
            while True:
                event = nvml.nvmlEventSetWait(self._events, 0)
                xid = int(event.eventData)
                critical = event.eventType == nvml.nvmlEventTypeXidCriticalError
                if critical and xid not in APPLICATION_ERRORS:
                    self._ill[str(nvml.nvmlDeviceGetUUID(event.device))] = f"Xid {xid}"

    def _begin(self) -> None:
        nvml = self._nvml
        nvml.nvmlInit()
        self._open = True
        # What is too old to report errors is watched without.
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            self._events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):
                    nvml.nvmlDeviceRegisterEvents(
                        nvml.nvmlDeviceGetHandleByIndex(index),
                        nvml.nvmlEventTypeXidCriticalError,
                        self._events,
                    )

    def _handle(self, index: int) -> Any:
        """A GPU that answers, or None. A lost one may still have a handle and a UUID."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError:
            return None
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            code = getattr(error, "value", None)
            if code is not None and code in {getattr(nvml, name, None) for name in _LOST}:
                return None
        return handle

    def _migs(self, handle: Any) -> list[str]:
        nvml = self._nvml
        found = []
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(nvml.NVMLError):
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
                    found.append(str(nvml.nvmlDeviceGetUUID(part)))
        return found


def _pynvml() -> Any | None:
    """NVML, where its package and the driver's library are there."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    nvml.nvmlShutdown()
    return nvml


_LISTED = re.compile(r"\s*(?:GPU (\d+)|MIG .+):.*\(UUID: (\S+)\)")
"""A line of `nvidia-smi -L`: `GPU 0: NVIDIA A100 (UUID: GPU-...)`, its parts indented below it."""


def _smi() -> Sight:
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ArenaError(f"nvidia-smi does not list the GPUs: {error}") from error
    uuids: dict[int, str] = {}
    parts: dict[str, str] = {}
    last = ""
    for line in done.stdout.splitlines():
        found = _LISTED.match(line)
        if found and found[1]:
            last = uuids[int(found[1])] = found[2]
        elif found and last:
            parts[found[2]] = last
    # It fails because of one GPU that is lost, and lists the others all the same.
    if not uuids:
        said = (done.stderr + done.stdout).strip().partition("\n")[0]
        raise ArenaError("nvidia-smi lists no GPUs", why=said or None)
    return Sight(uuids=uuids, parts=parts)
