"""What `plan mpi` says of dumps, compared whole with the files in `screens/`; exit codes."""

import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import program
import pytest
import yaml
from cube_mesh import HGX, OFF_THE_SWITCH, V100, cluster, node
from cube_mesh import with_nics as nics_of
from replacing import replace

from arena_topo import cli
from arena_topo.engines import Options
from arena_topo.engines.local import engine as local
from arena_topo.job import Device, MPIJob, PodShape, Quantity
from arena_topo.jobs import plan_view as screen_of
from arena_topo.jobs.proposal import compare_schedulers, propose
from arena_topo.layout import fold_text
from arena_topo.manifests import estimates
from arena_topo.manifests.versions import ApiVersion
from arena_topo.solver import Request
from arena_topo.topology import NIC, Link, LinkKind, Tier, gpu_set, presets, published

HERE = Path(__file__).parent
TWO_DGX_1 = HERE / "dumps" / "two-dgx-1.json"
RACKS = HERE / "dumps" / "racks.yaml"


@pytest.fixture
def plan(capfd):
    """Plan a gang on a dump; (exit code, stdout, stderr)."""

    def run(dump, workers, gpus, *more):
        capfd.readouterr()
        gang = ("--name=demo", f"--workers={workers}", f"--gpus={gpus}", "--gputopology")
        code = cli.run(("plan", "mpi", *gang, "--image=i", f"--state={dump}", *more, "mpirun true"))
        return code, *capfd.readouterr()

    return run


def screen(name):
    return (HERE / "screens" / name).read_text(encoding="utf-8")


def job(**more):
    return MPIJob(**{"name": "demo", "command": "true", "image": "i", "gputopology": True, **more})


def proposed(world, *, on="", **more):
    return propose(job(**more), None, namespace="default", cluster=world, on=on)


def shown(world, *, width=100, unicode=True, **more):
    found = proposed(world, **more)
    return fold_text(screen_of.plan_text(found, unicode=unicode, width=width), width)


# ---------------------------------------------------------------- for people


def test_a_gpu_whose_nvlinks_are_down_is_not_chosen_before_those_of_the_switch(plan, tmp_path):
    """`nvidia-smi topo -m` of an HGX H100 whose GPU 0 is off the fabric, as ACK publishes it."""
    broken = replace(OFF_THE_SWITCH, name="hgx-0")
    status = {"allocatable": {"nvidia.com/gpu": "8"}, "capacity": {"nvidia.com/gpu": "8"}}
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    listed = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "hgx-0", "labels": labels}}
        | {"spec": {}, "status": status},
        published.config_map(broken, broken.everything),
    ]
    dump = tmp_path / "state.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}))
    code, out, _err = plan(dump, 1, 4)
    assert code == 0
    assert "between any two" not in out
    found = json.loads(plan(dump, 1, 4, "-o=json")[1])
    assert found["busBandwidthGBps"] == pytest.approx(0.96 * 18 * 20.6, rel=0.01)
    assert 0 not in found["workers"][0]["gpus"]
    assert json.loads(plan(dump, 1, 8, "-o=json")[1])["busBandwidthGBps"] < 50
    assert json.loads(plan(dump, 1, 1, "-o=json")[1])["workers"][0]["gpus"] == [0]


def test_a_plan_draws_the_machine_and_compares_with_schedulers_that_only_count(plan):
    code, out, _err = plan(TWO_DGX_1, 4, 1)
    assert (code, out) == (0, screen("plan-mesh.txt"))


def test_a_scheduler_that_mixes_models_of_gpus_is_marked():
    mixed = cluster(
        node("a", presets.preset_machine("hgx-a100", "a")), node("b", V100), node("c", V100)
    )
    said = shown(mixed, workers=2, gpus=8)
    first, spread = (line for line in said.splitlines() if re.match("  (first fit|spread)", line))
    assert first.endswith(", GPUs of several models")
    assert said.count("GPUs of several models") == 1 + spread.endswith(", GPUs of several models")


