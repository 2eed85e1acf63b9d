"""Logs as people and programs see them: prefixes, colours, JSON, and the flags of the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import WORLDS

from arena_topo.engines.lines import Line, Source
from arena_topo.joblogs.ranks import Entry, Speaker
from arena_topo.joblogs.view import PALETTE, Raw, Records, Text, spans

CODES = re.compile(r"\x1b\[[0-9;]*m")


def worker(index: int, *, rank: int | None = None, container: str = "mpi", run: int = 0) -> Speaker:
    pod = Source(pod=f"demo-worker-{index}", container=container, run=run, worker=index)
    return Speaker(source=pod, rank=rank)


LAUNCHER = Speaker(source=Source(pod="demo-launcher-x7k2p", container="mpi", chief=True))


def rank(number: int) -> Speaker:
    """A rank that speaks in the launcher's log."""
    return Speaker(source=LAUNCHER.source, rank=number, tagged=True)


def entry(
    who: Speaker | tuple[Speaker, ...],
    text: bytes,
    *,
    count: int = 1,
    fed: bool = True,
    at: int = 1_795_244_400_000_000_000,
    stamp: bytes = b"2026-11-21T07:00:00.000000000Z",
) -> Entry:
    speakers = who if isinstance(who, tuple) else (who,)
    line = Line(source=speakers[0].source, at=at, stamp=stamp, text=text, fed=fed)
    return Entry(line, text, speakers, count)


def shown(*batches: list[Entry], **how) -> str:
    text = Text(**{"prefixes": True, **how})
    return (b"".join(map(text.lines, batches)) + text.end()).decode()


# ---------------------------------------------------------------- who wrote it


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 3], "0-3"),
        ([7, 0, 2, 1, 3, 3], "0-3,7"),
        (range(0, 64, 2), "0,2,4,6,8,10,...,62"),
        ([*range(1000, 1010), *range(2000, 2010), *range(3000, 3010)], "1000-1009,...,3000-3009"),
    ],
)
def test_many_numbers_are_written_short(numbers, text):
    assert spans(numbers) == text


def test_each_line_says_who_wrote_it_and_the_bars_stand_below_each_other():
    batch = [
        entry(LAUNCHER, b"mpirun starts"),
        entry(worker(3, rank=3), b"loss 0.5"),
        entry(rank(12), b"loss 0.6"),
        entry(worker(4), b"a worker of several ranks"),
        entry(worker(3, rank=3, run=1), b"once more"),
        entry(worker(5, container="sidecar"), b"pulling"),
        entry(Speaker(source=Source(pod="stranger")), b"?"),
    ]
    first = shown(batch)
    assert first == (
        "launcher | mpirun starts\n"
        "rank 3 worker-3 | loss 0.5\n"
        "rank 12         | loss 0.6\n"
        "worker-4        | a worker of several ranks\n"
        "rank 3 worker-3 restart 1 | once more\n"
        "worker-5/sidecar          | pulling\n"
        "stranger                  | ?\n"
    )
    again = shown(batch, batch)[len(first) :]
    assert {line.index(" | ") for line in again.splitlines()} == {25}, "it never becomes narrower"


@pytest.mark.parametrize(
    ("speakers", "count", "said"),
    [
        (tuple(rank(one) for one in range(64)), 64, "x64 ranks 0-63"),
        (tuple(worker(one, rank=one) for one in (0, 1, 5)), 3, "x3 ranks 0-1,5"),
        (tuple(worker(one) for one in range(8)), 8, "x8 workers 0-7"),
        ((LAUNCHER, rank(0), rank(1)), 3, "x3 launcher, ranks 0-1"),
        ((worker(3, rank=3),), 12, "x12 rank 3 worker-3"),
    ],
)
def test_a_folded_line_says_how_often_and_by_whom(speakers, count, said):
    assert shown([entry(speakers, b"hello", count=count)]) == f"{said} | hello\n"


def test_times_stand_first():
    line = shown([entry(rank(0), b"hello")], timestamps=True)
    assert line == "2026-11-21T07:00:00.000000000Z rank 0 | hello\n"
    plain = shown([entry(LAUNCHER, b"hello")], timestamps=True, prefixes=False)
    assert plain == "2026-11-21T07:00:00.000000000Z hello\n"


# ---------------------------------------------------------------- colours


