"""`simulate`: what it shows, what programs get, and lines that make no sense."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import program
import pytest

import arena_topo
from arena_topo import cli

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "site"))

import limits

TRACE = """job_id,submit_s,duration_s,gpus
a,0,3600,8
b,10,7200,8
c,20,600,16
d,30,60,1
e,40,60,64
f,50,60,0
"""

NODES = ("--nodes", "2xdgx-1-v100")
WHOLE = ("--window", "0%-100%")


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return str(path)


@pytest.fixture
def simulate(capfd):
    """Run a command line; (exit code, stdout, stderr)."""

    def run(*argv):
        capfd.readouterr()
        code = cli.run(("simulate", *argv))
        return code, *capfd.readouterr()

    return run


SCREEN = Path(__file__).parent / "screens" / "simulate.txt"


def test_the_screen_names_every_assumption_and_compares_with_the_first_line(simulate, jobs):
    code, out, err = simulate(jobs, *NODES, *WHOLE, "--queue", "gpu-hours,none")
    assert (code, err) == (0, "")
    assert out == SCREEN.read_text()


def test_a_trace_that_is_too_short_for_its_load_is_called_so(simulate):
    """Else a newcomer reads waits of zero as the answer."""
    line = ("--load=0.8", "-o=json")
    for nodes, number, short in ((4, 60, True), (1, 600, False)):
        size = f"--nodes={nodes}xdgx-1-v100", f"--generate=poisson:{number}"
        code, out, _ = simulate(*size, *line)
        assert code == 0
        notes = " ".join(json.loads(out)["notes"])
        assert ("hardly a job waited: the trace is too short" in notes) is short


def test_wide_tells_each_class_of_sizes(simulate, jobs):
    code, out, _ = simulate(jobs, *NODES, *WHOLE, "-o", "wide")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("156.09")][1:]
    assert [(row[4], row[5]) for row in rows] == [("1", "1"), ("5-8", "2"), (">8", "1")]
    # The job of one GPU waited for capacity, then for the head.
    assert rows[0][6:14] == ["2.16", "2.16", "2.16", "2.16", "1.16", "0.00", "1.00", "0.00"]
    assert "at sensitivities 0, 0.05, 0.12, 0.19, 0.4" in out


def test_json_has_the_same_bytes_for_any_number_of_processes(simulate):
    line = ("--generate", "poisson:60", "--load", "0.7,0.9", "--seeds", "2", *NODES, "-o", "json")
    code, one, _ = simulate(*line, "--policy", "pack,random", "--processes", "1")
    assert code == 0
    assert simulate(*line, "--policy", "pack,random", "--processes", "3")[1] == one
    value = json.loads(one)
    assert (value["kind"], value["complete"], value["trace"]["jobs"]) == ("Simulation", True, 60)
    assert [(run["load"], run["policy"], run["seed"]) for run in value["runs"]] == [
        (load, policy, seed)
        for load in (0.7, 0.9)
        for policy in ("pack", "random")
        for seed in (0, 1)
    ]
    shares = "68.2 % with 1 GPU, 13.2 % with 2 or 4, 15.3 % with 8 and 3.3 % with 16 or 32"
    assert value["assumptions"][0].startswith(f"60 jobs drawn for each seed: {shares}, submitted")
    assert len(value["settings"]) == 4
    assert value["settings"][0]["toTheFirst"] is None
    assert value["settings"][1]["toTheFirst"]["verdict"] in {"longer", "shorter", "no difference"}
    run = value["runs"][0]
    assert sum(size["jobs"] for size in run["sizes"]) == run["jobs"] == 36
    assert run["offeredLoad"] == pytest.approx(0.7)
    words = {os.uname().nodename, str(Path.cwd())}
    assert not any(word in one for word in words)


def test_a_setting_has_its_offered_load_also_at_the_times_of_the_trace(simulate, jobs):
    shown = simulate(jobs, *NODES, *WHOLE)[1]
    code, out, _ = simulate(jobs, *NODES, *WHOLE, "-o", "json")
    value = json.loads(out)
    [setting] = value["settings"]
    assert (code, setting["load"]) == (0, None)
    assert setting["offeredLoad"] == value["runs"][0]["offeredLoad"]
    assert f"\n{setting['offeredLoad']:.2f}  pack" in shown


def test_csv_has_a_line_for_each_job(simulate, jobs):
    code, out, err = simulate(jobs, *NODES, *WHOLE, "-o", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["job_id"], row["start_s"], row["end_s"], row["nodes"]) for row in rows] == [
        ("a", "0", "3600", "1"),
        ("b", "10", "7210", "1"),
        ("c", "7210", "7810", "2"),
        ("d", "7810", "7870", "1"),
    ]
    assert float(rows[3]["capacity_s"]) + float(rows[3]["reserved_s"]) == 7780
    assert {row["patience_s"] for row in rows} == {"86400"}
    assert {row["patient_s"] for row in rows} == {"0"}
    assert "1 job left out, which never fit" in err


def test_seeds_without_jobs_of_a_size_do_not_lower_its_means(simulate):
    drawn = ("--generate", "poisson:20", "--load", "0.5", "--seeds", "3")
    code, out, _ = simulate(*drawn, "--nodes", "4xdgx-1-v100", *WHOLE, "-o", "json")
    sizes = [run["sizes"][-1] for run in json.loads(out)["runs"]]
    assert (code, {bool(size["jobs"]) for size in sizes}) == (0, {False, True})
    code, out, _ = simulate(*drawn, "--nodes", "4xdgx-1-v100", *WHOLE, "-o", "wide")
    largest = next(line for line in out.splitlines() if " >8 " in line and "WAIT" not in line)
    assert (code, float(largest.split()[15]) >= 1) == (0, True)


def test_the_trace_may_come_from_standard_input():
    ran = program.run(["simulate", "-", *NODES, "-o", "csv", *WHOLE], input=TRACE.encode())
    assert (ran.returncode, len(ran.stdout.splitlines())) == (0, 5)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "error: no trace is named"),
        (("--generate", "poisson:9", "--load", "1"), "error: no cluster is named"),
        (("--generate", "poisson:9", *NODES), "error: --generate needs --load"),
        (("--generate", "poisson:x", *NODES, "--load", "1"), "error: --generate poisson:x: expect"),
        (("TRACE", "--generate", "poisson:9", *NODES), "error: --generate and TRACE exclude each"),
        (("TRACE", *NODES, "--state", "x"), "error: --nodes and --state exclude each other"),
        (("TRACE", *NODES, "--fabric", "x"), "error: --fabric needs --state"),
        (("TRACE", "--state", "none.json"), "error: none.json: cannot"),
        (("TRACE", "--nodes", "3xdgx"), "error: unknown preset 'dgx'"),
        (
            ("TRACE", "--nodes", "0xdgx-1-v100"),
            "error: cannot read the machines of '0xdgx-1-v100': a count is 0\n  try:  write COUNTx",
        ),
        (("TRACE", *NODES, "--policy", "pakc"), "error: --policy is invalid"),
        (("TRACE", *NODES, "--queue", "fifo"), "error: --queue is invalid"),
        (("TRACE", *NODES, "--patience", "long"), "error: --patience is invalid"),
        (("TRACE", *NODES, "--load", "0"), "error: --load is invalid"),
        (("TRACE", *NODES, "--load", "11"), "error: --load is invalid"),
        (("TRACE", *NODES, "--load", "nan"), "error: --load is invalid"),
        (("TRACE", *NODES, "--window", "80%-20%"), "error: --window is invalid"),
        (("TRACE", *NODES, "--window", "half"), "error: --window is invalid"),
        (("TRACE", *NODES, "--speed", "A100"), "error: --speed is invalid"),
        (("TRACE", *NODES, "--speed", "A1000=2"), "error: --speed is invalid"),
        (
            ("TRACE", *NODES, "--speed", "FOO=2"),
            "error: --speed is invalid\n  why:  there is no GPU model 'FOO'\n",
        ),
        (("TRACE", *NODES, "--seeds", "0"), "error: --seeds is invalid"),
        (("TRACE", *NODES, "--seeds", "1001"), "error: --seeds 1001: there can be 1 to 1,000"),
        (("TRACE", *NODES, "--network", "token-ring"), "error: --network is invalid"),
        (("TRACE", *NODES, "-o", "svgz"), "error: --output is invalid"),
    ],
)
def test_lines_that_make_no_sense_are_refused(simulate, jobs, argv, message):
    code, out, err = simulate(*(jobs if word == "TRACE" else word for word in argv))
    assert (code, out) == (2, "")
    assert err.startswith(message)


def running(name: str, group: str, started: str | None) -> dict[str, object]:
    """A pod on the GPUs of a node of the dump."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-worker-0",
            "namespace": "a",
            "annotations": {"topology.kubernetes.io/gpu-group": group, "arena-topo.io/format": "1"},
        },
        "spec": {
            "nodeName": "dgx-0",
            "containers": [
                {"name": "c", "resources": {"limits": {"nvidia.com/gpu": len(group.split(","))}}}
            ],
        },
        "status": {"phase": "Running", **({"startTime": started} if started else {})},
    }


