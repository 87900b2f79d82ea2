"""Starts `bai`. Until a command begins to run, Ctrl-C ends `bai` with one sentence instead of a traceback."""

import gc

from executor.signals import end_quietly_until_a_command_begins


def main() -> None:
    """Run `bai`."""
    end_quietly_until_a_command_begins()
    # Garbage is collected rarely, because imported modules create very many permanent objects, and a command
    # creates few cycles.
    gc.set_threshold(100_000)
    # `cli` is imported only now, because its import takes most of the start-up time.
    from executor.cli import main as run

    run()


if __name__ == "__main__":
    main()
