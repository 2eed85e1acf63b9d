"""attach: a command in a pod, from a pipe and from a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import program
import pytest
from fake_api import FakeApi, kubeconfig
from test_access import Proxy
from worlds import WORLDS, KubernetesWorld

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.attach_request import AttachRequest
from arena_topo.engines.kubernetes import engine, podexec
from arena_topo.errors import ClusterError

TLS = Path(__file__).parent / "tls"
HELLO = "Attached to container mpi of demo-launcher-x7k2p\n"
WAIT = 20
"""Seconds that a test is patient for what takes a fraction of one."""


class Place:
    """A job `demo` with two workers that runs on a fake cluster."""

    def __init__(self, api: FakeApi, config: str) -> None:
        self.api, self.config = api, config
        world = KubernetesWorld(api, engine.open_kubernetes(Options(kubeconfig=config)))
        self.world = world
        world.backend.apply(world.plan(world.job("demo", workers=2, gpus=2)))
        world.start("demo")

    @property
    def line(self) -> list[str]:
        return [*program.LINE, *self.words]

    @property
    def words(self) -> list[str]:
        return [f"--kubeconfig={self.config}", "attach", "demo"]

    def start(self, *words: str, **more: Any) -> subprocess.Popen[Any]:
        """Start `attach demo` with these words, its streams in pipes."""
        return program.start([*self.words, *words], stdin=-1, stdout=-1, stderr=-1, **more)

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
        """Run `attach demo` with these words, its streams in pipes."""
        done = program.run([*self.words, *words], **more)
        assert self.api.crashes == []
        return done

    def answer(self, capsys: Any, *words: str) -> tuple[int, str]:
        """The exit code and stderr of `attach` with these words, in this process."""
        code = cli.run([f"--kubeconfig={self.config}", "attach", *words])
        assert self.api.crashes == []
        return code, capsys.readouterr().err

    def pod(self, name: str = "demo-launcher-x7k2p") -> Any:
        return self.api.edit("Pod", name)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    api = FakeApi()
    # Their shells must greet nobody, and read no files of this machine.
    api.execs.environment = {"PS1": "inside> ", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
    yield Place(api, kubeconfig(tmp_path / "config", api.url, user={"username": "alice"}))
    api.close()


# In pipes.


def test_streams_pass_through_untouched_in_both_directions(place: Place):
    data = bytes(range(256)) * 12_000
    done = place.run("-q", "--", "head", "-c", str(len(data)), input=data)
    assert done.returncode == 0
    assert done.stdout == data
    assert place.api.execs.chosen == ["v5.channel.k8s.io"]


def test_the_end_of_the_input_reaches_the_command(place: Place):
    done = place.run("--", "sh", "-c", "cat; echo over >&2; exit 4", input=b"a\nb")
    assert (done.returncode, done.stdout, done.stderr.decode()) == (4, b"a\nb", HELLO + "over\n")


def test_nothing_is_asked_of_a_stdin_that_says_nothing(place: Place):
    done = place.run("--", "cat", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (0, b"", HELLO)
    assert ("stdin", "true") not in place.api.execs.asked[-1]
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *place.line, "--", "cat"],
        capture_output=True,
        check=False,
    )
    assert (closed.returncode, closed.stdout) == (0, b"")


def test_what_is_asked_of_the_server(place: Place):
    place.run("--", "ls", "-l", stdin=subprocess.DEVNULL)
    place.run("-i", "demo-worker-0", "-c", "mpi", input=b"")
    assert place.api.execs.asked == [
        [
            ("command", "ls"),
            ("command", "-l"),
            ("container", "mpi"),
            ("stdout", "true"),
            ("stderr", "true"),
        ],
        [
            ("command", "sh"),
            ("container", "mpi"),
            ("stdout", "true"),
            ("stdin", "true"),
            ("stderr", "true"),
        ],
    ]


def test_a_command_in_one_word_is_for_a_shell(place: Place):
    assert place.run("echo a; exit 5").returncode == 5
    assert place.run("--", "echo a | tr a b").stdout == b"b\n"
    assert place.run("echo").stdout == b"\n"


def test_options_in_an_unquoted_command_are_refused_after_the_job_only(place: Place, capsys: Any):
    code, err = place.answer(capsys, "demo", "ls", "-l")
    assert (code, err) == (
        2,
        (
            "error: -l stands after the start of the command, 'ls'\n"
            "  why:  it could be meant for the command or for arena-topo\n"
            "  try:  quote the whole command, or put -- before it\n"
        ),
    )
    assert place.run("-i", "demo-worker-1", "hostname").returncode == 0
    assert place.run("hostname").returncode == 0


def test_dashes_before_the_job_are_answered_in_arenas_words(place: Place, capsys: Any):
    code, err = place.answer(capsys, "--", "demo", "ls")
    assert (code, err) == (
        2,
        (
            "error: expected 'attach JOB_NAME [ARG1] [ARG2] ... [ARGN]'. "
            "JOB_NAME is required argument for the attach command\n"
            "  try:  arena-topo attach JOB -- COMMAND\n"
        ),
    )
    code, err = place.answer(capsys)
    assert code == 2
    assert err.splitlines() == [
        "error: no job is named",
        "  try:  arena-topo attach [OPTIONS] JOB [-- COMMAND...]; --help says more",
    ]


def test_whoever_reads_no_more_ends_it_quietly(place: Place):
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -n 1', "sh", *place.line, "--", "yes"],
        capture_output=True,
        check=False,
        timeout=WAIT,
    )
    assert (done.stdout, done.stderr.decode()) == (b"y\n", HELLO)
    assert place.api.execs.ended.wait(WAIT)


def test_an_output_that_nobody_can_take_is_an_error(place: Place):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >/dev/full', "sh", *place.line, "--", "echo", "a"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.decode() == (
        HELLO + "error: cannot write the output\n  why:  No space left on device\n"
    )


def test_an_output_that_was_closed_is_missed_only_by_what_is_written(place: Place):
    for command, code, said in (
        ("true", 0, ""),
        (
            "echo",
            1,
            "error: cannot write the output\n  why:  standard output is closed\n",
        ),
    ):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *place.line, "--", command],
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr.decode()) == (code, HELLO + said)


def test_how_much_is_told_goes_by_loglevel_and_quiet(place: Place):
    for flag, hello in (
        ("--loglevel=info", True),
        ("--loglevel=warn", False),
        ("--quiet", False),
    ):
        done = place.run(flag, "--", "sh", "-c", "echo err >&2", input=b"x")
        said = done.stderr.decode()
        assert (HELLO in said, said.endswith("err\n")) == (hello, True)
    said = place.run("--loglevel=debug", "true").stderr.decode()
    path = "/api/v1/namespaces/default/pods/demo-launcher-x7k2p/exec"
    assert re.search(rf"^debug: GET {path} 101 \d+ ms$", said, re.MULTILINE)


def test_ctrl_c_in_a_pipe_ends_it_and_says_that_the_command_may_go_on(place: Place):
    with place.start("--", "sh", "-c", "echo in; exec sleep 600") as inside:
        assert inside.stdout.readline() == b"in\n"
        inside.send_signal(signal.SIGINT)
        assert inside.wait(WAIT) == 130
        said = inside.stderr.read().decode()
    assert said == HELLO + "The command may go on in demo-launcher-x7k2p.\n"


def test_a_timeout_is_for_the_command_as_well(place: Place):
    for seconds in (1, 5, 25):
        done = place.run(f"--timeout={seconds}s", "--", "sleep", "600")
        if b"sleep" in done.stderr:
            break  # a busy machine may need longer than that to get there
    assert (done.returncode, done.stderr.decode()) == (
        6,
        HELLO + "error: `sleep 600` still ran at the end of --timeout\n",
    )


def test_a_connection_that_breaks_is_an_error(place: Place):
    with place.start("--", "sh", "-c", "echo in; exec sleep 600") as inside:
        assert inside.stdout.readline() == b"in\n"
        place.api.execs.cut()
        assert inside.wait(WAIT) == 1
        said = inside.stderr.read().decode()
    assert re.fullmatch(
        re.escape(HELLO) + r"error: http://\S+ broke the connection to pod demo-launcher-x7k2p\n"
        r"  why:  (it was closed before the command ended|.*[Rr]eset.*)\n",
        said,
    )


def test_an_exit_code_that_has_arrived_outlives_the_connection(place: Place):
    place.api.execs.resets = True
    done = place.run("--", "sh", "-c", "echo out; exit 7")
    assert (done.returncode, done.stdout, done.stderr.decode()) == (7, b"out\n", HELLO)


@pytest.mark.parametrize("details", ["[]", '{"causes": 5}', '{"causes": [5]}', "[" * 100_000])
def test_a_status_that_makes_no_sense_is_an_error(details: str):
    status = f'{{"status": "Failure", "reason": "NonZeroExitCode", "details": {details}}}'
    with pytest.raises(ClusterError, match="pod demo"):
        podexec.command_exit_code(status.encode(), "demo", ["true"])


def test_a_program_that_the_image_lacks_is_named(place: Place, capsys: Any):
    place.api.execs.programs = {"python3"}
    code, err = place.answer(capsys, "demo", "--", "nvidia-smi", "-L")
    assert code == 1
    assert "error: `nvidia-smi -L` cannot be run in pod demo-launcher-x7k2p\n" in err
    assert err.endswith("  try:  check that nvidia-smi is in the image\n")
    code, err = place.answer(capsys, "demo")
    assert err.endswith("  try:  the image has no shell: name a command that it has, after --\n")


# Which pod, which container.


def test_of_several_containers_the_default_is_told(place: Place, capsys: Any):
    with place.pod() as pod:
        pod["spec"]["containers"].insert(0, {"name": "proxy", "image": "i"})
    code, err = place.answer(capsys, "demo", "true")
    assert (code, err) == (0, "Defaulting container name to mpi.\n" + HELLO)
    with place.pod() as pod:
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "proxy"
    _, err = place.answer(capsys, "demo", "true")
    assert err.startswith("Defaulting container name to proxy.\n")
    _, err = place.answer(capsys, "demo", "-c", "mpi", "true")
    assert err == HELLO


def test_a_container_that_is_not_there_is_answered_with_those_that_are(place: Place, capsys: Any):
    with place.pod() as pod:
        pod["spec"]["initContainers"] = [{"name": "init-code", "image": "i"}]
    code, err = place.answer(capsys, "demo", "-c", "nope", "true")
    assert (code, err) == (
        1,
        (
            "error: container nope is not valid for instance demo-launcher-x7k2p\n"
            "  try:  choose one of: mpi, init-code\n"
        ),
    )


def test_a_job_that_is_not_there_is_answered_as_get_does(place: Place, capsys: Any):
    code, err = place.answer(capsys, "dmo", "true")
    assert code == 1
    assert err == (
        "error: no job dmo in namespace default\n"
        "  try:  did you mean demo?\n"
        "  arena: Not found training job dmo in namespace default,"
        "please use 'arena submit' to create it.\n"
    )
    code, err = place.answer(capsys, "demo", "-T", "tf", "true")
    assert code == 1
    assert "Not found training job demo in namespace default" in err


def test_without_a_launcher_the_others_are_offered(place: Place, capsys: Any):
    place.api.remove("pods", "default", "demo-launcher-x7k2p", {})
    code, err = place.answer(capsys, "demo", "true")
    assert (code, err) == (
        1,
        (
            "error: job demo has no launcher now\n"
            "  why:  the launcher has not been created yet\n"
            "  try:  choose another pod with -i: demo-worker-0, demo-worker-1\n"
        ),
    )
    place.api.remove("pods", "default", "demo-worker-0", {})
    assert place.answer(capsys, "demo", "true")[0] == 0
    place.api.remove("pods", "default", "demo-worker-1", {})
    code, err = place.answer(capsys, "demo", "true")
    assert code == 1
    assert err.startswith("error: cannot attach to job demo: it has no pods\n")


def waiting(reason: str, message: str = "") -> Any:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("status", "why", "hint"),
    [
        (
            {"phase": "Pending", "conditions": [UNSCHEDULED]},
            "the status of the pod is Pending",
            "arena-topo why demo -n default",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {"name": "mpi", "state": waiting("ImagePullBackOff", "no such image")}
                ],
            },
            "the status of the pod is ImagePullBackOff",
            "arena-topo why demo -n default",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"name": "mpi", "state": waiting("PodInitializing")}],
                "initContainerStatuses": [
                    {"name": "wait-for-workers", "state": {"running": {"startedAt": "x"}}}
                ],
            },
            "the status of the pod is Init:0/1",
            "arena-topo why demo -n default",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"name": "mpi", "state": {"terminated": {"exitCode": 9}}}],
            },
            "the status of the pod is ExitCode:9",
            "arena-topo why demo -n default",
        ),
    ],
)
def test_a_container_that_does_not_run_says_why(
    place: Place, capsys: Any, status: Any, why: str, hint: str
):
    with place.pod() as pod:
        pod["status"] = status
    code, err = place.answer(capsys, "demo", "true")
    assert (code, err) == (
        1,
        (
            "error: container mpi of instance demo-launcher-x7k2p is not running\n"
            f"  why:  {why}\n  try:  {hint}\n"
        ),
    )


def test_an_init_container_that_runs_can_be_gone_into(place: Place, capsys: Any):
    with place.pod() as pod:
        pod["status"] = {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "wait-for-workers", "state": {"running": {}}}],
        }
        pod["spec"]["initContainers"] = [{"name": "wait-for-workers", "image": "i"}]
    assert place.answer(capsys, "demo", "-c", "wait-for-workers", "true")[0] == 0


def test_who_may_not_run_commands_is_told_the_right(place: Place, capsys: Any):
    place.api.deny("create pods/exec .*")
    code, err = place.answer(capsys, "demo", "true")
    assert code == 4
    assert "error: not allowed to create pods/exec in namespace default\n" in err
    assert 'resources: ["pods/exec"], verbs: ["create"]' in err


# The connection.


@pytest.mark.parametrize("proxied", ["", "http", "https"])
def test_over_tls_and_proxies_much_comes_and_goes(
    tmp_path: Path, proxied: str, monkeypatch: pytest.MonkeyPatch
):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(TLS / "ca.pem"))
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the authority of these tests is an old one
    api = FakeApi(tls=context)
    try:
        user = {
            "client-certificate": str(TLS / "alice.pem"),
            "client-key": str(TLS / "alice.key"),
        }
        cluster = {"certificate-authority": str(TLS / "ca.pem")}
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(TLS / "server.pem", TLS / "server.key")
        proxy = Proxy(api.url, own if proxied == "https" else None)
        # Who made the certificate of the proxy is asked of the machine.
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
        place = Place(api, kubeconfig(tmp_path / "config", api.url, user=user, cluster=cluster))
        if proxied:
            cluster["proxy-url"] = f"{proxied}://me:p%40w@127.0.0.1:{proxy.port}"
            place.config = kubeconfig(tmp_path / "other", api.url, user=user, cluster=cluster)
        data = os.urandom(4_000_000)
        done = place.run("-q", "--", "sh", "-c", "cat; exit 6", input=data, timeout=60)
        assert (done.returncode, done.stderr) == (6, b"")
        assert done.stdout == data
        # One connection for requests, one for the command.
        assert len(proxy.asked) == len(proxy.logins) == (2 if proxied else 0)
    finally:
        api.close()
        proxy.close()


def test_a_silent_connection_is_kept_alive(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(podexec, "PING", 0.02)
    job = place.world.backend.job("demo", "default")
    until = "until test -e " + str(Path(place.config).with_name("go")) + "; do sleep 0.02; done"

    def go() -> None:
        while place.api.execs.pings < 5:
            time.sleep(0.01)
        Path(place.config).with_name("go").touch()

    helper = threading.Thread(target=go)
    helper.start()
    request = AttachRequest(words=("sh", "-c", until))
    assert place.world.backend.attach(job, "demo-worker-0", request) == 0
    helper.join()
    assert place.api.execs.pings >= 5


def test_a_server_that_gives_no_sign_of_life_is_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(podexec, "PING", 0.02)
    monkeypatch.setattr(podexec, "SERVER_SILENCE", 0.3)
    place.api.execs.deaf = True
    # A backend with a deadline: what is not given up ends all the same.
    backend = engine.open_kubernetes(Options(kubeconfig=place.config, deadline=WAIT))
    job = backend.job("demo", "default")
    with pytest.raises(ClusterError, match="broke the connection to pod demo-worker-0") as caught:
        backend.attach(job, "demo-worker-0", AttachRequest(words=("sleep", "600")))
    assert caught.value.why == "silent for 0.3 s"


# On a terminal.


class Session:
    """A shell on a terminal, in which `attach` is typed."""

    def __init__(self, line: list[str], folder: Path) -> None:
        self.script = folder / "attach"
        self.script.write_text(f'#!/bin/sh\nexec {" ".join(line)} "$@"\n')
        self.script.chmod(0o700)
        environment = {**os.environ, "PS1": "outside> ", "TERM": "xterm", "NO_COLOR": "1"}
        self.child = pexpect.spawn(
            "/bin/sh", env=environment, encoding="utf-8", timeout=WAIT, dimensions=(24, 80)
        )
        self.child.setecho(False)
        self.child.expect_exact("outside> ")
        self.before = termios.tcgetattr(self.child.child_fd)

    def attach(self, *words: str, prompt: bool = True) -> None:
        """Type it, and wait for the prompt there."""
        self.child.sendline(f"{self.script} {' '.join(words)}")
        self.child.expect("Attached to container mpi of [^\r\n]*\r\n")
        if prompt:
            # A shell of this machine may have a prompt of its own; this one is known.
            self.child.sendline("PS1='in''side> '")
            self.child.expect_exact("inside> ")

    def type(self, text: str) -> str:
        """Type a line there; what it prints until the next prompt."""
        self.child.sendline(text)
        self.child.expect_exact("inside> ")
        return self.child.before

    def code(self) -> int:
        """The exit code, once the prompt here is back; the terminal is as it was."""
        self.child.expect_exact("outside> ")
        self.said = self.child.before
        after = termios.tcgetattr(self.child.child_fd)
        assert after == self.before
        self.child.sendline("echo code=$?")
        self.child.expect(r"code=(\d+)\r\n")
        return int(self.child.match[1])

    def close(self) -> None:
        self.child.close(force=True)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Callable[[list[str]], Session]]:
    opened: list[Session] = []

    def start(line: list[str]) -> Session:
        opened.append(Session(line, tmp_path))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture(params=["kubernetes", "local"])
def session(
    request: pytest.FixtureRequest, tmp_path: Path, sessions: Callable[[list[str]], Session]
) -> Iterator[Session]:
    """A terminal beside a job of each engine."""
    if request.param == "kubernetes":
        yield sessions(request.getfixturevalue("place").line)
        return
    with WORLDS["local"](tmp_path) as world:
        world.backend.apply(world.plan(world.job("demo", workers=2, gpus=2)))
        world.start("demo")
        yield sessions([*program.LINE, "--backend=local", "attach", "demo"])


def test_a_shell_there_has_the_terminal_with_its_size(session: Session):
    session.attach("-i", "demo-worker-1")
    assert "demo-worker-1" in session.type("echo $HOSTNAME")
    assert "24 80" in session.type("stty size")
    assert "/dev/" in session.type("tty")
    session.child.setwinsize(50, 132)
    deadline = time.monotonic() + WAIT
    while "50 132" not in session.type("stty size"):
        assert time.monotonic() < deadline
    session.child.sendline("exit 5")
    assert session.code() == 5


def test_keys_go_to_the_command_and_not_to_us(session: Session):
    session.attach()
    session.child.sendline("sleep 600; echo slept=$?")
    time.sleep(0.3)
    session.child.sendcontrol("c")
    session.child.expect_exact("inside> ")
    # Stopped by Ctrl-Z there, not here.
    session.child.sendline("sleep 600")
    time.sleep(0.3)
    session.child.sendcontrol("z")
    session.child.expect_exact("inside> ")
    assert "sleep 600" in session.type("jobs")
    session.type("kill %1")
    session.child.sendcontrol("d")
    # A shell with a job that stopped asks once.
    with contextlib.suppress(pexpect.TIMEOUT):
        session.child.expect_exact("inside> ", timeout=0.5)
        session.child.sendcontrol("d")
    session.code()


def test_a_command_with_the_terminal_ends_with_its_own_code(session: Session):
    session.attach(
        "--", "sh", "-c", "'test -t 0 && test -t 1 && test -t 2 && exit 9'", prompt=False
    )
    assert session.code() == 9


def test_a_terminal_that_others_read_from_too_is_left_to_them(session: Session):
    """As in `attach JOB -- cat log | less`."""
    session.child.sendline(f"{session.script} -- sh -c 'test -t 1 || cat; echo not' | cat")
    session.child.expect_exact("not\r\n")
    session.child.sendline("echo mine")
    session.child.expect_exact("mine\r\n")
    session.child.sendline(f"{session.script} --no-tty -- sh -c 'test -t 1; exit $?'; echo is=$?")
    session.child.expect(r"is=\d\r\n")


def test_a_broken_connection_gives_the_terminal_back(place: Place, sessions: Any):
    session = sessions(place.line)
    session.attach()
    session.child.send("half a li")
    session.child.expect_exact("half a li")
    place.api.execs.cut()
    assert session.code() == 1
    assert re.search(
        r"\r\nerror: http://\S+ broke the connection to pod demo-launcher", session.said
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(session: Session, number: signal.Signals):
    session.attach()
    shell = session.child.pid
    (ours,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    os.kill(int(ours), number)
    assert session.code() == 128 + number


def test_a_job_that_is_deleted_gives_the_terminal_back(tmp_path: Path, sessions: Any):
    with WORLDS["local"](tmp_path) as world:
        world.backend.apply(world.plan(world.job("demo", workers=2, gpus=2)))
        world.start("demo")
        session = sessions([*program.LINE, "--backend=local", "attach", "demo"])
        session.attach()
        world.backend.delete("demo", "default")
        assert session.code() in {128 + 9, 128 + 15, 128 + 1}


def test_the_sizes_are_told_to_the_server_once_each(place: Place, sessions: Any):
    session = sessions(place.line)
    session.attach()
    for rows, columns in ((30, 100), (31, 101)):
        session.child.setwinsize(rows, columns)
        deadline = time.monotonic() + WAIT
        while place.api.execs.sizes[-1] != (columns, rows):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    session.child.sendline("exit")
    assert session.code() == 0
    assert place.api.execs.sizes == [(80, 24), (100, 30), (101, 31)]
    assert place.api.execs.asked[-1][-2:] == [("stdin", "true"), ("tty", "true")]