def test_fused_pods_are_drawn_with_their_ranks_and_what_they_can_use(plan):
    code, out, _err = plan(TWO_DGX_1, 4, 1, "--pod-shape=fused")
    assert (code, out) == (0, screen("plan-fused.txt"))


def test_a_plan_in_ascii_has_no_other_character(plan):
    code, out, _err = plan(TWO_DGX_1, 4, 1, "--ascii")
    assert (code, out) == (0, screen("plan-mesh-ascii.txt"))
    assert out.isascii()


def test_machines_that_look_alike_are_drawn_once_and_hidden_gpus_are_counted(plan):
    code, out, _err = plan(RACKS, 7, 4)
    assert (code, out) == (0, screen("plan-racks.txt"))


@pytest.mark.parametrize(
    "locale",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}, {"LANG": "C"}],
    ids=str,
)
def test_output_or_a_locale_that_cannot_take_unicode_gets_the_ascii_drawing(locale):
    command = [*program.LINE, "plan", "mpi", "--name=demo", "--workers=4"]
    done = subprocess.run(
        [*command, "--gpus=1", "--gputopology", "--image=i", f"--state={TWO_DGX_1}", "true"],
        capture_output=True,
        check=True,
        env=os.environ | locale,
    )
    assert done.stdout.decode("ascii") == screen("plan-mesh-ascii.txt")


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize(("workers", "gpus"), [(4, 1), (2, 4), (5, 8), (1, 1)])
def test_no_line_is_longer_than_the_screen_is_wide(width, workers, gpus):
    world = cluster(
        *(node(f"dgx-{index}", V100, 0b110111) for index in range(3)),
        *(node(f"hgx-{index}", HGX) for index in range(30)),
        tiers=(Tier(name="spine", bandwidth=6.0), Tier(name="leaf", bandwidth=12.5)),
    )
    nodes = tuple(
        node(one.name, one.machine, one.free, domains=("s", f"r{index % 4}"))
        for index, one in enumerate(world.nodes)
    )
    world = cluster(*nodes, tiers=world.tiers)
    text = shown(world, width=width, workers=workers, gpus=gpus)
    assert max(map(len, text.splitlines())) <= width


def test_of_many_kinds_of_sets_the_first_are_drawn_and_the_others_counted():
    world = cluster(*(node(f"dgx-{index}", V100, 0b11 << index) for index in range(7)))
    text = shown(world, workers=7, gpus=2)
    assert text.count("8 x V100") == screen_of.MOST_DRAWINGS
    assert "3 more nodes not drawn: the table names their GPUs" in text


def test_workers_of_a_large_gang_share_a_row_for_each_node():
    world = cluster(*(node(f"hgx-{index}", HGX) for index in range(3)))
    rows = shown(world, workers=24, gpus=1).splitlines()[4:8]
    assert rows == [
        "  0-7    hgx-0  0,1,2,3,4,5,6,7 (planned)  demo-worker-0..7",
        "  8-15   hgx-1  0,1,2,3,4,5,6,7 (planned)  demo-worker-8..15",
        "  16-23  hgx-2  0,1,2,3,4,5,6,7 (planned)  demo-worker-16..23",
        "  GPUs are in the order of the ring, rank after rank.",
    ]
    few = cluster(*(node(f"hgx-{index}", HGX, 0b1) for index in range(17)))
    assert "  16     hgx-16  0 (planned)  demo-worker-16\n" in shown(few, workers=17, gpus=1)
    pairs = shown(cluster(*world.nodes, node("hgx-3", HGX), node("hgx-4", HGX)), workers=20, gpus=2)
    assert "  0-7    hgx-0  0,1 2,3 4,5 6,7 (planned)  demo-worker-0..3\n" in pairs


