"""Completion: what a shell may put where the cursor is, said in a few milliseconds.

A shell asks at every TAB, and a person waits. So nothing is imported here but what Python has
loaded anyway, no cluster is asked, and nothing that is broken is ever told: there is no answer
then. `words.txt` has the commands and flags (made of the command tree, see `cli.catalogue`); the
names of a cluster come from files that other commands keep (`names`).

The question: `_ARENA_TOPO_COMPLETE` names the shell, the words of the line are the arguments, up to
and including the one at the cursor. The answer: a line `words`, `files` or `folders` (the shell
completes those), with ` nospace` where the word goes on and ` keep` where the order of words means
something; then a line for each candidate, its value for the whole word and, after a TAB, what it
is. The words of the line are read as `cli.pflag` reads them.
"""

import os
import sys

SHELLS = ("bash", "zsh", "fish", "powershell")
"""Who can ask."""

ASKED = "_ARENA_TOPO_COMPLETE"
"""The variable that names the shell that asks."""

Candidate = tuple[str, str]
"""A value for the word at the cursor, and what it is; both one line."""

_HELP = "help"
_SHORT = 2  # characters of a short flag
_STATIC = frozenset({"presets", "levels", "models", "shells"})
_COUNTS = ("2", "4", "8", "16")


def run() -> None:
    """Answer the shell that asks, whatever is broken, and end the process with 0."""
    try:
        shell = os.environ.get(ASKED, "")
        data = _encoded(answer(shell, sys.argv[1:], dict(os.environ)))
        while data:
            data = data[os.write(1, data) :]
    except Exception:  # noqa: BLE001, S110 - a prompt is no place for complaints
        pass
    # There is nothing to tidy up, and doing so takes longer than the answer.
    os._exit(0)


def answer(shell: str, words: list[str], environ: dict[str, str]) -> str:
    """What the program says to a shell; nothing to one that it does not know."""
    if shell not in SHELLS:
        return ""
    *before, word = words or [""]
    found = _Found()
    line = _Line(_catalogue(), environ)
    for one in before:
        line.read(one)
    line.complete(word, found)
    return found.text(word)


def _control(letter: str) -> bool:
    return letter < " " or "\x7f" <= letter < "\xa0" or letter in "\u2028\u2029"


def _encoded(text: str) -> bytes:
    """The bytes that the words of the line came from; a line that has none is left out."""
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


class _Found:
    """Candidates in their order, and what the shell is to do with them."""

    def __init__(self) -> None:
        self.directive = "words"
        self.candidates: list[Candidate] = []

    def add(self, value: str, what: str = "") -> None:
        self.candidates.append((value, what))

    def text(self, word: str) -> str:
        """What is printed: each value that begins with the word at the cursor, once."""
        lines: dict[str, str] = {}
        for value, what in self.candidates:
            if value.startswith(word) and not any(_control(letter) for letter in value):
                shown = "".join(" " if _control(letter) else letter for letter in what)
                lines.setdefault(value, f"{value}\t{shown}\n" if shown else f"{value}\n")
        # Files are sorted as their shell does it.
        order = "" if self.directive in {"files", "folders"} else " keep"
        return f"{self.directive}{order}\n{''.join(lines.values())}"


class _Flag:
    """A flag, as a line of words.txt has it."""

    def __init__(self, line: str) -> None:
        names, self.kind, kinds, choices, self.help = line.split("\t")
        every = names.split(" ")
        self.names = [name for name in every if name[0] != "~"]
        self.spellings = [name.lstrip("~") for name in every]
        self.kinds, self.choices = kinds.split(), choices.split()
        self.long = next(name for name in self.names if name[:2] == "--")
        self.given = False

    @property
    def is_switch(self) -> bool:
        return self.kind[0] == "s"

    @property
    def takes_next(self) -> bool:
        return self.kind[0] == "v"

    @property
    def offered(self) -> bool:
        return "h" not in self.kind and ("r" in self.kind or not self.given)


