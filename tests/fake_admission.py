"""Admission policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fake_resources import Object, Resource

if TYPE_CHECKING:
    from fake_api import FakeApi


def mutated(api: FakeApi, resource: Resource, thing: Object, operation: str, user: str, old: Any = None) -> Object:
    return thing


def validated(api: FakeApi, resource: Resource, thing: Object, old: Any, operation: str, user: str) -> None:
    pass