def test_jobs_of_a_dump_hold_their_gpus_to_their_limit_or_for_as_long_again(simulate, tmp_path):
    dump = json.loads((Path(__file__).parent / "dumps" / "two-dgx-1.json").read_text())
    nodes = [item for item in dump["items"] if item["kind"] == "Node"]
    pods = [
        running("old", "0,1,2,3", "2026-01-01T00:00:00Z"),
        running("new", "4,5", "2026-01-01T01:00:00Z"),
    ]
    state, trace = tmp_path / "state.json", tmp_path / "jobs.csv"
    state.write_text(json.dumps({**dump, "items": [*nodes, *pods]}))
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,60,16\nb,1,60,8\n")
    line = (str(trace), "--state", str(state), *WHOLE)
    code, out, _ = simulate(*line, "--queue", "none", "-o", "csv")
    assert code == 0
    starts = {row["job_id"]: row["start_s"] for row in csv.DictReader(io.StringIO(out))}
    assert starts == {"a": "3600", "b": "1"}
    code, out, _ = simulate(*line)
    running_line = "Running: 2 jobs of the dump, with 6 GPUs; each ends by its time limit, else"
    assert running_line in out
    limited = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "old", "namespace": "a"},
        "spec": {"runPolicy": {"activeDeadlineSeconds": 5400}},
    }
    state.write_text(json.dumps({**dump, "items": [*nodes, *pods, limited]}))
    out = simulate(*line, "--queue", "none", "-o", "csv")[1]
    starts = {row["job_id"]: row["start_s"] for row in csv.DictReader(io.StringIO(out))}
    assert starts == {"a": "1800", "b": "1"}
    # Without a start nobody knows an end.
    state.write_text(json.dumps({**dump, "items": [*nodes, running("old", "0,1", None)]}))
    code, out, _ = simulate(*line)
    assert code == 0
    assert "1 of unknown age never" in out
    assert "Note: 2 jobs wait at the end, behind jobs that never end" in out


