"""A request of the benchmark service is submitted again after the service's configuration has changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from moto_aws import REGION, MotoAws
from service_events import ACTION, encoded, fetcher_event

from bai_agent.job.record import JobRecord
from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.launch.ec2_submission import submit
from executor.configuration.config import Settings, read_settings
from executor.configuration.job_tables import JobLimits
from executor.configuration.service_config import Bounds
from executor.errors import UsageError
from executor.planning.request import Submitted
from executor.service.events.event import read_event
from executor.service.events.requests import read_request

pytestmark = pytest.mark.usefixtures("moto_environment")


def submitted(settings: Settings) -> Submitted:
    wanted = read_request(read_event(encoded(fetcher_event())), Bounds(), region=REGION)
    return submit(wanted.job_request, wanted.descriptor, settings, job_id=ACTION)


def remove(moto_aws: MotoAws, *names: str) -> None:
    """Remove objects of the job's only attempt, with rights that nobody else has."""
    for name in names:
        moto_aws.client("s3", "setup").delete_object(
            Bucket=moto_aws.bucket, Key=f"jobs/{ACTION}/attempts/0/{name}"
        )


@pytest.mark.parametrize("lost", [False, True])
def test_an_accepted_launch_is_kept_even_if_the_configuration_changed(moto_aws: MotoAws, lost: bool) -> None:
    settings = read_settings()
    submitted(settings)
    if lost:  # who launched it died before EC2's answer came
        remove(moto_aws, "launched.json")

    again = submitted(replace(settings, limits=JobLimits(grace=timedelta(minutes=7))))

    assert not again.new
    assert len(moto_aws.instances()) == 1
    assert again.job.limits.grace == timedelta(seconds=30)


def test_a_forged_job_descriptor_in_the_bucket_is_not_launched_for_a_request(moto_aws: MotoAws) -> None:
    settings = read_settings()
    submitted(settings)
    store = bucket_store(settings)
    # As a machine of another job could: it may write a descriptor where there is none, and nothing about a launch.
    remove(moto_aws, "launch.json", "launched.json")
    forged = store.get(f"{ACTION}/job.toml").replace(b"echo", b"evil")
    store.put(f"{ACTION}/job.toml", forged)

    with pytest.raises(UsageError, match="runs something else"):
        submitted(settings)

    assert not JobRecord(store, ACTION).read_object(f"{ACTION}/attempts/0/launched.json")
