"""The replay of a trace: what starts when and where, event by event.

Each start is decided by the functions that decide on a cluster: the head of the queue and its
reservation (`queueing.reservation`), patience (`queueing.patience`), and the solver, which follows
the nodes. A trace has thousands of waiting jobs, so one search serves all jobs of a shape, and a
refusal holds until GPUs become free or the reservation changes.
"""

from __future__ import annotations

import functools
import heapq
import math
import operator
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from arena_topo.bandwidth import Estimate, Wire
from arena_topo.queueing import Rank, Running, Situation, Waiting, queue_rank
from arena_topo.queueing.patience import waits_for
from arena_topo.queueing.reservation import (
    EMPTIED,
    GPU_HOURS,
    GPUS,
    STRICT,
    QueueHead,
    QueueRule,
    head_of,
    left_for,
)
from arena_topo.simulate.cases import (
    ReplayCase,
    ReplayedJob,
    ReplayOutcome,
    RunningJob,
    Sample,
    Trace,
    WaitCause,
)
from arena_topo.simulate.neighbours import nearness
from arena_topo.simulate.policies import choose_placement, policy_of_solver
from arena_topo.solver import Placement, Policy, Request
from arena_topo.solver.door import Solver
from arena_topo.topology import Cluster, GPUSet, Holding, Node, NodeName, count, gpu_set
from arena_topo.training import Workload, overlap_in, ratio, workload_on

QUEUE_RULES: Mapping[str, QueueRule] = {
    "gpu-hours": GPU_HOURS,
    "gpus": GPUS,
    "emptied": EMPTIED,
    "strict": STRICT,
    "none": QueueRule(price=None, after=math.inf),
}
"""The rules of the queue by name: where the fewest GPU-hours are missing (that of arena-topo),
where the fewest GPUs are, on the best GPUs of the empty cluster, nobody passes, no reservation."""

WORKLOAD_MIX = ("bert-base", "bert-large", "resnet50", "resnet50-amp", "vgg16")
"""The trainings that jobs are, each as often, where the trace has none: those of the catalogue
with a step that was measured on one V100."""

MIX_GPU = "V100"
"""The GPU on which the steps of the workloads were measured."""

REVIEW = 600.0
"""Seconds of the trace after which the reservation of the head is decided anew, if the head is
still the same. On a cluster that happens after each change."""

