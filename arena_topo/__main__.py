"""`arena-topo`, and `python -m arena_topo`: the program, which signals end quietly at any moment.

Half of the time of a short command is spent on imports, so signals are handled here, before these
begin.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


_UNTOUCHED = {
    "submit": "Nothing was created.",
    "delete": "Nothing was deleted.",
    "del": "Nothing was deleted.",
}
"""What a command says that ends before it has begun."""


def _untouched(words: Sequence[str]) -> str:
    """What to say of a command line that was interrupted before it has begun; may be empty."""
    before = ""
    for word in words:
        if word in _UNTOUCHED:
            return _UNTOUCHED[word]
        # It may be the value of a flag, and is the command otherwise: `replan submit`.
        if not word.startswith("-") and not before.startswith("-"):
            return ""
        before = word
    return ""


def main() -> None:
    """Run the program on its arguments, and exit; after a signal with 128 and its number."""
    try:
        import os  # noqa: PLC0415 - nothing is loaded before it can be interrupted
        import sys  # noqa: PLC0415

        if sys.platform == "win32":  # signals, locks and process groups are those of POSIX
            sys.exit("error: arena-topo does not run on Windows\n  try: run it in WSL, on Linux")
        if "_ARENA_TOPO_COMPLETE" in os.environ:
            _complete()
        import gc  # noqa: PLC0415
        import signal  # noqa: PLC0415

        untouched = _untouched(sys.argv[1:])

        # Imports and answers of a server leave no cycles, and looking for some takes a fifth of the
        # time of a list.
        gc.set_threshold(100_000, 20, 20)

        # The parent may have set signals to be ignored, as nohup and `&` of shells do.
        heeded = [
            signum
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}
        ]

        # An exception would be printed and lost in callbacks of imports, and at exit.
        def at_once(number: int, _frame: object) -> None:
            os._exit(128 + number)

        def early(number: int, _frame: object) -> None:
            if untouched:
                # On a terminal `^C` stands in the first columns.
                os.write(2, b"\r" * os.isatty(2) + untouched.encode() + b"\n")
            os._exit(128 + number)

        for signum in heeded:
            signal.signal(signum, early)
        from arena_topo import cli  # noqa: PLC0415
        from arena_topo.cli.interruption import Interruption  # noqa: PLC0415

        try:
            interruption = Interruption(untouched=untouched)
            interruption.install_handlers(heeded)
            cli.main(interruption)
        finally:
            for signum in heeded:
                signal.signal(signum, at_once)
    except KeyboardInterrupt as stopped:
        raise SystemExit(getattr(stopped, "code", 130)) from None


def _complete() -> None:
    """Answer a shell's completion request; the process ends with it."""
    # The module `signal` takes longer to import than the whole answer.
    import _signal  # noqa: PLC0415

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from arena_topo import completion  # noqa: PLC0415

    completion.answer_shell(_ask)


def _ask(kind: str, given: Sequence[tuple[str, str]]) -> None:
    """Read names for completion in a thread, and wait at most `TAB_TIMEOUT` seconds."""
    import contextlib  # noqa: PLC0415
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import threading  # noqa: PLC0415

    from arena_topo.completion.names import TAB_TIMEOUT  # noqa: PLC0415

    # A credential plugin must not prompt a person, on the terminal or in a window; and Typer must
    # not answer the shell itself.
    for name in ("_ARENA_TOPO_COMPLETE", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        os.environ.pop(name, None)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 2)
    leads = False
    with contextlib.suppress(OSError):  # it is a group leader already
        os.setsid()
        leads = True

    def read() -> None:
        with contextlib.suppress(BaseException):  # no errors on a prompt
            from arena_topo.cli import completion_query  # noqa: PLC0415 - takes longer than all of TAB else

            completion_query.ask(kind, given)

    # A thread, since only that can be abandoned while a name server does not answer.
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(TAB_TIMEOUT)
    if reading.is_alive() and leads:
        # Else a plugin without an answer would stay behind, one more at each TAB.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