def test_a_bandwidth_that_rests_on_a_guess_is_marked_and_the_guess_is_named(plan):
    _code, out, _err = plan(RACKS, 7, 4)
    assert (
        "  Bandwidth   2.68 GB/s (1.2 to 6)*, a guess, proven best for an assumed network\n" in out
    )
    assert out.count(" 2.68*  1.2 to 6 ") == 4
    assert "  * assumed: an unknown network: TCP; links between GPUs" in out
    world = cluster(node("a", HGX), node("b", HGX), beyond=3.0)
    known = shown(world, workers=2, gpus=8).partition("Bus bandwidth")[2]
    assert "*" not in known
    assert "assumed" not in known


def test_a_bandwidth_is_shown_with_its_range_and_with_what_limits_it():
    """One-GPU pods of a DGX-1: each is a host for NCCL, and nobody gave them RDMA."""
    world = cluster(node("dgx-0", V100, dedicated=True))
    said = shown(world, workers=4, gpus=1).partition("Bus bandwidth")[2]
    assert "  Bandwidth   5.66 GB/s (3.2 to 10), proven best\n" in said
    assert "  Limited by  TCP between the pods of one node\n" in said
    assert "  Shared pod  86.4 GB/s (75.1 to 98.4), if the workers of a node shared one pod" in said
    assert (
        "Advice: --pod-shape fused (1 pod of 4 workers) would give 86.4 GB/s (75.1 to 98.4)" in said
    )
    fused = shown(world, workers=4, gpus=1, pod_shape=PodShape.FUSED)
    assert "  Bandwidth   86.4 GB/s (75.1 to 98.4), proven best\n" in fused
    assert "  Limited by  the NVLinks inside one node\n" in fused
    assert "Shared pod" not in fused
    assert "Advice" not in fused


def test_gpus_that_the_kubelet_picks_are_worth_the_worst_of_them_and_the_plan_is_shown_beside(plan):
    _code, out, _err = plan(TWO_DGX_1, 1, 4)
    assert "  Bandwidth   9.97 GB/s (4.99 to 29.9)* at worst: the kubelet picks the GPUs\n" in out
    assert "  As planned  43.2 GB/s (37.6 to 49.2)*, proven best\n" in out
    assert "  as planned            43.2*" in out


def with_nics(machine, speed=50.0):
    """The machine with a NIC beside each GPU."""
    size = len(machine.gpus)
    cards = tuple(
        NIC(
            name=f"mlx5_{at}",
            attachment=tuple(
                Link(kind=LinkKind.PIX if gpu == at else LinkKind.SYS) for gpu in range(size)
            ),
            speed=speed,
        )
        for at in range(size)
    )
    return replace(machine, nics=cards, nics_assumed="")


H100 = replace(presets.preset_machine("hgx-h100", "hgx-h100"), nics=())


@pytest.mark.parametrize(
    ("offers", "flag"),
    [("rdma/hca", "--rdma"), ("nvidia.com/hostdev", "--device nvidia.com/hostdev=1")],
)
def test_rdma_that_the_pods_are_not_given_is_advised_with_the_flag_that_asks_for_it(offers, flag):
    world = cluster(*(node(f"hgx-{at}", with_nics(H100), rdma=offers) for at in range(2)))
    found = proposed(world, workers=3, gpus=4)
    assert found.plan.forecast.regime == "tcp"
    (advice,) = found.advice
    assert advice.startswith(f"{flag} would give these pods 186 GB/s (156 to 200)")
    asked = {"rdma": True} if flag == "--rdma" else {"device": (Device.parse(f"{offers}=1"),)}
    given = proposed(world, workers=3, gpus=4, **asked)
    assert given.advice == ()
    assert given.plan.forecast.usable == pytest.approx(186, rel=0.01)
    assert "  Limited by  the NICs between 2 nodes: 4 of 50 GB/s a node\n" in screen_of.plan_text(
        given
    )


