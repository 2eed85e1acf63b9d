"""The simulated clusters of the pages, with jobs in them, as worlds of inputs."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import doc_worlds

from .sandbox import Input, Sandbox

GANG = ("--gpus=2", "--workers=2", "--gputopology", "--image=example/train:1", "mpirun x")
Object = dict[str, Any]


@contextmanager
def opened(name: str) -> Iterator[tuple[doc_worlds.World, str]]:
    """A cluster that lives, and the path of its kubeconfig."""
    with (
        tempfile.TemporaryDirectory() as home,
        doc_worlds.opened(name, Path(home)) as world,
    ):
        if name == "dra":
            # GPUs of a driver are claimed where the policies are.
            world.happens(["policies"])
        yield world, f"{home}/.kube/config"


def submitted(sandbox: Sandbox, world: doc_worlds.World, config: str, name: str) -> None:
    """Submit a gang, and wait until nothing changes any more."""
    line = ("submit", "mpi", f"--name={name}", *GANG, "--kubeconfig", config)
    outcome = sandbox.run(Input(line=line))
    assert outcome.code == 0, outcome.err
    world.settle()


def dumped(sandbox: Sandbox) -> list[Object]:
    """All objects of some clusters, as `kubectl get -o json` writes them."""
    dumps = []
    for name in ("ack", "dra"):
        with opened(name) as (world, config):
            for job in ("a", "b"):
                submitted(sandbox, world, config, job)
            api = world.cluster.api
            with api.lock:
                items = [
                    copy.deepcopy(entry.thing)
                    for table in api.tables.values()
                    for entry in table.values()
                ]
        dumps.append({"apiVersion": "v1", "kind": "List", "items": items})
    return dumps
