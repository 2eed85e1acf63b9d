"""Command lines mean what they mean to arena: flags, environment, words of the command."""

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from arena_topo import cli
from arena_topo.cli.commands import ALIASES, ArenaCommand, ArenaGroup
from arena_topo.cli.name_cache import CachedNames
from arena_topo.cli.options import CommonOptions, Seconds
from arena_topo.cli.root import command_tree
from arena_topo.engines import JobStatus, Phase
from arena_topo.flag import flags_of, spelling
from arena_topo.gang import submission
from arena_topo.gang.submission import Submitted
from arena_topo.job import Duration, MPIJob
from arena_topo.joblogs import follow
from arena_topo.manifests import Plan
from arena_topo.manifests.versions import ApiVersion

CASES = json.loads((Path(__file__).parent / "pflag_cases.json").read_text(encoding="utf-8"))[
    "cases"
]


@dataclass
class Heard:
    """What reached the verbs of the program."""

    job: MPIJob | None = None
    everywhere: CommonOptions | None = None
    log: Any = None
    namespace: str | None = None
    errors: str = ""
    output: str = ""
    code: int = 0
    more: dict[str, Any] = field(default_factory=dict)


class Nowhere:
    """An engine that no verb of these tests ever asks for more than its namespace."""

    name = "nowhere"

    def default_namespace(self):
        return "the-default"

    def close(self):
        """Nothing is open."""


class NoLines:
    """A log that is empty."""

    end = status = failure = unsaved = None

    def __iter__(self):
        return iter(())


FILLED = {"--name": "x", "--image": "local"}
"""What a job cannot do without, for command lines that are about something else."""


