"""The command tree; main(): errors to exit codes."""


def main() -> None:
    """Run the program."""
