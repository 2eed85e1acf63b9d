"""--refresh: a screen shown again every two seconds, or its values one after another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from arena_topo import layout
from arena_topo.cli.arguments import PANEL, Output
from arena_topo.cli.options import note
from arena_topo.escaping import escaped_in_quotes
from arena_topo.flag import Flag

REFRESH = 2.0
"""Seconds between two looks with --refresh (arena's)."""


RefreshFlag = Annotated[
    bool,
    Flag(help="Refresh every two seconds.", short="-r", panel=PANEL, needs=("JOB",)),
]


def renew(
    first: Any,
    look: Callable[[], Any],
    screen: Callable[[Any, int | None], str],
    value: Callable[[Any], Any],
    output_format: Output,
    *,
    limit: float | None,
) -> None:
    """Show what is seen every two seconds: in its place on a terminal, else one after another."""
    from arena_topo.cli.watching import watch  # noqa: PLC0415 - only for who stays

    waiting = [first]

    def again() -> Any:
        return waiting.pop() if waiting else look()

    def text(_before: Any, seen: Any, now: float) -> str:
        if output_format is Output.JSON:
            return escaped_in_quotes(json.dumps(value(seen), ensure_ascii=False)) + "\n"
        if output_format is Output.YAML:
            return "---\n" + layout.to_yaml(value(seen))
        return f"{screen(seen, None)}{'-' * 25} {layout.clock(now)} {'-' * 37}\n"

    def draw(seen: Any, _now: float, width: int | None) -> str:
        return layout.folded(screen(seen, width), width)

    watch(
        again,
        draw=draw if output_format is Output.WIDE else None,
        changes=text,
        every=REFRESH,
        limit=limit,
    )


def once(said: set[str]) -> Callable[[str], None]:
    """Say each thing one time only."""

    def heard(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    return heard
