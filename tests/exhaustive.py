"""Cases that are too many for every run: some of them stay in it, all run in CI and by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def all_but(first: int, values: Iterable[Any]) -> list[Any]:
    """The values as parameters of a test: those after the `first` ones are marked `exhaustive`."""
    cases = list(values)
    rest = (pytest.param(case, marks=pytest.mark.exhaustive) for case in cases[first:])
    return [*cases[:first], *rest]
