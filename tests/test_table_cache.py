"""Tables of large machines on disk: used when they can be trusted, done without otherwise."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cube_mesh import HGX, V100, V100_LANES, cluster, machine, matrix, node

from arena_topo import workflow
from arena_topo.job import MPIJob
from arena_topo.solver import Request, configurations, place
from arena_topo.solver.configurations import Table
from arena_topo.topology import GPUSet, Link, LinkKind, flat, gpu_set
from arena_topo.workflow import tables

SYS = Link(kind=LinkKind.SYS)
TWO_MESHES = machine(
    "two cube meshes",
    "V100",
    matrix(
        16,
        V100_LANES | {(one + 8, other + 8): lanes for (one, other), lanes in V100_LANES.items()},
        SYS,
    ),
)
SHAPE = TWO_MESHES.configuration
DGX2 = machine("dgx-2", "V100", flat(16, Link(kind=LinkKind.NVLINK, lanes=6)))
TREE = machine("tree", "L40S", matrix(16, {}))


@pytest.fixture(autouse=True)
def _new_process():
    """Every test starts without any table in memory, as every run does."""
    configurations.table.cache_clear()


def kept() -> list[Path]:
    folder = tables.folder()
    assert folder is not None
    return sorted(folder.iterdir()) if folder.is_dir() else []


def prepared(*machines: object) -> Table:
    """The table that placing would use for the first of the machines, after preparation."""
    configurations.table.cache_clear()
    tables.prepare(cluster(*(node(f"n{at}", one) for at, one in enumerate(machines))))
    return configurations.table(machines[0].configuration)


def right(shape: Table) -> bool:
    """Whether a table of two meshes gives values that were worked out without any cache."""
    fresh = Table(SHAPE)
    some = [gpu_set(one) for one in itertools.combinations(range(6, 12), 3)]
    return all(shape.value(one) == fresh.value(one) for one in [*some, GPUSet(0xFFFF)]) and all(
        shape.best(GPUSet(0xFFFF), size) == fresh.best(GPUSet(0xFFFF), size)
        for size in range(1, 17)
    )


def test_an_irregular_machine_of_16_gpus_is_worked_out_once_and_kept():
    first = prepared(TWO_MESHES)
    (file,) = kept()
    assert file.name == f"{tables.fingerprint(SHAPE)}.bin"
    assert tables.load(SHAPE) == first.values()
    assert right(first)


def test_what_was_kept_is_what_the_next_run_uses():
    """Marked values are written by hand: whoever sees them has read the file."""
    shape = Table(SHAPE)
    slower = tuple(replace(one, bandwidth=one.bandwidth / 2) for one in shape.layers)
    shape._layers = shape._ceiling = slower
    tables.store(SHAPE, shape.values())
    assert prepared(TWO_MESHES).value(GPUSet(0xFF)) == 60


def test_placing_on_a_prepared_machine_gives_what_placing_without_gives():
    request = Request(workers=4, gpus=2)
    on = cluster(node("a", TWO_MESHES, 0xFFFE))
    without = place(request, on)
    for _ in range(2):
        prepared(TWO_MESHES)
        assert place(request, on) == without


def test_machines_of_8_gpus_and_machines_whose_links_are_alike_never_touch_the_disk():
    prepared(V100, HGX, DGX2)
    prepared(TREE)
    assert kept() == []
    assert not tables.folder().exists()


def test_many_nodes_of_a_kind_are_looked_up_once():
    copies = [replace(TWO_MESHES, name=f"m{at}") for at in range(50)]
    prepared(*copies)
    assert len(kept()) == 1


def test_two_kinds_of_machines_have_a_file_each():
    again = machine("other model", "A100", TWO_MESHES.links)
    doubled = replace(TWO_MESHES, pcie_generation=4)
    prepared(TWO_MESHES, again, doubled)
    assert len(kept()) == 3


def test_measured_values_share_the_file_and_stay_in_force():
    prepared(TWO_MESHES)
    measured = replace(TWO_MESHES, measured=((GPUSet(0xFF), 77.0),))
    shape = prepared(measured)
    assert len(kept()) == 1
    assert shape.value(GPUSet(0xFF)) == 77
    assert shape.value(GPUSet(0xFF00)) == 120


def test_rates_that_change_with_a_new_version_get_a_file_of_their_own(monkeypatch):
    seen = {tables.fingerprint(SHAPE)}
    monkeypatch.setitem(tables.cost.NVLINK_RATE, "V100", 21.0)
    seen.add(tables.fingerprint(SHAPE))
    monkeypatch.setitem(tables.cost.PCIE_RATE, LinkKind.SYS, 8.0)
    seen.add(tables.fingerprint(SHAPE))
    assert len(seen) == 3


def broken(content: bytes) -> dict[str, bytes]:
    """What a file may hold that is not the table."""
    start = len(tables.HEAD) + 32
    flipped = bytearray(content)
    flipped[-3] ^= 1
    values = content[start:-8]
    return {
        "empty": b"",
        "cut short": content[:-1],
        "half": content[: len(content) // 2],
        "longer": content + b"\0",
        "a flipped bit": bytes(flipped),
        "another format": content.replace(b"table 1\n", b"table 2\n"),
        "text": b"hello\n" * 100,
        "a pickle": b"\x80\x04\x95" + content,
        "sound but senseless": tables.HEAD + hashlib.sha256(values).digest() + values,
    }


@pytest.mark.parametrize("how", sorted(broken(b"x" * 100)))
def test_a_file_that_makes_no_sense_is_ignored_and_written_again(how):
    prepared(TWO_MESHES)
    (file,) = kept()
    good = file.read_bytes()
    file.write_bytes(broken(good)[how])
    assert right(prepared(TWO_MESHES))
    assert file.read_bytes() == good
    assert kept() == [file]


def test_the_table_of_another_machine_under_this_name_is_ignored():
    small = Table(V100.configuration)
    tables.store(SHAPE, small.values())
    assert right(prepared(TWO_MESHES))


def test_a_file_of_another_user_is_not_read(monkeypatch):
    prepared(TWO_MESHES)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert tables.load(SHAPE) is None


@pytest.mark.parametrize("what", ["link", "pipe", "folder", "unreadable"])
def test_what_is_not_a_plain_file_of_ours_is_not_read(what, tmp_path, request):
    prepared(TWO_MESHES)
    (file,) = kept()
    content = file.read_bytes()
    file.unlink()
    if what == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        os.mkfifo(file)
        # Somebody who writes nothing yet.
        request.addfinalizer(functools.partial(os.close, os.open(file, os.O_RDWR)))
    elif what == "folder":
        file.mkdir()
    else:
        # A path through a file cannot be opened, whoever asks (root may read any file).
        folder = file.parent
        folder.rmdir()
        folder.write_bytes(b"")
    assert tables.load(SHAPE) is None
    assert right(prepared(TWO_MESHES))


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert right(prepared(TWO_MESHES))
    assert tables.load(SHAPE) is None


def test_a_full_disk_leaves_no_half_written_file():
    """Files of this process may hold no more than 100 bytes."""
    script = """
        import resource, signal
        from arena_topo.workflow import tables
        from test_table_cache import SHAPE, kept, prepared, TWO_MESHES, right
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        assert right(prepared(TWO_MESHES))
        print(kept(), tables.folder().is_dir())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert (done.stdout, done.stderr) == ("[] True\n", "")