def test_nics_that_no_resource_gives_to_pods_are_named_without_a_flag():
    world = cluster(*(node(f"hgx-{at}", with_nics(H100)) for at in range(2)))
    (advice,) = proposed(world, workers=3, gpus=4).advice
    assert advice.startswith(
        "these nodes offer pods no common RDMA device; their NICs would give these pods 186 GB/s"
    )
    # Their NICs are theirs alone: workers that request a device stay pending.
    note = "hgx-0 and 1 more offer pods no RDMA device: the workers cannot start there while"
    assert f"{note} --rdma asks for rdma/hca" in proposed(world, workers=3, gpus=4, rdma=True).notes


def test_nics_that_nodes_of_this_kind_only_usually_have_are_no_advice():
    usual = replace(with_nics(H100), nics_assumed="its GPU product")
    world = cluster(*(node(f"hgx-{at}", usual) for at in range(2)))
    assert proposed(world, workers=3, gpus=4).advice == ()


def test_a_row_that_is_wider_than_the_screen_goes_on_below():
    world = cluster(*(node(f"hgx-{at}", H100) for at in range(4)))
    wide = shown(world, width=80, workers=4, gpus=8).partition("RANGE")[2]
    narrow = shown(world, width=60, workers=4, gpus=8).partition("RANGE")[2]
    assert "1.00x  4 nodes, unknown network\n" in wide
    assert re.search(r"1.2 to 6  1.00x  4 nodes,\n    unknown network\n", narrow)


def test_an_nvlink_domain_is_called_so():
    tray = replace(presets.preset_machine("gb200-nvl72", "gb200-nvl72"), nics=())
    world = cluster(
        *(node(f"tray-{at}", tray, domains=("c",)) for at in range(4)),
        tiers=(Tier(name="nvlink", bandwidth=722.0),),
    )
    said = shown(world, workers=4, gpus=4)
    assert "  Limited by  the NVLinks within one NVLink domain\n" in said
    assert "4 nodes, one NVLink domain\n" in said


def test_a_plan_and_a_forecast_of_the_same_hosts_have_the_same_figures(capfd):
    """Eight pods of one GPU on a machine; one pod of all eight; two pods on two machines."""

    def said(*argv):
        capfd.readouterr()
        assert cli.run(argv) == 0
        return json.loads(capfd.readouterr().out)["bandwidth"]

    world = cluster(*(node(f"hgx-{at}", H100, dedicated=True) for at in range(2)))
    for gang, more in (
        ({"workers": 8, "gpus": 1}, ("--pod-shape=separate", "--tcp")),
        ({"workers": 1, "gpus": 8}, ()),
        ({"workers": 2, "gpus": 8}, ("--nodes=2", "--tcp")),
        ({"workers": 2, "gpus": 8, "rdma": True}, ("--nodes=2",)),
    ):
        planned = screen_of.plan_json(proposed(world, **gang))["bandwidth"]
        forecast = said("forecast", "hgx-h100", *more, "-o=json")
        assert planned["shares"].items() <= forecast.pop("shares").items()
        del planned["shares"]
        assert planned == forecast


def test_pods_that_would_share_a_node_too_slowly_are_refused_with_what_would_do(plan):
    """Pods of one node talk over TCP where they are given no RDMA, whatever links GPUs have."""
    code, out, err = plan(TWO_DGX_1, 4, 1, "--min-bandwidth=8")
    assert (code, out) == (5, "")
    assert "  try:  fits now with --min-bandwidth 5.65, or with --pod-shape fused\n" in err
    code, _out, err = plan(TWO_DGX_1, 4, 1, "--min-bandwidth=5.5")
    assert code == 0
    assert (
        "note: 5.66 GB/s (3.2 to 10): the low end of the range is less than --min-bandwidth 5.5,"
        " which the point is judged by\n"
    ) in err
    assert "low end" not in plan(TWO_DGX_1, 4, 1, "--min-bandwidth=3.2")[2]
    assert plan(TWO_DGX_1, 4, 1, "--min-bandwidth=8", "--pod-shape=fused")[0] == 0


