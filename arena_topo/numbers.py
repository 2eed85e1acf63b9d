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
SPAN_PATTERN = rf"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)({_UNIT})"
"""A number and its unit, as a regular expression: a time span is a sequence of these."""

QUANTITY = r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
"""The regular expression of a Kubernetes quantity."""

A_QUANTITY = "a quantity such as 500m, 2 or 4Gi"

LARGEST_QUANTITY = (1 << 63) - 1
"""The largest number of a quantity (kubernetes, apimachinery, resource.Quantity)."""

_LEAST = "1e-9"
"""The smallest number of a quantity: the API server rounds smaller ones up to it (same source)."""

_TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_TWOS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

_SHOWN = 60
"""Characters of an invalid text that an error shows."""


def shown(text: str) -> str:
    """An invalid text as errors quote it, truncated."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def parse_count(text: object) -> int | None:
    """The number in a text of ASCII digits; None for any other text and for more than 18 digits."""
    digits = str(text)
    plain = digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits) if plain else None


def parse_span(text: str) -> Decimal:
    """Seconds of a time span as Go writes it: `90s`, `1h30m`, `1.5h`.

    ValueError shows the form, or how long a span may be. A number without a unit is an error, as in
    Go, unless it is 0.
    """
    from decimal import Decimal  # noqa: PLC0415 - `version` and --help read no time span

    parts = re.findall(SPAN_PATTERN, text)
    if text != "0" and (not parts or "".join(number + unit for number, unit in parts) != text):
        bare = " without its unit" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else ""
        raise ValueError(f"expected a time such as 90s, 10m or 1h30m, got {text!r}{bare}")
    nanoseconds = sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in parts)
    seconds = Decimal(nanoseconds) / 10**9
    if seconds > MOST_HOURS * 3600:
        raise ValueError(f"expected at most {MOST_HOURS}h")
    return seconds


def quantity(text: str) -> tuple[Decimal, str, Decimal]:
    """The number and the unit of a Kubernetes quantity, and its exact amount in cores or bytes.

    An amount between 0 and 1n counts as 1n. ValueError for an invalid quantity.
    """
    from decimal import Decimal  # noqa: PLC0415 - `version` and --help read no quantity

    match = re.fullmatch(QUANTITY, text)
    if match is None:
        raise ValueError(f"{shown(text)} is not {A_QUANTITY}")
    number, unit = Decimal(match[1]), match[2] or ""
    try:
        if unit in _TWOS:
            amount = number * Decimal(2) ** _TWOS[unit]
        else:
            amount = number * (Decimal(10) ** _TENS[unit] if unit in _TENS else Decimal(f"1{unit}"))
    except ArithmeticError as error:
        raise ValueError(f"{shown(text)} is out of range") from error
    if amount > LARGEST_QUANTITY:
        raise ValueError(f"{shown(text)} is out of range")
    return number, unit, max(amount, Decimal(_LEAST)) if amount else amount
