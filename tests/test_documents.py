"""Every page of the documentation: what it shows is seen, what it links to is there.

`python docs/site/screens.py --write PAGE` writes what is seen into a page; `reference.py` and
`manual.py` beside it write the pages that are made from the command tree.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import shells
import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))

import compare  # noqa: E402
import manual  # noqa: E402
import pages  # noqa: E402
import reference  # noqa: E402
import running  # noqa: E402
import screens  # noqa: E402

from arena_topo.cli.catalogue import commands  # noqa: E402

PAGES = pages.pages()
"""Of each page a test of its own: they can be shared out."""


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


LONG = {
    f"docs/howto/{page}.md" for page in ("calibrating", "dra", "kueue", "pending", "stock-cluster")
}
"""Pages with many commands on a cluster each; howto/ack.md stays as a sample of them.

CI copies the lines of these as well.
"""


def marked(path: Path) -> object:
    return pytest.param(path, marks=pytest.mark.exhaustive) if name(path) in LONG else path


@pytest.mark.parametrize("path", list(map(marked, PAGES)), ids=list(map(name, PAGES)))
def test_what_a_page_shows_is_seen_by_who_copies_its_lines(path):
    run = screens.Run(pages.read(path))
    run.run()
    assert not run.page.problems, "\n\n" + "\n\n".join(map(str, run.page.problems))
    assert_each_block_was_heeded(run)


def assert_each_block_was_heeded(run: screens.Run) -> None:
    """Counted here once more, from the bare lines: nothing of a page goes unread."""
    text = run.page.path.read_text(encoding="utf-8")
    fences = re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)
    not_run = re.findall(r"^ *<!-- not run:", text, re.MULTILINE)
    others = re.findall(r"^ *```(?:yaml|json|toml|text)$", text, re.MULTILINE)
    others_not_run = [one for one in run.page.blocks if one.get("not run") and one.kind in OTHERS]
    ran = len(run.ran)
    assert 2 * (ran + len(not_run) + len(others) - len(others_not_run)) == len(fences)
    prompts = [
        line
        for block, _ in run.ran
        if block.kind == "console"
        for line in block.lines
        if line.startswith("$ ")
    ]
    assert len(prompts) == sum(many for block, many in run.ran if block.kind == "console")
    assert all(many for _, many in run.ran)


OTHERS = (*pages.DATA, *pages.SHOWN)


def test_the_pages_are_the_readme_and_all_below_docs():
    assert PAGES[0] == ROOT / "README.md"
    assert set(PAGES[1:]) == set(DOCS.rglob("*.md"))
    assert len(PAGES) == len(set(PAGES))


def test_what_passes_before_a_change_goes_in_skips_nothing_and_tries_new_cases_each_time():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines.index("export CI=true") < lines.index('bash -euo pipefail -c "$test_command"')
    print_profile = "import conftest, hypothesis; print(hypothesis.settings.default.derandomize)"
    asked = subprocess.run(
        [sys.executable, "-c", print_profile],
        cwd=ROOT / "tests",
        env={**os.environ, "CI": "true"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "False\n"


def test_what_pages_and_shells_run_is_the_program_of_this_clone():
    with running.place() as where:
        program = shutil.which("arena-topo", path=where.env["PATH"])
        assert program, "arena-topo is not installed: pip install --group test -e '.[mpi]'"
        assert Path(program).parent == Path(sys.executable).parent
        asked = subprocess.run(
            [sys.executable, "-c", "import arena_topo; print(arena_topo.__file__)"],
            env=where.env,
            cwd=where.folder,
            capture_output=True,
            text=True,
            check=True,
        )
    package = Path(asked.stdout.strip()).parent
    assert package.samefile(ROOT / "arena_topo") or same_files(package, ROOT / "arena_topo"), (
        f"{program} runs {package}: pip install this clone, best with -e"
    )


def same_files(one: Path, other: Path) -> bool:
    """Whether what is installed, though not with -e, is what stands here."""
    return all(
        (one / path.relative_to(other)).is_file()
        and (one / path.relative_to(other)).read_bytes() == path.read_bytes()
        for path in other.rglob("*.py")
    )


# Links.

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^\s)>]*)>?[^)]*\)")


def prose(path: Path) -> str:
    """A page without its blocks, its code and its comments."""
    page = pages.read(path)
    inside = {
        number
        for block in page.blocks
        for number in range(block.line - 1, block.line + len(block.lines) + 1)
    }
    text = "\n".join(line for number, line in enumerate(page.lines) if number not in inside)
    return re.sub(r"<!--.*?-->", "", re.sub(r"(`+)(?!`).+?\1", "`code`", text), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site name them."""
    found: set[str] = set()
    page = pages.read(path)
    inside = {n for b in page.blocks for n in range(b.line - 1, b.line + len(b.lines) + 1)}
    for number, line in enumerate(page.lines):
        if number in inside or not (heading := re.match(r"#+ +(.*)", line)):
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1].replace("`", ""))
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found.add(slug)
    return found


