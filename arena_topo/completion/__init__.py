"""Completion: the candidates for the word at the cursor, within a few milliseconds.

A shell asks at every TAB, and a person waits. So only modules that Python has loaded anyway are
imported here, and an error prints nothing. `words.txt` has the commands and flags (generated from
the command tree, see `cli.catalogue`); names of jobs, nodes and so on come from a cache (`names`).
The caller passes `ask`, which fills that cache if it is empty or old.

The request: `_ARENA_TOPO_COMPLETE` names the shell, the words of the line are the arguments, up to
and including the one at the cursor. The answer: a line `words`, `files` or `folders` (the shell
completes those), with ` nospace` if the word goes on and ` keep` if the order of words matters;
then a line for each candidate, its value for the whole word and, after a TAB, its description. The
words of the line are parsed as the program parses them (`argv`).
"""

from __future__ import annotations

import os
import sys

from arena_topo import argv
from arena_topo.completion import names
from arena_topo.errors import UsageError

TYPE_CHECKING = False
"""As in `typing`, whose import would take as long as everything else."""

if TYPE_CHECKING:
    from collections.abc import Mapping

SHELLS = ("bash", "zsh", "fish", "powershell")
"""The supported shells."""

ASKED = "_ARENA_TOPO_COMPLETE"
"""The variable that names the shell."""

Candidate = tuple[str, str]
"""A value for the word at the cursor, and its description; both one line."""

_HELP = "help"
_SHORT = 2  # characters of a short flag
_STATIC = frozenset({"presets", "levels", "models", "shells"})
_COUNTS = ("2", "4", "8", "16")


def answer_shell(ask: names.Ask) -> None:
    """Answer the shell, silently after an error, and end the process with 0."""
    try:
        shell = os.environ.get(ASKED, "")
        data = _encoded(answer(shell, sys.argv[1:], os.environ, ask))
        while data:
            data = data[os.write(1, data) :]
    except Exception:  # noqa: BLE001, S110 - a prompt is no place for complaints
        pass
    # Nothing needs a cleanup, and Python's own would take longer than the answer.
    os._exit(0)


def answer(
    shell: str, words: list[str], environ: Mapping[str, str], ask: names.Ask | None = None
) -> str:
    """The answer to a shell; empty for an unknown shell.

    Without `ask` names come from the cache alone.
    """
    if shell not in SHELLS:
        return ""
    *before, word = words or [""]
    offers = _Candidates()
    line = PartialLine(environ, ask)
    for earlier in before:
        line.read(earlier)
    line.complete(word, offers)
    return offers.text(word)


def _control(letter: str) -> bool:
    return letter < " " or "\x7f" <= letter < "\xa0" or letter in "\u2028\u2029"


def _encoded(text: str) -> bytes:
    """The text in the encoding of the command line; a line that cannot be encoded is left out."""
    coded = sys.getfilesystemencoding()
    lines = []
    for line in text.splitlines(keepends=True):
        try:
            lines.append(line.encode(coded, "surrogateescape"))
        except UnicodeError:
            continue
    return b"".join(lines)


def _catalogue() -> str:
    with open(__path__[0] + "/words.txt", encoding="utf-8") as file:  # noqa: PTH123 - pathlib
        return "\n" + file.read()


class _Candidates:
    """Candidates in their order, and the directive to the shell."""

    def __init__(self) -> None:
        self.directive = "words"
        self.candidates: list[Candidate] = []

    def add(self, value: str, what: str = "") -> None:
        self.candidates.append((value, what))

    def text(self, word: str) -> str:
        """The output: each value that begins with the word at the cursor, once."""
        lines: dict[str, str] = {}
        for value, what in self.candidates:
            if value.startswith(word) and (value.isprintable() or not any(map(_control, value))):
                shown = what
                if not what.isprintable():
                    shown = "".join(" " if _control(letter) else letter for letter in what)
                lines.setdefault(value, f"{value}\t{shown}\n" if shown else f"{value}\n")
        # Shells sort files themselves.
        order = "" if self.directive in {"files", "folders"} else " keep"
        return f"{self.directive}{order}\n{''.join(lines.values())}"


