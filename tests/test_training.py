"""The step time of a training, ratios of placements with their ranges, and known workloads."""

import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from replacing import replace

from arena_topo import cli
from arena_topo.bandwidth import Host, Wire
from arena_topo.bandwidth.several_hosts import estimate
from arena_topo.errors import UsageError
from arena_topo.topology import GPUSet, presets
from arena_topo.topology.nics import NICs
from arena_topo.topology.published import config_map
from arena_topo.training import (
    REPEAT,
    WORKLOADS,
    Ratio,
    Span,
    Workload,
    ratio,
    step_time,
    workload_on,
)
from arena_topo.training.step_time import BUCKET, FITTED_OVERLAP, all_reduce_time
from arena_topo.training.wording import HOW_OFTEN, ratio_text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import fidelity  # noqa: E402
import training_pairs  # noqa: E402


def bandwidth(count, gpus, *, preset="dgx-1-v100", speed=None, wire=None):
    """The bandwidth of the first GPUs of so many nodes, with a NIC of known speed if there is."""
    machines = [presets.preset_machine(preset, f"node-{node}") for node in range(count)]
    if speed is not None:
        machines = [NICs(number=1, speed=speed).of(machine) for machine in machines]
    hosts = [Host.of(machine, GPUSet((1 << gpus) - 1)) for machine in machines]
    found = estimate(hosts, wire=wire if count > 1 else None)
    assert found is not None
    return found


def vgg(step=0.258):
    return Workload(name="vgg16", gradient_bytes=553_000_000, step=Span.exactly(step))


@pytest.mark.parametrize(
    ("reduce", "takes"),
    [
        pytest.param(0.0, 1.0, id="one GPU"),
        pytest.param(0.1, 1.05, id="hidden but for its floor"),
        pytest.param(0.6, 1.3, id="both forms meet"),
        pytest.param(2.0, 2.7, id="far longer than a step"),
    ],
)
def test_a_step_waits_for_its_floor_or_for_what_does_not_fit_beside_it(reduce, takes):
    assert step_time(1.0, reduce, floor=0.5, hidden=0.3) == pytest.approx(takes)


def test_the_all_reduce_of_gradients_pays_a_latency_for_each_bucket():
    found = bandwidth(2, 4, speed=12.5, wire=Wire.RDMA)
    one, many = (all_reduce_time(size, found) for size in (BUCKET, 10 * BUCKET))
    assert many == pytest.approx(10 * one)
    assert one > 2 * 7 / 8 * BUCKET / 1e9 / found.point
    assert all_reduce_time(BUCKET, None) == 0


def test_the_same_placement_twice_differs_by_what_repeated_runs_do_alone():
    spread = bandwidth(2, 2, wire=Wire.TCP)
    found = ratio(vgg(), spread, spread)
    assert found.value == 1
    assert (found.low, found.high) == pytest.approx((1 / REPEAT, REPEAT))


def test_an_unknown_network_that_both_placements_use_cannot_turn_their_order():
    two, four = bandwidth(2, 2, wire=Wire.TCP), bandwidth(4, 2, wire=Wire.TCP)
    assert two.guess
    assert two.high > four.low
    found = ratio(vgg(), four, two)
    assert found.guess
    assert found.low > 1
    # If each had a network of its own, either could be the slower.
    apart = ratio(vgg(), replace(four, regime=bandwidth(1, 8).regime), two)
    assert apart.low < 1 < apart.high


sizes = st.integers(1_000_000, 20_000_000_000)
steps = st.floats(0.005, 5)
placements = st.sampled_from(
    [
        None,
        bandwidth(1, 4),
        bandwidth(1, 8),
        bandwidth(1, 5),
        bandwidth(2, 2, wire=Wire.TCP),
        bandwidth(4, 1, wire=Wire.TCP),
        bandwidth(2, 8, speed=12.5, wire=Wire.RDMA),
        bandwidth(4, 8, speed=12.5, wire=Wire.RDMA),
    ]
)


