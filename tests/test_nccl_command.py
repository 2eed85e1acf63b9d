"""`logs --nccl`: what NCCL says in the logs of a job, or in files, beside the job's placement."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import log_bytes
import pytest
from nccl_lines import joined, made, spoken, table_of, through
from worlds import WORLDS, KubernetesWorld, World, living_world

from arena_topo.engines import engine_choice
from arena_topo.gang import submission
from arena_topo.nccl import NcclReport
from arena_topo.nccl import view as screens
from arena_topo.nccl.command import _Progress
from arena_topo.nccl.line_parser import NcclReader
from arena_topo.topology import presets, published

FULL = (
    "demo-worker-0:100:200 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space"
    " left on device"
)

Run = Callable[..., tuple[int, str, str]]

SCREENS = Path(__file__).parent / "screens"

REAL_LOGS = sorted((Path(__file__).parent / "nccl").glob("*.log"))


@pytest.fixture(params=[living_world, WORLDS["local"]], ids=["kubernetes", "local"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Both engines with two DGX-1 V100; commands go there by themselves."""
    with request.param(tmp_path) as opened:
        monkeypatch.setattr(engine_choice, "open_backend", lambda *_args, **_more: opened.backend)
        yield opened


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesWorld]:
    with living_world(tmp_path) as opened:
        monkeypatch.setattr(engine_choice, "open_backend", lambda *_args, **_more: opened.backend)
        assert isinstance(opened, KubernetesWorld)
        yield opened


def begun(world: World, lines: list[str], **more: Any) -> None:
    """A job that runs, and whose launcher has said these lines."""
    if isinstance(world, KubernetesWorld):
        world.api.now = world.api.clock() + 1
    submission.submit(world.job("demo", **more), world.backend, namespace="default")
    world.start("demo")
    said(world, lines)


def said(world: World, lines: list[str]) -> None:
    data = b"".join(f"{line}\n".encode() for line in lines)
    status = world.backend.job("demo", "default")
    assert status.chief is not None
    before = len(log_of(world))
    world.write("demo", data)
    deadline = time.monotonic() + 30
    while len(log_of(world)) < before + len(data):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def log_of(world: World) -> bytes:
    status = world.backend.job("demo", "default")
    assert status.chief is not None
    return log_bytes.log_of(world.backend, status, status.chief.name)


def file_of(folder: Path, lines: list[str], name: str = "nccl.log") -> str:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


APART: dict[str, Any] = {"workers": 4, "gpus": 1, "gputopology": True}
"""Four pods of one GPU each, on one node."""

ALONE = spoken(4, 1, through("", "NET/Socket/0", 1))
"""What they say: each pod is a machine to NCCL."""


def test_tcp_between_pods_of_one_node_is_reported_with_cause_and_advice(world: World, run: Run):
    begun(world, ALONE, **APART)
    code, out, _err = run("logs", "demo", "--nccl")
    assert code == 0
    assert out.startswith("NCCL 2.18.3+cuda12.2, lines of 4 of 4 ranks, 4 hosts\n")
    assert "  NET/Socket: 4 pairs between pods of one node\n" in out
    flat = " ".join(out.split())
    assert "got NET/Socket" in flat or "as the plan says for separate pods: NET/Socket" in flat
    assert (
        "why: the pods have host names of their own, and NCCL takes each name for a machine"
        " (demo-worker-0, demo-worker-1)"
    ) in flat
    assert "try: --pod-shape fused makes one pod of the workers of a node" in flat
    assert "line: Channel 00/0 : 0[0] -> 1[0] [receive] via NET/Socket/0" in flat


def test_a_whole_node_joined_directly_is_as_planned(world: World, run: Run):
    lines = spoken(8, 8, through("P2P/IPC/read", "", 8))
    begun(world, lines, workers=1, gpus=8, gputopology=True)
    code, out, _err = run("logs", "demo", "--nccl")
    assert code == 0
    assert "As planned: 1 worker, " in out
    assert "Findings" not in out


