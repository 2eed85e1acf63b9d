"""Run the pages of the documentation: `python docs/site/screens.py [--write] [PAGE...]`.

Every block that can run is run, in the world that its page names (`tests/doc_worlds.py`), and what
is seen is compared with what the page shows. With `--write`, the page shows it from then on.
The conventions are those of `docs/contributing.md`; `pages.py` has them in short.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for _folder in (HERE, HERE.parents[1] / "tests"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import doc_worlds  # noqa: E402
from compare import difference, merged, same  # noqa: E402
from pages import ROOT, Block, Command, Page, Problem, commands, pages, read  # noqa: E402
from running import Interpreter, Place, Shell, TooSlow, place  # noqa: E402


class _Given(Exception):
    """The rest of a page cannot be run."""


class Run:
    """A page that is run once, from its first block to its last."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.screens: list[tuple[Block, list[str]]] = []
        """The console blocks with what they should show."""
        self.ran: list[tuple[Block, int]] = []
        """The blocks that were run to their end, with how many commands."""

    def run(self) -> None:
        """Run all blocks; what is wrong is among the problems of the page."""
        page = self.page
        if not any(block.get("not run") is None for block in page.blocks):
            return
        if page.world not in doc_worlds.WORLDS:
            page.problem(1, f"no world {page.world!r}, only {', '.join(doc_worlds.WORLDS)}")
            return
        with place() as where, doc_worlds.opened(page.world, where.home) as world:
            where.env.update(world.env)
            with Shell(where) as shell, Interpreter(where) as python:
                try:
                    for block in page.blocks:
                        for words in block.all("happens"):
                            self._happens(world, block, words)
                        self._block(block, where, shell, python, world)
                except _Given:
                    page.problem(len(page.lines), "what comes after that was not run")

    def _happens(self, world: doc_worlds.World, block: Block, words: str) -> None:
        try:
            world.happens(words.split())
        except Exception as error:  # noqa: BLE001 (whatever a world says is reported)
            self.page.problem(block.line, f"`happens: {words}`: {error!r}")

    def _block(
        self,
        block: Block,
        where: Place,
        shell: Shell,
        python: Interpreter,
        world: doc_worlds.World,
    ) -> None:
        if (name := block.get("file")) is not None:
            path = where.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.get("not run") is not None:
            return
        try:
            if block.kind == "python":
                trouble = python.run(block.text, self.page.path.name, block.line)
                self.ran.append((block, 1))
                if trouble is not None:
                    self.page.problem(block.line, f"this fails:\n{trouble}")
            elif block.kind in {"console", "bash"}:
                self._commands(block, shell, world)
        except TooSlow as slow:
            self.page.problem(block.line, f"{slow}:\n{slow.seen}")
            raise _Given from None

    def _commands(self, block: Block, shell: Shell, world: doc_worlds.World) -> None:
        try:
            typed = commands(block)
        except ValueError as error:
            self.page.problem(block.line, str(error))
            return
        codes: set[int] = {0}
        lines: list[str] = []
        for command in typed:
            world.settle()
            try:
                seen, code = shell.run(command.text, stop=block.get("stop"))
            except TooSlow as slow:
                self.page.problem(command.line, f"`{command.text}` {slow}; it said:\n{slow.seen}")
                raise _Given from None
            codes.add(code)
            if code not in block.exits:
                self._wrong_code(block, command, code, seen)
            if block.kind == "console":
                lines += [*command.typed, *self._compared(block, command, seen)]
        for code in sorted(block.exits - codes):
            self.page.problem(block.line, f"says `exit: {code}`, but no command exits with it")
        self.ran.append((block, len(typed)))
        if block.kind == "console":
            self.screens.append((block, lines))

    def _wrong_code(self, block: Block, command: Command, code: int, seen: list[str]) -> None:
        shown = "" if block.kind == "console" else ":\n" + "\n".join(seen)
        self.page.problem(
            command.line,
            f"`{command.text}` exits with {code}: if that is meant, put"
            f" `<!-- exit: {code} -->` above the block{shown}",
        )

    def _compared(self, block: Block, command: Command, seen: list[str]) -> list[str]:
        """What the page should show below a command."""
        shown, changes = list(command.shown), block.all("changes")
        if any(line.lstrip().startswith("```") or line.startswith("$ ") for line in seen):
            self.page.problem(command.line, "what is seen has lines that would end the screen")
        if not same(shown, seen, changes):
            diff = difference(shown, seen, changes)
            self.page.problem(command.line, f"`{command.text}` is seen otherwise:\n{diff}")
        return merged(shown, seen, changes)

    def written(self) -> str:
        """The page with what was seen."""
        lines = list(self.page.lines)
        for block, shown in reversed(self.screens):
            inside = [f"{block.indent}{line}".rstrip() for line in shown]
            lines[block.line : block.line + len(block.lines)] = inside
        return "\n".join(lines) + "\n"


def check(path: Path) -> list[Problem]:
    """All that is wrong with a page, in the order of its lines."""
    page = read(path)
    Run(page).run()
    return sorted(page.problems, key=lambda problem: problem.line)


def write(path: Path) -> tuple[bool, list[Problem]]:
    """Write what is seen into a page: whether it changed, and what is still wrong with it."""
    page = read(path)
    run = Run(page)
    run.run()
    text = run.written()
    changed = text != path.read_text(encoding="utf-8")
    if changed:
        path.write_text(text, encoding="utf-8")
    left = [problem for problem in page.problems if "is seen otherwise" not in problem.text]
    return changed, sorted(left, key=lambda problem: problem.line)


def main(words: list[str]) -> int:
    """Check or write pages; exit code 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write what is seen into the pages")
    parser.add_argument("pages", metavar="PAGE", nargs="*", type=Path, help="all pages if none")
    options = parser.parse_args(words)
    wrong = False
    for path in [path.resolve() for path in options.pages] or pages():
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if options.write:
            changed, problems = write(path)
            result = "written" if changed else "as it was"
        else:
            problems, result = check(path), "good"
        wrong = wrong or bool(problems)
        sys.stdout.write(f"{name}: {f'{len(problems)} problems' if problems else result}\n")
        for problem in problems:
            sys.stdout.write(f"{problem}\n")
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
