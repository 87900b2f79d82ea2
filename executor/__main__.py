"""Starts `bai`. Until a command begins, Ctrl-C ends it with one sentence instead of a traceback."""

from executor.signals import end_quietly_until_a_command_begins


def main() -> None:
    """Run `bai`."""
    end_quietly_until_a_command_begins()
    from executor.cli import main as run  # imported only now, because this import takes most of the time

    run()


if __name__ == "__main__":
    main()
