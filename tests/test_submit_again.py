"""Submitting under a name that is taken, or under one that is made up: on every engine."""

import json
import re
import subprocess
import threading
from contextlib import contextmanager

import program
import pytest
from proxy import Proxy, Trouble
from worlds import WORLDS, living_world

from arena_topo import cli
from arena_topo.engines import Phase
from arena_topo.errors import NotFound
from arena_topo.manifests.versions import ApiVersion

WORLDS_TOO = {**WORLDS, "living": living_world}


class Line:
    """The program on one world's engine."""

    def __init__(self, world, words, capfd):
        self.world, self.words, self._capfd = world, words, capfd
        self.backend = world.backend
        self.code, self.out, self.err = 0, "", ""

    def __call__(self, *arguments):
        self._capfd.readouterr()
        self.code = cli.run([*self.words, *arguments])
        self.out, self.err = self._capfd.readouterr()
        return self

    def submit(self, *arguments, name="demo", command="sleep 60"):
        named = [f"--name={name}"] if name else []
        return self("submit", "mpi", *named, "--image=local", *arguments, command)

    def uid(self, name="demo"):
        return self.backend.job(name, "default").uid


@contextmanager
def opened(which, folder, capfd):
    with WORLDS_TOO[which](folder) as world:
        words = ["--backend=local", "--emulate=dgx-1-v100:2"]
        yield Line(
            world, words if which == "local" else [f"--kubeconfig={folder / 'config'}"], capfd
        )


@pytest.fixture(params=WORLDS_TOO)
def line(request, tmp_path, capfd):
    with opened(request.param, tmp_path, capfd) as made:
        yield made


@pytest.fixture(params=["local", "living"])
def gangs(request, tmp_path, capfd):
    with opened(request.param, tmp_path, capfd) as made:
        yield made


@pytest.fixture
def living(tmp_path, capfd):
    with opened("living", tmp_path, capfd) as made:
        yield made


# ---------------------------------------------------------------- the same request


EVERYTHING = (
    "--workers=2",
    "--cpu=2",
    "--env=B=2",
    "--env=A=1",
    "--label=team=x",
    "--working-dir=/w",
    "--retry=1",
)


def test_the_very_same_request_is_as_good_as_submitted(line):
    assert line.submit(*EVERYTHING).code == 0
    first = line.uid()
    again = line.submit("--exists=ok", *EVERYTHING)
    assert (again.code, again.out) == (0, "mpijob.kubeflow.org/demo unchanged\n")
    assert again.err == "Job demo exists already with the same request; nothing was changed\n"
    assert line.uid() == first


def test_the_order_of_variables_and_labels_makes_no_other_request(line):
    line.submit("--env=A=1", "--env=B=2", "--label=a=b", "--label=c=d")
    assert (
        line.submit("--exists=ok", "--env=B=2", "--env=A=1", "--label=c=d", "--label=a=b").code == 0
    )


def test_a_request_that_is_another_is_refused_with_all_that_differs(line):
    line.submit("--workers=2", "--env=A=secret", "--env=B=1", "--label=team=x", "--retry=3")
    first = line.uid()
    again = line.submit(
        "--exists=ok", "--workers=4", "--env=A=other", "--label=team=y", command="sleep 61"
    )
    assert (again.code, again.out) == (1, "")
    assert again.err == (
        "error: job demo already exists\n"
        "  why:  it is another request: the command is sleep 60 there, sleep 61 here; --workers is"
        " 2 there, 4 here; --env differs in A, B; --label is team=x there, team=y here; --retry is"
        " 3 there, not set here\n"
        "  try:  arena-topo delete demo -n default; or --exists replace, which deletes and submits"
        " again\n"
        "  arena: the job demo is already exist, please delete it first.\n"
    )
    assert line.uid() == first


def test_without_being_told_otherwise_a_taken_name_is_an_error(line):
    line.submit()
    again = line.submit()
    assert again.code == 1
    assert "the job demo is already exist, please delete it first." in again.err