def test_what_the_pods_get_decides_and_not_what_their_gpus_could_do_in_one_pod():
    """Four pods of one node share its NIC; on four nodes each pod has a NIC of its own."""
    machine = nics_of(H100, 1, 50.0)
    world = cluster(*(node(f"n{at}", machine) for at in range(4)))
    best = screen_of.plan_json(proposed(world, workers=4, gpus=1, rdma=True))
    assert (best["proof"]["optimal"], len(best["nodes"])) == (True, 4)
    assert best["usableGBps"] == best["comparison"]["spreadGBps"]
    packed = proposed(world, on="n0/0;n0/1;n0/2;n0/3", workers=4, gpus=1, rdma=True)
    one_node = screen_of.plan_json(packed)
    assert one_node["usableGBps"] < best["usableGBps"] < one_node["busBandwidthGBps"]
    assert one_node["proof"]["optimal"] is False


def test_a_least_bandwidth_that_the_kubelet_may_miss_is_not_met(plan):
    """The GPUs of one worker have a ring of NVLinks, those that the kubelet may pick have none."""
    code, out, err = plan(TWO_DGX_1, 1, 4, "--min-bandwidth=30")
    assert (code, out) == (3, "")
    assert "could use 9.97 GB/s (4.99 to 29.9) now, less than --min-bandwidth 30\n" in err
    assert "the kubelet picks the GPUs, at worst 9.97 GB/s (4.99 to 29.9)" in err
    assert "  try:  fits now with --min-bandwidth 9.97\n" in err
    assert plan(TWO_DGX_1, 1, 4, "--min-bandwidth=9.97")[0] == 0


@pytest.mark.parametrize("shape", list(PodShape))
@pytest.mark.parametrize(("workers", "gpus"), [(1, 8), (1, 2), (2, 4), (4, 1), (3, 8), (8, 2)])
def test_best_is_said_of_what_the_pods_get_and_never_of_gpus_that_they_may_not_get(
    shape, workers, gpus
):
    world = cluster(node("v", V100, 0b1111), *(node(f"hgx-{at}", HGX) for at in range(3)))
    found = proposed(world, workers=workers, gpus=gpus, pod_shape=shape)
    value, text = screen_of.plan_json(found), screen_of.plan_text(found)
    first = text.partition("  Bandwidth ")[2].partition("\n")[0]
    assert ("proven best" in first) == (value["proof"]["optimal"] is True)


def test_a_dump_without_nodes_is_a_mistake(plan, tmp_path):
    dump = tmp_path / "none.json"
    dump.write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    code, out, err = plan(dump, 4, 1, "-o=json")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {dump}: the dump holds no nodes\n")


