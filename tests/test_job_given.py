"""What a program may give for the fields of a job, and what it is told of what it may not."""

from __future__ import annotations

import datetime as dt
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from arena_topo import (
    BindingChoice,
    Claim,
    Device,
    Duration,
    EnvVar,
    InvalidJob,
    KeyValue,
    MPIJob,
    PlacementPolicy,
    Quantity,
    Toleration,
)
from arena_topo.flag import kinds_of

BASE = {"name": "demo", "image": "registry.example/train:1", "command": "train"}
BASE |= {"gputopology": True, "gang": True}


def a_job(**said: Any) -> MPIJob:
    return MPIJob(**{**BASE, **said})


A_TIME = "a time such as 90s, 10m or 1h30m"
A_QUANTITY = "a quantity such as 500m, 2 or 4Gi"
A_B = (EnvVar(key="A", value="b"),)


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("env", {"A": "b"}, A_B),
        ("env", {"A": "b=c"}, (EnvVar(key="A", value="b=c"),)),
        ("env", {"A": 5}, (EnvVar(key="A", value="5"),)),
        ("env", ["A=b"], A_B),
        ("env", "A=b", A_B),
        ("env", ["A=x", "B=y", "A=b"], (*A_B, EnvVar(key="B", value="y"))),
        ("env", EnvVar(key="A", value="b"), A_B),
        ("selector", {"zone": "a"}, (KeyValue(key="zone", value="a"),)),
        ("selector", ["zone=b", "zone=a"], (KeyValue(key="zone", value="a"),)),
        ("device", {"a/b": 1}, (Device(name="a/b", quantity=Quantity(text="1")),)),
        ("device", ("a/b=1",), (Device(name="a/b", quantity=Quantity(text="1")),)),
        ("data", ["sets:/data"], (Claim(name="sets", path="/data"),)),
        ("toleration", "all", (Toleration(operator="Exists"),)),
        ("image_pull_secret", "abc", ("abc",)),
        ("image_pull_secret", ["abc", "def"], ("abc", "def")),
        ("cpu", "2", Quantity(text="2")),
        ("cpu", 1.5, Quantity(text="1.5")),
        ("memory", 4096, Quantity(text="4096")),
        ("share_memory", "4Gi", Quantity(text="4Gi")),
        ("gang_timeout", "10m", Duration(600)),
        ("gang_timeout", 90, Duration(90)),
        ("gang_timeout", 1.5, Duration(2)),
        ("ttl_after_finished", None, None),
        ("policy", "spread", PlacementPolicy.SPREAD),
        ("binding", "claims", BindingChoice.CLAIMS),
        ("min_bandwidth", 100, 100.0),
    ],
)
def test_a_field_takes_what_stands_for_its_value_and_keeps_that(field: str, given: Any, kept: Any):
    found = getattr(a_job(**{field: given}), field)
    assert (found, type(found)) == (kept, type(kept))
    if isinstance(kept, tuple):
        assert [type(one) for one in found] == [type(one) for one in kept]
    assert a_job(**{field: given}) == a_job(**{field: kept})
    assert getattr(replace(a_job(), **{field: given}), field) == kept


@pytest.mark.parametrize(
    ("field", "given", "why"),
    [
        ("gpus", "4", "expected a whole number, got '4'"),
        ("gpus", 1.5, "expected a whole number, got 1.5"),
        ("workers", True, "expected a whole number, got True"),
        ("gang", "yes", "expected True or False, got 'yes'"),
        ("min_bandwidth", float("nan"), "expected a number, got nan"),
        ("memory", "nonsense", "'nonsense' is not a quantity such as 500m, 2 or 4Gi"),
        ("memory", True, "expected a quantity such as 500m, 2 or 4Gi, got True"),
        ("memory", dt.timedelta(5), f"expected {A_QUANTITY}, got datetime.timedelta(days=5)"),
        ("memory", Decimal(9), "expected a quantity such as 500m, 2 or 4Gi, got Decimal('9')"),
        ("gang_timeout", dt.timedelta(5), f"expected {A_TIME}, got datetime.timedelta(days=5)"),
        ("working_dir", Path("/work"), f"expected a text, got {Path('/work')!r}"),
        (
            "gang_timeout",
            "10",
            "expected a time such as 90s, 10m or 1h30m, got '10' without its unit",
        ),
        ("policy", "best", "expected pack, spread or adaptive, got 'best'"),
        ("binding", "x", "expected auto, claims, admission, gates or template, got 'x'"),
        ("command", ["mpirun", "a"], "expected a text, got ['mpirun', 'a']"),
        ("image", None, "expected a text, got None"),
        ("env", None, "expected KEY=VALUE, got None"),
        ("env", ["A"], "expected KEY=VALUE, got 'A'"),
        ("env", {"A": None}, "expected KEY=VALUE, got {'A': None}"),
        ("data", {"sets": "/data"}, "expected Claim, got {'sets': '/data'}"),
        ("data", [5], "expected Claim, got 5"),
    ],
)
def test_what_stands_for_no_value_is_refused_by_the_name_of_its_field(
    field: str, given: Any, why: str
):
    with pytest.raises(InvalidJob) as refused:
        a_job(**{field: given})
    name = field if field == "command" else "--" + field.replace("_", "-")
    assert (refused.value.message, refused.value.why) == (f"{name} is invalid", why)


@pytest.mark.parametrize("field", [one.name for one in fields(MPIJob)])
@pytest.mark.parametrize("given", [object, b"x", 1j, [[1]], {1: 2}], ids=repr)
def test_no_value_whatever_is_taken_for_another_or_ends_in_an_error_of_python(field: str, given):
    with pytest.raises(InvalidJob):
        a_job(**{field: given})


def test_every_field_knows_its_kind():
    assert list(kinds_of(MPIJob)) == [one.name for one in fields(MPIJob)]
    assert kinds_of(MPIJob)["policy"] == (PlacementPolicy, False, True)
    assert kinds_of(MPIJob)["env"] == (EnvVar, True, False)


@pytest.mark.parametrize(
    "parse", [Quantity.parse, EnvVar.parse, Claim.parse, Device.parse, Duration.parse]
)
def test_a_text_that_is_no_value_is_an_error_of_the_package_and_a_value_error(parse):
    for kind in (InvalidJob, ValueError):
        with pytest.raises(kind):
            parse("")
