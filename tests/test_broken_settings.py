"""Files of settings that are wrong: who is stopped by them, and how one finds what it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = ("--backend=local", "--emulate=dgx-1-v100:1")

Run = Callable[..., tuple[int, str, str]]


def test_an_unknown_key_in_the_sites_file_warns_and_the_rest_counts(
    site: Path, user: Path, run: Run
):
    site.write_text('namespac = "a"\nrequest-timeout = "9s"\n[submit]\ngpu = 1\nworkers = 3\n')
    user.write_text('namespace = "mine"\n')
    warned = (
        f"warning: {site}: there is no setting 'namespac', which is left out;"
        " did you mean namespace?\n"
    )
    in_table = (
        f"warning: {site} [submit]: there is no setting 'gpu', which is left out;"
        " did you mean gpus?\n"
    )
    code, _, err = run("list", "-q", *HERE)
    assert (code, err) == (0, warned)
    _code, out, _err = run("config", "view", "-o", "json", "-q", *HERE)
    found = {one["name"]: one for one in json.loads(out)["settings"]}
    assert found["request-timeout"] == {
        "name": "request-timeout",
        "value": "9s",
        "origins": [str(site)],
    }
    code, out, err = run(
        "submit", "mpi", "--dry-run", *HERE, "-o", "yaml", "--name=x", "--image=i", "train"
    )
    assert (code, "replicas: 3" in out) == (0, True), err
    warnings = [one for one in err.splitlines(keepends=True) if one.startswith("warning: ")]
    assert sorted(warnings) == sorted([warned, in_table])
    user.write_text('namespac = "a"\n')
    assert run("list", *HERE)[0] == 2


@pytest.mark.parametrize("kind", ["fifo", "endless", "large", "nothing"])
def test_settings_that_are_no_file_or_have_no_end_are_refused_at_once(
    kind: str, user: Path, run: Run
):
    said = {"large": "it is larger than 1 MiB"}.get(kind, "it is no regular file")
    if kind == "fifo":
        os.mkfifo(user)
    elif kind == "large":
        user.write_bytes(b"#" * (1 << 20) + b"\n")
    else:
        user.symlink_to({"endless": "/dev/zero", "nothing": "/dev/null"}[kind])
    wanted = (
        (0, "") if kind == "nothing" else (2, f"error: {user}: cannot be read\n  why:  {said}\n")
    )
    assert run("list", "-q", *HERE)[::2] == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no TOML at all", "is not valid TOML"),
        ('namespac = "x"', "there is no setting 'namespac'"),
        ('submit = "x"', "submit is no table"),
        ("[submit]\ngpu = 1", "there is no setting 'gpu'"),
        ('default-profile = "lob"', "there is no profile 'lob'"),
        ('timeout = "soon"', "--timeout is invalid"),
        ('quiet = "maybe"', "--quiet is invalid"),
        ('[submit]\ngpus = "x"', "--gpus is invalid"),
        ('[submit]\nenv = ["A"]', "--env is invalid"),
    ],
)
def test_the_view_refuses_a_file_that_is_wrong_and_says_what(text: str, said: str, user: Path, run):
    user.write_text(text)
    for words in ((), ("--resolved",)):
        code, out, err = run("config", "view", *HERE, *words)
        assert (code, out, err.count("error: ")) == (2, "", 1)
        assert said in err
        assert str(user) in err


def test_the_view_shows_a_variable_that_names_no_kubeconfig(
    site: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    del site
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    code, out, _err = run("config", "view")
    assert code == 0
    assert "KUBECONFIG names no file that exists" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"\n\nx = 1{'0' * 5000}\n", "is not valid TOML"),
        (f"request-timeout = 0x{'f' * 5000}\n", "request-timeout is no setting of this kind"),
    ],
    ids=["decimal", "hexadecimal"],
)
def test_a_number_that_no_program_can_read_is_refused_with_its_place(
    text: str, said: str, user: Path, run: Run
):
    user.write_text(text)
    code, out, err = run("list", *HERE)
    assert (code, out, err.splitlines()[0]) == (2, "", f"error: {user}: {said}")
