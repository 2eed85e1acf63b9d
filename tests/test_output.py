"""What people and programs are shown, compared whole with the files in `screens/`."""

import json
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from plain_text import plain
from replacing import replace

from arena_topo import layout
from arena_topo.drawing import tables
from arena_topo.engines import Event, Instance, JobStatus, Phase
from arena_topo.errors import ArenaError
from arena_topo.jobs import view
from arena_topo.manifests import Binding, Guarantee, PlacementForecast, estimates
from arena_topo.manifests.cause import in_words
from arena_topo.manifests.forecast import Move
from arena_topo.manifests.serialize import kubectl_name
from arena_topo.solver import Reason, Refusal, Unplaceable, Verdict
from arena_topo.topology import GPU, NIC, SYS, Link, LinkKind, Machine

SCREENS = Path(__file__).parent / "screens"

CREATED = 1795244400.0  # 2026-11-21 07:00:00 UTC


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def screen(name):
    return (SCREENS / name).read_text(encoding="utf-8")


def launcher(suffix="-x7k2p", **more):
    facts = {
        "name": f"mpi-dist-launcher{suffix}",
        "status": "Running",
        "created": CREATED,
        "started": CREATED,
        "chief": True,
        "node": "node-a",
        "node_ip": "10.0.0.1",
    }
    return Instance(**{**facts, **more})


def worker(index, **more):
    facts = {
        "name": f"mpi-dist-worker-{index}",
        "status": "Running",
        "created": CREATED,
        "started": CREATED,
        "worker": index,
        "gpus": 2,
        "node": "node-a",
        "node_ip": "10.0.0.1",
    }
    return Instance(**{**facts, **more})


def mpi_dist(phase, *instances, **more):
    facts = {
        "uid": "6c0f0a2e-0000-4000-8000-000000000001",
        "name": "mpi-dist",
        "namespace": "default",
        "created": CREATED,
        "request_gpus": 4,
    }
    return JobStatus(phase=phase, instances=instances, **{**facts, **more})


RUNNING = mpi_dist(
    Phase.RUNNING,
    launcher(),
    worker(0),
    worker(1, node="node-b", node_ip="10.0.0.2"),
    allocated_gpus=4,
)
SUCCEEDED = mpi_dist(
    Phase.SUCCEEDED,
    launcher(
        suffix="-6fwhd",
        status="Completed",
        ip="172.27.0.10",
        created=CREATED + 17,
        started=CREATED + 17,
        finished=CREATED + 618,
    ),
    finished=CREATED + 618,
)
PENDING = mpi_dist(
    Phase.PENDING,
    worker(0, status="Pending", started=None, pending=True, node=None, node_ip=None),
    # Bound already, but not started: still shown without a node, as arena does.
    worker(1, status="ContainerCreating", started=None, pending=True, node="node-b"),
)
PLACED = PlacementForecast(
    state="placed",
    workers=((2, "dgx-0", (1, 2)), (0, "dgx-0", (0, 3)), (1, "dgx-10", ())),
    bus_bandwidth=230.4,
    usable=46.5,
    low=40.0,
    high=50.0,
    regime="several-hosts",
    limited_by="NICs",
    tier="leaf",
    binding="template",
    guarantee="node",
    optimal=False,
    bound=92.9,
    emulated=True,
)


def test_a_running_job_looks_as_arena_shows_it():
    assert plain(view.job_text(RUNNING, now=CREATED + 130)) == screen("get-running.txt")


def test_the_run_time_counts_from_the_first_pod_that_started():
    waited = mpi_dist(
        Phase.RUNNING,
        launcher(started=CREATED + 40),
        worker(0, started=CREATED + 10),
        worker(1, started=CREATED + 25),
    )
    assert view.job_value(waited, now=CREATED + 130)["runTime"] == "120s"
    header, row = view.jobs_table([waited], now=CREATED + 130, wide=True).splitlines()
    assert row[header.index("RUNTIME") :].split()[0] == "2m"


def test_gpus_are_shown_after_the_instances_when_asked_for():
    assert plain(view.job_text(RUNNING, now=CREATED + 130, gpus=True)) == screen(
        "get-running-gpus.txt"
    )


