"""Logs in a terminal and in pipes: colours, wrapping, bars, Ctrl-C, slow readers, `| head`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import program
import pytest
from fake_terminal import Running
from nccl_lines import joined, made
from prompt import prepared

SOON = 5.0
"""Seconds within which what is asked for at once has happened, on a machine with much to do."""


class Machine:
    """This machine, which plays two DGX-1, and jobs on it that run a script."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "ARENA_TOPO_BACKEND": "local",
            "ARENA_TOPO_EMULATE": "dgx-1-v100:2",
        }

    def arena(self, *words: str) -> subprocess.CompletedProcess[str]:
        return program.run(words, env=self.around(), text=True)

    def around(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "TZ": "UTC", **self.env}

    def submit(
        self, script: str, name: str = "demo", gpus: int = 1, *, starts: bool = True
    ) -> None:
        job = [f"--name={name}", "--image=local", "--workers=2", f"--gpus={gpus}", "--gputopology"]
        done = prepared(["submit", "mpi", *job, script], self.around())
        assert done.returncode == 0, done.stderr
        while starts and self.status(name) == "PENDING":
            time.sleep(0.05)

    def turn(self, name: str) -> str:
        """What a script does to wait for `goes_on`."""
        return f"until [ -e {self.home}/{name} ]; do sleep 0.05; done"

    def goes_on(self, name: str) -> None:
        """Let a script go on from that turn."""
        (self.home / name).touch()

    def status(self, name: str) -> str:
        return json.loads(prepared(["get", name, "-o", "json"], self.around()).stdout)["status"]

    def follow(self, *words: str, name: str = "demo", **terminal) -> Running:
        return Running(["logs", "-f", name, *words], self.env, **terminal)

    def piped(self, *words: str, name: str = "demo") -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return program.start(["logs", "-f", name, *words], env=self.around(), **pipes)


@pytest.fixture
def machine(tmp_path):
    one = Machine(tmp_path)
    yield one
    # What was said is of no use any more, and some of it was a flood.
    one.env["ARENA_TOPO_LOG_ARCHIVE"] = "off"
    names = prepared(["list", "-o", "name"], one.around()).stdout.split()
    prepared(["delete", *(name.partition("/")[2] for name in names)], one.around())


GOES_ON = "The job demo goes on. Come back: "

TAGGED = (
    "for r in 0 1 2 3; do printf '[1,%s]<stdout>:rank %s is here\\n' $r $r; done;"
    " for r in 0 1 2 3; do printf '[1,%s]<stdout>:all the same\\n' $r; done; "
)
"""What four ranks say through `mpirun --tag-output`."""


# ---------------------------------------------------------------- what stands there


def test_ranks_are_told_apart_by_colours_that_a_pipe_does_not_get(machine):
    machine.submit(TAGGED + "sleep 600")
    shown = machine.follow("--all")
    text = shown.until("all the same")
    assert {f"38;5;{code}m" for code in (32, 166, 28, 133)} <= set(shown.screen.codes)
    lines = text.splitlines()
    assert [line.partition(" | ")[2] for line in lines[:4]] == [
        f"rank {i} is here" for i in range(4)
    ]
    assert lines[4:] == ["x4 ranks 0-3 | all the same"]
    plain = machine.arena("logs", "demo", "--all", "--no-fold")
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout == "".join(f"rank {i} | rank {i} is here\n" for i in range(4)) + "".join(
        f"rank {i} | all the same\n" for i in range(4)
    )


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colours_gets_none_of_the_programs_either(machine, variables):
    machine.submit("printf '\\033[32mgreen\\033[0m\\n'; sleep 600")
    machine.env |= variables
    shown = machine.follow("--all")
    assert "launcher | green" in shown.until("green")
    assert not {code for code in shown.screen.codes if code.endswith("m")}