class _Flag(argv.Option):
    """A flag from a line of words.txt; `name` is its long spelling."""

    __slots__ = ("choices", "help", "kinds", "names", "repeats")

    def __init__(self, line: str) -> None:
        # Short, and without the rare cases, since a line has a hundred flags.
        spelled, kind, kinds, choices, self.help = line.split("\t")
        self.names, old = spelled.split(" "), []
        if "~" in spelled:
            old = [name[1:] for name in self.names if name[0] == "~"]
            self.names = [name for name in self.names if name[0] != "~"]
        self.kinds, self.choices, self.repeats = kinds.split(), choices.split(), "r" in kind
        first = self.names[0]
        super().__init__(
            (first if first[:2] == "--" else self.names[1])[2:],
            # The parser adds `--no-x` of `--x` itself.
            [name for name in self.names if "--" + name[5:] not in self.names]
            if "--no-" in spelled
            else self.names,
            old=old,
            switch=kind[0] == "s",
            no_value_default="" if kind[0] == "v" else "client",
            hidden="h" in kind,
        )


class PartialLine:
    """A command line up to the cursor: the words before it are read one after the other.

    `path` is the command, `unknown` whether there is no such command; `reader` has the rest.
    """

    def __init__(self, environ: Mapping[str, str], ask: names.Ask | None = None) -> None:
        self._environ, self._ask = environ, ask
        self._text = _catalogue()
        self._everywhere = [_Flag(line) for line in self._section("*")]
        self.path: list[str] = []
        self.unknown = self._helping = False
        self.reader = argv.PflagParser(())
        self._enter()

    def _section(self, name: str) -> list[str]:
        """The lines of a section of words.txt."""
        _, _, rest = self._text.partition(f"\n[{name}]\n")
        return f"\n{rest}".partition("\n[")[0].strip("\n").splitlines()

    def _enter(self) -> None:
        """Load the flags and arguments of the command in `path`."""
        self._commands: dict[str, tuple[str, list[str]]] = {}
        self._arguments: list[tuple[list[str], bool]] = []
        self._own: list[_Flag] = []
        for line in self._section(" ".join(self.path)):
            if line[0] == "+":
                name, aliases, summary = line[1:].split("\t")
                self._commands[name] = (summary, aliases.split())
            elif line[0] == ".":
                kinds, several = line[1:].split("\t")
                self._arguments.append((kinds.split(), bool(several)))
            else:
                self._own.append(_Flag(line))
        named = next((at for at, (kinds, _) in enumerate(self._arguments) if "command" in kinds), 0)
        self.reader.use(
            [*self._everywhere, *self._own],
            launches=any("command" in kinds for kinds, _ in self._arguments),
            named=named,
        )
        self.reader.positionals.clear()
        self.reader.dash = None

    def read(self, word: str) -> None:
        """Read a word before the one at the cursor."""
        try:
            self.reader.read(word)
        except UsageError:
            return  # the program will say what is wrong
        if self._commands and self.reader.positionals:
            self._command(self.reader.positionals.pop())

    def _command(self, word: str) -> None:
        if word == _HELP and not self.path and not self._helping:
            self._helping = True
            return
        names = (name for name, (_, aliases) in self._commands.items() if word in (name, *aliases))
        name = next(names, "")
        self.unknown = self.unknown or not name
        if name:
            self.path.append(name)
            self._enter()

    # ------------------------------------------------------------ the word at the cursor

    def complete(self, word: str, offers: _Candidates) -> None:
        """Add the candidates for the word."""
        if self.unknown:
            return
        if isinstance(self.reader.waiting, _Flag):
            self._values(self.reader.waiting, "", word, offers)
        elif self.reader.dash is not None or word[:1] != "-":
            self._positional(word, offers)
        elif self.reader.in_unquoted_command:
            offers.directive = "files"
        elif word[:2] == "--" and "=" in word:
            name, _, value = word.partition("=")
            flag = self.reader.options.get(name)
            if isinstance(flag, _Flag):
                self._values(flag, name + "=", value, offers)
        elif word == "-" or word[:2] == "--":
            self._names_of_flags([*self._own, *self._everywhere], word, offers)
        else:
            self._letters(word, offers)

    def _names_of_flags(self, flags: list[_Flag], word: str, offers: _Candidates) -> None:
        given = {name for name, _ in self.reader.given_options}
        for flag in flags:
            offered = not flag.hidden and (flag.repeats or flag.name not in given)
            for name in flag.names if offered else ():
                if len(name) > _SHORT or len(word) < _SHORT:
                    offers.add(name, flag.help)

    def _letters(self, word: str, offers: _Candidates) -> None:
        """Complete `-o`, `-ojson`, `-o=json` or a bundle of such letters."""
        bundle = self.reader.bundle(word)
        if not bundle:
            return
        flag, prefix, rest = bundle[-1]
        equals = rest[:1] if rest[:1] == "=" else ""
        if not isinstance(flag, _Flag):
            return
        if not rest:
            offers.add(word, flag.help)
        elif equals or not flag.switch:
            self._values(flag, prefix + equals, rest[len(equals) :], offers)

    def _positional(self, word: str, offers: _Candidates) -> None:
        """Complete a word that is no flag; if nothing else fits an empty word, offer flags."""
        kinds = self._expected()
        runs = "command" in kinds
        if self._commands:
            self._names_of_commands(word, offers)
        elif self._helping:
            return
        elif runs and (word or self.reader.dash is not None or self.reader.in_unquoted_command):
            offers.directive = "files"
        elif kinds and not runs:
            for kind in kinds:
                self._of_kind(kind, [], "", word, offers)
            offers.candidates = [
                candidate
                for candidate in offers.candidates
                if candidate[0] not in self.reader.positionals
            ]
        elif not word and self.reader.dash is None:
            self._names_of_flags(self._own, "--", offers)

    def _expected(self) -> list[str]:
        """The kinds of the next argument; empty if the command takes no more."""
        position = len(self.reader.positionals)
        for kinds, several in self._arguments[position:] or self._arguments[-1:]:
            if several or "command" in kinds or position < len(self._arguments):
                return kinds
        return []

    def _names_of_commands(self, word: str, offers: _Candidates) -> None:
        for name, (summary, aliases) in self._commands.items():
            offers.add(name, summary)
            if word in aliases:
                offers.add(word, summary)
        if not self.path and not self._helping:
            offers.add(_HELP, "Show the help of a command")

    # ------------------------------------------------------------ values

    def _values(self, flag: _Flag, prefix: str, value: str, offers: _Candidates) -> None:
        """Complete the value of a flag; `prefix` is the part of the word before it."""
        if flag.switch:
            offers.add(prefix + "true", flag.help)
            offers.add(prefix + "false")
            return
        if flag.choices and "choices" not in flag.kinds:
            self._choices(flag.choices, prefix, value, offers)
        for kind in flag.kinds:
            self._of_kind(kind, flag.choices, prefix, value, offers)

    def _choices(self, choices: list[str], prefix: str, value: str, offers: _Candidates) -> None:
        for choice in choices:
            # The parser ignores the case of choices, so completion does too.
            loose = choice != choice.lower() and choice.lower().startswith(value.lower())
            if loose and not choice.startswith(value):
                rest = choice[len(value) :]
                offers.add(prefix + value + (rest.lower() if value.islower() else rest))
            else:
                offers.add(prefix + choice)

    def _of_kind(
        self, kind: str, choices: list[str], prefix: str, value: str, offers: _Candidates
    ) -> None:
        if kind in {"files", "folders"}:
            # Shells complete files after `=` or as a whole word.
            if prefix[-1:] in {"", "="}:
                offers.directive = kind
        elif kind == "choices":
            head, comma, last = value.rpartition(",")
            done = head.upper().split(",")
            left = [choice for choice in choices if choice.upper() not in done]
            self._choices(left, prefix + head + comma, last, offers)
        elif kind == "machines":
            self._machines(prefix, value, offers)
        else:
            # A claim is followed by its mount path.
            end = ":" if kind == "claims" else ""
            if end:
                offers.directive = "words nospace"
            for name, what in self._list(kind) if kind in _STATIC else self._cached_names(kind):
                offers.add(f"{prefix}{name}{end}", what)

    def _machines(self, prefix: str, value: str, offers: _Candidates) -> None:
        """Complete PRESET[:COUNT],PRESET[:COUNT]; a count is offered after a complete preset."""
        offers.directive = "words nospace"
        head, comma, last = value.rpartition(",")
        for name, what in self._list("presets"):
            offers.add(prefix + head + comma + name, what)
            if last.partition(":")[0] == name:
                for count in _COUNTS:
                    offers.add(f"{prefix}{head}{comma}{name}:{count}", f"{count} of them")

    def _list(self, name: str) -> list[Candidate]:
        """Candidates that words.txt lists."""
        lines = [line.partition("\t") for line in self._section("=" + name)]
        return [(value, what) for value, _, what in lines]

    def _cached_names(self, kind: str) -> list[Candidate]:
        """Names from the cluster, the kubeconfig or the settings."""
        try:
            line = self.reader
            return names.names_for(
                kind, line.given_options, line.positionals, self._environ, self._ask
            )
        except Exception:  # noqa: BLE001 - no name is better than a complaint
            return []