def test_gpus_are_not_shown_of_a_job_that_succeeded():
    assert plain(view.job_text(SUCCEEDED, now=CREATED + 9999, gpus=True)) == screen(
        "get-succeeded.txt"
    )


def test_events_of_each_pod_form_a_group_that_an_empty_line_closes():
    events = (
        Event(
            source="pod/mpi-dist-worker-1",
            kind="Normal",
            when=CREATED + 2,
            reason="Scheduled",
            message="Successfully assigned default/mpi-dist-worker-1 to node-b",
        ),
        Event(
            source="pod/mpi-dist-worker-0",
            kind="Warning",
            when=CREATED,
            reason="FailedScheduling",
            message="0/2 nodes are available:\n2 Insufficient nvidia.com/gpu.",
        ),
        Event(
            source="pod/mpi-dist-worker-1",
            kind="Normal",
            when=CREATED + 3,
            reason="Pulling",
            message='Pulling image "img"',
        ),
    )
    shown = plain(view.job_text(PENDING, now=CREATED + 11, events=events))
    assert shown == screen("get-pending-events.txt")


def test_a_job_without_events_says_so():
    shown = plain(view.job_text(PENDING, now=CREATED + 11, events=()))
    assert shown.endswith("\nEvents:\n  No events for resources\n")


def test_json_has_arenas_keys_in_arenas_order_and_then_ours():
    shown = layout.go_json(view.job_value(SUCCEEDED, now=CREATED + 9999))
    assert shown == screen("get-succeeded.json")


def test_yaml_spells_the_keys_as_arena_does():
    value = view.job_value(SUCCEEDED, now=CREATED + 9999)
    assert layout.arena_document(value, yaml=True) == screen("get-succeeded.yaml")


def test_a_placed_job_shows_its_ranks_after_its_instances_sorted_as_people_count():
    def pod(name, node, **more):
        return Instance(
            name=name, status="Running", created=CREATED, started=CREATED, node=node, **more
        )

    status = mpi_dist(
        Phase.RUNNING,
        pod("demo-worker-10", "dgx-0", gpus=2),
        pod("demo-worker-2", "dgx-10", gpus=2),
        pod("demo-worker-0", "dgx-0", gpus=2),
        Instance(
            name="demo-launcher",
            status="Running",
            created=CREATED + 1,
            started=CREATED + 2,
            chief=True,
            node="dgx-0",
        ),
        name="demo",
        request_gpus=6,
        allocated_gpus=6,
        forecast=PLACED,
        tensorboard="http://10.0.0.1:32100",
    )
    assert plain(view.job_text(status, now=CREATED + 5)) == screen("get-placed.txt")


def test_a_placement_in_json_is_whole_numbers_without_a_point_and_workers_by_index():
    assert layout.go_json(view.placement_value(PLACED, slots=2)) == screen("get-placed.json")


def test_a_waiting_job_says_why_in_the_place_of_its_placement():
    status = mpi_dist(
        Phase.PENDING,
        name="fifth",
        priority="high",
        reason="4 GPUs are wanted,\n2 are free",
        forecast=PlacementForecast(state="waiting"),
    )
    assert plain(view.job_text(status, now=CREATED + 3 * 3600)) == screen("get-waiting.txt")
    assert view.why_not_running(status) == "The Job fifth is PENDING: 4 GPUs are wanted, 2 are free"


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.SUCCEEDED])
def test_a_job_that_runs_or_has_run_is_in_no_trouble(phase):
    assert view.why_not_running(mpi_dist(phase, reason="x")) is None


def test_a_waiting_job_is_marked_emulated_as_well():
    status = mpi_dist(Phase.PENDING, forecast=PlacementForecast(state="waiting", emulated=True))
    assert plain(view.job_text(status, now=CREATED)).endswith(f"\n  {tables.EMULATED}\n")


