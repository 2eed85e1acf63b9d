"""The Jinja templates; every value is written as JSON, so no value can change the structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from arena_topo.files import packaged
from arena_topo.manifests import Manifest
from arena_topo.manifests.serialize import as_json

if TYPE_CHECKING:
    import jinja2


def text(name: str, context: Mapping[str, Any]) -> str:
    """A rendered template, as YAML with its comments."""
    return environment().get_template(name).render(context)


def objects(text: str) -> Iterator[Manifest]:
    """The objects of a rendered template."""
    import yaml

    yield from yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def environment() -> jinja2.Environment:
    """The environment of the templates: values become JSON; a missing one raises with its name."""
    import jinja2

    def written(value: object) -> object:
        # Jinja must get an undefined name, as its error says which name it is.
        return value if isinstance(value, jinja2.Undefined) else as_json(value)

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(packaged("templates")),
        undefined=jinja2.StrictUndefined,
        finalize=written,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - JSON, not HTML
    )
