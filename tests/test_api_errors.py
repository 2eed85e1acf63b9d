"""What the verbs raise: values that may pass between processes, and that say what helps."""

from __future__ import annotations

import copy
import pickle
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from cube_mesh import cluster
from worlds import living_world, local_world

import arena_topo
from arena_topo import Client, MPIJob, Options, errors
from arena_topo.engines.kubernetes.engine import KubernetesBackend
from arena_topo.solver import Request
from arena_topo.solver.door import place

HERE = Options(backend="local", emulate="dgx-1-v100:2")
GANG = {"gputopology": True, "gang": True, "workers": 2, "gpus": 4}


def gang(name: str, command: str = "mpirun true", **more) -> MPIJob:
    return MPIJob(**{"name": name, "image": "local", "command": command, **GANG, **more})


def unplaceable() -> arena_topo.Unplaceable:
    with pytest.raises(arena_topo.Unplaceable) as refused:
        place(Request(workers=9, gpus=8), cluster())
    return refused.value


NOT_BY_MESSAGE = {
    errors.UnreadableTopology,
    errors.JobFailed,
    errors.JobNotFound,
    errors.JobExists,
    arena_topo.Unplaceable,
}
"""Errors that say what they are about in words of their own."""


def examples() -> dict[type, errors.ArenaError]:
    """One of every kind that is exported, and of those that only inherit from one."""
    made = {
        kind: kind("what", why="why", hint="hint")
        for name in dir(arena_topo)
        if isinstance(kind := getattr(arena_topo, name), type)
        and issubclass(kind, errors.ArenaError)
        and kind not in NOT_BY_MESSAGE
    }
    made[errors.UnreadableTopology] = errors.UnreadableTopology("what", where="a:1", hint="hint")
    made[errors.JobFailed] = errors.JobFailed("what", exit_code=7, hint="hint")
    made[errors.ClusterError] = errors.ClusterError("what", status=503, why="why")
    made[arena_topo.Unplaceable] = unplaceable()
    made[errors.JobNotFound] = errors.JobNotFound("demo", "team", hint="did you mean dema?")
    made[errors.JobExists] = errors.JobExists("demo", "default", why="why")
    return made


def pickled(error: errors.ArenaError) -> errors.ArenaError:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("kind", list(examples()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_an_error_is_the_same_when_it_is_copied_or_comes_from_another_process(kind, again):
    error = examples()[kind]
    error.add_note("from worker 3")
    error.notes = ("a node is odd",)
    found = again(error)
    assert type(found) is kind
    assert (str(found), found.args, found.exit_code) == (str(error), error.args, error.exit_code)
    assert vars(found) == vars(error)
    assert found.__notes__ == error.__notes__
    assert "from worker 3" in found.__notes__


def missing(_index: int) -> None:
    Client(HERE).get("nope")


def test_an_error_passes_out_of_a_pool_of_processes(tmp_path):
    with (
        local_world(tmp_path),
        ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool,
        pytest.raises(arena_topo.NotFound, match="no job nope in namespace"),
    ):
        pool.submit(missing, 0).result(60)


def test_a_traceback_shows_why_and_what_to_try():
    error = arena_topo.UsageError("no such thing", why="it is gone", hint="look here")
    error.add_note("seen twice")
    assert str(error) == "no such thing"
    assert "".join(traceback.format_exception_only(error)) == (
        "arena_topo.errors.UsageError: no such thing\n"
        "why: it is gone\nhint: look here\nseen twice\n"
    )
    error.hint = "look there"
    assert "hint: look there\n" in traceback.format_exception_only(error)
    assert "hint: look here\n" not in traceback.format_exception_only(error)
    assert traceback.format_exception_only(arena_topo.UsageError("no such thing")) == [
        "arena_topo.errors.UsageError: no such thing\n"
    ]


def test_a_job_that_is_deleted_meanwhile_is_an_error_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(KubernetesBackend, "look_every", 0.05)
    with living_world(tmp_path) as world:
        options = Options(kubeconfig=str(tmp_path / "config"))
        world.cluster.duration = None
        Client(options).submit(gang("demo"))

        def gone(text: str) -> None:
            if "RUNNING" in text:
                Client(options).delete("demo")

        with pytest.raises(arena_topo.JobDeleted, match="was deleted while it was waited for"):
            Client(options, tell=gone).wait("demo", check=True, timeout=60)
