"""Parser of a command line by the rules of Go's pflag: for the program, and for completion.

Users of arena bring their habits and their scripts: `--gang=false`, `-e=A=1`, options before and
after the words, old spellings. An option with a value takes the next word, even if that looks like
an option.

Two differences from pflag are intended. An unquoted command is refused; pflag would read `mpirun
-np 4` as namespace `p`. And `--no-gang` means `--gang=false`.

Completion loads this module at each TAB, so it imports nothing slow.
"""

from __future__ import annotations

from arena_topo.errors import NEAR_WORD, UsageError, near

TYPE_CHECKING = False
"""As in `typing`, which takes as long to import as all the rest."""

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


class UnknownFlag(UsageError):
    """A flag that the command does not have."""


class Option:
    """An option of a command: its name in `given_options`, and its spellings.

    A switch is true or false. `no_value_default` is the value of an option without an argument
    (pflag's NoOptDefVal); if it is empty, the option takes the next word. `old` spellings work with
    a warning.
    """

    __slots__ = ("hidden", "name", "no_value_default", "old", "spellings", "switch")

    def __init__(
        self,
        name: str,
        spellings: Iterable[str],
        *,
        old: Iterable[str] = (),
        switch: bool = False,
        no_value_default: str = "",
        hidden: bool = False,
    ) -> None:
        self.name, self.spellings, self.old = name, tuple(spellings), tuple(old)
        self.switch, self.no_value_default, self.hidden = (
            switch,
            "true" if switch else no_value_default,
            hidden,
        )


