"""Signals to the program as a process: what ends, with what code and words, what stays behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import program
import pytest
from prompt import prepared
from proxy import Proxy, Trouble
from worlds import living_world, local_world

from arena_topo.cli import interruption
from arena_topo.cli.interruption import Interruption
from arena_topo.drawing.tables import EMULATED
from arena_topo.engines import Phase
from arena_topo.engines.rollback_time import delay_alarm
from arena_topo.errors import NotFound

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


class Place:
    """The program on one engine, as processes; on a cluster through a proxy."""

    def __init__(self, world, words, proxy=None):
        self.world, self.words, self.proxy = world, words, proxy
        self.backend = world.backend

    def start(self, *arguments, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return program.start([*self.words, *arguments], **pipes, text=True, bufsize=1, **more)

    def submit(self, name="demo", *flags):
        job = self.world.job(name)
        line = ["submit", "mpi", f"--name={name}", "--image=local", *flags, job.command]
        done = prepared([*self.words, *line], os.environ)
        assert done.returncode == 0, done.stderr
        return job

    def there(self, name="demo"):
        with contextlib.suppress(NotFound):
            return self.backend.job(name, "default")
        return None


@pytest.fixture(params=["local", "living"])
def place(request, tmp_path):
    if request.param == "local":
        with local_world(tmp_path) as world:
            yield Place(world, ["--backend=local", "--emulate=dgx-1-v100:2"])
    else:
        yield from cluster(tmp_path)


@pytest.fixture
def living(tmp_path):
    yield from cluster(tmp_path)


def cluster(folder):
    with living_world(folder) as world:
        proxy = Proxy(folder / "config")
        yield Place(world, [f"--kubeconfig={proxy.kubeconfig(folder / 'proxied')}"], proxy)
        proxy.close()


def interrupted(process, number=signal.SIGINT):
    """Send a signal; the exit code, and what was said after it."""
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()  # to leave its block waits for it, without end
        raise
    assert "Traceback" not in out + err
    return process.returncode, err


def heard(process, text):
    """Read stderr up to a line that holds a text."""
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it ended without saying {text!r}")


# ---------------------------------------------------------------- commands that wait


GOES_ON = (
    "The job demo goes on. Come back: arena-topo logs -f demo -n default;"
    " delete it: arena-topo delete demo -n default\n"
)


@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_the_waiting_of_submit_and_not_the_job(place, number):
    job = place.world.job("demo")
    line = ["submit", "mpi", "--wait", "--name=demo", "--image=local", job.command]
    with place.start(*line) as waits:
        heard(waits, "is RUNNING")
        assert interrupted(waits, number) == (CODES[number], GOES_ON)
    assert place.there().phase is Phase.RUNNING


@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_a_log_that_is_followed_and_not_the_job(place, number):
    place.submit()
    place.world.start("demo")
    place.world.say("demo", "hello")
    with place.start("logs", "-f", "demo") as follows:
        assert follows.stdout.readline() == "hello\n"
        assert interrupted(follows, number) == (CODES[number], GOES_ON)
    assert place.there().phase is Phase.RUNNING


TOPS = [("top", "node", "-r"), ("top", "job", "demo", "-r")]
AT_ONCE = 5
"""Seconds that an interrupted command may take on a busy machine; its requests could take 30."""


@pytest.mark.parametrize("words", TOPS, ids=" ".join)
def test_an_interrupt_ends_a_top_that_refreshes_without_another_word(place, words):
    place.submit()
    place.world.start("demo")
    with place.start(*words) as top:
        first = top.stdout.readline()
        top.send_signal(signal.SIGINT)
        rest, err = top.communicate(timeout=AT_ONCE)
    # What is left to read is the rest of the first screen.
    assert first not in rest
    assert (top.returncode, err) in {(130, ""), (130, f"{EMULATED}\n")}


@pytest.mark.parametrize("words", TOPS, ids=" ".join)
def test_an_interrupt_ends_a_top_whose_server_hangs_without_another_word(living, words):
    living.submit()
    living.world.start("demo")
    with living.start(*words) as top:
        assert top.stdout.readline()
        hangs = Trouble(match=".", times=1000, delay=600)
        living.proxy.troubles.append(hangs)
        while hangs.times == 1000:
            assert top.poll() is None
            time.sleep(0.05)
        top.send_signal(signal.SIGINT)
        _, err = top.communicate(timeout=AT_ONCE)
    assert (top.returncode, err) == (130, "")


@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_wait_which_says_with_what_it_goes_on(place, number):
    place.submit()
    with place.start("wait", "demo", "--for=succeeded") as waits:
        heard(waits, "The Job demo is")
        code, said = interrupted(waits, number)
    assert code == CODES[number]
    assert said.endswith(
        "The job demo is left as it is. Come back: arena-topo wait demo --for succeeded"
        " -n default\n"
    )


def test_a_signal_ends_the_waiting_for_several_jobs_and_says_how_to_come_back(local_place):
    for name in ("one", "two"):
        local_place.submit(name)
        local_place.world.start(name)
    with local_place.start("wait", "one", "two") as waits:
        heard(waits, "The Job one is")
        heard(waits, "The Job two is")
        assert interrupted(waits) == (
            130,
            (
                "The jobs are left as they are. Come back: arena-topo wait one two --for finished"
                " -n default\n"
            ),
        )


def test_a_signal_ends_the_waiting_for_a_job_that_does_not_go_on_by_itself(living):
    gang = ("--gputopology", "--gpus=2")
    with living.start("submit", "mpi", "--name=demo", *gang, "--image=i", "c") as one:
        one.communicate()
    with living.start("suspend", "demo") as one:
        one.communicate()
    with living.start("wait", "demo") as waits:
        heard(waits, "It waits without GPUs")
        assert interrupted(waits) == (
            130,
            (
                "The job demo is left as it is. Come back: arena-topo wait demo --for finished"
                " -n default\n"
            ),
        )


def test_ctrl_c_ends_a_job_that_is_watched_and_only_that(place):
    place.submit()
    place.world.start("demo")
    with place.start("get", "demo", "--watch") as watches:
        assert watches.stdout.readline()
        assert interrupted(watches) == (
            130,
            (
                "The job demo goes on. Come back: arena-topo get demo -w -n default;"
                " delete it: arena-topo delete demo -n default\n"
            ),
        )
    assert place.there().phase is Phase.RUNNING


def test_ctrl_c_ends_a_resume_that_waits_for_its_workers(living):
    living.world.cluster.sshd = False
    gang = ("--gputopology", "--gpus=2", "--image=i")
    with living.start("submit", "mpi", "--name=demo", *gang, "c") as one:
        one.communicate()
    living.world.cluster.images.update(dict.fromkeys(("node-0", "node-1"), 600.0))
    with living.start("suspend", "demo") as one:
        one.communicate()
    with living.start("resume", "demo", "--wait") as resumes:
        until(lambda: living.there().phase is Phase.PENDING and living.there().instances)
        code, said = interrupted(resumes)
    assert code == 130
    assert "arena-topo delete demo -n default\n" in said


def test_ctrl_c_ends_the_controller_which_gives_its_lease_back(living):
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "arena-topo-system"}}
    living.world.api.add(space)
    with living.start("controller") as works:
        heard(works, "this controller is at work")
        code, said = interrupted(works)
    assert code == 130
    assert "Come back: arena-topo controller; all it knows is written on the jobs\n" in said
    lease = living.world.api.find("Lease", "arena-topo-controller", "arena-topo-system")
    assert not lease["spec"].get("holderIdentity")


def until(reached):
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


# ---------------------------------------------------------------- before and while it is created


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("gang", [(), ("--gputopology", "--gpus=2")], ids=["plain", "gang"])
def test_a_submit_that_is_stopped_before_it_creates_leaves_nothing(living, gang, number):
    living.proxy.slow("GET|selfsubjectreviews", 600, times=100)
    with living.start("submit", "mpi", "--name=demo", "--image=i", *gang, "c") as submits:
        until(lambda: living.proxy.requests)
        code, said = interrupted(submits, number)
    assert code == CODES[number]
    # The server does not even answer to that.
    assert (
        said == "Could not check whether job demo was created (no answer); check with:"
        " arena-topo get demo -n default\n"
    )
    assert living.there() is None


def test_a_submit_that_is_stopped_before_it_creates_says_so_where_that_can_be_seen(living):
    living.proxy.slow("GET /api/v1/nodes", 600)
    line = ["submit", "mpi", "--name=demo", "--image=i", "--gputopology", "--gpus=2", "c"]
    with living.start(*line) as submits:
        until(lambda: any("/nodes" in one for one in living.proxy.requests))
        assert interrupted(submits) == (130, "Nothing was created.\n")
    assert living.there() is None


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("gang", [(), ("--gputopology", "--gpus=2")], ids=["plain", "gang"])
def test_a_submit_that_is_stopped_between_the_job_and_its_files_takes_the_job_back(
    living, tmp_path, gang, number
):
    file = tmp_path / "train.yaml"
    file.write_text("lr: 1\n", encoding="utf-8")
    living.proxy.slow("POST .*/configmaps", 600)
    line = ["submit", "mpi", "--name=demo", "--image=i", *gang, f"--config-file={file}:/etc/a", "c"]
    with living.start(*line) as submits:
        until(lambda: any("POST" in one and "/configmaps" in one for one in living.proxy.requests))
        code, said = interrupted(submits, number)
    assert (code, said) == (CODES[number], "Nothing was created.\n")
    assert living.there() is None


def test_a_gang_whose_submit_is_stopped_before_its_start_waits_whole(living):
    living.proxy.slow("PATCH .*/mpijobs/demo", 600)
    line = ["submit", "mpi", "--name=demo", "--image=i", "--gputopology", "--gpus=2", "c"]
    with living.start(*line) as submits:
        until(lambda: any("PATCH" in one for one in living.proxy.requests))
        code, said = interrupted(submits)
    assert code == 130
    assert said.endswith("delete it: arena-topo delete demo -n default\n")
    with living.start("resume", "demo") as resumes:
        out, err = resumes.communicate()
    assert (resumes.returncode, out) == (0, "mpijob.kubeflow.org/demo resumed\n"), err


def test_a_job_of_this_machine_is_made_whole_or_not_at_all(tmp_path):
    script = """
