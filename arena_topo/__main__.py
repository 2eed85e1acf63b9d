"""`arena-topo`, and `python -m arena_topo`: the program, which signals end quietly at any moment.

Half of a short command's time goes into loading it, so that is guarded here, before it begins.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> None:
    """Run the program on the words of the shell, and exit; 128 and its number after a signal."""
    try:
        import os  # noqa: PLC0415 - nothing is loaded before it can be interrupted

        if "_ARENA_TOPO_COMPLETE" in os.environ:
            _complete()
        import signal  # noqa: PLC0415

        # Whoever started the program may have it ignore signals: nohup does, and shells' `&`.
        heeded = [
            one
            for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(one) in {signal.SIG_DFL, signal.default_int_handler}
        ]

        # An exception would be printed and lost in the callbacks of imports, and in those at exit.
        def at_once(number: int, _frame: object) -> None:
            os._exit(128 + number)

        for one in heeded:
            signal.signal(one, at_once)
        from arena_topo import cli  # noqa: PLC0415
        from arena_topo.cli import stopping  # noqa: PLC0415

        try:
            stopping.heed(heeded)
            cli.main()
        finally:
            for one in heeded:
                signal.signal(one, at_once)
    except KeyboardInterrupt as stopped:
        raise SystemExit(getattr(stopped, "code", 130)) from None


def _complete() -> None:
    """Answer a shell that asks at TAB; the process ends with it."""
    # The module with the names of signals takes longer to load than the whole answer.
    import _signal  # noqa: PLC0415

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from arena_topo import completion  # noqa: PLC0415

    completion.run(_ask)


def _ask(kind: str, given: Sequence[tuple[str, str]]) -> None:
    """Have names read for TAB, which waits for them for a moment only."""
    import contextlib  # noqa: PLC0415
    import os  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import threading  # noqa: PLC0415

    from arena_topo.completion.names import LIMIT  # noqa: PLC0415

    # A plugin for credentials is not to ask a person, on the terminal or in a window; and Typer
    # would answer the shell itself.
    for name in ("_ARENA_TOPO_COMPLETE", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        os.environ.pop(name, None)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 2)
    leads = False
    with contextlib.suppress(OSError):  # it leads a group of processes already
        os.setsid()
        leads = True

    def read() -> None:
        with contextlib.suppress(BaseException):  # a prompt is no place for complaints
            from arena_topo.cli import asking  # noqa: PLC0415 - takes longer than all of TAB else

            asking.ask(kind, given)

    # A thread, since a name server that does not answer can be interrupted in no other way.
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(LIMIT)
    if reading.is_alive() and leads:
        # A plugin that has not answered either would be left behind, one more at each TAB.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