def test_a_dump_is_simulated_over_the_network_that_plan_says_and_without_nodes_in_slices(
    simulate, tmp_path
):
    dump = json.loads((Path(__file__).parent / "dumps" / "two-dgx-1.json").read_text())
    nodes = [item for item in dump["items"] if item["kind"] == "Node"]
    slices = {"cpu": "96", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "56"}
    mig = {
        **nodes[0],
        "metadata": {"name": "mig", "labels": {"nvidia.com/gpu.product": "A100-SXM4-40GB"}},
        "status": {"capacity": slices, "allocatable": slices},
    }
    state, trace = tmp_path / "state.json", tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,duration_s,gpus\na,0,60,16\n")
    line = (str(trace), "--state", str(state), *WHOLE)
    state.write_text(json.dumps({**dump, "items": [*nodes, mig]}))
    code, out, _ = simulate(*line)
    assert code == 0
    assert "\nCluster: 2 nodes, 16 usable GPUs: 2 with 8 x V100\nNetwork: TCP, beyond" in out
    assert "\nNetwork: RDMA, beyond" in simulate(*line, "--network", "rdma")[1]
    for node in nodes:
        node["status"]["allocatable"] |= {"rdma/hca": "4"}
    state.write_text(json.dumps({**dump, "items": nodes}))
    assert "\nNetwork: RDMA, beyond" in simulate(*line)[1]


