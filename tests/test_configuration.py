"""Settings: which source wins, what files may say, and how `config view` shows where it is from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import program
import pytest
import yaml
from fake_api import kubeconfig

from arena_topo.cli import settings
from arena_topo.cli.configuration import mask_credentials
from arena_topo.cli.options import CommonOptions, flag_variables
from arena_topo.errors import UsageError
from arena_topo.flag import flags_of, spelling
from arena_topo.job import BY_KEY, EnvVar, KeyValue, MPIJob

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"

HERE = ("--backend=local", "--emulate=dgx-1-v100:1")

JOB = ("submit", "mpi", "--dry-run", *HERE)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def arenas(site: Path) -> Path:
    """Where arena's own file is."""
    del site
    folder = Path(os.environ["HOME"]) / ".arena"
    folder.mkdir()
    return folder / "config"


@pytest.fixture
def setting(run: Run) -> Callable[..., Any]:
    """What counts for one setting, and where that comes from."""

    def read(name: str, *argv: str) -> tuple[Any, list[str]]:
        code, out, err = run("config", "view", "--resolved", "-o", "json", *argv)
        assert code == 0, err
        found = {one["name"]: one for one in json.loads(out)["settings"]}
        return found[name]["value"], found[name]["origins"]

    return read


def manifest(run: Run, *argv: str) -> dict[str, Any]:
    """The MPIJob that a command line would create."""
    code, out, err = run(*JOB, "-o", "yaml", *argv, "train")
    assert code == 0, err
    return next(one for one in yaml.safe_load_all(out) if one and one["kind"] == "MPIJob")


