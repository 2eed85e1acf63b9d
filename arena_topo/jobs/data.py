"""The command that lists the volume claims that --data can mount: data list."""

from __future__ import annotations

from typing import Any

from arena_topo import layout
from arena_topo.cli.arguments import EverywhereFlag, JobsOutputFlag, Output, names_only
from arena_topo.cli.parameters import command_from_records
from arena_topo.cli.session import Session
from arena_topo.cli.targets import namespace_of, open_engine
from arena_topo.engines.volume import Volume
from arena_topo.layout import Column

_RESOURCE = "persistentvolumeclaim"


@command_from_records
def data_list(
    session: Session,
    *,
    all_namespaces: EverywhereFlag = False,
    output_format: JobsOutputFlag = Output.WIDE,
) -> None:
    """List the bound volume claims, which --data can mount.

    Examples:
      # Claims that --data can mount
      data list
    """
    console = session.console
    backend = open_engine(session)
    namespace = None if all_namespaces else namespace_of(session, backend)
    volumes = backend.volumes(namespace)
    if names_only(output_format, session.common):
        console.write("".join(f"{_RESOURCE}/{volume.name}\n" for volume in volumes))
    elif output_format is Output.WIDE:
        columns = _columns(console.clock(), namespaces=all_namespaces)
        console.screen(layout.align(layout.column_table(columns, volumes)))
    else:
        write = layout.go_json if output_format is Output.JSON else layout.go_yaml
        console.write(write([_value(volume) for volume in volumes]))
    if backend.name == "local":
        console.info("This machine has no volume claims: jobs see its folders as they are.")
        return
    if not volumes:
        console.info(
            "No bound volume claims" + (f" in namespace {namespace}." if namespace else ".")
        )
    session.names.claims(backend, volumes, namespace)


def _columns(now: float, *, namespaces: bool) -> list[Column[Volume]]:
    """Arena's table; with `namespaces` the second column names them."""

    def age(volume: Volume) -> str:
        return "<unknown>" if volume.created is None else layout.duration(now - volume.created)

    space: list[Column[Volume]] = [("NAMESPACE", lambda volume: volume.namespace)]
    return [
        ("NAME", lambda volume: volume.name),
        *(space if namespaces else []),
        ("ACCESSMODE", lambda volume: ",".join(volume.modes)),
        ("DESCRIPTION", lambda volume: volume.description),
        ("OWNER", lambda volume: volume.owner),
        ("AGE", age),
    ]


def _value(volume: Volume) -> dict[str, Any]:
    """One claim for JSON and YAML; the time is in Unix seconds, null where it is not known."""
    return {
        "name": volume.name,
        "namespace": volume.namespace,
        "accessModes": list(volume.modes),
        "description": volume.description,
        "owner": volume.owner,
        "capacity": volume.capacity,
        "storageClass": volume.storage_class,
        "creationTimestamp": None if volume.created is None else int(volume.created),
    }
