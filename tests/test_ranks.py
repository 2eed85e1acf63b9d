"""Whose a line is: tags of mpirun, what only looks like one, and the people's `--only`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena_topo.engines import Instance, JobStatus, Phase
from arena_topo.engines.lines import Line, Source
from arena_topo.engines.rank_tags import Tagging, tagging
from arena_topo.errors import UsageError
from arena_topo.joblogs.ranks import (
    LineAttributor,
    Speaker,
    SpeakerSelection,
    is_selected,
    may_be_selected,
    parse_only,
    rank_counts,
)
from arena_topo.manifests import PlacementForecast

LAUNCHER = Source(pod="demo-launcher", chief=True)


def worker(index: int) -> Source:
    return Source(pod=f"demo-worker-{index}", worker=index)


def attributed(
    *texts: str, total: int | None = 8, asked: Tagging | None = None
) -> list[tuple[int | None, str]]:
    """The ranks that wrote these lines of a launcher."""
    lines = LineAttributor(total=total, tagging=asked)
    found = [lines.entry(line(LAUNCHER, text)) for text in texts]
    return [(one.speakers[0].rank, one.text.decode()) for one in found]


@pytest.mark.parametrize(
    ("text", "rank", "rest"),
    [
        ("[1,3]<stdout>:step 7", 3, "step 7"),
        ("[1,3]<stderr>:step 7", 3, "step 7"),
        ("[1,12]<stddiag>:step 7", 12, "step 7"),
        ("Sat Nov 21 07:00:00 2026[1,3]<stdout>:step 7", 3, "step 7"),
        ("[1,3]<stdout>: step 7", 3, "step 7"),
        ("[prterun-launcher-17@1,3]<stdout>: step 7", 3, "step 7"),
        ("[1,3][worker-1:4711]<stdout>: step 7", 3, "step 7"),
        ("[3]<stdout>: step 7", 3, "step 7"),
        ("[Sat Nov  1 07:00:00 2026][1,3]<stdout>: step 7", 3, "step 7"),
        ("[1,3]<stdout>:", 3, ""),
        ("[1,3]<stdout>:[1,4]<stdout>:x", 3, "[1,4]<stdout>:x"),
    ],
)
def test_tags_of_open_mpi_are_taken_off(text, rank, rest):
    assert attributed(text) == [(rank, rest)]


@pytest.mark.parametrize(
    "text",
    [
        "step 7",
        "",
        "[2,3]<stdout>:a process that the job has spawned has a world of its own",
        "see [1,3]<stdout>:x",
        "[1,3]<stdin>:x",
        "[1,3] x",
        "[1,x]<stdout>:x",
        "[1,3]<stdout",
        "Sat Nov 21 07:00:00 2026<stdout>:x",
        "x" * 700 + "[1,3]<stdout>:x",
    ],
)
def test_what_is_no_tag_of_this_job_is_left_alone(text):
    assert attributed(text) == [(None, text)]


def test_the_space_behind_a_tag_of_open_mpi_4_is_the_programs():
    lines = ["[1,0]<stdout>:def main():", "[1,0]<stdout>:    return"]
    assert [text for _, text in attributed(*lines)] == ["def main():", "    return"]


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("mpirun -prepend-rank -np 2 python r0.py", Tagging.HYDRA),
        (
            "sh -c cd /data && /opt/intel/bin/mpiexec.hydra -genv I_MPI_DEBUG 5 -l ./a",
            Tagging.HYDRA,
        ),
        ("bash -c 'mpiexec -n 2 -l ./a'", Tagging.HYDRA),
        ("mpirun --tag-output -np 4 python t.py", Tagging.OPEN_MPI),
        ("mpirun --mca btl tcp,self -tag-output -np 4 python t.py", Tagging.OPEN_MPI),
        ("mpirun --output tag python t.py", Tagging.OPEN_MPI),
        ("prterun -np 2 --output=merge,tag-detailed python t.py", Tagging.OPEN_MPI),
        ("srun -n 4 -l python t.py", Tagging.SLURM),
        ("srun --label python t.py", Tagging.SLURM),
        ("mpirun -np 4 ls -l", None),
        ("mpirun -np 4 python t.py --tag-output", None),
        ("mpirun --output dir=tags python t.py", None),
        ("srun --output tag python t.py", None),
        ("ls -l", None),
        ("ls -l; mpirun -np 2 true", None),
        ("", None),
    ],
)
def test_the_command_of_a_job_says_which_tags_it_asks_for(command, asked):
    assert tagging(command) is asked


def test_tags_that_the_command_asks_for_are_believed_from_the_first_line_on():
    trace = ["Warning: Permanently added 'w'", "[1] Traceback", "=   BAD TERMINATION"]
    assert attributed(*trace, asked=Tagging.HYDRA) == [
        (None, trace[0]),
        (1, "Traceback"),
        (None, trace[2]),
    ]
    assert attributed("1: Traceback", asked=Tagging.SLURM) == [(1, "Traceback")]
    assert attributed("[1] Traceback", asked=Tagging.OPEN_MPI) == [(None, "[1] Traceback")]
    free = [*["free text"] * 20, "[1] Traceback", "[9] no such rank"]
    assert attributed(*free, asked=Tagging.HYDRA)[-2:] == [(1, "Traceback"), (None, free[-1])]


@pytest.mark.parametrize("text", ["[3] epoch 1", "3: epoch 1"])
def test_what_only_looks_like_a_tag_is_the_programs(text):
    assert attributed(*[text] * 9) == [(None, text)] * 9


@given(st.lists(st.binary(max_size=40), max_size=30), st.sampled_from([None, *Tagging]))
def test_whatever_a_log_says_nothing_of_it_is_lost(texts, asked):
    lines = LineAttributor(total=8, tagging=asked)
    for text in texts:
        entry = lines.entry(Line(source=LAUNCHER, at=1, stamp=b"", text=text))
        assert text.endswith(entry.text)


def line(source: Source, text: str) -> Line:
    return Line(source=source, at=1, stamp=b"", text=text.encode())


def test_a_worker_of_one_slot_is_its_rank_and_one_of_several_has_some():
    [one] = LineAttributor(slots=1, total=4).entry(line(worker(3), "x")).speakers
    assert (one.rank, one.ranks, one.tagged) == (3, (3, 3), False)
    [some] = LineAttributor(slots=8, total=32).entry(line(worker(3), "x")).speakers
    assert (some.rank, some.ranks) == (None, (24, 31))
    [unknown] = LineAttributor().entry(line(worker(3), "x")).speakers
    assert (unknown.rank, unknown.ranks) == (None, None)


def test_there_is_one_object_for_each_speaker():
    lines = LineAttributor(slots=1, total=4)
    tagged = line(LAUNCHER, "[1,2]<stdout>:x")
    assert lines.entry(tagged).speakers[0] is lines.entry(tagged).speakers[0]
    again = line(replace(LAUNCHER), "[1,2]<stdout>:x")
    assert lines.entry(again).speakers[0] is lines.entry(tagged).speakers[0]


def test_what_a_worker_writes_is_no_tag():
    [one] = LineAttributor(slots=1, total=4).entry(line(worker(0), "[1,2]<stdout>:x")).speakers
    assert one.rank == 0


def test_without_tags_a_line_of_the_launcher_stays_as_it_is():
    entry = LineAttributor(slots=1, total=4, tags=False).entry(line(LAUNCHER, "[1,2]<stdout>:x"))
    assert (entry.text, entry.speakers[0].rank) == (b"[1,2]<stdout>:x", None)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["launcher"], SpeakerSelection(launcher=True)),
        (["rank:0-3,7"], SpeakerSelection(ranks=((0, 3), (7, 7)))),
        (["worker:2"], SpeakerSelection(workers=((2, 2),))),
        (
            ["rank:1", "worker:0", "rank:5-5"],
            SpeakerSelection(ranks=((1, 1), (5, 5)), workers=((0, 0),)),
        ),
        (["rank:3-1"], SpeakerSelection(ranks=((1, 3),))),
        (["rank:0-999999999"], SpeakerSelection(ranks=((0, 999999999),))),
    ],
)
def test_only_names_ranks_workers_and_the_launcher(words, found):
    assert parse_only(words) == found


@pytest.mark.parametrize(
    "word",
    [
        "0-3",
        "ranks:0",
        "rank:",
        "rank",
        "worker:x",
        "rank:-1",
        "launcher:0",
        "chief",
        "rank:\u0663",
    ],
)
def test_what_only_cannot_mean_is_told_with_what_could_be_meant(word):
    with pytest.raises(UsageError) as wrong:
        parse_only([word])
    assert wrong.value.message == f"--only {word!r}: expected rank:N, worker:N or launcher"
    assert wrong.value.hint == "such as rank:0-3,7 or worker:2"


def test_ranks_are_read_where_they_speak():
    """In the launcher's log, by their tags, and in the log of their own pod."""
    one = parse_only(["rank:9"])
    assert [may_be_selected(one, source, 8) for source in (LAUNCHER, worker(0), worker(1))] == [
        True,
        False,
        True,
    ]
    assert may_be_selected(one, worker(0), None)
    assert is_selected(one, Speaker(source=LAUNCHER, rank=9, tagged=True), 8)
    assert not is_selected(one, Speaker(source=LAUNCHER, rank=8, tagged=True), 8)
    assert not is_selected(one, Speaker(source=LAUNCHER), 8)
    assert is_selected(one, Speaker(source=worker(1), ranks=(8, 15)), 8)