def test_without_any_cluster_a_way_to_try_it_is_named(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    gang = ("--name=demo", "--gpus=1", "--gputopology", "--image=cuda", "true")
    for verb in ("plan", "submit"):
        assert cli.run((verb, "mpi", *gang)) == 2
        assert "--image local --emulate dgx-1-v100:2" in capfd.readouterr().err


def test_one_gpu_has_no_bandwidth_to_compare(plan):
    _code, out, _err = plan(RACKS, 1, 1)
    assert "Bus bandwidth: none, as one GPU has no peer" in out
    assert "GB/s" not in out


def test_a_gpu_that_is_not_healthy_is_neither_free_nor_in_use():
    world = cluster(node("dgx-0", V100, 0b1111, allocatable=gpu_set((0, 1, 2, 3, 4, 5, 6))))
    assert "; 4 chosen, 3 in use, 1 broken" in shown(world, workers=1, gpus=4)


def test_a_binding_that_nobody_could_try_is_said_to_be_unconfirmed():
    found = proposed(cluster(node("dgx-0", V100)), workers=2, gpus=4)
    assert found.plan is not None
    assert found.plan.forecast is not None
    assert screen_of.plan_json(found)["confirmed"] is True
    doubtful = replace(found.plan.forecast, binding="admission", confirmed=False)
    found = replace(found, plan=replace(found.plan, forecast=doubtful))
    said = (
        "by an admission policy, unconfirmed: whether a policy places workers could not be tried ("
    )
    assert said in screen_of.plan_text(found, unicode=True, width=300)
    assert screen_of.plan_json(found)["confirmed"] is False


# ---------------------------------------------------------------- for programs


def test_a_plan_in_json_is_stable(plan):
    code, out, _err = plan(TWO_DGX_1, 4, 1, "-o=json")
    assert (code, out) == (0, screen("plan-placeable.json"))


def test_a_gang_that_does_not_fit_now_ends_with_3_and_says_so_in_json_and_in_words(plan):
    code, out, err = plan(TWO_DGX_1, 8, 1, "-o=json")
    assert (code, out) == (3, screen("plan-not-now.json"))
    assert err.startswith("error: 8 workers x 1 GPU cannot be placed now\n")
    assert "--workers 7" in err


def test_a_gang_that_can_never_fit_ends_with_5_and_says_so_in_json_and_in_words(plan):
    code, out, err = plan(TWO_DGX_1, 17, 1, "-o=json")
    assert (code, out) == (5, screen("plan-never.json"))
    assert err.startswith("error: 17 workers x 1 GPU can never be placed on this cluster\n")


@pytest.mark.parametrize(("workers", "code"), [(4, 0), (8, 3), (17, 5)])
def test_every_answer_has_the_same_keys_in_json_and_in_yaml(plan, workers, code):
    first, out, _err = plan(TWO_DGX_1, workers, 1, "-o=json")
    again, text, _err = plan(TWO_DGX_1, workers, 1, "-o=yaml")
    assert (first, again) == (code, code)
    assert yaml.safe_load(text) == json.loads(out)
    assert list(json.loads(out)) == list(json.loads(screen("plan-placeable.json")))


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "mpi", "--workers=4", "--gpus=1"),
        ("topology", "show"),
        ("topology", "show", "dgx-0"),
    ],
)
def test_notes_are_plain_texts_in_json_and_in_yaml(words, capfd, tmp_path):
    dump = tmp_path / "dump.json"
    nameless = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": 7}}
    items = [*json.loads(TWO_DGX_1.read_text())["items"], nameless]
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert cli.run((*words, f"--state={dump}", "-o=json")) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["notes"][0].startswith("Node 7 is ignored: ")
    assert cli.run((*words, f"--state={dump}", "-o=yaml")) == 0
    assert yaml.safe_load(capfd.readouterr().out) == value


@pytest.mark.parametrize("workers", [8, 17])
def test_a_refusal_for_people_is_on_stderr_alone(plan, workers):
    _code, out, err = plan(TWO_DGX_1, workers, 1)
    assert out == ""
    assert "  why:  2 nodes (dgx-0, ...): room for some workers, and nowhere for the rest" in err


def test_gpus_that_the_kubelet_picks_are_null_in_json(plan):
    said = json.loads(plan(RACKS, 7, 4, "-o=json")[1])
    unknown = [one["index"] for one in said["workers"] if one["gpus"] is None]
    opaque = [one["index"] for one in said["workers"] if one["node"] == "hgx-0"]
    assert unknown == opaque != []


def test_a_single_gpu_has_no_bandwidth_in_json(plan):
    _code, out, _err = plan(RACKS, 1, 1, "-o=json")
    said = json.loads(out)
    assert (said["verdict"], said["busBandwidthGBps"], said["usableGBps"]) == (
        "Placeable",
        None,
        None,
    )
    assert set(said["comparison"].values()) == {None}
    assert said["proof"] == {"optimal": True, "bound": None, "knownNetworks": False}


