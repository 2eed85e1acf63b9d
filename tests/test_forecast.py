"""`forecast`: what it shows, what programs get, a log beside it, and lines that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from arena_topo import cli
from arena_topo.topology import presets

HERE = Path(__file__).parent
QUAD = HERE / "machines" / "nccl-quad.xml"

SWEEP = ((1 << 20, 30.0), (1 << 27, 400.0), (1 << 30, 460.0), (1 << 33, 478.0))


@pytest.fixture
def arena(capfd, monkeypatch):
    """Run a command line without a cluster; (exit code, stdout, stderr)."""
    monkeypatch.setenv("ARENA_TOPO_BACKEND", "local")

    def run(*argv):
        capfd.readouterr()
        code = cli.run(("forecast", *argv))
        return code, *capfd.readouterr()

    return run


def told(arena, *argv):
    code, out, _ = arena(*argv, "-o", "json")
    assert code == 0
    return json.loads(out)


def log(ranks, sweep=SWEEP, *, hosts=1, operation="all_reduce", more=()):
    """What nccl-tests prints."""
    lines = [f"# Collective test starting: {operation}_perf", *more]
    lines += [
        f"#  Rank {rank:2} Group  0 Pid  {100 + rank} on node-{rank * hosts // ranks}"
        f" device {rank:2} [0000:{rank:02x}:00] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]
    lines.append(
        "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
    )
    lines += [
        f"  {size}  {size // 4}  float  sum  -1  10.0  1.0  {rate}  0  10.0  1.0  {rate}  0"
        for size, rate in sweep
    ]
    return "\n".join([*lines, "# Avg bus bandwidth    : 300", ""])


def in_json(ranks, sweep=SWEEP, operation="all_reduce"):
    """What nccl-tests writes with -J."""
    return json.dumps(
        {
            "version": 1,
            "args": [f"./build/{operation}_perf", "-b", "1M"],
            "config": {
                "devices": [
                    {"rank": rank, "pid": 1, "hostname": "node-0", "device": rank}
                    for rank in range(ranks)
                ]
            },
            "results": [
                {"size": size, "out_of_place": {"bus_bw": rate}, "in_place": {"bus_bw": rate}}
                for size, rate in sweep
            ],
        }
    )


def test_a_forecast_says_number_range_regime_limit_and_shares(arena):
    code, out, _ = arena("hgx-h100")
    assert code == 0
    assert "479 GB/s (453 to 506)" in out
    assert "Regime      nvls" in out
    assert "Limited by  the NVLinks inside one node" in out
    assert [line.split()[0] for line in out.splitlines() if "%" in line][:2] == ["1MiB", "2MiB"]


def test_programs_get_the_same_with_shares_by_message_size(arena):
    value = told(arena, "hgx-h100", "--nodes", "2")
    assert (value["machine"], value["gpusPerNode"], value["nodes"]) == ("hgx-h100", 8, 2)
    found = value["bandwidth"]
    assert found["low"] <= found["gbps"] <= found["high"]
    assert found["assumed"] is True
    assert next(iter(found["shares"])) == "1MiB"
    assert list(found["shares"])[-1] == "8GiB"
    assert found["shares"]["16MiB"] < found["shares"]["25MiB"] < found["shares"]["32MiB"]


def test_one_gpu_has_no_bandwidth(arena):
    assert told(arena, "hgx-h100", "--gpus", "1")["bandwidth"] is None
    code, out, _ = arena("hgx-h100", "--gpus", "1")
    assert code == 0
    assert "A single GPU has no bandwidth." in out


def test_a_number_of_gpus_takes_the_best_of_them(arena):
    pair = told(arena, "dgx-1-v100", "--gpus", "2")
    # Two NVLinks join 0 and 3; 0 and 1 have one.
    assert pair["gpus"] == [0, 3]
    slower = told(arena, "dgx-1-v100", "--set", "0,1")
    assert slower["bandwidth"]["gbps"] == pytest.approx(pair["bandwidth"]["gbps"] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        (("a3-highgpu-8g", "--gpus", "4", "--nodes", "4"), [0, 2, 4, 6]),
        (("a3-highgpu-8g", "--gpus", "2", "--nodes", "2"), [0, 2]),
        (("a3-highgpu-8g", "--gpus", "4", "--pod-shape", "separate"), [0, 2, 4, 6]),
        (("p4d.24xlarge", "--gpus", "4", "--nodes", "2"), [0, 2, 4, 6]),
        (("dgx-2", "--gpus", "2", "--nodes", "4", "--nics", "8x12.5GB"), [0, 2]),
        (("dgx-2", "--gpus", "9", "--nodes", "2000", "--nics", "8x12.5GB"), None),
    ],
)
def test_the_best_gpus_of_several_nodes_do_not_share_nics(arena, argv, gpus):
    best = told(arena, *argv)
    number = len(best["gpus"])
    assert best["gpus"] == gpus or gpus is None
    first = argv.index("--gpus")
    firsts = ",".join(map(str, range(number)))
    sharing = told(arena, *argv[:first], "--set", firsts, *argv[first + 2 :])
    assert best["bandwidth"]["gbps"] > 1.1 * sharing["bandwidth"]["gbps"]


def test_nodes_of_an_instance_type_without_rdma_communicate_over_tcp(arena):
    code, out, err = arena("p3.16xlarge", "--nodes", "2", "-o", "json")
    assert (code, json.loads(out)["bandwidth"]["regime"]) == (0, "tcp")
    assert err == "note: nodes of type p3.16xlarge have no RDMA, so they communicate over TCP\n"
    assert told(arena, "p3dn.24xlarge", "--nodes", "2")["bandwidth"]["regime"] == "two-hosts"


@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("a3-highgpu-8g", "tcpx"),
        ("a3-edgegpu-8g", "tcpx"),
        ("a3-megagpu-8g", "tcpxo"),
        ("p4d.24xlarge", "efa"),
        ("p5.48xlarge", "efa"),
        ("a3-ultragpu-8g", None),
    ],
)
def test_an_instance_type_has_rdma_with_its_own_plugin_which_is_said(arena, name, plugin):
    code, out, err = arena(name, "--nodes", "2", "-o", "json")
    value = json.loads(out)
    assert (code, value["site"]["plugin"]) == (0, plugin)
    assert err == (
        f"note: nodes of type {name} have RDMA with the plug-in {plugin} of NCCL, which this"
        " forecast takes for granted; --plugin names another\n"
        if plugin
        else ""
    )
    code, shown, _ = arena(name, "--nodes", "2", "-o", "yaml")
    assert (code, yaml.safe_load(shown)) == (0, value)
    for other in (("--nodes", "2", "--plugin", "none"), ("--nodes", "2", "--tcp"), ()):
        _, _, err = arena(name, *other, "-o", "json")
        assert err == ""
    plain = told(arena, name, "--nodes", "2", "--plugin", "none")["bandwidth"]
    assert (value["bandwidth"]["low"] < plain["low"]) == (plugin == "tcpx")


@pytest.mark.parametrize("name", presets.INSTANCES)
def test_every_instance_type_has_a_forecast_inside_a_node_and_between_nodes(arena, name):
    inside, between = (
        told(arena, name, "--nodes", nodes)["bandwidth"]["gbps"] for nodes in ("1", "2")
    )
    assert inside > 0
    assert between > 0


def test_a_size_of_azure_needs_no_prefix(arena):
    short, full = (told(arena, name) for name in ("ND96isr_H100_v5", "Standard_ND96isr_H100_v5"))
    assert short == full


def test_every_preset_has_a_forecast_for_any_number_of_gpus(arena):
    for name in presets.preset_names():
        alone = len(presets.preset_machine(name, "node").gpus) == 1
        assert (told(arena, name)["bandwidth"] is None) is alone
        for nodes in ("2", "3") if alone else ("1", "2", "3"):
            assert told(arena, name, "--nodes", nodes)["bandwidth"]["gbps"] > 0


def test_two_linked_dgx_sparks_reach_what_is_posted_of_them(arena):
    """22 to 24 GB/s over a port of 200 GbE: https://github.com/NVIDIA/dgx-spark-playbooks/pull/103."""
    value = told(arena, "dgx-spark", "--nodes", "2")["bandwidth"]
    assert 22 < value["gbps"] < 24
    assert value["low"] < 12 < value["high"]


