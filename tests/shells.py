"""Real shells in a terminal, asked with TAB: what stands on their line then, and what they show."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pexpect
import pytest

NAMES = ("bash", "zsh", "fish")

TAB = "\t"
LEFT = "\x02"
_REPORT, _END, _KILL = "\x07", "\x05", "\x15"

_SET_UP = {
    "bash": """
PS1='$ '; unset HISTFILE PROMPT_COMMAND
bind 'set bell-style none'; bind 'set completion-query-items 0'; bind 'set page-completions off'
bind -x '"\\C-g": printf "%s\\n" "$READLINE_LINE" >|{report}; {mark}'
""",
    "zsh": """
PROMPT='$ '; unsetopt prompt_cr prompt_sp beep; unset zle_bracketed_paste
report() {{ print -r -- "$BUFFER" >|{report}; {mark} }}; zle -N report; bindkey '^G' report
""",
    "fish": """
set -g fish_history ''; set -g fish_autosuggestion_enabled 0
function fish_prompt; echo -n '$ '; end; function fish_title; end; function fish_greeting; end
bind \\cg 'commandline -b >{report}; {mark}'
""",
}
"""What has each shell tell, at a key, what stands on its line; and nothing else surprising."""

_RC = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}
_OPTIONS = {"bash": ("--noprofile", "-i"), "zsh": ("-d", "-i"), "fish": ("-i",)}

_TOLD = "\x1b]line told\x07"
"""What a shell writes where it has told its line: terminals show nothing of it."""

_MARK = r'printf "\033]line told\a" >/dev/tty'

_PROMPT = r"\$ \s*\Z"
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|.)"
)


def there(name: str) -> str:
    """Where a shell is: it must be there where CI is set, else the test is skipped."""
    path = shutil.which(name)
    if path is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed here, and CI is set")
    if path is None:
        pytest.skip(f"{name} is not installed here")
    return path


class Shell:
    """An interactive shell that has read `rc`, in this home and this environment."""

    def __init__(self, name: str, home: Path, env: dict[str, str], rc: str, *options: str) -> None:
        path = there(name)
        self.name = name
        self._report = home / "line"
        file = home / _RC[name]
        file.parent.mkdir(parents=True, exist_ok=True)
        # Without this folder fish reads all manual pages, for a minute, beside what is tested.
        data = Path(env.get("XDG_DATA_HOME", home / ".local/share"))
        (data / "fish/generated_completions").mkdir(parents=True, exist_ok=True)
        file.write_text(_SET_UP[name].format(report=self._report, mark=_MARK) + rc + "\n")
        self._program = pexpect.spawn(
            path,
            [*_OPTIONS[name], *options],
            env={"TERM": "ansi", "LANG": "C.UTF-8", "HOME": str(home), "ZDOTDIR": str(home), **env},
            cwd=str(home),
            dimensions=(50, 160),
            encoding="utf-8",
            timeout=30,
        )
        self._program.delaybeforesend = None
        self.seen = ""
        """What was shown while a line was made, as it came."""
        self.started = self._until(_PROMPT)
        self._clear()

    def line(self, typed: str) -> str:
        """What stands on the line once these keys are pressed; it is cleared afterwards."""
        self._program.send(typed + _REPORT)
        self.seen, line = self._told()
        self._clear()
        return line

    def _clear(self) -> None:
        """Clear the line; what is shown meanwhile is nothing that is shown with the next one."""
        self._program.send(_END + _KILL + _REPORT)
        line = self._told()[1]
        assert not line, f"{self.name} does not clear {line!r}"

    def _told(self) -> tuple[str, str]:
        """What is shown up to where the shell tells its line, and that line."""
        self._program.expect_exact(_TOLD)
        return self._program.before, self._report.read_text().removesuffix("\n")

    def shown(self, typed: str, *wanted: str) -> str:
        """What is shown when these keys are pressed, once all that is wanted can be seen."""
        self._quiet()
        self._program.send(typed)
        text = self._until(*map(re.escape, wanted))
        self._clear()
        return text

    def run(self, command: str) -> str:
        """Run a command to its end; what it writes."""
        self._quiet()
        self._program.sendline(f"{command}; echo do''ne")
        text = self._until(r"\bdone\r?\n(.|\n)*" + _PROMPT)
        self._clear()
        return text

    def close(self) -> None:
        """End it."""
        self._program.close(force=True)

    def only(self, line: str) -> bool:
        """Whether nothing was shown with the last line but the prompt and it, or pieces of them."""
        pieces = re.split(r"[\x00-\x1f]+", _SEQUENCE.sub("\0", self.seen))
        return all(piece.strip() in f"$ {line}" for piece in pieces)

    def _until(self, *wanted: str) -> str:
        text, end = "", time.monotonic() + 30
        while not all(re.search(one, text) for one in wanted):
            assert time.monotonic() < end, f"{self.name} does not show {wanted}:\n{text}"
            text = plain(text + self._quiet())
        return text

    def _quiet(self) -> str:
        """What is written until nothing more is for a moment."""
        text, end = "", time.monotonic() + 30
        while True:
            assert time.monotonic() < end, f"{self.name} goes on and on:\n{text[-2000:]}"
            try:
                text += self._program.read_nonblocking(65536, timeout=0.03)
            except pexpect.TIMEOUT:
                return text


def plain(text: str) -> str:
    """Without what only moves the cursor or colours."""
    return _SEQUENCE.sub("", text)