def test_programs_get_all_of_it(world: World, run: Run):
    begun(world, ALONE, **APART)
    code, out, _err = run("logs", "demo", "--nccl", "-o", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["job"], found["namespace"]) == ("demo", "default")
    assert found["versions"] == ["2.18.3+cuda12.2"]
    assert found["planned"]["ranks"] == 4
    (one,) = found["findings"]
    assert one["kind"] == "Transport"
    assert sorted(map(sorted, one["pairs"])) == [[0, 1], [0, 3], [1, 2], [2, 3]]
    (comm,) = found["communicators"]
    assert [rank["worker"] for rank in comm["ranks"]] == [0, 1, 2, 3]
    assert comm["transports"][0] == {"from": 0, "to": 1, "kinds": ["NET/Socket"]}
    assert comm["rings"][0] == {"channel": 0, "ranks": [0, 1, 2, 3]}


def test_measured_bandwidths_of_files_are_refused_before_anything_is_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    class Unread:
        def readline(self, _size: int) -> bytes:
            raise AssertionError("standard input was read")

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=Unread()))
    code, out, err = run("logs", "--nccl", "--bus-bandwidth", "--from", "-")
    assert (code, out) == (2, "")
    assert err.startswith("error: --from and --bus-bandwidth exclude each other\n")


@pytest.mark.parametrize("log", REAL_LOGS, ids=[path.stem for path in REAL_LOGS])
def test_every_real_log_is_shown_to_people_and_to_programs(log: Path, run: Run):
    code, out, err = run("logs", "--nccl", "--from", str(log))
    assert (code, err) == (0, "")
    assert out.startswith("NCCL")
    code, out, err = run("logs", "--nccl", "--from", str(log), "-o", "json")
    assert (code, err) == (0, "")
    # The report that is expected of this log says how many lines are NCCL's.
    expected = log.with_suffix(".txt").read_text(encoding="utf-8")
    assert expected.startswith(f"{json.loads(out)['lines']} lines, ")


def test_a_job_that_says_nothing_of_nccl_is_an_error_that_says_how_to_ask(world: World, run: Run):
    begun(world, ["loss 0.5"], **APART)
    code, out, err = run("logs", "demo", "--nccl")
    assert (code, out) == (1, "")
    assert "error: no line of NCCL in the logs of demo\n" in err
    waits = "arena-topo logs -f demo -n default --nccl waits for it"
    assert f"try:  submit with --nccl-debug; {waits}\n" in err


def test_the_advice_for_a_finished_job_does_not_wait_for_nccl(world: World, run: Run):
    begun(world, ["loss 0.5"], **APART)
    world.finish("demo", 0)
    for flags in ((), ("-f",)):
        _code, _out, err = run("logs", "demo", "--nccl", *flags)
        assert "try:  submit with --nccl-debug\n" in err


def test_followed_it_is_shown_as_soon_as_all_ranks_have_connected(world: World, run: Run):
    half = len(ALONE) // 2
    begun(world, ALONE[:half], **APART)
    later = threading.Timer(1.5, said, (world, ALONE[half:]))
    later.start()
    code, out, _err = run("logs", "demo", "-f", "--nccl")
    later.join()
    assert code == 0
    assert "lines of 4 of 4 ranks" in out
    assert "Init COMPLETE" not in out
    assert not world.backend.job("demo", "default").phase.over


def test_followed_two_communicators_whose_connections_no_line_tells_apart_are_shown(
    cluster: KubernetesWorld, run: Run
):
    lines = ["NCCL version 2.27.7+cuda12.8", *made(4, ["a", "b"]), *joined(4, "P2P/CUMEM")]
    begun(cluster, lines, workers=1, gpus=4, gputopology=True)
    code, out, _err = run("logs", "demo", "-f", "--nccl")
    assert code == 0
    assert not cluster.backend.job("demo", "default").phase.over
    assert "As planned: 1 worker" in out


def test_followed_a_second_communicator_has_time_to_get_done(
    cluster: KubernetesWorld, run: Run, monkeypatch: pytest.MonkeyPatch
):
    lines = [*made(2, ["a"]), *joined(2, "P2P/CUMEM"), *made(2, ["b"], done=False)]
    begun(cluster, lines, workers=1, gpus=2, gputopology=True)
    later = threading.Timer(2.5, said, (cluster, made(2, ["b"])[2:]))
    later.start()
    code, out, _err = run("logs", "demo", "-f", "--nccl")
    later.join()
    assert code == 0
    assert "Init COMPLETE" not in out
    said(cluster, made(2, ["c"], done=False))
    monkeypatch.setattr("arena_topo.nccl.command._PATIENCE", 1.5)
    _code, out, _err = run("logs", "demo", "-f", "--nccl")
    assert 'no "Init COMPLETE" of ranks 0-1 in communicator 0xc (of 2)' in out


