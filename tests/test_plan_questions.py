"""What `plan mpi` answers beside the best placement: a bare question, --on and --top."""

import json
import subprocess
from pathlib import Path

import program
import pytest
from cube_mesh import HGX, V100, cluster, node, with_nics
from replacing import replace

from arena_topo import Client, cli, picture
from arena_topo.errors import InvalidJob, UsageError
from arena_topo.job import MPIJob, PodShape
from arena_topo.jobs import plan_view as screen_of
from arena_topo.jobs.proposal import next_best, propose
from arena_topo.layout import fold_text
from arena_topo.manifests.annotations import placement_map
from arena_topo.solver import Request, Verdict, band
from arena_topo.solver.door import place
from arena_topo.solver.index import Index
from arena_topo.topology import Holding, Tier, gpu_set, presets

HERE = Path(__file__).parent
TWO_DGX_1 = HERE / "dumps" / "two-dgx-1.json"


@pytest.fixture
def plan(capfd):
    """Plan on two machines in use; (exit code, stdout, stderr)."""

    def run(*argv):
        capfd.readouterr()
        code = cli.run(("plan", "mpi", f"--state={TWO_DGX_1}", *argv))
        return code, *capfd.readouterr()

    return run


def screen(name):
    return (HERE / "screens" / name).read_text(encoding="utf-8")


def proposed(world, *, on="", top=1, **more):
    job = MPIJob.sketch(**{"gputopology": True, **more})
    return propose(job, None, namespace="default", cluster=world, on=on, top=top)


# ---------------------------------------------------------------- a bare question


def test_workers_and_gpus_are_question_enough_and_are_answered_with_and_without_topology(plan):
    code, out, err = plan("--workers=4", "--gpus=1")
    assert (code, out) == (0, screen("plan-bare.txt"))
    assert "error" not in err


def test_a_bare_question_says_which_figure_is_that_of_the_planned_gpus(plan):
    _code, out, _err = plan("--workers=1", "--gpus=4")
    assert "  with --gputopology, as planned   43.2*" in out


def test_a_bare_question_on_machines_that_do_not_exist_needs_no_dump(capfd):
    code = cli.run(("plan", "mpi", "--workers=4", "--gpus=1", "--emulate=dgx-1-v100:2", "-o=json"))
    said = json.loads(capfd.readouterr().out)
    assert (code, said["verdict"], said["gputopology"]) == (0, "Placeable", False)
    assert said["usableGBps"] == pytest.approx(86.4)


@pytest.mark.parametrize(
    "flag", ["--gpu-model=V100", "--pod-shape=fused", "--topology-required=node"]
)
def test_a_flag_that_chooses_gpus_implies_gputopology_in_a_question(capfd, flag):
    emulated = ("plan", "mpi", "--workers=4", "--gpus=1", "--gang", "--emulate=dgx-1-v100:2", flag)
    assert cli.run((*emulated, "-o=json")) == 0
    # As for a bare question: the job has to be submitted with --gputopology.
    assert json.loads(capfd.readouterr().out)["gputopology"] is False
    assert cli.run(emulated) == 0
    out = capfd.readouterr().out
    assert " can be placed now with --gputopology" in out
    assert "\n  with --gputopology" in out
    assert "\n  without: first fit" in out
    name = flag.removeprefix("--").partition("=")[0].replace("-", "_")
    assert MPIJob.sketch(**{name: flag.partition("=")[2]}).gputopology
    given = ("--name=a", "--image=local", "--gpus=1", flag, "--dry-run", "true")
    assert cli.run(("submit", "mpi", "--emulate=dgx-1-v100:2", *given)) == 2
    assert " needs --gputopology\n" in capfd.readouterr().err


def test_a_flag_with_gputopology_is_no_question_about_gputopology(plan):
    code, out, _err = plan("--workers=4", "--gpus=1", "--gputopology", "--policy=spread")
    assert code == 0
    assert "--gputopology" not in out
    assert "\n  first fit by index" in out


