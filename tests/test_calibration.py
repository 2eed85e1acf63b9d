"""Calibrations: what measured placements tell of a pool, what they do not, and who uses it."""

import csv
import io
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arena_topo import cli
from arena_topo.bandwidth import Host, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.errors import UsageError
from arena_topo.solver import Request
from arena_topo.solver.door import Solver
from arena_topo.topology import (
    Cluster,
    MeasuredRate,
    Node,
    NodeName,
    PoolRates,
    Software,
    documents,
    gpu_set,
    presets,
)
from arena_topo.topology import calibrated as calibrated_nodes
from arena_topo.topology.calibrations import NoCalibration, calibration_map, pool_in
from arena_topo.topology.published import config_map
from arena_topo.training import Span, Workload, all_reduce_time, step_time
from arena_topo.training.calibration import Kind, MeasuredPlacement, calibrate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import training_pools  # noqa: E402

T4 = training_pools.KNOWN["T4"].machine
BERT = Workload(name="bert", gradient_bytes=438_000_000, step=Span.exactly(0.9))


def bandwidth(*hosts, machine=T4, wire=Wire.TCP):
    nodes = [replace(machine, name=f"node-{at}") for at in range(len(hosts))]
    placed = [Host.of(node, gpu_set(range(gpus))) for node, gpus in zip(nodes, hosts, strict=True)]
    found = estimate(placed, wire=wire if len(hosts) > 1 else None)
    assert found is not None
    return found


def placement(*hosts, gbps=None, step=None, workload=BERT, machine=T4, wire=Wire.TCP):
    return MeasuredPlacement(
        where=f"line of {hosts}",
        hosts=hosts,
        estimate=bandwidth(*hosts, machine=machine, wire=wire),
        value=gbps if step is None else step,
        workload=None if step is None else workload,
    )


def stepping(*hosts, rate, floor, hidden, workload=BERT):
    """A placement whose step takes what a network of this rate gives."""
    reduce = all_reduce_time(workload.gradient_bytes, bandwidth(*hosts), rate)
    seconds = step_time(workload.step.value, reduce, floor, hidden)
    return placement(*hosts, step=seconds, workload=workload)


# ---------------------------------------------------------------- the fit


def test_measured_bandwidths_are_those_of_the_calibration():
    fit = calibrate([placement(4, 4, gbps=0.46), placement(4, 4, 4, gbps=0.8)])
    assert fit.rates[Kind.TWO].value == pytest.approx(0.46, rel=0.01)
    assert fit.rates[Kind.MORE].value == pytest.approx(0.8, rel=0.01)
    assert Kind.INSIDE not in fit.rates
    assert (fit.floor, fit.hidden) == (None, None)
    assert max(map(abs, fit.errors)) < 0.01


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0.3, 2.5),
    floor=st.floats(0.1, 1),
    hidden=st.floats(0, 0.5),
    step=st.floats(0.1, 1),
)
@example(rate=0.90308, floor=1.0, hidden=0.0, step=0.109375)
def test_the_ends_hold_the_rate_that_steps_were_made_of(rate, floor, hidden, step):
    workload = replace(BERT, step=Span.exactly(step))
    made = [
        stepping(*hosts, rate=rate, floor=floor, hidden=hidden, workload=workload)
        for hosts in ((1, 1, 1), (2, 2, 2), (4, 4, 4, 4))
    ]
    fit = calibrate(made)
    found = {**fit.rates, **fit.loose}[Kind.MORE]
    assert found.low <= rate <= found.high
    assert fit.hidden is not None
    assert found.low <= found.value <= found.high
    assert max(map(abs, fit.errors)) < 0.15


def test_steps_alone_do_not_tell_a_slow_network_from_little_overlap():
    steps = [stepping(*hosts, rate=0.6, floor=0.5, hidden=0.3) for hosts in ((1, 1, 1), (4, 4, 4))]
    alone = calibrate(steps)
    assert alone.floor is not None
    assert alone.floor.high - alone.floor.low >= 0.5
    both = calibrate([*steps, placement(4, 4, 4, gbps=0.6)])
    wide, narrow = (one.rates[Kind.MORE].high / one.rates[Kind.MORE].low for one in (alone, both))
    assert narrow < 0.8 * wide


