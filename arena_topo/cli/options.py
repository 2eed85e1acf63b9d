"""The options of every command, and the variables of flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from arena_topo.cli.console import Colour, LogLevel
from arena_topo.flag import flag, flags_of, kinds_of, spelling
from arena_topo.numbers import parse_span

if TYPE_CHECKING:
    from arena_topo.engines import Options

PROGRAM = "arena-topo"

GLOBAL_PANEL = "Global options"
"""The panel of the help for the options of every command."""


class Seconds(float):
    """A time span as Go writes it (`90s`, `1h30m`, `1.5h`) or as plain seconds."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a span; ValueError shows the form, or how long it may be."""
        return cls(parse_span(f"{text}s" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else text))

    def __str__(self) -> str:
        """The span in seconds, as `parse` reads it."""
        return f"{self:g}s"


class BackendName(StrEnum):
    """Which engine runs the jobs."""

    AUTO = "auto"
    KUBERNETES = "kubernetes"
    LOCAL = "local"


_REQUEST_TIMEOUT = Seconds(30)

_common = partial(flag, panel=GLOBAL_PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """The options of every command, before or after its name; the last one wins.

    The hidden ones are arena's and have no effect here; they are accepted so that scripts of arena
    keep working.
    """

    namespace: str = _common(
        "",
        "Namespace of the job; else that of the context, else default.",
        "NAME",
        short="-n",
        completes="namespaces",
    )
    context: str = _common("", "Context of the kubeconfig.", "NAME", completes="contexts")
    kubeconfig: str = _common("", "Path of the kubeconfig.", "PATH", completes="files")
    config: str = _common("", "The same as --kubeconfig.", "PATH", completes="files")
    cluster: str = _common(
        "", "Cluster of the kubeconfig, instead of the context's.", "NAME", completes="clusters"
    )
    user: str = _common(
        "", "User of the kubeconfig, instead of the context's.", "NAME", completes="users"
    )
    as_: str = _common("", "Act as this user, where the cluster lets you.", "NAME", name="--as")
    as_group: tuple[str, ...] = _common(
        (), "Act as a member of this group; repeat for more.", "GROUP"
    )
    profile: str = _common(
        "", "Use this profile of the settings file.", "NAME", completes="profiles"
    )
    backend: BackendName = _common(
        BackendName.AUTO,
        "Where jobs run: auto is kubernetes where one is configured, else local.",
    )
    emulate: str = _common(
        "",
        "Machines that the local engine emulates, such as dgx-1-v100:2.",
        "PRESET[:COUNT]",
        completes="machines",
    )
    request_timeout: Seconds = _common(
        _REQUEST_TIMEOUT, "How long one call to the API server may take.", "DURATION"
    )
    timeout: Seconds | None = _common(
        None, "Give up after this long in all; a job that was submitted goes on.", "DURATION"
    )
    prometheus_address: str = _common(
        "", "Prometheus that knows how busy the GPUs are; else that of the cluster.", "URL"
    )
    color: Colour = _common(Colour.AUTO, "Colour what is shown; auto does so on a terminal.")
    quiet: bool = _common(
        False, "Print only the essential: names, warnings and errors.", short="-q"
    )
    loglevel: LogLevel = _common(
        LogLevel.INFO,
        "How much to print on stderr; debug shows each request to the API server.",
    )
    arena_namespace: str = _common(
        "arena-system",
        "Where arena keeps its configuration; whoami reads its administrators there.",
        "NAME",
        completes="namespaces",
    )
    pprof: bool = _common(False, "Not used.", hidden=True)
    trace: bool = _common(False, "Not used.", hidden=True)
    helm_binary: bool = _common(False, "Not used.", hidden=True)

    def options(self) -> Options:
        """The options of an engine among them."""
        from arena_topo.engines import Options  # noqa: PLC0415 - not every command opens one

        return Options(
            backend=str(self.backend),
            kubeconfig=self.kubeconfig or self.config or None,
            context=self.context or None,
            cluster=self.cluster or None,
            user=self.user or None,
            impersonate=self.as_ or None,
            impersonate_groups=self.as_group,
            namespace=self.namespace or None,
            prometheus_address=self.prometheus_address or None,
            emulate=self.emulate or None,
            request_timeout=self.request_timeout,
            deadline=self.timeout,
        )


def renamed(record: Any) -> dict[str, str]:
    """The deprecated spellings of a record's flags, each with the current spelling."""
    return {
        old: spelling(name, flag)
        for name, flag in flags_of(record).items()
        for old in flag.deprecated
    }


# ARENA_CONFIG is the path of arena's own configuration file. Arena has none of the others, and a
# site may use a name such as ARENA_USER for something else.
_NOT_OURS = frozenset(
    f"ARENA_{name}" for name in ("CONFIG", "CLUSTER", "USER", "AS", "PROFILE", "COLOR", "QUIET")
)


_PREFIXES = ("ARENA_TOPO_", "ARENA_")

# Arena reads this one too (pkg/prometheus/metric.go).
_PLAIN = {"prometheus_address": ("PROMETHEUS_ADDRESS",)}


def flag_variables(record: Any) -> dict[str, tuple[str, ...]]:
    """The environment variables of each field whose flag is not given, strongest first."""
    kinds = kinds_of(record)
    return {
        name: tuple(
            variable
            for variable in (f"{prefix}{name.rstrip('_').upper()}" for prefix in _PREFIXES)
            if variable not in _NOT_OURS
        )
        + _PLAIN.get(name, ())
        for name in flags_of(record)
        if not kinds[name][1]
    }