def test_a_placement_of_one_gpu_has_no_bandwidth():
    one = PlacementForecast(
        state="placed", workers=((0, "n", (5,)),), binding="template", guarantee="gpus"
    )
    assert view.placement_value(one, slots=1)["busBandwidthGBps"] is None
    assert "bandwidth" not in view.placement_rows(one, "demo", slots=1)


@pytest.mark.parametrize(
    ("binding", "words", "doubt"),
    [
        ("admission", "an admission policy", "whether a policy places workers could not be tried"),
        (
            "claims",
            "resource claims",
            "whether workers get the claims that are meant for them could not be tried",
        ),
        ("gates", "scheduling gates", "whether workers may be patched could not be asked"),
    ],
)
def test_a_binding_that_nobody_could_try_is_shown_as_unconfirmed(binding, words, doubt):
    one = PlacementForecast(
        state="placed", workers=((0, "n", (5,)),), binding=binding, guarantee="gpus"
    )
    assert "unconfirmed" not in view.placement_rows(one, "demo", slots=1)
    shown = view.placement_rows(replace(one, confirmed=False), "demo", slots=1)
    said = f"  Guarantee: gpus, by {words}, unconfirmed: {doubt} (each worker gets these GPUs)\n"
    assert said in shown


def test_a_guarantee_of_a_later_version_is_shown_as_it_was_recorded():
    one = replace(PLACED, guarantee="device", binding="admission", emulated=False)
    status = mpi_dist(Phase.RUNNING, launcher(), name="demo", forecast=one)
    assert (
        "  Guarantee: device, by an admission policy"
        " (this version of arena-topo does not know what that means)\n"
    ) in view.job_text(status, now=CREATED + 5)


def test_a_placement_that_is_not_confirmed_is_shown_whole():
    status = mpi_dist(
        Phase.RUNNING,
        launcher(),
        name="demo",
        forecast=replace(PLACED, binding="admission", confirmed=False, emulated=False),
    )
    assert plain(view.job_text(status, now=CREATED + 5)) == screen("get-unconfirmed.txt")


def test_json_says_of_every_guarantee_whether_it_is_confirmed():
    waits = PlacementForecast(state="waiting")
    found = [PLACED, replace(PLACED, confirmed=False), waits]
    values = [view.placement_value(one, slots=2)["confirmed"] for one in found]
    assert values == [True, False, None]


def test_a_bandwidth_that_is_not_proven_says_what_could_be_possible():
    found = PlacementForecast(
        state="placed",
        workers=((0, "n", (0, 1)),),
        bus_bandwidth=38.4,
        usable=38.4,
        low=36.2,
        high=40.8,
        regime="nvlink-mesh",
        limited_by="NVLinks",
        tier="node",
        optimal=False,
        bound=76.8,
    )
    shown = view.placement_rows(found, "demo", slots=2)
    assert (
        "  Bus bandwidth: 38.4 GB/s (36.2 to 40.8), limited by the NVLinks inside one node"
        " (at most 76.8 GB/s is possible)\n"
    ) in shown


def test_a_record_without_range_and_bottleneck_shows_its_bandwidth():
    found = PlacementForecast(
        state="placed", workers=((0, "n", (0, 1)),), bus_bandwidth=40.0, usable=40.0, tier="node"
    )
    assert "  Bus bandwidth: 40 GB/s\n" in view.placement_rows(found, "a", slots=2)
    assert view.placement_value(found, slots=2)["bandwidth"] is None


@pytest.mark.parametrize(
    ("regime", "limited_by", "tier", "nodes", "words"),
    [
        ("nvls", "NVLinks", "node", 1, "the NVLinks inside one node"),
        ("nvls", "NVLinks", "nvlink", 9, "the NVLinks within one NVLink domain"),
        ("bridged-pairs", "PCIe path", "node", 1, "the PCIe path between the bridged pairs of"),
        ("nvlink-without-ring", "PCIe path", "node", 1, "as no ring of NVLinks joins these GPUs"),
        ("host-staged", "host memory", "node", 1, "the host memory inside one node"),
        ("tcp", "network", "node", 1, "TCP between the pods of one node"),
        ("tcp", "network", "beyond", 2, "TCP between 2 nodes"),
        ("two-hosts", "NICs", "leaf", 2, "the NICs between 2 nodes within one leaf"),
        ("several-hosts", "network", "leaf", 3, "the network between 3 nodes within one leaf"),
        ("two-hosts", "one host inside", "leaf", 2, "the links inside each host"),
        ("telepathy", "minds", "leaf", 2, "the minds within one leaf"),
    ],
)
def test_what_limits_a_bandwidth_is_said_in_words(regime, limited_by, tier, nodes, words):
    assert words in estimates.bottleneck_text(regime, limited_by, tier=tier, nodes=nodes)


