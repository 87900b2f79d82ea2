"""Starts `bai`. Until a command begins, Ctrl-C ends it in one sentence instead of a traceback out of an import."""

from executor.signals import end_quietly_until_a_command_begins


def main() -> None:
    """Run `bai`."""
    end_quietly_until_a_command_begins()
    from executor.cli import main as run  # only now: this is what takes the time

    run()


if __name__ == "__main__":
    main()
