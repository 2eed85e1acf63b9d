"""The launcher finds its workers, waits for them within bounds, and never holds them up."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from arena_topo.errors import InvalidJob
from arena_topo.job import Duration, EnvVar, MPIJob
from arena_topo.manifests.render import build_plan
from arena_topo.manifests.versions import ApiVersion

OPERATORS = (ApiVersion.V2BETA1, ApiVersion.V1)


def spec_of(api: ApiVersion = ApiVersion.V2BETA1, **said: Any) -> dict[str, Any]:
    plain = {"name": "demo", "command": "mpirun true", "image": "i", "workers": 4, "gpus": 2}
    made = build_plan(MPIJob(**(plain | said)), namespace="team-a", api=api, owner="USER", files={})
    return made.objects[0]["spec"]


def launcher(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]


def environment(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["containers"][0]["env"]}


# ---------------------------------------------------------------- what it is told

PRRTE = {
    ApiVersion.V2BETA1: {
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
    },
    ApiVersion.V1: {
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_plm_ssh_agent": "/etc/mpi/kubexec.sh",
    },
}
"""What the operators tell Open MPI 4 as OMPI_MCA_*, in the words of Open MPI 5."""


@pytest.mark.parametrize("api", OPERATORS)
def test_open_mpi_5_hears_all_that_operators_tell_open_mpi_4(api: ApiVersion):
    said = environment(launcher(spec_of(api)))
    assert {key: value for key, value in said.items() if key.startswith("PRTE_")} == PRRTE[api]
    worker = spec_of(api)["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    assert not [key for key in environment(worker) if key.startswith("PRTE_")]


@pytest.mark.parametrize(
    ("api", "key"), [(api, key) for api, told in PRRTE.items() for key in told]
)
def test_what_the_user_tells_open_mpi_is_what_it_hears(api: ApiVersion, key: str):
    said = environment(launcher(spec_of(api, env=(EnvVar(key=key, value="mine"),))))
    assert said[key] == "mine"


def test_the_folder_of_the_ssh_keys_is_written_only_where_it_is_given():
    assert "sshAuthMountPath" not in spec_of()
    given = spec_of(ssh_auth_mount_path="/home/me/.ssh")
    assert given["sshAuthMountPath"] == "/home/me/.ssh"


@pytest.mark.parametrize("api", [ApiVersion.V1, ApiVersion.V1ALPHA1])
def test_a_folder_of_ssh_keys_is_refused_where_no_ssh_is_used(api: ApiVersion):
    with pytest.raises(InvalidJob) as refused:
        spec_of(api, ssh_auth_mount_path="/root/.ssh")
    assert refused.value.message == "--ssh-auth-mount-path needs MPIJob v2beta1"
    assert refused.value.why == (
        f"MPIJob {api} has no field for it, or its operator no way to do it"
    )


def test_a_folder_of_ssh_keys_is_an_absolute_path():
    with pytest.raises(InvalidJob, match="--ssh-auth-mount-path is invalid"):
        spec_of(ssh_auth_mount_path=".ssh")


# ---------------------------------------------------------------- gangs and ends


@pytest.mark.parametrize("api", OPERATORS)
def test_a_gang_is_its_workers_so_that_a_launcher_that_waits_for_them_holds_up_nobody(
    api: ApiVersion,
):
    spec = spec_of(api, gang=True)
    assert spec["runPolicy"]["schedulingPolicy"]["minAvailable"] == 4
    worker = spec["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    assert worker["pod-group.scheduling.sigs.k8s.io/min-available"] == "4"
    labels = spec["mpiReplicaSpecs"]["Launcher"]["template"]["metadata"]["labels"]
    assert not [key for key in labels if key.startswith("pod-group.")]


@pytest.mark.parametrize("api", OPERATORS)
def test_a_running_timeout_is_a_deadline_of_the_job_in_seconds(api: ApiVersion):
    spec = spec_of(api, running_timeout=Duration.parse("1h30m"))
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 5400
    assert "activeDeadlineSeconds" not in yaml.safe_dump(spec_of(api))


def test_durations_are_kept_for_arena_as_they_are_typed():
    made = build_plan(
        MPIJob(
            name="demo", command="c", image="i", gang=True, gang_timeout=Duration.parse("1h30m")
        ),
        namespace="n",
        api=ApiVersion.V1ALPHA1,
        owner="USER",
        files={},
    )
    assert yaml.safe_load(made.objects[1]["data"]["values"])["gang-timeout"] == "1h30m"


# ---------------------------------------------------------------- the wait, run for real

SHELLS = [
    words
    for words in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"])
    if shutil.which(words[0])
]


LOOKED_UP = [
    pytest.param(shell, tool, id=f"{' '.join(shell)}, {tool}")
    for shell in SHELLS
    for tool in ("getent", "nslookup")
    # busybox takes the nslookup that it brings along, whatever is on the path.
    if (shell[0], tool) != ("busybox", "nslookup")
]


def waiting(**said: Any) -> list[str]:
    """The init container's command, without the limit at its end."""
    (container,) = launcher(spec_of(gputopology=True, **said))["initContainers"]
    assert container["name"] == "wait-for-workers"
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    *command, limit = container["command"]
    assert int(limit) == int(said.get("gang_timeout", 600))
    return command


