"""Open MPI 4 command lines, as arena's documentation writes them, in the words of other MPIs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from arena_topo.engines.local import mpirun
from arena_topo.engines.local.mpirun import Flavour, Surroundings, Untranslatable, launch, translate

ARENA = (
    "--allow-run-as-root -np 4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO"
    " -x NCCL_SOCKET_IFNAME=eth7 -x LD_LIBRARY_PATH -x PATH --mca pml ob1"
    " --mca btl_tcp_if_include eth7 --mca oob_tcp_if_include eth7"
    " --mca orte_keep_fqdn_hostnames t --mca btl ^openib python train.py --lr 0.1"
)


def around(slots: int = 1, workers: int = 4, **environment: str) -> Surroundings:
    return Surroundings(
        slots={f"j-worker-{index}": slots for index in range(workers)},
        environment={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "", **environment},
        launcher={"CUDA_VISIBLE_DEVICES": ""},
        interfaces=frozenset({"lo", "eth0"}),
    )


def words(line: str, flavour: Flavour, where: Surroundings | None = None) -> str:
    return shlex.join(translate(shlex.split(line), flavour, where or around()).words)


HERE = "-localhost 127.0.0.1"
ALL = f"{HERE} -hosts j-worker-0:1,j-worker-1:1,j-worker-2:1,j-worker-3:1 -genvnone"


def test_arenas_line_runs_under_mpich():
    assert words(ARENA, Flavour.HYDRA, around(LD_LIBRARY_PATH="/usr/lib")) == (
        f"{ALL} -genv NCCL_DEBUG INFO -genv LD_LIBRARY_PATH /usr/lib -genv PATH /bin"
        " -n 4 python train.py --lr 0.1"
    )


def test_arenas_line_runs_under_open_mpi_5():
    assert words(ARENA, Flavour.OPEN_MPI_5) == (
        "--allow-run-as-root -n 4 --bind-to none --map-by slot -x NCCL_DEBUG=INFO -x PATH"
        " --mca pml ob1 python train.py --lr 0.1"
    )


def test_arenas_line_stays_itself_under_open_mpi_4_but_for_names_of_another_machine():
    assert words(ARENA, Flavour.OPEN_MPI_4) == (
        "--allow-run-as-root --np 4 --bind-to none --map-by slot -x NCCL_DEBUG=INFO -x PATH"
        " --mca pml ob1 --mca orte_keep_fqdn_hostnames t --mca btl '^openib'"
        " python train.py --lr 0.1"
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("python x", f"{ALL} -n 4 python x"),
        ("-c 2 python x", f"{ALL} -n 2 python x"),
        ("--np=3 python x", f"{ALL} -n 3 python x"),
        ("-np 2 -- -odd x", f"{ALL} -n 2 -odd x"),
        ("-np 2 --tag-output x", f"{ALL} -prepend-rank -n 2 x"),
        ("-np 2 -wdir /data x", f"{ALL} -n 2 -wdir /data x"),
        ("-np 4 --hostfile /etc/mpi/hostfile x", f"{ALL} -n 4 x"),
        ("-np 6 --oversubscribe x", f"{ALL} -n 6 x"),
        ("-np 6 --map-by slot:OVERSUBSCRIBE x", f"{ALL} -n 6 x"),
        (
            "-H j-worker-2:1,j-worker-0 x",
            f"{HERE} -hosts j-worker-2:1,j-worker-0:1 -genvnone -n 2 x",
        ),
        ("-host j-worker-1.j.ns.svc x", f"{HERE} -hosts j-worker-1:1 -genvnone -n 1 x"),
        (
            "-np 1 -x A=1 x : -np 2 -x B=2 y -n z",
            f"{ALL} -env A 1 -n 1 x : -env B 2 -n 2 y -n z",
        ),
    ],
)
def test_an_option_of_open_mpi_says_the_same_to_mpich(line, said):
    assert words(line, Flavour.HYDRA) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x", f"{HERE} -hosts j-worker-0:2,j-worker-1:2 -genvnone -n 4 x"),
        ("-npernode 1 x", f"{HERE} -hosts j-worker-0:1,j-worker-1:1 -genvnone -n 2 x"),
        ("-N 2 x", f"{HERE} -hosts j-worker-0:2,j-worker-1:2 -genvnone -n 4 x"),
        ("-pernode x", f"{HERE} -hosts j-worker-0:1,j-worker-1:1 -genvnone -n 2 x"),
        ("--map-by ppr:1:node x", f"{HERE} -hosts j-worker-0:1,j-worker-1:1 -genvnone -n 2 x"),
        ("-np 4 --map-by node x", f"{HERE} -hosts j-worker-0:1,j-worker-1:1 -genvnone -n 4 x"),
    ],
)
def test_ranks_are_laid_out_over_workers_of_two_slots_as_open_mpi_does(line, said):
    assert words(line, Flavour.HYDRA, around(slots=2, workers=2)) == said


def test_a_hostfile_of_open_mpi_is_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# mine\nj-worker-3 slots=1\nj-worker-1:2\n\n")
    assert words(f"--hostfile {file} x", Flavour.HYDRA) == (
        f"{HERE} -hosts j-worker-3:1,j-worker-1:2 -genvnone -n 3 x"
    )


@pytest.mark.parametrize(
    "line",
    [
        "-n 2 -ppn 1 -prepend-rank python x",
        "-genv A 1 -n 2 python x",
        "-f hosts -launcher ssh -n 8 python x",
    ],
)
def test_a_line_in_mpichs_own_words_is_left_alone(line):
    assert words(line, Flavour.HYDRA) == line


def test_a_line_in_mpichs_own_words_keeps_each_workers_own_gpus():
    told = translate(["-genv", "A", "1", "x"], Flavour.HYDRA, around(HOME="/h"))
    assert told.environment == {"PATH": "/bin", "HOME": "/h"}
    chosen = translate(["-genv", "A", "1", "x"], Flavour.HYDRA, around(CUDA_VISIBLE_DEVICES="5"))
    assert chosen.environment["CUDA_VISIBLE_DEVICES"] == "5"


@pytest.mark.parametrize(
    "line",
    [
        "-n 4 --output tag --map-by slot:OVERSUBSCRIBE --display map python x",
        "--runtime-options recoverable -n 2 python x -n",
        "-n 2 --prtemca state_base_verbose 1 python x",
    ],
)
def test_a_line_in_open_mpi_5s_own_words_is_left_alone(line):
    assert words(line, Flavour.OPEN_MPI_5) == line


def test_old_words_become_new_ones_for_open_mpi_5():
    told = translate(
        shlex.split("-np 6 --oversubscribe -tag-output -npernode 3 --mca plm_rsh_agent ssh x"),
        Flavour.OPEN_MPI_5,
        around(),
    )
    assert shlex.join(told.words) == "-n 6 --output tag -N 3 x"
    assert told.environment["PRTE_MCA_rmaps_default_mapping_policy"] == ":OVERSUBSCRIBE"


def test_more_ranks_than_slots_are_refused_as_open_mpi_does():
    with pytest.raises(Untranslatable, match="There are not enough slots available") as refused:
        words("-np 5 python x", Flavour.HYDRA)
    assert "The 4 workers of this job have 4 slots" in str(refused.value)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("-np 2 --rankfile r x", "option --rankfile has no counterpart in MPICH"),
        ("-np 2 --frobnicate x", "option --frobnicate is neither Open MPI's nor known to MPICH"),
        ("-np", "option -np wants 1 value"),
        ("-np two x", "'two' is not a number of processes"),
        ("-np 2", "there is no program to run"),
        ("-H elsewhere x", "elsewhere is no worker of this job"),
        ("--hostfile /nowhere/h x", "cannot read the hostfile /nowhere/h"),
    ],
)
def test_what_mpich_cannot_do_is_named(line, text):
    with pytest.raises(Untranslatable, match=text):
        words(line, Flavour.HYDRA)


def remarks(line: str, flavour: Flavour, where: Surroundings | None = None) -> list[str]:
    return list(translate(shlex.split(line), flavour, where or around()).remarks)


NO_INTERFACE = "not used, since this machine has no such network interface: "


@pytest.mark.parametrize("flavour", [Flavour.HYDRA, Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5])
def test_of_arenas_own_line_only_the_interfaces_of_another_machine_are_spoken_of(flavour):
    assert remarks(ARENA, flavour) == [
        f"{NO_INTERFACE}NCCL_SOCKET_IFNAME=eth7, btl_tcp_if_include eth7"
    ]
    assert remarks(ARENA.replace("eth7", "eth0"), Flavour.OPEN_MPI_4) == []


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--bind-to core", "the workers share this machine's processors"),
        ("--cpu-set 0-3", "the workers share this machine's processors"),
        ("--map-by socket:PE=2", "the workers share this machine's processors"),
        ("--rank-by core", "ranks are counted worker by worker"),
        ("--report-bindings", "MPICH has no counterpart"),
        ("--timestamp-output", "MPICH has no counterpart"),
        ("--mca pml ucx", "MPICH has no MCA parameters"),
        ("--mca btl_tcp_if_include eth0", "MPICH has no MCA parameters"),
        ("-d", "MPICH has no counterpart"),
    ],
)
def test_an_option_that_mpich_has_no_use_for_is_said_once(option, why):
    line = f"-np 2 {option} {option} x"
    assert remarks(line, Flavour.HYDRA) == [f"{option} is not used: {why}"]
    assert words(line, Flavour.HYDRA) == f"{ALL} -n 2 x"


@pytest.mark.parametrize(
    "options",
    [
        "-bind-to none -map-by slot --rank-by slot -q --nolocal --merge-stderr-to-stdout",
        "--mca plm_rsh_agent ssh --mca oob_tcp_if_include eth7 --mca pml ob1",
        "--map-by ppr:1:node:OVERSUBSCRIBE -x UNSET -x CUDA_VISIBLE_DEVICES",
        "--hostfile /etc/mpi/hostfile --oversubscribe --allow-run-as-root",
    ],
)
@pytest.mark.parametrize("flavour", [Flavour.HYDRA, Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5])
def test_what_is_so_anyway_is_dropped_without_a_word(options, flavour):
    assert remarks(f"-np 2 {options} x", flavour) == []


def test_what_the_first_program_says_of_workers_holds_for_all_and_that_is_said():
    line = "-np 1 -H j-worker-0:2 x : -np 1 -H j-worker-1 --map-by slot y"
    assert remarks(line, Flavour.HYDRA) == [
        "-H j-worker-1 is not used: the first program's holds for all"
    ]


GIVEN_OUT = "is not used: the workers and this machine's processors are arena-topo's to give out"


@pytest.mark.parametrize(
    ("flavour", "option", "remark"),
    [
        (Flavour.OPEN_MPI_4, "--mca rmaps_base_mapping_policy node", GIVEN_OUT),
        (Flavour.OPEN_MPI_5, "--mca hwloc_base_binding_policy core", GIVEN_OUT),
        (
            Flavour.OPEN_MPI_5,
            "--mca opal_cuda_support 1",
            "is not used: Open MPI 5 does not have it",
        ),
    ],
)
def test_an_option_that_open_mpi_does_not_get_is_said(flavour, option, remark):
    assert remarks(f"-np 2 {option} x", flavour) == [f"{option} {remark}"]
    assert words(f"-np 2 {option} x", flavour).split()[2:] == ["x"]


@pytest.mark.parametrize("flavour", [Flavour.HYDRA, Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5])
def test_an_interface_that_is_not_here_is_said_wherever_it_is_named(flavour):
    where = around(GLOO_SOCKET_IFNAME="ib0")
    line = "-np 2 -x GLOO_SOCKET_IFNAME --mca btl_tcp_if_include ib0 -x NCCL_SOCKET_IFNAME=lo x"
    assert remarks(line, flavour, where) == [
        f"{NO_INTERFACE}GLOO_SOCKET_IFNAME=ib0, btl_tcp_if_include ib0"
    ]
    assert "ib0" not in words(line, flavour, where)
    assert "NCCL_SOCKET_IFNAME" in words(line, flavour, where)


def test_an_option_without_its_value_is_left_to_open_mpi():
    assert words("-np 2 --hostfile", Flavour.OPEN_MPI_5) == "-n 2 --hostfile"


def test_a_line_that_mpich_and_open_mpi_both_understand_is_read_as_open_mpis():
    line = "-np 4 -bind-to core x"
    assert words(line, Flavour.HYDRA) == f"{ALL} -n 4 x"
    assert words(f"-ppn 1 {line}", Flavour.HYDRA) == f"-ppn 1 {line}"


def test_exports_reach_the_ranks_as_they_are():
    hostile = "a b'c\"d $x ; é\nnew"
    told = translate(["-x", "V", "-x", "W_*", "x"], Flavour.HYDRA, around(V=hostile, W_1="1"))
    assert told.words[4:] == (
        "-genvnone",
        "-genv",
        "V",
        hostile,
        "-genv",
        "W_1",
        "1",
        "-n",
        "4",
        "x",
    )


@pytest.mark.parametrize("flavour", [Flavour.HYDRA, Flavour.OPEN_MPI_4, Flavour.OPEN_MPI_5])
def test_the_launchers_lack_of_gpus_is_never_exported(flavour):
    assert "CUDA_VISIBLE_DEVICES" not in words("-np 2 -x CUDA_VISIBLE_DEVICES x", flavour)


@pytest.mark.parametrize(
    ("name", "value", "foreign"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", False),
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "^docker", False),
        ("NCCL_SOCKET_IFNAME", "ib0,bond0", True),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("btl_tcp_if_include", "eth0", False),
        ("btl_tcp_if_include", "10.0.0.0/8", True),
        ("OMPI_MCA_oob_tcp_if_include", "ens3", True),
        ("NCCL_DEBUG", "eth9", False),
    ],
)
def test_names_of_interfaces_that_are_not_here_are_known(name, value, foreign):
    assert mpirun.foreign(name, value, {"lo", "eth0"}) is foreign


@pytest.mark.parametrize(
    ("version", "flavour"),
    [
        ("HYDRA build details:\n    Version:    5.0.2\n", Flavour.HYDRA),
        ("mpirun (Open MPI) 4.1.6\n\nReport bugs to ...", Flavour.OPEN_MPI_4),
        ("mpiexec (OpenRTE) 3.1.3\n", Flavour.OPEN_MPI_4),
        ("mpirun (Open MPI) 5.0.11\n", Flavour.OPEN_MPI_5),
        ("prterun (PRRTE) 3.0.11\n", Flavour.OPEN_MPI_5),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13", Flavour.INTEL),
        ("srun 23.11", Flavour.OTHER),
    ],
)
def test_whose_mpirun_it_is_shows_in_its_version(version, flavour):
    assert launch.flavour_of(version) is flavour


def test_the_version_is_asked_once_until_the_file_changes(tmp_path):
    program, cache, asked = tmp_path / "mpirun", tmp_path / "cache", tmp_path / "asked"
    program.write_text(f"#!/bin/sh\necho x >> {asked}\necho 'mpirun (Open MPI) 4.1.6'\n")
    program.chmod(0o700)
    for _ in range(3):
        assert launch.flavour_at(program, cache) is Flavour.OPEN_MPI_4
    assert asked.read_text() == "x\n"
    os.utime(program, ns=(1, 1))
    assert launch.flavour_at(program, cache) is Flavour.OPEN_MPI_4
    assert asked.read_text() == "x\nx\n"


@pytest.mark.parametrize(
    "content",
    ["[]", "7", "{", "[" * 100_000, '{"KEY": "NONSENSE"}', '{"KEY": []}', b"\xff", '{"KEY": null}'],
    ids=lambda content: str(content)[:20],
)
def test_odd_content_of_the_memory_of_flavours_is_asked_again(content, tmp_path):
    program, cache = tmp_path / "mpirun", tmp_path / "mpi.json"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.6'\n")
    program.chmod(0o700)
    if isinstance(content, str):
        key = f"{program}@{program.stat().st_mtime_ns}"
        content = content.replace("KEY", key).encode()
    cache.write_bytes(content)
    assert launch.flavour_at(program, cache) is Flavour.OPEN_MPI_4
    program.write_text("#!/bin/sh\nexit 1\n")
    os.utime(program, ns=(7, 7))
    assert launch.flavour_at(program, cache) is Flavour.OTHER, "what was asked is remembered whole"


def test_a_machine_without_mpi_says_how_to_get_one(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "pods.json").write_text(
        f'{{"bin": "{tmp_path / "bin"}", "slots": {{}}, "launcher": {{}}, "cache": "c"}}'
    )
    done = subprocess.run(
        [*mpirun.script("run", tmp_path, "mpirun"), "-np", "2", "x"],
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path / 'bin'}:/nowhere"},
        check=False,
    )
    assert done.returncode == 127
    assert done.stderr == (
        "arena-topo: mpirun: no MPI is installed on this machine\n"
        "arena-topo: install one beside arena-topo: pip install 'arena-topo[mpi]',"
        " or put the folder of yours on the PATH\n"
    )


@pytest.mark.parametrize(
    "options", [[], ["-x"], ["-o", "ConnectionAttempts=10"], ["-x", "-o", "A=b", "-q"]], ids=str
)
def test_options_that_mpirun_hands_to_ssh_are_not_taken_for_the_host(
    options: list[str], tmp_path: Path
):
    """Open MPI 5 is told PRTE_MCA_plm_ssh_args by the manifest."""
    job = {"slots": {"demo-worker-0": 2}, "folder": str(tmp_path)}
    (tmp_path / "pods.json").write_text(json.dumps(job))
    pod = tmp_path / "pods" / "demo-worker-0"
    pod.mkdir(parents=True)
    (pod / "env").write_text(json.dumps({"ARENA_TOPO_POD": "demo-worker-0"}))
    words = [*options, "demo-worker-0", "echo", "$ARENA_TOPO_POD"]
    script = (
        "import sys; from pathlib import Path\n"
        "from arena_topo.engines.local.mpirun.launch import agent\n"
        "sys.exit(agent(Path(sys.argv[1]), sys.argv[2:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "demo-worker-0\n", "")