@pytest.fixture
def hear(monkeypatch, capfd):
    """Run a command line through the whole parser, with verbs that only listen."""
    heard = Heard()

    def engine(session, *, image=None, fabric=None, repeating=False, stays=False):
        del repeating, stays
        heard.everywhere = session.common
        session.names = CachedNames(session.common, ())
        heard.more["image"], heard.more["fabric"] = image, fabric
        return Nowhere()

    def submit(job, backend, *, namespace, api, **_more):
        del backend
        heard.job, heard.namespace = job, namespace
        heard.more["api"] = api
        status = JobStatus(
            uid="u", name=job.name, namespace=namespace, phase=Phase.RUNNING, created=0.0
        )
        plan = Plan(job=job, namespace=namespace, api=ApiVersion.V2BETA1, objects=())
        return Submitted(plan=plan, created=(), status=status)

    def log(_backend, _name, namespace, asked, **_more):
        heard.log, heard.namespace = asked.options, namespace
        heard.more["asked"] = asked
        return NoLines()

    for module in ("logs", "submit"):
        monkeypatch.setattr(f"arena_topo.jobs.{module}.open_engine", engine)
    monkeypatch.setattr(submission, "submit", submit)
    monkeypatch.setattr(follow, "RequestedLines", log)
    for variable in ("ARENA_GANG", "ARENA_NAMESPACE", "ARENA_TOPO_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)

    def run(*argv, job=True):
        if job and argv and "submit" in argv:
            argv = [*argv]
            at = argv.index("mpi") + 1
            given = {word.partition("=")[0] for word in argv}
            argv[at:at] = [f"{f}={v}" for f, v in FILLED.items() if f not in given]
        heard.code = cli.run(argv)
        shown = capfd.readouterr()
        heard.output, heard.errors = shown.out, shown.err
        return heard

    return run


def value(heard, key):
    """What a case of `pflag_cases.json` calls by a flag's name."""
    if key == "namespace":
        return heard.namespace
    if key == "trace":
        return heard.everywhere.trace
    if key == "follow":
        return heard.log.follow
    if key == "env":
        return [str(one) for one in heard.job.env]
    return getattr(heard.job, key.replace("-", "_"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case["argv"]))
def test_every_known_command_line_means_what_pflag_says(case, hear, monkeypatch):
    for name, text in case["env"].items():
        monkeypatch.setenv(name, text)
    heard = hear(*case["argv"])
    wanted = case["expect"] or {}
    if wanted.get("name") == "--gang=false":
        # Read as the name, as pflag does; no job may be called so, and the error quotes it.
        assert heard.code == 2
        assert "why:  no job can be called '--gang=false'" in heard.errors
        return
    assert heard.code == case["exit"], heard.errors
    assert {key: value(heard, key) for key in wanted} == wanted
    if heard.code == 2:
        assert heard.errors.startswith("error: ")
        assert heard.job is None


def test_there_are_thirty_three_cases():
    assert len(CASES) == 33


EXAMPLES = {
    "binding": "claims",
    "pod_shape": "fused",
    "gang_timeout": "1h30m",
    "patience": "2h",
    "on_node_loss": "hold",
    "running_timeout": "90m",
    "policy": "spread",
    "pack_above": "0.25",
    "name": "a-name",
    "gpus": "3",
    "workers": "5",
    "cpu": "500m",
    "memory": "4Gi",
    "launcher_cpu": "250m",
    "launcher_memory": "512Mi",
    "share_memory": "8Gi",
    "device": "amd.com/gpu=1",
    "min_bandwidth": "12.5",
    "max_nodes": "2",
    "selector": "zone=a",
    "toleration": "k=v:NoSchedule,Equal",
    "env": "A=b,c=d",
    "label": "l=1",
    "annotation": "a/b=c",
    "data": "claim:/data",
    "data_dir": "/host:/container",
    "config_file": "a.conf:/etc/a.conf",
    "ttl_after_finished": "24h",
    "mpi_implementation": "Intel",
    "image_pull_policy": "IfNotPresent",
    "retry": "4",
    "workload": "vgg16",
    "batch": "64",
    "gradient_bytes": "553MB",
    "step_time": "180ms",
    "clean_task_policy": "Running",
}


FLAGS = flags_of(MPIJob)


@pytest.mark.parametrize(("name", "flag"), FLAGS.items(), ids=FLAGS)
def test_every_flag_of_a_job_reaches_its_field(name, flag, hear):
    hint = get_type_hints(MPIJob)[name]
    extra = {
        "sync_mode": ["--sync-source=s", "--sync-image=i"],
        "model_name": ["--model-source=s"],
        "tensorboard": ["--tensorboard-image=i"],
        "pack_above": ["--gputopology", "--policy=adaptive"],
        "batch": ["--workload=vgg16"],
        "gradient_bytes": ["--step-time=180ms"],
        "step_time": ["--workload=vgg16"],
    }.get(name, flag.needs)
    if hint is bool:
        heard = hear("submit", "mpi", spelling(name, flag), *extra, "c")
        assert getattr(heard.job, name) is True, heard.errors
        return
    text = "git" if name == "sync_mode" else EXAMPLES.get(name, "some-text")
    meant = {"running_timeout": "1h30m"}.get(name, text)
    for spelled in [spelling(name, flag), *([flag.short] if flag.short else [])]:
        heard = hear("submit", "mpi", spelled, text, *extra, "c")
        assert heard.code == 0, heard.errors
        found = getattr(heard.job, name)
        assert (
            [str(one) for one in found] == [meant]
            if isinstance(found, tuple)
            else (str(found) == meant)
        )


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if flag.needs])
def test_a_flag_that_means_nothing_by_itself_names_the_one_it_needs(name, hear):
    flag = FLAGS[name]
    text = "git" if name == "sync_mode" else EXAMPLES.get(name, "some-text")
    value = [] if get_type_hints(MPIJob)[name] is bool else [text]
    heard = hear("submit", "mpi", spelling(name, flag), *value, "c")
    assert heard.code == 2
    assert f"{spelling(name, flag)} needs {' and '.join(flag.needs)}" in heard.errors


@pytest.mark.parametrize(
    "name", [name for name, flag in FLAGS.items() if flag.at_least is not None]
)
def test_a_number_below_its_least_is_refused_with_arenas_text(name, hear):
    flag = FLAGS[name]
    heard = hear(
        "submit", "mpi", "--gputopology", f"{spelling(name, flag)}={flag.at_least - 1}", "c"
    )
    assert heard.code == 2
    assert heard.errors.startswith(f"error: {spelling(name, flag)} is invalid\n")


def test_what_is_not_given_keeps_the_default_of_the_job(hear):
    assert hear("submit", "mpi", "c").job == MPIJob(name="x", image="local", command="c")


@pytest.mark.parametrize("value", ["0", "-1"])
def test_no_worker_at_all_is_refused_and_not_taken_for_the_default(value, hear):
    heard = hear("submit", "mpi", "--workers", value, "c")
    assert (heard.code, heard.job) == (2, None)
    assert heard.errors.startswith("error: --workers is invalid\n")


def test_an_unknown_flag_that_resembles_no_other_gets_no_suggestion(hear):
    assert hear("submit", "mpi", "--all", "c").errors == "error: unknown flag: --all\n"


def test_a_value_that_cannot_be_read_is_named_with_its_flag(hear):
    heard = hear("submit", "mpi", "-e", "NOEQUALS", "c")
    assert heard.errors == "error: --env is invalid\n  why:  expected KEY=VALUE, got 'NOEQUALS'\n"
    assert heard.code == 2


