"""The command that lists the volume claims that --data can mount: data list."""

from __future__ import annotations

import time
from typing import Any

from arena_topo import layout
from arena_topo.cli import remembering
from arena_topo.cli.arguments import EverywhereFlag, JobsOutputFlag, Output, names_only
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import Globals, display, say, show, spread
from arena_topo.engines.volume import Volume
from arena_topo.layout import Column

_RESOURCE = "persistentvolumeclaim"


@spread
def data_list(
    everywhere: Globals,
    *,
    all_namespaces: EverywhereFlag = False,
    output_format: JobsOutputFlag = Output.WIDE,
) -> None:
    """List the bound volume claims, which --data can mount.

    Examples:
      # Claims that --data can mount
      data list
    """
    backend = engine(everywhere)
    namespace = None if all_namespaces else namespace_of(everywhere, backend)
    found = backend.volumes(namespace)
    if names_only(output_format, everywhere):
        show("".join(f"{_RESOURCE}/{one.name}\n" for one in found))
    elif output_format is Output.WIDE:
        columns = _columns(time.time(), namespaces=all_namespaces)
        display(layout.align(layout.tabulated(columns, found)))
    else:
        write = layout.to_json if output_format is Output.JSON else layout.to_yaml
        show(write([_value(one) for one in found]))
    if backend.name == "local":
        say("This machine has no volume claims: jobs see its folders as they are.")
        return
    if not found:
        say("No bound volume claims" + (f" in namespace {namespace}." if namespace else "."))
    remembering.claims(backend, found, namespace)


def _columns(now: float, *, namespaces: bool) -> list[Column[Volume]]:
    """Arena's table; with `namespaces` the second column names them."""

    def age(one: Volume) -> str:
        return "<unknown>" if one.created is None else layout.duration(now - one.created)

    space: list[Column[Volume]] = [("NAMESPACE", lambda one: one.namespace)]
    return [
        ("NAME", lambda one: one.name),
        *(space if namespaces else []),
        ("ACCESSMODE", lambda one: ",".join(one.modes)),
        ("DESCRIPTION", lambda one: one.description),
        ("OWNER", lambda one: one.owner),
        ("AGE", age),
    ]


def _value(one: Volume) -> dict[str, Any]:
    """One claim for JSON and YAML; the time is in Unix seconds, null where it is not known."""
    return {
        "name": one.name,
        "namespace": one.namespace,
        "accessModes": list(one.modes),
        "description": one.description,
        "owner": one.owner,
        "capacity": one.capacity,
        "storageClass": one.storage_class,
        "creationTimestamp": None if one.created is None else int(one.created),
    }
