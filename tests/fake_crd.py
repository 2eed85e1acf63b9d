"""What servers keep of an object, as the schemas of its kind say; the rest is pruned or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_schema
from fake_resources import Object, Refused, Resource, invalid

if TYPE_CHECKING:
    from fake_api import FakeApi


DEFAULTS = {
    "launcherCreationPolicy": "AtStartup",
    "mpiImplementation": "OpenMPI",
    "runLauncherAsWorker": False,
    "slotsPerWorker": 1,
    "sshAuthMountPath": "/root/.ssh",
}
"""What the CRD of v2beta1 puts into a job that says nothing (mpi-operator, commit caa3c47)."""


def fill(api: FakeApi, resource: Resource, thing: Object, version: str) -> None:
    """Put in what the CRD says of fields that are left out."""
    spec = thing.get("spec")
    if resource.name == "mpijobs.kubeflow.org" and version == "v2beta1" and isinstance(spec, dict):
        for key, value in DEFAULTS.items():
            spec.setdefault(key, value)
        if api.suspends and isinstance(spec.get("runPolicy"), dict):
            spec["runPolicy"].setdefault("suspend", False)


def _stray(api: FakeApi, thing: Object, kind: str, version: str) -> list[fake_schema.Unknown]:
    """All that the schema of an object does not know."""
    found = fake_schema.unknown(thing, kind, version)
    policy = (thing.get("spec") or {}).get("runPolicy")
    if kind == "MPIJob" and not api.suspends and isinstance(policy, dict) and "suspend" in policy:
        # An operator from before jobs could be suspended (training-operator up to 1.6).
        path = "spec.runPolicy.suspend"
        found.append(fake_schema.Unknown(path=path, where=policy, key="suspend"))
    return found


def prune(api: FakeApi, resource: Resource, thing: Object, version: str) -> None:
    """Drop what the server does not know of a kind."""
    for one in _stray(api, thing, resource.kind, version):
        del one.where[one.key]


def check(resource: Resource, thing: Object, version: str) -> None:
    """Refuse what is not as the schema of its kind says."""
    causes = fake_schema.faults(thing, resource.kind, version)
    if not causes:
        return
    if resource.custom:
        raise invalid(
            f"{resource.kind}.{resource.group}", thing["metadata"].get("name", ""), *causes
        )
    # Kinds of the server itself are decoded, and what does not fit stops there.
    raise Refused(
        400,
        "BadRequest",
        f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}:'
        f" {causes[0]}",
    )


def unknown(
    api: FakeApi, resource: Resource, thing: Object, version: str, validation: str
) -> list[str]:
    """Warnings about what will be pruned; an error where the request asked for that."""
    if validation == "Ignore":
        return []
    paths = [one.path for one in _stray(api, thing, resource.kind, version)]
    if paths and validation == "Strict":
        said = ", ".join(f'unknown field "{path}"' for path in paths)
        raise Refused(
            400,
            "BadRequest",
            f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}:'
            f" strict decoding error: {said}",
        )
    return [f'unknown field \\"{path}\\"' for path in paths]


def check_update(old: Object, new: Object, version: str) -> None:
    """Refuse what the CRD says is immutable; that of v2beta1 says so of nothing."""
    if version == "v2beta1":
        return

    def manager(thing: Object) -> Any:
        return ((thing.get("spec") or {}).get("runPolicy") or {}).get("managedBy")

    if manager(old) is not None and manager(new) != manager(old):
        raise invalid(
            "MPIJob",
            new["metadata"]["name"],
            f'spec.runPolicy.managedBy: Invalid value: "{manager(new)}": field is immutable',
        )
