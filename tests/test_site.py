"""The site of the pages: what is made of a screen, and what is seen of it in a browser."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
SITE = ROOT / "docs" / "site"
sys.path.insert(0, str(SITE))

import hooks  # noqa: E402
import pages  # noqa: E402


class Seen(HTMLParser):
    """What stands in the elements of a class, and what the button copies."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []
        self.copied: str | None = None
        self.classes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.copied = given.get("data-copy", self.copied)
        if tag == "span":
            self.classes.append(given.get("class", ""))
            if given.get("class") in {"command", "more", "output", "gap"}:
                self.lines.append((given["class"], ""))

    def handle_endtag(self, tag):
        if tag == "span":
            self.classes.pop()

    def handle_data(self, data):
        if self.lines:
            kind, text = self.lines[-1]
            self.lines[-1] = kind, text + data


SCREEN = """\
$ arena-topo plan mpi --name=a \\
    --workers=2 "echo '<b>'"
# no prompt of root
...
-- $ nor one of you
$ cat <<END > "x y"
A & B
END
$ true"""


def test_the_button_copies_the_commands_and_nothing_of_what_is_seen():
    assert Seen(hooks.screen(SCREEN)).copied == (
        "arena-topo plan mpi --name=a \\\n    --workers=2 \"echo '<b>'\"\n"
        'cat <<END > "x y"\nA & B\nEND\ntrue'
    )


def test_each_line_of_a_screen_is_a_command_or_output_and_reads_as_it_was_written():
    lines = Seen(hooks.screen(SCREEN)).lines
    assert "".join(text for _, text in lines) == SCREEN
    assert [kind for kind, _ in lines] == [
        "command", "more", "output", "gap", "output", "command", "more", "more", "command"
    ]  # fmt: skip


def test_a_screen_is_as_wide_as_what_is_seen_and_not_wider_than_the_terminal():
    def width(*output: str) -> str:
        made = hooks.screen("\n".join(["$ true " + "x" * 90, *output]))
        found = re.search(r"--columns: (\d+)", made)
        assert found is not None
        return found[1]

    assert [width(), width("abc", "ab"), width("a" * 149)] == ["0", "3", "100"]


def test_every_screen_of_every_page_can_be_made():
    for path in pages.pages():
        for block in pages.read(path).blocks:
            if block.kind == "console":
                text = block.text.rstrip("\n")
                lines = Seen(hooks.screen(text)).lines
                assert "".join(line for _, line in lines) == text, path


def test_what_pages_say_to_those_who_check_them_is_not_on_the_site():
    text = "<p>a</p>\n<!-- happens: pod x\nnode-1 2 -->\n<p><!-- exit: 4 --></p>\n<p>b</p>"
    assert hooks.on_page_content(text) == "<p>a</p>\n<p>b</p>"
    shown = "<pre><code>&lt;!-- exit: N --&gt;</code></pre>"
    assert hooks.on_page_content(shown) == shown


def test_names_in_tables_are_broken_only_between_their_parts():
    def cell(code: str) -> str:
        made = hooks.on_page_content(f"<td><code>{code}</code> and more</td>")
        return made.removeprefix("<td><code>").removesuffix("</code> and more</td>")

    assert cell("ARENA_TOPO_NAMESPACE_OF_ALL_THESE_JOBS") == (
        "ARENA_TOPO_NAMESPACE_OF_ALL_THESE_JOBS"
    )
    assert cell("-o a|b") == "-o a|b"
    assert cell("--binding auto&#124;claims|admission|gates") == (
        "--binding <wbr>auto&#124;<wbr>claims|<wbr>admission|<wbr>gates"
    )
    outside = "<p><code>--binding auto|claims|admission|gates</code></p><table><tr><td>a</td>"
    assert hooks.on_page_content(outside) == outside