def wrong_links(path: Path) -> list[str]:
    wrong = []
    for picture, text, target in LINK.findall(prose(path)):
        where, _, anchor = target.partition("#")
        if re.match(r"https?://|mailto:", target):
            continue
        there = (path.parent / where).resolve() if where else path
        if picture and not text.strip():
            wrong.append(f"{target}: a picture without a text in its place")
        if not where and not anchor:
            wrong.append(f"[{text}]() goes nowhere")
        elif not there.exists():
            wrong.append(f"{target}: no such file")
        elif path.is_relative_to(DOCS) and not there.is_relative_to(DOCS):
            wrong.append(f"{target}: is no part of the site")
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            wrong.append(f"{target}: no such heading")
    for source in re.findall(r"<(?:img|source)\b[^>]*>", prose(path)):
        found = re.search(r"""(?:src|srcset)=["']([^"']+)["']""", source)
        if found is None or not (path.parent / found[1]).exists():
            wrong.append(f"{source}: no such picture")
        if source.startswith("<img") and not re.search(r"""alt=["'][^"']+["']""", source):
            wrong.append(f"{source}: a picture without a text in its place")
    return wrong


def test_links_of_the_pages_lead_to_pages_headings_and_pictures_that_are_there():
    wrong = {name(path): found for path in PAGES if (found := wrong_links(path))}
    assert not wrong


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Here, and `there`\n\n[a](gone.md) [b](#here-and-there) [c](page.md#nowhere) ![](page.md)"
        "\n<img src='page.md'> `[d](gone.md)`\n\n```text\n[e](gone.md)\n```\n"
    )
    assert wrong_links(page) == [
        "gone.md: no such file",
        "page.md#nowhere: no such heading",
        "page.md: a picture without a text in its place",
        "<img src='page.md'>: a picture without a text in its place",
    ]