def test_long_lines_are_whole_and_the_terminal_wraps_them(machine):
    machine.submit("printf 'word%.0s ' $(seq 60); echo end; sleep 600")
    shown = machine.follow(columns=50)
    text = shown.until("end")
    assert len(text.splitlines()) > 5
    shown.resize(400, 24)
    assert "word " * 60 + "end" in shown.until("end").splitlines()
    assert machine.arena("logs", "demo").stdout == "word " * 60 + "end\n"


def test_a_bar_of_one_log_moves_on_a_terminal(machine):
    bar = (
        f"for i in 10 20 30; do printf '\\r%s%%' $i; {machine.turn('$i')}; done;"
        " printf '\\r done\\n'; sleep 600"
    )
    machine.submit(bar)
    shown = machine.follow()
    for state in ("10", "20", "30"):
        assert shown.until(f"{state}%").splitlines() == [f"{state}%"]
        machine.goes_on(state)
    assert shown.until("done").splitlines() == [" done"]


def test_a_bar_among_many_logs_is_shown_once_when_it_is_done(machine):
    bar = "for i in 10 20 30; do printf '\\r%s%%' $i; sleep 0.4; done; printf '\\n'; sleep 600"
    machine.submit(bar)
    shown = machine.follow("--all")
    assert shown.until("30%").splitlines() == ["launcher | 30%"]


def test_sequences_in_a_log_are_seen_and_not_obeyed(machine):
    machine.submit("printf 'one\\033[2J\\033]0;PWN\\007\\ntwo\\033[1A\\033[K\\n'; sleep 600")
    shown = machine.follow()
    assert shown.until("two").splitlines() == ["one\\x1b[2J\\x1b]0;PWN\\x07", "two\\x1b[1A"]
    raw = machine.arena("logs", "demo", "-o", "raw").stdout
    assert raw == "one\x1b[2J\x1b]0;PWN\x07\ntwo\x1b[1A\x1b[K\n"


# ---------------------------------------------------------------- waiting, and the end


def test_a_terminal_shows_why_it_waits_until_there_are_lines(machine):
    machine.submit("sleep 600", name="first", gpus=8)
    machine.submit("echo hello; sleep 2; exit 7", gpus=8, starts=False)
    shown = machine.follow("--all")
    waits = shown.until("demo waits: 2 workers x 8 GPUs cannot be placed now")
    assert "it starts by itself once it can" in " ".join(waits.split())
    machine.arena("delete", "first")
    assert shown.until("hello").splitlines() == ["launcher | hello"]
    assert shown.end() == 7
    assert shown.screen.text.splitlines()[1:] == [
        "error: the job demo failed",
        "  why:  the launcher ended with exit code 7, and so does this command",
        "  try:  arena-topo why demo -n default",
    ]


def test_a_terminal_shows_whom_nccl_has_not_connected_yet_and_then_what_it_did(machine, tmp_path):
    begun, done = made(2, ["a"], done=False), made(2, ["a"])[2:] + joined(2, "P2P/CUMEM")
    (tmp_path / "begun").write_text("".join(f"{line}\n" for line in begun))
    (tmp_path / "done").write_text("".join(f"{line}\n" for line in done))
    machine.submit(f"cat {tmp_path}/begun; {machine.turn('on')}; cat {tmp_path}/done; sleep 600")
    shown = machine.follow("--nccl")
    shown.until("demo waits: NCCL connects ranks 0-1")
    machine.goes_on("on")
    shown.until("CUM P2P/CUMEM")
    assert shown.end() == 0
    assert "waits" not in shown.screen.text


def test_a_pipe_is_told_why_it_waits_once_for_each_reason(machine):
    machine.submit("sleep 600", name="first", gpus=8)
    machine.submit("echo hello", gpus=8, starts=False)
    follows = machine.piped()
    assert follows.stderr is not None
    assert follows.stderr.readline().startswith(b"demo waits: 2 workers x 8 GPUs cannot be placed")
    time.sleep(2.5)
    machine.arena("delete", "first")
    out, err = follows.communicate(timeout=30)
    assert (follows.returncode, out) == (0, b"hello\n")
    assert b"cannot be placed" not in err