@settings(max_examples=60, deadline=None)
@given(size=sizes, step=steps, other=placements, than=placements, data=st.data())
def test_the_range_of_a_ratio_holds_whatever_is_unknown(size, step, other, than, data):
    doubt = data.draw(st.floats(1, 2))
    span = Span(value=step, low=step / doubt, high=step * doubt)
    workload = Workload(name="any", gradient_bytes=size, step=span)
    found = ratio(workload, other, than)
    floor = data.draw(st.floats(FITTED_OVERLAP.floor.low, FITTED_OVERLAP.floor.high))
    hidden = data.draw(st.floats(FITTED_OVERLAP.hidden.low, FITTED_OVERLAP.hidden.high))
    own = data.draw(st.sampled_from([span.low, span.high]))
    shared = data.draw(st.sampled_from(["low", "high"]))
    times = [all_reduce_time(size, side, side and getattr(side, shared)) for side in (other, than)]
    real = step_time(own, times[0], floor, hidden) / step_time(own, times[1], floor, hidden)
    assert found.low - 1e-9 <= real / REPEAT <= real * REPEAT <= found.high + 1e-9
    back = ratio(workload, than, other)
    assert (back.low, back.high) == pytest.approx((1 / found.high, 1 / found.low))


@settings(max_examples=10, deadline=None)
@given(size=sizes, step=steps, other=placements, than=placements)
def test_the_ends_of_a_range_are_reached(size, step, other, than):
    found = ratio(Workload(name="any", gradient_bytes=size, step=Span.exactly(step)), other, than)
    overlap, ends = FITTED_OVERLAP, ("low", "high")
    reached = []
    for one, two in itertools.product(ends, ends):
        times = [
            all_reduce_time(size, side, side and getattr(side, end))
            for side, end in ((other, one), (than, two))
        ]
        for at, part in itertools.product(range(41), range(41)):
            floor = overlap.floor.low + at / 40 * (overlap.floor.high - overlap.floor.low)
            hidden = overlap.hidden.low + part / 40 * (overlap.hidden.high - overlap.hidden.low)
            reached.append(
                step_time(step, times[0], floor, hidden) / step_time(step, times[1], floor, hidden)
            )
    assert found.low * REPEAT >= min(reached) * 0.97
    assert found.high / REPEAT <= max(reached) * 1.03


def test_an_extreme_between_the_ends_of_the_overlap_is_in_the_range():
    # The slower placement stops hiding its all-reduce at f = 0.4 (a = 0.6), the faster one below.
    slow, fast = (
        replace(found, low=found.point, high=found.point)
        for found in (bandwidth(2, 8, speed=12.5, wire=Wire.RDMA), bandwidth(1, 8))
    )
    size = 9_000_000_000
    step = all_reduce_time(size, slow)
    found = ratio(Workload(name="any", gradient_bytes=size, step=Span.exactly(step)), slow, fast)
    times = [all_reduce_time(size, side) for side in (slow, fast)]
    between = step_time(step, times[0], 0.4, 0.6) / step_time(step, times[1], 0.4, 0.6)
    ends = [
        step_time(step, times[0], floor, hidden) / step_time(step, times[1], floor, hidden)
        for floor in (0, 1)
        for hidden in (0, 0.6)
    ]
    assert between < 0.99 * min(ends)
    assert found.low * REPEAT <= between * (1 + 1e-9)


# ---------------------------------------------------------------- known workloads


@pytest.mark.parametrize(("batch", "milliseconds"), [(32, 164), (64, 292), (48, 228), (0, 292)])
def test_a_step_between_two_measured_batches_lies_on_a_line(batch, milliseconds):
    found, source = workload_on("P100", name="resnet50", batch=batch)
    assert found.step.value == pytest.approx(milliseconds / 1e3, rel=0.01)
    assert found.step.low < found.step.value < found.step.high
    assert "TensorFlow" in source


