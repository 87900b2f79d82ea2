"""Detects machines that never run their user data, because their AMI has no cloud-init or hangs early.
A machine that only boots slowly must not be taken for a failed machine.

The boothook and the guardian (docs/boot.md) ensure that a machine writes a heartbeat or powers itself off
within the launch's boot limit. If the boothook never runs, nothing on the machine powers the machine off. A good
machine would be terminated if its boot wrongly counted as failed. Before the boot limit, only a machine's console
proves that its boot failed. After the boot limit, the guardian's lines on the console prove that its boot did not
fail. Ages of machines come from AWS, and do not depend on the machine's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from bai_agent.errors import BaiError
from executor.backends.ec2.clock import span
from executor.backends.ec2.console import Console
from executor.backends.ec2.instances import Instance
from executor.backends.ec2.monitor.job_observation import Observation
from executor.backends.ec2.session import is_denied

BOOT_ENDED = timedelta(minutes=15)
"""Minimum age at which a machine's boot counts as failed if the console shows the end of the boot but no line of
the guardian."""


def never_booted(machines: Sequence[Instance], observation: Observation) -> str | None:
    """Return a sentence about the first of `machines` without a heartbeat whose boot failed; None if every machine
    may still boot."""
    for each in machines:
        if each.state != "running" or each.age is None:
            continue
        late = _is_late(each, observation)
        console = observation.consoles.get(each.id)
        if console is not None and console.others_only:
            why = _without_us(console, each.age, late=late)
        else:
            why = _says_nothing(console, observation.unreadable.get(each.id)) if late else None
        if why is not None:
            return (
                f"{each.id} was launched {span(each.age)} ago and {why}. The AMI must have cloud-init enabled, and must not hang; "
                f"`bai logs {observation.job_id} --boot` shows the console for about an hour."
            )
    return None


def _is_late(machine: Instance, observation: Observation) -> bool:
    """Return whether a machine of this age must have written a heartbeat or powered itself off if it ran its
    user data."""
    limit = observation.boot_limit
    return limit is not None and machine.age is not None and machine.age > limit


def _without_us(console: Console, age: timedelta, *, late: bool) -> str | None:
    """Return the conclusion from a console without the guardian's lines; None if there is no conclusion yet."""
    if console.ended_without_us and age > BOOT_ENDED:
        return f'never ran its user data: the boot ended without the user data ("{console.ended_without_us}")'
    if late:
        last = console.last_line
        return f'never ran its user data: the console shows no line of the user data, and the last line is "{last}"'
    return None


def _says_nothing(console: Console | None, error: BaiError | None) -> str | None:
    """Return a sentence that says that nothing is known about a machine past its boot limit. None if the
    machine's console has lines, or will be read at the next check."""
    if error is not None and is_denied(error):
        why = f"its console cannot be read ({error})"
    elif console == Console() and not console.last_line:
        why = "its console is empty"
    else:
        return None
    return f"has sent no heartbeat, and {why}: it never ran its user data, or hangs"


def unproven(observation: Observation) -> str | None:
    """Return a sentence about a machine past its boot limit whose console cannot be read; None if there is no such
    machine."""
    for each in observation.starting:
        if each.state == "running" and _is_late(each, observation) and each.id in observation.unreadable:
            return (
                f"{each.id} was launched {span(each.age or timedelta())} ago and has sent no heartbeat; the console cannot be "
                f"read now ({observation.unreadable[each.id]}), and will be read again"
            )
    return None
