"""The commands about data: the volume claims that --data can mount."""

from __future__ import annotations

import time

from arena_topo import layout
from arena_topo.cli import remembering
from arena_topo.cli.arguments import EverywhereFlag, JobsOutputFlag, Output
from arena_topo.cli.opening import engine, namespace_of
from arena_topo.cli.options import Globals, display, say, show, spread


@spread
def data_list(
    everywhere: Globals,
    *,
    all_namespaces: EverywhereFlag = False,
    output_format: JobsOutputFlag = Output.WIDE,
) -> None:
    """List the volume claims that --data can mount: the bound ones."""
    from arena_topo.jobs import data_view  # noqa: PLC0415 - its own command

    backend = engine(everywhere)
    namespace = None if all_namespaces else namespace_of(everywhere, backend)
    found = backend.volumes(namespace)
    if output_format is Output.NAME or (everywhere.quiet and output_format is Output.WIDE):
        show("".join(f"{data_view.RESOURCE}/{one.name}\n" for one in found))
    elif output_format is Output.WIDE:
        display(data_view.volumes(found, now=time.time(), namespaces=all_namespaces))
    else:
        values = [data_view.value(one) for one in found]
        text = layout.to_json(values) if output_format is Output.JSON else layout.to_yaml(values)
        show(text)
    if backend.name == "local":
        say("This machine has no volume claims: jobs see its folders as they are.")
        return
    if not found:
        say("No bound volume claims" + (f" in namespace {namespace}." if namespace else "."))
    remembering.claims(backend, found, namespace)