def test_an_unknown_flag_gets_a_suggestion(hear):
    heard = hear("submit", "mpi", "--gputopolgy", "c")
    assert heard.errors == (
        "error: unknown flag: --gputopolgy\n  try:  did you mean --gputopology?\n"
    )


def test_hidden_flags_are_not_suggested(hear):
    assert "try:" not in hear("version", "--helm-binar").errors


def test_an_old_spelling_works_and_is_deprecated_in_pflags_words(hear):
    heard = hear("submit", "mpi", "--workingDir=/w", "--dataDir", "/data", "c")
    assert heard.job.working_dir == "/w"
    assert [str(one) for one in heard.job.data_dir] == ["/data:/data"]
    assert heard.errors.splitlines()[:2] == [
        "warning: Flag --workingDir has been deprecated, please use --working-dir instead",
        "warning: Flag --dataDir has been deprecated, please use --data-dir instead",
    ]


def test_a_truth_word_after_a_boolean_is_warned_of(hear):
    heard = hear("submit", "mpi", "--gang", "true", "run me")
    assert heard.job.command == "true 'run me'"
    assert heard.errors.splitlines()[0] == (
        "warning: 'true' after --gang is read as a word of its own; write --gang=true to set it"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("mpirun", "-np", "4", "python"),
        ("mpirun", "-n", "4", "python"),
        ("mpirun", "--gang", "python"),
        ("mpirun", "--oversubscribe"),
    ],
)
def test_a_command_that_was_not_quoted_is_refused_with_the_way_out(words, hear):
    heard = hear("submit", "mpi", *words)
    assert heard.code == 2
    assert "stands after the start of the command, 'mpirun'" in heard.errors
    assert "  try:  quote the whole command, or put -- before it\n" in heard.errors


def test_a_word_after_a_flag_that_takes_none_is_named_as_the_cause(hear):
    said = hear("submit", "mpi", "--name=x", "--queue", "q", "--gputopology", "train").errors
    assert said.splitlines() == [
        "error: --gputopology stands after the start of the command, 'q'",
        "  why:  --queue takes no value, so 'q' is read as the start of the command",
        "  try:  leave out 'q'; or quote the whole command, or put -- before it",
    ]


def test_a_truth_value_in_a_word_of_its_own_is_refused_with_the_right_spelling(hear):
    said = hear("submit", "mpi", "--name=x", "--gputopology", "false", "--image=i", "train").errors
    assert said.splitlines()[-3:] == [
        "error: --image=i stands after the start of the command, 'false'",
        "  why:  --gputopology takes no value, so 'false' is read as the start of the command",
        "  try:  write --gputopology=false; or quote the whole command, or put -- before it",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("plan", "mpi", "--bogus"), "error: unknown flag: --bogus\n"),
        (
            ("bogus",),
            'error: unknown command "bogus" for "arena-topo"\n  try:  arena-topo --help\n',
        ),
        (("submit", "mpi", "--wrokers=2"), "did you mean --workers?\n"),
    ],
    ids=" ".join,
)
def test_only_names_that_are_near_are_suggested(hear, words: tuple[str, ...], told: str):
    heard = hear(*words)
    assert heard.code == 2
    assert heard.errors.endswith(told)


def test_a_misspelt_flag_after_a_command_of_one_word_still_gets_a_suggestion(hear):
    heard = hear("submit", "mpi", "./train.sh", "--gusp=2")
    assert heard.errors.endswith("or put -- before it; or did you mean --gpus?\n")


def test_short_options_may_be_bundled_as_pflag_allows(hear):
    heard = hear("logs", "-ft5", "j")
    assert (heard.log.follow, heard.log.tail) == (True, 5)


def test_a_flag_at_the_end_that_wants_a_value_says_so(hear):
    assert hear("logs", "j", "--tail").errors == "error: flag needs an argument: --tail\n"


@pytest.mark.parametrize(
    ("argv", "namespace"),
    [
        (["-n", "a", "logs", "j"], "a"),
        (["logs", "j", "-n", "b"], "b"),
        (["-n", "a", "logs", "j", "-n", "b"], "b"),
        (["logs", "-nb", "j"], "b"),
        (["logs", "j"], "the-default"),
    ],
)
def test_a_global_flag_may_stand_anywhere_and_the_last_wins(argv, namespace, hear):
    assert hear(*argv).namespace == namespace


def test_of_an_option_that_is_given_twice_only_the_last_value_is_read(hear):
    heard = hear("logs", "j", "--tail", "many", "--tail", "5", "-n", "b")
    assert (heard.errors, heard.namespace) == ("", "b")
    assert hear("logs", "j", "--tail", "5", "--tail", "many").code == 2