def test_a_network_that_limits_nothing_stays_where_it_is_computed():
    fast = training_pools.KNOWN["DGX"].machine
    small = Workload(name="small", gradient_bytes=40_000_000, step=Span.exactly(1.0))
    steps = [
        placement(*hosts, step=1.0, workload=small, machine=fast, wire=Wire.RDMA)
        for hosts in ((8, 8), (4, 4))
    ]
    fit = calibrate(steps)
    assert Kind.TWO not in fit.rates
    assert Kind.TWO in fit.loose
    assert fit.reached == pytest.approx((1.0, 1.0), rel=0.02)


def test_nics_of_each_gpu_are_told_from_shared_ones_by_placements_of_both():
    fast = training_pools.KNOWN["DGX"].machine

    def fit(*rates):
        return calibrate(
            [
                placement(gpus, gpus, gpus, gbps=rate, machine=fast, wire=Wire.RDMA)
                for gpus, rate in rates
            ]
        )

    assert fit((8, 160), (2, 40)).each is True
    assert fit((8, 160), (2, 158)).each is False


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ([placement(4, 4, gbps=0.5)], "needs 2 placements"),
        ([placement(4, 4, gbps=0.5), placement(4, 4, gbps=0.51)], "needs 2 placements"),
        (
            [placement(4, 4, gbps=0.5), placement(4, 4, gbps=0.9), placement(4, gbps=9)],
            "line of (4, 4) and line of (4, 4) contradict each other",
        ),
        ([placement(4, step=0.5), placement(4, 4, step=2)], "shorter than that of 900 ms on one"),
        (
            [placement(4, 4, step=1.0), placement(4, 4, gbps=0.4), placement(4, gbps=9)],
            "is shorter than its all-reduce",
        ),
    ],
)
def test_what_cannot_be_is_named(measured, words):
    with pytest.raises(UsageError) as error:
        calibrate(measured)
    assert words in str(error.value)


# ---------------------------------------------------------------- published pools


@pytest.fixture(scope="module")
def pools():
    return training_pools.steps()


@pytest.mark.parametrize("pool", ["T4", "RTX"])
def test_eight_placements_of_a_training_tell_the_rest_of_a_pool(pools, pool):
    given_steps = pools[pool]
    chosen = training_pools.cover(pool, given_steps)
    assert len(chosen) == 8
    median, ninth = training_pools.calibrated(given_steps, chosen)
    assert median <= 0.12
    assert ninth <= 0.30
    assert len(given_steps) > 1000
    # Nothing measured is worse, so it is the calibration that helps.
    assert training_pools.errors(given_steps, (), None)[1] > ninth


def test_no_network_explains_the_steps_of_the_dgx_pool(pools):
    shorter = [
        step
        for step in pools["DGX"]
        if step.name == "resnet18-cifar" and step.measured.value < step.measured.workload.step.value
    ]
    own = [step for step in pools["DGX"] if step.name == "resnet18-cifar"]
    assert len(shorter) > 0.8 * len(own)


# ---------------------------------------------------------------- who uses it


POOL = PoolRates(
    name="t4",
    measured="2026-05-31, NCCL 2.21.5",
    model="T4",
    gpus=4,
    wire="tcp",
    inside=MeasuredRate(0.5, 0.4, 0.6),
    two=MeasuredRate(0.4, 0.38, 0.42),
    more=MeasuredRate(0.7, 0.6, 0.8),
    hosts=3,
)
CALIBRATED = replace(T4, software=Software(pool=POOL))


def test_a_calibrated_machine_has_its_measured_bandwidths():
    two, three = bandwidth(4, 4, machine=CALIBRATED), bandwidth(4, 4, 4, machine=CALIBRATED)
    assert (two.point, two.low, two.high) == (0.4, 0.38, 0.42)
    assert (three.point, three.guess, three.measured) == (0.7, False, str(POOL))
    inside = bandwidth(4, machine=CALIBRATED)
    assert inside.point == pytest.approx(0.5 * bandwidth(4).point)
    assert inside.measured == str(POOL)


