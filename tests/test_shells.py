"""TAB in real shells: what they put on the line, and what they show; and `arena-topo completion`.

One process of each shell answers all the questions about it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_api import FakeApi, kubeconfig
from kube_objects import job as mpijob
from shells import LEFT, NAMES, TAB, Shell, there

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "bash": "arena-topo.bash",
    "zsh": "_arena-topo",
    "fish": "arena-topo.fish",
    "powershell": "arena-topo.ps1",
}
CONTEXTS = ("kubernetes-admin@kube", "arn:aws:eks:eu:1:cluster/one", "arn:aws:eks:eu:1:cluster/two")


class World:
    """A home with the scripts installed, a local engine, a cluster, and files to complete."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.bin = folder / "bin"
        for one in (self.home, self.bin, self.home / "some jobs", folder / "other"):
            one.mkdir(parents=True)
        self.program(self.bin, f'exec "{sys.executable}" -m arena_topo "$@"')
        self.asked = folder / "asked"
        self.program(
            folder / "other",
            f'printf "%s\\n" "$@" > {self.asked}\n'
            'for one; do :; done; printf "%s\\n" words "${one}st"',
        )
        self.ran = folder / "ran"
        for name in ("arena", "another"):
            self.program(self.bin, f'touch "{self.ran}"', name=name)
        for name in ("my job.yaml", "my-file.txt", "some", "some jobs/in.yaml"):
            (self.home / name).touch()
        self.env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "TZ": "UTC",
            "LANG": "C.UTF-8",
            "ARENA_TOPO_BACKEND": "local",
            "ARENA_TOPO_EMULATE": "dgx-1-v100:2",
        }
        self.api = FakeApi()
        self.api.add(mpijob("team.job-1", "{}", state="running"))
        self.config = kubeconfig(self.home / "cluster", self.api.url, user={"username": "alice"})
        document = json.loads(Path(self.config).read_text())
        document["contexts"] += [
            {"name": name, "context": document["contexts"][0]["context"]} for name in CONTEXTS
        ]
        Path(self.config).write_text(json.dumps(document))

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Every connection to the cluster breaks."""
        self.api.fail("", times=10**6, reset=True)
        try:
            yield
        finally:
            self.api.faults.clear()

    def program(self, folder: Path, text: str, *, name: str = "arena-topo") -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def arena(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["arena-topo", *words],
            env=self.env | env,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    one = World(tmp_path_factory.mktemp("shells"))
    yield one
    one.api.close()
    listed = one.arena("list", "-o", "name").stdout.split()
    one.arena("delete", *(name.rpartition("/")[2] for name in listed))


WHERE = {
    "bash": ".local/share/bash-completion/completions/arena-topo",
    "zsh": ".local/share/zsh/site-functions/_arena-topo",
    "fish": ".config/fish/completions/arena-topo.fish",
}

OTHER_NAMES = {
    "bash": "complete -F _arena_topo arena another",
    "zsh": "compdef _arena-topo another",
    "fish": "complete -c another -f -a '(__arena_topo_complete)'",
}
"""How a shell is told that something else is arena-topo too; aliases only bash must be told of."""


@pytest.fixture(scope="module", params=NAMES)
def shell(request: pytest.FixtureRequest, world: World) -> Iterator[Shell]:
    """A shell that is set up as the page says, with the script in a file."""
    path = world.home / WHERE[request.param]
    path.parent.mkdir(parents=True)
    path.write_text(world.arena("completion", request.param).stdout)
    lines = {
        "bash": [f"source {path}"],
        # -u: whoever may write to the folders of this machine
        "zsh": [f"fpath=({path.parent} $fpath)", "autoload -Uz compinit && compinit -u"],
    }.get(request.param, [])
    lines.append("alias arena='arena-topo -n elsewhere'")
    lines.append(OTHER_NAMES[request.param])
    one = Shell(request.param, world.home, world.env, "\n".join(lines))
    assert one.started.split() == ["$"]
    yield one
    one.close()


# ---------------------------------------------------------------- what stands on the line then


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("arena-topo sub", "arena-topo submit "),
        ("arena-topo submit ", "arena-topo submit mpi "),
        ("arena-topo topo", "arena-topo topology "),
        ("arena-topo help lis", "arena-topo help list "),
        ("arena-topo ls --al", "arena-topo ls --all-namespaces "),
        ("arena-topo submit mpi --gputop", "arena-topo submit mpi --gputopology "),
        (
            "arena-topo submit mpi --gpus=2 --gputop",
            "arena-topo submit mpi --gpus=2 --gputopology ",
        ),
        ("arena-topo get x --output js", "arena-topo get x --output json "),
        ("arena-topo get x --output=js", "arena-topo get x --output=json "),
        ("arena-topo get x -ojs", "arena-topo get x -ojson "),
        ("arena-topo list --status RUNNING,FA", "arena-topo list --status RUNNING,FAILED "),
        ("arena-topo list --status=RUNNING,FA", "arena-topo list --status=RUNNING,FAILED "),
        ("arena-topo topology show dgx-1-p", "arena-topo topology show dgx-1-p100 "),
        ("arena-topo completion po", "arena-topo completion powershell "),
    ],
)
def test_words_are_completed(shell, typed, line):
    assert shell.line(typed + TAB) == line
    assert shell.only(line), shell.seen


@pytest.mark.parametrize(
    "typed",
    ["arena-topo submit mpi --emulate dgx-1-v100:", "arena-topo submit mpi --emulate=dgx-1-v100:"],
)
def test_a_word_goes_on_after_a_colon(shell, typed):
    # Not in fish, where a word goes on only after a character that says so.
    end = " " if shell.name == "fish" else ""
    assert shell.line(f"{typed}8{TAB}") == f"{typed}8{end}"
    assert shell.line(f"{typed[:-3]}{TAB}") == f"{typed[:-1]}{end}"


@pytest.mark.parametrize("flag", ["--data ", "--data=", "-d"])
def test_the_path_of_a_claim_follows_its_colon_at_once(shell, world, flag):
    value = f"{flag}corpus:".rpartition(" ")[2]
    world.program(world.home, f"printf '%s\\n' 'words nospace keep' '{value}\tof a team'")
    typed = f"./arena-topo submit mpi {flag}co"
    assert shell.line(typed + TAB) == f"./arena-topo submit mpi {flag}corpus:"
    assert shell.only(f"./arena-topo submit mpi {flag}corpus:"), shell.seen


def test_words_are_shown_in_the_order_of_the_program(shell, world):
    # So long that no two stand side by side.
    names = [letter + "-" * 90 for letter in "qdaogkbn"]
    world.program(world.home, f"printf '%s\\n' 'words keep' {' '.join(names)}")
    text = shell.shown(f"./arena-topo get {TAB}{TAB}", *names)
    assert sorted(names, key=text.index) == names


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("arena-topo submit mpi -f my-", "arena-topo submit mpi -f my-file.txt "),
        ("arena-topo submit mpi --file=my-", "arena-topo submit mpi --file=my-file.txt "),
        ("arena-topo submit mpi -f my\\ ", "arena-topo submit mpi -f my\\ job.yaml "),
        ("arena-topo submit mpi -f 'some jobs/", "arena-topo submit mpi -f 'some jobs/in.yaml' "),
        ("arena-topo --kubeconfig=clu", "arena-topo --kubeconfig=cluster "),
        ("arena-topo list > my-", "arena-topo list > my-file.txt "),
        (
            "arena-topo submit mpi --name=x python my-",
            "arena-topo submit mpi --name=x python my-file.txt ",
        ),
        # Folders only: there is a file that begins like one, and another that is the only one.
        ("arena-topo logs x --save so", "arena-topo logs x --save some\\ jobs/"),
        ("arena-topo logs x --save=so", "arena-topo logs x --save=some\\ jobs/"),
        ("arena-topo logs x --save my-", "arena-topo logs x --save my-"),
        ("arena-topo logs x --save=my-", "arena-topo logs x --save=my-"),
    ],
)
def test_files_are_completed_by_the_shell(shell, typed, line):
    assert shell.line(typed + TAB) == line
    assert shell.only(line), shell.seen


def test_files_are_in_their_order(shell, world):
    if shell.name == "fish":
        # Its lists go down columns; it sorts whatever it is given, unless it is told otherwise.
        return
    folder = world.home / "many"
    folder.mkdir(exist_ok=True)
    names = [f"{letter}.yaml" for letter in "qdaogkbn"]
    for name in names:
        (folder / name).touch()
    text = shell.shown(f"arena-topo submit mpi -f many/{TAB}{TAB}", *names)
    assert sorted(names, key=text.index) == sorted(names)


# ---------------------------------------------------------------- names


@pytest.fixture(scope="module")
def submitted(shell: Shell) -> str:
    """A job of the local engine that this shell submitted a second ago; the name is an odd one."""
    name = f"a--{shell.name}-0"
    shell.run(f"arena-topo submit mpi --name={name} --image=local --gpus=1 'sleep 600'")
    shell.run("arena-topo --backend local list")  # other flags are another context
    return name


@pytest.mark.parametrize(
    "typed",
    [
        "arena-topo get {}",
        "arena-topo delete other {}",
        'arena-topo get "{}',
        "arena-topo get '{}",
        "VARIABLE=1 arena-topo get {}",
        "true && arena-topo get {}",
        "arena-topo --backend local get {}",
    ],
)
def test_a_job_is_completed_as_soon_as_it_is_submitted(shell, submitted, typed):
    line = typed.format(submitted)
    line += {'"': '" ', "'": "' "}.get(typed[-3], " ")
    assert shell.line(typed.format(submitted[:-3]) + TAB) == line
    assert shell.only(line), shell.seen


def test_a_job_is_completed_in_the_middle_of_a_line(shell, submitted):
    assert shell.line(f"arena-topo get {submitted[:-1]} -o json{LEFT * 8}{TAB}").split() == [
        *("arena-topo", "get", submitted, "-o", "json"),
    ]


def test_where_output_goes_is_no_word_of_the_line(shell, submitted):
    if shell.name == "fish":
        # It hands the name of the file over among the words.
        return
    typed = f"arena-topo get 2>/dev/null {submitted}"
    assert shell.line(typed[:-3] + TAB) == typed + " "


def test_a_name_that_is_on_the_line_is_not_offered_again(shell, submitted):
    typed = f"arena-topo delete {submitted} {submitted[:-1]}"
    assert shell.line(typed + TAB) == typed


def test_what_words_are_is_shown_beside_them(shell):
    if shell.name == "bash":
        # Its lists have no place for that.
        assert "suspend" in shell.shown(f"arena-topo su{TAB}{TAB}", "submit", "suspend")
    else:
        mark = "-- " if shell.name == "zsh" else "("
        shell.shown(f"arena-topo su{TAB}", "submit", f"{mark}Submit a job", "suspend")


def test_zsh_and_fish_find_more_than_beginnings_as_their_users_know_it(shell, submitted):
    if shell.name == "zsh":
        shell.run("zstyle ':completion:*' matcher-list '' 'm:{A-Z}={a-z}' 'r:|-=* l:|=*'")
        assert shell.line(f"arena-topo completion FI{TAB}") == "arena-topo completion fish "
        assert shell.line(f"arena-topo get {shell.name}-0{TAB}") == f"arena-topo get {submitted} "
        assert shell.line(f"arena-topo get x --OUTP{TAB}") == "arena-topo get x --output "
        shell.run("zstyle -d ':completion:*' matcher-list")
    elif shell.name == "fish":
        assert shell.line(f"arena-topo get {shell.name}-0{TAB}") == f"arena-topo get {submitted} "


# ---------------------------------------------------------------- a cluster


def test_names_of_a_cluster_are_completed_whether_it_answers_or_not(shell, world):
    at = f"arena-topo --backend kubernetes --kubeconfig {world.config}"
    shell.run(f"{at} list")
    shell.run(f"{at} submit mpi --name={shell.name}-here --image=x true")
    names = [("get team", "get team.job-1 "), (f"logs {shell.name}", f"logs {shell.name}-here ")]
    for typed, line in names:
        assert shell.line(f"{at} {typed}{TAB}") == f"{at} {line}"
    with world.unreachable():
        for typed, line in names:
            assert shell.line(f"{at} {typed}{TAB}") == f"{at} {line}"
            assert shell.only(f"{at} {line}"), shell.seen


def test_contexts_are_completed_though_shells_break_words_at_what_is_in_their_names(shell, world):
    at = f"arena-topo --backend kubernetes --kubeconfig {world.config}"
    end = time.monotonic() + 120
    # A busy machine may not have read them within the second that TAB waits.
    while shell.line(f"{at} --context te{TAB}") != f"{at} --context test ":
        assert time.monotonic() < end
    for typed, line in (
        ("--context kubernetes-admin@k", "--context kubernetes-admin@kube"),
        ("--context=kubernetes-admin@k", "--context=kubernetes-admin@kube"),
        ("--context arn:aws:eks:eu:1:cluster/o", "--context arn:aws:eks:eu:1:cluster/one"),
        ("--context=arn:aws:eks:eu:1:cluster/o", "--context=arn:aws:eks:eu:1:cluster/one"),
        ('--context "kubernetes-admin@k', '--context "kubernetes-admin@kube"'),
    ):
        assert shell.line(f"{at} {typed}{TAB}") == f"{at} {line} "


def test_what_a_shell_would_take_for_its_own_is_quoted(shell, world):
    world.program(world.home, """printf '%s\\n' words "it's \\\\ \\$HOME;" 'plain words'""")
    for typed, line in (
        ("it", r"it\'s\ \\\ \$HOME\;"),
        ("pl", r"plain\ words"),
        ('"pl', '"plain words"'),
        ("'pl", "'plain words'"),
    ):
        assert shell.line(f"./arena-topo get {typed}{TAB}") == f"./arena-topo get {line} "


# ---------------------------------------------------------------- which program is asked


def test_the_program_on_the_line_is_asked_with_the_words_before_the_cursor(shell, world):
    for program in ("../other/arena-topo", "~/../other/arena-topo"):
        line = f"{program} 'a b' c\\ d ~/e --f=\"g h\" la"
        assert shell.line(f"{line} after{LEFT * 6}{TAB}").split() == f"{line}st after".split()
        assert world.asked.read_text().splitlines() == [
            *("a b", "c d", f"{world.home}/e", "--f=g h", "la"),
        ]
    line = "../other/arena-topo '' \"la"
    assert shell.line(line + TAB) == f'{line}st" '
    assert world.asked.read_text() == "\nla\n"


def test_the_flags_of_an_alias_count(shell, submitted):
    # The alias says another namespace, where that job is not.
    typed = f"arena get {submitted[:-1]}"
    assert shell.line(typed + TAB) == typed
    assert shell.line(f"arena get -o js{TAB}") == "arena get -o json "
    assert shell.line(f"arena -n default get {submitted[:-1]}{TAB}") == (
        f"arena -n default get {submitted} "
    )


def test_what_has_another_name_is_completed_but_never_run(shell, world, submitted):
    for name in ("another", f"{world.bin}/another"):
        line = f"{name} delete {submitted} "
        assert shell.line(f"{name} delete {submitted[:-1]}{TAB}") == line
    assert not world.ran.exists()


# ---------------------------------------------------------------- when things are broken


@pytest.mark.parametrize(
    "program",
    ["exit 1", "echo oops >&2; echo oops; exit 3", "kill -9 $$", "echo words; echo oops >&2"],
)
def test_a_program_that_is_broken_leaves_the_line_as_it_is(shell, world, program):
    world.program(world.home, program)
    assert shell.line(f"./arena-topo get x{TAB}") == "./arena-topo get x"
    assert shell.only("./arena-topo get x"), shell.seen


def test_a_program_that_is_not_there_leaves_the_line_as_it_is(shell):
    assert shell.line(f"./nowhere/arena-topo get x{TAB}") == "./nowhere/arena-topo get x"
    assert shell.only("./nowhere/arena-topo get x"), shell.seen


def test_nothing_is_written_to_the_prompt_when_everything_is_broken(shell, world):
    broken = {
        "HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null/cache",
        "XDG_STATE_HOME": "/dev/null/state",
        "KUBECONFIG": str(world.home),
        "ARENA_TOPO_EMULATE": "nonsense",
        "ARENA_TOPO_BACKEND": "nonsense",
        "LC_ALL": "nonsense",
    }
    shell.run("export " + " ".join(f"{name}={value}" for name, value in broken.items()))
    try:
        for typed, line in (
            ("arena-topo get x", "arena-topo get x"),
            ("arena-topo get --outp", "arena-topo get --output "),
            ("arena-topo --context x", "arena-topo --context x"),
        ):
            assert shell.line(typed + TAB) == line
            assert shell.only(line), shell.seen
    finally:
        for name in broken:
            forget = f"set -e {name}" if shell.name == "fish" else f"unset {name}"
            shell.run(f"export {name}={world.env[name]}" if name in world.env else forget)


# ---------------------------------------------------------------- unusual bash, unusual zsh


UNUSUAL = [
    ("bash", "set -o posix\n. {}"),
    ("bash", "set -eu\nsource <(arena-topo completion bash)"),
    ("bash", ". {}\nset -f; shopt -s nullglob failglob nocasematch extglob; IFS=es"),
    ("bash", ". {}\nCOMP_WORDBREAKS=' '"),
    (
        "zsh",
        (
            "setopt ksh_arrays sh_word_split no_unset glob_subst null_glob no_match\n"
            "autoload -Uz compinit; compinit -D -u; source <(arena-topo completion zsh)"
        ),
    ),
    ("fish", "arena-topo completion fish | source"),
]


@pytest.mark.parametrize(("name", "rc"), UNUSUAL)
def test_a_shell_completes_whatever_its_options_and_however_it_got_the_script(world, name, rc):
    one = Shell(name, world.home, world.env, rc.format(ROOT / "completions" / SCRIPTS[name]))
    try:
        for typed, line in (
            ("arena-topo sub", "arena-topo submit "),
            ("arena-topo get x --output=js", "arena-topo get x --output=json "),
            ("arena-topo submit mpi -f my\\ ", "arena-topo submit mpi -f my\\ job.yaml "),
            ("arena-topo get nothing-of-this-name", "arena-topo get nothing-of-this-name"),
        ):
            assert one.line(typed + TAB) == line
            assert one.only(line), one.seen
    finally:
        one.close()


def test_zsh_says_what_is_missing_where_compinit_has_not_run():
    done = subprocess.run(
        [there("zsh"), "-f", "-c", f"source {ROOT / 'completions' / '_arena-topo'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (
        "",
        "arena-topo: its completion needs compinit before it: autoload -Uz compinit; compinit\n",
    )


_LEAVES = r"""'(?:''|[^'])*'|"(?:`.|[^"`])*"|\#.*"""


