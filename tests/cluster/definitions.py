"""CustomResourceDefinitions for the test cluster, from the schemas that the tests have recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fake_crd import DEFAULTS
from fake_schema import QUANTITY

Object = dict[str, Any]

SCHEMAS = Path(__file__).parents[1] / "schemas"
OPEN: Object = {"x-kubernetes-preserve-unknown-fields": True}
NUMBER_OR_STRING: Object = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
TYPES: dict[str, Object] = {
    "any": OPEN,
    "object": {"type": "object", **OPEN},
    "list": {"type": "array", "items": OPEN},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "int-or-string": NUMBER_OR_STRING,
    "quantity": {**NUMBER_OR_STRING, "pattern": f"^{QUANTITY.pattern}$"},
}


def mpijob() -> Object:
    """The definition of MPIJobs v2beta1, as strict as that of the operator."""
    recorded = json.loads((SCHEMAS / "mpijob.v2beta1.json").read_text())
    del recorded["MPIJob"]["metadata"]
    schema = _schema(recorded["MPIJob"], recorded["types"])
    spec = schema["properties"]["spec"]["properties"]
    for name, value in DEFAULTS.items():
        spec[name]["default"] = value
    spec["runPolicy"]["properties"]["suspend"]["default"] = False
    return definition("kubeflow.org", "v2beta1", "MPIJob", schema)


def kueue() -> list[Object]:
    """What arena-topo reads of Kueue, with schemas that allow everything."""
    return [
        definition("kueue.x-k8s.io", "v1beta2", kind, wide=wide, plural=plural)
        for kind, plural, wide in (
            ("Workload", "workloads", False),
            ("LocalQueue", "localqueues", False),
            ("ClusterQueue", "clusterqueues", True),
            ("Topology", "topologies", True),
        )
    ]


def definition(
    group: str,
    version: str,
    kind: str,
    schema: Object | None = None,
    *,
    plural: str = "",
    wide: bool = False,
) -> Object:
    """A definition with one version, whose status is written apart."""
    plural = plural or f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
            },
            "scope": "Cluster" if wide else "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema or TYPES["object"]},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def _schema(known: Any, types: dict[str, Any]) -> Object:
    """A recorded schema as OpenAPI."""
    if isinstance(known, list):
        return {"type": "array", "items": _schema(known[0], types)}
    if isinstance(known, dict):
        return _object(known, types)
    if known.startswith("#"):
        return _schema(types[known[1:]], types)
    name, *values = known.split()
    if name == "enum":
        return {"type": "string", "enum": values}
    return dict(TYPES.get(name) or {"type": name})


def _object(known: dict[str, Any], types: dict[str, Any]) -> Object:
    if "*" in known:
        return {"type": "object", "additionalProperties": _schema(known["*"], types)}
    found: Object = {
        "type": "object",
        "properties": {key.rstrip("!"): _schema(value, types) for key, value in known.items()},
    }
    if required := [key.rstrip("!") for key in known if key.endswith("!")]:
        found["required"] = required
    return found