def test_a_job_without_gpus_has_no_verdict(plan):
    code, out, err = plan(TWO_DGX_1, 2, 0, "--gputopology=false", "-o=json")
    assert (code, json.loads(out)["verdict"]) == (0, None)
    assert err == "The job demo asks for no GPUs: add --gpus N.\n"


# ---------------------------------------------------------------- what it is measured against


def test_the_cluster_without_other_jobs_gives_the_best_there_could_be():
    busy = cluster(node("dgx-0", V100, gpu_set((0, 1, 2, 4, 5))))
    found = compare_schedulers(Request(workers=4, gpus=1), busy)
    assert found.best_empty.bandwidth.point == pytest.approx(86.4)
    assert found.first_fit.bandwidth.point == pytest.approx(9.97, rel=0.01)


@pytest.mark.parametrize("shape", list(PodShape))
def test_what_other_choices_give_is_of_pods_of_the_same_shape(shape):
    """Whoever takes the first free GPUs takes the same ones here, so nobody has more or less."""
    world = cluster(node("hgx-0", HGX, dedicated=True))
    found = proposed(world, workers=8, gpus=1, pod_shape=shape)
    first = found.comparison.first_fit.bandwidth
    assert first.point == pytest.approx(found.plan.forecast.usable, rel=1e-5)


def test_where_the_gpus_are_unknown_others_count_at_their_worst_too():
    """The kubelet picks for any scheduler: an emptier node promises no more."""
    half = node("dgx-0", V100, gpu_set(range(8)), unattributed=4)
    found = proposed(cluster(half, node("dgx-1", V100)), workers=1, gpus=4)
    (worker,) = found.plan.placement.assignments
    assert (worker.node, worker.gpus) == ("dgx-0", ())
    compared = screen_of.plan_json(found)["comparison"]
    assert compared == {
        "bestNowGBps": None,
        "bestEmptyGBps": 9.97,
        "firstFitGBps": 9.97,
        "spreadGBps": 9.97,
    }
    assert screen_of.plan_text(found).count(" 9.97   4.99 to 29.9  1.00x  one node\n") == 4
    # The words of a figure for planned GPUs are others.
    assert screen_of.plan_text(found).count(", at worst ") == 4
    # Planned GPUs are compared with planned ones.
    found = proposed(cluster(node("dgx-1", V100)), workers=1, gpus=4)
    assert screen_of.plan_json(found)["comparison"]["spreadGBps"] == 86.4


def test_what_never_fits_has_no_best():
    found = compare_schedulers(Request(workers=9, gpus=1), cluster(node("dgx-0", V100)))
    assert (found.best_empty, found.first_fit, found.spread) == (None, None, None)


# ---------------------------------------------------------------- the shape of the pods


def test_one_gpu_workers_that_share_a_node_are_advised_to_become_one_pod():
    (advice,) = proposed(cluster(node("hgx-0", HGX)), workers=8, gpus=1).advice
    assert advice == "--pod-shape fused (1 pod of 8 workers) would give 230 GB/s (217 to 245)"


def test_the_divisor_that_leaves_each_pod_a_node_is_found():
    """Pairs and quads would still share a node; all 16 ranks in one pod fit no node."""
    nodes = (node(f"hgx-{index}", with_nics(H100)) for index in range(2))
    (advice,) = proposed(cluster(*nodes), workers=16, gpus=1, rdma=True).advice
    assert advice.startswith("--pod-shape fused (2 pods of 8 workers) would give ")


def test_what_is_advised_is_what_its_own_plan_promises_and_then_there_is_no_more_advice():
    world = cluster(*(node(f"hgx-{index}", with_nics(H100)) for index in range(2)))
    (advice,) = proposed(world, workers=8, gpus=2, rdma=True).advice
    fused = proposed(world, workers=8, gpus=2, rdma=True, pod_shape=PodShape.FUSED)
    assert advice.endswith(f"would give {estimates.recorded_estimate(fused.plan.forecast)}")
    assert fused.advice == ()


