"""What `attach` runs in a pod."""

from __future__ import annotations

import msgspec

SHELL = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh")
"""The default command on a terminal: bash, else sh."""

PLAIN_SHELL = ("sh",)
"""The default command without a terminal (arena's default in all cases)."""


class AttachRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command for a pod of a job; without `words` it is a shell.

    `instance` is the pod, None for the launcher; `container` None is the main one. With `terminal`
    stdin and stdout are one terminal, which the command controls.
    """

    words: tuple[str, ...] = ()
    instance: str | None = None
    container: str | None = None
    terminal: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The words to run."""
        return self.words or (SHELL if self.terminal else PLAIN_SHELL)
