"""Handles capacity blocks, which are machines reserved in advance. Finds the time until which EC2 lets the machines
of a capacity block run, and limits the run time of a job accordingly.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from bai_agent.job.descriptor import Job
from bai_agent.job.schema.durations import format_duration
from bai_agent.light_dataclass import dataclass, replace
from executor.backends.ec2.session import AwsSession, is_denied, plain_errors, tolerated
from executor.descriptor.ec2_table import CAPACITY_BLOCK, Ec2, read_market, read_reservation
from executor.errors import AwsError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import CapacityReservationTypeDef

_BEFORE_END = timedelta(minutes=30)
"""Time before a block's end at which EC2 begins to terminate its machines:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html"""
_LEAST_RUNTIME = timedelta(minutes=1)
_OVER = frozenset({"expired", "cancelled", "failed", "payment-failed", "unavailable"})


@dataclass(frozen=True, kw_only=True)
class CapacityBlock:
    """The capacity block that contains a job's machines."""

    reservation: str
    end: datetime | None
    """End of the capacity block; None if these credentials may not query the block."""
    state: str = ""

    @property
    def last(self) -> datetime | None:
        """Time at which EC2 begins to terminate the block's machines; None if unknown."""
        return None if self.end is None else self.end - _BEFORE_END

    def sentence(self) -> str:
        """Return a sentence for the user about the end of the capacity block."""
        if self.end is None or self.last is None:
            return (
                f"the end of the capacity block {self.reservation} is not known, because these credentials may not query the block "
                "(ec2:DescribeCapacityReservations); EC2 terminates its machines from 30 minutes before the end on"
            )
        return (
            f"the capacity block {self.reservation} ends at {self.end:%Y-%m-%d %H:%M} UTC, and EC2 terminates its machines from "
            f"{self.last:%H:%M} on"
        )


def find_block(ec2: Ec2, aws: AwsSession) -> CapacityBlock | None:
    """Return the capacity block of the requested machines; None if no block is requested. Raises AwsError, and
    UsageError if the block cannot be used."""
    if read_market(ec2.run_instances) != CAPACITY_BLOCK:
        return None
    reservation = read_reservation(ec2.run_instances)
    blocks: list[CapacityReservationTypeDef] = []
    try:
        with (
            plain_errors(f"describing the capacity block {reservation}", region=aws.region),
            tolerated("InvalidCapacityReservationId"),
        ):
            answer = aws.ec2().describe_capacity_reservations(CapacityReservationIds=[reservation])
            blocks = answer["CapacityReservations"]
    except AwsError as error:
        if not is_denied(error):
            raise
        return CapacityBlock(reservation=reservation, end=None)
    if not blocks:
        raise UsageError(_wrong(f"there is no {reservation} in {aws.region}"))
    end = blocks[0].get("EndDate")
    block = CapacityBlock(
        reservation=reservation,
        end=None if end is None else end.astimezone(timezone.utc),
        state=str(blocks[0].get("State", "")),
    )
    if block.state in _OVER:
        raise UsageError(_wrong(f"the capacity block {reservation} is {block.state}"))
    return block


def within_block(job: Job, block: CapacityBlock, start: datetime) -> tuple[Job, str | None]:
    """Return `job` with the run time that `block` allows for a machine launched at `start`, and a sentence if
    that run time is less than requested.

    A machine of a capacity block powers itself off before EC2 terminates the machine, so that no result is lost.
    Raises UsageError if no time is left for the benchmark.
    """
    wanted = job.limits.max_runtime
    if block.last is None or wanted is None:
        return job, block.sentence() if block.last is None else None
    beside = job.limits.machine_time(max_runtime=timedelta(), nodes=job.strategy.nodes)
    left = block.last - start - beside
    if wanted <= left:
        return job, None
    # The run time is in whole minutes, so that it is easy to read and usually equal for two submissions of
    # the same job.
    runtime = timedelta(minutes=left // timedelta(minutes=1))
    around = f"before and after it a machine may take {format_duration(beside)} (pull_timeout, extract_timeout and the other times of [limits])"
    if runtime < _LEAST_RUNTIME:
        raise UsageError(
            f"{block.sentence()}: no time is left for the benchmark; {around}; shorten these times, or name a later block"
        )
    sentence = f"{block.sentence()}: the benchmark may run for {format_duration(runtime)} instead of {format_duration(wanted)}"
    bounded = replace(job, limits=replace(job.limits, max_runtime=runtime))
    return bounded, f"{sentence}; {around}"


def as_bounded(job: Job, there: Job, ec2: Ec2) -> Job:
    """Return `job` with the run time of `there`, the existing job of the same id, if a capacity block may have
    shortened that run time. Otherwise, return `job`."""
    wanted, given = job.limits.max_runtime, there.limits.max_runtime
    if read_market(ec2.run_instances) != CAPACITY_BLOCK or wanted is None or given is None or given > wanted:
        return job
    return replace(job, limits=replace(job.limits, max_runtime=given))


def _wrong(problem: str) -> str:
    return f"{problem}; correct CapacityReservationId in [aws.ec2.run_instances], or [aws.ec2] region"
