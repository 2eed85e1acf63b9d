"""Whatever a cluster says, it is text: no terminal obeys it, and no line of ours can be forged."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from fake_prometheus import FakePrometheus
from hypothesis import given
from hypothesis import strategies as st
from kube_objects import bare, device, resource_slice
from plain_text import plain

from arena_topo import cli, layout
from arena_topo.cli import live
from arena_topo.cli.console import Colour, Console
from arena_topo.errors import ArenaError
from arena_topo.escaping import brief, escaped, one_line
from arena_topo.joblogs.log_text import LogText, log_line, ordinary
from arena_topo.manifests.serialize import manifests_json, manifests_yaml
from arena_topo.topology import presets, published

EVIL = (
    "\x1b]0;PWN\x07\x1b[2J\x1b[31mRED\x7f\x9b31m\u202eback\u2066\rover\b\nFORGED: line\n"
    "Status:       SUCCEEDED\n  FORGED\tcell\u2028FORGED\x85FORGED\x0bFORGED\x0cFORGED"
)
"""The title of a window, a cleared screen, colours, text from right to left, and lines of ours."""

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OUR_COLOURS = re.compile(r"\x1b\[(?:0|1|2|31|32|33|36|1;31|1;33)m")
FORGED = re.compile(r"^\s*(?:FORGED|Status: +SUCCEEDED)", re.MULTILINE)

NAMES = {"name", "namespace", "uid", "kind", "apiVersion", "resourceVersion", "nodeName", "plural"}
"""What the API server checks: there is no such name."""

WORKING = {
    *("type", "status", "phase", "creationTimestamp", "lastTransitionTime", "startedAt"),
    *("lastTimestamp", "firstTimestamp", "nvidia.com/gpu", "cpu", "memory", "pods", "storage"),
    *("arena-topo.io/format", "arena-topo.io/state", "arena-topo.io/placement", "version"),
    *("training.kubeflow.org/job-role", "training.kubeflow.org/job-name", "app"),
    *("groupVersion", "restartPolicy", "linkType", "bandwidth", "devices"),
    *("string", "version", "driver"),
}
"""What has to stay for jobs and nodes to be understood at all."""

LOOKING = {
    "get": ["get", "demo"],
    "get all": ["get", "demo", "--events", "--explain", "--gpus"],
    "get json": ["get", "demo", "-o", "json"],
    "get yaml": ["get", "demo", "-o", "yaml"],
    "get a failed job": ["get", "broken", "--events"],
    "list": ["list", "-A"],
    "list json": ["list", "-o", "json"],
    "list yaml": ["list", "-o", "yaml"],
    "why": ["why", "demo"],
    "why json": ["why", "demo", "-o", "json"],
    "why a failed job": ["why", "broken"],
    "logs of no pods": ["logs", "bare"],
    "attach without pods": ["attach", "bare", "--", "true"],
    "attach to no such pod": ["attach", "demo", "-i", "none", "--", "true"],
    "wait": ["wait", "broken", "--timeout", "3s"],
    "wait in vain": ["wait", "demo", "--for", "deleted", "--timeout", "1s"],
    "top job": ["top", "job", "-A"],
    "top job demo": ["top", "job", "demo"],
    "top job json": ["top", "job", "demo", "-o", "json"],
    "top node": ["top", "node"],
    "top node details": ["top", "node", "-d"],
    "top node json": ["top", "node", "-o", "json"],
    "top node yaml": ["top", "node", "-o", "yaml"],
    "top node metric": ["top", "node", "-d", "--metric"],
    "fragmentation": ["top", "node", "--frag"],
    "fragmentation json": ["top", "node", "--frag", "-o", "json"],
    "topology": ["topology", "show"],
    "topology json": ["topology", "show", "-o", "json"],
    "topology of a node": ["topology", "show", "node-0"],
    "topology of a node with a driver": ["topology", "show", "node-2"],
    "top node of a driver": ["top", "node", "-d", "node-2"],
    "nodes": ["nodes", "list"],
    "check": ["check"],
    "check a job": ["check", "demo"],
    "data": ["data", "list"],
    "whoami": ["whoami"],
    "whoami yaml": ["whoami", "-o", "yaml"],
    "version": ["version"],
    "settings": ["config", "view", "--resolved"],
    "prune": ["prune", "--since", "0s", "--dry-run"],
    "install remove": ["install", "--remove"],
    "plan": ["plan", "mpi", "--name=n", "--image=i", "--gpus=2", "--workers=2", "--gputopology"],
    "dry run": ["submit", "mpi", "--name=n", "--image=i", "--workers=1", "--dry-run=server"],
    "controller": ["controller", "--once"],
}
"""Commands that look at a cluster, and those of which that is a part."""


def spoilt(value: Any, kept: set[str], key: str = "") -> Any:
    """The same with hostile text behind every text but what is kept, by its key."""
    match value:
        case str() if key in kept:
            return value
        case dict():
            return {name: spoilt(one, kept, name) for name, one in value.items()}
        case list():
            return [spoilt(one, kept, key) for one in value]
        case str():
            return value + EVIL
    return value


def hostile(kept: set[str]) -> Callable[[bytes], bytes]:
    def rewritten(body: bytes) -> bytes:
        try:
            return json.dumps(spoilt(json.loads(body), kept)).encode()
        except ValueError:
            return body

    return rewritten


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeApi, str]]:
    """A cluster with a job that runs, one that has failed, and one that has no pods."""
    folder, api = tmp_path_factory.mktemp("world"), FakeApi()
    cluster = FakeCluster(api)
    config = kubeconfig(folder / "config", api.url, user={"username": "alice"})
    for index in range(2):
        machine = presets.preset_machine("dgx-1-v100", f"node-{index}")
        cluster.node(machine.name, len(machine.gpus))
        api.add(published.config_map(machine, machine.everything))
    api.add(bare("node-2"))
    products = [device("node-2", index, productName=f"Z9{EVIL}") for index in range(8)]
    api.add(resource_slice("node-2", devices=products))
    api.add({"kind": "PersistentVolumeClaim", "apiVersion": "v1", **_claim()})
    base = ["--kubeconfig", config, "--image=fine", "--workers=2", "--gpus=1", "--timeout=30s"]
    with cluster.running():
        for name in ("demo", "broken"):
            words = ["submit", "mpi", f"--name={name}", "--gputopology", "--gang", *base, "true"]
            assert cli.run(words) == 0
    for index in range(2):
        with api.edit("Node", f"node-{index}") as node:
            node["metadata"].setdefault("labels", {})["nvidia.com/gpu.product"] = "Z9"
            node["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.1"}]
    with api.edit("MPIJob", "demo") as job:
        job["metadata"]["annotations"]["modelSource"] = "git"
        job["metadata"]["labels"] |= {"modelName": "m", "modelVersion": "1"}
        template = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
        template["spec"]["priorityClassName"] = "high"
    _measured(api)
    cluster.finish("broken", 3)
    cluster.settle()
    cluster.operates = False
    assert cli.run(["submit", "mpi", "--name=bare", *base, "true"]) == 0
    yield api, config
    assert not api.crashes
    api.close()


def _measured(api: FakeApi) -> None:
    """A Prometheus that knows what the GPUs of a job do."""
    api.add(
        {
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {
                "name": "prometheus",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": "prometheus-server"},
            },
            "spec": {"ports": [{"port": 9090}]},
        }
    )
    prometheus = api.behind["default", "prometheus"] = FakePrometheus()
    prometheus.arenas("demo-worker-0", "node-0", (0, 50.0, 1024))
    prometheus.dcgms("node-1", (0, 50.0, 1024))


def _claim() -> dict[str, Any]:
    return {
        "metadata": {"name": "data", "annotations": {"description": "d", "owner": "o"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    }


def check(out: str, err: str) -> None:
    """Nothing in it moves a cursor, and all of its lines are ours."""
    for text in (out, err):
        plain = OUR_COLOURS.sub("", text)
        assert OBEYED.search(plain.replace("\t", "")) is None, repr(plain)
        assert FORGED.search(plain) is None, plain
        assert "made a mistake" not in plain


@pytest.mark.parametrize(
    ("kept", "colour"),
    [
        pytest.param(NAMES | WORKING, "always", id="fields"),
        pytest.param(NAMES, "auto", id="everything"),
        pytest.param(NAMES | WORKING, "auto", id="fields-plain", marks=pytest.mark.exhaustive),
        pytest.param(NAMES, "always", id="everything-coloured", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("words", LOOKING.values(), ids=LOOKING)
def test_no_text_of_the_cluster_is_obeyed_by_a_terminal(
    words: list[str],
    kept: set[str],
    colour: str,
    world: tuple[FakeApi, str],
    capfd: pytest.CaptureFixture[str],
):
    api, config = world
    more = ["true"] if words[0] in {"plan", "submit"} else []
    capfd.readouterr()
    api.rewrites = hostile(kept)
    api.warnings = [re.sub(r"[\r\n]", " ", EVIL).encode("ascii", "ignore").decode()]
    try:
        cli.run([words[0], "--kubeconfig", config, f"--color={colour}", *words[1:], *more])
    finally:
        api.rewrites, api.warnings = None, []
    out, err = capfd.readouterr()
    check(out, err)
    assert out or err
    if words[-1] == "json" and out:
        json.loads(out)
    if words[-1] == "yaml" and out:
        yaml.safe_load(out)


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = cli.run([words[0], "--color=never", *words[1:]])
    out, err = capfd.readouterr()
    check(out, err)
    return code, out, err


def refused(message: str) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "message": message}).encode()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 500])
def test_a_refusal_of_the_server_is_one_line(
    status: int, world: tuple[FakeApi, str], capfd: pytest.CaptureFixture[str]
):
    api, config = world
    api.fail("mpijobs", status=status, body=refused(f"no{EVIL}"), times=9)
    try:
        code, out, err = run(capfd, "list", "--kubeconfig", config, "--request-timeout=2s")
    finally:
        api.faults.clear()
    assert code in {1, 4}
    assert out == ""
    assert "no\\x1b]0;PWN" in err


def test_a_long_message_of_the_server_is_shortened_and_whole_for_who_debugs(
    world: tuple[FakeApi, str], capfd: pytest.CaptureFixture[str]
):
    api, config = world
    words = ["list", "--kubeconfig", config]
    for level, whole in (("info", False), ("debug", True)):
        api.fail("mpijobs", status=400, body=refused("word " * 600 + "END"))
        code, _, err = run(capfd, *words, f"--loglevel={level}")
        assert code == 1
        assert "... (2503 more characters)" in err
        assert ("END" in err) is whole
    longest = max(len(line) for line in err.splitlines() if line.startswith("error:"))
    assert longest < 600


def test_warnings_of_the_server_are_one_line(
    world: tuple[FakeApi, str], capfd: pytest.CaptureFixture[str]
):
    api, config = world
    api.warnings = ["old\x1b[2J \x9b31m"]
    words = ["submit", "mpi", "--kubeconfig", config, "--name=n", "--image=i", "--workers=1"]
    try:
        code, _, err = run(capfd, *words, "--dry-run=server", "true")
    finally:
        api.warnings = []
    assert code == 0
    assert "warning: old\\x1b[2J \\x9b31m" in err


def test_what_prometheus_says_is_no_order(
    world: tuple[FakeApi, str], capfd: pytest.CaptureFixture[str]
):
    api, config = world
    prometheus = api.behind["default", "prometheus"]
    prometheus.broken = {"status": "error", "error": f"no{EVIL}{'long ' * 600}"}
    try:
        _, _, err = run(capfd, "top", "node", "-d", "--metric", "--kubeconfig", config)
    finally:
        prometheus.broken = None
    assert "no\\x1b]0;PWN" in err
    assert max(map(len, err.splitlines())) < 700


def test_what_a_plugin_says_is_no_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = tmp_path / "plugin"
    script.write_text(f"#!/usr/bin/env python3\nimport sys\nsys.exit({EVIL!r} + 'long ' * 600)\n")
    script.chmod(0o700)
    version = "client.authentication.k8s.io/v1"
    for command, said in ((str(script), "\\x1b]0;PWN"), ("no-such-plugin", "get it\\x1b]0;PWN")):
        user = {"exec": {"apiVersion": version, "command": command, "installHint": f"get it{EVIL}"}}
        config = kubeconfig(tmp_path / "config", "http://127.0.0.1:1", user=user)
        code, _, err = run(capfd, "list", "--kubeconfig", config)
        assert code in {2, 4}
        assert said in err
        assert max(map(len, err.splitlines())) < 700


def test_keys_of_a_job_file_are_no_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"name": "x", "image": "i", f"key{EVIL}": 1}))
    code, _, err = run(capfd, "plan", "mpi", "-f", str(path), "--backend=local")
    assert code == 2
    assert "\\x1b]0;PWN" in err


LOG = (
    b"\x1b[32mepoch 1\x1b[0m\r50 %\n\x1b]0;PWN\x07\x1b]52;c;cHdu\x07\x1b]8;;http://x\x1b\\link\n"
    b"\x1bP+q544e\x1b\\ \x1b[2J\x1b[1A\x1bc \x9b31m \xc2\x9b31m"
    b" \xe2\x80\xaeback\xe2\x81\xa9 \x08\x08\x07\n\x1b[8mhidden\x1b[38;5;9;8mred \xff"
)
"""Colours, a bar; what writes titles, clipboards and links; clears, moves, turns, rings, hides."""

LOG_SEEN = (
    b"\r50 %\n\\x1b]0;PWN\\x07\\x1b]52;c;cHdu\\x07link\n"
    b"\\x1bP+q544e\\x1b\\ \\x1b[2J\\x1b[1A\\x1bc \xef\xbf\xbd31m \\x9b31m \\u202eback\\u2069"
    b" \\x08\\x08\\x07\n"
)


@pytest.mark.parametrize(
    ("colour", "first", "last"),
    [
        ("never", b"epoch 1", b"hiddenred \xef\xbf\xbd"),
        (
            "always",
            b"\x1b[32mepoch 1\x1b[0m",
            b"hiddenred \xef\xbf\xbd",
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_of_a_log_a_terminal_obeys_colours_and_bars_alone(
    colour: str, first: bytes, last: bytes, size: int
):
    log = LogText(colours=colour == "always")
    seen = b"".join(log.feed(LOG[at : at + size]) for at in range(0, len(LOG), size)) + log.end()
    assert seen == first + LOG_SEEN + last


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"\x1b[1;31mx", "\x1b[1;31mx\x1b[0m"),
        (b"\x1b[1;5;8;31mx", "x"),
        (b"\x1b[38;2;1;2;3mx\x1b[m", "\x1b[38;2;1;2;3mx\x1b[m"),
        (b"\x1b[48:2::1:2:3mx\x1b[0m", "\x1b[48:2::1:2:3mx\x1b[0m"),
        (b"\x1b[38;9;31mx", "x"),
        (b"\x1b[11mx", "x"),
        (b"\x1b[" + b"1;" * 40 + b"1mx", "\\x1b[" + "1;" * 40 + "1mx"),
        (b"a\x1b[", "a\\x1b["),
        (b" 0%\r 50%\r\x1b[2K100%\r", "100%"),
        (b"windows\r", "windows"),
        (b"\r", ""),
        (b"\x1b[?25l\x1b[2Kx\x1b[?25h\x1b[?2004h\x1b[?2026l", "x"),
        (b"\x1b[?1049hx\x1b[?25x\x1b[25l", "\\x1b[?1049hx\\x1b[?25x\\x1b[25l"),
        (b"a \x1b]8;id=1;http://x\x07link\x1b]8;;\x07 b", "a link b"),
        (b"\x1b]8;;http://x", "\\x1b]8;;http://x"),
        (b"\x1b]8;;" + b"x" * 3000 + b"\x07y", "\\x1b]8;;" + "x" * 3000 + "\\x07y"),
    ],
)
def test_a_line_keeps_what_is_harmless_of_its_colours(line: bytes, seen: str):
    assert log_line(line, colours=True) == seen


parts = st.sampled_from(
    [
        *(b"\x1b", b"[", b"3", b";", b"1", b"m", b"K", b"0", b"\r", b"\n", b"\t", b"x", b"\x9b"),
        *("é".encode(), "東".encode(), "🚀".encode(), b"\xff", b"\xe2", b"\x80", b"\xae", b"\x07"),
        *(b"\x1b[31m", b"\x1b[0m", b"\x1b[K", b"\x1b[2J", b"\xc2\x85", b"\xed\xa0\x80"),
        *(b"?", b"2", b"5", b"h", b"]", b"8", b"\\", b"\x1b[?25l", b"\x1b]8;;", b"\x1b\\"),
    ]
)
logs = st.lists(parts, max_size=30).map(b"".join) | st.binary(max_size=40)
KEPT = re.compile("\x1b\\[[0-9;:]*m|\x1b\\[[0-2]?K|\r")


@given(logs, st.booleans(), st.lists(st.integers(0, 60), max_size=6))
def test_however_a_log_is_cut_the_same_of_it_is_shown(log: bytes, colours: bool, cuts: list[int]):  # noqa: FBT001
    whole = LogText(colours=colours)
    wanted = whole.feed(log) + whole.end()
    text = LogText(colours=colours)
    places = [0, *sorted(cuts), len(log)]
    seen = b"".join(text.feed(log[a:b]) for a, b in pairwise(places))
    assert seen + text.end() == wanted
    rest = KEPT.sub("", wanted.decode()) if colours else wanted.decode().replace("\r", "")
    assert OBEYED.search(rest.replace("\t", "")) is None
    assert wanted.count(b"\n") == log.count(b"\n")
    if ordinary(log, returns=True):
        assert wanted == log


@given(logs, st.booleans())
def test_a_line_of_a_log_moves_nothing_and_leaves_no_colour_behind(log: bytes, colours: bool):  # noqa: FBT001
    line = log_line(log.replace(b"\n", b""), colours=colours)
    looks = re.findall("\x1b\\[[0-9;:]*m", line)
    assert colours or not looks
    assert not looks or looks[-1] == "\x1b[0m"
    assert OBEYED.search(re.sub("\x1b\\[[0-9;:]*m", "", line).replace("\t", "")) is None


def test_a_colour_of_a_log_ends_with_its_line():
    log = LogText(colours=True)
    assert log.feed(b"\x1b[31mred\nplain\x1b[") == b"\x1b[31mred\x1b[0m\nplain"
    assert log.feed(b"32mgreen") == b"\x1b[32mgreen"
    assert log.feed(b" still\nplain\n") == b" still\x1b[0m\nplain\n"
    assert log.feed(b"\x1b[1mbold") + log.end() == b"\x1b[1mbold\x1b[0m"


def test_a_sequence_without_an_end_holds_nothing_up():
    log = LogText(colours=True)
    assert log.feed(b"\x1b[" + b"1;" * 10_000)
    assert len(log.end()) < 100


def test_a_log_of_binary_data_takes_no_call_for_each_character():
    data = bytes(200_000)

    def seconds(work: Callable[[], object]) -> float:
        def once() -> float:
            begun = time.process_time()
            work()
            return time.process_time() - begun

        return min(once() for _ in range(3))

    calls = seconds(lambda: re.sub(b"\0", lambda match: repr(match[0]).encode(), data))
    assert seconds(lambda: LogText(colours=False).feed(data)) < calls / 2
    assert seconds(lambda: log_line(data, colours=True)) < calls / 2


anything = st.text(st.characters(exclude_categories=()), max_size=30)


@given(anything)
def test_escaped_text_has_nothing_that_a_terminal_obeys_and_keeps_its_lines(text: str):
    done = escaped(text)
    assert OBEYED.search(done.replace("\t", "")) is None
    assert done.count("\n") == text.count("\n")
    assert not any("\ud800" <= one <= "\udfff" for one in done)


@given(anything)
def test_a_line_is_one_line_and_all_of_it_can_be_seen(text: str):
    done = one_line(text)
    assert done.isprintable()
    assert len(done.splitlines()) <= 1
    assert one_line(done) == done


def test_ordinary_text_is_not_touched():
    text = "Grüße, 東京 🚀 — 50 %"
    assert escaped(text) == one_line(text) == brief(text) == text
    assert brief("x" * 500) == "x" * 500


@given(st.dictionaries(anything, anything | st.lists(anything, max_size=3), max_size=3))
def test_documents_mean_what_they_meant_and_no_terminal_obeys_them(value: dict[str, Any]):
    written = layout.go_json(value)
    assert OBEYED.search(written) is None
    assert json.loads(written) == value
    assert json.loads(manifests_json([value])) == value


visible = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(st.dictionaries(visible, visible, max_size=3))
def test_yaml_means_what_it_meant_and_no_terminal_obeys_it(value: dict[str, str]):
    for written in (layout.go_yaml(value), manifests_yaml([value])):
        assert OBEYED.search(written) is None
        assert yaml.safe_load(written) == value


def test_an_error_is_four_lines_at_most():
    error = ArenaError(f"what{EVIL}", why=f"why{EVIL}", hint=f"hint{EVIL}")
    error.notes = (f"note{EVIL}",)
    starts = [line[:8] for line in plain(layout.error_text(error)).splitlines()]
    assert starts == ["note: no", "error: w", "  why:  ", "  try:  "]


TOLD = "STATUS\n\x1b[2Jok\x9b31m\u202e\ud800\r\tend"
SEEN = "STATUS\n\\x1b[2Jok\\x9b31m\\u202e\\ud800\\r\tend"


@pytest.mark.parametrize("hand_over", [Console.write, Console.screen])
def test_whatever_is_shown_is_escaped(
    hand_over: Callable[[Console, str], None], capfd: pytest.CaptureFixture[str]
):
    hand_over(Console(), TOLD)
    assert capfd.readouterr().out == SEEN


def test_whatever_is_said_is_escaped(capfd: pytest.CaptureFixture[str]):
    console = Console()
    console.info(TOLD)
    console.event(TOLD)
    assert capfd.readouterr().err == f"{SEEN}\n{one_line(TOLD)}\n"


def test_only_our_own_colours_are_left(capfd: pytest.CaptureFixture[str]):
    console = Console()
    console.colour = Colour.ALWAYS
    said = f"{layout.Styled('error:', layout.Style.ERROR)} {TOLD}"
    console.screen(said)
    console.info(said)
    for text in capfd.readouterr():
        assert OUR_COLOURS.sub("", text).rstrip("\n") == f"error: {SEEN}"
        assert "\x1b[1;31merror:\x1b[0m" in text


def test_a_live_screen_is_escaped_before_it_is_painted():
    stream = io.StringIO()
    with live.live(Console(), stream, lambda _columns: TOLD):
        pass
    shown = stream.getvalue()
    assert SEEN.partition("\t")[0] in shown
    assert not [one for one in ("\x1b[2J", "\x9b", "\u202e") if one in shown]