def test_a_job_without_a_placement_is_shown_without_a_comparison(
    cluster: KubernetesWorld, run: Run
):
    begun(cluster, ALONE, workers=4, gpus=1)
    code, out, _err = run("logs", "demo", "--nccl")
    assert code == 0
    assert "Not compared with a plan: it was not placed by topology" in out
    assert "Findings" not in out


def test_followed_a_job_that_failed_ends_with_its_exit_code(world: World, run: Run):
    begun(world, spoken(4, 1, through("", "NET/Socket/0", 1), complete=False), **APART)
    later = threading.Timer(1.0, world.finish, ("demo", 7))
    later.start()
    code, out, _err = run("logs", "demo", "-f", "--nccl")
    later.join()
    assert code == 7
    assert 'no "Init COMPLETE" of ranks 0-3' in out
    assert run("logs", "demo", "--nccl")[0] == 0


def test_what_was_kept_is_read_without_asking_for_the_machines(
    cluster: KubernetesWorld, run: Run, monkeypatch: pytest.MonkeyPatch
):
    begun(cluster, ALONE, **APART)
    cluster.finish("demo")
    assert run("logs", "demo", "-f", "--all")[0] == 0
    asked: list[str] = []
    monkeypatch.setattr(
        type(cluster.backend), "cluster", lambda *_: asked.append("cluster") or pytest.fail("asked")
    )
    code, out, _err = run("logs", "demo", "--nccl", "--kept")
    assert code == 0
    assert "lines of 4 of 4 ranks" in out
    assert asked == []


# ---------------------------------------------------------------- when it is enough


