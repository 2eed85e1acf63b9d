"""The GPUs of this machine that answer NVML, and the problems of the others.

`scheduler.look` describes the machine. This module reads what changes while it runs: GPUs that fall
off the bus, GPUs with a critical error, MIG devices that come and go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from arena_topo.errors import ArenaError
from arena_topo.words import with_extra

APPLICATION_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that a program causes and its GPU survives: graphics engine exception, page fault, stopped
processing, cleanup, video processor exception, context switch timeout. The list is that of NVIDIA's
device plugin (k8s-device-plugin, internal/rm/health.go, v0.20), so that both agree."""

_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")

_REOPEN = 20
"""Looks after which NVML is reopened, the only way to notice GPUs that have appeared or
returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPoll:
    """The GPUs at one poll: `uuids` by index of those that answer, `ill` reasons by UUID.

    `parts` are the MIG devices: the UUID of each, and that of its GPU.
    """

    uuids: Mapping[int, str]
    ill: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


class GpuWatch:
    """Looks at the GPUs repeatedly. ArenaError if NVML does not list them.

    Making one is an ArenaError without NVML's Python package, which says nothing about the GPUs.
    NVML stays open between two looks, since it reports errors (Xids) only to open sessions. A GPU
    with a critical error stays ill until it disappears, as in a reset, or until a new watch begins.
    """

    def __init__(self) -> None:
        self._nvml: Any = _pynvml()
        self._events: Any = None
        self._open = False
        self._looks = 0
        self._ill: dict[str, str] = {}

    def look(self) -> GpuPoll:
        """The GPUs now."""
        try:
            return self._look()
        except self._nvml.NVMLError as error:
            self.close()
            raise ArenaError(f"NVML does not list the GPUs: {error}") from error

    def close(self) -> None:
        """Close NVML."""
        if self._open:
            with contextlib.suppress(self._nvml.NVMLError):
                if self._events is not None:
                    self._nvml.nvmlEventSetFree(self._events)
                self._nvml.nvmlShutdown()
        self._open, self._events = False, None

    def _look(self) -> GpuPoll:
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
                # The next look reopens NVML, and then sees a GPU that has returned.
                self._looks = 0
                continue
            uuids[index] = str(nvml.nvmlDeviceGetUUID(handle))
            parts |= dict.fromkeys(self._migs(handle), uuids[index])
        self._ill = {uuid: why for uuid, why in self._ill.items() if uuid in uuids.values()}
        return GpuPoll(uuids=uuids, ill=dict(self._ill), parts=parts)

    def _listen(self) -> None:
        """Note the critical errors that GPUs reported since the last look, without waiting."""
        nvml = self._nvml
        if self._events is None:
            return
        with contextlib.suppress(nvml.NVMLError):  # the timeout, 0: no event is left
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
        # Old drivers and GPUs report no errors.
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
        uuids = []
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            for at in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(nvml.NVMLError):
                    part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
                    uuids.append(str(nvml.nvmlDeviceGetUUID(part)))
        return uuids


def _pynvml() -> Any:
    try:
        return import_module("pynvml")
    except ImportError as error:
        raise ArenaError(
            "the Python package nvidia-ml-py is not installed",
            hint=f"install {with_extra('agent')}",
        ) from error