class Loader(yaml.SafeLoader):
    """YAML of MkDocs, whose tags name functions of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def listed(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [one for part in parts for one in listed(part)]


def test_every_page_is_in_the_navigation_of_the_site_once_and_nothing_else():
    site = yaml.load(reference.SITE.read_text(encoding="utf-8"), Loader)
    there = [str(path.relative_to(DOCS)) for path in PAGES if path.is_relative_to(DOCS)]
    assert sorted(listed(site["nav"])) == sorted(there)


@pytest.mark.parametrize(
    ("page", "heading", "answer"),
    [
        ("output.md", "get, list and top job", "`usableGBps` | the bandwidth that these pods can"),
        ("fabric-file.md", "The file", "gives the speed of each level"),
        ("howto/pending.md", "The command", "$ arena-topo why"),
        ("installation.md", "Install on a cluster", "$ arena-topo install --image"),
        ("vocabulary.md", "Bandwidth", "| band | A step of 10 % of bandwidth"),
    ],
)
def test_what_newcomers_ask_is_below_a_heading_of_a_page_that_the_first_page_links(
    page, heading, answer
):
    """Two clicks of the site: the page, and the heading in its table of contents."""
    assert f"]({page})" in (DOCS / "index.md").read_text(encoding="utf-8")
    text = (DOCS / page).read_text(encoding="utf-8")
    assert answer in re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1]


# What is made from the command tree.


def assert_made(folder: Path, made: dict[str, str], program: str) -> None:
    advice = f"is not what the commands are now: python docs/site/{program}"
    assert {path.name for path in folder.iterdir()} == set(made), advice
    for file, text in made.items():
        assert (folder / file).read_text(encoding="utf-8") == text, f"{file} {advice}"


def test_the_reference_is_what_the_command_tree_says():
    assert_made(reference.FOLDER, reference.texts(), "reference.py")
    assert reference.SITE.read_text(encoding="utf-8") == reference.navigation()


def test_the_manual_pages_are_what_the_command_tree_says():
    assert_made(manual.FOLDER, manual.texts(), "manual.py")


def cell(text: str) -> str:
    """A cell of a table as it is read."""
    return html.unescape(re.sub(r"</?code>", "", text.replace("`", ""))).strip()


def flags_of_page(text: str) -> set[str]:
    rows = [row.strip("|").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    return {shown for row in rows if (shown := cell(row[0])).startswith("-")}


def flags_of_help(text: str) -> set[str]:
    # What a flag does stands beside it, or below where it is long.
    found = re.finditer(r"^  (-\S.*?)(?:  .*)?$", text, re.MULTILINE)
    return {each[1].replace(" / ", ", ") for each in found}


def test_every_flag_of_every_help_is_in_the_reference_and_the_other_way_round(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    everywhere = flags_of_page((reference.FOLDER / "index.md").read_text(encoding="utf-8"))
    assert "-h, --help" in everywhere
    assert flags_of_help(run("options")[1]) == everywhere
    for command in commands():
        code, out, _ = run(*command.path, "--help")
        assert code == 0
        page = (reference.FOLDER / reference.file_name(command.path)).read_text(encoding="utf-8")
        usage = " ".join(out.partition("\n\n")[0].split())
        assert usage == f"Usage: {reference.line(command)}"
        flags = flags_of_help(out)
        assert flags == flags_of_page(page) - everywhere, command.path
        assert command.path != ("submit", "mpi") or len(flags) > 60


def test_mandoc_finds_nothing_wrong_with_the_manual_pages():
    line = [
        shells.there("mandoc"),
        "-T",
        "lint",
        "-W",
        "warning",
        *sorted(map(str, manual.FOLDER.glob("*.1"))),
    ]
    asked = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (asked.stdout, asked.stderr, asked.returncode) == ("", "", 0)


def test_the_manual_pages_are_read_in_80_columns(tmp_path):
    man = shells.there("man")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    for path in [manual.FOLDER / "arena-topo.1", manual.FOLDER / "arena-topo-submit-mpi.1"]:
        asked = subprocess.run(
            [man, "--warnings", "-l", str(path)],
            capture_output=True,
            env=env,
            text=True,
            check=False,
        )
        text = re.sub(r".\x08", "", asked.stdout)
        assert (asked.stderr, asked.returncode) == ("", 0)
        assert max(map(len, text.splitlines())) <= 80
        plain = " ".join(text.replace(" \\\n", "\n").split())  # an example may go on below
        assert "\\" not in plain
        assert "--namespace NAME" in plain or "--image IMAGE Container image; local runs" in plain


# The machinery itself: it must not take a wrong page for a right one.


@pytest.mark.parametrize(
    ("shown", "seen"),
    [
        ("created 2026-01-02 03:04:05, took 3s", "created 2027-11-12 13:14:15, took 1m20s"),
        ("a   1", "a 1"),
        ("a\n...\nz", "a\nb\nc\nz"),
        ("...", ""),
        ("a\n...\n...\nz", "a\nz"),
        ("Iter #1: 0.20 GB/s", "Iter #1: 11.5 GB/s"),
        ("rank 0/2 on a\nrank 1/2 on b\nend", "rank 1/2 on b\nrank 0/2 on a\nend"),
        ("x-launcher-abcde", "x-launcher-f0x2z"),
        ("x-launcher-00057", "x-launcher-0004d"),
        (
            "0b5d6e2c-0000-004d-0000-0123456789ab",
            "1c5d6e2c-0000-1111-0000-0123456789ab",
        ),
        ("2 minutes ago", "1 second ago"),
        ("1h2m3s", "250ms"),
        ("-----  ---", "---  -----"),
    ],
)
def test_two_screens_are_the_same_whatever_time_it_is(shown, seen):
    assert compare.same(shown.splitlines(), seen.splitlines(), [])


@pytest.mark.parametrize(
    ("shown", "seen"),
    [
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a\n...\nz", "a\nb"),
        ("...\nb", "b\na"),
        ("80 GB/s inside one node", "40 GB/s inside one node"),
        ("GPUs 0,3", "GPUs 0,1"),
        ("4 workers", "5 workers"),
        ("rank 0/2 on a", "rank 0/2 on b"),
        ("RUNNING", "PENDING"),
        ("Placed", "placed"),
        ("took 3s", "took 3"),
        ("2 d", "3 d"),
    ],
)
def test_two_screens_that_say_other_things_are_not_the_same(shown, seen):
    assert not compare.same(shown.splitlines(), seen.splitlines(), [])
    assert compare.difference(shown.splitlines(), seen.splitlines(), [])


def test_a_page_that_is_written_anew_leaves_out_what_it_left_out_before():
    shown = ["head", "old", "...", "end", "..."]
    seen = ["head", "new", "left", "out", "end", "and", "more"]
    assert compare.merged(shown, seen, []) == ["head", "new", "...", "end", "..."]


def test_what_is_wrong_with_a_page_is_told_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "PATIENCE", 1.0)
    page = tmp_path / "page.md"
    page.write_text(
        """# Page

