"""`arena-topo`, and `python -m arena_topo`: the program, which Ctrl-C ends quietly at any moment.

Half of a short command's time goes into loading it, so that is guarded here, before it begins.
"""


def main() -> None:
    """Run the program on the words of the shell, and exit; 130 after SIGINT, as shells say it."""
    try:
        import os  # noqa: PLC0415 - nothing is loaded before it can be interrupted
        import signal  # noqa: PLC0415

        # Whoever started the program may have it ignore SIGINT.
        heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        # An exception would be printed and lost in the callbacks of imports, and in those at exit.
        if heeds:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        from arena_topo import cli  # noqa: PLC0415

        try:
            if heeds:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            cli.main()
        finally:
            if heeds:
                signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