def test_an_empty_log_is_told_of_on_a_terminal_and_is_nothing_in_a_pipe(machine):
    machine.submit("sleep 600")
    shown = Running(["logs", "demo"], machine.env, columns=200)
    assert shown.end() == 0
    assert shown.screen.text == (
        "note: demo has written nothing yet; wait for it: arena-topo logs -f demo -n default"
    )
    assert "36m" in shown.screen.codes, "the note is coloured"
    piped = machine.arena("logs", "demo")
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "", "")


def test_a_pipe_is_told_once_that_nothing_is_written_and_that_a_job_is_suspended(machine):
    machine.submit("sleep 600")
    follows = machine.piped()
    assert follows.stderr is not None
    told = [follows.stderr.readline() for _ in range(1)]
    machine.arena("suspend", "demo")
    told.append(follows.stderr.readline())
    follows.send_signal(signal.SIGINT)
    told += follows.communicate(timeout=30)[1].splitlines(keepends=True)
    waits = [one.decode() for one in told if one.startswith(b"demo ")]
    assert waits == [
        "demo runs, but has written nothing yet\n",
        "demo is suspended; start it once it fits: arena-topo resume demo -n default\n",
    ]
    assert b"The job demo is suspended. Come back: arena-topo logs -f demo" in told[-1]


def test_quiet_is_heeded_while_waiting(machine):
    machine.submit("sleep 600", name="first", gpus=8)
    machine.submit("echo hello", gpus=8, starts=False)
    shown = machine.follow("--quiet")
    assert shown.during(2.5) == ""
    machine.arena("delete", "first")
    assert shown.end() == 0
    assert shown.screen.text == "hello"


# ---------------------------------------------------------------- leaving


def test_who_leaves_is_told_how_to_come_back(machine):
    machine.submit("echo hello; sleep 600")
    flags = ("--all", "--exclude", "a b", "--fold=false", "--tail=10")
    shown = machine.follow(*flags, columns=220)
    shown.until("hello")
    shown.program.sendintr()
    assert shown.end(within=SOON) == 130
    assert shown.screen.text.splitlines()[-1].removeprefix("^C") == (
        f"{GOES_ON}arena-topo logs -f --tail=10 --all --fold=false '--exclude=a b' demo -n default;"
        " delete it: arena-topo delete demo -n default"
    )


def test_what_a_terminal_echoes_of_ctrl_c_takes_no_room_of_the_words_after_it(machine):
    machine.submit("echo hello; sleep 600", name="leaves")
    shown = machine.follow("-i", "leaves-launcher", name="leaves", columns=83)
    shown.until("hello")
    shown.during(0.5)
    shown.program.sendintr()
    assert shown.end(within=SOON) == 130
    assert shown.screen.text.splitlines()[1:] == [
        "The job leaves goes on. Come back:",
        "  arena-topo logs -f --instance=leaves-launcher leaves -n default; delete it:",
        "  arena-topo delete leaves -n default",
    ]


@pytest.mark.parametrize("words", [[], ["-o", "raw"]], ids=" ".join)
def test_who_leaves_in_the_middle_of_a_line_is_told_so_on_a_line_without_its_colour(machine, words):
    machine.submit("printf '\\033[31m\\rbar 17'; sleep 600")
    shown = machine.follow(*words, columns=200)
    shown.until("bar 17")
    shown.program.sendintr()
    assert shown.end(within=SOON) == 130
    bar, said = shown.screen.text.splitlines()
    assert bar.removesuffix("^C") == "bar 17"
    assert said.startswith(GOES_ON)
    assert shown.screen.codes[-1] == "0m"