@pytest.mark.parametrize("named", ["", "relative/cache", None])
def test_without_a_usable_cache_folder_named_the_one_in_the_home_is_used(named, monkeypatch):
    if named is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", named)
    prepared(TWO_MESHES)
    assert len([*(Path(os.environ["HOME"]) / ".cache/arena-topo/tables").iterdir()]) == 1


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_path_is_done_without(home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", home)
    assert tables.folder() is None
    assert right(prepared(TWO_MESHES))
    assert [*tmp_path.iterdir()] == []


def test_others_may_neither_read_nor_write_what_is_kept():
    prepared(TWO_MESHES)
    (file,) = kept()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0


def test_writers_at_the_same_time_leave_one_sound_file():
    values = Table(SHAPE).values()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(tables.store, SHAPE, values) for _ in range(40)]
        seen = [tables.load(SHAPE) for _ in range(200)]
        for one in futures:
            one.result()
    assert set(seen) <= {None, values}
    assert tables.load(SHAPE) == values
    assert len(kept()) == 1


def test_planning_a_job_on_a_large_irregular_machine_keeps_its_table():
    job = MPIJob(name="demo", command="true", image="i", gpus=2, gputopology=True)
    workflow.plan(job, None, namespace="default", cluster=cluster(node("a", TWO_MESHES)))
    assert len(kept()) == 1
