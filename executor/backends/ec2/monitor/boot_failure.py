"""Tells a machine that never runs its user data from one that is slow to boot: an AMI without cloud-init, an early hang.

Boothook and guardian bound a machine (docs/boot.md): it has given a sign of life, or has ended, within the launch's boot limit.
If the boothook never runs, nothing on the machine ends it. A wrong conclusion would end a good machine: before the boot limit only a
console proves one, and after it a console with our lines stands against it. Ages are AWS's own, and do not depend on the machine's clock.
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
"""A machine is at least so old before the end of its boot, as its console shows it, counts."""


def never_booted(machines: Sequence[Instance], observation: Observation) -> str | None:
    """Return a sentence about the first of these silent machines whose boot failed; None if each may still boot."""
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
                f"{each.id} was launched {span(each.age)} ago and {why}. Its AMI needs cloud-init, enabled, and must not hang; "
                f"`bai logs {observation.job_id} --boot` shows the console for about an hour."
            )
    return None


def _is_late(machine: Instance, observation: Observation) -> bool:
    """Return whether a machine that runs its user data would have given a sign of life, or have powered itself off."""
    limit = observation.boot_limit
    return limit is not None and machine.age is not None and machine.age > limit


def _without_us(console: Console, age: timedelta, *, late: bool) -> str | None:
    """Return what a console without our lines proves; None if nothing yet."""
    if console.ended_without_us and age > BOOT_ENDED:
        return f'never ran its user data: the boot ended without it ("{console.ended_without_us}")'
    if late:
        last = console.last_line
        return f'never ran its user data: its console shows nothing of it, and its last line is "{last}"'
    return None


def _says_nothing(console: Console | None, error: BaiError | None) -> str | None:
    """Return that nothing is known of a machine past its limit; None if its console has our lines, or is read the next time."""
    if error is not None and is_denied(error):
        why = f"its console cannot be read ({error})"
    elif console == Console() and not console.last_line:
        why = "its console is empty"
    else:
        return None
    return f"has given no sign of life, and {why}: it never ran its user data, or hangs"


def unproven(observation: Observation) -> str | None:
    """Return the reason why it is not known yet whether a machine past its boot limit failed; None if there is no such machine."""
    for each in observation.starting:
        if each.state == "running" and _is_late(each, observation) and each.id in observation.unreadable:
            return (
                f"{each.id} was launched {span(each.age or timedelta())} ago and has given no sign of life; its console cannot be "
                f"read now ({observation.unreadable[each.id]}), and is asked for again"
            )
    return None