def test_the_cpu_of_larger_workers_must_be_there():
    """Four cores are left on each of two nodes; one worker of four GPUs would need eight."""
    spare = {"cpu": 4.0, "all_cpu": 64.0}
    world = cluster(node("hgx-0", HGX, **spare), node("hgx-1", HGX, **spare))
    found = proposed(world, workers=4, gpus=1, cpu=Quantity.parse("2"))
    assert (len(found.plan.placement.nodes), found.advice) == (2, ())


def test_advice_that_would_not_fit_is_not_given():
    world = cluster(*(node(f"hgx-{index}", HGX, 0b11) for index in range(3)))
    found = proposed(world, workers=3, gpus=1, max_nodes=2)
    assert found.plan is not None
    loads = Counter(one.node for one in found.plan.placement.assignments)
    assert (max(loads.values()), found.advice) == (2, ())


def test_workers_with_a_node_each_need_no_advice():
    world = cluster(*(node(f"hgx-{index}", HGX) for index in range(2)))
    assert proposed(world, workers=2, gpus=8).advice == ()


def test_an_engine_whose_workers_reach_each_other_directly_needs_no_advice():
    backend = local.open_local(Options(backend="local", emulate="dgx-1-v100"))
    found = propose(job(workers=4, gpus=1), backend, namespace="default")
    assert (found.advice, found.plan.forecast.usable) == ((), pytest.approx(86.4))


# ---------------------------------------------------------------- by numbers alone


def test_counting_says_how_many_gangs_fit_and_chooses_nothing(plan):
    code, out, err = plan(TWO_DGX_1, 3, 1, "--count-only")
    assert (code, out, err) == (0, screen("plan-count.txt"), "")


@pytest.mark.parametrize(
    ("workers", "code", "verdict"), [(7, 0, "Placeable"), (8, 3, "NotNow"), (17, 5, "Never")]
)
def test_counting_ends_with_the_codes_of_a_plan(plan, workers, code, verdict):
    ended, out, err = plan(TWO_DGX_1, workers, 1, "--count-only", "-o=json")
    said = json.loads(out)
    assert (ended, said["verdict"]) == (code, verdict)
    assert (said["largestWorkers"], said["largestWorkersEmpty"]) == (7, 16)
    assert ("error:" in err) == (code != 0)


def test_counting_minds_the_word_for_a_level_as_planning_does(plan):
    for more in ([], ["--count-only"]):
        code, out, err = plan(TWO_DGX_1, 3, 1, "--topology-preferred=nods", *more)
        assert (code, out) == (2, "")
        assert "error: --topology-preferred nods: this cluster has no such level" in err
        assert "did you mean node?" in err


@pytest.mark.parametrize("limit", ["min-bandwidth=500", "max-nodes=1", "topology-required=node"])
def test_counting_refuses_what_numbers_cannot_tell(plan, limit):
    """Eight pairs of neighbours never reach 500 GB/s, however many there are."""
    assert plan(TWO_DGX_1, 9, 1, f"--{limit}")[0] == 5
    code, out, err = plan(TWO_DGX_1, 9, 1, f"--{limit}", "--count-only", "-o=json")
    assert (code, out) == (2, "")
    assert f"error: --count-only and --{limit.partition('=')[0]} exclude each other" in err


def test_the_version_asked_for_decides_what_the_plan_can_promise():
    world = cluster(node("hgx-0", HGX, dedicated=True))
    planned = {
        api: propose(job(workers=1, gpus=4), None, namespace="default", api=api, cluster=world)
        for api in (ApiVersion.V2BETA1, ApiVersion.V1ALPHA1)
    }
    assert [one.plan.binding.guarantee for one in planned.values()] == ["gpus", "node"]