def test_more_hosts_than_were_measured_are_said():
    assert bandwidth(1, 1, 1, machine=CALIBRATED).assumed == ()
    (note,) = bandwidth(1, 1, 1, 1, machine=CALIBRATED).assumed
    assert note == "4 hosts reach what 3 did, the most that were measured"


def test_what_a_calibration_did_not_measure_is_computed_and_said():
    without = replace(T4, software=Software(pool=replace(POOL, two=None)))
    found, computed = bandwidth(4, 4, machine=without), bandwidth(4, 4)
    assert (found.point, found.measured) == (computed.point, "")
    assert "calibration t4 has no job on 2 such hosts over TCP" in found.assumed
    other = replace(CALIBRATED, gpus=CALIBRATED.gpus[:2], links=tuple(r[:2] for r in T4.links[:2]))
    assert bandwidth(2, 2, machine=replace(other, nics=())).measured == ""


def test_pods_of_a_node_share_its_measured_network():
    nodes = [replace(CALIBRATED, name=f"node-{at}") for at in range(2)]
    pods = [Host.of(node, gpu_set([gpu])) for node in nodes for gpu in range(4)]
    found = estimate(pods, wire=Wire.TCP)
    assert found is not None
    assert found.point == pytest.approx(POOL.more.value / 4)


def test_a_search_takes_the_nodes_that_a_calibration_says_are_faster():
    nodes = tuple(
        Node(name=NodeName(f"n{at}"), machine=CALIBRATED, free=gpu_set(range(2 if at else 4)))
        for at in range(4)
    )
    found = Solver(Cluster(nodes=nodes)).find(Request(workers=6, gpus=1, joined=True))
    assert found is not None
    # Three nodes reach 0.7 GB/s, the two that would do only 0.4.
    assert len(found.nodes) == 3
    assert found.bandwidth is not None
    assert found.bandwidth.point == 0.7


def test_a_measured_network_draws_a_job_out_of_a_slower_node_and_an_assumed_one_does_not():
    def nodes_of(machine):
        nodes = [
            Node(name=NodeName(f"n{at}"), machine=machine, free=gpu_set(range(4)))
            for at in range(4)
        ]
        request = Request(workers=4, gpus=1, joined=True)
        found = Solver(Cluster(nodes=tuple(nodes))).find(request)
        assert found is not None
        return len(found.nodes)

    fast = replace(POOL, more=MeasuredRate(20, 18, 22), two=None)
    assert nodes_of(replace(T4, nics=(), software=Software(pool=fast))) == 4
    assert nodes_of(replace(T4, nics=())) == 1


def test_a_measured_network_counts_instead_of_the_computed_one_but_never_above_its_own_rate():
    """By its rate a network of 1.25 GB/s carries 0.65 over sockets, and never more than 1.25."""

    def reached(rate):
        pool = replace(POOL, more=MeasuredRate(rate, rate, rate))
        machine = replace(T4, nics=(), software=Software(pool=pool))
        nodes = tuple(
            Node(name=NodeName(f"n{at}"), machine=machine, free=gpu_set(range(4)))
            for at in range(3)
        )
        cluster = Cluster(nodes=nodes, beyond=1.25)
        found = Solver(cluster).find(Request(workers=12, gpus=1, joined=True))
        assert found is not None
        assert found.bandwidth is not None
        return found.bandwidth.point, found.proof.optimal

    assert reached(1.0) == (1.0, True)
    assert reached(3.0) == (1.25, True)