def test_a_global_flag_may_stand_between_the_words_of_a_command(hear):
    assert hear("-n", "a", "submit", "-n", "b", "mpi", "c").namespace == "b"


def test_the_namespace_comes_from_the_flag_then_our_variable_then_arenas(hear, monkeypatch):
    monkeypatch.setenv("ARENA_NAMESPACE", "arenas")
    assert hear("logs", "j").namespace == "arenas"
    monkeypatch.setenv("ARENA_TOPO_NAMESPACE", "ours")
    assert hear("logs", "j").namespace == "ours"
    assert hear("logs", "j", "-n", "said").namespace == "said"


def test_a_wrong_value_of_a_variable_is_blamed_on_the_variable(hear, monkeypatch):
    monkeypatch.setenv("ARENA_TOPO_GPUS", "many")
    heard = hear("submit", "mpi", "c")
    assert heard.code == 2
    assert heard.errors == (
        "error: --gpus is invalid\n"
        "  why:  'many' is not a whole number\n"
        "  try:  correct ARENA_TOPO_GPUS in the environment, or unset it\n"
    )


@pytest.mark.parametrize("digits", [19, 5000])
def test_a_whole_number_that_is_too_large_is_called_that(hear, digits):
    heard = hear("submit", "mpi", f"--gpus={'9' * digits}", "c")
    assert heard.code == 2
    assert heard.errors == f"error: --gpus is invalid\n  why:  '{'9' * digits}' is out of range\n"


def test_arenas_own_configuration_file_is_not_taken_for_a_kubeconfig(hear, monkeypatch):
    monkeypatch.setenv("ARENA_CONFIG", "/etc/arena/config")
    assert hear("logs", "j").everywhere.config == ""


def test_the_variables_of_a_job_do_not_touch_other_commands(hear, monkeypatch, capfd):
    monkeypatch.setenv("ARENA_GPUS", "2")
    monkeypatch.setenv("ARENA_NAME", "other")
    assert hear("logs", "j").code == 0, capfd.readouterr()


def test_how_to_reach_an_engine_is_handed_on_whole(hear):
    heard = hear(
        *("--kubeconfig=/k", "--context", "c", "--backend", "local", "--emulate=dgx-1-v100:2"),
        *(
            "--request-timeout",
            "1m30s",
            "--timeout=2m",
            "--arena-namespace=x",
            "--pprof",
            "--helm-binary=false",
        ),
        *("logs", "j"),
    )
    options = heard.everywhere.options()
    assert (options.kubeconfig, options.context, options.backend) == ("/k", "c", "local")
    assert (options.emulate, options.request_timeout) == ("dgx-1-v100:2", 90.0)
    assert options.deadline == 120.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("1h30m", 5400), ("1.5m", 90), ("250ms", 0.25), ("7", 7), ("0", 0)],
)
def test_a_time_span_is_read_as_go_writes_it(text, seconds):
    assert Seconds.parse(text) == seconds


@pytest.mark.parametrize("text", ["", "5 s", "-3s", "1d", "s", "1h2", "٣s"])
def test_what_is_no_time_span_is_refused(text):
    with pytest.raises(ValueError, match="expected a time such as"):
        Seconds.parse(text)


@pytest.mark.parametrize("text", ["2562048h", "99999999999999", "9" * 400, f"{'9' * 400}ms"])
@pytest.mark.parametrize("flag", ["--timeout", "--request-timeout"])
def test_a_time_span_longer_than_any_clock_is_refused(hear, flag, text):
    heard = hear("list", flag, text)
    assert heard.code == 2
    why = "expected at most 2562047h"
    assert heard.errors.split() == f"error: {flag} is invalid why: {why}".split()