```console
$ echo one; echo two
one
$ (exit 3)
```

```
no kind
```

<!-- not run: because -->
```bash
false
```

<!-- exits: 1 -->
```bash
exit_is_spelled_wrong
```

```yaml
a: [
```

```json
{"a":
```

```toml
a =
```

<!-- exit: 7 -->
```bash
true
```

~~~yaml
a: [
```
~~~

```python
1 / 0
```

```bash
cat
```

```bash
echo never
```
"""
    )
    told = [str(one).removeprefix(f"{page}:").split("\n")[0] for one in screens.check(page)]
    assert [int(one[: one.index(":")]) for one in told] == [
        4, 6, 9, 14, 19, 20, 23, 27, 31, 36, 40, 45, 50, 55
    ]  # fmt: skip
    assert told[0] == "4: `echo one; echo two` is seen otherwise:"
    assert told[1].startswith("6: `(exit 3)` exits with 3: if that is meant, put `<!-- exit: 3")
    assert told[-2] == "50: `cat` did not end within 1 seconds; it said:"


def test_a_job_that_a_page_leaves_running_leaves_nothing_behind():
    def of(home: Path) -> list[Path]:
        wanted, found = f"HOME={home}".encode(), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    found.append(process)
        return found

    with running.place() as where, running.Shell(where) as shell:
        submit = (
            "arena-topo submit mpi --name=idle --gpus=1 --workers=2 --gputopology --image=local"
        )
        for line in (
            f"{submit} --backend local --emulate dgx-1-v100 'sleep 600'",
            "arena-topo wait idle --for running --backend local",
        ):
            seen, code = shell.run(line)
            assert code == 0, seen
        assert any((where.home / ".tmp").glob("arena-topo-*"))
        assert len(of(where.home)) > 2
    assert not where.home.exists()
    assert not of(where.home)


def test_contributing_names_every_kind_of_block_and_every_comment():
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "contributing.md").read_text(), re.MULTILINE)
    named = [one for row in rows for one in re.findall(r"`([^`]+)`", row)]
    assert sorted(one for one in named if one in {"mermaid", *pages.KINDS}) == sorted(pages.KINDS)
    assert [one.split(":")[0] for one in named if ": " in one] == [*pages.ABOVE, "world"]


def test_a_page_is_written_once_and_then_stays_as_it_is(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        """\
1. In a list:

   <!-- exit: 4 -->
   ```console
   $ pwd; echo $HOME
   $ printf 'a\\rb\\n\\033[31mred\\033[0m\\n'; (exit 4)
   old
   $ echo $?; cat <<END
   $HOME
   END
   ```
"""
    )
    changed, problems = screens.write(page)
    assert (changed, problems) == (True, [])
    assert (
        page.read_text()
        == """\
1. In a list:

   <!-- exit: 4 -->
   ```console
   $ pwd; echo $HOME
   /home/you/work
   /home/you
   $ printf 'a\\rb\\n\\033[31mred\\033[0m\\n'; (exit 4)
   b
   red
   $ echo $?; cat <<END
   $HOME
   END
   4
   /home/you
   ```
"""
    )
    assert screens.write(page) == (False, [])
    assert screens.check(page) == []


