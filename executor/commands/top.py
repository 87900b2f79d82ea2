"""`bai top`: shows a running job without affecting it."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from bai_agent.errors import StoreError
from executor.commands.job_options import JobOptions
from executor.commands.options import JsonOption, RunningJobArgument
from executor.commands.printing import print_json, say
from executor.documents.text import draws_in_place, speaks_unicode
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that the command needs are imported in
# functions.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.records.newest import JobGlance
    from executor.view.top_screen import TopScreen

_HERE_SECONDS, _AWAY_SECONDS = 1.0, 5.0
"""Time between two reads of a job on this machine, and between two reads of a job elsewhere, each of which
needs several requests (seconds)."""
_DEATH_SECONDS = 5.0
"""Time between two checks whether the agent of a job on this machine is alive (seconds)."""
_TICK = 0.25
"""Time between two checks whether the terminal was resized (seconds)."""
_INTERRUPTED = 130
_NEWEST = 100


def top(job: RunningJobArgument = None, *, options: JobOptions, json_: JsonOption = False) -> None:
    """Show a running job without affecting it.

    Shows the job's phases and nodes, and the last value of each metric with its trend. Without JOB, the
    command shows the newest running job. `q` and Ctrl-C end the display, and the job continues. If the output
    is not a terminal, or with `--json`, the command prints the current state and ends.
    """
    from executor.records.newest import JobGlance
    from executor.view.top_screen import TopScreen, glance_table

    record, others = _chosen(job, options)
    glance = JobGlance(record)
    screen = TopScreen(record.job_id, others=others, unicode=speaks_unicode())
    remote = options.backends.of(record).remote
    if json_:
        glance.look()
        print_json(glance_table(record.job_id, glance, others=others))
        return
    if not draws_in_place():
        glance.look()
        _print(screen, glance, trouble=None if remote or glance.result else _death(record, options))
        return
    try:
        ended = _follow(record, glance, screen, options, remote=remote)
    except KeyboardInterrupt:
        say(_goes_on(record, options))
        raise typer.Exit(_INTERRUPTED) from None
    if ended:
        _print(screen, glance)
    else:
        say(_goes_on(record, options))


def _chosen(job: str | None, options: JobOptions) -> tuple[JobRecord, list[str]]:
    """Return the job to show and, if the user named no job, the ids of the other running jobs. Raises
    UsageError, StoreError."""
    if job is not None:
        return options.find(job), []
    from executor.jobs.job_list import JobFilter, listed
    from executor.records.job_status import GOES_ON

    listing = listed(options.stores(), _NEWEST, options.backends, only=JobFilter(statuses=GOES_ON))
    for trouble in listing.troubles:
        say(trouble)
    if not listing.jobs:
        where = " and ".join(listing.places)
        raise UsageError(f"no job runs in {where}; `{options.command('list')}` shows those that have ended")
    *others, newest = (each.status.job_id for each in listing.jobs)
    return options.find(newest), others[::-1]


def _follow(
    record: JobRecord, glance: JobGlance, screen: TopScreen, options: JobOptions, *, remote: bool
) -> bool:
    """Draw the job until the job ends. Return False if the user leaves before the job ends."""
    from rich.console import Console

    from executor.view.stage import DrawnTerminal

    console = Console(highlight=False)
    pause = _AWAY_SECONDS if remote else _HERE_SECONDS
    trouble: str | None = None

    def look() -> str | None:
        try:
            glance.look()
        except StoreError as error:
            return str(error)
        return None

    trouble = look()
    drawn = DrawnTerminal(
        console,
        lambda: screen.draw(
            glance,
            width=console.width,
            height=console.height,
            trouble=trouble,
            hint="q leaves; the job goes on",
        ),
    )
    next_look = next_death = time.monotonic() + pause
    # Keys are read from before the first drawing on, because the user can press q as soon as the hint is
    # visible.
    with Keyboard() as keys:
        drawn.open()
        try:
            shown = console.size
            while glance.result is None:
                if keys.pressed(within_s=_TICK) in ("q", "Q"):
                    return False
                now = time.monotonic()
                if now >= next_look:
                    trouble = look()
                    if not remote and now >= next_death and glance.result is None:
                        trouble = trouble or _death(record, options)
                        next_death = now + _DEATH_SECONDS
                    # The time until the next read starts at the end of a read, so that a slow store is not
                    # read again at once.
                    next_look = time.monotonic() + pause
                elif console.size == shown:
                    continue
                shown = console.size
                drawn.refresh()
                keys.take()
        finally:
            drawn.close()
    return True


def _print(screen: TopScreen, glance: JobGlance, *, trouble: str | None = None) -> None:
    from executor.documents.screen import screen_width, show

    show(screen.draw(glance, width=screen_width(), height=10_000, trouble=trouble))


def _death(record: JobRecord, options: JobOptions) -> str | None:
    """If the agent of a job on this machine has died, return a sentence that says so. None otherwise."""
    from executor.records.job_status import DIED

    if options.backends.of(record).status(record).status != DIED:
        return None
    return f"its agent has died; `{options.command('resume', record.job_id)}` starts it again"


def _goes_on(record: JobRecord, options: JobOptions) -> str:
    return f"{record.job_id} goes on: {options.command('top', record.job_id)}, {options.command('cancel', record.job_id)}"


class Keyboard:
    """Reads single keys from standard input, for which the user need not press Enter. If standard input is
    not a terminal, there are no keys."""

    def __init__(self, stdin: Callable[[], int] = lambda: sys.stdin.fileno()) -> None:
        self._stdin = stdin
        self._descriptor: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        with suppress(OSError, ValueError, termios.error):
            descriptor = self._stdin()
            self._before = termios.tcgetattr(descriptor)
            self._descriptor = descriptor
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None and self._is_ours(self._descriptor):
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)

    def take(self) -> None:
        """Switch the terminal to single keys again. Called after a shell in the foreground has reset the
        terminal."""
        if self._descriptor is not None and self._is_ours(self._descriptor):
            with suppress(OSError, termios.error):
                if termios.tcgetattr(self._descriptor)[tty.LFLAG] & termios.ICANON:
                    tty.setcbreak(self._descriptor, termios.TCSANOW)

    def pressed(self, *, within_s: float) -> str:
        """Wait until a key is pressed, and return it; "" if no key is pressed in time."""
        if self._descriptor is None or not self._is_ours(self._descriptor):
            time.sleep(within_s)
            return ""
        if not select.select([self._descriptor], [], [], within_s)[0]:
            return ""
        key = os.read(self._descriptor, 1).decode("latin-1")
        if not key:
            # Standard input was closed, so no more keys will come.
            self._descriptor = None
        return key

    def _is_ours(self, descriptor: int) -> bool:
        """Return whether this process is in the foreground. A read from the terminal would stop a process in
        the background."""
        try:
            return os.tcgetpgrp(descriptor) == os.getpgrp()
        except OSError:
            return False
