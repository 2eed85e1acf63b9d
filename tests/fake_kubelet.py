"""A kubelet's PodResources over a real gRPC server, in the bytes of the protocol."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path
from typing import Any

import grpc


def varint(number: int) -> bytes:
    groups = []
    while True:
        number, group = number >> 7, number & 0x7F
        groups.append(group | (0x80 if number else 0))
        if not number:
            return bytes(groups)


def text(number: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def plugin(resource: str, *ids: str) -> bytes:
    """ContainerDevices, with the NUMA node that real ones name."""
    topology = text(1, varint(1 << 3) + varint(1))
    return text(1, resource) + b"".join(text(2, one) for one in ids) + text(3, topology)


def claim(driver: str, pool: str, *devices: str, name: str = "claim") -> bytes:
    """DynamicResource."""
    resources = b"".join(
        text(4, text(1, text(1, f"k8s.{driver}/device={one}")) + text(2, driver) + text(3, pool)
             + text(4, one))
        for one in devices
    )  # fmt: skip
    return text(2, name) + text(3, "default") + resources


def container(*devices: bytes, claims: tuple[bytes, ...] = ()) -> bytes:
    """ContainerResources, with the CPUs and the memory that real ones have."""
    cpus = text(3, varint(0) + varint(300))  # a packed list of numbers
    memory = text(4, text(1, "memory") + varint(2 << 3) + varint(1 << 40))
    parts = [text(1, "main"), *(text(2, one) for one in devices), cpus, memory]
    return b"".join([*parts, *(text(5, one) for one in claims)])


def pod(name: str, *containers: bytes, namespace: str = "default") -> bytes:
    """PodResources."""
    held = b"".join(text(3, one) for one in containers)
    return text(1, name) + text(2, namespace) + held


class Kubelet:
    """A kubelet: what it answers may be changed while it serves."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self.pods: list[bytes] = []
        self.devices: list[bytes] | None = []
        """None: it is too old to be asked."""
        self.raw: bytes | None = None
        self.code: Any = None
        self.asked: list[str] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        handler = grpc.method_handlers_generic_handler(
            "v1.PodResourcesLister",
            {
                "List": grpc.unary_unary_rpc_method_handler(self._list),
                "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(self._allocatable),
            },
        )
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()

    def _list(self, _request: bytes, context: Any) -> bytes:
        self.asked.append("List")
        if self.code:
            context.abort(self.code, "rejected by rate limit")
        if self.raw is not None:
            return self.raw
        return b"".join(text(1, one) for one in self.pods)

    def _allocatable(self, _request: bytes, context: Any) -> bytes:
        self.asked.append("GetAllocatableResources")
        if self.devices is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        return b"".join(text(1, one) for one in self.devices or ())

    def close(self) -> None:
        self._server.stop(0).wait()
