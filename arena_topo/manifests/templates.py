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


def render_template(name: str, context: Mapping[str, Any]) -> str:
    """A rendered template, as YAML with its comments."""
    return template_environment().get_template(name).render(context)


def template_objects(text: str) -> Iterator[Manifest]:
    """The objects of a rendered template."""
    import yaml

    yield from yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def template_environment() -> jinja2.Environment:
    """The environment of the templates: values become JSON; a missing one raises with its name."""
    import jinja2

    @jinja2.pass_context
    def script(context: jinja2.runtime.Context, name: str) -> str:
        """A shell script of a pod, without its comments and without the parts of other flags."""
        made = context.environment.get_template(f"mpijob/{name}").render(context.get_all())
        return "".join(line for line in made.splitlines(keepends=True) if line[0] != "#")

    def written(value: object) -> object:
        # Jinja must get an undefined name, as its error says which name it is.
        return value if isinstance(value, jinja2.Undefined) else as_json(value)

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(packaged("templates")),
        undefined=jinja2.StrictUndefined,
        finalize=written,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # A comment in shell, so that a script with all of its parts is a script as well.
        line_statement_prefix="#%",
        autoescape=False,  # noqa: S701 - JSON, not HTML
    )
    templates.globals["script"] = script
    return templates