def test_the_rate_of_a_fast_network_takes_nothing_from_what_was_measured_over_unknown_nics():
    rate = MeasuredRate(60, 55, 65)
    pool = replace(POOL, wire="rdma", more=rate)
    machine = replace(T4, nics=(), pcie_generation=3, software=Software(pool=pool))
    hosts = [Host.of(replace(machine, name=f"n{at}"), gpu_set([0])) for at in range(3)]
    for network in (None, 200.0):
        found = estimate(hosts, wire=Wire.RDMA, network=network, nearer=200.0)
        assert found is not None
        assert (found.point, found.low, found.high) == (60, 55, 65)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"two": [3, 2, 1]}, "low <= value <= high"),
        ({"more": [0, 0, 0]}, "low <= value <= high"),
        ({"gpus": "four"}, "Expected `int`"),
        ({"measured": "today\x1b[31m"}, "name and measured are one line"),
        (None, "no ConfigMap"),
    ],
)
def test_an_invalid_calibration_is_named(change, words):
    document = calibration_map(POOL, {})
    assert pool_in(document) == POOL
    if change is None:
        document["data"] = {}
    else:
        value = json.loads(document["data"]["calibration"]) | change
        document["data"]["calibration"] = json.dumps(value)
    with pytest.raises(NoCalibration) as error:
        pool_in(document)
    assert words in str(error.value)


def test_a_table_of_measured_sets_has_its_day_beside_each_forecast():
    quad = presets.preset_machine("dgx-1-v100", "node-0")
    when = "2026-05-31, NCCL 2.21.5"
    quad = replace(quad, measured=((gpu_set(range(4)), 61.5),), measured_on=when)
    document = config_map(quad, quad.everything)
    assert document["data"]["busBandwidthMeasured"] == when
    read = documents.gpus_from_config_map(document).machine
    found = bandwidth(4, machine=read)
    assert (found.point, found.measured) == (61.5, f"measured {when}")
    # The equal machines of a cluster share the table and its day.
    other = Node(name=NodeName("b"), machine=replace(quad, measured=(), measured_on=""), free=0)
    own = Node(name=NodeName("a"), machine=quad, free=0)
    assert [node.machine.measured_on for node in calibrated_nodes((own, other))] == [when, when]
    # A newer table without a day does not take over that of the one before.
    newer = replace(quad, measured=((gpu_set(range(4)), 60.0),), measured_on="")
    data = documents.update_config_map(document, newer, newer.everything)["data"]
    assert "busBandwidthMeasured" not in data
    assert json.loads(data["busBandwidth"]) == {"0,1,2,3": 60.0}


# ---------------------------------------------------------------- the command


MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n"
LINE = ("calibrate", "pool.txt", "--gpu-model=T4", "--tcp", "--name=pool", "--date=2026-05-31")
STEPS = """\
placement,step_ms
1,455
1x2,480
2x1,1225
2x2,1800
3x2,1200
1+1+1,1110
"""


def log(ranks, rate, version="", product="Tesla T4"):
    lines = [f"# {version}"] if version else []
    lines += ["# Collective test starting: all_reduce_perf"]
    lines += [
        f"#  Rank  {at} Group  0 Pid  {at} on {host} device  0 [0000:0{at}:00] {product}"
        for at, host in enumerate(ranks)
    ]
    return "\n".join(
        [
            *lines,
            "#       size         count      type   redop    root     time   algbw  busbw #wrong",
            f"  1073741824     268435456     float     sum      -1   3941.0  272.45  {rate}      0",
            "# Avg bus bandwidth    : 1",
            "",
        ]
    )


