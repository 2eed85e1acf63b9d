"""Flag: how one field is shown to a person.

A field of a job is described once, here; the command line, its help, the environment variables and
the reference page are all made from this description.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How one field looks from the command line.

    `name` is needed only where the flag is not the field's name with dashes. `deprecated` are old
    spellings: they work, with a warning on stderr. `at_least` bounds integers; the text of the
    error is arena's `--FLAG is invalid`.
    """

    help: str
    panel: str = "Job"
    name: str | None = None
    short: str | None = None
    deprecated: tuple[str, ...] = ()
    metavar: str | None = None
    at_least: int | None = None
    hidden: bool = False


def spelling(field: str, flag: Flag) -> str:
    """The flag as typed: `working_dir` is `--working-dir` unless the flag has a name of its own."""
    return flag.name or "--" + field.replace("_", "-")
