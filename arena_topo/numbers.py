"""Numbers in foreign texts: counts in labels, annotations and logs, time spans of flags."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from decimal import Decimal

MOST_DIGITS = 18
"""More digits than any count, time or size needs; Python refuses to read more than 4,300."""

MOST_HOURS = 2562047
"""The longest time span: the largest time.Duration of Go (int64 nanoseconds)."""

_NANOSECONDS = {
    "h": 3600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 1000,
    "\u00b5s": 1000,
    "\u03bcs": 1000,
    "ns": 1,
}
"""The units of Go's `time.ParseDuration`, both signs for micro included."""

_UNIT = "|".join(sorted(_NANOSECONDS, reverse=True))
SPAN = rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({_UNIT})"
"""A number and its unit, as a regular expression: a time span is a sequence of these."""


def whole(text: object) -> int | None:
    """The number in a text of ASCII digits; None for any other text and for more than 18 digits."""
    said = str(text)
    plain = said.isascii() and said.isdigit() and len(said) <= MOST_DIGITS
    return int(said) if plain else None


def span(text: str) -> Decimal:
    """Seconds of a time span as Go writes it: `90s`, `1h30m`, `1.5h`.

    ValueError shows the form, or how long a span may be. A number without a unit is an error, as in
    Go, unless it is 0.
    """
    from decimal import Decimal  # noqa: PLC0415 - `version` and --help read no time span

    parts = re.findall(SPAN, text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        raise ValueError(f"expected a time such as 90s, 10m or 1h30m, got {text!r}")
    nanoseconds = sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in parts)
    seconds = Decimal(nanoseconds) / 10**9
    if seconds > MOST_HOURS * 3600:
        raise ValueError(f"expected at most {MOST_HOURS}h")
    return seconds
