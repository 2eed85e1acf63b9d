"""Volume: a claim that jobs can mount, on any engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume claim that jobs can mount. `created` is in Unix seconds, None if unknown.

    `description` and `owner` are its annotations of these names; `capacity` is a quantity.
    """

    name: str
    namespace: str
    modes: tuple[str, ...]
    description: str = ""
    owner: str = ""
    capacity: str = ""
    storage_class: str = ""
    created: float | None = None