def test_a_file_and_an_instance_type_are_machines(arena):
    assert told(arena, str(QUAD))["gpusPerNode"] == 4
    nodes = told(arena, "p4d.24xlarge", "--nodes", "4")
    assert nodes["bandwidth"]["gbps"] == pytest.approx(46.5, rel=0.01)
    assert nodes["bandwidth"]["limitedBy"] == "NICs"


PAIRS = """        GPU0    GPU1    GPU2    GPU3
GPU0     X      NV18    NV18    NV18
GPU1    NV18     X      NV18    NV18
GPU2    NV18    NV18     X      NV18
GPU3    NV18    NV18    NV18     X
"""


def test_the_gpu_model_of_a_matrix_can_be_named(arena, tmp_path):
    (tmp_path / "topo.txt").write_text(PAIRS)
    unknown = told(arena, str(tmp_path / "topo.txt"))["bandwidth"]
    named = told(arena, str(tmp_path / "topo.txt"), "--gpu-model", "NVIDIA GB200")["bandwidth"]
    # A tray of an NVL72 measured 663.
    assert named["gbps"] == pytest.approx(663, rel=0.05)
    assert named["assumed"] is False
    assert unknown["assumed"] is True
    assert unknown["low"] < 370
    assert unknown["high"] > 663
    code, _, err = arena("hgx-h100", "--gpu-model", "B200")
    assert code == 2
    assert "hgx-h100 has GPUs of model H100" in err