def test_a_job_whose_name_is_free_is_created_whatever_should_become_of_another(line):
    for name, exists in (("demo", "ok"), ("other", "replace")):
        assert line.submit(f"--exists={exists}", name=name).code == 0
        assert line.out.startswith(f"mpijob.kubeflow.org/{name} created\n")


def test_a_request_that_has_ended_is_not_made_again(line):
    job = line.world.job("demo")
    line("submit", "mpi", "--name=demo", "--image=local", job.command)
    line.world.start("demo")
    line.world.finish("demo", 0)
    again = line("submit", "mpi", "--name=demo", "--image=local", "--exists=ok", job.command)
    assert (again.code, again.out) == (0, "mpijob.kubeflow.org/demo unchanged\n")
    waited = line(
        "submit", "mpi", "--name=demo", "--image=local", "--exists=ok", "--wait", job.command
    )
    assert waited.code == 0


def test_the_text_of_a_file_is_part_of_the_request(line, tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("lr: 1\n", encoding="utf-8")
    wanted = f"--config-file={file}:/etc/config/train.yaml"
    line.submit(wanted)
    assert line.submit("--exists=ok", wanted).code == 0
    file.write_text("lr: 2\n", encoding="utf-8")
    assert line.submit("--exists=ok", wanted).code == 1
    assert "--config-file: the text of train.yaml is another there" in line.err


def test_a_gang_is_the_same_request_wherever_it_was_placed(gangs):
    gang = ("--gputopology", "--gpus=2", "--workers=2")
    gangs.submit(*gang)
    assert gangs.submit("--exists=ok", *gang).out == "mpijob.kubeflow.org/demo unchanged\n"
    assert gangs.submit("--exists=ok", "--gputopology", "--gpus=4", "--workers=2").code == 1
    assert "--gpus is 2 there, 4 here" in gangs.err


def test_a_gang_whose_workers_were_fused_is_the_request_that_it_was_before_that(gangs):
    fused = ("--gputopology", "--pod-shape=fused", "--gpus=1", "--workers=4", "--cpu=1")
    gangs.submit(*fused)
    again = gangs.submit("--exists=ok", *fused)
    assert (again.code, again.out) == (0, "mpijob.kubeflow.org/demo unchanged\n")
    assert gangs.submit("--exists=ok", *fused[:-1], "--cpu=2").code == 1
    assert "--cpu is" in gangs.err


def test_a_gang_that_waits_is_the_same_request_too(gangs):
    gangs.submit("--gputopology", "--gpus=8", "--workers=2", name="first")
    gangs.submit("--gputopology", "--gpus=8")
    assert gangs.backend.job("demo", "default").phase is Phase.PENDING
    assert gangs.submit("--gputopology", "--gpus=8", "--exists=ok").code == 0


def test_what_others_submitted_cannot_be_compared(living):
    api = living.world.api
    living.submit("--workers=2")
    api.remove("configmaps", "default", "demo-mpijob")
    api.find("MPIJob", "demo")["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    assert living.submit("--workers=2", "--exists=ok").code == 1
    assert "why:  what it was submitted with is not known: there is no ConfigMap" in living.err


def test_who_may_not_compare_hears_which_right_that_takes_and_is_not_told_to_delete(living):
    living.submit("--workers=2")
    first = living.uid()
    living.world.api.deny("get configmaps default")
    again = living.submit("--workers=2", "--exists=ok")
    assert (again.code, again.out) == (4, "")
    assert "error: not allowed to get configmaps in namespace default\n" in again.err
    assert '{apiGroups: [""], resources: ["configmaps"], verbs: ["get"]}' in again.err
    assert "delete" not in again.err
    assert "replace" not in again.err
    assert living.uid() == first
    assert living.submit("--workers=2", "--exists=ok", name="another").code == 0


def test_what_arena_itself_submitted_cannot_be_compared(living):
    api = living.world.api
    living.submit("--workers=2")
    api.find("MPIJob", "demo")["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    books = api.find("ConfigMap", "demo-mpijob")
    books["data"]["values"] = "command: sleep 60\nimage: local\nworkers: 2\ngpuCount: 0\n"
    assert living.submit("--workers=2", "--exists=ok").code == 1
    assert "arena-topo did not submit it" in living.err


def test_of_two_who_submit_the_same_at_once_one_creates_it_and_both_are_content(gangs):
    line = [*gangs.words, "submit", "mpi", "--name=demo"]
    line += ["--image=local", "--gputopology", "--gpus=2", "--exists=ok", "sleep 60"]
    both = [program.start(line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(one.communicate()[0].split("\n")[0] for one in both)
    assert [one.returncode for one in both] == [0, 0]
    assert said == ["mpijob.kubeflow.org/demo created", "mpijob.kubeflow.org/demo unchanged"]


@pytest.mark.parametrize("gang", [(), ("--gputopology", "--gpus=2")], ids=["plain", "gang"])
def test_who_finds_the_name_free_and_then_taken_by_the_same_request_is_content(living, gang):
    # Started by a thread of the server, while the other waits for its answer: from nothing.
    line = [*program.LINE, *living.words, "submit", "mpi", "--name=demo"]
    line += ["--image=local", *gang, "sleep 60"]
    living.world.api.before(
        "POST .*/mpijobs", lambda: subprocess.run(line, check=True, capture_output=True)
    )
    again = living.submit("--exists=ok", *gang)
    assert (again.code, again.out) == (0, "mpijob.kubeflow.org/demo unchanged\n")


def test_who_looks_while_the_job_is_still_being_made_waits_for_the_rest_of_it(living):
    living.submit("--workers=2")
    api = living.world.api
    books = json.loads(json.dumps(api.find("ConfigMap", "demo-mpijob")))
    api.remove("configmaps", "default", "demo-mpijob")
    late = threading.Timer(0.5, lambda: api.add(books))
    late.start()
    again = living.submit("--workers=2", "--exists=ok")
    late.join()
    assert (again.code, again.out) == (0, "mpijob.kubeflow.org/demo unchanged\n")


# ---------------------------------------------------------------- in its place


def test_replace_deletes_the_old_job_and_submits_the_new_one(line):
    line.submit("--workers=2")
    first = line.uid()
    again = line.submit("--exists=replace", "--workers=3")
    assert again.code == 0
    assert again.out.startswith("mpijob.kubeflow.org/demo created\n")
    assert again.err.startswith("The training job demo has been deleted successfully\n")
    assert line.uid() != first
    assert line.submit("--exists=ok", "--workers=3").code == 0


def test_replace_starts_when_the_old_pods_have_let_go_of_their_gpus(gangs):
    everything = ("--gputopology", "--gpus=8", "--workers=2")
    gangs.submit(*everything)
    gangs.world.start("demo")
    assert gangs.submit("--exists=replace", *everything, command="sleep 59").code == 0
    gangs.world.start("demo")
    assert gangs.backend.job("demo", "default").allocated_gpus == 16


def test_replace_waits_no_longer_than_it_may_and_then_nothing_was_created(living):
    living.submit("--gputopology", "--gpus=8")
    living.world.start("demo")
    living.world.cluster.keeps_terminating = True
    late = living.submit("--exists=replace", "--gputopology", "--gpus=8", "--timeout=3s")
    assert late.code == 6
    assert re.search(
        "error: the old job demo is deleted, but [0-9]+ of its pods have not ended, such as .*"
        # The time may be over while the server is asked.
        " after [0-9.]+ s\n(  why:  .* took too long\n)?"
        "  try:  nothing was created; submit it again later\n|error: --timeout is over\n",
        late.err,
    )
    with pytest.raises(NotFound):
        living.backend.job("demo", "default")


def taken(living):
    """A function by which somebody else takes the name of the job; the uids of theirs."""
    api, uids = living.world.api, []

    def take():
        theirs = json.loads(json.dumps(api.find("MPIJob", "demo") or before))
        for name in ("uid", "resourceVersion", "creationTimestamp"):
            theirs["metadata"].pop(name, None)
        if api.find("MPIJob", "demo"):
            api.remove("mpijobs", "default", "demo")
        uids.append(api.add(theirs)["metadata"]["uid"])

    before = json.loads(json.dumps(api.find("MPIJob", "demo")))
    return take, uids


def test_a_job_that_has_taken_the_name_before_the_old_one_is_deleted_stays(living):
    living.submit()
    take, uids = taken(living)
    living.world.api.before("DELETE .*/mpijobs/demo", take)
    late = living.submit("--exists=replace", "--timeout=20s")
    assert late.code == 1, late.err
    assert "is already exist" in late.err
    assert [living.uid()] == uids


def test_a_job_that_takes_the_name_once_the_old_one_is_deleted_is_not_waited_for(living):
    living.submit()
    take, uids = taken(living)
    living.world.api.after("DELETE .*/mpijobs/demo", take)
    late = living.submit("--exists=replace", "--timeout=20s")
    assert late.code == 1
    assert "is already exist" in late.err
    assert [living.uid()] == uids


def test_one_answer_that_does_not_come_does_not_end_the_waiting_for_the_old_job(living, tmp_path):
    living.submit("--workers=2")
    proxy = Proxy(tmp_path / "config")
    living.words = [f"--kubeconfig={proxy.kubeconfig(tmp_path / 'proxied')}"]
    slow = Trouble(match="GET .*/mpijobs/demo", delay=20)
    living.world.api.before("DELETE .*/mpijobs/demo", lambda: proxy.troubles.append(slow))
    again = living.submit("--exists=replace", "--workers=3", "--request-timeout=3")
    proxy.close()
    assert again.code == 0, again.err
    assert again.out.startswith("mpijob.kubeflow.org/demo created\n")
    assert "what is left of it cannot be seen (" in again.err
    assert slow.times == 0


def test_who_cannot_see_what_is_left_of_the_old_job_hears_how_long_that_took(living, tmp_path):
    living.submit("--workers=2")
    proxy = Proxy(tmp_path / "config")
    living.words = [f"--kubeconfig={proxy.kubeconfig(tmp_path / 'proxied')}"]
    deaf = Trouble(match="GET", delay=600, times=999)
    living.world.api.before("DELETE .*/mpijobs/demo", lambda: proxy.troubles.append(deaf))
    again = living.submit("--exists=replace", "--request-timeout=0.5", "--timeout=3")
    proxy.close()
    assert again.code == 6
    unseen = r"but what is left of it was not seen after [0-9.]+ s\n  why:  "
    assert re.search(rf"{unseen}|error: --timeout is over\n", again.err)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (("--gputopology", "--gpus=99"), 5),
        (("--gputopology", "--gpus=2", "--gpu-model=Z9"), 5),
        (("--config-file=/nowhere/at/all",), 2),
    ],
)
def test_a_job_is_not_deleted_for_one_that_cannot_be(gangs, wrong, code):
    gangs.submit()
    first = gangs.uid()
    assert gangs.submit("--exists=replace", *wrong).code == code
    assert gangs.uid() == first


@pytest.mark.parametrize("kind", ["mpijobs", "configmaps"])
def test_a_job_is_not_deleted_for_one_that_the_server_refuses(living, kind):
    living.submit()
    first = living.uid()
    living.world.api.fail(f"POST .*/{kind}.*dryRun=All", status=422)
    assert living.submit("--exists=replace").code == 1
    assert living.uid() == first


def test_replace_takes_a_finished_job_too(line):
    job = line.world.job("demo")
    line("submit", "mpi", "--name=demo", "--image=local", job.command)
    line.world.start("demo")
    line.world.finish("demo", 3)
    first = line.uid()
    assert line.submit("--exists=replace").code == 0
    assert line.uid() != first


# ---------------------------------------------------------------- generated names


def test_a_generated_name_is_the_prefix_and_five_characters_and_is_printed(line):
    done = line.submit("--generate-name=bert-", name="")
    assert done.code == 0
    name = done.out.split()[0].rpartition("/")[2]
    assert re.fullmatch("bert-[bcdfghjklmnpqrstvwxz2456789]{5}", name)
    assert line.backend.job(name, "default").name == name
    other = line.submit("--generate-name=bert-", name="").out.split()[0]
    assert other != f"mpijob.kubeflow.org/{name}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--name=a",), "--generate-name and --name exclude each other"),
        (("--exists=ok",), "--generate-name and --exists exclude each other"),
    ],
)
def test_a_generated_name_leaves_no_room_for_another_or_for_a_taken_one(line, flags, said):
    done = line.submit("--generate-name=x-", *flags, name="")
    assert (done.code, done.out) == (2, "")
    assert f"error: {said}" in done.err