@pytest.mark.parametrize(
    ("asked", "gpu", "words"),
    [
        ({"name": "vgg-61"}, "V100", "did you mean vgg16"),
        ({"name": "zzz"}, "V100", "the known ones are alexnet"),
        ({"name": "vgg16", "batch": 512}, "V100", "known for batch 64 alone"),
        ({"name": "resnet50", "batch": 8}, "P100", "known for batch 32 to 64 alone"),
        ({"name": "vgg16"}, "H200", "no step of vgg16 on one H200 is known, only on P100 and V100"),
        ({"name": "llama-8b"}, "H100", "--step-time"),
        ({"name": "vgg16"}, None, "GPU of an unknown model"),
    ],
)
def test_nothing_is_extrapolated_in_silence(asked, gpu, words):
    with pytest.raises(UsageError) as error:
        workload_on(gpu, **asked)
    assert words in f"{error.value} {error.value.hint}"


def test_a_step_of_your_own_takes_the_place_of_the_catalogue():
    found, source = workload_on("H200", name="vgg16", step=0.1)
    assert found.step == Span.exactly(0.1)
    assert found.gradient_bytes == WORKLOADS["vgg16"].gradient_bytes
    assert source == "as you measured"
    own, _ = workload_on(None, gradient_bytes=553_000_000, step=0.1)
    assert (own.gradient_bytes, own.step.value) == (553_000_000, 0.1)


# ---------------------------------------------------------------- published pairs


@pytest.fixture(scope="module")
def pairs():
    return training_pairs.pairs(fidelity._machine)


def test_the_overlap_is_what_the_pairs_give(pairs):
    assert training_pairs.fit(pairs) == FITTED_OVERLAP


def test_published_pairs_are_ordered_and_their_ratio_is_in_range(pairs):
    healthy = [one for one in training_pairs.tried(pairs) if one.pair.healthy]
    known = [one for one in healthy if one.pair.known]
    right, wrong, ties = training_pairs.orders(known)
    assert wrong == 0
    assert right >= 0.85 * (right + ties)
    assert training_pairs.held(known) >= 0.75
    assert len(known) >= 19
    for one in healthy:
        # A forecast over a network that nobody named says so.
        assert one.found.guess or one.pair.known


def test_the_published_runs_on_ack_are_in_range_where_the_pods_were_joined(pairs):
    ack = [pair for pair in pairs if pair.source == "ACK TensorFlow"]
    assert [round(pair.measured, 2) for pair in ack] == [4.95, 1.97]
    for pair in ack:
        found = pair.forecast()
        assert found.low < pair.measured < found.high


def test_readme_has_the_ranges_of_the_pairs_that_it_quotes(pairs):
    vgg16, resnet = (pair.forecast() for pair in pairs if pair.source == "ACK TensorFlow")
    words = (
        f"for these two pairs {vgg16.low:.1f} to {vgg16.high:.0f} times and {resnet.low:.1f} to"
        f" {resnet.high:.1f} times, a guess"
    )
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert words in readme
    (torch,) = (
        pair for pair in pairs if (pair.source, pair.workload.name) == ("ACK PyTorch", "VGG16")
    )
    machine = presets.preset_machine("dgx-1-v100", "node-0")
    apart = [
        estimate([Host.of(machine, GPUSet(1 << gpu)) for gpu in gpus], wire=Wire.TCP)
        for gpus in ((0, 1, 2, 4), (0, 1, 2, 3))
    ]
    assert f"is {torch.measured:.1f} times, more than either shape of pods gives" in readme
    assert f"{ratio(torch.workload, *apart).value:.1f} times where each pod is a host" in readme
    joined = torch.forecast()
    assert f"{joined.low:.1f} to {joined.high:.1f} times where NVLink joins the pods" in readme
    assert joined.high < torch.measured