def test_gpus_without_p2p_go_through_host_memory_whatever_joins_them(arena):
    value = told(arena, "hgx-h100", "--no-p2p")
    assert value["site"] == {"p2p": False, "gdr": True, "plugin": None}
    assert value["bandwidth"]["regime"] == "host-staged"
    assert value["bandwidth"]["high"] < 60
    code, out, _ = arena("hgx-h100", "--no-p2p")
    assert code == 0
    assert "  Site        no P2P\n" in out
    # Nodes of an NVLink domain are hosts of their own then.
    trays = told(arena, "gb200-nvl72", "--nodes", "4", "--no-p2p")
    assert trays["hosts"] == 4


def test_nics_without_gpudirect_reach_a_part_of_their_rate(arena):
    usual = told(arena, "hgx-h100", "--nodes", "4", "--nics", "8x400G")["bandwidth"]
    value = told(arena, "hgx-h100", "--nodes", "4", "--nics", "8x400G", "--no-gdr")["bandwidth"]
    assert value["gbps"] < 0.6 * usual["gbps"]
    assert value["low"] < 0.4 * usual["low"]
    assert told(arena, "hgx-h100", "--no-gdr")["bandwidth"] == told(arena, "hgx-h100")["bandwidth"]


@pytest.mark.parametrize(
    ("plugin", "point", "low"),
    [
        ("none", 1.0, 1.0),
        ("efa", 1.0, 1.0),
        ("tcpxo", 1.0, 1.0),
        ("cxi", 0.59, 0.52),
        *((plugin, 1.0, 0.45) for plugin in ("tcpx", "gib", "ucx", "spcx")),
    ],
)
def test_a_plugin_without_rows_changes_the_range_alone(arena, plugin, point, low):
    argv = ("hgx-h100", "--nodes", "4", "--nics", "8x200G")
    usual = told(arena, *argv)["bandwidth"]
    value = told(arena, *argv, "--plugin", plugin)
    assert value["site"]["plugin"] == plugin
    assert value["bandwidth"]["gbps"] == pytest.approx(point * usual["gbps"], rel=0.02)
    assert value["bandwidth"]["low"] == pytest.approx(low * usual["low"], rel=0.05)
    _, out, _ = arena(*argv, "--plugin", plugin)
    assert (f"plug-in {plugin}" in out) == (plugin != "none")
    assert ("no measured rows" in out) == (low == 0.45)