def test_the_firmer_source_says_whether_a_name_is_given_or_generated(gangs, monkeypatch):
    monkeypatch.setenv("ARENA_TOPO_NAME", "ambient")
    assert gangs.submit("--generate-name=x-", name="").out.startswith("mpijob.kubeflow.org/x-")
    assert gangs.submit(name="").out.startswith("mpijob.kubeflow.org/ambient created\n")


def test_a_prefix_that_makes_no_name_is_refused_as_a_name_is(line):
    assert line.submit("--generate-name=Bad_", name="").code == 2
    assert "no job can be called" in line.err
    assert "at most 49 lower case letters" in line.err
    assert line.submit(f"--generate-name={'x' * 45}", name="").code == 2
    assert "it has 50 characters, and may have 49" in line.err


# ---------------------------------------------------------------- what programs read


@pytest.mark.parametrize("flag", ["--output=name", "--quiet"])
def test_programs_get_the_name_of_the_job_and_nothing_else(line, flag):
    assert line.submit(flag).out == "mpijob.kubeflow.org/demo\n"
    assert line.submit(flag, "--exists=ok").out == "mpijob.kubeflow.org/demo\n"


def test_who_wants_quiet_hears_of_nothing_but_trouble(gangs):
    done = gangs.submit("--quiet", "--gputopology", "--gpus=2")
    assert (done.code, done.err) == (0, "")
    assert gangs.submit("--quiet").code == 1
    assert "is already exist" in gangs.err