def test_the_longest_time_span_is_one_that_clocks_take(hear, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for flag in ("--timeout", "--request-timeout"):
        assert hear("list", "--backend=local", flag, "2562047h").code == 0


def test_a_word_that_looks_like_the_value_of_a_switch_is_doubted_aloud(hear):
    doubted = hear("submit", "mpi", "--queue", "team", "mpirun train")
    assert doubted.code == 0
    assert "warning: 'team' is read as the start of the command: --queue takes no value" in (
        doubted.errors
    )
    for plain in (["mpirun train"], ["true-ish"], ["--", "mpirun", "train"]):
        assert "warning" not in hear("submit", "mpi", "--queue", *plain).errors


def leaves(command, path=()):
    commands = getattr(command, "commands", None)
    if commands is None:
        yield path, command
        return
    assert isinstance(command, ArenaGroup), path
    for name, one in commands.items():
        yield from leaves(one, (*path, name))


def test_every_command_reads_its_words_as_pflag_does_and_takes_the_global_flags():
    taken = {one.name for one in fields(CommonOptions)}
    found = dict(leaves(command_tree()))
    assert len(found) >= 11
    for path, command in found.items():
        assert isinstance(command, ArenaCommand), path
        assert taken <= {param.name for param in command.params}, path
        assert command.help, path
    assert found["submit", "mpi"].takes_job


def test_no_option_of_a_command_hides_another():
    for path, command in leaves(command_tree()):
        spelled = [text for param in command.params for text in param.opts]
        assert len(spelled) == len(set(spelled)), path


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_aliases_work_but_are_not_listed(alias, hear):
    before = ["submit"] if ALIASES[alias] == "mpi" else []
    heard = hear(*before, alias, "--help", job=False)
    assert heard.code == 0
    assert heard.output.startswith("Usage: arena-topo ")
    listing = hear(*before, job=False).output
    assert f"\n  {alias} " not in listing
    assert f"\n  {ALIASES[alias]} " in listing


def test_a_share_of_gpus_is_no_percentage(hear):
    heard = hear("submit", "mpi", "--gputopology", "--policy=adaptive", "--pack-above=50", "c")
    assert heard.code == 2
    assert "50 is more than all GPUs" in heard.errors


@pytest.mark.parametrize("policy", [[], ["--policy=pack"]])
def test_a_share_means_nothing_to_a_policy_that_does_not_adapt(policy, hear):
    heard = hear("submit", "mpi", "--gputopology", *policy, "--pack-above=0.5", "c")
    assert heard.code == 2
    assert "--pack-above needs --policy adaptive" in heard.errors


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("10m", 600, "10m"),
        ("90s", 90, "1m30s"),
        ("1h30m", 5400, "1h30m"),
        ("1.5h", 5400, "1h30m"),
        (".5m", 30, "30s"),
        ("2.s", 2, "2s"),
        ("1h0m1s", 3601, "1h1s"),
        ("1s1ms", 2, "2s"),
        ("250\u00b5s", 1, "1s"),
        ("0", 0, "0s"),
        ("0s", 0, "0s"),
    ],
)
def test_a_duration_is_read_as_go_writes_it_and_never_shortened(text, seconds, shown):
    found = Duration.parse(text)
    assert (found, str(found)) == (seconds, shown)
    assert Duration.parse(shown) == found


@pytest.mark.parametrize("text", ["", "10", "-3", "+3s", "1d", "s", "1h2", "5 s", "1.5", "\u0663s"])
def test_a_duration_without_a_unit_or_with_a_sign_is_refused(text, hear):
    heard = hear("submit", "mpi", f"--gang-timeout={text}", "c")
    assert heard.code == 2
    if text:
        bare = " without its unit" if text in {"10", "1.5"} else ""
        assert heard.errors == (
            "error: --gang-timeout is invalid\n"
            f"  why:  expected a time such as 90s, 10m or 1h30m, got {text!r}{bare}\n"
        )


@pytest.mark.parametrize("text", ["2562048h", "9" * 5000 + "s"])
def test_a_duration_longer_than_go_reads_is_refused(text, hear):
    heard = hear("submit", "mpi", f"--gang-timeout={text}", "c")
    assert heard.code == 2
    assert heard.errors == ("error: --gang-timeout is invalid\n  why:  expected at most 2562047h\n")


def test_the_help_shows_durations_and_choices_with_their_defaults(hear):
    shown = " ".join(hear("submit", "mpi", "--help", job=False).output.split())
    assert "--gang-timeout DURATION Roll back the whole gang if it makes no progress" in shown
    assert "for this long. (default 10m)" in shown
    assert "--binding auto|claims|admission|gates|template" in shown
    assert "--pod-shape separate|fused|shared" in shown
    assert "--on-node-loss replan|hold|fail" in shown
    assert "--running-timeout DURATION End the job when it has run this long; 0 is no limit. " in (
        shown
    )


def test_a_choice_that_changes_nothing_needs_no_other_flag(hear):
    assert hear("submit", "mpi", "--pod-shape=separate", "--binding=auto", "c").code == 0


def test_a_summary_in_the_tree_is_the_promise_of_its_command():
    for path, command in leaves(command_tree()):
        above = command_tree()
        for name in path[:-1]:
            above = above.commands[name]
        promise = " ".join(command.help.split("\n\n")[0].split())
        assert above.summaries[path[-1]] == promise, path