def test_a_network_whose_speed_nobody_gave_is_said_to_be_assumed_wherever_a_placement_is_shown():
    found = PlacementForecast(
        state="placed",
        workers=((0, "n", (0,)), (1, "m", (0,))),
        bus_bandwidth=0.8,
        usable=0.8,
        low=0.4,
        high=1.6,
        regime="tcp",
        limited_by="network",
        tier="beyond",
        optimal=True,
        bound=0.8,
        assumed=True,
        guess=True,
    )
    shown = view.placement_rows(found, "demo", slots=1)
    proof = "proven best for an assumed network"
    assert f"GB/s (0.4 to 1.6) assumed, limited by TCP between 2 nodes ({proof})\n" in shown
    assert view.placement_value(found, slots=1)["assumed"] is True
    assert view.placement_value(replace(found, assumed=False), slots=1)["assumed"] is False


def test_the_list_counts_allocated_gpus_only_of_jobs_that_hold_or_want_them():
    shown = plain(view.jobs_table((RUNNING, SUCCEEDED, PENDING), now=CREATED + 130))
    assert shown == screen("list.txt")


def test_the_wide_list_adds_our_columns_after_arenas():
    waits = replace(PENDING, reason="2 workers x 2 GPUs cannot be placed now")
    placed = replace(RUNNING, forecast=PLACED)
    shown = plain(view.jobs_table((placed, SUCCEEDED, waits), now=CREATED + 130, wide=True))
    assert shown == screen("list-wide.txt")
    narrow = plain(view.jobs_table((placed, SUCCEEDED, waits), now=CREATED + 130)).splitlines()
    for line, arenas in zip(shown.splitlines(), narrow, strict=True):
        assert line.split()[:7] == arenas.split()


def test_the_list_of_all_namespaces_names_them_first():
    shown = plain(
        view.jobs_table((RUNNING, SUCCEEDED, PENDING), now=CREATED + 130, namespaces=True)
    )
    assert shown == screen("list-all-namespaces.txt")


def test_an_empty_list_is_the_header_alone():
    header = "NAME  STATUS  TRAINER  DURATION  GPU(Requested)  GPU(Allocated)  NODE\n"
    assert view.jobs_table((), now=CREATED) == header


def test_a_machine_is_shown_as_its_matrix_with_nics_and_numa_nodes():
    pair = Link(kind=LinkKind.NVLINK, lanes=2)
    machine = Machine(
        name="m",
        gpus=(GPU(index=0, numa=0), GPU(index=1)),
        links=((None, pair), (pair, None)),
        nics=(NIC(name="mlx5_0", attachment=(Link(kind=LinkKind.PIX), SYS)),),
    )
    assert tables.matrix_table(machine) == screen("matrix.txt")
    assert tables.machine_value(machine) == {
        "name": "m",
        "gpus": [
            {"index": 0, "uuid": None, "model": None, "numa": 0},
            {"index": 1, "uuid": None, "model": None, "numa": None},
        ],
        "nics": [{"name": "mlx5_0", "attachment": ["PIX", "SYS"], "speedGBps": None}],
        "nicsAssumed": None,
        "links": [["X", "NV2"], ["NV2", "X"]],
        "nvswitch": False,
        "pcieGeneration": None,
        "knowledge": "measured",
    }