def test_what_stands_above_a_block_is_heeded(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        """# Page

<!-- file: folder/job.yaml -->
```yaml
a: 1
```

<!-- file: ~/.config/x.toml -->
<!-- not run: it is a file of settings -->
```ini
b = 2
```

```console
$ cat folder/job.yaml ~/.config/x.toml
a: 1
b = 2
```

<!-- exit: 130 -->
<!-- stop: goes on -->
```console
$ sh -c 'echo goes on; exec sleep 50'
goes on
```

<!-- changes: number [0-9]+ -->
```console
$ echo number $RANDOM of 5
number 7 of 5
```

```python
x = open("folder/job.yaml").read()
```

```python
>>> x + "..."
'a: ...'
```
"""
    )
    assert screens.check(page) == []
    page.write_text(page.read_text().replace("'a: ...'", "'b...'"))
    (problem,) = screens.check(page)
    assert "Got:\n    'a: 1" in problem.text


def test_a_world_that_nobody_knows_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- world: mars -->\n\n```bash\ntrue\n```\n")
    (problem,) = screens.check(page)
    assert "no world 'mars', only local, cluster, stock, ack, dra, kueue" in problem.text


def test_what_happens_in_a_cluster_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        """<!-- world: cluster -->

<!-- happens: cordon node-1 -->
<!-- happens: explode -->
```console
$ arena-topo top node node-1
...
node-1  10.0.0.2  <none>  Ready,SchedulingDisabled  8  0
...
```
"""
    )
    (problem,) = screens.check(page)
    assert problem.text.startswith("`happens: explode`: ")


GONE = (
    "have every worker placed on the GPUs that talk",
    "decided exactly, and shown with what it is worth",
    "Elsewhere pods can often use less of it",
    "pins the job through what a stock cluster offers",
    "Two who submit at once are kept",
    "says for whom and what would help",
    "prints what an administrator may add",
    "the bandwidth of the worst choice stands",
    "What pins and starts jobs was tried on",
    "measured ones take their place",
    "these pods can use",
    "share a node talk through its memory",
    "Not firmer, because",
    "and nobody says which",
    "Let the local engine pretend",
    "ok takes the same request as done",
    "Nobody starts jobs that wait but",
    "From the firmest to the softest",
    "may stand in `[submit]`",
    "requests are never told",
    "It is decided once, when the job starts",
    "It is given up ten seconds after",
    "What stands for a flag is named",
    "Below it stands what you should see",
    "only `arena-topo submit` guards",
    "of any other compinit there",
    "it starts by itself once they are free",
    "it goes on: arena-topo",
    "may let a job pass those that wait",
    "the local engine knows no queue",
    "not found command args",
    "not set job name",
    "to make sure job is existed",
    "relative duration live time",
    "failed to parse since seconds",
    "In a pipe nothing is cut and nothing is wrapped",
    "placed anew on request",
    "anew, and runs on",
    "room for some of the workers, not for all",
    "the best that there was",
    "once the cluster is empty",
    "Jobs that do not exist are no error",
    "the launcher's try before.",
    "free / taken apart",
    "cannot be placed anew",
    "network of which nothing is known",
)
"""Sentences that a first-time reader had to read twice, or that were not true."""


def test_sentences_that_had_to_be_read_twice_do_not_come_back():
    texts = [*PAGES, *DOCS.glob("man/*"), *(ROOT / "arena_topo").rglob("*.py")]
    found = []
    for path in texts:
        # Lines and the parts of a literal are joined, as a reader sees them.
        text = re.sub(r'[\s#]+|"\s*f?"', " ", path.read_text(encoding="utf-8"))
        text = re.sub(r" +", " ", text)
        found += [f"{name(path)}: {one}" for one in GONE if one.casefold() in text.casefold()]
    assert found == []


def test_the_readme_says_who_starts_jobs_that_wait_and_where_the_clone_comes_in():
    text = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert (
        "Jobs that have to wait are started by an optional controller; without it, by"
        " `submit --wait` or `resume`."
    ) in text
    assert "In a clone of this repository" in text


def test_contributing_says_how_the_site_is_built_and_looked_at():
    said = (DOCS / "contributing.md").read_text(encoding="utf-8").splitlines()
    assert "mkdocs build --strict -f docs/site/mkdocs.yml -d build/site" in said
    assert "mkdocs serve -f docs/site/mkdocs.yml" in said