class _Line:
    """The words before the cursor, read one after the other."""

    def __init__(self, text: str, environ: dict[str, str]) -> None:
        self._text, self._environ = text, environ
        self._everywhere = [_Flag(line) for line in self._section("*")]
        self._path: list[str] = []
        self._said: list[str] = []
        self._words: list[str] = []
        self._waiting: _Flag | None = None  # for its value, which is the next word
        self._dash = self._helping = self._lost = False
        self._enter()

    def _section(self, name: str) -> list[str]:
        """The lines below a title of words.txt."""
        title = f"\n[{name}]\n"
        start = self._text.find(title)
        if start < 0:
            return []
        start += len(title)
        end = self._text.find("\n[", start - 1)
        return self._text[start : end if end >= 0 else None].strip("\n").splitlines()

    def _enter(self) -> None:
        """Be at the command of the path."""
        self._commands: dict[str, tuple[str, list[str]]] = {}
        self._arguments: list[tuple[list[str], bool]] = []
        self._own: list[_Flag] = []
        for line in self._section(" ".join(self._path)):
            if line[0] == "+":
                name, aliases, summary = line[1:].split("\t")
                self._commands[name] = (summary, aliases.split())
            elif line[0] == ".":
                kinds, several = line[1:].split("\t")
                self._arguments.append((kinds.split(), bool(several)))
            else:
                self._own.append(_Flag(line))
        self._flags = {
            name: flag for flag in (*self._everywhere, *self._own) for name in flag.spellings
        }
        self._dash = False

    # ------------------------------------------------------------ the words before the cursor

    def read(self, word: str) -> None:
        """Take in a word that stands before the one at the cursor."""
        if self._waiting is not None:
            self._take(self._waiting, word)
            self._waiting = None
        elif self._dash:
            self._word(word)
        elif word == "--":
            self._dash = True
        elif word[:2] == "--":
            self._long(word)
        elif word[:1] == "-" and word != "-":
            self._short(word)
        else:
            self._word(word)

    def _word(self, word: str) -> None:
        if not self._commands:
            self._words.append(word)
        elif word == _HELP and not self._path and not self._helping:
            self._helping = True
        else:
            name = next(
                (one for one, (_, aliases) in self._commands.items() if word in (one, *aliases)), ""
            )
            self._lost = self._lost or not name
            if name:
                self._path.append(name)
                self._enter()

    def _long(self, word: str) -> None:
        name, equals, value = word.partition("=")
        flag = self._flags.get(name)
        if flag is None:  # `--no-x` is a switch, and so may be what nobody knows
            flag = self._flags.get("--" + name[5:]) if name[:5] == "--no-" else None
            if flag is not None and flag.is_switch and not equals:
                self._take(flag, "false")
        elif equals:
            self._take(flag, value)
        elif flag.is_switch:
            off = name[:5] == "--no-" and "--" + name[5:] in flag.spellings
            self._take(flag, "false" if off else "true")
        elif flag.takes_next:
            self._waiting = flag
        else:
            self._take(flag, "")

    def _short(self, word: str) -> None:
        for flag, _prefix, rest in self._bundle(word):
            if rest[:1] == "=" and len(rest) > 1:
                self._take(flag, rest[1:])
            elif flag.is_switch:
                self._take(flag, "true")
            elif rest:
                self._take(flag, rest)
            else:
                self._waiting = flag

    def _bundle(self, word: str) -> list[tuple[_Flag, str, str]]:
        """The short flags of a word, each with the text up to it and what follows.

        The last one may have a value; after a letter that is no flag there is nothing.
        """
        found: list[tuple[_Flag, str, str]] = []
        for at in range(1, len(word)):
            flag, rest = self._flags.get("-" + word[at]), word[at + 1 :]
            if flag is None:
                break
            found.append((flag, word[: at + 1], rest))
            if not flag.is_switch:
                break
        return found

    def _take(self, flag: _Flag, value: str) -> None:
        flag.given = True
        self._said.append(f"{flag.long}={value}")

    # ------------------------------------------------------------ the word at the cursor

    def complete(self, word: str, found: _Found) -> None:
        """Find what the word can become."""
        if self._lost:
            return
        if self._waiting is not None:
            self._values(self._waiting, "", word, found)
        elif self._dash or word[:1] != "-":
            self._positional(word, found)
        elif self._launched:
            found.directive = "files"
        elif word[:2] == "--" and "=" in word:
            name, _, value = word.partition("=")
            flag = self._flags.get(name)
            if flag is not None:
                self._values(flag, name + "=", value, found)
        elif word == "-" or word[:2] == "--":
            self._names_of_flags([*self._own, *self._everywhere], word, found)
        else:
            self._letters(word, found)

    @property
    def _launched(self) -> bool:
        """Whether a command that was not quoted has begun: flags after it would be its own."""
        at = next((at for at, (kinds, _) in enumerate(self._arguments) if "command" in kinds), -1)
        return 0 <= at < len(self._words) and len(self._words[at].split()) == 1

    def _names_of_flags(self, flags: list[_Flag], word: str, found: _Found) -> None:
        for flag in flags:
            for name in flag.names if flag.offered else ():
                if len(name) > _SHORT or len(word) < _SHORT:
                    found.add(name, flag.help)

    def _letters(self, word: str, found: _Found) -> None:
        """Complete `-o`, `-ojson`, `-o=json` or a bundle of such letters."""
        bundle = self._bundle(word)
        if not bundle or (bundle[-1][2] and bundle[-1][0].is_switch and "=" not in word):
            return
        flag, prefix, rest = bundle[-1]
        if not rest:
            found.add(word, flag.help)
        elif rest[0] == "=":
            self._values(flag, prefix + "=", rest[1:], found)
        else:
            self._values(flag, prefix, rest, found)

    def _positional(self, word: str, found: _Found) -> None:
        """Complete a word that is no flag; an empty one becomes a flag where nothing else fits."""
        kinds = self._expected()
        runs = "command" in kinds
        if self._commands:
            self._names_of_commands(word, found)
        elif self._helping:
            return
        elif runs and (word or self._dash or self._launched):
            found.directive = "files"
        elif kinds and not runs:
            for kind in kinds:
                self._of_kind(kind, [], "", word, found)
            found.candidates = [one for one in found.candidates if one[0] not in self._words]
        elif not (word or self._dash):
            self._names_of_flags(self._own, "--", found)

    def _expected(self) -> list[str]:
        """The kinds of the word that comes next, as many as the command takes."""
        for kinds, several in self._arguments[len(self._words) :] or self._arguments[-1:]:
            if several or "command" in kinds or len(self._words) < len(self._arguments):
                return kinds
        return []

    def _names_of_commands(self, word: str, found: _Found) -> None:
        for name, (summary, aliases) in self._commands.items():
            found.add(name, summary)
            if word in aliases:
                found.add(word, summary)
        if not self._path and not self._helping:
            found.add(_HELP, "Show the help of a command")

    # ------------------------------------------------------------ values

    def _values(self, flag: _Flag, prefix: str, value: str, found: _Found) -> None:
        """Complete the value of a flag, which follows this prefix in its word."""
        if flag.is_switch:
            found.add(prefix + "true", flag.help)
            found.add(prefix + "false")
            return
        if flag.choices and "choices" not in flag.kinds:
            self._choices(flag.choices, prefix, value, found)
        for kind in flag.kinds:
            self._of_kind(kind, flag.choices, prefix, value, found)

    def _choices(self, choices: list[str], prefix: str, value: str, found: _Found) -> None:
        for choice in choices:
            # Where choices have capitals the parser does without; so may who types.
            loose = choice != choice.lower() and choice.lower().startswith(value.lower())
            if loose and not choice.startswith(value):
                rest = choice[len(value) :]
                found.add(prefix + value + (rest.lower() if value.islower() else rest))
            else:
                found.add(prefix + choice)

    def _of_kind(
        self, kind: str, choices: list[str], prefix: str, value: str, found: _Found
    ) -> None:
        if kind in {"files", "folders"}:
            # Shells complete them after `=` or as a whole word.
            if prefix[-1:] in {"", "="}:
                found.directive = kind
        elif kind == "choices":
            head, comma, last = value.rpartition(",")
            done = head.upper().split(",")
            left = [one for one in choices if one.upper() not in done]
            self._choices(left, prefix + head + comma, last, found)
        elif kind == "machines":
            self._machines(prefix, value, found)
        elif kind in _STATIC:
            for name, what in self._list(kind):
                found.add(prefix + name, what)
        elif kind == "claims":
            found.directive = "words nospace"
            for name, what in self._living(kind):
                found.add(f"{prefix}{name}:", what)
        else:
            for name, what in self._living(kind):
                found.add(prefix + name, what)

    def _machines(self, prefix: str, value: str, found: _Found) -> None:
        """Complete PRESET[:COUNT],PRESET[:COUNT]; a count is offered once the preset is whole."""
        found.directive = "words nospace"
        head, comma, last = value.rpartition(",")
        for name, what in self._list("presets"):
            found.add(prefix + head + comma + name, what)
            if last.partition(":")[0] == name:
                for count in _COUNTS:
                    found.add(f"{prefix}{head}{comma}{name}:{count}", f"{count} of them")

    def _list(self, name: str) -> list[Candidate]:
        """What the program knows by itself."""
        lines = [line.partition("\t") for line in self._section("=" + name)]
        return [(value, what) for value, _, what in lines]

    def _living(self, kind: str) -> list[Candidate]:
        """Names of the cluster, of the kubeconfig or of settings, as others have left them."""
        try:
            from arena_topo.completion import names  # noqa: PLC0415 - only where one is wanted

            # The same line, put so that nobody has to know which flag takes a value.
            line = [*self._said, "--", *self._words, ""]
            return names.of(kind, line, self._environ)
        except Exception:  # noqa: BLE001 - no name is better than a complaint
            return []
