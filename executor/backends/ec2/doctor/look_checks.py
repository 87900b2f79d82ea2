"""The check of `bai doctor` that reports which process checks unattended jobs."""

from __future__ import annotations

from bai_agent.errors import StoreError
from executor.backends.ec2.attention import look_sentence
from executor.backends.ec2.bucket_store import bucket_store
from executor.backends.ec2.clock import store_now
from executor.backends.ec2.doctor.doctor_findings import Health, HealthFinding
from executor.backends.ec2.monitor.boot_failure import span
from executor.backends.ec2.watched_jobs import Look, Looker, last_looks
from executor.configuration.config import Settings


def look_finding(settings: Settings) -> HealthFinding:
    """Return who checks all jobs of the bucket, and the time of the last check."""
    try:
        store = bucket_store(settings, quick=True)
        looks = last_looks(store, store_now(store.url))
    except StoreError as error:
        return HealthFinding("looks", Health.UNKNOWN, str(error))
    if late := [each for each in looks if each.kind is Looker.WATCHER and not each.goes_on]:
        return _late_watcher(late[0], settings)
    if found := [each for each in looks if each.goes_on]:
        return HealthFinding("looks", Health.OK, look_sentence(found[0], "all jobs"))
    said = "nobody looks at jobs that no command follows: a machine that hangs goes on until somebody does"
    return HealthFinding("looks", Health.OK, said, "`bai setup --watcher` or `bai reap --every 1m` do")


def _late_watcher(look: Look, settings: Settings) -> HealthFinding:
    said = f"the watcher in the account looked {span(look.age)} ago the last time"
    # The names of a setup's role and function begin with the same text.
    setup = (settings.instance_profile or "").removesuffix("-instance") or "bai"
    todo = f"its log says why: aws logs tail /aws/lambda/{setup}-watcher; `bai setup` repairs it, or removes it with --no-watcher"
    return HealthFinding("looks", Health.WARNING, said, todo)