def test_a_clock_that_was_set_back_leaves_no_invalid_duration():
    begun = mpi_dist(Phase.RUNNING)
    for status, now in (
        (begun, CREATED - 3600),
        (replace(begun, phase=Phase.SUCCEEDED, finished=CREATED - 3600), CREATED),
    ):
        shown = view.job_text(status, now=now) + view.jobs_table([status], now=now)
        assert "invalid" not in shown
        assert "  0s  " in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1.5, "<invalid>"),
        (-0.5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h"),
        (86399, "23h"),
        (86400, "1d"),
        (364 * 86400, "364d"),
        (365 * 86400, "1y"),
        (800 * 86400, "2y"),
    ],
)
def test_a_duration_has_one_unit_and_is_cut_off(seconds, shown):
    assert layout.duration(seconds) == shown


def test_a_column_is_as_wide_as_the_neighbouring_lines_that_have_it():
    lines = ["a\tb\tc", "aaaa\tb", "x", "long-one\ty", "\tz"]
    assert layout.align(lines) == "a     b  c\naaaa  b\nx\nlong-one  y\n          z\n"


def test_an_empty_last_cell_leaves_the_padding_of_the_cell_before():
    assert layout.align(["k:\t", "key:\tv"]) == "k:    \nkey:  v\n"


def test_rows_of_a_table_that_is_too_wide_go_on_at_the_same_column():
    screen = layout.align(
        (
            "NAME\tSTATUS\tDURATION\tNODE\tREASON",
            "a-long-name\tPENDING\t1s\tN/A\tanother one has waited longer",
            "b\tRUNNING\t10s\tnode-0\t",
        )
    )
    assert layout.fold_text(f"Jobs:\n\n{screen}", 36).splitlines() == [
        "Jobs:",
        "",
        "NAME         STATUS   DURATION",
        "  NODE    REASON",
        "a-long-name  PENDING  1s",
        "  N/A     another one has waited",
        "    longer",
        "b            RUNNING  10s",
        "  node-0",
    ]
    assert layout.fold_text(screen, 28).splitlines()[:3] == [
        "NAME         STATUS",
        "  DURATION  NODE",
        "    REASON",
    ]
    matrix = "      GPU0  GPU1  GPU2\nGPU0  X     NV1   NV2\nGPU1  NV1   X     SYS\n"
    assert layout.fold_text(matrix, 20) == (
        "      GPU0  GPU1\n  GPU2\nGPU0  X     NV1\n  NV2\nGPU1  NV1   X\n  SYS\n"
    )
    assert layout.fold_text(screen, 200) == layout.fold_text(screen, None) == screen


@given(st.lists(st.lists(st.text(alphabet="ab c", max_size=6), min_size=1, max_size=5), max_size=8))
def test_alignment_never_loses_or_reorders_a_cell(rows):
    shown = layout.align("\t".join(row) for row in rows).splitlines()
    assert len(shown) == len(rows)
    for line, row in zip(shown, rows, strict=True):
        at = 0
        for cell in row:
            found = line.find(cell, at)
            assert found >= at
            at = found + len(cell)
        assert line.replace(" ", "") == "".join(row).replace(" ", "")


def test_json_escapes_what_go_escapes():
    shown = layout.go_json({"a": "<b> & 'c' \"d\" é \u2028"})
    assert shown == '{\n    "a": "\\u003cb\\u003e \\u0026 \'c\' \\"d\\" é \\u2028"\n}'


@given(st.text())
def test_json_of_any_text_reads_back_the_same(text):
    assert json.loads(layout.go_json([text])) == [text]


# Characters that YAML cannot hold unescaped make PyYAML's own emitter quote them.
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs",))))
@example("\x85")
@example("a\n\u2028b")
def test_yaml_of_any_text_reads_back_the_same(text):
    assert yaml.safe_load(layout.go_yaml({"key": text})) == {"key": text}


@pytest.mark.parametrize("word", ["", "true", "null", "yes", "12", "1.5", "~"])
def test_yaml_puts_words_with_another_meaning_into_double_quotes(word):
    assert layout.go_yaml({"key": word}) == f'key: "{word}"\n'


def test_a_complaint_says_what_why_and_what_to_try():
    error = ArenaError("it broke", why="it was old", hint="a new one")
    assert (
        plain(layout.error_text(error)) == "error: it broke\n  why:  it was old\n  try:  a new one"
    )


