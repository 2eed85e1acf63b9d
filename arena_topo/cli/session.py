"""The running command: its common options, where options come from, and its console."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arena_topo.cli.console import Console
from arena_topo.cli.options import CommonOptions
from arena_topo.cli.settings import LINE, Layer

if TYPE_CHECKING:
    from arena_topo.cli.name_cache import CachedNames


@dataclass(slots=True, kw_only=True)
class Session:
    """One command line that runs. `layers` are the sources of its options, strongest first.

    `names` are cached for TAB; `open_engine` sets it.
    """

    common: CommonOptions
    console: Console
    layers: tuple[Layer, ...] = ()
    names: CachedNames = field(init=False)

    @property
    def emulating(self) -> str:
        """The source of the machines to emulate: the flag, a variable, or a settings file."""
        origin = self.origin_of("emulate") or LINE
        if origin == LINE:
            return "--emulate"
        return origin if origin in os.environ else f"emulate in {origin}"

    def origin_of(self, *names: str) -> str | None:
        """The strongest source that gives one of these options; None if none does."""
        origins = (
            layer.origin for layer in self.layers for name, _ in layer.given if name in names
        )
        return next(origins, None)

    def set_deadline(self, seconds: float | None) -> None:
        """Set the deadline of the command, as `Interruption` does."""
        self.console.interruption.set_deadline(seconds)