@pytest.fixture
def arena(capfd, monkeypatch, tmp_path):
    """Run a command line among some files; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "pool.txt").write_text(MATRIX)
    (tmp_path / "steps.csv").write_text(STEPS)
    (tmp_path / "two.log").write_text(log("abab", 0.46, "NCCL version 2.21.5+cuda12.4"))
    (tmp_path / "three.log").write_text(log("abcabc", 0.8, "nccl-library=22105"))
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "status": {"allocatable": {"nvidia.com/gpu": "2"}, "capacity": {"nvidia.com/gpu": "2"}},
    }
    labels = {"nvidia.com/gpu.product": "Tesla-T4"}
    items = [node | {"metadata": {"name": f"n{at}", "labels": labels}} for at in range(3)]
    (tmp_path / "state.json").write_text(json.dumps({"kind": "List", "items": items}))

    def run(*argv):
        capfd.readouterr()
        code = cli.run(argv)
        return code, *capfd.readouterr()

    return run


def test_a_calibration_of_steps_says_how_well_it_fits_and_what_is_open(arena):
    code, out, err = arena(*LINE, "--measured=steps.csv", "--workload=bert-base-squad")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == (
        "pool: 2 x T4 per node, measured 2026-05-31, NCCL unknown (calibration pool)"
    )
    words = " ".join(out.split())
    for part in (
        "Two hosts 0.",
        "Three and more hosts 0.",
        "Overlap waits for 0.",
        "median error",
        "Not told",
        "Measure next all_reduce_perf inside one host, now known as",
        "3x1 1.11 s",
    ):
        assert part in words
    assert len(out[out.index("PLACEMENT") :].splitlines()) == 1 + 5


def test_a_calibration_of_logs_has_the_version_of_nccl(arena):
    line = (*LINE, "--measured=two.log", "--measured=three.log")
    code, out, _ = arena(*line)
    assert code == 0
    assert "measured 2026-05-31, NCCL 2.21.5 (calibration pool)" in out
    assert "Two hosts             0.46 GB/s" in out
    assert "Overlap" not in out
    document = yaml.safe_load(arena(*line, "-o=yaml")[1])
    assert document["metadata"]["namespace"] == "kube-system"
    pool = pool_in(document)
    assert (pool.name, pool.hosts, pool.workload) == ("pool", 3, "")
    fit = json.loads(document["data"]["calibration"])["fit"]
    assert fit["placements"] == [["2x2", "0.46 GB/s", "0 %"], ["3x2", "0.8 GB/s", "0 %"]]
    assert any("inside one host" in text for text in fit["notTold"])


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_of_another_gpu_model_is_refused(arena, tmp_path, form):
    text = log("aabb", 0.46, product="NVIDIA H100 80GB HBM3")
    if form == "json":
        devices = [
            {
                "rank": at,
                "hostname": host,
                "device_hex": f"0{at}",
                "device_info": "NVIDIA H100 80GB HBM3",
            }
            for at, host in enumerate("aabb")
        ]
        results = [{"size": 1 << 30, "out_of_place": {"bus_bw": 0.46}}]
        args = ["all_reduce_perf"]
        text = json.dumps({"args": args, "config": {"devices": devices}, "results": results})
    (tmp_path / "other.log").write_text(text)
    line = (*LINE, "--measured=three.log", "--measured=other.log")
    code, out, err = arena(*line)
    assert (code, out) == (2, "")
    assert "other.log was measured on H100, and pool has T4" in err
    # Without a model of its own the machine may be any.
    line = tuple(word for word in line if word != "--gpu-model=T4")
    assert arena(*line)[0] == 0


def test_logs_of_other_programs_are_read_by_a_pattern(arena, tmp_path):
    for name, step in (("a", 1225), ("b", 1110)):
        (tmp_path / f"{name}.log").write_text(f"warm up 99\nstep {step} ms\nstep {step + 10} ms\n")
    line = (*LINE, "--measured=2x1=a.log", "--measured=1+1+1=b.log", "--batch=4")
    line = (*line, "--workload=bert-base-squad")
    code, out, _ = arena(*line, r"--pattern=step (\d+) ms")
    assert code == 0
    assert "1.23 s" in out
    code, _, err = arena(*line, r"--pattern=step \d+ ms")
    assert code == 2
    assert "has 0 groups, and needs one" in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus,seconds\n4,1\n", "no CSV with the columns placement and step_ms or gbps"),
        ("", "it is empty"),
        ("placement,step_ms\n2x1,1225\n", "needs 2 placements of several GPUs, and has 1"),
        ("placement,step_ms\nboth,1225\n", "line 2: 'both' is no placement"),
        ("placement,step_ms\n2x1,fast\n", "line 2: step_ms is a number above 0"),
        ("placement,step_ms\n2x1,-4\n", "line 2: step_ms is a number above 0"),
        ("placement,step_ms\n2x1,\n", "line 2: there is neither step_ms nor gbps"),
        ("placement,gbps\n2x1,0.5\n2x1,0.9\n1x2,9\n", "contradict each other"),
        ("placement,gbps\n2x8,0.5\n3x8,0.9\n", "8 GPUs of a node were measured; pool has 2"),
        ("placement,step_ms\n1x2,100\n2x2,900\n", "shorter than that of 455 ms on one"),
        ("placement,step_ms,gbps\n1x2,,9\n2x2,500,0.4\n", "shorter than its all-reduce"),
        ("placement,step_ms\n1x1,455\n1x1,900\n1x2,500\n2x2,900\n", "contradict each other"),
        ("placement,gbps\n1x1,9\n1x2,9\n2x2,0.5\n", "line 2: a single GPU has no bandwidth"),
    ],
)
def test_measurements_that_cannot_be_are_named(arena, tmp_path, text, words):
    (tmp_path / "steps.csv").write_text(text)
    line = (*LINE, "--measured=steps.csv", "--workload=bert-base-squad", "--batch=4")
    code, out, err = arena(*line)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "nothing measured is named"),
        (("--measured=none.csv",), "cannot read none.csv"),
        (("--measured=steps.csv",), "name the training: --workload NAME"),
        (("--measured=steps.csv", "--workload=bert-bose"), "did you mean bert-base"),
        (("--measured=two.log", "--measured=three.log", "--date=May"), "expected a day such as"),
        (("--measured=two.log", "--measured=three.log", "--name=A B"), "is not a name"),
        (("--measured=3x1=two.log", "--measured=three.log"), "2+2 GPUs took part, not 1+1+1"),
        (("--measured=1+1=steps.csv",), "steps.csv: a CSV names its placements itself"),
        (("--measured=two.log", "--pattern=("), "--pattern is no regular expression"),
        (("--measured=two.log", "--pattern=(a)"), "--pattern reads nothing"),
        (
            ("--measured=steps.csv", "--workload=bert-base-squad", "--step-time=1s"),
            "--step-time and steps.csv, line 2 both say how long a step takes on one GPU",
        ),
    ],
)
def test_a_calibration_of_nothing_is_refused(arena, more, words):
    code, out, err = arena(*LINE, *more)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


@pytest.fixture
def calibrated(arena, tmp_path):
    """The file of a calibration."""
    code, out, _ = arena(*LINE, "--measured=two.log", "--measured=three.log", "-o=yaml")
    assert code == 0
    (tmp_path / "pool.yaml").write_text(out)
    return "--calibration=pool.yaml"


def test_a_forecast_names_the_calibration_that_it_rests_on(arena, calibrated):
    line = ("forecast", "pool.txt", "--gpu-model=T4", "--tcp", "--nodes=2")
    _, out, _ = arena(*line, calibrated)
    assert (
        "0.46 GB/s (0.422 to 0.504), measured 2026-05-31, NCCL 2.21.5 (calibration pool)\n" in out
    )
    found = json.loads(arena(*line, calibrated, "-o=json")[1])["bandwidth"]
    assert found["measured"] == "measured 2026-05-31, NCCL 2.21.5 (calibration pool)"
    assert "measured" not in json.loads(arena(*line, "-o=json")[1])["bandwidth"]
    code, _, err = arena("forecast", "dgx-1-v100", calibrated)
    assert code == 2
    assert "calibration pool is of machines with 2 x T4, and dgx-1-v100 has 8 x V100" in err


def test_a_plan_uses_a_calibration_and_records_it(arena, calibrated, tmp_path):
    line = ("--gpus=2", "--workers=3", "--gputopology", "--state=state.json", "--name=job")
    plan = ("plan", "mpi", *line)
    assert "a guess" in arena(*plan)[1]
    code, out, _ = arena(*plan, calibrated)
    assert code == 0
    assert "measured 2026-05-31, NCCL 2.21.5 (calibration pool)" in out
    assert "a guess" not in out
    (tmp_path / "t4.yaml").write_text(json.dumps(calibration_map(POOL, {})))
    code, out, err = arena(*plan, "--calibration=t4.yaml")
    assert "note: calibration t4 is not used: no node has 4 x T4" in err
    assert "a guess" in out
    measured = (*LINE, "--measured=two.log", "--measured=three.log", "--name=again", "-o=yaml")
    (tmp_path / "again.yaml").write_text(arena(*measured)[1])
    err = arena(*plan, calibrated, "--calibration=again.yaml")[2]
    assert "calibration again is not used: calibrations before it match all such nodes" in (
        " ".join(err.split())
    )
    dry = ("submit", "mpi", *line, "--image=x", "--dry-run", "-o=json", calibrated, "true")
    code, out, _ = arena(*dry)
    assert code == 0
    assert "NCCL 2.21.5 (calibration pool)" in out


def test_a_plan_calls_a_network_unknown_only_where_no_calibration_measured_it(
    arena, calibrated, tmp_path
):
    (tmp_path / "pool.csv").write_text("placement,gbps\n2x2,0.46\n2x1,0.46\n")
    code, pairs, _ = arena(*LINE, "--measured=pool.csv", "--name=pairs", "-o=yaml")
    assert code == 0
    (tmp_path / "pairs.yaml").write_text(pairs)
    note, of_two = "the speed of the network between nodes is not known", "--calibration=pairs.yaml"
    for more, known in (
        (("--workers=2", "--gpus=2"), False),
        (("--workers=2", "--gpus=2", of_two), True),
        (("--workers=3", "--gpus=2", of_two), False),
        (("--workers=3", "--gpus=2", calibrated), True),
        # NCCL counts a host for each pod, so that these are four on two nodes.
        (("--workers=4", "--gpus=1", of_two), False),
        (("--workers=4", "--gpus=1", of_two, "--pod-shape=fused"), True),
    ):
        line = ("plan", "mpi", "--gputopology", "--state=state.json", *more)
        _, out, err = arena(*line)
        drawn = arena(*line, "-o=svg")[1]
        where = "one network" if known else "unknown network"
        assert (note in err) is not known
        for shown in (out, drawn):
            assert (where in shown, "unknown network" in shown) == (True, not known)


def test_a_published_calibration_counts_by_its_name_for_new_jobs_alone(arena, tmp_path):
    api = FakeApi()
    cluster = FakeCluster(api)
    try:
        # The GPUs of the first job may still be in use when the second starts.
        for name in ("node-0", "node-1", "node-2", "node-3"):
            machine = presets.preset_machine("dgx-1-v100", name)
            cluster.node(name, 8, labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"})
            api.add(config_map(machine, machine.everything))
        pool = replace(POOL, name="dgx", model="V100", gpus=8, inside=None)
        api.add(calibration_map(pool, {}))
        kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
        at = (f"--kubeconfig={tmp_path / 'config'}",)
        line = ("submit", "mpi", "--image=i", "--gpus=8", "--workers=2", "--gputopology", *at)
        with cluster.running():
            code, _, err = arena("plan", *line[1:], "--calibration=none")
            assert code == 2
            assert "no ConfigMap of that name in namespace kube-system" in err
            assert arena(*line, "--name=before", "true")[0] == 0
            before = json.loads(arena("get", "before", "-o=json", *at)[1])["placement"]
            arena("delete", "before", *at)
            assert arena(*line, "--name=after", "--calibration=dgx", "true")[0] == 0
            after = json.loads(arena("get", "after", "-o=json", *at)[1])["placement"]
            assert "0.4 GB/s (0.38 to 0.42), measured" in arena("get", "after", *at)[1]
    finally:
        api.close()
    assert "measured" not in before["bandwidth"]
    assert after["bandwidth"]["measured"] == str(pool)
    assert after["bandwidth"]["gbps"] == 0.4
    assert before["bandwidth"]["gbps"] != 0.4


def test_pools_of_one_gpu_model_have_a_calibration_each_by_the_labels_of_their_nodes(
    arena, tmp_path
):
    state = json.loads((tmp_path / "state.json").read_text())
    for at, node in enumerate(state["items"]):
        labels = {**node["metadata"]["labels"], "example.com/pool": "new" if at < 2 else "old"}
        node["metadata"]["labels"] = labels
    (tmp_path / "state.json").write_text(json.dumps(state))
    for name, rate in (("new", 4), ("old", 0.4)):
        (tmp_path / "pool.csv").write_text(f"placement,gbps\n2x2,{rate}\n2x1,{rate}\n")
        line = (*LINE, "--measured=pool.csv", f"--name={name}", f"--label=example.com/pool={name}")
        code, out, _ = arena(*line, "-o=yaml")
        assert code == 0
        (tmp_path / f"{name}.yaml").write_text(out)
    plan = ("plan", "mpi", "--gpus=2", "--workers=2", "--gputopology", "--state=state.json")
    of = {}
    for name in ("new", "old"):
        code, out, err = arena(*plan, f"--calibration={name}.yaml", "-o=json")
        of[name] = json.loads(out)["bandwidth"]
    assert of["new"]["gbps"] == pytest.approx(4, rel=0.01)
    assert of["new"]["measured"].endswith("(calibration new)")
    # No two nodes have the other label, so that nothing measured counts for this gang.
    assert "measured" not in of["old"]
    assert "not used" not in err
    both = ("--calibration=old.yaml", "--calibration=new.yaml")
    assert json.loads(arena(*plan, *both, "-o=json")[1])["bandwidth"] == of["new"]
    for node in state["items"]:
        del node["metadata"]["labels"]["example.com/pool"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    err = arena(*plan, *both)[2]
    assert "calibration old is not used: no node has 2 x T4 and the label example.com/pool=old" in (
        " ".join(err.split())
    )
    assert (
        "--label pool=a/b: nodes cannot have this label"
        in arena(*LINE, "--measured=pool.csv", "--label=pool=a/b")[2]
    )


def test_a_simulation_uses_a_calibration_on_a_dump_and_on_emulated_nodes(
    arena, calibrated, tmp_path
):
    (tmp_path / "trace.csv").write_text("job_id,submit_s,duration_s,gpus\na,0,3600,6\n")
    line = ("simulate", "trace.csv", "--network=tcp", "--window=0%-100%")
    of_dump, emulated = ("--state=state.json",), ("--nodes=2xdgx-1-v100",)
    code, out, _ = arena(*line, *of_dump, calibrated)
    assert code == 0
    assert "; measured 2026-05-31, NCCL 2.21.5 (calibration pool)" in out
    code, _, err = arena(*line, *emulated, calibrated)
    assert code == 2
    assert "calibration pool fits nothing in this simulation" in err
    # Its nodes offer pods no RDMA.
    anew = ("simulate", "trace.csv", "--window=0%-100%", *of_dump, calibrated)
    assert [arena(*anew)[0], arena(*anew, "--network=rdma")[0]] == [0, 2]
    # Random GPUs of two nodes, whose network a calibration makes ten times slower.
    pool = replace(POOL, name="dgx", model="V100", gpus=8, inside=None)
    longer = []
    for rate in (1.0, 0.1):
        two = MeasuredRate(rate, rate, rate)
        document = calibration_map(replace(pool, two=two), {})
        (tmp_path / "dgx.yaml").write_text(json.dumps(document))
        more = ("--policy=random", "--calibration=dgx.yaml", "-o=csv")
        code, out, _ = arena(*line, *emulated, *more)
        assert code == 0
        longer.append(next(csv.DictReader(io.StringIO(out))))
    fast, slow = (float(row["slowdown"]) for row in longer)
    assert slow > 2 * fast


def test_a_calibration_that_does_not_exist_is_named(arena, tmp_path):
    line = ("plan", "mpi", "--gpus=2", "--workers=2", "--state=state.json")
    code, _, err = arena(*line, "--calibration=none")
    assert code == 2
    assert "--calibration none: there is no such file" in err
    (tmp_path / "other.yaml").write_text("kind: ConfigMap\n")
    code, _, err = arena(*line, "--calibration=other.yaml")
    assert code == 2
    assert "this is no calibration" in err


def test_the_fixture_of_pools_is_whole():
    with training_pools.POOLS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert {row["pool"] for row in rows} == {"T4", "RTX", "DGX"}
    for row in rows:
        cells = [cell.split(":") for cell in row["step_ms by batch"].split()]
        assert all(math.isfinite(float(step)) and int(batch) > 0 for batch, step in cells)