def test_the_screens_say_how_often_ranges_held(pairs):
    known = [one for one in training_pairs.tried(pairs) if one.pair.healthy and one.pair.known]
    share = f"{100 * training_pairs.held(known):.0f} % of {len(known)} published pairs"
    assert share in HOW_OFTEN
    text = " ".join((ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8").split())
    assert f"In {len(known)} published pairs" in text
    assert f"{100 * training_pairs.held(known):.0f} % of the ratios" in text


# ---------------------------------------------------------------- screens


@pytest.fixture
def arena(capfd, monkeypatch, tmp_path):
    """Run a command line on two emulated machines; (exit code, stdout, stderr)."""
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100:2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*argv):
        capfd.readouterr()
        code = cli.run(argv)
        return code, *capfd.readouterr()

    return run


FOUR = ("plan", "mpi", "--gpus=1", "--workers=4")
NO_RING = "dgx-1-v100-0/0;dgx-1-v100-0/1;dgx-1-v100-0/2;dgx-1-v100-0/4"


def test_a_plan_without_a_training_names_the_flag_once(arena):
    code, out, _ = arena(*FOUR)
    assert (code, out.count("--workload")) == (0, 1)
    assert "Training" not in arena("plan", "mpi", "--gpus=1", "--workers=1")[1]
    assert json.loads(arena(*FOUR, "-o=json")[1])["training"] is None


def test_a_plan_compares_the_steps_of_a_training(arena):
    code, out, _ = arena(*FOUR, "--workload=vgg16", "--batch=64", "--on", NO_RING)
    assert code == 0
    assert "Training" not in out.splitlines()[0]
    rows = {line[2:23].strip(): line[23:] for line in out[out.index("Training of") :].splitlines()}
    assert rows["this placement"].split() == ["84.1", "ms", "1.00x"]
    best = rows["best, free GPUs"]
    assert 0.5 < float(best.split("ms")[1].split("x")[0]) < 1
    assert "a guess" not in best
    # NICs of unknown speed join the nodes.
    assert rows["spread over nodes"].endswith("x")
    assert "a guess" in rows["spread over nodes"]
    assert not re.search(r"[0-9]\.[0-9]", rows["spread over nodes"])


def test_where_the_kubelet_picks_steps_are_those_of_placements_as_planned(arena):
    state = Path(__file__).parent / "dumps" / "two-dgx-1.json"
    line = (*FOUR, "--gputopology", "--pod-shape=fused", "--workload=vgg16", f"--state={state}")
    code, out, _ = arena(*line)
    assert code == 0
    rows = [line.split("  ") for line in out[out.index("Training of") :].splitlines()[2:7]]
    shown = [[cell.strip() for cell in row if cell][:2] for row in rows]
    assert shown == [
        ["as planned", "20.5 ms"],
        ["at worst", "84.1 ms"],
        ["best, all GPUs free", "10.8 ms"],
        ["first fit by index", "84.1 ms"],
        ["spread over nodes", "84.1 ms"],
    ]
    drawn = " ".join(re.sub(r"<[^>]*>", " ", arena(*line, "-o=svg")[1]).split())
    assert "all-reduce 20.5 ms as planned; at worst 84.1 ms, a step 1.21x" in drawn
    found = json.loads(arena(*line, "-o=json")[1])["training"]["placements"]
    ratios = [row["stepRatio"] for row in found]
    assert ratios[0] is None
    # The worst that the kubelet may pick and the first fit have the same bandwidth.
    assert ratios[1] == ratios[3]
    assert ratios[1]["value"] > 1 > ratios[2]["value"]


def test_without_gputopology_both_tables_of_a_plan_name_placements_alike(arena):
    code, out, _ = arena(*FOUR, "--workload=vgg16")
    assert code == 0
    rates, _, steps = out[out.index("Bus bandwidth") :].partition("Training of")
    names = [row[2:23].strip() for row in steps.splitlines()[2:6]]
    assert names == [
        "with --gputopology",
        "best, all GPUs free",
        "without: first fit",
        "without: spread",
    ]
    assert all(f"\n  {name}  " in rates for name in names)


def test_a_plan_in_json_has_milliseconds_and_ratios(arena):
    line = (*FOUR, "--workload=vgg16", "-o=json")
    found = json.loads(arena(*line, "--gputopology")[1])["training"]
    names = {row["name"] for row in json.loads(arena(*line)[1])["training"]["placements"]}
    assert {"with --gputopology", "without: spread"} < names
    assert found["gradientBytes"] == WORKLOADS["vgg16"].gradient_bytes
    assert found["singleGpuStepMs"]["value"] == 258
    rows = {row["name"]: row for row in found["placements"]}
    ours, spread = rows["this placement"], rows["spread over nodes"]
    assert ours["stepRatio"] is None
    assert ours["allReduceMs"]["low"] < ours["allReduceMs"]["value"] < ours["allReduceMs"]["high"]
    assert (spread["guess"], spread["stepRatio"]["order"]) == (True, "longer")
    assert spread["stepRatio"]["value"] is None


def test_what_nobody_measured_is_said_and_a_step_of_your_own_helps(arena):
    _, out, _ = arena(*FOUR, "--workload=llama-8b")
    assert "no step of llama-8b on one V100 is known" in " ".join(out.split())
    found = json.loads(arena(*FOUR, "--workload=llama-8b", "-o=json")[1])["training"]
    assert (found["placements"], "--step-time" in found["unknown"]) == ([], True)
    own = ("--gradient-bytes=16GB", "--step-time=900ms")
    found = json.loads(arena(*FOUR, *own, "-o=json")[1])["training"]
    assert found["singleGpuStepMs"] == {"value": 900, "low": 900, "high": 900}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--workload=vg16"], "did you mean vgg16?"),
        (["--batch=64"], "--batch needs --workload"),
        (["--workload=vgg16", "--batch=0"], "--batch is invalid"),
        (["--workload=vgg16", "--batch=64", "--step-time=1s"], "exclude each other"),
        (["--gradient-bytes=553MB"], "--gradient-bytes needs --step-time"),
        (["--gradient-bytes=0MB", "--step-time=1s"], "expected a size such as 553MB"),
        (["--gradient-bytes=553", "--step-time=1s"], "expected a size such as 553MB"),
        (["--gradient-bytes=1GB", "--workload=vgg16", "--step-time=1s"], "exclude each other"),
        (["--step-time=1s"], "--step-time needs --workload or --gradient-bytes"),
        (["--workload=vgg16", "--step-time=0s"], "expected a time such as 180ms"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(arena, line, words):
    for verb in (FOUR, ("forecast", "dgx-1-v100")):
        code, out, err = arena(*verb, *line)
        assert (code, out) == (2, ""), verb
        assert words in err, verb
    name = ("--name=x", "--image=local", "--gpus=1", "--workers=2", "--gputopology")
    code, _, err = arena("submit", "mpi", *name, *line, "true")
    assert code == 2
    assert words in err


def test_a_forecast_is_beside_a_single_gpu(arena):
    line = ("forecast", "dgx-1-v100", "--nodes=2", "--nics=4x100G", "--workload=vgg16")
    _, out, _ = arena(*line)
    assert "  Training    vgg16, batch 64" in out
    found = json.loads(arena(*line, "-o=json")[1])["training"]
    assert found["stepRatio"]["order"] == "longer"
    assert found["stepRatio"]["low"] < 1.05
    assert "training" not in json.loads(arena(*line[:-1], "-o=json")[1])
    assert arena("forecast", "hgx-h100", "--workload=vgg16")[0] == 2


def test_a_submission_says_it_in_one_line_and_stores_it(arena):
    name = ("submit", "mpi", "--name=trains", "--image=local", "--gpus=1", "--workers=4")
    code, _, err = arena(*name, "--gputopology", "--workload=vgg16", "--wait", "true")
    assert code == 0
    (line,) = [line for line in err.splitlines() if "Training" in line]
    assert re.match(r"Training of vgg16, batch 64: all-reduce 10\.8 ms; spread over nodes", line)
    code, _, err = arena(*name[:2], "--name=plain", *name[3:], "--gputopology", "--wait", "true")
    assert (code, "raining" in err) == (0, False)


def test_get_and_why_say_what_a_placement_means_for_the_training(arena):
    line = ("submit", "mpi", "--image=local", "--gpus=1", "--workers=4", "--gputopology", "--wait")
    arena(*line, "--name=known", "--workload=vgg16", "true")
    out = arena("get", "known")[1]
    (found,) = [row.strip() for row in out.splitlines() if "Training:" in row]
    assert found == "Training: vgg16: 553 MB of gradients, all-reduce 10.8 ms"
    value = json.loads(arena("get", "known", "-o=json")[1])["training"]
    assert (value["workload"], value["gradientBytes"]) == ("vgg16", 553_440_000)
    assert value["allReduceMs"]["low"] < value["allReduceMs"]["value"] == 10.85
    arena(*line[:-1], "--name=runs", "--workload=vgg16", "sleep 60")
    assert arena("wait", "runs", "--for=running")[0] == 0
    assert "training of vgg16: 553 MB of gradients, all-reduce 10.8 ms" in arena("why", "runs")[1]
    assert arena("delete", "runs")[0] == 0
    arena(*line, "--name=own", "--gradient-bytes=1GB", "--step-time=100ms", "true")
    out = arena("get", "own")[1]
    assert "Training: your own: 1 GB of gradients, all-reduce 19.6 ms, a step 1.18x" in out
    arena(*line, "--name=plain", "true")
    assert "raining" not in arena("get", "plain")[1].replace("mpijob", "")
    assert "training" not in json.loads(arena("get", "plain", "-o=json")[1])


def test_where_the_kubelet_picks_get_and_why_show_the_all_reduce_as_planned_too(
    arena, monkeypatch, tmp_path
):
    monkeypatch.delenv("ARENA_TOPO_EMULATE")
    api = FakeApi()
    cluster = FakeCluster(api)
    try:
        machine = presets.preset_machine("dgx-1-v100", "node-0")
        cluster.node("node-0", 8, labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"})
        api.add(config_map(machine, machine.everything))
        kubeconfig(tmp_path / "config", api.url, user={"username": "alice"})
        at = (f"--kubeconfig={tmp_path / 'config'}",)
        line = ("submit", "mpi", "--image=i", "--gpus=1", "--workers=4", "--gputopology", *at)
        own = ("--pod-shape=fused", "--gradient-bytes=553MB", "--step-time=258ms")
        with cluster.running():
            _, _, err = arena(*line, "--name=picked", *own, "true")
            out, why = (arena(verb, "picked", *at)[1] for verb in ("get", "why"))
    finally:
        api.close()
    assert "all-reduce 10.8 ms as planned; at worst 84" in err
    (shown,) = [row.strip() for row in out.splitlines() if "Training:" in row]
    assert shown.startswith(
        "Training: your own: 553 MB of gradients, all-reduce 10.8 ms as planned, 84.4 ms at worst,"
        " a step at worst 1."
    )
    assert shown.partition(": ")[2] in " ".join(why.split())


def test_the_picture_of_a_plan_has_the_line_of_its_training(arena):
    picture = arena(*FOUR, "--workload=vgg16", "-o=svg")[1]
    text = " ".join(re.sub(r"<[^>]*>", " ", picture).split())
    assert "Training of vgg16, batch 64: all-reduce 10.8 ms; best, all GPUs free 10.8 ms" in text
    assert "Training" not in arena(*FOUR, "-o=svg")[1]


@pytest.mark.parametrize(
    ("guess", "value", "low", "high", "text"),
    [
        (False, 1.181, 0.96, 1.7, "1.18x (0.96 to 1.70)"),
        (False, 14.2, 9.4, 20.1, "14x (9.40 to 20)"),
        (True, 4.6, 2.26, 11.4, "longer, a guess: 2 to 11x"),
        (True, 0.2, 0.09, 0.44, "shorter, a guess: 2 to 11x"),
        (True, 1.3, 0.96, 1.2, "as long, a guess"),
        (True, 1.0, 0.5, 2.0, "as long, a guess"),
    ],
)
def test_a_guess_has_an_order_and_no_digit_after_the_point(guess, value, low, high, text):
    assert ratio_text(Ratio(value=value, low=low, high=high, guess=guess)) == text
    if guess:
        assert not re.search(r"\d\.\d", text)