import os, signal, sys
from arena_topo.engines.local import store
written = store.replace_file
def interrupt(path, data, **more):
    written(path, data, **more)
    if getattr(path, "name", path) == "submission.json":
        os.kill(os.getpid(), signal.SIGTERM)
store.replace_file = interrupt
from arena_topo.__main__ import main
main()
"""
    line = [sys.executable, "-c", script, "--backend=local", "submit", "mpi", "--name=demo"]
    done = subprocess.run(
        [*line, "--image=local", "true"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr.endswith("Nothing was created.\n")
    state = Path(os.environ["XDG_STATE_HOME"]) / "arena-topo" / "jobs"
    assert [one for one in state.rglob("*") if one.is_file()] == []


# ---------------------------------------------------------------- when its time is over


TIMED = ("submit", "mpi", "--name=demo", "--image=i", "--workers=1", "--timeout=2")


def test_a_submit_whose_time_is_over_takes_half_a_job_back_that_is_slow_to_go(living):
    living.proxy.slow("POST .*/configmaps", 600)
    living.proxy.slow("DELETE", 1.5)
    with living.start(*TIMED, "c") as submits:
        _, said = submits.communicate(timeout=30)
    assert submits.returncode == 6
    assert said.startswith("error: ")
    assert living.there() is None


def test_a_submit_whose_time_is_over_asks_again_a_server_that_has_no_time_to_delete(living):
    living.proxy.slow("POST .*/configmaps", 600)
    living.proxy.fail("DELETE", status=429, reason="TooManyRequests", retry_after=1)
    with living.start(*TIMED, "c") as submits:
        submits.communicate(timeout=30)
    assert submits.returncode == 6
    assert len([one for one in living.proxy.requests if one.startswith("DELETE")]) == 2
    assert living.there() is None


def test_the_alarm_that_stops_a_submit_leaves_it_time_to_tidy_up(living):
    # With --wait no request knows of the end: only the alarm does.
    living.proxy.slow("POST .*/configmaps", 600)
    living.proxy.slow("DELETE", 1.5)
    with living.start(*TIMED, "--wait", "--request-timeout=0", "c") as submits:
        _, said = submits.communicate(timeout=30)
    assert (submits.returncode, said) == (
        6,
        "Nothing was created.\nerror: --timeout is over\n  try:  allow more with --timeout\n",
    )
    assert living.there() is None


def test_tidying_up_after_a_server_that_is_deaf_has_an_end(living):
    living.proxy.slow("POST .*/configmaps", 600)
    living.proxy.slow("DELETE", 600)
    with living.start(*TIMED, "--wait", "--request-timeout=0", "c") as submits:
        _, said = submits.communicate(timeout=30)
    assert submits.returncode == 6
    assert said.startswith("A job demo exists, maybe incomplete; delete it: arena-topo delete demo")


def test_a_signal_just_before_the_end_of_the_time_leaves_room_to_tidy_up(living):
    living.proxy.slow("POST .*/configmaps", 600)
    living.proxy.slow("DELETE", 3)
    with living.start(*TIMED, "c") as submits:
        until(lambda: any("POST" in one and "/configmaps" in one for one in living.proxy.requests))
        assert interrupted(submits)[0] == 130
    assert living.there() is None


def test_an_alarm_rings_after_tidying_up_and_not_while_it_lasts():
    Interruption().set_deadline(0.0)
    begun = time.monotonic()
    try:
        with delay_alarm(600):
            # The alarm was due after half a second.
            time.sleep(0.8)
            tidied = True
        with pytest.raises(interruption.OutOfTime):
            time.sleep(600)
    finally:
        Interruption().remove_deadline()
    assert tidied
    assert time.monotonic() - begun < 60


def test_tidying_up_is_left_when_its_own_time_is_over():
    Interruption().set_deadline(0.0)
    try:
        with pytest.raises(interruption.OutOfTime), delay_alarm(0.7):
            time.sleep(600)
    finally:
        Interruption().remove_deadline()


def test_tidying_up_without_an_alarm_sets_none():
    with delay_alarm(600):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


# ---------------------------------------------------------------- at once


@pytest.mark.parametrize("number", CODES)
def test_a_second_signal_does_not_wait_for_anything(living, number):
    living.proxy.slow("POST .*/configmaps", 600)
    with living.start("submit", "mpi", "--name=demo", "--image=i", "c") as submits:
        until(lambda: any("POST" in one and "/configmaps" in one for one in living.proxy.requests))
        # Taking the job back is what the first signal waits for.
        living.proxy.slow("DELETE", 600)
        submits.send_signal(number)
        until(lambda: any("DELETE" in one for one in living.proxy.requests))
        assert interrupted(submits, number) == (CODES[number], "")


def test_a_server_that_does_not_answer_holds_nobody_who_wants_to_leave(living):
    living.submit()
    with living.start("wait", "demo", "--request-timeout=0") as waits:
        heard(waits, "The Job demo is")
        living.proxy.slow(".", 600, times=100)
        count = len(living.proxy.requests)
        until(lambda: len(living.proxy.requests) > count)
        assert interrupted(waits)[0] == 130


def test_a_log_whose_server_hangs_is_left_with_the_words_that_need_no_answer(living):
    living.submit()
    living.world.start("demo")
    living.world.cluster.api.find("MPIJob", "demo")
    with living.start("logs", "-f", "demo", "--request-timeout=0") as follows:
        until(lambda: any("/log?" in one for one in living.proxy.requests))
        living.proxy.slow(".", 600, times=100)
        assert interrupted(follows) == (130, GOES_ON)


def test_the_reason_of_a_job_that_runs_does_not_wait_for_a_log_that_does_not_come(living):
    living.submit()
    living.world.start("demo")
    living.proxy.slow("/log", 600, times=100)
    line = [*living.words, "why", "demo", "--request-timeout=0"]
    done = program.run(line, text=True, timeout=10)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "demo: RUNNING")


@pytest.mark.parametrize("words", [("get", "-w"), ("logs", "-f"), ("replan",)])
def test_of_a_job_that_nobody_saw_it_is_not_said_that_it_goes_on(living, words):
    living.submit()
    living.proxy.requests.clear()
    living.proxy.slow("/mpijobs/demo", 600, times=100)
    with living.start(*words, "demo", "--request-timeout=0") as looks:
        until(lambda: any("/mpijobs/demo" in one for one in living.proxy.requests))
        code, said = interrupted(looks)
    assert (code, said) == (
        130,
        (
            "Could not check whether job demo exists (no answer); check with:"
            " arena-topo get demo -n default\n"
        ),
    )


def test_of_a_job_that_is_not_there_it_is_said_that_it_is_not(living):
    living.proxy.slow("/mpijobs/demo", 600)
    with living.start("get", "demo", "-w", "--request-timeout=0") as looks:
        until(lambda: any("/mpijobs/demo" in one for one in living.proxy.requests))
        assert interrupted(looks) == (130, "There is no job demo in namespace default.\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_has_the_program_ignore_a_signal_is_heeded(local_place, number):
    local_place.submit()

    def ignoring():
        signal.signal(number, signal.SIG_IGN)

    with local_place.start("wait", "demo", first=ignoring) as waits:
        heard(waits, "The Job demo is")
        waits.send_signal(number)
        local_place.world.start("demo")
        local_place.world.finish("demo", 0)
        assert waits.communicate()[0] == "mpijob.kubeflow.org/demo succeeded\n"
    assert waits.returncode == 0


@pytest.fixture
def local_place(tmp_path):
    with local_world(tmp_path) as world:
        yield Place(world, ["--backend=local", "--emulate=dgx-1-v100:2"])


def test_a_terminal_that_was_closed_is_no_mistake(local_place):
    local_place.submit()
    with local_place.start("wait", "demo") as waits:
        heard(waits, "The Job demo is")
        waits.stderr.close()
        waits.stdout.close()
        waits.send_signal(signal.SIGHUP)
        assert waits.wait() == 129


# ---------------------------------------------------------------- moments


def test_a_block_is_left_when_its_time_is_over_and_the_limit_goes_on_after_it():
    Interruption().set_deadline(0.1)
    try:
        with interruption.within_seconds(0.05):
            time.sleep(600)
        with pytest.raises(interruption.OutOfTime):
            time.sleep(600)
    finally:
        Interruption().remove_deadline()


def test_a_block_that_ends_in_time_is_left_by_no_alarm():
    with interruption.within_seconds(600):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_other_threads_have_no_limit():
    seen = []

    def work():
        Interruption().set_deadline(0.0)
        with interruption.within_seconds(0.0):
            seen.append(signal.getitimer(signal.ITIMER_REAL))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0.0, 0.0)]


def test_every_word_of_how_to_come_back_is_a_command_that_works(place):
    place.submit()
    place.world.start("demo")
    with place.start("wait", "demo") as waits:
        heard(waits, "The Job demo is")
        _, said = interrupted(waits)
    words = re.search("Come back: arena-topo (.*)", said)[1].split()
    place.world.finish("demo", 0)
    with place.start(*words) as again:
        assert again.communicate()[0] == "mpijob.kubeflow.org/demo succeeded\n"


FINALIZED = """
import time
from arena_topo.cli import interruption
from arena_topo.cli.interruption import Interruption
from arena_topo.cli.interruption import Interruption

class Slow:
    def __del__(self):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            pass

Interruption().set_deadline(0.1)
slow = Slow()
try:
    del slow
    time.sleep(30)
except interruption.OutOfTime:
    print("out of time")
"""


def test_an_end_that_meets_a_finalizer_comes_right_after_it():
    done = subprocess.run(
        [sys.executable, "-c", FINALIZED], capture_output=True, text=True, timeout=25, check=True
    )
    assert (done.stdout, done.stderr) == ("out of time\n", "")