def waited(
    shell: list[str], folder: Path, limit: int, *, tool: str = "getent", answers: str, **said: Any
) -> subprocess.CompletedProcess[str]:
    """Run the wait with a fake name service, and nothing else on the path that could look up."""
    folder.mkdir(exist_ok=True)
    for name in ("date", "sleep", "sh"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    if tool:
        name = '"$2"' if tool == "getent" else '"$1"'
        fake = folder / tool
        fake.write_text(
            f'#!/bin/sh\necho {name} >>"{folder}/asked"\n{answers.replace("NAME", name)}\n'
        )
        fake.chmod(0o755)
    _sh, *rest = waiting(**said)
    first = shutil.which(shell[0])
    assert first
    return subprocess.run(
        [first, *shell[1:], *rest, str(limit)],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(("shell", "tool"), LOOKED_UP)
def test_the_wait_ends_once_every_worker_has_a_name(shell: list[str], tool: str, tmp_path: Path):
    done = waited(shell, tmp_path / "bin", 0, tool=tool, answers="exit 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    asked = (tmp_path / "bin" / "asked").read_text().split()
    assert asked == [f"demo-worker-{index}.demo.team-a.svc" for index in range(4)]


@pytest.mark.parametrize(("shell", "tool"), LOOKED_UP)
def test_workers_are_found_by_the_service_of_mpi_operator_0_4(
    shell: list[str], tool: str, tmp_path: Path
):
    """There the Service, and the subdomain of the workers, is called demo-worker."""
    answers = "case NAME in demo-worker-?.demo-worker.team-a.svc) exit 0;; esac; exit 2"
    done = waited(shell, tmp_path / "bin", 0, tool=tool, answers=answers)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    asked = (tmp_path / "bin" / "asked").read_text().split()
    services = ("demo", "demo-worker")
    assert asked == [
        f"demo-worker-{index}.{service}.team-a.svc" for index in range(4) for service in services
    ]


@pytest.mark.parametrize(("shell", "tool"), LOOKED_UP)
def test_a_wait_in_vain_names_the_workers_that_are_missing(
    shell: list[str], tool: str, tmp_path: Path
):
    answers = "case NAME in demo-worker-[02].*) exit 0;; esac; exit 2"
    done = waited(shell, tmp_path / "bin", 0, tool=tool, answers=answers)
    assert done.returncode == 1
    assert done.stderr == "not ready after 0 s: demo-worker-1 demo-worker-3\n"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_worker_that_comes_late_is_waited_for_and_those_that_are_there_not_asked_again(
    shell: list[str], tmp_path: Path
):
    folder = tmp_path / "bin"
    seen = folder / "seen"
    answers = f'case NAME in demo-worker-3.*) test -e "{seen}" || {{ : >"{seen}"; exit 2; }};; esac'
    done = waited(shell, folder, 250, answers=answers)
    assert (done.returncode, done.stderr) == (0, "")
    asked = (folder / "asked").read_text().split()
    assert [name.partition(".")[0] for name in asked] == [
        *(f"demo-worker-{index}" for index in range(4)),
        "demo-worker-3",
    ]


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_wait_is_bounded(shell: list[str], tmp_path: Path):
    """It ends by itself; how fast is the machine's business."""
    done = waited(shell, tmp_path / "bin", 1, answers="exit 2")
    assert done.returncode == 1
    assert done.stderr.startswith("not ready after 1 s: demo-worker-0 ")


def test_an_image_that_cannot_look_up_names_is_not_kept_waiting(tmp_path: Path):
    done = waited(["sh"], tmp_path / "bin", 0, tool="", answers="")
    assert done.returncode == 0
    assert "cannot look up names in this image" in done.stdout


def test_a_launcher_waits_as_long_as_its_gang_may_make_no_progress():
    assert waiting(gang_timeout=Duration.parse("25m"))