class Looks:
    """Looks at a log at given seconds, whatever the clock says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.reader = NcclReader()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("arena_topo.nccl.command.time", clock)
        self._progress = _Progress(self.reader)

    def at(self, now: float, lines: Iterable[str] = ()) -> bool:
        self.reader.feed_all(lines)
        self.now = now
        return self._progress.connected()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_ranks_have_connected_when_nothing_new_came_for_a_second(looks: Looks):
    lines = [*made(2, ["a"]), *joined(2, "P2P/CUMEM")]
    assert not looks.at(1.0, lines[:-1])
    assert not looks.at(1.8)
    assert not looks.at(2.4, lines[-1:])
    assert not looks.at(3.2)
    assert looks.at(3.8)


def test_as_long_as_a_rank_has_not_got_done_nothing_is_enough(looks: Looks):
    lines = [*made(2, ["a"], done=False), *joined(2, "P2P/CUMEM")]
    assert not any(looks.at(float(now), lines[: 9 if now == 1 else 0]) for now in range(1, 100))
    assert not looks.at(100.0, made(2, ["a"])[2:])
    assert looks.at(102.0)


def test_as_long_as_a_rank_is_silent_nothing_is_enough(looks: Looks):
    lines = [line for line in [*made(3, ["a"]), *joined(3, "P2P/CUMEM")] if "[2] NCCL" not in line]
    assert not looks.at(1.0, lines)
    assert not any(looks.at(float(now)) for now in range(2, 60))


def test_nothing_is_looked_at_while_lines_come(looks: Looks, monkeypatch: pytest.MonkeyPatch):
    lines = [*made(2, ["a"]), *joined(2, "P2P/CUMEM")]
    begun: list[float] = []

    def counted(reader: NcclReader) -> NcclReport:
        begun.append(looks.now)
        return report(reader)

    report = NcclReader.report
    monkeypatch.setattr(NcclReader, "report", counted)
    for at, line in enumerate(lines):
        looks.at(at / 2, [line])
    assert begun == []
    assert looks.at(len(lines) / 2 + 1)


@pytest.mark.usefixtures("world")
def test_a_missing_job_is_reported_at_once(run: Run):
    assert run("logs", "nothere", "--nccl")[0] == 1


# ---------------------------------------------------------------- files


def test_files_need_neither_a_job_nor_a_cluster(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        engine_choice, "open_backend", lambda *_: pytest.fail("asked for a cluster")
    )
    both = spoken(2, 1, through("", "NET/Socket/0", 1))
    first = [line for line in both if not line.startswith("demo-worker-1")]
    second = [line for line in both if line.startswith("demo-worker-1")]
    one, other = file_of(tmp_path, first, "one"), file_of(tmp_path, second, "other")
    code, out, _err = run("logs", "--nccl", "--from", one, "--from", other)
    assert code == 0
    assert out.startswith("NCCL 2.18.3+cuda12.2, lines of 2 of 2 ranks, 2 hosts\n")
    assert "Not compared with a plan: files belong to no job\n" in out


def test_a_file_without_nccl_or_that_is_none_is_an_error(tmp_path: Path, run: Run):
    code, _out, err = run("logs", "--nccl", "--from", file_of(tmp_path, ["hello"]))
    assert code == 1
    assert "error: no line of NCCL in " in err
    code, _out, err = run("logs", "--nccl", "--from", str(tmp_path / "nothere"))
    assert code == 2
    assert "error: cannot read " in err


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("-f", "--follow"),
        ("-i x", "--instance"),
        ("-c x", "--container"),
        ("-p", "--previous"),
        ("--since 1s", "--since"),
        ("--since-time 2026-01-01T00:00:00Z", "--since-time"),
        ("--tail 1", "--tail"),
        ("--tail 0", "--tail"),
        ("--timestamps", "--timestamps"),
        ("-T mpijob", "--type"),
        ("--all", "--all"),
        ("--only rank:0", "--only"),
        ("--include nothing", "--include"),
        ("--exclude nothing", "--exclude"),
        ("--kept", "--kept"),
    ],
)
def test_what_chooses_of_a_job_chooses_nothing_of_a_file(
    tmp_path: Path, run: Run, flags: str, named: str
):
    file = file_of(tmp_path, ALONE)
    code, out, err = run("logs", "--nccl", "--from", file, *flags.split())
    assert (code, out) == (2, "")
    assert f"--from and {named} exclude each other" in err


def test_full_shared_memory_of_a_file_is_of_no_pod(tmp_path: Path, run: Run):
    text = shown(tmp_path, run, [*ALONE, FULL])
    assert "shared memory is full: a container has 64 MiB of it, unless it asks for more" in text
    assert "of the pod" not in text


def test_the_line_of_a_finding_is_one_of_the_log(tmp_path: Path, run: Run):
    lines = spoken(4, 2, through("P2P/IPC", "NET/Socket/0", 2), silent=[3], interface="docker0")
    _code, out, _err = run("logs", "--nccl", "--from", file_of(tmp_path, lines), "-o", "json")
    said = [line for one in json.loads(out)["findings"] for line in one["lines"]]
    assert len(said) == 2
    assert all(any(one in line for line in lines) for one in said)


def shown(folder: Path, run: Run, lines: list[str]) -> str:
    code, out, err = run("logs", "--nccl", "--from", file_of(folder, lines))
    assert (code, err) == (0, "")
    return " ".join(out.split())


def test_missing_connections_are_reported_only_if_all_are_missing(tmp_path: Path, run: Run):
    alone = [*made(2, ["a"], pods=[0, 1]), *made(2, ["b"], pods=[0, 2])]
    assert "No line says how ranks are joined (via ...)." in shown(tmp_path, run, alone)
    lines = [*alone, *joined(2, "NET/Socket/0", pods=[0, 1])[:1]]
    text = shown(tmp_path, run, lines)
    assert "No line says of which communicator: 1 connection." in text
    assert "joined" not in text
    _code, out, _err = run("logs", "--nccl", "-o", "json", "--from", file_of(tmp_path, lines))
    assert json.loads(out)["connectionsOfSeveral"] == 1


def test_a_rank_without_its_first_line_is_not_put_down_to_the_version(tmp_path: Path, run: Run):
    lines = spoken(4, 4, through("P2P/IPC", "", 4))
    lines = [line for line in lines if "rank 3 nranks" not in line]
    text = shown(tmp_path, run, lines)
    assert "note: which ranks belong together is not certain" in text
    assert "version does not" not in text


# ---------------------------------------------------------------- the screen


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "nccl-two-hosts",
            spoken(8, 4, through("P2P/CUMEM/read", "NET/IB/0/GDRDMA", 4), network="IB"),
        ),
        (
            "nccl-64-ranks",
            spoken(64, 8, through("P2P/CUMEM/read", "NET/IB/0/GDRDMA", 8), network="IB"),
        ),
        (
            "nccl-trouble",
            [
                *spoken(
                    8,
                    4,
                    through("SHM/direct/direct", "NET/Socket/0", 4),
                    settings=["NCCL_P2P_DISABLE=1"],
                    silent=[6, 7],
                    interface="docker0",
                ),
                FULL,
            ],
        ),
    ],
)
def test_the_screen_is_the_golden_one_and_fits_a_terminal(
    name: str, lines: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("arena_topo.cli.terminal.wrap_columns", lambda _stream: 80)
    code, out, err = run("logs", "--nccl", "--from", file_of(tmp_path, lines))
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) <= 45
    golden = SCREENS / f"{name}.txt"
    assert out == golden.read_text(encoding="utf-8")


def test_in_a_pipe_nothing_of_a_log_is_wrapped_or_cut(run: Run):
    logs = Path(__file__).parent / "nccl"
    _code, out, _err = run("logs", "--nccl", "--from", str(logs / "cumem-2.21.5.log"))
    assert max(map(len, out.splitlines())) > 100
    assert "commId 0x996ee6f117cb8e1e - Init START\n" in out


def test_every_host_that_a_rank_names_is_counted_and_listed(run: Run):
    logs = Path(__file__).parent / "nccl"
    _code, out, _err = run("logs", "--nccl", "--from", str(logs / "cumem-2.21.5.log"))
    assert "lines of 8 of 8 ranks, 2 hosts" in out
    assert "kolyoz2  4-7 " in out


def test_pairs_of_ranks_are_not_written_like_spans_of_ranks():
    assert screens.pairs_named([(0, 31), (31, 0), (7, 8)]) == "pairs 0<->31, 7<->8"
    assert screens.pairs_named([(1, 0)]) == "pair 0<->1"
    assert screens.pairs_named([(0, one) for one in range(1, 7)]).endswith("0<->4 and 2 more")


def test_the_search_of_nccl_is_shown_even_without_rings(tmp_path: Path, run: Run):
    lines = spoken(4, 4, through("P2P/IPC", "", 4), search="NVL/PIX")
    told = "NCCL's search counted on NVL inside, PIX between machines"
    assert told in shown(tmp_path, run, lines)
    assert told in shown(tmp_path, run, [line for line in lines if "/02 : " not in line])


def test_a_complaint_is_reported_with_its_host_and_rank(tmp_path: Path, run: Run):
    lines = spoken(4, 4, through("P2P/IPC", "", 4))
    out = shown(tmp_path, run, [*lines, FULL])
    assert "No space left on device (demo-worker-0, rank 0)" in " ".join(out.split())


def test_without_unicode_nothing_but_ascii_is_drawn(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("LC_ALL", "C")
    _code, out, _err = run("logs", "--nccl", "--from", file_of(tmp_path, ALONE))
    assert out.isascii()


def test_lines_cannot_control_the_terminal(tmp_path: Path, run: Run):
    evil = "\x1b]0;owned\x07"
    line = f"demo-worker-0:100:200 [0] include/x.h:1 NCCL WARN {evil} broken"
    code, out, _err = run("logs", "--nccl", "--from", file_of(tmp_path, [*ALONE, line]))
    assert code == 0
    assert "\x1b" not in out
    assert "\x07" not in out


def test_thousands_of_ranks_make_a_screen_and_not_megabytes(tmp_path: Path, run: Run):
    lines = spoken(1024, 8, through("P2P/CUMEM/read", "NET/IB/0/GDRDMA", 8), network="IB")
    code, out, _err = run("logs", "--nccl", "--from", file_of(tmp_path, lines))
    assert code == 0
    assert len(out.splitlines()) < 40
    assert "  P2P/CUMEM: 896 pairs with one host name\n" in out


@pytest.mark.parametrize(
    ("ring", "text"),
    [
        ((0, 1, 2, 3), "0 1 2 3"),
        (tuple(range(32)), "0-31"),
        ((*range(16), *range(31, 15, -1)), "0-15 31-16"),
        ((*range(20), None), "0-19 ..."),
        ((0, 2, 4, *range(6, 30)), "0 2 4 6-29"),
    ],
)
def test_rings_of_many_ranks_are_written_as_spans(ring: tuple[int | None, ...], text: str):
    assert screens.ring_text(ring) == text


# ---------------------------------------------------------------- bandwidths


def test_what_a_job_measured_is_a_table_that_publish_takes(
    cluster: KubernetesWorld, run: Run, tmp_path: Path
):
    begun(cluster, table_of(8, 8, 131.5), workers=1, gpus=8, gputopology=True)
    code, out, err = run("logs", "demo", "--nccl", "--bus-bandwidth")
    assert (code, out) == (0, '{"0,1,2,3,4,5,6,7": 131.5}\n')
    assert "topology publish node-0 --bus-bandwidth FILE" in err
    file = tmp_path / "table.json"
    file.write_text(out)
    code, out, _err = run("topology", "publish", "node-0", "--bus-bandwidth", str(file))
    assert (code, out) == (0, "configmap/node-0-gpu-topology configured\n")
    (node,) = [one for one in cluster.backend.cluster().nodes if one.name == "node-0"]
    assert node.machine.measured == ((255, 131.5),)


def test_a_table_is_written_to_the_config_map_that_is_read_first(
    cluster: KubernetesWorld, run: Run, tmp_path: Path
):
    """What an agent writes of its node is believed before what anybody else has published."""
    machine = presets.preset_machine("dgx-1-v100", "node-0")
    cluster.api.add({"kind": "Namespace", "metadata": {"name": published.OWN_NAMESPACE}})
    cluster.api.add(
        published.config_map(machine, machine.everything, namespace=published.OWN_NAMESPACE)
    )
    file = tmp_path / "table.json"
    file.write_text('{"node": "node-0", "busBandwidth": {"0,1": 38.5}}')
    code, _out, err = run("topology", "publish", "node-0", "--bus-bandwidth", str(file))
    assert code == 0, err
    file.write_text('{"0,3": 47}')
    assert run("topology", "publish", "node-0", "--bus-bandwidth", str(file))[0] == 0
    (node,) = [one for one in cluster.backend.cluster().nodes if one.name == "node-0"]
    # The second table adds to the first.
    assert node.machine.measured == ((3, 38.5), (9, 47.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is not valid JSON"),
        ("[]", "there is no bandwidth in it"),
        ('{"0": 1}', "is not a list of two or more GPUs such as 0,1"),
        ('{"0,8": 1}', "GPU 8 of 8 is out of range"),
        ('{"0,1": 0}', "expected a number >= 0.001"),
        ("{}", "there is no bandwidth in it"),
        ('{"node": "node-1", "busBandwidth": {"0,1": 1}}', "this was measured on node node-1"),
    ],
)
def test_an_invalid_table_is_not_published(
    cluster: KubernetesWorld, run: Run, tmp_path: Path, text: str, said: str
):
    file = tmp_path / "table.json"
    file.write_text(text)
    code, out, err = run("topology", "publish", "node-0", "--bus-bandwidth", str(file))
    assert (code, out) == (2, "")
    assert said in err
    assert all(one.machine.measured == () for one in cluster.backend.cluster().nodes)


@pytest.mark.usefixtures("cluster")
def test_a_table_that_is_not_there_is_refused_with_the_command_that_makes_it(
    run: Run, tmp_path: Path
):
    missing = str(tmp_path / "table.json")
    code, _out, err = run("topology", "publish", "node-0", "--bus-bandwidth", missing)
    assert code == 2
    assert "  try:  make one: arena-topo logs JOB --nccl --bus-bandwidth;" in err


def test_a_transport_alone_is_never_a_bandwidth(cluster: KubernetesWorld, run: Run):
    lines = spoken(8, 8, through("P2P/IPC/read", "", 8))
    begun(cluster, lines, workers=1, gpus=8, gputopology=True)
    code, out, err = run("logs", "demo", "--nccl", "--bus-bandwidth")
    assert (code, out) == (1, "")
    assert "why:  there is no table of nccl-tests in these lines" in err
    assert "all_reduce_perf" in err


def test_a_table_needs_a_job_with_a_placement(tmp_path: Path, run: Run):
    file = file_of(tmp_path, table_of(8, 8, 131.5))
    code, out, err = run("logs", "--nccl", "--from", file, "--bus-bandwidth")
    assert (code, out) == (2, "")
    assert "--from and --bus-bandwidth exclude each other" in err