def test_plugin_tcpx_takes_bandwidth_inside_a_host(arena):
    # The image of a3-highgpu reaches 263 GB/s where others reach 480.
    value = told(arena, "a3-highgpu-8g", "--plugin", "tcpx")["bandwidth"]
    assert value["low"] <= 263 <= value["high"]
    assert value["high"] < 400


@pytest.mark.parametrize(
    "argv",
    [
        ("pcie-8", "--nodes", "2", "--tcp"),
        ("pcie-8", "--nodes", "2"),
        ("{file}",),
        ("{file}", "--gpu-model", "Voodoo 3"),
    ],
)
def test_a_value_that_rests_on_a_guess_says_so(arena, tmp_path, argv):
    file = tmp_path / "pcie.txt"
    file.write_text("      GPU0 GPU1\nGPU0   X   PIX\nGPU1  PIX   X\n")
    code, out, err = arena(*(word.format(file=file) for word in argv))
    assert code == 0, err
    assert ", a guess\n" in out
    if "Voodoo 3" in argv:
        assert "  Assumed     PCIe generation 3, as GPU model Voodoo 3 is not known\n" in out


def test_a_value_from_known_facts_is_no_guess(arena):
    for argv in (("hgx-h100",), ("hgx-h100", "--nodes", "4", "--nics", "8x400G"), ("dgx-1-v100",)):
        assert "guess" not in arena(*argv)[1]


def test_nics_are_those_that_are_named(arena):
    narrow, wide = (
        told(arena, "hgx-h100", "--nodes", "4", "--nics", nics)["bandwidth"]
        for nics in ("8x100G", "8x25GB")
    )
    assert narrow["assumed"] is False
    assert wide["gbps"] == pytest.approx(2 * narrow["gbps"], rel=0.01)


def test_separate_pods_are_hosts_of_their_own(arena):
    one = told(arena, "hgx-h100", "--pod-shape", "separate", "--nics", "8x400G")
    assert one["hosts"] == 8
    assert one["bandwidth"]["gbps"] < 50
    assert told(arena, "pcie-4", "--pod-shape", "separate")["bandwidth"]["low"] == 3.2
    over = told(arena, "hgx-h100", "--pod-shape", "separate", "--tcp")
    assert 3.2 <= over["bandwidth"]["low"] <= over["bandwidth"]["gbps"] <= 10


def test_an_algorithm_that_is_forced_counts(arena):
    assert told(arena, "hgx-h100", "--algorithm", "ring")["bandwidth"]["regime"] == "nvswitch-ring"


@pytest.mark.parametrize(
    "words", [["hgx-h100"], ["hgx-h100", "--gpus", "1"], ["pcie-4", "--nodes=3"]]
)
def test_a_picture_of_it_is_whole_and_needs_nothing_else(arena, words):
    code, out, _ = arena(*words, "-o", "svg")
    assert code == 0
    root = ET.fromstring(out)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "http" not in out.replace("http://www.w3.org/2000/svg", "")


def test_a_picture_shows_what_was_measured(arena, tmp_path):
    (tmp_path / "log").write_text(log(8))
    alone = arena("hgx-h100", "-o", "svg")[1]
    beside = arena("hgx-h100", "--against", str(tmp_path / "log"), "-o", "svg")[1]
    assert ">measured<" not in alone
    assert ">measured<" in beside
    assert beside.count("<path") > alone.count("<path")


# ---------------------------------------------------------------- beside a log


@pytest.mark.parametrize("written", [log, in_json])
def test_a_log_inside_the_range_is_reported_as_inside(arena, tmp_path, written):
    (tmp_path / "log").write_text(written(8))
    code, out, _ = arena("hgx-h100", "--against", str(tmp_path / "log"))
    assert code == 0
    assert "At 8GiB 478 GB/s were measured: inside the range." in out
    assert "usually" not in out