def test_a_job_without_gputopology_is_compared_without_the_flags_that_imply_it():
    """A counting scheduler starts a pod for each worker, on GPUs of any model."""
    state = str(HERE.parent / "docs" / "pictures" / "cluster.yaml")
    client = Client()
    usual = client.plan(MPIJob.sketch(workers=4, gpus=1), state=state)
    asked = MPIJob.sketch(workers=4, gpus=1, pod_shape="fused", max_nodes=1)
    implied = client.plan(asked, state=state, implied=True)
    typed = client.plan(asked, state=state)
    assert [implied.asked, typed.asked] == [False, True]
    speeds = [[bandwidth.point for _, _, bandwidth in each.others] for each in (usual, implied)]
    assert speeds[0][1:] == speeds[1][1:]
    assert implied.plan.placement.bandwidth.point > 50 * max(speeds[1][1:])
    assert next(iter(typed.others))[2].point == implied.plan.placement.bandwidth.point


def test_flags_that_need_implying_flags_are_left_out_of_the_comparison_too():
    state = str(HERE.parent / "docs" / "pictures" / "cluster.yaml")
    asked = MPIJob.sketch(workers=4, gpus=1, policy="adaptive", pack_above=0.1)
    planned = Client().plan(asked, state=state, implied=True)
    usual = Client().plan(MPIJob.sketch(workers=4, gpus=1), state=state)
    names = [[name for name, _, _ in each.others] for each in (planned, usual)]
    assert names[0][1:] == names[1][1:]


def test_the_picture_of_other_pods_shows_the_gpus_of_the_job_alone():
    """First fit starts two pods of a GPU each where the job would be one pod of two."""
    state = str(HERE / "dumps" / "two-dgx-1.json")
    asked = MPIJob.sketch(workers=2, gpus=1, pod_shape="fused")
    drawn = picture(Client().plan(asked, state=state, implied=True))
    assert "; dgx-0 GPUs 0, 1, 5.66 GB/s " in drawn


def test_gputopology_that_is_refused_is_not_implied(plan, tmp_path):
    asked = ("--workers=4", "--gpus=1", "--policy=pack")
    code, out, err = plan(*asked, "--gputopology=false")
    assert (code, out) == (2, "")
    assert "--policy needs --gputopology\n" in err
    file = tmp_path / "job.yaml"
    file.write_text("gputopology: false\npolicy: pack\nworkers: 4\ngpus: 1\n", encoding="utf-8")
    code, out, err = plan(f"--file={file}")
    assert (code, out) == (2, "")
    assert "policy needs gputopology" in err.replace("--", "")
    with pytest.raises(InvalidJob, match="--policy needs --gputopology"):
        MPIJob.sketch(gputopology=False, policy="pack", gpus=1)


def test_a_flag_that_chooses_gpus_of_a_job_without_gpus_is_named_in_the_error(plan):
    for more in ((), ("--count-only",)):
        code, out, err = plan("--workers=2", "--policy=pack", *more)
        assert (code, out) == (2, "")
        assert "--policy needs GPUs\n" in err
        assert "gputopology" not in err
    # What is left open needs nothing, here as in a submission.
    code, _out, err = plan("--workers=2", "--pod-shape=auto")
    assert code == 0
    assert "asks for no GPUs" in err


@pytest.mark.parametrize(
    ("missing", "left"),
    [("command", ("--name=a", "--image=i")), ("name", ("--image=i", "true"))],
)
def test_a_job_that_is_created_still_needs_all_of_it(capfd, missing, left):
    code = cli.run(("submit", "mpi", "--gpus=1", f"--state={TWO_DGX_1}", "--dry-run", *left))
    assert code == 2
    assert missing in capfd.readouterr().err


def test_the_same_placement_is_planned_whether_the_job_asks_for_topology_or_not(plan):
    asked = json.loads(plan("--workers=4", "--gpus=1", "--gputopology", "-o=json")[1])
    bare = json.loads(plan("--workers=4", "--gpus=1", "-o=json")[1])
    assert (asked.pop("gputopology"), bare.pop("gputopology")) == (True, False)
    assert asked == bare


def test_without_topology_a_job_is_kept_from_the_nodes_that_are_set_aside_for_it():
    world = cluster(node("hgx-0", HGX, dedicated=True), node("dgx-1", V100))
    found = proposed(world, workers=4, gpus=1, gputopology=False)
    assert found.plan.placement.nodes == ("hgx-0",)
    assert list(found.comparison.first_fit.loads) == ["dgx-1"]
    assert list(found.comparison.spread.loads) == ["dgx-1"]


