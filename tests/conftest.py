"""Values that many tests start from."""

from __future__ import annotations

import fcntl
import functools
import gc
import itertools
import os
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import clusters
import program
import pytest
from fake_api import FakeApi
from fake_operator import FakeOperator
from hypothesis import HealthCheck, settings

from arena_topo import cli
from arena_topo.cli import settings as settings_files
from arena_topo.cli import targets
from arena_topo.engines.local import engine as local_engine

TLS = Path(__file__).parent / "tls"

# Where CI is set, Hypothesis would try the same cases every time.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=25,
)
settings.register_profile("thorough", deadline=None, derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# On a busy machine a look at the names of jobs may take more than its three seconds.
targets._GLANCE = 60.0

# A process of a user runs one line, and this one thousands: the parser is made once for them all.
cli.command_tree = functools.cache(cli.command_tree)

# Most tests need a job of this machine, and not that its supervisor is loaded anew for it.
local_engine.subprocess = program.Supervisors()

SLOWEST = (
    *("test_documents", "test_controller", "test_local_engine", "test_protocol", "test_screens"),
    *("test_replay", "test_log_screens", "test_bandwidth", "test_submission", "test_solver_best"),
    *("test_signals", "test_architecture", "test_attach", "test_solver_following", "test_wait"),
    *("test_fuzz", "test_shells", "test_patience", "test_local_logs", "test_api", "test_simulate"),
    *("test_local_state", "test_surroundings", "test_replan", "test_workflow_logs"),
    *("test_submit_again", "test_kept_logs", "test_race", "test_macos", "test_upgrade"),
    *("test_completion", "test_fragmentation", "test_list", "test_queue_answers", "test_workflow"),
    *("test_odd_access", "test_job_file", "test_faults", "test_lost_requests", "test_solver_laws"),
    *("test_suspend", "test_words", "test_controller_rounds", "test_solver_explain"),
)
"""The files that take longest, roughly the longest first: one that waits, one that computes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what takes longest, so that no worker is alone with it at the end.

    Files that wait have others beside them that compute: else cores are idle first, and short then.
    """
    place = {name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage while tests are collected, and never again among them: they stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that a real cluster must pass; undo ignored signals."""
    # `nohup` ignores SIGHUP, a shell SIGINT for what it starts in the background. Commands inherit
    # that, and rightly go on; tests are about all others.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    config.addinivalue_line(
        "markers",
        f"cluster(needs): runs against the fake cluster, and against the real one that"
        f" {clusters.VARIABLE} names; `needs` says what the fake one does not have",
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Let the first worker compile a test module, and the others load what it has compiled."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as module:
        try:
            fcntl.flock(module, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(module, fcntl.LOCK_SH)
        return (yield)


@pytest.fixture
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[clusters.Live]:
    """The cluster of a test with the marker `cluster`: a real one where there is one."""
    marker = request.node.get_closest_marker("cluster")
    assert marker is not None, "who uses `live` says so with the marker `cluster`"
    needs = marker.kwargs.get("needs")
    if needs and not clusters.REAL:
        pytest.skip(f"{clusters.VARIABLE} names no cluster, and the fake one has no {needs}")
    with clusters.opened(tmp_path) as one:
        yield one


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Empty folders; pytest's own way to number them lists all that are there, each time."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _nobodys_machine(monkeypatch: pytest.MonkeyPatch, homes: Iterator[Path]):
    """No test sees the kubeconfig, the state or the settings of whoever runs it."""
    home = next(homes)
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(("ARENA_", "KUBE", "XDG_", "LC_", "PYTHONUNBUFFERED")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setattr(settings_files, "SITE", str(home / "site.toml"))


@pytest.fixture
def arena(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process: its exit code, stdout and stderr."""

    def run(*argv: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run(argv)
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run


run = arena


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the site's file is, instead of /etc."""
    path = tmp_path / "site.toml"
    monkeypatch.setattr(settings_files, "SITE", str(path))
    return path


@pytest.fixture
def user(site: Path) -> Path:
    """Where the user's file is."""
    del site
    folder = Path(os.environ["HOME"]) / ".config" / "arena-topo"
    folder.mkdir(parents=True)
    return folder / "config.toml"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """An API server."""
    fake = FakeApi()
    yield fake
    fake.close()


@pytest.fixture
def operator(api: FakeApi) -> FakeOperator:
    """The MPI operator of that server."""
    return FakeOperator(api)


@pytest.fixture
def https() -> Iterator[FakeApi]:
    """An API server with a certificate, which asks for those of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    context.load_verify_locations(TLS / "ca.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    fake = FakeApi(tls=context)
    yield fake
    fake.close()
