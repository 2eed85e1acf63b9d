"""What people see: on terminals of every size and kind, and where there is no terminal."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import program
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from fake_terminal import FakeTerminal, Running
from prompt import prepared

from arena_topo.cli import live
from arena_topo.cli.console import Console
from arena_topo.topology import presets, published

ROOT = Path(__file__).parents[1]
CODES = re.compile(r"\x1b\[[0-9;]*m")
TERMINAL = {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
SPINNERS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
OTHER = {"?1049h", "?47h"}
"""What goes to another screen."""


def usable(codes: list[str]) -> bool:
    """Whether a terminal is left on its own screen, and with a cursor."""
    cursor = [one for one in codes if one in {"?25l", "?25h"}]
    return not OTHER & set(codes) and cursor[-1:] in ([], ["?25h"])


def test_the_fake_terminal_does_as_terminals_do():
    screen = FakeTerminal(10, 3)
    screen.feed("one\r\ntwo\r\nthree is long")
    assert screen.text == "one\ntwo\nthree is l\nong"
    assert screen.visible == "two\nthree is l\nong"
    screen.resize(5, 3)
    assert screen.text == "one\ntwo\nthree\n is l\nong"
    screen.resize(20, 3)
    screen.feed("\r\x1b[1A\x1b[Jnew")
    assert screen.text == "one\nnew"
    stiff = FakeTerminal(10, 3, reflows=False)
    stiff.feed("0123456789")
    stiff.resize(5, 3)
    assert stiff.text == "0123456789"


# ---------------------------------------------------------------- a cluster, and a job on it


@pytest.fixture
def cluster(tmp_path):
    """A living cluster of two machines, whose kubeconfig is in `env`."""
    api = FakeApi()
    one = FakeCluster(api)
    for index in range(2):
        one.node(f"node-{index}", 8)
        machine = presets.preset_machine("dgx-1-v100", f"node-{index}")
        api.add(published.config_map(machine, machine.everything))
    config = kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
    one.env = {**TERMINAL, "KUBECONFIG": str(config), "HOME": str(tmp_path)}
    with one.running():
        yield one
    api.close()


class Machine:
    """This machine with a job on it, which waits for a file with its exit code."""

    def __init__(self, home: Path, workers: int) -> None:
        emulated = {"ARENA_TOPO_BACKEND": "local", "ARENA_TOPO_EMULATE": "dgx-1-v100:2"}
        self.env = {**TERMINAL, **emulated, "HOME": str(home)}
        self.code = home / "code"
        script = f"while [ ! -s {self.code} ]; do sleep 0.05; done; exit $(cat {self.code})"
        self.submit = ["submit", "mpi", "--name=demo", "--image=local", f"--workers={workers}"]
        self.submit += ["--gpus=1", "--gputopology"]
        self.script = script

    def start(self) -> None:
        done = prepared([*self.submit, self.script], around(self))
        assert done.returncode == 0, done.stderr
        runs(self)

    def finish(self, _name: str = "demo", code: int = 0) -> None:
        self.code.write_text(f"{code}\n")


def around(cluster, **env):
    return {"PATH": os.environ["PATH"], "TZ": "UTC", **cluster.env, **env}


def arena(cluster, *words, **env):
    return program.run(words, env=around(cluster, **env), encoding="utf-8")


def submitted(cluster, name="demo", workers=2):
    job = [f"--name={name}", "--image=i", f"--workers={workers}", "--gpus=1"]
    done = prepared(["submit", "mpi", *job, "c"], around(cluster))
    assert done.returncode == 0, done.stderr


def runs(cluster, name="demo"):
    end = time.monotonic() + 20
    looks = ["get", name, "-o", "json"]
    while json.loads(prepared(looks, around(cluster)).stdout)["status"] != "RUNNING":
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def running(tmp_path):
    """A job of two workers that runs on this machine."""
    one = Machine(tmp_path, 2)
    one.start()
    yield one
    one.finish()


# ---------------------------------------------------------------- get --watch


def test_a_watched_job_is_renewed_in_its_place_and_stays_at_the_end(running):
    watch = Running(["get", "demo", "--watch"], running.env, columns=200, rows=40)
    watch.until("Status:      RUNNING")
    watch.during(2.5)
    running.finish("demo")
    assert watch.end() == 0
    text = watch.screen.text
    assert text.count("Name:") == text.count("Instances:") == 1
    shown = arena(running, "get", "demo").stdout
    assert text == "\n".join(line.rstrip() for line in shown.splitlines()).rstrip()
    assert "Status:      SUCCEEDED" in text
    assert usable(watch.screen.codes)
    assert "32m" in watch.screen.codes, "it is coloured"


def test_a_terminal_that_changes_its_size_is_drawn_anew(running):
    watch = Running(["get", "demo", "-w"], running.env, columns=100, rows=60)
    watch.until("GPU(Requested)  NODE")
    watch.resize(44, 50)
    watch.until(lambda screen: "STATUS   NODE\n" in screen.visible)
    watch.resize(120, 40)
    watch.until(lambda screen: "IS_CHIEF  GPU(Requested)  NODE\n" in screen.visible)
    watch.program.sendintr()
    assert watch.end() == 130


def test_what_does_not_fit_is_counted_while_it_is_live_and_whole_at_the_end(tmp_path):
    machine = Machine(tmp_path, 12)
    machine.start()
    watch = Running(["get", "demo", "-w"], machine.env, columns=100, rows=14)
    watch.until(lambda screen: re.search(r"^\.\.\. [0-9]+ more lines$", screen.text, re.MULTILINE))
    watch.during(1.5)
    assert "demo-worker-11" not in watch.screen.text
    assert watch.screen.text.count("Name:") == 1
    machine.finish()
    assert watch.end() == 0
    assert "more" not in watch.screen.text
    assert watch.screen.text.count("Name:") == 1
    assert "demo-worker-11" in watch.screen.text


def test_an_interrupted_watch_leaves_its_last_screen_and_says_how_to_come_back(running):
    watch = Running(["get", "demo", "-w"], running.env, columns=100, rows=30)
    watch.until("Status:      RUNNING")
    watch.program.sendintr()
    assert watch.end() == 130
    text = watch.screen.text
    assert text.count("Name:") == 1
    assert "^C" not in text
    assert "\nThe job demo goes on. Come back: arena-topo get demo -w -n default; delete it" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["get", "demo", "-w"],
            [
                "The job demo goes on. Come back: arena-topo get demo -w -n default;",
                "  delete it: arena-topo delete demo -n default",
            ],
        ),
        (
            ["wait", "demo", "--for", "succeeded"],
            [
                "The job demo is left as it is. Come back:",
                "  arena-topo wait demo --for succeeded -n default",
            ],
        ),
    ],
)
def test_how_to_come_back_is_wrapped_around_commands_that_stay_whole(running, words, said):
    one = Running(words, running.env, columns=70, rows=40)
    one.until("RUNNING")
    one.program.sendintr()
    assert one.end() == 130
    assert one.screen.text.replace("^C", "").splitlines()[-len(said) :] == said
    assert not any(one.screen.soft)


LINE = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}  "


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_go_back_gets_a_line_for_each_change(running, term):
    env = {key: value for key, value in running.env.items() if key != "TERM"}
    watch = Running(["get", "demo", "-w"], env | ({"TERM": term} if term else {}))
    watch.until("RUNNING")
    running.finish("demo")
    assert watch.end() == 0
    lines = watch.screen.text.splitlines()
    assert re.fullmatch(LINE + "RUNNING  3 of 3 pods run", lines[0])
    assert re.fullmatch(LINE + "SUCCEEDED  after [0-9]+s", lines[-1])
    assert watch.screen.codes == []


def watched(cluster, *words):
    """What a pipe gets of a job that waits for its image until it is watched, and then runs."""
    cluster.images["i"] = 600.0
    submitted(cluster)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with program.start(["get", "demo", *words], env=around(cluster), **pipes) as watch:
        first = watch.stdout.readline()
        cluster.duration, cluster.images["i"] = 1.0, 0.0
        rest, said = watch.communicate()
    assert (watch.returncode, said) == (0, "")
    return [first, *rest.splitlines(keepends=True)]


def test_in_a_pipe_a_watched_job_is_a_line_for_each_change(cluster):
    lines = [re.sub(LINE, "", line).rstrip("\n") for line in watched(cluster, "--watch")]
    assert lines[0] == "PENDING  0 of 3 pods run  3 of 3 pods are starting"
    assert lines[-1].startswith("SUCCEEDED  after ")
    assert len(lines) == len(set(lines))
    assert arena(cluster, "get", "demo", "-w").stdout.count("\n") == 1, "it is over already"


def test_nothing_is_told_of_a_job_to_which_nothing_happens(running):
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with program.start(["get", "demo", "-w"], env=around(running), **pipe) as watch:
        first = watch.stdout.readline()
        time.sleep(1.5)
        running.finish()
        rest = watch.stdout.read()
    assert watch.returncode == 0
    assert "RUNNING  3 of 3 pods run" in first
    (last,) = [one for one in rest.splitlines() if "RUNNING" not in one]
    assert "SUCCEEDED" in last
    assert rest.count("\n") <= 2, "at most the end of some pods, and of the job"


def test_a_watched_job_as_json_is_a_document_for_each_change_on_a_line_of_its_own(cluster):
    found = [json.loads(line) for line in watched(cluster, "-w", "-o", "json")]
    assert [one["status"] for one in found][:: len(found) - 1] == ["PENDING", "SUCCEEDED"]
    now = json.loads(arena(cluster, "get", "demo", "-o", "json").stdout)
    assert list(found[-1]) == list(now)
    assert arena(cluster, "get", "demo", "-w", "-o", "name").returncode == 2


def test_a_watched_job_that_fails_is_shown_and_no_failure_of_the_watching(running):
    running.finish("demo", 7)
    done = arena(running, "get", "demo", "-w")
    assert done.returncode == 0
    assert "FAILED" in done.stdout


def test_a_job_that_is_deleted_while_it_is_watched_is_an_error(cluster):
    submitted(cluster)
    runs(cluster)
    watch = Running(["get", "demo", "-w"], cluster.env, columns=100)
    watch.until("Status:      RUNNING")
    arena(cluster, "delete", "demo")
    assert watch.end() == 1
    assert "error: the job demo was deleted while it was watched" in watch.screen.text


def test_watching_ends_when_its_time_is_over(running):
    done = arena(running, "get", "demo", "-w", "--timeout=1500ms")
    assert done.returncode == 6
    assert done.stderr == ("error: timed out after 1.5 s\n  try:  allow more with --timeout\n")
    assert done.stdout.count("RUNNING") == 1


@pytest.mark.parametrize("rows", [30, 6])
def test_a_screen_says_how_old_it_is_when_the_server_does_not_answer(cluster, rows):
    submitted(cluster)
    runs(cluster)
    watch = Running(
        ["get", "demo", "-w", "--request-timeout=1s"], cluster.env, columns=160, rows=rows
    )
    watch.until("Status:      RUNNING")
    with cluster.api.lock:
        text = watch.until("warning: last update")
        assert text.count("Name:") == 1
    watch.until(lambda screen: "warning" not in screen.text)
    watch.program.sendintr()
    assert watch.end() == 130


def test_nobody_needs_rich_to_watch_in_a_pipe(running):
    running.finish("demo")
    script = (
        "import sys; from arena_topo import cli; code = cli.run(sys.argv[1:]);"
        "print('rich' in sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "get", "demo", "-w"],
        env={"PATH": os.environ["PATH"], **running.env},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


# ---------------------------------------------------------------- narrow terminals


def test_a_list_leaves_out_columns_on_a_narrow_terminal_and_is_whole_in_a_pipe(cluster):
    submit = ["submit", "mpi", "--name=demo", "--image=i", "--workers=1", "--gpus=1", "c"]
    assert prepared(submit, cluster.env).returncode == 0
    narrow = Running(["list"], cluster.env, columns=60, rows=20)
    assert narrow.end() == 0
    header, row = narrow.screen.text.splitlines()
    assert header == "NAME  STATUS   DURATION  GPU(Requested)  NODE"
    assert row.startswith("demo  ")
    assert row.index("N/A" if "N/A" in row else "10.") == header.index("NODE")
    assert not any(narrow.screen.soft)
    whole = prepared(["list"], cluster.env).stdout.splitlines()
    assert whole[0].endswith("GPU(Allocated)  NODE")


# ---------------------------------------------------------------- submit --wait


SUBMIT = ["submit", "mpi", "--name=demo", "--image=i", "--workers=4", "--gpus=2", "--wait"]


STATE = f"--state={ROOT}/docs/pictures/dgx-1.yaml"
WRITE_GOLDENS = bool(os.environ.get("ARENA_TOPO_WRITE_GOLDENS"))
NARROW = {
    "plan": f"plan mpi --gpus=1 --workers=4 --gputopology --pod-shape=fused {STATE}",
    "top-node": f"top node {STATE}",
    "top-node-details": f"top node -d {STATE}",
    "top-node-frag": f"top node --frag {STATE}",
    "topology-show": f"topology show {STATE}",
    "get": "get demo",
    "list-wide": "list -o wide",
    "why": "why demo",
}


def test_at_60_columns_lines_go_on_below_and_tables_leave_out_columns(running):
    seen = {name: narrow(line.split(), running) for name, line in NARROW.items()}
    for name, text in seen.items():
        golden = ROOT / "tests" / "screens" / f"60-{name}.txt"
        if WRITE_GOLDENS:
            golden.write_text(text, encoding="utf-8")
        assert max(map(len, text.splitlines())) <= 60
        assert text == golden.read_text(encoding="utf-8"), name


def narrow(words, running):
    """A screen of 60 columns; times and durations are always the same."""
    one = Running(words, {**running.env, "TZ": "UTC"}, columns=60, rows=200)
    assert one.end() == 0
    dates = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    text = re.sub(dates, "2026-01-01 00:00:00", one.screen.text)
    text = re.sub(r"\b\d+s *", lambda found: "0s".ljust(len(found[0])), text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_waiting_for_a_job_leaves_nothing_on_the_terminal_but_how_it_went(cluster):
    cluster.images["i"] = 2.0
    submit = Running([*SUBMIT, "c"], cluster.env, columns=100, rows=40)
    text = submit.until("demo is PENDING")
    assert re.search(rf"^[{SPINNERS}] demo is PENDING, .*0 of 5 pods run", text, re.MULTILINE)
    submit.until("demo is RUNNING")
    # What is read of a screen may end in the middle of it.
    submit.until("demo-worker-3        Running")
    cluster.finish("demo")
    assert submit.end() == 0
    assert submit.screen.text.splitlines() == [
        "mpijob.kubeflow.org/demo created",
        "configmap/demo-mpijob created",
        "The Job demo has been submitted successfully",
        "You can run `arena-topo get demo --type mpijob -n default` to check the job status",
        "The Job demo is SUCCEEDED",
    ]
    assert usable(submit.screen.codes)


def test_a_command_to_copy_has_no_line_feeds_on_a_narrow_terminal(cluster):
    submit = Running([*SUBMIT, "c"], cluster.env, columns=50, rows=60)
    submit.until("check the job status")
    submit.program.sendintr()
    assert submit.end() == 130
    stop = Running(["suspend", "demo"], cluster.env, columns=50, rows=60)
    assert stop.end() == 0
    assert "\n  `arena-topo get demo --type mpijob -n default`\n" in submit.screen.text
    assert stop.screen.text.endswith("\n  it again: arena-topo resume demo -n default")


def test_waiting_ends_with_the_code_of_the_launcher(cluster):
    submit = Running([*SUBMIT, "c"], cluster.env, columns=100, rows=40)
    submit.until("demo is RUNNING")
    cluster.finish("demo", 7)
    assert submit.end() == 7
    assert submit.screen.text.splitlines()[-3:] == [
        "error: the job demo failed",
        "  why:  the launcher ended with exit code 7, and so does this command",
        "  try:  arena-topo why demo -n default",
    ]
    assert not set(SPINNERS) & set(submit.screen.text)


def test_an_interrupt_while_waiting_restores_the_terminal(cluster):
    submit = Running([*SUBMIT, "c"], cluster.env, columns=100, rows=40)
    submit.until("demo is RUNNING")
    submit.program.sendintr()
    assert submit.end() == 130
    assert "The job demo goes on. Come back: arena-topo logs -f demo" in submit.screen.text
    assert not set(SPINNERS) & set(submit.screen.text)
    assert usable(submit.screen.codes)


def test_a_gang_that_waits_says_so_and_is_placed_before_the_eyes(cluster):
    for index in range(2):
        cluster.pod(f"theirs-{index}", f"node-{index}", 8)
    submit = Running([*SUBMIT, "--gputopology", "c"], cluster.env, columns=120, rows=40)
    text = submit.until(lambda screen: re.search(r"demo waits \([1-9]", screen.text))
    assert "demo waits: 4 workers x 2 GPUs cannot be placed now: " in text
    cluster.evict("theirs-1")
    submit.until("demo is RUNNING")
    cluster.finish("demo")
    assert submit.end() == 0
    text = submit.screen.text
    assert text.count("demo waits") == 1
    assert text.count("Placement:") == 1
    assert "  6-7    node-1" in text
    assert text.endswith("The Job demo is SUCCEEDED")


@pytest.mark.parametrize("verb", ["resume", "replan"])
def test_what_a_job_waits_for_that_is_started_again_is_shown_in_its_place(cluster, verb):
    gang = ["--name=demo", "--image=i", "--workers=2", "--gpus=2", "--gputopology"]
    assert arena(cluster, "submit", "mpi", *gang, "c").returncode == 0
    runs(cluster)
    if verb == "resume":
        assert arena(cluster, "suspend", "demo").returncode == 0
    cluster.sshd = False
    cluster.images["i"] = 600.0
    line = [verb, "demo", "--wait", *(("-y", "--force") if verb == "replan" else ())]
    again = Running(line, cluster.env, columns=100, rows=40)
    again.until(lambda screen: re.search(r"^\S demo is starting: ", screen.visible, re.MULTILINE))
    assert sum("demo is starting" in one for one in again.screen.lines) == 1
    again.program.sendintr()
    assert again.end() == 130
    text = again.screen.text
    assert "The job demo goes on. Come back: arena-topo logs -f demo -n default;" in text
    assert "demo is starting" not in text
    assert not set(SPINNERS) & set(text)


def test_where_a_job_goes_that_others_start_is_told_once_it_is_known(tmp_path):
    machine = Machine(tmp_path, 16)
    machine.start()
    line = ["submit", "mpi", "--name=later", "--image=local", "--workers=2", "--gpus=2"]
    line += ["--gputopology", "--wait", "true"]
    pipe = {"stderr": subprocess.PIPE, "text": True}
    with program.start(line, env=around(machine), **pipe) as submit:
        for said in submit.stderr:
            if "The Job later is PENDING" in said:
                machine.finish()
                break
        rest = submit.stderr.read()
    assert submit.returncode == 0
    assert rest.count("Placement:\n  RANKS  NODE") == 1
    assert rest.index("  2-3    dgx-1-v100-0") < rest.index("The Job later is SUCCEEDED")


def test_what_goes_into_a_pipe_stays_out_of_the_screen(monkeypatch):
    outer, inner = os.openpty()
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stdout", piped)
    with (
        os.fdopen(outer, "rb"),
        os.fdopen(inner, "w", encoding="utf-8") as stream,
        live.live(Console(), stream, lambda _columns: "live"),
    ):
        sys.stdout.write("data\n")
    assert piped.getvalue() == "data\n"


def test_in_a_pipe_waiting_is_a_line_for_each_change(cluster):
    # Longer than the time between two looks at the job.
    cluster.images["i"], cluster.duration = 3.0, 5.0
    done = arena(cluster, *SUBMIT, "c")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "The Job demo is PENDING: 5 of 5 pods are starting" in done.stderr.splitlines()
    assert done.stderr.splitlines()[-2:] == [
        "The Job demo is RUNNING",
        "The Job demo is SUCCEEDED",
    ]


def test_only_the_output_is_in_the_pipe_when_the_screen_is_on_a_terminal(cluster):
    cluster.images["i"], cluster.duration = 1.0, 1.0
    line = " ".join([*program.LINE, *SUBMIT, "c"])
    path = Path(cluster.env["HOME"]) / "out"
    submit = Running.of(["sh", "-c", f"{line} > {path}"], cluster.env, columns=100, rows=30)
    submit.until("demo is PENDING")
    assert submit.end() == 0
    assert path.read_text() == "mpijob.kubeflow.org/demo created\nconfigmap/demo-mpijob created\n"
    assert submit.screen.text.endswith("The Job demo is SUCCEEDED")


def test_without_unicode_nothing_but_ascii_is_drawn(cluster):
    cluster.images["i"] = 1.0
    submit = Running([*SUBMIT, "c"], {**cluster.env, "LANG": "C"}, columns=60, rows=12)
    text = submit.until(
        lambda screen: re.search(r"^[|/\\-] demo is PEND", screen.text, re.MULTILINE)
    )
    assert text.isascii()
    cluster.finish("demo")
    assert submit.end() == 0


def test_who_wants_quiet_waits_without_a_screen(cluster):
    cluster.images["i"], cluster.duration = 1.0, 1.0
    submit = Running([*SUBMIT, "-q", "c"], cluster.env, columns=100)
    assert submit.end() == 0
    assert submit.screen.text == "mpijob.kubeflow.org/demo"
    assert submit.screen.codes == []


# ---------------------------------------------------------------- screens that do not move


def test_no_line_is_broken_by_a_terminal_of_80_columns(running):
    job = ["--name=j", "--image=local", "--workers=4", "--gpus=2", "--gputopology"]
    for words in (
        ["plan", "mpi", *job, "c"],
        ["get", "demo"],
        ["why", "demo"],
        ["list"],
        ["topology", "show"],
        ["topology", "show", "dgx-1-v100-0"],
        ["top", "node", "--frag"],
        ["submit", "mpi", "--help"],
    ):
        shown = Running(words, running.env, columns=80, rows=300)
        assert shown.end() == 0
        assert not any(shown.screen.soft), f"{words}\n{shown.screen.text}"


@pytest.mark.parametrize("words", [["top", "node"], ["list", "-w", "--timeout", "1"]])
def test_odd_sizes_in_the_environment_change_nothing_on_a_terminal(running, words):
    odd = {**running.env, "COLUMNS": "²", "LINES": "²"}
    shown = Running(words, odd, columns=100, rows=30)
    assert shown.end() == (6 if "-w" in words else 0), shown.screen.text
    assert "NAME " in shown.screen.text
    assert "Traceback" not in shown.screen.text


LONG = "a-name-that-is-as-long-as-a-name-may-be-for-a-job"


def test_nothing_is_cut_in_a_pipe_however_narrow_the_terminal(cluster):
    submitted(cluster, LONG)
    for words in (["list"], ["list", "-A"], ["get", LONG], ["get", LONG, "-e"]):
        narrow = arena(cluster, *words, COLUMNS="30").stdout
        assert LONG in narrow
        assert "…" not in narrow
        assert "..." not in narrow
    assert len(max(arena(cluster, "list", COLUMNS="30").stdout.splitlines(), key=len)) > 100


def test_computed_bandwidths_have_as_many_digits_as_published_ones(tmp_path):
    env = {**TERMINAL, "HOME": str(tmp_path), "ARENA_TOPO_BACKEND": "local"}
    shown = prepared(["top", "node", "-d", "--emulate", "hgx-a100:1"], env).stdout
    assert "\n  GPU0  0      230.4  230.4  " in shown


def test_a_picture_is_the_same_where_screens_have_colours(running):
    show = ["topology", "show", "dgx-1-v100-0", "-o", "svg", "--emulate", "dgx-1-v100:2"]
    plain = arena(running, *show, "--color=never").stdout
    assert "EMULATED: these" in plain
    assert arena(running, *show, "--color=always").stdout == plain


def test_colours_are_only_added_never_moved(running):
    for words in (["list"], ["get", "demo"], ["top", "job", "demo"], ["get", "none"]):
        plain = arena(running, *words, "--color=never", FORCE_COLOR="1")
        painted = arena(running, *words, "--color=always", NO_COLOR="1")
        assert "\x1b" not in plain.stdout + plain.stderr
        assert "\x1b" in painted.stdout + painted.stderr
        said = [CODES.sub("", one) for one in (painted.stdout, painted.stderr)]
        ages = r"\b[0-9]+s( *)\b"
        assert [re.sub(ages, "", one) for one in said] == [
            re.sub(ages, "", one) for one in (plain.stdout, plain.stderr)
        ]
    assert "\x1b" not in arena(running, "list").stdout
    assert arena(running, "why", "demo", "--color=always").stdout.startswith(
        "demo: \x1b[32mRUNNING\x1b[0m\n"
    )
    pods = arena(running, "top", "job", "demo", "--color=always").stdout.partition("Instances:")[2]
    assert "\x1b[32mRunning\x1b[0m" in pods
    assert "\x1b[1;33mEMULATED:\x1b[0m" in arena(running, "get", "demo", "--color=always").stdout
    assert "\x1b" not in arena(running, "get", "demo", "-o", "json", "--color=always").stdout


def test_a_terminal_has_colours_unless_it_says_no(running):
    for more, expected in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        shown = Running(["list"], {**running.env, **more}, columns=100)
        assert shown.end() == 0
        assert bool(shown.screen.codes) is expected


@pytest.mark.parametrize(("columns", "widest"), [(60, 58), (80, 78), (120, 118), (200, 118)])
def test_help_is_as_wide_as_the_terminal_up_to_what_reads_well(columns, widest):
    shown = Running(["submit", "mpi", "--help"], TERMINAL, columns=columns, rows=200)
    assert shown.end() == 0
    found = max(map(len, shown.screen.text.splitlines()))
    assert widest - 12 <= found <= max(widest, 78)


def test_help_in_a_pipe_does_not_depend_on_any_terminal(tmp_path):
    shown = [
        program.run(
            ["get", "--help"],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **env},
            stdin=subprocess.DEVNULL,
        ).stdout
        for env in ({}, {"TERM": "dumb"}, TERMINAL)
    ]
    assert shown[0] == shown[1] == shown[2]
