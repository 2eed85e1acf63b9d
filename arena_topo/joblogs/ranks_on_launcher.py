"""Ranks that all run in the launcher's pod although workers wait, as the launcher's log shows.

Open MPI 5 ignores the variables with which operators name the hosts to Open MPI 4 (kubeflow/trainer
issue 4028): all ranks then start where `mpirun` runs, and the job may even succeed. Two kinds of
lines prove it:

    NCCL      host:pid:tid [0] NCCL INFO ncclCommInitRank comm 0x1 rank 3 nranks 8 ...
    Open MPI  Data for node: host  Num slots: 8  Max slots: 0  Num procs: 8    (--display-map)

Nothing else does: hosts that NCCL or the map names besides the launcher end the suspicion, and so
does a launcher with GPUs of its own, which is a worker as well.
"""

from __future__ import annotations

import re
from collections import defaultdict

from arena_topo.engines import JobStatus
from arena_topo.words import counted

HOSTFILE_HINT = (
    "mpirun did not read the hostfile of the workers: with Open MPI 5 it needs"
    " PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile in the launcher, which submit sets; take -H,"
    " --host and --hostfile out of the command"
)

_MARKS = (b"NCCL INFO", b"Data for node:", b"=====")
"""Words of which each line that matters has one."""

_RANK = re.compile(
    rb"(?<![\w.-])(?P<host>[\w.-]{1,253}):\d+:\d+ \[\d+\] NCCL INFO "
    rb"(?:[^\n]*?\brank (?P<rank>\d{1,7}) nranks (?P<of>\d{1,7})\b)?"
)
_MAPPED = re.compile(
    rb"Data for node: (?P<host>[\w.-]{1,253})\s+Num slots: \d+\s.*Num procs: (?P<of>\d{1,7})"
)
_RULE = re.compile(rb"\s*={20,}\s*")


class RanksOnLauncher:
    """A search for the proof, line by line."""

    def __init__(self, status: JobStatus) -> None:
        chief = status.chief
        self._hosts: frozenset[bytes] = frozenset()
        if chief is not None and not chief.gpus:
            # The operator may name the host of the pod without the random end of the pod's name.
            names = {chief.name, f"{status.name}-launcher"}
            self._hosts = frozenset(name.encode() for name in names)
        self._idle = sum(instance.worker is not None for instance in status.instances)
        self._ranks: dict[int, set[int]] = defaultdict(set)
        self._mapped: dict[bytes, int] = {}
        self.sentence: str | None = None
        """The proof in a sentence; None without one."""

    def see(self, line: bytes) -> bool:
        """Look at the next line; whether it completes the proof."""
        if not self._hosts or not any(mark in line for mark in _MARKS):
            return False
        ranks = self._by_nccl(line) or self._by_map(line)
        if ranks:
            waits = f"although {counted(self._idle, 'worker')} {_waits(self._idle)}"
            rest = waits if self._idle else "and none on a worker"
            self.sentence = f"all {ranks} ranks run in the launcher's pod, {rest}"
            self._hosts = frozenset()
        return bool(ranks)

    def _by_nccl(self, line: bytes) -> int:
        """The ranks of a communicator that are all on the launcher; 0 if that is not known."""
        match = _RANK.search(line)
        if match is None:
            return 0
        if not self._is_launcher(match["host"]):
            self._hosts = frozenset()
            return 0
        if match["rank"] is None:
            return 0
        of = int(match["of"])
        self._ranks[of].add(int(match["rank"]))
        return of if of > 1 and len(self._ranks[of]) == of else 0

    def _by_map(self, line: bytes) -> int:
        """The ranks of a map that has the launcher alone; 0 if that is not known."""
        if match := _MAPPED.search(line):
            self._mapped[match["host"]] = int(match["of"])
        elif _RULE.fullmatch(line):
            mapped, self._mapped = self._mapped, {}
            if len(mapped) == 1 and all(map(self._is_launcher, mapped)):
                [of] = mapped.values()
                return of if of > 1 else 0
        return 0

    def _is_launcher(self, host: bytes) -> bool:
        return host.partition(b".")[0] in self._hosts


def _waits(workers: int) -> str:
    return "waits" if workers == 1 else "wait"