def test_a_bare_gang_that_does_not_fit_is_refused_as_any_other(plan):
    assert plan("--workers=8", "--gpus=1")[0] == 3
    assert plan("--workers=17", "--gpus=1")[0] == 5


def test_gangs_are_counted_without_a_word_about_topology(plan):
    code, out, _err = plan("--workers=3", "--gpus=1", "--count-only", "-o=json")
    assert (code, json.loads(out)["gangs"]) == (0, 2)


# ---------------------------------------------------------------- --on


def test_a_named_placement_is_valued_beside_the_best(plan):
    code, out, _err = plan("--workers=4", "--gpus=1", "--on=dgx-0/0;dgx-0/1;dgx-1/6;dgx-1/7")
    assert (code, out) == (0, screen("plan-on.txt"))


def test_a_named_placement_with_the_best_bandwidth_on_more_nodes_hears_that_it_is_the_most():
    world = cluster(*(node(f"hgx-{at}", with_nics(HGX, 8, 50.0)) for at in range(2)), beyond=50.0)
    asked = {"workers": 2, "gpus": 1, "rdma": True}
    shown = screen_of.plan_text(proposed(world, on="hgx-0/0;hgx-1/0", **asked))
    assert ", no more is possible\n" in shown
    assert ", proven best\n" in screen_of.plan_text(proposed(world, **asked))