def test_a_worker_is_its_pod_and_its_ranks_in_the_launchers_log():
    one = parse_only(["worker:1"])
    assert [may_be_selected(one, source, 8) for source in (LAUNCHER, worker(0), worker(1))] == [
        True,
        False,
        True,
    ]
    assert is_selected(one, Speaker(source=LAUNCHER, rank=15, tagged=True), 8)
    assert not is_selected(one, Speaker(source=LAUNCHER, rank=16, tagged=True), 8)


def test_the_launcher_is_all_that_its_log_says():
    one = parse_only(["launcher"])
    assert not may_be_selected(one, worker(0), 8)
    assert is_selected(one, Speaker(source=LAUNCHER), 8)
    assert is_selected(one, Speaker(source=LAUNCHER, rank=3, tagged=True), 8)


def status(
    *, gpus: int = 0, workers: int = 0, forecast: PlacementForecast | None = None
) -> JobStatus:
    pods = (
        Instance(name=f"w{index}", status="Running", created=0.0, worker=index)
        for index in range(workers)
    )
    more: dict[str, Any] = {"instances": tuple(pods), "request_gpus": gpus, "forecast": forecast}
    return JobStatus(
        uid="u", name="demo", namespace="default", phase=Phase.RUNNING, created=0.0, **more
    )


@pytest.mark.parametrize(
    ("gpus", "workers", "ranks"),
    [(32, 4, (8, 32)), (0, 4, (1, 4)), (0, 0, (None, None)), (7, 4, (None, None))],
)
def test_ranks_of_a_job_without_a_placement_are_counted_by_its_workers(gpus, workers, ranks):
    assert rank_counts(status(gpus=gpus, workers=workers)) == ranks