def test_the_script_for_powershell_closes_what_it_opens():
    # PowerShell refuses a script as a whole that does not.
    text = (ROOT / "completions" / SCRIPTS["powershell"]).read_text()
    opened = []
    for one in re.sub(_LEAVES, "", text):
        if one in "([{":
            opened.append(")]}"["([{".index(one)])
        elif one in ")]}":
            assert opened, f"{one} closes nothing"
            assert one == opened.pop()
    assert not opened


# ---------------------------------------------------------------- arena-topo completion


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completion_prints_the_script_that_is_installed_too(shell, run):
    assert run("completion", shell) == (
        0,
        (ROOT / "completions" / SCRIPTS[shell]).read_text(encoding="utf-8"),
        "",
    )


def test_another_shell_is_refused_in_arenas_words(run):
    refused = (
        2,
        "",
        (
            "error: {}. The supported shells are bash, zsh, fish and powershell.\n"
            "  try:  source <(arena-topo completion bash)\n"
        ),
    )
    assert run("completion", "tcsh") == (2, "", refused[2].format("Invalid shell 'tcsh'"))
    assert run("completion") == (2, "", refused[2].format("No shell is named"))


def test_the_help_of_completion_says_how_a_script_is_used(run):
    told = " ".join(run("completion", "--help")[1].split())
    assert "Usage: arena-topo completion [OPTIONS] [SHELL] " in told
    for line in (
        "source <(arena-topo completion bash)",
        "arena-topo completion fish | source",
        "arena-topo completion powershell | Out-String | Invoke-Expression",
    ):
        assert line in told


def test_the_wheel_has_the_scripts_where_the_program_and_the_shells_look():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = wheel["targets"]["wheel"]
    assert wheel["force-include"]["completions"] == "arena_topo/completions"
    assert (
        wheel["shared-data"]
        | {
            "completions/arena-topo.bash": "share/bash-completion/completions/arena-topo",
            "completions/_arena-topo": "share/zsh/site-functions/_arena-topo",
            "completions/arena-topo.fish": "share/fish/vendor_completions.d/arena-topo.fish",
        }
        == wheel["shared-data"]
    )
