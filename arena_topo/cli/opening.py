"""The engine, the namespace and the network that the options name; the error of a missing job."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from arena_topo.cli import remembering, stopping
from arena_topo.cli.options import Globals, say
from arena_topo.cli.settings import LINE, in_force
from arena_topo.engines import Backend, opening
from arena_topo.errors import ArenaError, NotFound, near

if TYPE_CHECKING:
    from arena_topo.topology.fabric import FabricFile


_GLANCE = 3.0
"""Seconds that looking for jobs of similar names may take."""


def missing(name: str, namespace: str, backend: Backend | None = None) -> NotFound:
    """The error of a job that is not there; with its engine, it suggests one that is."""
    hint = None if backend is None else alike(name, namespace, backend)
    return opening.UnknownJob(name, namespace, near=hint)


def alike(name: str, namespace: str, backend: Backend) -> str | None:
    """A hint at the job whose name is most like this one, where the jobs may be listed."""
    names: list[str] = []
    with stopping.briefly(_GLANCE), suppress(ArenaError):
        names = [one.name for one in backend.jobs(namespace)]
    # Of names that were generated, people remember the beginning.
    begun = next((one for one in names if one.startswith(f"{name}-")), None)
    return near(name, names) or (begun and f"did you mean {begun}?")


def network(file: str, state: tuple[str, ...] = ()) -> FabricFile | None:
    """The network as `--fabric` describes it; None without one. `state` are the dumps read too."""
    return opening.network(file, state)


def engine(
    everywhere: Globals,
    *,
    image: str | None = None,
    fabric: FabricFile | None = None,
    repeating: bool = False,
    stays: bool = False,
) -> Backend:
    """Open the engine that the options ask for, and say so where nobody asked for a local one.

    `fabric` says what joins the nodes of its cluster; who is `repeating` looks again by itself
    where a request is not answered, and says so. Who `stays` looks for as long as --timeout allows,
    each time with the patience of one request.
    """
    options = replace(everywhere.options(), fabric=fabric, repeating=repeating)
    if stays:
        options = replace(options, deadline=None)
    if repeating and options.deadline == 0:
        # `--timeout 0s` means one look, which takes as long as any request may.
        options = replace(options, deadline=None)
        stopping.limit(everywhere.request_timeout or None)
    else:
        stopping.limit(everywhere.timeout)
    remembering.begin(everywhere)
    return opening.engine(options, image=image, emulating=emulating(), tell=say)


def emulating() -> str:
    """What said which machines to emulate: the flag, a variable, or a file of settings."""
    origin = _origin("emulate")
    if origin == LINE:
        return "--emulate"
    return origin if origin in os.environ else f"emulate in {origin}"


def _origin(name: str) -> str:
    said = (one.origin for one in in_force.get() for known, _ in one.given if known == name)
    return next(said, LINE)


def namespace_of(everywhere: Globals, backend: Backend) -> str:
    """The namespace asked for, else the engine's own."""
    return everywhere.namespace or backend.default_namespace()
