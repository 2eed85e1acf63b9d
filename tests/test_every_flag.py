"""Every flag of a job changes what its case says in each MPIJob version, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import flag_cases_placing
import flag_cases_pods
import pytest
import yaml
from flag_cases import ABSENT, FILE, PLAIN, V1ALPHA1, Case

from arena_topo.errors import InvalidJob
from arena_topo.flag import flags_of, spelling
from arena_topo.job import MPIJob
from arena_topo.manifests import Plan
from arena_topo.manifests.render import build_plan
from arena_topo.manifests.requests import request_annotation
from arena_topo.manifests.versions import ApiVersion

Leaves = dict[str, Any]

CASES = {**flag_cases_placing.CASES, **flag_cases_pods.CASES}
EVERY = [
    pytest.param(case, api, id="-".join(filter(None, [flag, case.note, api])))
    for flag, several in CASES.items()
    # The name is in every object: a test of its own looks at it.
    if flag != "name"
    for case in several
    for api in ApiVersion
]


def test_every_flag_of_a_job_has_a_case():
    assert list(CASES) == [one.name for one in fields(MPIJob)]


def planned(job: MPIJob, api: ApiVersion) -> Plan:
    files = {FILE: '{"a": 1}\n'} if job.config_file else {}
    return build_plan(job, namespace="team-a", api=api, owner="USER", files=files)


@pytest.mark.parametrize(("case", "api"), EVERY)
def test_a_flag_changes_what_it_says_and_nothing_else(case: Case, api: ApiVersion):
    before = planned(case.job(without=True), api)
    if api in case.refused:
        with pytest.raises(InvalidJob) as caught:
            planned(case.job(), api)
        assert caught.value.message == case.refused[api]
        assert caught.value.why
        assert caught.value.hint
        return
    after = planned(case.job(), api)
    found = changed(leaves_of(before), leaves_of(after))
    for path, value in (wanted := expected(case, api, leaves_of(before))).items():
        if isinstance(value, re.Pattern) and value.fullmatch(found.get(path, "")):
            wanted[path] = found[path]
    assert found == wanted
    assert changed(recorded(before), recorded(after)) == said(case)
    assert changed(asked(case.job(without=True)), asked(case.job())) == dict(case.asks)


@pytest.mark.parametrize("api", list(ApiVersion))
def test_the_name_stands_wherever_the_old_one_stood(api: ApiVersion):
    (case,) = CASES["name"]
    before, after = planned(case.job(without=True), api), planned(case.job(), api)
    assert json.dumps(after.objects) == json.dumps(before.objects).replace("demo", "other")
    assert "demo" in json.dumps(before.objects)


def expected(case: Case, api: ApiVersion, before: Leaves) -> Leaves:
    """The change that a case speaks of, as `changed` would tell it."""
    found: Leaves = {}
    for place, value in case.changed(api).items():
        for path in paths(place, api):
            if value is ABSENT:
                gone = [
                    one for one in before if one == path or one.startswith((path + ".", path + "["))
                ]
                assert gone, f"{path} is not there to be taken away"
                found |= dict.fromkeys(gone, ABSENT)
            elif value is not None:
                if before.get(path) in ({}, []):
                    found[path] = ABSENT
                found |= leaves(value, path)
    return {path: value for path, value in found.items() if before.get(path, ABSENT) != value}


def paths(place: str, api: ApiVersion) -> Iterator[str]:
    """Where a place of a case is in the objects of a version; nowhere if it has no such place."""
    where, _, path = place.partition(":")
    old = api is V1ALPHA1
    roles = {
        "pods": ("Worker",) if old else ("Launcher", "Worker"),
        "worker": ("Worker",),
        "launcher": () if old else ("Launcher",),
    }
    if where == "job":
        yield f"MPIJob/demo.{path}"
    elif where == "run":
        if not old:
            yield f"MPIJob/demo.spec.runPolicy.{path}"
    elif where in roles:
        for role in roles[where]:
            template = "template" if old else f"mpiReplicaSpecs.{role}.template"
            yield f"MPIJob/demo.spec.{template}.{path}"
    else:
        yield f"{where}.{path}" if path else where


def leaves_of(made: Plan) -> Leaves:
    """All that the objects of a plan say, but for what arena keeps of the flags."""
    found: Leaves = {}
    for one in made.objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        if name != "ConfigMap/demo-mpijob":
            found |= leaves(one, name)
    return found


def leaves(value: Any, path: str = "") -> Leaves:
    """A value as the paths of all it holds; items of a list by their names, if all have one."""
    if isinstance(value, Mapping) and value:
        below = {
            (f"{path}[{key}]" if re.search(r"[./]", key) else f"{path}.{key}"): one
            for key, one in value.items()
        }
    elif isinstance(value, list | tuple) and value:
        names = [one.get("name") if isinstance(one, Mapping) else None for one in value]
        by_name = None not in names and len(set(names)) == len(names)
        below = {
            f"{path}[{names[index] if by_name else index}]": one for index, one in enumerate(value)
        }
    else:
        return {path: value}
    return {key: leaf for where, one in below.items() for key, leaf in leaves(one, where).items()}


def changed(before: Leaves, after: Leaves) -> Leaves:
    """What is new or other, and what is gone."""
    return {
        path: after.get(path, ABSENT)
        for path in before.keys() | after.keys()
        if before.get(path, ABSENT) != after.get(path, ABSENT)
    }


def recorded(made: Plan) -> Leaves:
    """The flags as arena keeps them with a job."""
    (books,) = [one for one in made.objects if one["metadata"]["name"] == "demo-mpijob"]
    return dict(yaml.safe_load(books["data"]["values"]))


def asked(job: MPIJob) -> Leaves:
    return dict(json.loads(request_annotation(job)))


def said(case: Case) -> Leaves:
    """The flags of a case as they would be typed."""
    flags = flags_of(MPIJob)
    base = {**PLAIN, **case.within}
    found: Leaves = {}
    for name, value in case.said.items():
        default = MPIJob.__dataclass_fields__[name].default
        key = spelling(name, flags[name]).lstrip("-") if name in flags else name
        if value == base.get(name, default):
            continue
        found[key] = ABSENT if value == default else typed(value)
    return found


def typed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [typed(one) for one in value]
    plain = isinstance(value, bool | float) or type(value) is int
    return value if plain else str(value)