def launcher(thing: dict[str, Any]) -> dict[str, Any]:
    return thing["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]


# ---------------------------------------------------------------- which source wins


def test_each_source_gives_way_to_the_next(
    user: Path, site: Path, arenas: Path, setting: Any, monkeypatch: pytest.MonkeyPatch
):
    config = kubeconfig(user.parent / "kube", "http://x", namespace="of-context")
    monkeypatch.setenv("KUBECONFIG", config)
    assert setting("namespace") == ("of-context", ["context test"])
    arenas.write_text("namespace=of-arena\n")
    assert setting("namespace") == ("of-arena", [str(arenas)])
    site.write_text('namespace = "of-site"\n[profile.lab]\nnamespace = "of-site-profile"\n')
    assert setting("namespace") == ("of-site", [str(site)])
    user.write_text('namespace = "of-user"\n')
    assert setting("namespace") == ("of-user", [str(user)])
    monkeypatch.setenv("ARENA_TOPO_PROFILE", "lab")
    assert setting("namespace") == ("of-site-profile", [f"{site} [profile.lab]"])
    user.write_text('namespace = "of-user"\n[profile.lab]\nnamespace = "of-user-profile"\n')
    assert setting("namespace") == ("of-user-profile", [f"{user} [profile.lab]"])
    monkeypatch.setenv("ARENA_NAMESPACE", "of-arenas-variable")
    assert setting("namespace") == ("of-arenas-variable", ["ARENA_NAMESPACE"])
    monkeypatch.setenv("ARENA_TOPO_NAMESPACE", "of-variable")
    assert setting("namespace") == ("of-variable", ["ARENA_TOPO_NAMESPACE"])
    assert setting("namespace", "-n", "of-line") == ("of-line", ["the command line"])


def test_flags_of_jobs_stand_in_a_table_of_their_own_and_reach_the_manifest(user: Path, run: Run):
    user.write_text(
        textwrap.dedent(
            """
            namespace = "team-a"
            [submit]
            image = "horovod:1"
            working-dir = "/work"
            workers = 3
            hostIPC = true
            [profile.small.submit]
            workers = 1
            """
        )
    )
    job = manifest(run, "--name=x")
    assert job["metadata"]["namespace"] == "team-a"
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    container = launcher(job)["containers"][0]
    assert (container["image"], container["workingDir"]) == ("horovod:1", "/work")
    assert launcher(job)["hostIPC"] is True
    assert "hostIPC" not in launcher(manifest(run, "--name=x", "--hostIPC=false"))
    small = manifest(run, "--name=x", "--profile", "small")
    assert small["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 1


def test_settings_of_jobs_do_not_touch_other_commands(user: Path, run: Run):
    user.write_text('[submit]\nname = "x"\nimage = "i"\ngpus = 1\n')
    assert run("list", *HERE)[0] == 0


def test_values_with_keys_are_merged_by_key_and_others_replaced(
    user: Path, site: Path, run: Run, setting: Any
):
    site.write_text(
        '[submit]\nenv = {A = "site", B = "site", C = 1}\ntoleration = ["all"]\n'
        'image-pull-secret = ["of-site"]\n'
    )
    user.write_text('[submit]\nenv = ["B=user"]\nimage-pull-secret = ["one", "two"]\n')
    job = manifest(run, "--name=x", "--image=i", "-e", "C=line", "-e", "D=line")
    said = {one["name"]: one.get("value") for one in launcher(job)["containers"][0]["env"]}
    assert {key: said[key] for key in "ABCD"} == {
        "A": "site",
        "B": "user",
        "C": "line",
        "D": "line",
    }
    assert launcher(job)["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert setting("submit.toleration") == (["all"], [f"{site} [submit]"])
    values, origins = setting("submit.env")
    assert sorted(values) == ["A=site", "B=user", "C=1"]
    assert origins == [f"{user} [submit]", f"{site} [submit]"]


def test_the_fields_that_are_merged_are_those_whose_values_have_keys():
    hints = get_type_hints(MPIJob)
    keyed = {
        name
        for name, hint in hints.items()
        if get_origin(hint) is tuple and get_args(hint)[0] in {EnvVar, KeyValue}
    }
    assert keyed == BY_KEY


def test_a_profile_is_chosen_by_flag_then_variable_then_file(
    user: Path, site: Path, setting: Any, monkeypatch: pytest.MonkeyPatch
):
    profiles = "".join(f'[profile.{name}]\nnamespace = "{name}"\n' for name in "abcd")
    site.write_text('default-profile = "a"\n' + profiles)
    assert setting("namespace")[0] == "a"
    user.write_text('default-profile = "b"\n')
    assert setting("namespace")[0] == "b"
    assert setting("profile") == ("b", [str(user)])
    monkeypatch.setenv("ARENA_TOPO_PROFILE", "c")
    assert setting("namespace")[0] == "c"
    assert setting("namespace", "--profile=d")[0] == "d"


def test_what_arena_calls_config_is_one_setting_with_kubeconfig(user: Path, setting: Any):
    user.write_text('kubeconfig = "/of/user"\n')
    assert setting("kubeconfig", "--config=/of/line") == ("/of/line", ["the command line"])


def test_arenas_file_is_read_as_arena_reads_it(
    arenas: Path, setting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arenas.write_text(
        "# namespace=commented\n"
        "namespace = team-a\n"
        "imagePullSecrets=one, two\n"
        "prometheus_address=http://prometheus:9090\n"
        "something of arena's=1\n"
        "no setting at all\n"
    )
    assert setting("namespace")[0] == "team-a"
    assert setting("submit.image-pull-secret")[0] == ["one", "two"]
    assert setting("prometheus-address")[0] == "http://prometheus:9090"
    named = tmp_path / "named"
    monkeypatch.setenv("ARENA_CONFIG", str(named))
    assert setting("namespace")[0] == "team-a"
    named.write_text("namespace=of-the-named\n")
    assert setting("namespace") == ("of-the-named", [str(named)])


def test_arenas_pull_secrets_give_way_to_those_of_the_line(arenas: Path, run: Run):
    arenas.write_text("imagePullSecrets=one,two\n")
    job = manifest(run, "--name=x", "--image=i")
    assert launcher(job)["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    job = manifest(run, "--name=x", "--image=i", "--image-pull-secret=three")
    assert launcher(job)["imagePullSecrets"] == [{"name": "three"}]


def test_prometheus_is_also_found_under_arenas_variable(
    setting: Any, site: Path, monkeypatch: pytest.MonkeyPatch
):
    site.write_text('prometheus-address = "http://of-site"\n')
    monkeypatch.setenv("PROMETHEUS_ADDRESS", "http://of-variable")
    assert setting("prometheus-address") == ("http://of-variable", ["PROMETHEUS_ADDRESS"])


def test_other_files_may_be_named_and_the_first_wins(
    user: Path, site: Path, setting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site.write_text("no TOML at all")
    user.write_text("neither this")
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('namespace = "one"\n')
    two.write_text('namespace = "two"\ncontext = "two"\nbackend = "local"\n')
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", f"{one}{os.pathsep}{two}")
    assert setting("namespace")[0] == "one"
    assert setting("context")[0] == "two"
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", "")
    assert setting("context") == (None, ["default"])


def test_the_users_folder_of_settings_may_be_elsewhere(
    user: Path, setting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    user.write_text('namespace = "at-home"\n')
    folder = tmp_path / "xdg" / "arena-topo"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('namespace = "elsewhere"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert setting("namespace")[0] == "elsewhere"
    # The XDG specification says to ignore relative paths.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "xdg")
    assert setting("namespace")[0] == "at-home"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_editors_of_windows_may_write_the_settings(user: Path, setting: Any, encoding: str):
    user.write_bytes('namespace = "Grüße"\n'.encode(encoding))
    assert setting("namespace")[0] == "Grüße"


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'namespac = "x"',
            "error: {file}: there is no setting 'namespac'\n  try:  did you mean namespace?\n",
        ),
        (
            "gpus = 1",
            (
                "error: {file}: there is no setting 'gpus'\n"
                "  try:  flags of jobs stand in the table [submit]\n"
            ),
        ),
        (
            'profile = "lab"',
            ("error: {file}: profile is no table\n  try:  [profile.NAME] starts one\n"),
        ),
        (
            "namespace = " + "[" * 200_000,
            "error: {file}: is nested too deeply\n",
        ),
        (
            ".".join("a" * 90_000),
            "error: {file}: is nested too deeply\n",
        ),
        (
            "namespace = [1]",
            (
                "error: {file}: namespace is no setting of this kind\n"
                "  why:  expected a text or a number, got a list\n"
            ),
        ),
        (
            "namespace = true",
            (
                "error: {file}: namespace is no setting of this kind\n"
                "  why:  expected a text or a number, got true or false\n"
            ),
        ),
        (
            'quiet = "maybe"',
            (
                "error: --quiet is invalid\n  why:  expected true or false, got 'maybe'\n"
                "  try:  correct quiet in {file}\n"
            ),
        ),
        (
            'timeout = "soon"',
            (
                "error: --timeout is invalid\n"
                "  why:  expected a time such as 90s, 10m or 1h30m, got 'soon'\n"
                "  try:  correct timeout in {file}\n"
            ),
        ),
        (
            'default-profile = "lob"\n[profile.lab]\n',
            (
                "error: there is no profile 'lob'\n  why:  there are: lab\n"
                "  try:  did you mean lab?; correct profile in {file}\n"
            ),
        ),
        (
            'default-profile = "lab"\n[profile.lab]\nprofile = "x"\n',
            (
                "error: {file} [profile.lab]: there is no setting 'profile'\n"
                "  try:  keys are flags without the dashes in front\n"
            ),
        ),
        (
            "namespace = unquoted",
            (
                "error: {file}: is not valid TOML\n  why:  Invalid value (at line 1, column 13)\n"
                '  try:  a setting is a line such as context = "lab"\n'
            ),
        ),
    ],
)
def test_a_file_that_says_something_wrong_is_named_with_its_key(
    text: str, said: str, user: Path, run: Run
):
    user.write_text(text)
    assert run("list", *HERE) == (2, "", said.format(file=user))


def test_what_is_wrong_with_a_job_names_the_table(user: Path, run: Run):
    user.write_text("[submit]\ngpus = -1\n")
    code, _, err = run(*JOB, "--name=x", "--image=i", "train")
    assert (code, err) == (
        2,
        (
            f"error: --gpus is invalid\n  why:  -1 is less than 0\n"
            f"  try:  correct gpus in {user} [submit]\n"
        ),
    )
    user.write_text("[submit]\ngpu = 1\n")
    code, _, err = run(*JOB, "--name=x", "--image=i", "train")
    assert (code, err) == (
        2,
        f"error: {user} [submit]: there is no setting 'gpu'\n  try:  did you mean gpus?\n",
    )


@pytest.mark.parametrize("table", ["profile.other", "profile.other.submit"])
def test_a_slip_in_a_profile_that_is_not_chosen_is_a_warning(table: str, user: Path, run: Run):
    user.write_text(f'namespace = "n"\n[{table}]\ngpu = 1\nnamespace = 3\n')
    wrong = [f"warning: {user} [{table}]: there is no setting 'gpu', which is left out;"]
    keys = "keys are flags without the dashes in front"
    hint = "did you mean gpus?" if "submit" in table else keys
    code, _, err = run("plan", "mpi", *HERE, "--workers=1", "--gpus=1")
    assert (code, [one.strip() for one in err.splitlines() if "gpu'" in one]) == (
        0,
        [f"{wrong[0]} {hint}"],
    )
    code, _, err = run("plan", "mpi", *HERE, "--profile=other", "--workers=1", "--gpus=1")
    assert (code, f"error: {user} [{table}]: there is no setting 'gpu'" in err) == (2, True)


@pytest.mark.parametrize("key", ["profile.other", "profile.other.submit"])
def test_a_value_for_a_table_of_a_profile_that_is_not_chosen_is_a_warning(
    key: str, user: Path, run: Run
):
    user.write_text(f"{key} = 1\n")
    code, _, err = run("plan", "mpi", *HERE, "--workers=1", "--gpus=1")
    wrong = f"warning: {user}: {key} is no table, which is left out; [{key}] starts one"
    assert (code, [one for one in err.splitlines() if "is no table" in one]) == (0, [wrong])
    code, _, err = run("plan", "mpi", *HERE, "--profile=other", "--workers=1", "--gpus=1")
    assert (code, f"error: {user}: {key} is no table" in err) == (2, True)


@pytest.mark.parametrize("table", ["submit", "profile.lab.submit"])
def test_a_slip_in_the_table_of_jobs_is_one_for_the_commands_that_take_a_job(
    table: str, user: Path, run: Run
):
    user.write_text(f'default-profile = "lab"\n[profile.lab]\n[{table}]\ngpu = 1\n')
    said = f"error: {user} [{table}]: there is no setting 'gpu'\n  try:  did you mean gpus?\n"
    for line in (("plan", "mpi", *HERE), (*JOB, "--name=x"), ("config", "view")):
        assert run(*line) == (2, "", said)
    assert run("list", *HERE)[0] == 0
    user.write_text('submit = "x"\n')
    said = f"error: {user}: submit is no table\n  try:  [submit] starts one\n"
    assert run("plan", "mpi", *HERE) == (2, "", said)


def test_the_table_of_jobs_says_nothing_of_options_with_the_same_names(user: Path, run: Run):
    user.write_text('[submit]\noutput = "name"\nlabel = {a = "b"}\nwait = true\n')
    code, out, err = run("list", *HERE)
    assert (code, out[:4]) == (0, "NAME"), err


def test_what_only_submit_has_is_no_mistake_when_planning(user: Path, run: Run):
    user.write_text("[submit]\nwait = true\n")
    code, _, err = run(
        "plan", "mpi", *HERE, "--name=x", "--image=i", "--gputopology", "--gpus=1", "train"
    )
    assert code == 0, err


def test_a_file_that_cannot_be_read_is_named(user: Path, run: Run):
    user.mkdir()
    assert run("list", *HERE) == (
        2,
        "",
        f"error: {user}: cannot be read\n  why:  Is a directory\n",
    )


def test_a_file_that_is_named_must_be_there(
    site: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    del site
    missing = tmp_path / "missing.toml"
    monkeypatch.setenv("ARENA_TOPO_SETTINGS", str(missing))
    assert run("list", *HERE) == (
        2,
        "",
        (
            f"error: {missing}: cannot be read\n  why:  No such file or directory\n"
            "  try:  correct ARENA_TOPO_SETTINGS in the environment, or unset it\n"
        ),
    )


def test_a_variable_that_makes_no_sense_is_nothing_to_who_says_otherwise(
    site: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    del site
    monkeypatch.setenv("ARENA_TOPO_QUIET", "maybe")
    assert run("list", *HERE) == (
        2,
        "",
        (
            "error: --quiet is invalid\n  why:  expected true or false, got 'maybe'\n"
            "  try:  correct ARENA_TOPO_QUIET in the environment, or unset it\n"
        ),
    )
    assert run("list", *HERE, "--quiet=false")[0] == 0


def test_an_unknown_profile_without_any_file_says_so(site: Path, run: Run):
    del site
    assert run("list", *HERE, "--profile=lab") == (
        2,
        "",
        "error: there is no profile 'lab'\n  why:  no file of settings has one\n",
    )


@pytest.mark.parametrize("command", [("version",), ("completion", "bash")])
def test_what_needs_no_settings_works_with_broken_ones(
    command: tuple[str, ...], user: Path, run: Run
):
    user.write_text("no TOML at all")
    code, out, err = run(*command)
    assert code == 0
    assert out
    assert err == f"warning: {user}: is not valid TOML; settings are left out\n"


@pytest.mark.parametrize("command", [("--help",), ("submit", "mpi", "--help"), ("list", "-h")])
def test_help_is_shown_with_broken_settings(command: tuple[str, ...], user: Path, run: Run):
    user.write_text("no TOML at all")
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: ")


@pytest.mark.parametrize("home", [None, "", "/nowhere", "{file}"])
def test_without_a_home_or_with_a_strange_one_there_are_no_settings(
    home: str | None, tmp_path: Path
):
    file = tmp_path / "file"
    file.write_text("")
    variables = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(tmp_path)}
    if home is not None:
        variables["HOME"] = home.format(file=file)
    done = program.run(["list", "-q", *HERE], env=variables, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_folder_that_may_not_be_looked_into_has_no_settings(
    site: Path, run: Run, monkeypatch: pytest.MonkeyPatch
):
    del site

    def refused(*_args: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(settings, "read_bytes", refused)
        patch.setattr(os.path, "lexists", lambda _path: False)
        assert settings.read_settings().files[0].exists is False
        patch.setattr(os.path, "lexists", lambda _path: True)
        with pytest.raises(UsageError, match="cannot be read"):
            settings.read_settings()
    assert run("version")[0] == 0


# ---------------------------------------------------------------- config view


VIEW = """\
FILE                              STATE
~/.config/arena-topo/config.toml  read
{site}  missing
~/.arena/config                   missing

Profile:  lab (chosen by the command line)

SETTING            VALUE                         FROM
context            test                          ~/.config/arena-topo/config.toml
request-timeout    10s                           ~/.config/arena-topo/config.toml [profile.lab]
submit.env         A=1, API_TOKEN=***            ~/.config/arena-topo/config.toml [submit]
submit.sync-source https://***@git.example/repo  ~/.config/arena-topo/config.toml [submit]

Backend:     kubernetes
Kubeconfig:  {kubeconfig}
Context:     test
Cluster:     fake
User:        alice
Acting as:   bob in devs, ops
Server:      http://***@x:1
Namespace:   default
"""


def squeezed(text: str) -> str:
    """The text with each run of blanks as one: columns are as wide as the paths of this machine."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def test_the_view_shows_files_settings_and_the_cluster_without_secrets(
    user: Path, site: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    user.write_text(
        textwrap.dedent(
            """
            context = "test"
            [submit]
            env = {A = 1, API_TOKEN = "very-secret"}
            sync-source = "https://me:very-secret@git.example/repo"
            [profile.lab]
            request-timeout = "10s"
            """
        )
    )
    config = kubeconfig(
        tmp_path / "kube", "http://me:very-secret@x:1", user={"token": "very-secret"}
    )
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/missing{os.pathsep}{config}")
    argv = ("--profile=lab", "--as=bob", "--as-group=devs", "--as-group=ops")
    code, out, err = run("config", "view", *argv)
    assert (code, err) == (0, "")
    assert squeezed(out) == squeezed(VIEW.format(site=site, kubeconfig=config))
    for resolved in ((), ("--resolved",)):
        for form in ("wide", "json", "yaml"):
            code, out, err = run("config", "view", *argv, *resolved, "-o", form)
            assert (code, err) == (0, "")
            assert "very-secret" not in out
            assert out.endswith("\n")


def test_every_setting_is_in_the_resolved_view_with_its_default(site: Path, run: Run):
    del site
    code, out, _ = run("config", "view", "--resolved", "-o", "yaml")
    assert code == 0
    found = {one["name"]: one for one in yaml.safe_load(out)["settings"]}
    for record, table in ((CommonOptions, ""), (MPIJob, "submit.")):
        for name, flag in flags_of(record).items():
            key = table + spelling(name, flag).removeprefix("--")
            assert (key in found) is not flag.hidden, key
    assert found["request-timeout"] == {
        "name": "request-timeout",
        "value": "30s",
        "origins": ["default"],
    }
    assert found["submit.gang"]["value"] == "false"
    assert found["submit.env"]["value"] == []


def test_the_view_says_why_no_cluster_is_reached_and_asks_none(
    site: Path, run: Run, tmp_path: Path
):
    del site
    config = kubeconfig(tmp_path / "kube", "http://127.0.0.1:1")
    code, out, _ = run("config", "view", "--kubeconfig", config, "--context=tset")
    assert code == 0
    assert f"Trouble:     {config}: there is no context 'tset'\n" in out
    code, out, _ = run("config", "view", "--kubeconfig", config)
    assert code == 0
    assert "Server:      http://127.0.0.1:1\n" in out


def test_a_context_that_is_not_there_is_blamed_on_the_file_that_names_it(
    user: Path, run: Run, tmp_path: Path
):
    user.write_text('context = "lab"\n')
    config = kubeconfig(tmp_path / "kube", "http://127.0.0.1:1")
    assert run("list", "--kubeconfig", config) == (
        2,
        "",
        (
            f"error: {config}: there is no context 'lab'\n  why:  there are: test\n"
            f"  try:  correct context in {user}\n"
        ),
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A=1", "A=1"),
        ("AWS_SECRET_ACCESS_KEY=x", "AWS_SECRET_ACCESS_KEY=***"),
        ("password=x", "password=***"),
        ("PASS=x", "PASS=***"),
        ("DBPASS=x", "DBPASS=***"),
        ("MYSQL_PASS_FILE=x", "MYSQL_PASS_FILE=***"),
        ("GH_PAT=x", "GH_PAT=***"),
        ("CREDS=x", "CREDS=***"),
        ("SSH_KEY=x", "SSH_KEY=***"),
        ("PATH=x", "PATH=x"),
        ("KEYBOARD=x", "KEYBOARD=x"),
        ("PASSIVE=x", "PASSIVE=x"),
        ("https://git.example/a@b", "https://git.example/a@b"),
        ("http://u:p@proxy:3128", "http://***@proxy:3128"),
        ("https://u:p@git/x?token=t", "https://***@git/x?token=***"),
    ],
)
def test_secrets_are_covered_up(text: str, shown: str):
    assert mask_credentials(text) == shown


# ---------------------------------------------------------------- the start, the page


def test_toml_is_read_only_where_there_is_a_file(tmp_path: Path):
    code = """if True:
        import sys
        from arena_topo import cli
        cli.run(["version"])
        print("tomllib" in sys.modules)
    """
    file = tmp_path / "config.toml"
    file.write_text('namespace = "x"\n')
    for named, loaded in (("", "False"), (str(file), "True")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": os.environ["PATH"], "ARENA_TOPO_SETTINGS": named},
        )
        assert done.stdout.splitlines()[-1] == loaded


def test_the_page_names_every_global_setting_and_its_variable():
    text = DOCS.read_text(encoding="utf-8")
    variables = flag_variables(CommonOptions)
    for name, flag in flags_of(CommonOptions).items():
        if flag.hidden:
            continue
        key = spelling(name, flag).removeprefix("--")
        assert f"| `{key}` |" in text, key
        for variable in variables.get(name, ()):
            assert f"`{variable}`" in text, variable


def test_the_example_on_the_page_can_be_read(
    user: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    page = DOCS.read_text(encoding="utf-8")
    user.write_text(page.partition("```toml\n")[2].partition("```")[0])
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "kube", "http://x"))
    code, out, err = run("config", "view")
    assert (code, err) == (0, "")
    assert "submit.image" in out
    for profile in ("lab", "prod"):
        assert run("config", "view", "--profile", profile)[0] == 0


def test_who_did_not_type_emulate_is_told_where_that_was_said(run, user, monkeypatch):
    def told(*argv: str) -> str:
        asked = run("list", *argv)[2].splitlines()[0]
        planned = run("plan", "mpi", "--name=a", "--image=local", *argv, "true")[2]
        assert planned.splitlines()[0] == asked
        return asked

    user.write_text('emulate = "dgx-1-v100"\n')
    here = "using this machine (--backend local)."
    assert told() == f"emulate in {user}: {here}"
    monkeypatch.setenv("ARENA_EMULATE", "dgx-1-v100")
    assert told() == f"ARENA_EMULATE: {here}"
    monkeypatch.setenv("ARENA_TOPO_EMULATE", "dgx-1-v100")
    assert told() == f"ARENA_TOPO_EMULATE: {here}"
    assert told("--emulate", "dgx-1-v100") == f"--emulate: {here}"


@pytest.mark.usefixtures("site")
def test_of_flags_that_exclude_each_other_that_of_the_firmer_source_counts(user: Path, run: Run):
    user.write_text("[submit]\nfollow = true\n")
    job = ("submit", "mpi", "--name=a", "--image=local", "true")
    assert run(*job, *HERE, "--dry-run", "-o", "name")[0] == 0
    code, _out, err = run(*job, *HERE, "--dry-run", "--follow")
    assert (code, err.splitlines()[0]) == (2, "error: --follow and --dry-run exclude each other")
    user.write_text("[submit]\nfollow = true\nwait = true\n")
    code, _out, err = run(*job, *HERE)
    assert (code, err.splitlines()[0]) == (2, "error: --follow and --wait exclude each other")
    assert f"correct follow in {user} [submit]" in err
