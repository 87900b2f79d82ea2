"""Starts `bai`. Until a command begins, Ctrl-C ends `bai` with one sentence instead of a traceback."""

import gc

from executor.signals import end_quietly_until_a_command_begins


def main() -> None:
    """Run `bai`."""
    end_quietly_until_a_command_begins()
    # Modules create very many permanent objects, and a command creates few cycles, so frequent garbage
    # collections are useless.
    gc.set_threshold(100_000)
    # The module is imported only now, because this import takes most of the time.
    from executor.cli import main as run

    run()


if __name__ == "__main__":
    main()
