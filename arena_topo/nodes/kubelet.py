"""The kubelet's PodResources -> the devices of the containers of a node.

The kubelet serves it over gRPC on a socket of the node. A handful of fields is read by hand, so
that neither generated code nor protobuf is needed; the numbers of the fields are from
`k8s.io/kubelet/pkg/apis/podresources/v1/api.proto` (kubernetes 1.36, commit 95f08499):

    ListPodResourcesResponse       pod_resources = 1
    AllocatableResourcesResponse   devices = 1
    PodResources                   name = 1, namespace = 2, containers = 3
    ContainerResources             name = 1, devices = 2
    ContainerDevices               resource_name = 1, device_ids = 2
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from arena_topo.errors import ArenaError, TimedOut
from arena_topo.words import with_extra

_T = TypeVar("_T")

POD_RESOURCES_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""The kubelet's socket, below its root directory (`--root-dir`)."""

_SERVICE = "v1.PodResourcesLister"

_TIMEOUT = 10.0
"""The timeout of a request in seconds; the kubelet answers from memory."""

_MOST_BYTES = 16 << 20
"""The size limit of an answer in bytes: it lists every pod of the node, with or without devices."""

_HINT = "the agent mounts the kubelet's pod-resources folder; --pod-resources names another socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDevice:
    """A device of a device plugin: the resource that pods request, and the plugin's own name."""

    resource: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDevices:
    """A pod and the devices of its containers."""

    namespace: str
    name: str
    devices: tuple[PluginDevice, ...]


class PodResources:
    """The kubelet of this node. Each request opens the socket anew, since kubelets restart.

    ArenaError if no kubelet listens or its answer is invalid, TimedOut if no answer comes.
    """

    def __init__(self, socket: str = POD_RESOURCES_SOCKET) -> None:
        self.socket = socket

    def holders(self) -> tuple[PodDevices, ...]:
        """The pods of the node that have devices of any kind, in the kubelet's order."""
        holders = self._request("List", _holder)
        return tuple(holder for holder in holders if holder.devices)

    def allocatable(self) -> tuple[PluginDevice, ...]:
        """The healthy devices of device plugins."""
        plugins = self._request("GetAllocatableResources", _plugin_devices)
        return tuple(device for devices in plugins for device in devices)

    def _request(self, method: str, read: Callable[[bytes], _T]) -> list[_T]:
        answer = self._answer(method)
        try:
            return [read(message) for message in _fields(answer)[1]]
        except ValueError as error:
            problem = f"the kubelet's answer on {self.socket} makes no sense"
            raise ArenaError(problem, why=str(error)) from error

    def _answer(self, method: str) -> bytes:
        # gRPC's fork handlers write errors to stderr when nvidia-smi is run.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        try:
            grpc: Any = import_module("grpc")
        except ImportError as error:
            raise ArenaError(
                "the Python package grpcio is not installed",
                hint=f"install {with_extra('agent')}",
            ) from error
        path = Path(self.socket).absolute()
        if not path.exists():
            raise ArenaError(f"there is no kubelet: {path} does not exist", hint=_HINT)
        options = (
            ("grpc.max_receive_message_length", _MOST_BYTES),
            ("grpc.enable_http_proxy", 0),
            # Without it a new channel would inherit the backoff of an earlier one.
            ("grpc.use_local_subchannel_pool", 1),
        )
        with grpc.insecure_channel(f"unix://{path}", options=options) as channel:
            call = channel.unary_unary(f"/{_SERVICE}/{method}")
            try:
                return bytes(call(b"", timeout=_TIMEOUT))
            except grpc.RpcError as error:
                code, details = error.code(), str(error.details() or "")
                late = code is grpc.StatusCode.DEADLINE_EXCEEDED
                silent = "did not answer in time" if late else "does not answer"
                problem = f"the kubelet behind {self.socket} {silent}"
                failure = TimedOut if late else ArenaError
                raise failure(problem, why=details or code.name, hint=_HINT) from error


# ---------------------------------------------------------------- the messages


def _holder(data: bytes) -> PodDevices:
    fields = _fields(data)
    messages = (devices for container in fields[3] for devices in _fields(container)[2])
    devices = tuple(device for message in messages for device in _plugin_devices(message))
    return PodDevices(name=_text(fields[1]), namespace=_text(fields[2]), devices=devices)


def _plugin_devices(data: bytes) -> list[PluginDevice]:
    fields = _fields(data)
    return [PluginDevice(resource=_text(fields[1]), name=name.decode()) for name in fields[2]]


def _text(values: list[bytes]) -> str:
    """An optional text field; the last of several counts, as in every protobuf reader."""
    return values[-1].decode() if values else ""


_FIXED = {1: 8, 5: 4}
"""Bytes of the wire types of fixed length (protobuf.dev/programming-guides/encoding)."""

_VARINT, _LENGTH = 0, 2
_LONGEST = 10
"""The most bytes of a 64-bit varint."""


def _fields(data: bytes) -> defaultdict[int, list[bytes]]:
    """The length-delimited fields of a message, by number; others are skipped.

    ValueError for an invalid message.
    """
    fields: defaultdict[int, list[bytes]] = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _number(data, at)
            continue
        if kind == _LENGTH:
            size, at = _number(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"field {number} is of wire type {kind}")
        if at + size > len(data):
            raise ValueError(f"field {number} is cut off")
        if kind == _LENGTH:
            fields[number].append(data[at : at + size])
        at += size
    return fields


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint (groups of seven bits, the lowest first), and the position after it."""
    value = 0
    for shift, byte in enumerate(data[at : at + _LONGEST]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follow
            return value, at + shift + 1
    raise ValueError("a number is cut off")