WORLDS = {
    "meshes": cluster(node("dgx-0", V100, 0b110111), node("dgx-1", V100), node("dgx-2", V100, 7)),
    "switches": cluster(*(node(f"hgx-{at}", HGX, dedicated=True) for at in range(3))),
    "racks": cluster(
        *(node(f"hgx-{at}", HGX, domains=(f"r{at // 2}",)) for at in range(4)),
        tiers=(Tier(name="leaf", bandwidth=50.0),),
    ),
    "opaque": cluster(node("dgx-0", V100, 0b111111, unattributed=1), node("hgx-0", HGX)),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
@pytest.mark.parametrize("shape", list(PodShape))
@pytest.mark.parametrize(("workers", "gpus"), [(1, 4), (2, 4), (6, 1)])
def test_the_answer_given_back_with_on_has_the_same_number_and_proof(world, shape, workers, gpus):
    gang_of = {"workers": workers, "gpus": gpus, "pod_shape": shape}
    best = screen_of.plan_json(proposed(world, **gang_of))
    again = screen_of.plan_json(proposed(world, on=best["map"], **gang_of))
    assert again["comparison"].pop("bestNowGBps") is not None
    del best["comparison"]["bestNowGBps"]
    del best["advice"], again["advice"]
    assert again == best


def test_gpus_in_use_are_valued_and_the_plan_says_that_they_cannot_be_had_now(plan):
    code, out, err = plan("--workers=1", "--gpus=4", "--on=dgx-0/0,1,2,3", "-o=json")
    said = json.loads(out)
    assert (code, said["verdict"]) == (3, "NotNow")
    assert said["busBandwidthGBps"] == pytest.approx(86.4)
    assert "error: job cannot have this placement now\n" in err
    assert "  why:  GPU 3 of dgx-0 is in use by default/old\n" in err


def test_a_placement_on_gpus_in_use_names_their_jobs_and_no_limit_of_other_gpus():
    """What is best among free GPUs limits no placement on GPUs in use."""
    held = (Holding("team/bert", 4, gpu_set((0, 1, 2, 3))), Holding("team/x", 2, gpu_set((4, 5))))
    world = cluster(node("dgx-0", V100, gpu_set((6, 7)), holders=held))
    found = proposed(world, workers=2, gpus=2, on="dgx-0/0,3;dgx-0/4,7")
    assert found.refused.why == (
        "GPUs 0, 3 of dgx-0 are in use by team/bert; GPU 4 of dgx-0 is in use by team/x"
    )
    odd = cluster(node("dgx-0", V100, gpu_set((5, 7)), dedicated=True, holders=held[:1]))
    shown = screen_of.plan_text(proposed(odd, workers=1, gpus=2, on="dgx-0/0,3"))
    assert "\nNot now: GPUs 0, 3 of dgx-0 are in use by team/bert\n" in shown
    assert "  Bandwidth   43.2 GB/s (37.6 to 49.2), but not now\n" in shown
    assert "is possible" not in shown


def test_what_cannot_be_had_now_is_said_before_it_is_drawn():
    line = ["plan", "mpi", f"--state={TWO_DGX_1}", "--workers=1", "--gpus=4", "--on=dgx-0/0,1,2,3"]
    done = program.run(line, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 3
    assert 0 <= done.stdout.index("error: ") < done.stdout.index("RANKS")
    assert done.stdout.count("error: ") == 1


def test_a_named_placement_has_no_bound_where_nothing_fits_now():
    world = cluster(node("dgx-0", V100, 0b1111))
    shown = screen_of.plan_text(proposed(world, workers=1, gpus=8, on="dgx-0/0,1,2,3,4,5,6,7"))
    assert "inf" not in shown
    assert ", but not now\n" in shown


def test_a_node_that_the_job_may_not_use_is_valued_and_named():
    world = cluster(node("hgx-0", HGX), node("hgx-1", HGX, unavailable="NotReady"))
    found = proposed(world, workers=2, gpus=8, on="hgx-0/0,1,2,3,4,5,6,7;hgx-1/0,1,2,3,4,5,6,7")
    assert found.verdict is Verdict.NOT_NOW
    assert found.refused.why == "hgx-1: not ready"
    assert found.best is None
    assert found.plan.forecast.usable == pytest.approx(2.68, rel=0.1)


def test_a_gpu_that_is_broken_is_not_called_in_use():
    world = cluster(node("dgx-0", V100, 0b1111, allocatable=gpu_set((0, 1, 2, 3, 4))))
    found = proposed(world, workers=1, gpus=3, on="dgx-0/0,4,7")
    assert found.refused.why == "GPU 4 of dgx-0 is in use; GPU 7 of dgx-0 is broken"


@pytest.mark.parametrize(
    ("on", "why"),
    [
        ("dgx-9/0;dgx-0/1", "error: --on: this cluster has no node dgx-9"),
        ("dgx-0/0;dgx-0/8", "worker 1: dgx-0 has GPUs 0 to 7, not GPU 8"),
        ("dgx-0/0,1;dgx-0/2", "worker 0 has 2 GPUs, and --gpus 1"),
        ("dgx-0/0", "it names 1 worker, and 2 are asked for"),
        ("dgx-0/0;dgx-0/1;dgx-0/2", "it names 3 workers, and 2 are asked for"),
        ("dgx-0/0;dgx-0/0", "worker 1: GPU 0 of dgx-0 is taken twice"),
        ("dgx-0", "worker 0: expected NODE/GPU,GPU,..., got 'dgx-0'"),
    ],
)
def test_what_no_placement_of_the_job_can_be_is_a_mistake_of_one_line(plan, on, why):
    code, out, err = plan("--workers=2", "--gpus=1", f"--on={on}")
    assert (code, out) == (2, "")
    assert sum(why in line for line in err.splitlines()) == 1


def test_more_workers_than_a_node_has_gpus_are_refused_where_the_kubelet_picks():
    with pytest.raises(UsageError, match="--on is invalid") as caught:
        proposed(cluster(node("dgx-0", V100)), workers=3, gpus=4, on="dgx-0/;dgx-0/;dgx-0/")
    assert caught.value.why == "3 workers of 4 GPUs on dgx-0, which has 8 GPUs"


def test_fused_pods_are_named_as_they_are_planned():
    world = cluster(node("dgx-0", V100, dedicated=True))
    found = proposed(world, workers=4, gpus=1, pod_shape=PodShape.FUSED, on="dgx-0/0,1,4,5")
    assert (found.plan.job.workers, found.plan.job.gpus) == (1, 4)


@pytest.mark.parametrize(
    ("on", "fused"),
    [
        ("dgx-0/;dgx-0/;dgx-0/;dgx-0/", "dgx-0/"),
        ("dgx-0/0;dgx-0/3;dgx-1/1;dgx-1/2", "dgx-0/0,3;dgx-1/1,2"),
        ("dgx-0/0,3;dgx-0/1,2", "dgx-0/0,3,1,2"),
    ],
)
def test_several_pods_that_fused_makes_one_are_refused_with_the_map_to_write(on, fused):
    world = cluster(*(node(name, V100) for name in ("dgx-0", "dgx-1")))
    asked = {"workers": 4, "gpus": 1, "pod_shape": PodShape.FUSED}
    with pytest.raises(UsageError, match="--on is invalid") as caught:
        proposed(world, on=on, **asked)
    assert caught.value.hint == f'write --on "{fused}"'
    assert proposed(world, on=fused, **asked).plan is not None


def test_the_best_of_an_empty_cluster_is_never_below_the_best_that_is_free():
    world = cluster(*(node(name, V100) for name in ("dgx-0", "dgx-1")))
    asked = {"workers": 4, "gpus": 1, "pod_shape": PodShape.FUSED}
    found = proposed(world, on="dgx-0/0,3;dgx-1/0,3", **asked)
    empty = found.comparison.best_empty.bandwidth.point
    assert empty == found.best.bandwidth.point > found.plan.placement.bandwidth.point


# ---------------------------------------------------------------- --top


def test_the_next_best_are_listed_with_their_gpus_best_first(plan):
    code, out, _err = plan("--workers=1", "--gpus=2", "--gputopology", "--top=5")
    assert (code, out) == (0, screen("plan-top.txt"))


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
@pytest.mark.parametrize(("workers", "gpus"), [(1, 4), (4, 1), (2, 4), (2, 8), (9, 2)])
def test_rows_differ_in_their_nodes_and_none_is_better_than_the_one_above(world, workers, gpus):
    found = proposed(world, workers=workers, gpus=gpus, top=6)
    if found.plan is None:
        assert found.refused is not None
        return
    rows = found.rows
    assert [one.assignments for one in rows[:1]] == [found.plan.placement.assignments]
    assert len({frozenset(one.nodes) for one in rows}) == len(rows)
    # Without a cluster the kubelet picks the GPUs.
    bands = [band(one.worst.point) for one in rows]
    assert bands == sorted(bands, reverse=True)


def test_a_row_is_what_is_best_without_the_nodes_above_it():
    world = cluster(node("hgx-0", HGX), node("dgx-0", V100), node("dgx-1", V100, 0b11))
    request = Request(workers=1, gpus=2)
    rows = next_best(request, world, place(request, world), 9)
    assert [one.nodes for one in rows] == [("hgx-0",), ("dgx-0",), ("dgx-1",)]
    left = replace(world, nodes=world.nodes[1:])
    assert rows[1].bandwidth == place(request, left).bandwidth


def test_where_the_nodes_above_are_needed_there_is_no_other_row():
    world = cluster(*(node(f"hgx-{at}", HGX) for at in range(4)))
    assert len(proposed(world, workers=3, gpus=8, top=9).rows) == 1


def test_a_row_says_what_its_pods_get_at_worst_where_the_kubelet_picks(plan):
    said = json.loads(plan("--workers=1", "--gpus=2", "--top=2", "-o=json")[1])
    for row in said["top"]:
        again = plan("--workers=1", "--gpus=2", f"--on={row['map']}", "-o=json")[1]
        assert row["bandwidth"] == json.loads(again)["bandwidth"]
    assert said["top"][0]["bandwidth"] == said["bandwidth"]
    assert said["top"][1]["bandwidth"]["gbps"] < said["top"][1]["plannedGBps"]


def test_rows_can_be_given_back_with_on():
    world = WORLDS["meshes"]
    for one in proposed(world, workers=2, gpus=2, top=3).rows:
        again = proposed(world, workers=2, gpus=2, on=placement_map(one))
        assert screen_of.plan_json(again)["comparison"]["bestNowGBps"] is not None
        assert again.plan.placement.bandwidth == one.bandwidth


def test_a_thousand_nodes_are_indexed_once(monkeypatch):
    world = cluster(*(node(f"hgx-{at}", HGX) for at in range(20)))
    request, built = Request(workers=2, gpus=8), []
    first = place(request, world)
    made = Index.__init__
    monkeypatch.setattr(Index, "__init__", lambda *args: (built.append(1), made(*args))[1])
    assert len(next_best(request, world, first, 8)) == 8
    assert len(built) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ("--top=2", "--on=dgx-0/0;dgx-0/1"),
        ("--top=2", "-o=svg"),
        ("--top=2", "--count-only"),
        ("--on=dgx-0/0;dgx-0/1", "--count-only"),
    ],
)
def test_questions_that_do_not_go_together_are_a_mistake(plan, argv):
    code, out, err = plan("--workers=2", "--gpus=1", *argv)
    assert (code, out) == (2, "")
    assert " exclude each other\n" in err


