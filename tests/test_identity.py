"""`whoami` and `version`: who one is to the cluster, and what is installed."""

from __future__ import annotations

import json
import os
import platform
import re
import ssl
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from fake_api import FakeApi, kubeconfig
from worlds import WORLDS

from arena_topo import __version__

ROOT = Path(__file__).parents[1]
TLS = Path(__file__).parent / "tls"
ALICE = "6384e2b2184bcbf58eccf10ca7a6563c"
"""md5 of alice, which is arena's identifier of a user."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cluster that knows the caller as alice."""
    fake = FakeApi()
    fake.tokens["secret"] = "alice"
    config = kubeconfig(tmp_path / "config", fake.url, user={"token": "secret"})
    monkeypatch.setenv("KUBECONFIG", config)
    yield fake
    fake.close()


def administered(api: FakeApi, names: object, namespace: str = "arena-system") -> None:
    api.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    api.add(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "arena-config", "namespace": namespace},
            "data": {"adminUsers": names} if names is not None else None,
        }
    )


def line(*, admin: bool) -> str:
    return f'{{"Name":"alice","Id":"{ALICE}","IsAdminUser":{str(admin).lower()}}}\n'


@pytest.mark.parametrize(
    ("names", "admin"),
    [
        ("bob, alice ,carol", True),
        ("alice", True),
        ("bob,carol", False),
        ("alicea,lice,ALICE", False),
        (" , ,", False),
        ("", False),
        (None, False),
    ],
)
def test_an_administrator_is_whom_arenas_configuration_names(arena, api, names, admin):
    administered(api, names)
    assert arena("whoami") == (0, line(admin=admin), "")


@pytest.mark.usefixtures("api")
def test_without_a_configuration_nobody_is_an_administrator(arena):
    assert arena("whoami") == (0, line(admin=False), "")


def test_a_configuration_that_may_not_be_read_makes_nobody_an_administrator(arena, api):
    administered(api, "alice")
    api.deny("get configmaps arena-system")
    assert arena("whoami") == (0, line(admin=False), "")


def test_arena_may_live_in_another_namespace(arena, api):
    administered(api, "alice", "kube-ai")
    assert arena("whoami") == (0, line(admin=False), "")
    assert arena("whoami", "--arena-namespace", "kube-ai") == (0, line(admin=True), "")


def test_whoami_tells_no_name_that_the_server_does_not_know(arena, api):
    api.tokens = {"another": "bob"}
    code, out, err = arena("whoami")
    assert (code, out) == (4, "")
    assert err.startswith("error: the API server does not know who is asking\n")


def test_whoami_tells_no_name_without_an_answer(arena, api):
    api.close()
    code, out, err = arena("whoami")
    assert (code, out) == (1, "")
    assert "does not accept connections" in err


def test_whoami_tells_no_name_of_a_server_that_is_not_trusted(arena, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
    fake = FakeApi(tls=context)
    config = kubeconfig(tmp_path / "tls", fake.url, user={"token": "secret"})
    code, out, err = arena("whoami", f"--kubeconfig={config}")
    fake.close()
    assert (code, out) == (1, "")
    assert "cannot be trusted" in err


def test_a_server_that_tells_nobody_who_asks_leaves_the_name_of_the_kubeconfig(arena, api):
    api.fail("selfsubjectreviews", status=403, times=9)
    assert arena("whoami") == (
        0,
        line(admin=False),
        (
            "warning: the API server does not tell who is asking: alice is the kubeconfig's name"
            " for it\n"
        ),
    )
    # Who submits is not bothered with that.
    job = ("submit", "mpi", "--name=x", "--image=i", "true")
    code, _out, err = arena(*job)
    assert (code, "warning" in err) == (0, False), err


@pytest.mark.usefixtures("api")
def test_whoami_is_json_unless_yaml_is_asked_for(arena):
    _code, said, _err = arena("whoami")
    assert arena("whoami", "-o", "json") == (0, said, "")
    code, out, _err = arena("whoami", "-o", "yaml")
    assert (code, yaml.safe_load(out)) == (0, json.loads(said))


@pytest.mark.parametrize("opened", WORLDS.values(), ids=WORLDS)
def test_every_engine_knows_whether_there_are_administrators(tmp_path: Path, opened):
    with opened(tmp_path) as world:
        assert world.backend.administrators("arena-system") == frozenset()
        api = getattr(world, "api", None)
        if api is not None:
            administered(api, "ann,bob")
            assert world.backend.administrators("arena-system") == {"ann", "bob"}


# ---------------------------------------------------------------- version


def test_the_version_comes_with_what_it_runs_on(arena):
    code, out, err = arena("version")
    assert (code, err) == (0, "")
    assert out == (
        f"arena-topo: v{__version__}\n"
        f"  PythonVersion: {platform.python_version()}\n"
        f"  Platform: {sys.platform}/{os.uname().machine}\n"
    )


@pytest.mark.parametrize("flag", ["--short", "-q"])
def test_a_short_version_is_one_line(arena, flag):
    assert arena("version", flag) == (0, f"arena-topo: v{__version__}\n", "")


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_arenas_flag_for_the_versions_of_charts_is_read_and_shows_no_more(arena, flag):
    assert arena("version", flag) == arena("version")


def test_programs_read_the_version_as_json_or_yaml(arena):
    _code, out, _err = arena("version", "-o", "json")
    assert json.loads(out) == {
        "version": f"v{__version__}",
        "pythonVersion": platform.python_version(),
        "platform": f"{sys.platform}/{os.uname().machine}",
    }
    assert yaml.safe_load(arena("version", "-o", "yaml")[1]) == json.loads(out)
    assert json.loads(arena("version", "-o", "json", "--short")[1]) == {
        "version": f"v{__version__}"
    }


def installed(folder: Path, record: str | None) -> str:
    """What `version` says of a copy of the package that pip has put there with such a record."""
    target = folder / "site"
    with zipfile.ZipFile(folder / "package.zip", "w") as archive:
        for path in (ROOT / "arena_topo").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT))
    with zipfile.ZipFile(folder / "package.zip") as archive:
        archive.extractall(target)
    if record is not None:
        about = target / f"arena_topo-{__version__}.dist-info"
        about.mkdir()
        (about / "direct_url.json").write_text(record)
    done = subprocess.run(
        [sys.executable, "-m", "arena_topo", "version"],
        cwd=target,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_commit_is_named_where_pip_has_recorded_it(tmp_path: Path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    where = {"url": "https://example.com/it.git", "vcs_info": {"vcs": "git", "commit_id": commit}}
    out = installed(tmp_path, json.dumps(where))
    assert re.findall(r"^  GitCommit: (.*)$", out, re.MULTILINE) == [commit]


@pytest.mark.parametrize("record", [None, "{}", "no json", '{"vcs_info": {"commit_id": 3}}', "[]"])
def test_no_commit_is_made_up(tmp_path: Path, record):
    assert "GitCommit" not in installed(tmp_path, record)