def test_a_log_below_the_range_comes_with_what_usually_explains_it(arena, tmp_path):
    (tmp_path / "log").write_text(log(8, ((1 << 30, 350.0),)))
    code, out, _ = arena("hgx-h100", "--against", str(tmp_path / "log"))
    assert code == 0
    assert "below the range." in out
    assert "NVLink SHARP could not be set up" in out
    value = told(arena, "hgx-h100", "--against", str(tmp_path / "log"))
    assert value["against"]["inside"] is False
    assert value["against"]["rows"][0]["measuredGBps"] == 350
    assert value["against"]["causes"]


def test_what_nccl_complains_of_in_the_log_comes_first(arena, tmp_path):
    warns = "node-0:35:42 [0] transport/shm.cc:100 NCCL WARN Error: failed to extend"
    warns += " /dev/shm/nccl-x to 9637892 bytes"
    (tmp_path / "log").write_text(log(8, ((1 << 30, 350.0),), more=[warns]))
    _, out, _ = arena("hgx-h100", "--against", str(tmp_path / "log"))
    assert "shared memory is full" in out
    assert "NVLink SHARP" not in out


def test_the_hint_for_a_log_of_other_gpus_is_the_line_that_fits(arena, tmp_path):
    (tmp_path / "log").write_text(log(16, hosts=2))
    code, _, said = arena("hgx-h100", "--against", str(tmp_path / "log"))
    assert code == 2
    assert "16 GPUs took part, and the forecast is of 8" in said
    assert "--nodes 2 --gpus 8" in said
    code, _, _ = arena(
        "hgx-h100", "--nodes", "2", "--gpus", "8", "--against", str(tmp_path / "log")
    )
    assert code == 0


# ---------------------------------------------------------------- lines that make no sense


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nics", "0x400G"], "0 NICs"),
        (["--nics", "8x400T"], "T is no unit of speed"),
        (["--nics", "8x400"], "a number alone is no unit"),
        (["--nics", "many"], "'many' is no count and speed"),
        (["--set", "0,1,1"], "--set 0,1,1: GPU 1 is named twice"),
        (["--set", "0,8"], "has no such GPUs"),
        (["--set", "0,x"], "has no such GPUs"),
        (["--set", "0,1", "--gpus", "2"], "exclude each other"),
        (["--gpus", "9"], "has 8 GPUs"),
        (["--gpus", "0"], "has 8 GPUs"),
        (["--nodes", "0"], "1 to 10,000 nodes"),
        (["--algorithm", "tree"], "there is no forecast for that"),
        (["--against", "/nowhere/log"], "cannot read /nowhere/log"),
    ],
)
def test_an_invalid_line_is_a_single_clear_error(arena, words, said):
    code, out, err = arena("hgx-h100", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert said in err.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello\n", "this is no output of nccl-tests"),
        ("{}", "this is no output of nccl-tests"),
        ("{", "this is no output of nccl-tests"),
        ('{"results": 1, "args": []}', "this is no output of nccl-tests"),
        (log(8, operation="all_gather"), "all_gather was measured, not all_reduce"),
        (in_json(8, operation="all_gather"), "all_gather was measured, not all_reduce"),
        (log(8, ((8, 0.1),)), "no size from 1 MiB on"),
    ],
)
def test_a_log_of_something_else_is_refused(arena, tmp_path, text, said):
    (tmp_path / "log").write_text(text)
    code, _, err = arena("hgx-h100", "--against", str(tmp_path / "log"))
    assert code == 2
    assert said in err.splitlines()[0]


def test_an_unknown_machine_is_refused(arena):
    code, _, err = arena("hgx-h1000")
    assert code == 1
    assert "there is no node or preset hgx-h1000" in err
    assert "hgx-h100" in err
    code, _, err = arena("p5.48xlarg")
    assert (code, "did you mean p5.48xlarge?" in err) == (1, True)


def test_a_forecast_of_no_machine_says_where_their_names_are(arena):
    assert arena() == (
        2,
        "",
        "error: no machine is named\n  try:  arena-topo topology presets lists machines\n",
    )


def test_a_machine_whose_name_is_longer_than_any_files_is_refused(arena):
    code, _, err = arena("0" * 300)
    assert code == 1
    assert f"there is no node or preset {'0' * 300}" in err