@pytest.mark.parametrize("words", [[], ["--all"], ["-o", "raw"], ["-o", "json"]], ids=" ".join)
def test_who_leaves_a_flood_has_left_at_once(machine, words):
    machine.submit("seq 2000000; sleep 600")
    shown = machine.follow(*words, columns=200)
    shown.until(lambda screen: len(screen.lines) > 2000)
    shown.program.sendintr()
    assert shown.end(within=SOON) == 130
    assert GOES_ON in shown.screen.text[-400:]


def full(pipe) -> None:
    """Wait until no more goes into a pipe that nobody reads."""
    seen, end = [0, 0], time.monotonic() + 60
    while not seen[0] == seen[1] >= fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2:
        assert time.monotonic() < end, seen
        time.sleep(0.3)
        seen = [seen[1], *struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_reads_no_more_holds_nobody_up_who_wants_to_leave(machine, number):
    machine.submit("seq 2000000; sleep 600")
    follows = machine.piped("--all")
    full(follows.stdout)
    follows.send_signal(number)
    assert follows.wait(SOON) == 128 + number
    follows.communicate()


def test_last_words_that_nobody_takes_hold_nobody_up_either(machine):
    machine.submit("seq 2000000; sleep 600")
    one_pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    line = ["logs", "-f", "demo", "--all"]
    with program.start(line, env=machine.around(), **one_pipe) as follows:
        full(follows.stdout)  # what is said last has to go into it too
        follows.send_signal(signal.SIGINT)
        try:
            assert follows.wait(SOON) == 130
        finally:
            follows.kill()


def test_a_terminal_that_is_held_holds_nobody_up_who_wants_to_leave(machine):
    machine.submit("seq 2000000; sleep 600")
    shown = machine.follow("--all")
    time.sleep(2)  # nobody reads: there is no room left in the terminal
    shown.program.kill(signal.SIGINT)
    assert shown.program.wait() == 130
    shown.program.close()


def test_a_slow_reader_costs_no_memory_and_loses_nothing(machine):
    machine.submit("seq 500000; echo end")
    # Its memory is its own: it starts from nothing.
    line = [*program.LINE, "logs", "-f", "demo", "--all"]
    with subprocess.Popen(line, env=machine.around(), stdout=subprocess.PIPE) as follows:
        assert follows.stdout is not None
        time.sleep(2)
        read, most = b"", 0
        while piece := follows.stdout.read(1 << 18):
            status = Path(f"/proc/{follows.pid}/status").read_text()
            if found := re.search(r"VmHWM:\s+(\d+) kB", status):
                most = max(most, int(found[1]))
            read += piece
            time.sleep(0.01)
    assert follows.returncode == 0
    lines = [line.rpartition(b" ")[2] for line in read.splitlines()]
    assert lines == [str(one).encode() for one in range(1, 500_001)] + [b"end"]
    assert 0 < most < 150_000, "kB; three times as many lines take no more"


@pytest.mark.parametrize("words", [["-f"], ["-f", "--all"], []], ids=" ".join)
def test_a_reader_that_has_seen_enough_ends_it_at_once(machine, words):
    machine.submit("seq 100000; sleep 600")
    line = f"{' '.join(program.LINE)} logs demo {' '.join(words)} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        env=machine.around(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.endswith(b"1\n")
    assert done.stderr == b""


def test_a_reader_that_has_seen_enough_ends_it_though_nothing_more_comes(machine):
    machine.submit("echo hello; sleep 600")
    for words in ([], ["--all"], ["-o", "json"]):
        follows = machine.piped(*words)
        assert follows.stdout is not None
        assert b"hello" in follows.stdout.readline()
        follows.stdout.close()
        try:
            assert follows.wait(SOON) == 1
        finally:
            follows.kill()
            _, said = follows.communicate()
        assert said == b""


def test_nothing_is_asked_of_a_terminal_that_json_does_not_need(machine):
    machine.submit("printf '\\033[32mgreen\\n'; sleep 600")
    shown = machine.follow("-o", "json", columns=400)
    record = json.loads(shown.until('"message"').splitlines()[0])
    assert record["message"] == "\x1b[32mgreen"
    assert not shown.screen.codes