def test_less_than_one_row_is_a_mistake(plan):
    assert plan("--workers=2", "--gpus=1", "--top=0")[0] == 2


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("asked", [{"top": 5}, {"gputopology": False}, {"on": "named"}])
def test_no_line_is_longer_than_the_screen_is_wide(width, asked):
    world = cluster(*(node(f"a-rather-long-name-of-a-node-{at}", HGX) for at in range(12)))
    if "on" in asked:
        asked = {"on": placement_map(proposed(world, workers=5, gpus=8).plan.placement)}
    text = fold_text(
        screen_of.plan_text(proposed(world, workers=5, gpus=8, **asked), width=width), width
    )
    assert max(map(len, text.splitlines())) <= width


# ---------------------------------------------------------------- --pod-shape auto


@pytest.mark.parametrize("source", ["flag", "settings", "profile", "job file"])
def test_auto_says_first_into_how_many_pods_the_workers_go(capfd, tmp_path, monkeypatch, source):
    settings, job = tmp_path / "settings.toml", tmp_path / "job.yaml"
    job.write_text("pod-shape: auto\n" if source == "job file" else "workers: 4\n")
    settings.write_text(
        {
            "settings": '[submit]\npod-shape = "auto"\n',
            "profile": '[profile.lab.submit]\npod-shape = "auto"\n',
        }.get(source, "")
    )
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(settings))
    argv = ["plan", "mpi", "--workers=4", "--gpus=1", "--gputopology", f"--state={TWO_DGX_1}"]
    argv += {
        "flag": ["--pod-shape=auto"],
        "profile": ["--profile=lab"],
        "job file": [f"--file={job}"],
    }.get(source, [])
    code = cli.run(argv)
    out = capfd.readouterr().out
    assert code == 0
    assert out.startswith("job: 4 workers x 1 GPU can be placed now in 1 pod of 4, on one node\n")
    assert cli.run([*argv, "-o=json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["podShape"], said["askedPodShape"]) == ("fused", "auto")


# ---------------------------------------------------------------- the other shapes


def with_rdma(at):
    return node(f"hgx-{at}", presets.preset_machine("hgx-h100", f"hgx-{at}"), rdma="rdma/hca")


def test_workers_on_nodes_of_their_own_are_told_what_one_pod_would_give():
    """Four H100 nodes with RDMA: apart they are faster than beside each other, but not than one."""
    world = cluster(*(with_rdma(at) for at in range(4)))
    found = proposed(world, workers=4, gpus=1, rdma=True)
    (advice,) = found.advice
    assert advice.startswith("--pod-shape fused (1 pod of 4 workers) would give ")
    fused = proposed(world, workers=4, gpus=1, rdma=True, pod_shape=PodShape.FUSED)
    assert fused.plan.forecast.usable > found.plan.forecast.usable


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -npernode 1 python train.py",
        "mpirun --map-by ppr:1:node train",
        "mpirun -H a,b train",
        "/usr/bin/mpirun --rankfile=ranks train",
        "cd /src && horovodrun -np 4 -H a:1,b:1 python train.py",
        "mpiexec.hydra -ppn 1 train",
    ],
)
def test_no_other_shape_is_advised_where_the_command_says_where_ranks_run(command):
    world = cluster(node("hgx-0", HGX, dedicated=True))
    assert proposed(world, workers=4, gpus=1).advice != ()
    assert proposed(world, workers=4, gpus=1, command=command).advice == ()
