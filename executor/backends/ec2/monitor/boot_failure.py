"""Tells a machine that never runs its user data from one that is slow to boot: an AMI without cloud-init, an early hang.

Boothook and guardian bound a machine (docs/boot.md): it has given a sign of life, or has ended, within the launch's boot limit.
If the boothook never runs, nothing on the machine ends it. A wrong conclusion would end a good machine, so each needs a console with
content: a console that cannot be read, or is empty, proves nothing. Ages are AWS's own, and do not depend on the machine's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from bai_agent.errors import BaiError
from bai_agent.job.schema.durations import format_duration
from executor.backends.ec2.console import Console
from executor.backends.ec2.instances import Instance

BOOT_ENDED = timedelta(minutes=15)
"""A machine is at least so old before the end of its boot, as its console shows it, counts."""


def never_booted(
    waiting: Sequence[Instance], consoles: Mapping[str, Console], limit: timedelta | None
) -> str | None:
    """Return a sentence about the first of the silent machines `waiting` that never ran its user data; else None.

    limit: time without a sign of life after which a machine that runs its user data has powered itself off; None if unknown.
    """
    for each in waiting:
        console = consoles.get(each.id)
        if each.state != "running" or each.age is None or console is None or not console.others_only:
            continue
        if console.ended_without_us and each.age > BOOT_ENDED:
            why = f'the boot ended without it ("{console.ended_without_us}")'
        elif limit is not None and each.age > limit:
            why = f'its console shows nothing of it, and its last line is "{console.last_line}"'
        else:
            continue
        return (
            f"{each.id} was launched {span(each.age)} ago and never ran its user data: {why}. "
            "Its AMI needs cloud-init, enabled, and must not hang; `bai logs JOB --boot` shows the console for about an hour."
        )
    return None


def unproven(
    waiting: Sequence[Instance],
    consoles: Mapping[str, Console],
    unreadable: Mapping[str, BaiError],
    limit: timedelta | None,
) -> str | None:
    """Return the reason why it is unknown whether a machine past its boot limit still boots; None if there is no such machine."""
    for each in waiting:
        if each.state != "running" or limit is None or each.age is None or each.age <= limit:
            continue
        console = consoles.get(each.id)
        if each.id in unreadable:
            why = f"its console cannot be read ({unreadable[each.id]})"
        elif console is not None and not console.last_line:
            why = "its console is empty"
        else:
            continue
        return f"{each.id} was launched {span(each.age)} ago and has given no sign of life, and {why}: it may boot or hang"
    return None


def span(age: timedelta) -> str:
    """Return a time span in whole seconds, for a person."""
    return format_duration(timedelta(seconds=max(0, round(age.total_seconds()))))
