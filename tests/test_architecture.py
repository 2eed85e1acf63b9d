"""The house keeps its shape: layers, start-up, words that do not belong in it, links that live."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from fake_api import FakeApi, kubeconfig
from fake_cluster import FakeCluster

from arena_topo.cli import catalogue
from arena_topo.topology import presets, published

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "arena_topo"
HEAVY = {
    # Of others: all that the program depends on, and what came along with it before.
    *("kubernetes", "networkx", "jinja2", "yaml", "rich", "urllib3", "websocket", "pydantic"),
    *("numpy", "grpc", "mpi4py", "requests", "msgspec", "typing_extensions"),
    # Of Python's own, what takes longer than a millisecond or two.
    *("ssl", "http.client", "logging", "asyncio", "concurrent.futures", "multiprocessing"),
    *("xml.etree.ElementTree", "tomllib", "sqlite3"),
    # Of ours, what places jobs, what writes them down, and what looks after all of them.
    *("arena_topo.solver", "arena_topo.solver.door", "arena_topo.gang.planning"),
    "arena_topo.manifests.render",
    *("arena_topo.clusters.observed", "arena_topo.admin.controller", "arena_topo.client"),
}
"""What no command loads that can do without it."""


def test_each_layer_knows_only_the_layers_below_it():
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_circle_of_imports_joins_files():
    # Imports of types alone count, and those of functions; but the package itself loads its values
    # when somebody asks for them.
    graph = grimp.build_graph("arena_topo", cache_dir=None)
    files = graph.modules - {"arena_topo"}
    imports = {file: graph.find_modules_directly_imported_by(file) & files for file in files}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other: {' -> '.join(reversed(error.args[1]))}")


def test_the_core_imports_its_own_modules_at_the_top():
    late = [
        f"{path.relative_to(ROOT)}:{one.lineno}"
        for part in ("topology", "bandwidth", "job", "manifests")
        for path in sorted((PACKAGE / part).glob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for one in ast.walk(function)
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("arena_topo")
    ]
    assert late == []


def test_the_layers_in_the_docs_are_the_layers_that_are_enforced():
    declared = re.search(r"layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert declared
    layers = [one.replace("arena_topo.", "") for one in re.findall(r'"([^"]+)"', declared[1])]
    drawn = re.search(
        r"```text\n(values .*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL
    )
    assert drawn
    assert [line.split("  ")[0].strip() for line in drawn[1].strip().splitlines()] == layers


RULES = {
    "activeDeadlineSeconds": {
        "clusters/rules.py": "time_limit",
        "engines/local/pods.py": "the local engine ends its own jobs",
        "manifests/recorded_job.py": "the flags of a job are read back",
    },
    "completionTime": {
        "clusters/rules.py": "job_over",
        "engines/kubernetes/shapes.py": "its type",
        "manifests/patches.py": "reviving",
    },
    "eventTime": {},
    "involvedObject": {"engines/kubernetes/shapes.py": "its type"},
    "kubeflow.org/mpi-operator": {"clusters/queues.py": "manager"},
    "kueue.x-k8s.io/queue-name": {"clusters/queues.py": "suspender"},
    "lastTimestamp": {},
    "launcherStatus": {
        "clusters/rules.py": "job_over",
        "engines/kubernetes/shapes.py": "its type",
    },
    "managedBy": {"clusters/queues.py": "manager"},
    "managedFields": {
        "clusters/objects.py": "nulls in them are left alone",
        "engines/kubernetes/queue.py": "the cache leaves them out",
    },
    "mpi-job-name": {"manifests/versions.py": "the label of a version"},
    "mpi_job_name": {"manifests/versions.py": "the label of a version"},
    "ownerReferences": {
        "engines/kubernetes/shapes.py": "its type",
        "engines/kubernetes/job_writer.py": "what is created is owned by the job",
        "clusters/records.py": "of a claim",
    },
    "replicaStatuses": {"engines/kubernetes/shapes.py": "its type"},
    "scheduling.x-k8s.io/suspend": {
        "clusters/queues.py": "suspender",
        "manifests/render.py": "what --queue writes",
    },
    "startTime": {
        "clusters/records.py": "of a pod",
        "engines/kubernetes/shapes.py": "its type",
        "simulate/traces.py": "of a row",
    },
    "training.kubeflow.org/job-name": {"manifests/versions.py": "JOB_LABEL"},
    '.get("suspend")': {"clusters/queues.py": "suspended"},
    "Succeeded or Failed": {"clusters/rules.py": "job_over and pod_over"},
}
"""What says something of a job, and the modules beside `mpijob` that name it, with the reason."""

JOB_CONDITIONS = {"Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"}
"""The types of conditions of an MPIJob (mpi-operator, pkg/apis/kubeflow/v2beta1/types.go)."""

ENDS = {"Succeeded", "Failed"}


def test_every_rule_about_a_job_has_one_home():
    fields = map(_snake_case, RULES)
    words = re.compile(
        "|".join(map(re.escape, {*RULES, *fields, *JOB_CONDITIONS, "suspend", *ENDS}))
    )
    named = {
        (word, module)
        for path in sorted(PACKAGE.rglob("*.py"))
        if (module := path.relative_to(PACKAGE).as_posix()) != "engines/kubernetes/mpijob.py"
        if words.search(text := path.read_text())
        for one in ast.walk(ast.parse(text))
        if (word := _of_a_job(one)) is not None
    }
    assert named == {(word, module) for word, modules in RULES.items() for module in modules}


def _snake_case(name: str) -> str:
    """The attribute of a struct for a field of an object."""
    return re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", name)


FIELDS = {_snake_case(name): name for name in RULES if name.isalpha() and not name.islower()}


def _of_a_job(one: ast.AST) -> str | None:
    """What of an MPIJob a piece of code reads: a field, a label, a condition; None if nothing."""
    match one:
        case ast.Attribute(attr=field) | ast.AnnAssign(target=ast.Name(id=field)) if (
            field in FIELDS
        ):
            return FIELDS[field]
        case ast.Constant(value=str(word)) if word in RULES:
            return word
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value="suspend"), *_]):
            return '.get("suspend")'
        case ast.Call(
            func=ast.Name(id="condition" | "condition_of"),
            args=[ast.Name(id="mpijob" | "job" | "stored"), ast.Constant(value=str(word))],
        ) if word in JOB_CONDITIONS:
            return f"condition {word}"
        case ast.Set(elts=words) | ast.Tuple(elts=words) if len(words) == len(ENDS):
            ends = {word.value for word in words if isinstance(word, ast.Constant)}
            return "Succeeded or Failed" if ends == ENDS else None
        case _:
            return None


BARE: set[str] = set()
"""What a command loads that asks nobody: nothing of all that."""
DECODING = {"msgspec", "typing_extensions"}
"""What checks what others wrote, and makes the values that most commands load."""
SERVER = {"ssl", "http.client", "logging"} | DECODING
"""What asks a server; a kubeconfig in JSON, as here, needs no reader of YAML."""
OBSERVING = SERVER | {"arena_topo.clusters.observed"}
"""What says which GPUs are free, and what they are good for."""
PLACING = OBSERVING | {
    "arena_topo.solver",
    "arena_topo.solver.door",
    "arena_topo.gang.planning",
    "arena_topo.manifests.render",
}
SUBMITTING = PLACING | {"jinja2", "yaml"}
"""What fills in the templates as well; whoever starts a job later only reads what came of them."""

DUMP = ROOT / "tests/dumps/two-dgx-1.json"
STEPS = ROOT / "tests/training/steps.csv"
JOBS = ROOT / "tests/dumps/jobs.csv"

LOADS = {
    "submit mpi --name=placed --image=i --gpus=1 --workers=2 --gputopology": SUBMITTING,
    "submit mpi --name=other --image=i --gpus=1 --dry-run": SUBMITTING,
    "plan mpi --name=other --image=i --gpus=1 --workers=2 --gputopology": SUBMITTING,
    "plan mpi --state={state} --name=other --image=i --gpus=1 --gputopology": (
        SUBMITTING - SERVER | DECODING
    ),
    "get placed": SERVER,
    "why placed": PLACING - {"arena_topo.clusters.observed"},
    "list": SERVER,
    "list --backend=local": DECODING | {"arena_topo.solver"},
    "logs placed": SERVER,
    "attach placed -- true": SERVER | {"websocket"},
    "suspend placed": PLACING - {"arena_topo.clusters.observed"},
    "resume placed": PLACING,
    "wait placed --for=running": SERVER,
    "replan placed --yes --force": PLACING,
    "top node": OBSERVING,
    "top job": SERVER,
    "topology presets": DECODING,
    "topology show": OBSERVING,
    "topology show dgx-1-v100": SERVER,
    "topology show dgx-1-v100 --backend=local": DECODING,
    "topology discover": {"arena_topo.solver"} | DECODING,
    "topology publish node-0 --preset=dgx-1-v100 --dry-run": {"yaml"} | DECODING,
    "forecast node-0": OBSERVING | {"arena_topo.solver"},
    "forecast hgx-h100 --nodes=2": BARE | DECODING | {"arena_topo.solver"},
    "calibrate hgx-a100-4 --tcp --measured={steps} --workload=bert-base-squad": BARE
    | DECODING
    | {"arena_topo.solver"},
    "simulate {trace} --nodes=1xdgx-1-v100 --processes=1": BARE
    | DECODING
    | {"arena_topo.solver", "arena_topo.solver.door"},
    "check": OBSERVING | {"jinja2", "yaml"},
    "install --image=registry.example/i@sha256:{zeros}": {"jinja2"} | DECODING,
    "nodes topology node-0 --dry-run": PLACING
    - {"arena_topo.gang.planning", "arena_topo.manifests.render"},
    "nodes default node-0 --dry-run": SERVER,
    "nodes list": SERVER,
    "controller --once": PLACING | {"arena_topo.admin.controller"},
    "data list": SERVER,
    "whoami": SERVER,
    "config view": DECODING,
    "config schema": BARE,
    "options": BARE,
    "version": BARE,
    "completion bash": BARE,
    "prune --since=1h --dry-run": SERVER,
    "delete placed": SERVER,
}
"""What each command loads of all that, in an order in which each finds what it needs."""

ASK = """
import json, os, sys
from arena_topo import cli