def test_the_name_is_printed_before_a_gang_has_come_together(living):
    living.world.cluster.sshd = False
    line = [*living.words, "submit", "mpi", "--wait", "-o=name", "--generate-name=x-"]
    line += ["--image=i", "--gputopology", "--gpus=2", "sleep"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with program.start(line, **pipes, text=True) as one:
        name = one.stdout.readline().strip().rpartition("/")[2]
        assert one.poll() is None
        assert living.backend.job(name, "default").name == name
        one.kill()


def test_every_version_can_be_compared_with_itself(line):
    version = line.backend.api_version()
    assert version in set(ApiVersion)
    line.submit(f"--api-version={version}")
    assert line.submit(f"--api-version={version}", "--exists=ok").code == 0


def test_the_job_that_is_there_is_shown_as_it_was_submitted(gangs):
    gangs.submit("--workers=2")
    there = gangs.submit("--workers=2", "--exists=ok", "--output=json").out
    kinds = [one["kind"] for one in json.loads(there)["items"]]
    assert kinds == ["MPIJob", "ConfigMap"]


def test_what_an_earlier_job_of_the_name_has_left_says_nothing_about_this_one(living):
    api = living.world.api
    living.submit("--workers=2")
    api.find("MPIJob", "demo")["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    books = api.find("ConfigMap", "demo-mpijob")
    books["metadata"]["ownerReferences"][0]["uid"] = "an-earlier-one"
    assert living.submit("--workers=2", "--exists=ok").code == 1
    assert "there is no ConfigMap demo-mpijob of it" in living.err
