"""Command lines read the way Go's pflag reads them.

Users of arena bring their habits and their scripts: `--gang=false`, `-e=A=1`, options before and
after the words, old spellings. The words are taken apart here by pflag's rules and put together
again in the one form that every other parser reads alike (`--env=A=1 -- COMMAND`).

Two differences are on purpose. A command that was not quoted is refused, where pflag would read
`mpirun -np 4` as namespace `p`. And `--no-gang` is understood as `--gang=false`.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arena_topo.errors import UsageError

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})

_WITHOUT_VALUE = {"--dry-run": "client"}
"""What an option means when it stands alone (pflag's NoOptDefVal); it never takes the next word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line taken apart: (parameter, value) in order, then words; what to warn of.

    `dash` is how many words stood before `--`, None where there is none.
    """

    given: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    help: bool = False
    dash: int | None = None


class Reader:
    """Reads one command line: a value option takes the next word, whatever that looks like.

    `params` are the options of the command as Typer knows them; `renamed` are old spellings.
    With `leading` it stops at the first word, as a group does. With `launches` the words are a
    command to run, after the first so many (`named`), and options among them that were not quoted
    are refused.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        renamed: Mapping[str, str],
        launches: bool = False,
        leading: bool = False,
        named: int = 0,
    ) -> None:
        self._renamed = renamed
        self._options = {
            text: param for param in params for text in param.opts if text.startswith("-")
        }
        self._launches, self._leading, self._named = launches, leading, named
        self._dash: int | None = None
        self._given: list[tuple[str, str]] = []
        self._words: list[str] = []
        self._warnings: list[str] = []
        self._since_word: str | None = None  # an option that came after the first bare word
        self._doubt: tuple[str, str] | None = None  # a word that may be meant as a flag's value
        self._help = False

    def read(self, arguments: Sequence[str]) -> Line:
        """Take a command line apart; UsageError says what cannot be read."""
        queue = deque(arguments)
        before = ""
        while queue and not self._help:
            argument = queue.popleft()
            if argument == "--":
                self._dash = len(self._words)
                self._words += queue
                break
            if argument.startswith("-") and argument != "-":
                if self._started_bare:
                    self._since_word = self._since_word or argument
                (self._long if argument.startswith("--") else self._short)(argument, queue)
            else:
                if self._leading:
                    queue.appendleft(argument)
                    self._words += queue
                    break
                self._word(argument, before)
            before = argument
        if self._doubt is not None and len(self._words) > 1:
            word, flag = self._doubt
            self._warnings.append(
                f"warning: {word!r} is read as the start of the command: {flag} takes no value"
            )
        return Line(
            given=tuple(self._given),
            words=tuple(self._words),
            warnings=tuple(self._warnings),
            help=self._help,
            dash=self._dash,
        )

    @property
    def _started_bare(self) -> bool:
        command = self._words[self._named :]
        return bool(self._launches and command and not re.search(r"\s", command[0]))

    def _word(self, word: str, before: str) -> None:
        if self._since_word is not None:
            raise self._unquoted(self._since_word)
        flag = self._options.get(before)
        if flag is not None and boolean(flag):
            if word.lower() in {"true", "false"}:
                self._warnings.append(
                    f"warning: {word!r} after {before} is read as a word of its own;"
                    f" write {before}={word} to set it"
                )
            elif self._launches and len(self._words) == self._named and not re.search(r"\s", word):
                self._doubt = (word, before)
        self._words.append(word)

    def _long(self, argument: str, queue: deque[str]) -> None:
        name, equals, value = argument.partition("=")
        new = self._renamed.get(name)
        if new is not None and new in self._options:
            self._warnings.append(f"Flag {name} has been deprecated, please use {new} instead")
            name = new
        param = self._options.get(name)
        if param is None and not equals and name.startswith("--no-"):
            negated = self._options.get("--" + name.removeprefix("--no-"))
            if negated is not None and boolean(negated):
                self._given.append((negated.name, "false"))
                return
        if param is None:
            raise self._unknown(name, f"unknown flag: {name}")
        if equals:
            self._take(param, name, value)
        elif boolean(param):
            self._take(param, name, "true")
        elif name in _WITHOUT_VALUE:
            self._take(param, name, _WITHOUT_VALUE[name])
        else:
            self._take_next(param, name, queue)

    def _short(self, argument: str, queue: deque[str]) -> None:
        letters = argument[1:]
        if self._started_bare and len(letters) > 1 and letters[1] != "=":
            raise self._unquoted(argument)
        while letters:
            name, letters = "-" + letters[0], letters[1:]
            param = self._options.get(name)
            if param is None:
                raise self._unknown(name, f"unknown shorthand flag: {name[1]!r} in {argument}")
            if letters.startswith("=") and len(letters) > 1:
                self._take(param, name, letters[1:])
                return
            if boolean(param):
                self._take(param, name, "true")
            elif letters:
                self._take(param, name, letters)
                return
            else:
                self._take_next(param, name, queue)

    def _take_next(self, param: Any, name: str, queue: deque[str]) -> None:
        if not queue:
            raise UsageError(f"flag needs an argument: {name}")
        self._take(param, name, queue.popleft())

    def _take(self, param: Any, name: str, value: str) -> None:
        if param.name == "help":
            self._help = True
        else:
            self._given.append((param.name, truth(name, value) if boolean(param) else value))

    def _unknown(self, name: str, message: str) -> UsageError:
        known = [text for text, param in self._options.items() if not param.hidden]
        near = difflib.get_close_matches(name, known, n=1)
        guess = f"did you mean {near[0]}?" if near else None
        if self._started_bare:
            return self._unquoted(name, guess)
        return UsageError(message, hint=guess)

    def _unquoted(self, option: str, guess: str | None = None) -> UsageError:
        advice = "quote the whole command, or put -- before it"
        start = self._words[self._named]
        why = "it could be meant for the command or for arena-topo"
        if self._doubt is not None:
            word, flag = self._doubt
            why = f"{flag} takes no value, so {word!r} is read as the start of the command"
            advice = f"leave out {word!r}; or {advice}"
        return UsageError(
            f"{option} stands after the start of the command, {start!r}",
            why=why,
            hint=f"{advice}; or {guess}" if guess else advice,
        )


def boolean(param: Any) -> bool:
    """Whether an option is on or off, and takes no value."""
    return bool(getattr(param, "is_flag", False))


def truth(name: str, text: str) -> str:
    """`true` or `false` as Go reads it; UsageError names the flag or variable that says it."""
    if text in _TRUE:
        return "true"
    if text in _FALSE:
        return "false"
    raise UsageError(f"{name} is invalid", why=f"expected true or false, got {text!r}")


def for_parser(params: Iterable[Any], given: Iterable[tuple[str, str]]) -> list[str]:
    """The same options in the one form that every parser reads alike; flags are worked out."""
    by_name = {param.name: param for param in params}
    flags: dict[str, list[str]] = {}
    words: list[str] = []
    for name, value in given:
        param = by_name[name]
        long = next(text for text in param.opts if text.startswith("--"))
        if boolean(param):
            # What is off unless it is said has no word for that.
            flags[long] = [long] if value == "true" else param.secondary_opts[:1]
        else:
            words.append(f"{long}={value}")
    return [*(word for said in flags.values() for word in said), *words]


def shell_command(words: Sequence[str]) -> str:
    """What the shell of the job runs: one word as it stands, several quoted again."""
    return words[0] if len(words) == 1 else shlex.join(words)
