"""Arguments and options that many commands share: names of jobs, their kind, output formats."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import partial
from typing import Annotated

from arena_topo import layout
from arena_topo.cli.options import CommonOptions
from arena_topo.flag import Flag, Word, flag

PANEL = "Options"
"""The panel of the help for options that only some commands have."""

option = partial(flag, panel=PANEL)
"""A field of a record of such options."""


def name_without_kind(word: str) -> str:
    """The name of a job, also where it is given as kubectl and `-o name` write it: mpijob/NAME.

    As for kubectl the kind may be in the plural, and followed by version and group.
    """
    return _KIND.sub("", word)


_KIND = re.compile(r"^mpijobs?(\.([\w.]+\.)?kubeflow\.org)?/(?=.)")


Name = Annotated[str, Word("JOB", "jobs", name_without_kind)]

PerhapsName = Annotated[str, Word("[JOB]", "jobs", name_without_kind)]

Names = Annotated[tuple[str, ...], Word("JOB...", "jobs", name_without_kind)]

PerhapsNames = Annotated[tuple[str, ...], Word("[JOB...]", "jobs", name_without_kind)]


class Output(StrEnum):
    """The output formats; each command has some of them."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    SVG = "svg"
    GRAPHML = "graphml"
    TEXT = "text"
    RAW = "raw"
    CSV = "csv"
    HTML = "html"


class DryRun(StrEnum):
    """Who checks a job that is not created."""

    CLIENT = "client"
    SERVER = "server"


class JobKind(StrEnum):
    """The values of `--type`: MPI jobs, or jobs of a kind that never exists here."""

    MPI = "mpijob"
    OTHER = "other"

    @classmethod
    def parse(cls, text: str) -> JobKind:
        """Read a type by any of arena's names for it."""
        return cls.MPI if text.lower() in {"mpijob", "mpi", "mj"} else cls.OTHER


TypeFlag = Annotated[
    JobKind | None,
    Flag(
        "Kind of job: only mpijob exists.",
        "KIND",
        name="--type",
        short="-T",
        panel=PANEL,
        choices=(JobKind.MPI,),
    ),
]

FileFlag = Annotated[
    str,
    Flag(
        help="Take the job from this YAML or JSON file; - is stdin. Flags on the line win.",
        short="-f",
        panel=PANEL,
        metavar="FILE",
        completes="files",
    ),
]

FabricFlag = Annotated[
    str,
    Flag(
        help="Take the levels of the network and their speed from this file; - is stdin.",
        panel=PANEL,
        metavar="FILE",
        completes="files",
    ),
]


def seats(help: str) -> Flag:  # noqa: A002 - as in Flag
    """The flag `--on`, which names the node and the GPUs of each worker."""
    return Flag(help=help, name="--on", panel=PANEL, metavar="NODE/GPU,GPU;...")


def output(*choices: Output, help: str = "How to show it.") -> Flag:  # noqa: A002 - as in Flag
    """The flag `--output` of a command that has these formats."""
    return Flag(help=help, name="--output", short="-o", panel=PANEL, choices=choices)


_SCREEN = (Output.WIDE, Output.JSON, Output.YAML)

OutputFlag = Annotated[Output, output(*_SCREEN)]

JobsOutputFlag = Annotated[Output, output(*_SCREEN, Output.NAME)]

ActionOutputFlag = Annotated[Output, output(Output.WIDE, Output.NAME)]

PictureOutputFlag = Annotated[Output, output(*_SCREEN, Output.SVG)]

GraphOutputFlag = Annotated[Output, output(*_SCREEN, Output.SVG, Output.GRAPHML)]

DOCUMENTS = (Output.YAML, Output.JSON, Output.NAME)
"""The formats of manifests."""


def names_only(output_format: Output | None, common: CommonOptions) -> bool:
    """Whether only names go to standard output."""
    plain = common.quiet and output_format in {None, Output.WIDE}
    return plain or output_format is Output.NAME


def format_document(value: object, output_format: Output) -> str:
    """A value for programs, in JSON or YAML, with a line feed at the end."""
    if output_format == Output.YAML:
        return layout.go_yaml(value)
    return layout.go_json(value) + "\n"


EverywhereFlag = Annotated[
    bool,
    Flag(help="In all namespaces, not only in one.", short="-A", panel=PANEL, excludes=("JOB",)),
]
