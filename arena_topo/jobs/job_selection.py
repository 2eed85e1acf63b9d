"""Options that select jobs: by state, by label, by owner."""

from __future__ import annotations

from dataclasses import dataclass

from arena_topo.cli.arguments import option
from arena_topo.clusters.selectors import LabelSelector
from arena_topo.engines import Phase
from arena_topo.engines.backend import Backend
from arena_topo.jobs import job_order
from arena_topo.jobs.job_order import Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Conditions that select jobs of a namespace; all of them must hold."""

    status: tuple[Phases, ...] = option(
        (),
        "Only jobs with one of these states, such as RUNNING,PENDING; repeat for more.",
        "STATUS[,STATUS]",
        excludes=("JOB",),
    )
    selector: LabelSelector | None = option(
        None,
        "Only jobs with these labels, such as team=vision or 'tier in (a,b)'.",
        "LABELS",
        short="-l",
        excludes=("JOB",),
    )
    mine: bool = option(False, "Only jobs that you submitted.", excludes=("JOB",))

    @property
    def phases(self) -> frozenset[Phase]:
        """The states to select; empty: any."""
        return frozenset().union(*self.status)

    def labels(self, backend: Backend) -> str:
        """The label selector for the request."""
        return job_order.selection(backend, str(self.selector or ""), mine=self.mine)