def test_objects_are_named_as_kubectl_names_them():
    job = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "x"}}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x-mpijob"}}
    assert kubectl_name(job) == "mpijob.kubeflow.org/x"
    assert kubectl_name(files) == "configmap/x-mpijob"


# ---------------------------------------------------------------- refusals, and narrow screens


def test_a_refusal_names_its_reasons_in_one_line_and_oddities_of_the_cluster_as_notes():
    error = Unplaceable(
        "2 workers x 8 GPUs cannot be placed now",
        verdict=Verdict.NOT_NOW,
        refusals=(Refusal(reason=Reason.BUSY, nodes=2, example="a"),),
        nearest="fits now with --workers 1",
        notes=("node a: odd", "node b: odder"),
    )
    assert error.why == "2 nodes (a, ...): not enough free GPUs"
    assert plain(layout.error_text(error)) == (
        "note: node a: odd\n"
        "note: node b: odder\n"
        "error: 2 workers x 8 GPUs cannot be placed now\n"
        "  why:  2 nodes (a, ...): not enough free GPUs\n"
        "  try:  fits now with --workers 1"
    )


def test_on_a_narrow_terminal_the_least_important_columns_of_a_list_are_left_out():
    jobs = (replace(RUNNING, name="a-name-of-some-length"), SUCCEEDED, PENDING)
    narrow = {60: ("NAME", "STATUS", "GPU(Requested)"), 70: ("NAME", "STATUS", "DURATION")}
    for width, first in narrow.items():
        lines = plain(view.jobs_table(jobs, now=CREATED + 130, width=width)).splitlines()
        assert max(map(len, lines)) <= width
        assert tuple(lines[0].split()[:3]) == first
    whole = view.jobs_table(jobs, now=CREATED + 130)
    assert view.jobs_table(jobs, now=CREATED + 130, width=200) == whole
    one = view.job_text(RUNNING, now=CREATED + 130, width=64)
    assert "IS_CHIEF" not in one
    assert max(map(len, one.splitlines())) <= 64
    assert "IS_CHIEF" in view.job_text(RUNNING, now=CREATED + 130)
    wide = view.jobs_table(jobs, now=CREATED + 130, wide=True, width=80).splitlines()[0]
    assert wide.split()[-4:] == ["WORKERS", "NODES", "GB/s", "REASON"]
    assert "TRAINER" not in wide


def test_a_list_shows_the_planned_bandwidth_beside_the_worst():
    picked = replace(PLACED, planned=76.8, usable=9.97)
    job = replace(RUNNING, forecast=picked)
    shown = view.jobs_table((job,), now=CREATED + 130, wide=True)
    assert "76.8 planned, 9.97 at worst" in shown
    after = view.move(Move(before=PLACED, after=picked), "demo")
    assert "  replanned  planned 76.8 GB/s, at worst 9.97 GB/s" in after


def test_lines_go_on_below_where_a_screen_is_too_narrow_and_are_whole_elsewhere():
    binding = Binding(name="template", guarantee=Guarantee.NODE, why="because " * 20 + "of it")
    whole = view.placement_rows(PLACED, "demo", slots=2, binding=binding)
    assert max(map(len, whole.splitlines())) > 150
    assert layout.fold_text(whole, None) == whole
    narrow = layout.fold_text(whole, 60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert narrow.split() == whole.split()
    assert "\n  Why not a stronger guarantee: because" in narrow
    assert "\n    because because" in narrow


def test_a_reason_that_stands_in_the_placement_is_not_told_again():
    waits = mpi_dist(Phase.PENDING, reason="full", forecast=PlacementForecast(state="waiting"))
    assert view.shows_reason(waits)
    other = PlacementForecast(state="waiting", cause=in_words("2 GPUs are missing"))
    assert not view.shows_reason(mpi_dist(Phase.PENDING, reason="pulling images", forecast=other))
    assert not view.shows_reason(mpi_dist(Phase.PENDING, reason="full", forecast=PLACED))
    assert not view.shows_reason(mpi_dist(Phase.PENDING, reason="full"))