def test_no_line_of_a_block_that_readers_copy_is_wider_than_the_screens():
    wide = [
        f"{path.relative_to(ROOT)}:{block.line + number}: {line}"
        for path in pages.pages()
        for block in pages.read(path).blocks
        for number, line in enumerate(block.lines, 1)
        if len(line) > hooks.COLUMNS and (block.kind in {"bash", "python"} or line.startswith("$ "))
    ]
    assert not wide


MEASURE = """<script>addEventListener("load", () => setTimeout(() => {
  const wider = e => e.scrollWidth - e.clientWidth > 1;
  const all = what => [...document.querySelectorAll(what)];
  parent.postMessage({
    page: document.documentElement.scrollWidth > innerWidth,
    screens: all(".md-typeset pre > code").filter(wider).map(e => e.innerText.slice(0, 99)),
    tables: all(".flags .md-typeset__scrollwrap").filter(wider).length,
    covered: all(".md-typeset pre > code").filter(code => {
      const button = code.parentElement.querySelector("button, .md-code__nav");
      if (!button) return false;
      const place = button.getBoundingClientRect(), range = document.createRange();
      const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
      while (texts.nextNode()) {
        range.selectNodeContents(texts.currentNode);
        if ([...range.getClientRects()].some(r => r.right > place.left &&
          r.left < place.right && r.top < place.bottom && r.bottom > place.top)) return true;
      }
      return false;
    }).map(code => code.innerText.slice(0, 99)),
    names: all("td code").filter(e => !e.querySelector("wbr") && !e.closest(".flags") &&
      e.getClientRects().length > 1).map(e => e.innerText),
    letters: Math.min(99, ...all("p > img[src$='.svg']").map(
      e => 12 * e.clientWidth / e.naturalWidth)),
  }, "*");
}, 0));</script></body>"""

AT_WIDTHS = """<script>
  const seen = {};
  addEventListener("message", message => {
    for (let n = 0; n < frames.length; n++)
      if (frames[n] === message.source) seen[n] = message.data;
    if (Object.keys(seen).length === frames.length)
      document.body.innerHTML = "<pre>" + encodeURIComponent(JSON.stringify(seen)) + "</pre>";
  });
</script><body>%s</body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as it is built."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs, which builds the site, is not installed: pip install --group docs")
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict"]
    subprocess.run([*line, "-f", str(SITE / "mkdocs.yml"), "-d", str(folder)], check=True)
    return folder


def looked_at(site: Path, page: str, widths: list[int]) -> dict[int, dict[str, object]]:
    """What a browser sees of a page in windows of these widths."""
    path = site / page
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", MEASURE), encoding="utf-8")
    frames = "".join(f'<iframe src="{page}" width={width} height=800></iframe>' for width in widths)
    (site / "widths.html").write_text(AT_WIDTHS % frames, encoding="utf-8")
    line = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=2000,1000"]
    asked = subprocess.run(
        [*line, "--virtual-time-budget=20000", "--dump-dom", (site / "widths.html").as_uri()],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"<pre>(%7B.*?)</pre>", asked.stdout)
    assert found is not None, asked.stdout
    seen = json.loads(unquote(found[1]))
    return {width: seen[str(number)] for number, width in enumerate(widths)}


def test_no_comment_of_a_page_is_in_what_is_built(site):
    kept = {
        str(path.relative_to(site)): found
        for path in site.rglob("*.html")
        if (found := re.findall(r"<!--\s*[a-z ]+:.*", path.read_text(encoding="utf-8")))
    }
    assert not kept


@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium, which looks, is not installed")
@pytest.mark.parametrize(
    "page",
    [
        "howto/stock-cluster.html",
        "reference/submit-mpi.html",
        "reliability.html",
        "index.html",
        "output.html",
    ],
)
def test_screens_fit_from_1280_pixels_on_and_phones_break_no_names_nor_shrink_pictures(site, page):
    seen = looked_at(site, page, [390, 1280, 1440, 1920])
    for width, what in seen.items():
        assert (what["page"], what["names"]) == (False, []), width
        assert what["letters"] >= 8, width
        assert what["tables"] == 0, width
        if width >= 1280:
            assert (what["screens"], what["covered"]) == ([], []), width
