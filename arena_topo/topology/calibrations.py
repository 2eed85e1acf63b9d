"""The calibration of a pool as a ConfigMap: beside the tables of measured sets, by the same hands.

data:
  calibration: {"name": "t4", "measured": "2026-11-28, NCCL 2.21.5", "model": "T4", "gpus": 4,
                "wire": "tcp", "two": [0.38, 0.34, 0.42], ...,     values of `PoolRates`
                "fit": ...}     how it was made, for people
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from arena_topo.escaping import one_line
from arena_topo.topology import MeasuredRate, PoolRates
from arena_topo.topology.published import ACK_NAMESPACE

KEY = "calibration"
"""The key of a ConfigMap that has a calibration."""

CALIBRATION_LABEL = "arena-topo.io/calibration"

MAX_RATE = 1e5
"""GB/s from which a number is none of a machine."""


MAX_TEXT = 253
"""The most characters of a name in Kubernetes."""


class NoCalibration(ValueError):
    """What was read is no calibration; the message says why."""


def calibration_map(pool: PoolRates, fit: Mapping[str, object]) -> dict[str, Any]:
    """The ConfigMap of a calibration, and of how it was made."""
    value = {**msgspec.to_builtins(pool), "fit": fit}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": pool.name,
            "namespace": ACK_NAMESPACE,
            "labels": {CALIBRATION_LABEL: "true"},
        },
        "data": {KEY: msgspec.json.encode(value).decode()},
    }


class _Map(msgspec.Struct):
    data: dict[str, str]


def pool_in(config_map: object) -> PoolRates:
    """The calibration in a ConfigMap; NoCalibration if there is none, or it is not valid."""
    try:
        text = msgspec.convert(config_map, _Map).data[KEY]
    except (msgspec.ValidationError, KeyError) as error:
        raise NoCalibration(f"it is no ConfigMap with the key {KEY}") from error
    try:
        pool = msgspec.json.decode(text, type=PoolRates)
    except msgspec.MsgspecError as error:
        raise NoCalibration(f"data.{KEY}: {error}") from error
    if any(one_line(text)[:MAX_TEXT] != text for text in (pool.name, pool.measured, pool.label)):
        raise NoCalibration(
            f"data.{KEY}: label, name and measured are one line of {MAX_TEXT} characters"
        )
    for name in ("inside", "two", "more", "floor", "hidden"):
        rate: MeasuredRate | None = getattr(pool, name)
        if rate is not None and not (
            all(map(math.isfinite, rate))
            and 0 <= rate.low <= rate.value <= rate.high <= MAX_RATE
            and (rate.low > 0 or name in {"floor", "hidden"})
        ):
            raise NoCalibration(
                f"data.{KEY}: {name} is [value, low, high], with low <= value <= high"
            )
    return pool