def loaded(words):
    ours, theirs = os.pipe()
    if not os.fork():
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        code = cli.run(words)
        found = json.dumps([code, [one for one in {heavy!r} if one in sys.modules]])
        os.write(theirs, found.encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as told:
        found = told.read()
    os.wait()
    return json.loads(found)

print(json.dumps([loaded(words) for words in json.loads(sys.argv[1])]))
"""
"""Runs command lines, each in a child of its own that has loaded only what all of them load."""


def loaded(lines, heavy=HEAVY, **environ):
    """What each command line has loaded of all that is heavy; all end well."""
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(heavy=sorted(heavy)), json.dumps(lines)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    failed = [line for line, (code, _) in zip(lines, found, strict=True) if code]
    # Not every machine that runs the tests has GPUs to discover.
    assert [line for line in failed if line != ["topology", "discover"]] == [], done.stderr
    return [set(names) for _, names in found]


@contextmanager
def gpu_cluster(config):
    """A cluster at work with two machines whose links are published."""
    api = FakeApi()
    cluster = FakeCluster(api)
    try:
        for name in ("node-0", "node-1"):
            machine = presets.preset_machine("dgx-1-v100", name)
            cluster.node(name, len(machine.gpus))
            api.add(published.config_map(machine, machine.everything))
        kubeconfig(config, api.url, user={"username": "alice"})
        with cluster.running():
            yield
    finally:
        api.close()


def test_the_help_of_every_command_loads_no_heavy_package():
    lines = [[*command.path, "--help"] for command in catalogue.commands()]
    assert [one - DECODING for one in loaded(lines)] == [set()] * len(lines)


def test_every_command_loads_only_what_it_needs(tmp_path):
    leaves = {command.path for command in catalogue.commands() if not command.commands}
    names = {"zeros": "0" * 64, "state": DUMP, "steps": STEPS, "trace": JOBS}
    lines = [line.format(**names).split() for line in LOADS]
    assert {path for path in leaves for line in lines if line[: len(path)] == [*path]} == leaves
    with gpu_cluster(tmp_path / "config"):
        found = loaded(
            [[*line, *(["true"] if "--image=i" in line else [])] for line in lines],
            KUBECONFIG=str(tmp_path / "config"),
        )
    more = {line: sorted(one - LOADS[line]) for line, one in zip(LOADS, found, strict=True)}
    assert {line: names for line, names in more.items() if names} == {}
    less = {line: sorted(LOADS[line] - one) for line, one in zip(LOADS, found, strict=True)}
    assert {line: names for line, names in less.items() if names} == {}, "the table is too generous"


def test_a_look_at_jobs_loads_neither_their_flags_nor_the_model_of_bandwidth(tmp_path):
    placing = {
        *("arena_topo.job", "arena_topo.bandwidth.fitted", "arena_topo.bandwidth.several_hosts"),
        "arena_topo.solver.gpu_sets",
    }
    submit = "submit mpi --name=done --gputopology --gpus=2 --workers=1 --image=local --wait true"
    submitted, *looks = loaded(
        [submit.split(), ["get", "done"], ["list"], ["version"]],
        placing,
        KUBECONFIG="",
        XDG_STATE_HOME=str(tmp_path),
        ARENA_TOPO_EMULATE="dgx-1-v100",
    )
    assert submitted == placing
    assert looks == [set()] * 3


def test_a_variable_that_every_command_takes_loads_no_job():
    jobs = {"arena_topo.job", "decimal"}
    show = "import sys; from arena_topo import cli; cli.run(['version'])"
    show += f"; print({jobs} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", show],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "ARENA_TOPO_EMULATE": "dgx-1-v100"},
    )
    assert done.stdout.endswith("set()\n")


def test_an_answer_at_tab_is_all_that_its_process_loads():
    def imported(script):
        command = [sys.executable, "-I", "-S", "-X", "importtime", "-c", script, "get", ""]
        asks = os.environ | {"_ARENA_TOPO_COMPLETE": "bash"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=asks)
        return done.stdout, {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}

    find = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); "
    _, bare = imported(find)
    answer = f"{find}from arena_topo.__main__ import main; main()"
    imported(answer)  # asks for names, which are known from then on
    said, whole = imported(answer)
    assert said.startswith("words")
    ours = {one for one in whole - bare if one.split(".")[0] == "arena_topo"}
    assert whole - bare - ours <= {"__future__", "_signal", "binascii"}
    assert {".".join(one.split(".")[:2]) for one in ours} == {
        "arena_topo",
        "arena_topo.__main__",
        "arena_topo.argv",
        "arena_topo.completion",
        "arena_topo.errors",
    }


def texts():
    kinds = ("*.py", "*.md", "*.j2", "*.sh", "*.toml")
    found = [path for kind in kinds for path in ROOT.rglob(kind)]
    return [
        path
        for path in found
        if not any(
            part.startswith(".") or part in {"build", "dist"}
            for part in path.relative_to(ROOT).parts
        )
    ]


def test_every_link_between_pages_leads_somewhere():
    dead = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        dead += [
            f"{page.relative_to(ROOT)}: {target}"
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists()
        ]
    assert not dead


def test_what_a_version_of_mpijob_can_do_is_asked_of_its_row():
    named = re.compile(r"ApiVersion\.V[0-9]|\bV2BETA1\b|\bV1ALPHA1\b")
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if named.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["manifests/versions.py"]


def test_no_path_of_a_developers_machine_is_written_down():
    mine = Path(__file__)
    pattern = re.compile(r"/(work|farm)/|/home/(?!me/|you/)\w+/|/Users/\w+/")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts()
        if path != mine
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    assert not found


def test_what_no_usual_run_runs_can_still_be_loaded():
    words = ("-q", "--collect-only", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *words, "tests/benchmarks", "tests/cluster"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