class PflagParser:
    """The parser of one command line, word by word.

    `given_options` are (name, value) of the options in their order, `positionals` the other words.
    `dash` is the number of words before `--`, None without it. `waiting` is the option whose value
    is the next word. With `launches`, the words after the first `named` ones are a command to run,
    and unquoted options among them are refused.
    """

    def __init__(
        self, options: Iterable[Option], *, launches: bool = False, named: int = 0
    ) -> None:
        self.options: dict[str, Option] = {}
        self.use(options, launches=launches, named=named)
        self.given_options: list[tuple[str, str]] = []
        self.positionals: list[str] = []
        self.warnings: list[str] = []
        self.dash: int | None = None
        self.waiting: Option | None = None
        self.help = False
        self._spelled = ""  # the spelling of the waiting option
        self._before = ""
        self._since_word = ""  # the first option after the first word of an unquoted command
        self._suspected_value: tuple[str, str] | None = None  # may be the value of a switch

    def use(self, options: Iterable[Option], *, launches: bool = False, named: int = 0) -> None:
        """Continue the line with the options of this command."""
        self.options = {
            text: option for option in options for text in (*option.spellings, *option.old)
        }
        self._launches, self._named = launches, named

    def read(self, word: str) -> None:
        """Parse the next word; UsageError explains an invalid one."""
        before, self._before = self._before, word
        if self.waiting is not None:
            option, self.waiting = self.waiting, None
            self._take(option, self._spelled, word)
        elif self.dash is not None:
            self.positionals.append(word)
        elif word == "--":
            self.dash = len(self.positionals)
        elif word[:1] == "-" and word != "-":
            if self.in_unquoted_command:
                self._since_word = self._since_word or word
            (self._long if word[:2] == "--" else self._short)(word)
        else:
            self._word(word, before)

    def finish(self) -> None:
        """End the line; UsageError if the value of an option is missing."""
        if self.waiting is not None:
            raise UsageError(f"flag needs an argument: {self._spelled}")
        if self._suspected_value is not None and len(self.positionals) > 1:
            word, flag = self._suspected_value
            if not _boolean(word):  # `_word` has warned of those
                self.warnings.append(
                    f"{word!r} is read as the start of the command: {flag} takes no value"
                )

    @property
    def in_unquoted_command(self) -> bool:
        """Whether an unquoted command has begun."""
        command = self.positionals[self._named :]
        return bool(self._launches and command and not _spaced(command[0]))

    def bundle(self, word: str) -> list[tuple[Option, str, str]]:
        """The short options of a word such as `-Aw`, each with the text up to it and the rest.

        The last may have a value; the list ends before a letter that is no option.
        """
        bundled: list[tuple[Option, str, str]] = []
        for at in range(1, len(word)):
            option = self.options.get("-" + word[at])
            if option is None:
                break
            bundled.append((option, word[: at + 1], word[at + 1 :]))
            if not option.switch or (word[at + 1 : at + 2] == "=" and word[at + 2 :]):
                break
        return bundled

    def _word(self, word: str, before: str) -> None:
        if self._since_word:
            raise self._unquoted(self._since_word)
        option = self.options.get(before)
        if option is not None and option.switch:
            if _boolean(word):
                self.warnings.append(
                    f"{word!r} after {before} is read as a word of its own;"
                    f" write {before}={word} to set it"
                )
            if self._launches and len(self.positionals) == self._named and not _spaced(word):
                self._suspected_value = (word, before)
        self.positionals.append(word)

    def _long(self, word: str) -> None:
        name, equals, value = word.partition("=")
        option = self.options.get(name)
        if option is not None and name in option.old:
            old, name = name, next(text for text in option.spellings if text[:2] == "--")
            self.warnings.append(f"Flag {old} has been deprecated, please use {name} instead")
        if option is None and not equals and name[:5] == "--no-":
            negated = self.options.get("--" + name[5:])
            if negated is not None and negated.switch:
                self.given_options.append((negated.name, "false"))
                return
        if option is None:
            raise self._unknown(name, f"unknown flag: {name}")
        if equals:
            self._take(option, name, value)
        else:
            self._option_without_value(option, name)

    def _short(self, word: str) -> None:
        if self.in_unquoted_command and len(word) > 2 and word[2] != "=":  # noqa: PLR2004 - more than a letter
            raise self._unquoted(word)
        letters = 1
        for option, head, rest in self.bundle(word):
            letters, name = len(head), "-" + head[-1]
            if rest[:1] == "=" and len(rest) > 1:
                self._take(option, name, rest[1:])
                return
            if rest and not option.switch:
                self._take(option, name, rest)
                return
            self._option_without_value(option, name)
        if letters < len(word):
            letter = word[letters]
            raise self._unknown(f"-{letter}", f"unknown shorthand flag: {letter!r} in {word}")

    def _option_without_value(self, option: Option, name: str) -> None:
        """Take an option without `=`: a value follows in the next word unless it has one alone."""
        if option.no_value_default:
            self._take(option, name, option.no_value_default)
        else:
            self.waiting, self._spelled = option, name

    def _take(self, option: Option, name: str, value: str) -> None:
        if option.name == "help":
            self.help = True
        else:
            self.given_options.append(
                (option.name, parse_bool(name, value) if option.switch else value)
            )

    def _unknown(self, name: str, message: str) -> UsageError:
        known = [text for text, option in self.options.items() if not option.hidden]
        known = [text for text in known if text not in self.options[text].old]
        # A single letter begins many names.
        guess = near(name, known, alike=NEAR_WORD) if name.startswith("--") else None
        return (
            self._unquoted(name, guess)
            if self.in_unquoted_command
            else UnknownFlag(message, hint=guess)
        )

    def _unquoted(self, option: str, guess: str | None = None) -> UsageError:
        advice = "quote the whole command, or put -- before it"
        start = self.positionals[self._named]
        why = "it could be meant for the command or for arena-topo"
        if self._suspected_value is not None:
            word, flag = self._suspected_value
            why = f"{flag} takes no value, so {word!r} is read as the start of the command"
            instead = f"write {flag}={word}" if _boolean(word) else f"leave out {word!r}"
            advice = f"{instead}; or {advice}"
        return UsageError(
            f"{option} stands after the start of the command, {start!r}",
            why=why,
            hint=f"{advice}; or {guess}" if guess else advice,
        )


def parse_line(reader: PflagParser, line: Sequence[str], *, leading: bool = False) -> PflagParser:
    """Parse a whole line, up to `--help`; with `leading` options stop at the first word."""
    for at, word in enumerate(line):
        reader.read(word)
        if reader.help:
            return reader
        if leading and reader.positionals:
            reader.positionals += line[at + 1 :]
            break
    reader.finish()
    return reader


def _boolean(word: str) -> bool:
    return word.lower() in {"true", "false"}


def parse_bool(name: str, text: str) -> str:
    """`true` or `false` by Go's rules; UsageError names the flag or variable."""
    if text in TRUE:
        return "true"
    if text in FALSE:
        return "false"
    raise UsageError(f"{name} is invalid", why=f"expected true or false, got {text!r}")


def shell_command(words: Sequence[str]) -> str:
    """The command for the job's shell: a single word unchanged, several words quoted again."""
    import shlex  # noqa: PLC0415 - not at TAB

    return words[0] if len(words) == 1 else shlex.join(words)


def _spaced(word: str) -> bool:
    return any(map(str.isspace, word))