SAMPLES = 200
"""The moments of a trace at which the GPUs in use are sampled for a plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRules:
    """What all replays of a simulation have in common.

    `cluster` is without jobs; `running` are on it at the start. With `as_run` a duration is the one
    that the trace had wherever the job ran; else that of its best placement. `speeds` are those of
    GPU models, 1 for the others. `window` are the shares of the jobs between which jobs are
    measured. `review` is the time after which a reservation is reviewed; with 0 it is decided at
    each change, as on a cluster, also where nobody asks for it.
    """

    cluster: Cluster
    wire: Wire
    running: tuple[RunningJob, ...] = ()
    as_run: bool = False
    speeds: Mapping[str, float] = field(default_factory=dict)
    window: tuple[float, float] = (0.0, 1.0)
    review: float = REVIEW


def replay_trace(trace: Trace, rules: ReplayRules, case: ReplayCase) -> ReplayOutcome:
    """The outcome of a trace under a policy, a rule of the queue, a patience, a load and a seed."""
    return _Replay(trace, rules, case).run()


@dataclass(frozen=True, kw_only=True)
class _ReplaySituation(Situation):
    """The situation on a cluster whose idle state has a solver already."""

    idle: Solver
    best: Callable[[Request], Placement | None]

    @cached_property
    def solver(self) -> Solver:
        """The solver of the emptied cluster."""
        return self.idle

    def best_ever(self, request: Request) -> Placement | None:
        """The best placement of a gang on the emptied cluster, which is cached."""
        return self.best(request)


class _Gang:
    """A job that waits or runs."""

    __slots__ = ("at", "causes", "index", "last", "neighbours", "places", "since", "workload")

    def __init__(self, index: int, since: float, causes: tuple[float, ...]) -> None:
        self.index = index
        self.since = since
        self.causes = causes
        """The clocks of the causes for its shape when it came."""
        self.last: tuple[tuple[tuple[NodeName, tuple[int, ...]], ...], float] | None = None
        self.at = 0.0
        self.places: Mapping[NodeName, tuple[GPUSet, int]] = {}
        self.neighbours = [0.0, 0.0, 0.0]
        """How near others are now, since when, and the integral over time."""


class _Shape:
    """The waiting jobs of one shape, priority and limit: one search serves all of them.

    `refused`: whether the first has no place on the nodes as they are, and beside the head.
    """

    __slots__ = ("cause", "changed", "clocks", "gangs", "priority", "refused", "request", "timeout")

    def __init__(self, request: Request, priority: int, timeout: float | None) -> None:
        self.request = request
        self.priority = priority
        self.timeout = timeout
        self.gangs: deque[_Gang] = deque()
        self.refused = [False, False]
        self.cause = WaitCause.CAPACITY
        self.clocks = [0.0] * len(WaitCause)
        self.changed = 0.0

    @property
    def gpus(self) -> int:
        return self.request.workers * self.request.gpus

    def rank(self) -> Rank:
        first = self.gangs[0]
        return queue_rank(self.priority, first.since, (_key(first.index),))

    def read_clocks(self, now: float) -> tuple[float, ...]:
        self.clocks[self.cause] += now - self.changed
        self.changed = now
        return tuple(self.clocks)

    def refuse(self, cause: WaitCause, now: float) -> None:
        self.read_clocks(now)
        self.cause = cause


def _key(index: int) -> str:
    return f"{index:09}"


_END, _WAKE = 0, 1


class _Replay:
    def __init__(self, trace: Trace, rules: ReplayRules, case: ReplayCase) -> None:
        self.trace, self.rules, self.case = trace, rules, case
        self.rule = replace(QUEUE_RULES[case.queue], worthwhile=case.worthwhile)
        self.chance = random.Random(f"choice {case.seed}")  # noqa: S311 - nothing is secret here
        self.kinds = _workloads(trace, case.seed)
        cluster = rules.cluster
        self.idle = Solver(cluster)
        self.best: dict[tuple[object, ...], Placement | None] = {}
        self.nodes = {node.name: node for node in cluster.nodes}
        self.empty = dict(self.nodes)
        self.models = {node.name: node.machine.model or "" for node in cluster.nodes}
        self.total = sum(node.free_count for node in cluster.nodes)
        self.free_of = Counter[str]()
        for node in cluster.nodes:
            self.free_of[self.models[node.name]] += node.free_count
        self.free, self.partial = self.total, 0
        self.solver, self.left = Solver(cluster), Solver(cluster)
        # What changes makes an index of its own, which takes long at the first change.
        self.unsynced: tuple[set[NodeName], set[NodeName]] = (set(), set())
        self.head: QueueHead | None = None
        self.reviewed = -math.inf
        self.reserved: dict[NodeName, int] = {}
        self.shapes: dict[tuple[object, ...], _Shape] = {}
        self.waiting: list[_Shape] = []
        self.running: dict[str, tuple[Running, _Gang]] = {}
        self.events: list[tuple[float, int, int]] = []
        self.residents: dict[NodeName, dict[_Gang, GPUSet]] = defaultdict(dict)
        self.slowdowns: dict[tuple[object, ...], tuple[float, float, float]] = {}
        self.patient: set[int] = set()
        self.never: Counter[str] = Counter()
        self.done: list[ReplayedJob] = []
        self.records: dict[int, ReplayedJob] = {}
        self.now = 0.0
        self.integrals = defaultdict[str, float](float)
        self.samples: list[Sample] = []
        self.queued = self.queued_gpus = 0
        asked = trace.gpu_seconds / (trace.span or 1.0) / self.total
        self.load = case.load or asked
        stretch = 1.0 if case.load is None else asked / case.load
        self.submissions = [job.submitted * stretch for job in trace.jobs]
        jobs = len(trace.jobs)
        self.first, self.last = (min(jobs, math.ceil(share * jobs)) for share in rules.window)
        ends = self.submissions[min(self.first, jobs - 1)], self.submissions[self.last - 1]
        self.begin, self.end = ends if self.last > self.first else (0.0, 0.0)
        if rules.window == (0.0, 1.0):
            self.end = math.inf

    # Events

    def run(self) -> ReplayOutcome:
        for running in self.rules.running:
            self._hold(running)
        at, jobs = 0, len(self.submissions)
        while self._upcoming() or at < jobs:
            upcoming = self.submissions[at] if at < jobs else math.inf
            now = min(upcoming, self.events[0][0] if self.events else math.inf)
            self._advance(now)
            while self.events and self.events[0][0] == now:
                _, kind, index = heapq.heappop(self.events)
                (self._ended if kind == _END else self._woken)(index)
            while at < jobs and self.submissions[at] == now:
                self._arrived(at)
                at += 1
            if self.free or not self.rules.review:
                self._start_waiting()
            for shape in () if self.free else self.waiting:
                self._refuse(shape, WaitCause.CAPACITY, everywhere=True)
        return self._outcome()

    def _upcoming(self) -> bool:
        """Whether a job will end, or the patience of a waiting one."""
        events = self.events
        while events and events[0][1] == _WAKE and events[0][2] not in self.patient:
            heapq.heappop(events)
        return bool(events)

    def _advance(self, now: float) -> None:
        """Count what holds until a moment."""
        if now == math.inf:
            return
        dt = min(now, self.end) - max(self.now, self.begin)
        if dt > 0:
            used, sums = self.total - self.free, self.integrals
            sums["time"] += dt
            sums["used"] += used * dt
            sums["partial"] += self.partial * dt
            sums["queued"] += self.queued * dt
            if self.queued:
                sums["time waiting"] += dt
                sums["used waiting"] += used * dt
                if self.queued > 1:
                    sums["reserved idle"] += sum(self.reserved.values()) * dt
        span = self.submissions[-1]
        while len(self.samples) <= SAMPLES and (at := span * len(self.samples) / SAMPLES) <= now:
            self.samples.append(Sample(at, self.total - self.free, self.queued_gpus))
            if not span:
                break
        self.now = now

    def _arrived(self, index: int) -> None:
        job = self.trace.jobs[index]
        key = (job.gpus, job.each, job.priority, job.timeout)
        shape = self.shapes.get(key)
        if shape is None:
            request = Request(
                workers=job.gpus // job.each,
                gpus=job.each,
                wire=self.rules.wire,
                policy=policy_of_solver(self.case.policy) or Policy.PACK,
            )
            shape = self.shapes[key] = _Shape(request, job.priority, job.timeout)
        if self._best(shape.request) is None:
            self.never[self._why_never(shape)] += 1
            return
        if not shape.gangs:
            self.waiting.append(shape)
            shape.refused = [False, False]
        shape.gangs.append(_Gang(index, self.now, shape.read_clocks(self.now)))
        self.queued += 1
        self.queued_gpus += job.gpus
        if self.case.patience and job.gpus > 1:
            heapq.heappush(self.events, (self.now + self.case.patience, _WAKE, index))
            self.patient.add(index)

    def _why_never(self, shape: _Shape) -> str:
        largest = max((node.healthy_count for node in self.empty.values()), default=0)
        if shape.request.gpus > largest:
            return f"a worker has more GPUs than a node ({largest})"
        return "more GPUs than the cluster has of one model"

    def _woken(self, index: int) -> None:
        """The patience of a job has ended, if it waits still."""
        self.patient.discard(index)
        job = self.trace.jobs[index]
        shape = self.shapes[job.gpus, job.each, job.priority, job.timeout]
        if shape.gangs and shape.gangs[0].index == index:
            shape.refused = [False, False]
            if self.head is not None and self.head.gang.key == _key(index):
                self._forget_head()

    def _ended(self, index: int) -> None:
        gang = self.running.pop(_key(index))[1]
        self._give(gang)
        for shape in self.waiting:
            shape.refused = [False, False]
        record = self.records.pop(index, None)
        if record is not None:
            level, since, total = gang.neighbours
            total += level * (self.now - since)
            average = total / (self.now - gang.at) if self.now > gang.at else level
            self.done.append(record._replace(ended=self.now, neighbours=average))

    def _hold(self, job: RunningJob) -> None:
        """A job of the dump has its GPUs until it ends."""
        gang = _Gang(-1 - len(self.running), 0.0, ())
        started = None if job.age is None else -job.age
        running = Running(key=_key(gang.index), started=started, timeout=job.timeout)
        gang.places = job.places
        self.running[running.key] = running, gang
        self._take(gang)
        if started is not None:
            heapq.heappush(self.events, (running.remaining(0.0), _END, gang.index))

    # The queue

    def _start_waiting(self) -> None:
        """Start jobs in their turn until none fits."""
        while self.waiting:
            if self.now - self.reviewed >= self.rules.review:
                for shape in self.waiting:
                    shape.refused[1] = shape.refused[0]
            order = sorted(self.waiting, key=_Shape.rank)
            if not self.rules.review:
                self._head(order[0])
            if not any(self._started(shape, order[0]) for shape in order):
                return

    def _started(self, shape: _Shape, oldest: _Shape) -> bool:
        """Start the first job of a shape if it fits now and does not delay the head."""
        answer = self._answer(shape, oldest)
        if isinstance(answer, Placement):
            self._start(shape, answer)
            return True
        if answer is not None:
            self._refuse(shape, answer[0], everywhere=answer[1])
        return False

    def _answer(self, shape: _Shape, oldest: _Shape) -> Placement | tuple[WaitCause, bool] | None:
        """The placement of the first job of a shape, else why it waits; None if that is known.

        The cause comes with whether it would hold without a reservation.
        """
        first = shape is oldest
        if shape.refused[not first] or shape.refused[0]:
            return None
        if _most(self.free_of) < shape.gpus:
            return WaitCause.CAPACITY, True
        if first:
            return self._offer(shape, beside=False)
        if shape.gpus > 1 and not self._synced(beside=False).fits(shape.request):
            return WaitCause.FRAGMENTS, True
        head = self._head(oldest)
        beside = head is not None and head.delayed_by(shape.rank(), shape.timeout, self.now)
        return self._offer(shape, beside=beside)

    def _offer(self, shape: _Shape, *, beside: bool) -> Placement | tuple[WaitCause, bool]:
        """The placement of a job, perhaps beside the reservation of the head, or why it waits."""
        placement = self._choice(shape, beside=beside)
        if placement is None:
            return (WaitCause.RESERVED, False) if beside else (WaitCause.FRAGMENTS, True)
        until = self._until(shape)
        share = self.case.worthwhile
        if self.now < until and waits_for(
            shape.request, placement, self._best(shape.request), until=until, share=share
        ):
            return WaitCause.PATIENCE, not beside
        return placement

    def _best(self, request: Request) -> Placement | None:
        """The best placement on the cluster without jobs, which never changes; cached."""
        key = (request.workers, request.gpus, request.min_bandwidth, request.policy)
        if key not in self.best:
            self.best[key] = self.idle.find(request)
        return self.best[key]

    def _until(self, shape: _Shape) -> float:
        """When the patience of the first job of a shape ends."""
        patient = self.case.patience > 0 and shape.gpus > 1
        return shape.gangs[0].since + self.case.patience if patient else -math.inf

    def _choice(self, shape: _Shape, *, beside: bool) -> Placement | None:
        solver = self._synced(beside=beside)
        if beside:
            assert self.head is not None
            reserved = Counter[str]()
            for name, gpus in self.reserved.items():
                reserved[self.models[name]] += gpus
            if self.head.strict or _most(self.free_of - reserved) < shape.gpus:
                return None
        return choose_placement(self.case.policy, shape.request, solver, self.chance)

    def _refuse(self, shape: _Shape, cause: WaitCause, *, everywhere: bool) -> None:
        shape.refused[0] |= everywhere
        shape.refused[1] = True
        if shape.cause is not cause:
            shape.refuse(cause, self.now)

    def _head(self, oldest: _Shape) -> QueueHead | None:
        """The head of the queue with its reservation, which is reviewed from time to time."""
        gang = oldest.gangs[0]
        known = self.head is not None and self.head.gang.key == _key(gang.index)
        if known and self.now - self.reviewed < self.rules.review:
            return self.head
        waits = Waiting(
            key=_key(gang.index),
            request=oldest.request,
            priority=oldest.priority,
            since=gang.since,
            timeout=oldest.timeout,
            until=self._until(oldest),
            last=gang.last,
        )
        head = None
        if self.now - gang.since >= self.rule.after:
            situation = _ReplaySituation(
                cluster=self._synced(beside=False).cluster,
                emptied=self.rules.cluster,
                running=tuple(running for running, _ in self.running.values()),
                now=self.now,
                idle=self.idle,
                best=self._best,
            )
            head = head_of([waits], situation, self.rule)
        if head is None:
            self._forget_head()
            return None
        gang.last = head.seats, head.since
        if self.head is None or head.placement != self.head.placement:
            self._forget_head()
            self.head = head
            self.unsynced[1].update(head.placement.loads)
        self.head, self.reviewed = head, self.now
        return head

    def _forget_head(self) -> None:
        """Nothing is reserved until a head of the queue is asked for."""
        if self.head is not None:
            self.unsynced[1].update(self.head.placement.loads)
            self.head = None
            self.reserved = {}
            for shape in self.waiting:
                shape.refused[1] = shape.refused[0]

    def _synced(self, *, beside: bool) -> Solver:
        """The solver of the nodes as they are, or beside the reservation of the head."""
        solver, names = self.left if beside else self.solver, self.unsynced[beside]
        if not names:
            return solver
        nodes = [self.nodes[name] for name in sorted(names)]
        if beside and self.head is not None:
            cluster = left_for(self.head, replace(self.rules.cluster, nodes=tuple(nodes)))
            for before, after in zip(nodes, cluster.nodes, strict=True):
                if after is before:
                    self.reserved.pop(after.name, None)
                else:
                    self.reserved[after.name] = before.free_count - after.free_count
            nodes = list(cluster.nodes)
        solver.put(*nodes)
        names.clear()
        return solver

    # GPUs

    def _start(self, shape: _Shape, placement: Placement) -> None:
        gang = shape.gangs.popleft()
        job = self.trace.jobs[gang.index]
        now = self.now
        if not shape.gangs:
            self.waiting.remove(shape)
        shape.refused = [False, False]
        self.queued -= 1
        self.queued_gpus -= job.gpus
        self.patient.discard(gang.index)
        clocks = shape.read_clocks(now)
        waits = tuple(after - before for before, after in zip(gang.causes, clocks, strict=True))
        if self.head is not None and self.head.gang.key == _key(gang.index):
            self._forget_head()
        places: dict[NodeName, list[int]] = defaultdict(list)
        unnamed = Counter[NodeName]()
        for assignment in placement.assignments:
            places[assignment.node] += assignment.gpus
            unnamed[assignment.node] += 0 if assignment.gpus else placement.gpus
        gang.places = {name: (gpu_set(gpus), unnamed[name]) for name, gpus in places.items()}
        gang.at = gang.neighbours[1] = now
        self._take(gang)
        slow, low, high = self._slowdown(gang.index, shape.request, placement)
        speed = min(self.rules.speeds.get(self.models[name], 1.0) for name in places)
        takes = job.duration / speed * (1.0 if self.rules.as_run else slow)
        running = Running(key=_key(gang.index), started=now, timeout=job.timeout)
        self.running[running.key] = running, gang
        heapq.heappush(self.events, (now + takes, _END, gang.index))
        if self.first <= gang.index < self.last:
            best = self._best(shape.request)
            assert best is not None
            self.records[gang.index] = ReplayedJob(
                row=gang.index,
                submitted=gang.since,
                started=now,
                ended=math.inf,
                gpus=job.gpus,
                nodes=len(places),
                fewest=len(best.nodes),
                slowdown=slow,
                low=low,
                high=high,
                ideal=job.duration / speed,
                waits=waits,
                neighbours=0.0,
            )

    def _slowdown(
        self, index: int, request: Request, placement: Placement
    ) -> tuple[float, float, float]:
        """How many times longer a step takes than with the best placement, and the range."""
        best = self._best(request)
        now, ideal = placement.bandwidth, None if best is None else best.bandwidth
        if now is None or ideal is None or now == ideal:
            return 1.0, 1.0, 1.0
        workload = self.kinds[index]
        machines = (self.nodes[name].machine for name in placement.nodes)
        overlap = overlap_in(machines)
        key = (workload.name, _known(now), _known(ideal), overlap)
        if key not in self.slowdowns:
            longer = ratio(workload, now, ideal, overlap=overlap)
            self.slowdowns[key] = longer.value, longer.low, longer.high
        return self.slowdowns[key]

    def _take(self, gang: _Gang) -> None:
        self._change(gang, taken=True)

    def _give(self, gang: _Gang) -> None:
        self._change(gang, taken=False)

    def _change(self, gang: _Gang, *, taken: bool) -> None:
        """Give GPUs to a job, or take them back."""
        key = _key(gang.index)
        for name, (gpus, unnamed) in gang.places.items():
            node = self.nodes[name]
            number = count(gpus) + unnamed
            if taken:
                assert gpus & node.free == gpus, "no GPU is given twice"
                free, holders = node.free & ~gpus, (*node.holders, Holding(key, number, gpus))
                self.residents[name][gang] = gpus
            else:
                assert not gpus & node.free, "no GPU is given back twice"
                free = node.free | gpus
                holders = tuple(each for each in node.holders if each.job != key)
                del self.residents[name][gang]
            sign = 1 if taken else -1
            after = replace(
                node,
                free=GPUSet(free),
                unattributed=node.unattributed + sign * unnamed,
                holders=holders,
            )
            self.nodes[name] = after
            self.free -= sign * number
            self.free_of[self.models[name]] -= sign * number
            self.partial += self._is_partial(after) - self._is_partial(node)
            for names in self.unsynced:
                names.add(name)
            self._meet(name)

    def _is_partial(self, node: Node) -> bool:
        return 0 < node.free_count < self.empty[node.name].free_count

    def _meet(self, name: NodeName) -> None:
        """The jobs of a node have other neighbours now."""
        machine, taken = self.empty[name].machine, self._in_use(name)
        for gang, gpus in self.residents[name].items():
            level, since, total = gang.neighbours
            nearest = nearness(machine, gpus, GPUSet(taken & ~gpus))
            if nearest < level and len(gang.places) > 1:
                nearest = self._nearest(gang)
            elif len(gang.places) > 1:
                nearest = max(nearest, level)
            gang.neighbours = [nearest, self.now, total + level * (self.now - since)]

    def _nearest(self, gang: _Gang) -> float:
        """How near other jobs are to one on several nodes: the nearest counts."""
        return max(
            nearness(self.empty[name].machine, gpus, GPUSet(self._in_use(name) & ~gpus))
            for name, (gpus, _) in gang.places.items()
        )

    def _in_use(self, name: NodeName) -> GPUSet:
        """The GPUs of a node that jobs have, as far as their indexes are known."""
        return GPUSet(functools.reduce(operator.or_, self.residents[name].values(), 0))

    # The result

    def _outcome(self) -> ReplayOutcome:
        waiting = sum(len(shape.gangs) for shape in self.waiting)
        self.done.sort(key=lambda job: job.row)
        return ReplayOutcome(
            case=self.case,
            load=self.load,
            gpus=self.total,
            nodes=len(self.nodes),
            jobs=tuple(self.done),
            never=dict(self.never),
            waiting=waiting,
            integrals=dict(self.integrals),
            samples=tuple(self.samples),
            makespan=self.now,
        )


def _most(free: Mapping[str, int]) -> int:
    """The most free GPUs of one model."""
    return max(free.values(), default=0)


def _known(estimate: Estimate) -> tuple[object, ...]:
    """What of an estimate the time of a step depends on."""
    return (
        *(estimate.point, estimate.low, estimate.high, estimate.ranks, estimate.regime),
        *(estimate.latency.value, estimate.guess),
    )


def _workloads(trace: Trace, seed: int) -> Sequence[Workload]:
    """The training of each job: that of the trace, else one drawn from the mix."""
    rng = random.Random(f"workload {seed}")  # noqa: S311 - nothing is secret here
    mix = [workload_on(MIX_GPU, name=name)[0] for name in WORKLOAD_MIX]
    named = dict(zip(WORKLOAD_MIX, mix, strict=True))
    drawn = rng.choices(mix, k=len(trace.jobs))
    return [named.get(job.workload, chance) for job, chance in zip(trace.jobs, drawn, strict=True)]