def luminance(number: int) -> float:
    """How light one of the 256 colours of xterm is (WCAG 2.1, relative luminance)."""
    levels = (0, 95, 135, 175, 215, 255)
    cube = number - 16
    parts = (levels[cube // 36], levels[cube // 6 % 6], levels[cube % 6])
    red, green, blue = (
        part / 255 / 12.92 if part / 255 <= 0.03928 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("number", PALETTE)
def test_every_colour_can_be_read_on_black_and_on_white(number):
    light = luminance(number)
    assert (light + 0.05) / 0.05 >= 3
    assert 1.05 / (light + 0.05) >= 3


def test_a_rank_has_one_colour_wherever_it_speaks_and_its_neighbour_another():
    def colour(speaker):
        return CODES.findall(shown([entry(speaker, b"x")], colours=True))[0]

    assert colour(rank(3)) == colour(worker(3, rank=3)) == colour(worker(3)) != colour(rank(4))
    assert colour(LAUNCHER) == "\x1b[2m"
    folded = shown([entry((rank(0), rank(1)), b"x", count=2)], colours=True)
    assert folded == "\x1b[1mx2 ranks 0-1\x1b[0m | x\n"


def test_without_its_colours_the_output_is_what_it_is_without_colours():
    batch = [entry(rank(3), b"\x1b[32mgreen\x1b[0m and \x1b[1mbold"), entry(LAUNCHER, b"x")]
    coloured = shown(batch, colours=True)
    assert CODES.sub("", coloured) == shown(batch)
    assert "\x1b[32mgreen\x1b[0m and \x1b[1mbold\x1b[0m\n" in coloured


def test_what_is_searched_for_is_marked_and_the_rest_stays():
    marks = [re.compile("loss"), re.compile("[0-9.]+"), re.compile("x*"), re.compile("s 0")]
    batch = [entry(rank(1), b"\x1b[32mloss\x1b[0m 0.5 !"), entry(rank(1), b"no!")]
    out = shown(batch, colours=True, highlight=marks, prefixes=False)
    on, off = "\x1b[1;7m", "\x1b[22;27m"
    assert out.splitlines()[0] == f"{on}loss{off}{on} 0{off}{on}.5{off} !"
    assert out.splitlines()[1] == "no!"
    assert shown(batch, highlight=marks, prefixes=False) == "loss 0.5 !\nno!\n"


# ---------------------------------------------------------------- hostile and broken text


def test_no_line_passes_for_one_of_another():
    forged = b"fine\rrank 9  | FORGED\x1b[2K\x1b[1A\x08\x08rank 9\xe2\x80\xae"
    out = shown([entry(rank(1), forged), entry(rank(1), b"\r\r")])
    assert out == ("rank 1 | rank 9  | FORGED\\x1b[1A\\x08\\x08rank 9\\u202e\nrank 1 | \n")


def test_a_time_that_is_none_is_not_obeyed():
    out = shown([entry(rank(1), b"x", stamp=b"\x1b[2Jnow")], timestamps=True)
    assert out == "\\x1b[2Jnow rank 1 | x\n"


# What tqdm 4.66 writes for `for _ in tqdm(range(3))`, with the time it takes left as it came.
TQDM = (
    b"\r  0%|          | 0/3 [00:00<?, ?it/s]"
    b"\r 33%|\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x8e      | 1/3 [00:00<00:00,  9.96it/s]"
    b"\r100%|\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88"
    b"\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88| 3/3 [00:00<00:00,  9.97it/s]"
)


def test_of_a_progress_bar_the_last_state_stays_behind_a_prefix():
    assert (
        shown([entry(rank(0), TQDM)]) == "rank 0 | 100%|██████████| 3/3 [00:00<00:00,  9.97it/s]\n"
    )


def test_a_progress_bar_without_a_prefix_comes_as_it_was_written():
    assert shown([entry(LAUNCHER, TQDM)], prefixes=False).encode() == TQDM + b"\n"


def test_a_bar_that_has_no_end_yet_moves_without_a_prefix():
    first, second, third = (b"\r%d%%" % one for one in (1, 50, 100))
    moving = [entry(LAUNCHER, first, fed=False), entry(LAUNCHER, second, fed=False)]
    whole = "\r1%\r50%\r100%\nnext\n"
    done = [entry(LAUNCHER, third), entry(LAUNCHER, b"next")]
    assert shown(moving, done, prefixes=False) == whole
    assert shown([*moving, *done], prefixes=False) == whole
    again = entry(Speaker(source=replace(LAUNCHER.source, run=1)), b"again")
    assert shown(moving, [again], prefixes=False) == "\r1%\r50%\nagain\n"


# ---------------------------------------------------------------- JSON, and as it is


def records(*batch: Entry) -> list[dict]:
    text = Records(job="demo", namespace="default").lines(batch).decode()
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    return [json.loads(line) for line in text.splitlines()]


def test_a_line_as_json_says_all_that_is_known_of_it():
    [one] = records(entry(worker(3, rank=3, run=1), b'say "hi"\t\x1b[32m\xff\xe2\x80\xae'))
    assert one == {
        "time": "2026-11-21T07:00:00.000000000Z",
        "job": "demo",
        "namespace": "default",
        "pod": "demo-worker-3",
        "container": "mpi",
        "worker": 3,
        "rank": 3,
        "run": 1,
        "message": 'say "hi"\t\x1b[32m\N{REPLACEMENT CHARACTER}\u202e',
    }
    assert list(one) == [
        *("time", "job", "namespace", "pod", "container", "worker", "rank", "run", "message")
    ]


def test_what_is_not_known_is_null_and_every_time_is_utc():
    [one, other] = records(
        entry(LAUNCHER, b"x", at=0, stamp=b""),
        entry(LAUNCHER, b"x", at=1_795_244_400_000_000_001, stamp=b"2026-11-21T08:00:00+01:00"),
    )
    assert (one["time"], one["worker"], one["rank"]) == (None, None, None)
    assert other["time"] == "2026-11-21T07:00:00.000000001Z"


def test_raw_lines_are_the_very_bytes():
    batch = [entry(rank(1), b"\x1b]0;PWN\x07\xff\r"), entry(LAUNCHER, b"cut", fed=False)]
    assert Raw().lines(batch) == b"\x1b]0;PWN\x07\xff\r\ncut"
    assert Raw(timestamps=True).lines(batch[:1]).startswith(b"2026-11-21T07:00:00.000000000Z \x1b")


# ---------------------------------------------------------------- the command


@pytest.fixture(params=["kubernetes-v2beta1", "local"])
def place(request, tmp_path, run):
    """An engine with a job on it that does what it is told, and the program that asks it."""
    with WORLDS[request.param](tmp_path) as world:
        words = ["--backend=local", "--emulate=dgx-1-v100:2"]
        if request.param != "local":
            words = [f"--kubeconfig={tmp_path / 'config'}"]
        job = world.job("demo", workers=2)
        world.backend.apply(world.plan(job))
        world.start("demo")
        yield Place(world, lambda *flags: run("logs", *flags, *words))


class Place:
    """A job on an engine, and its logs."""

    def __init__(self, world, logs):
        self.world, self.logs = world, logs

    def say(self, *lines):
        for line in lines:
            self.world.say("demo", line)
        until(lambda: self.logs("demo", "-o", "raw")[1].count("\n") >= len(lines))

    def later(self, act):
        """Do something in a moment, while the program is busy."""
        timer = threading.Timer(0.7, act)
        timer.start()
        return timer


def until(reached):
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_without_flags_it_is_the_whole_log_of_the_launcher_as_arena_shows_it(place):
    place.say("one", "two")
    assert place.logs("demo") == (0, "one\ntwo\n", "")
    assert place.logs("demo", "-t", "1") == (0, "two\n", "")
    assert place.logs("demo", "-t", "-1") == (0, "one\ntwo\n", "")
    for words in ((), ("--all",), ("-o", "json")):
        code, out, err = place.logs("demo", "--tail", "0", *words)
        assert (code, out, "error" in err) == (0, "", False)
    code, out, _ = place.logs("demo", "--timestamps")
    assert code == 0
    assert [
        re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z (\w+)", line)[1] for line in out.splitlines()
    ] == [*("one", "two")]


def test_a_raw_log_is_whole_with_its_times_too(place):
    text = "x" * 300_000
    place.world.write("demo", f"{text}\nlast".encode())
    until(lambda: place.logs("demo", "-o", "raw")[1].endswith("last"))
    code, out, _ = place.logs("demo", "-o", "raw", "--timestamps")
    rows = [row.partition("Z ") for row in out.split("\n")]
    assert (code, [row[2] for row in rows]) == (0, [text, "last"])
    assert all(re.fullmatch(r"[\d:T.-]+", row[0]) for row in rows)


def test_a_container_that_the_pod_does_not_have_is_an_error(place):
    place.say("one")
    code, out, err = place.logs("demo", "-c", "nope")
    assert (code, out) == (1, "")
    assert "container nope" in err


def test_every_line_of_all_pods_says_whose_it_is(place):
    place.say("[1,0]<stdout>:one", "[1,1]<stdout>:one", "[1,1]<stdout>:two")
    code, out, err = place.logs("demo", "--all", "--only", "launcher")
    assert (code, out, err) == (0, "x2 ranks 0-1 | one\nrank 1       | two\n", "")
    code, out, _ = place.logs("demo", "--only", "rank:0,1", "--fold=false")
    assert (code, out) == (0, "rank 0 | one\nrank 1 | one\nrank 1 | two\n")
    assert place.logs("demo", "--only", "rank:1")[1] == "rank 1 | one\nrank 1 | two\n"
    code, out, _ = place.logs("demo", "--all", "-o", "json", "--include", "^o")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["rank"], one["message"], one["pod"]) for one in found] == [
        (rank, "one", found[0]["pod"]) for rank in (0, 1)
    ]
    assert found[0]["pod"].startswith("demo-launcher")


def test_only_lines_that_are_searched_for_are_shown(place):
    place.say("epoch 1", "debug: epoch 1", "loss 3", "lost")
    code, out, _ = place.logs("demo", "--include", "epoch", "--include", "lo.s", "--exclude", "^de")
    assert (code, out) == (0, "epoch 1\nloss 3\n")


def test_following_ends_with_the_job_and_the_exit_code_of_its_launcher(place):
    place.say("one")
    timer = place.later(lambda: place.world.finish("demo", 7))
    code, out, err = place.logs("-f", "demo")
    timer.join()
    assert (code, out) == (7, "one\n")
    assert err == (
        "error: the job demo failed\n"
        "  why:  the launcher ended with exit code 7, and so does this command\n"
        "  try:  arena-topo why demo -n default\n"
    )
    assert place.logs("-f", "demo", "--all")[0] == 7
    assert place.logs("demo")[0] == 0, "who only reads is not told how the job ended"


def test_following_a_job_that_is_gone_ends_with_the_code_of_its_launcher(place):
    place.say("one")
    timer = place.later(lambda: place.world.finish("demo", 7))
    assert place.logs("-f", "demo")[0] == 7
    timer.join()
    place.world.backend.delete("demo", "default")
    code, out, err = place.logs("-f", "demo")
    assert (code, out) == (7, "one\n")
    assert err.endswith(
        "error: the job demo failed\n"
        "  why:  the launcher ended with exit code 7, and so does this command\n"
    )
    assert place.logs("demo")[:2] == (0, "one\n")
    for flags in (["-p"], ["-p", "--kept"]):
        code, out, err = place.logs("demo", *flags)
        assert (code, out) == (1, "")
        assert "error: no earlier run of demo is kept\n" in err


def test_a_job_that_succeeds_ends_its_log_with_nothing_more_to_say(place):
    place.say("one")
    timer = place.later(lambda: place.world.finish("demo"))
    assert place.logs("-f", "demo") == (0, "one\n", "")
    timer.join()


def test_who_follows_one_pod_is_not_told_how_the_job_ended(place):
    place.say("one")
    timer = place.later(lambda: place.world.finish("demo", 7))
    [pod] = [one.name for one in place.world.backend.job("demo", "default").instances if one.chief]
    assert place.logs("-f", "demo", "-i", pod) == (0, "one\n", "")
    timer.join()


def test_a_log_without_a_last_line_feed_is_given_byte_for_byte(place, tmp_path):
    place.say("a")
    place.world.write("demo", b"no line feed")
    until(lambda: place.logs("demo", "-o", "raw")[1].endswith("feed"))
    place.world.finish("demo")
    saved = tmp_path / "saved"
    raw = place.logs("demo", "-o", "raw")[1]
    assert raw.endswith("a\nno line feed")
    for flags in (["-f"], ["-f", "-o", "raw"], ["--only", "launcher", "-o", "raw"]):
        assert place.logs("demo", *flags) == (0, raw, "")
    assert place.logs("demo", "-f", "--save", str(saved))[1] == raw
    [file] = saved.iterdir()
    assert file.read_text() == raw
    place.world.backend.delete("demo", "default")
    assert place.logs("demo", "--kept", "-o", "raw")[1] == raw


@pytest.mark.parametrize("code", [0, 7])
def test_what_could_not_be_saved_is_an_error_at_the_end(place, tmp_path, code):
    saved = tmp_path / "saved"

    def spoil():
        until(saved.exists)
        shutil.rmtree(saved)
        place.world.say("demo", "two")
        place.world.finish("demo", code)

    timer = place.later(spoil)
    found, out, err = place.logs("-f", "demo", "--save", str(saved))
    timer.join()
    assert (found, out) == (code or 1, "two\n")
    assert "warning: not all of the log is saved in " in err
    assert ("error: not all of the log is saved in " in err) is (code == 0)


@pytest.mark.parametrize(
    ("since", "seconds"), [("90s", 90), ("1h30m", 5400), ("2h1m1s", 7261), ("1m1m", 120)]
)
def test_a_span_of_several_units_is_their_sum(tmp_path, run, since, seconds):
    with WORLDS["kubernetes-v2beta1"](tmp_path) as world:
        world.backend.apply(world.plan(world.job("demo", workers=2)))
        world.start("demo")
        config = f"--kubeconfig={tmp_path / 'config'}"
        assert run("logs", "demo", "--since", since, config)[0] == 0
        asked = [one for one in world.api.requests if "/log?" in one]
        assert re.search(r"sinceSeconds=(\d+)", asked[-1])[1] == str(seconds)


def test_ranks_that_all_run_on_the_launcher_are_warned_about_once(place):
    for rank in range(2):
        line = f"demo-launcher:1:2 [{rank}] NCCL INFO comm 0x5 rank {rank} nranks 2 - Init COMPLETE"
        place.world.say("demo", line)
    place.world.finish("demo", 0)
    _code, out, err = place.logs("demo")
    assert out.count("NCCL INFO") == 2
    assert err.count("warning: all 2 ranks run in the launcher's pod, ") == 1
    assert "PRTE_MCA_prte_default_hostfile" in err


def test_a_job_that_is_deleted_while_it_is_followed_is_an_error_after_its_lines(place):
    place.say("one")
    kept = Path(os.environ["XDG_STATE_HOME"]) / "arena-topo" / "logs"

    def followed():
        opened = [one for one in Path("/proc/self/fd").iterdir() if one.is_file()]
        local = any(re.search(r"/pods/.*\.log$", str(one.resolve())) for one in opened)
        return local or any(b"one" in one.read_bytes() for one in kept.rglob("*.log"))

    def delete():
        until(followed)
        place.world.backend.delete("demo", "default")

    timer = place.later(delete)
    code, out, err = place.logs("-f", "demo")
    timer.join()
    assert (code, out) == (1, "one\n")
    assert "error: " in err
    assert "was deleted" in err
    code, out, err = place.logs("demo")
    assert (code, out) == (0, "one\n")
    archived = "this is the archived log of the job that was created "
    assert err.startswith(f"note: the pods of demo are gone: {archived}")


def test_a_job_that_nobody_knows_is_an_error_at_once(place):
    for flags in ([], ["-f"], ["--all", "-f"], ["-o", "json"]):
        code, out, err = place.logs("dem", *flags)
        assert (code, out) == (1, "")
        assert err.endswith(
            "error: no job dem in namespace default\n  try:  did you mean demo?\n"
            "  arena: Not found training job dem in namespace default,"
            "please use 'arena submit' to create it.\n"
        )
    code, _, err = place.logs("dem", "--kept")
    assert code == 1
    assert err.startswith("error: nothing is archived of the logs of dem ")
    # `logs` would know the job no better.
    assert "arena-topo logs dem" not in err


WRONG = {
    "--instance x --all": "--instance and --all exclude each other",
    "--instance x --only launcher": "--instance and --only exclude each other",
    "--previous -f": "--previous and --follow exclude each other",
    "--kept -f": "--kept and --follow exclude each other",
    "--highlight x -o json": "--highlight and --output json exclude each other",
    "--highlight x -o raw": "--highlight and --output raw exclude each other",
    "--nccl -o raw": "--nccl and --output raw exclude each other",
    "--nccl --save d": "--nccl and --save exclude each other",
    "--from x": "--from needs --nccl",
    "--bus-bandwidth": "--bus-bandwidth needs --nccl",
    "--nccl --from x": "--from and JOB exclude each other",
    "--include a(b": "--include is invalid",
    "--exclude *": "--exclude is invalid",
    "--only rank:x": "--only",
    "-o yaml": "--output is invalid",
}


@pytest.mark.parametrize(("flags", "said"), WRONG.items(), ids=WRONG)
def test_what_makes_no_sense_is_refused_before_anything_is_asked(flags, said, run):
    code, out, err = run("logs", "demo", *flags.split(), "--kubeconfig=/nowhere")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {said}")
    assert "  why:  " in err or "  try:  " in err


def test_an_expression_that_makes_no_sense_is_told_with_its_place(run):
    _, _, err = run("logs", "demo", "--include", "a(b")
    assert "why:  missing ), unterminated subpattern at character 2 of 'a(b'" in err


def test_files_need_no_job(run, tmp_path):
    path = tmp_path / "log"
    path.write_text("nothing\n")
    _, _, err = run("logs", "--nccl", "--from", str(path))
    assert "not set job name" not in err
    assert "NCCL" in err