def test_a_bad_trace_is_refused_with_its_place(simulate, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("id,when\n1,2\n")
    code, out, err = simulate(str(path), *NODES)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}: the columns are those of no trace that is known\n")


def test_a_window_without_jobs_is_said(simulate, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("job_id,submit_s,duration_s,gpus\na,0,60,1\n")
    code, out, _ = simulate(str(path), *NODES, "--window", "0%-50%")
    assert code == 0
    assert "Measured: jobs between 0 % and 50 %" in out
    code, out, _ = simulate(str(path), *NODES, "--window", "20%-80%")
    assert (code, "Note: no job lies within the window\n" in out) == (0, True)


def test_output_that_cannot_be_written_is_an_error(jobs):
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*program.LINE, "simulate", jobs, *NODES],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr.startswith(b"error: cannot write the output")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_an_interrupt_prints_what_is_done_and_says_so(processes):
    line = ["simulate", "--generate", "poisson:300", "--load", "0.9", "--nodes", "8xdgx-1-v100"]
    line += ["--seeds", "900", "--processes", processes, "-o", "json", "--loglevel", "debug"]
    running = subprocess.Popen(
        [*program.LINE, *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stderr is not None
    for told in running.stderr:
        if b"2 of 900 replays" in told:
            break
    os.kill(running.pid, signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    value = json.loads(out)
    assert value["complete"] is False
    assert 2 <= len(value["runs"]) < 900
    assert value["notes"][0] == f"interrupted: {len(value['runs'])} of 900 replays done"


def test_python_gets_the_values_of_the_command(simulate, jobs):
    request = arena_topo.SimulationRequest(nodes="2xdgx-1-v100", window="0%-100%", processes=1)
    simulation = arena_topo.Client().simulate(jobs, request=request)
    value = arena_topo.json_value(simulation)
    assert value == json.loads(simulate(jobs, *NODES, *WHOLE, "-o", "json")[1])
    assert [len(each) for each in simulation.jobs] == [4]
    schema = json.loads((Path(__file__).parents[1] / "docs/simulation.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(value)


def test_pictures_have_four_plots_and_the_page_the_whole_screen(simulate, jobs):
    line = (jobs, *NODES, *WHOLE, "--policy", "pack,first-fit", "--load", "0.5,0.9")
    code, out, _ = simulate(*line, "-o", "svg")
    assert code == 0
    drawn = ET.fromstring(out)
    words = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for title in (
        "Waiting of jobs on 2 and more GPUs",
        "Completion time",
        "GPUs in use, and dashed asked for by waiting jobs",
        "Steps beside those on the best placement",
        "first-fit, gpu-hours, 24h",
    ):
        assert title in words
    code, page, _ = simulate(*line, "-o", "html")
    assert code == 0
    assert out.partition("<style>")[0] in page
    assert "Not modelled: failures" in page
    assert "NEIGHBOURS: factor" in page


def test_the_table_of_the_page_is_that_of_the_figures():
    """Make it again: python docs/site/limits.py --page."""
    rows = [line.split("\t") for line in limits.FIGURES.read_text().splitlines()]
    assert tuple(rows[0]) == limits.HEADER
    page = limits.PAGE.read_text()
    assert limits.with_tables(page, rows[1:]) == page
    assert [tuple(row[:7]) for row in rows[1:]] == [
        (study.name, str(network), f"{load:g}", *setting.words)
        for study in limits.STUDIES
        for network in study.networks
        for load in study.loads
        for setting in study.settings
    ]
