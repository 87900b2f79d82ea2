"""`bai serve` with a thousand requests at once, and the AWS requests that `bai serve` makes for open jobs.

    python benchmarks/service.py [--events 1000] [--open 300] [--seconds 120]

The service runs as a separate process, with a real broker (`scripts/kafka`) and an emulated account (moto) in which no machine
boots. The service's consumer loses its partitions after 10 s without a poll. The broker is restarted when half of the burst is
launched. Kafka, the account and the service share this machine, which lengthens the times, but changes no other figure. Each
launch takes at least 0.3 s, like a call of EC2. The requests for open jobs are counted at the default intervals. Needs `pip
install .[test]` and Java.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("harness", "servers", "records", "")]

from goals import print_figure  # noqa: E402 - its folder is known from here on
from kafka_brokers import Broker, new_broker  # noqa: E402
from moto_aws import open_moto_aws  # noqa: E402
from nodes import price  # noqa: E402
from sandbox.fake_aws.iam.identities import SETUP  # noqa: E402
from service_burst import answered, figure, publish_burst, run_burst  # noqa: E402
from service_runs import ServiceRuns, allow_serving, open_service_runs  # noqa: E402

from executor.owned_folders import cache_folder  # noqa: E402

STARTED = 'bai_serve_statuses_total{status="PENDING"}'
SETTLE_SECONDS = 60
SECONDS_PER_EVENT = 3.0
"""Time limit per event, far longer than an event takes (seconds)."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--open", type=int, default=300, help="jobs for which requests are counted")
    parser.add_argument("--seconds", type=int, default=120, help="for which they are counted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="service-") as name:
        folder = Path(name)
        broker = new_broker(folder / "kafka")
        try:
            with service_of(folder / "open", broker) as service:
                count_requests(service, options.open, options.seconds)
            lost = 0
            if options.events:
                with service_of(folder / "burst", broker) as service:
                    lost = burst(service, options.events)
        finally:
            broker.stop()
    return 1 if lost else 0


@contextmanager
def service_of(folder: Path, broker: Broker) -> Iterator[ServiceRuns]:
    """Start a service with an account and topics of its own."""
    folder.mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache_folder(os.environ).parent)}
    own = 'max_poll_interval = "10s"\nsession_timeout = "10s"'
    with open_moto_aws() as aws, open_service_runs(folder, broker, aws, environment, service=own) as service:
        allow_serving(aws)
        service.start()
        yield service


def count_requests(service: ServiceRuns, jobs: int, seconds: int) -> None:
    """Launch jobs, and print the number of AWS requests while the jobs are open and their agents send heartbeats."""
    publish_burst(service, jobs)
    wait(lambda: answered(service) >= jobs and figure(service, STARTED) >= jobs, jobs)
    bucket = service.aws.client("s3", SETUP)
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket=service.aws.bucket, Prefix="jobs/")
    keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
    for key in keys:
        if key.endswith("/launched.json"):
            # However old it gets while this counts, it is one of a node that works.
            sign = key.replace("/launched.json", "/nodes/0/heartbeat.json")
            bucket.put_object(Bucket=service.aws.bucket, Key=sign, Body=b"{}")
    # Until the checks of jobs of which there is nothing new are as far apart as they get.
    time.sleep(SETTLE_SECONDS)
    before = len(service.aws.control_plane.calls)
    time.sleep(seconds)
    calls = Counter((each.service, each.action) for each in service.aws.control_plane.calls[before:])
    print(f"requests for {jobs} open jobs, in {seconds} s")
    print("| request | a minute | a minute and job |")
    print("|---|---:|---:|")
    for (kind, action), count in calls.most_common():
        minute = count * 60 / seconds
        print(f"| {kind} {action} | {minute:,.0f} | {minute / jobs:.2f} |")
    kinds = {"List": "LIST", "Put": "PUT"}
    of_s3 = Counter[str]()
    for (kind, action), count in calls.items():
        if kind == "s3":
            of_s3[kinds.get(action.removesuffix("ObjectsV2").removesuffix("Object"), "GET")] += count
    print_figure("service-requests", price(of_s3) * 3600 / seconds * 300 / jobs, case=f"{jobs} jobs")


def burst(service: ServiceRuns, events: int) -> int:
    """Publish the burst, restart the broker in the middle, and print the results. Return the number of lost requests."""
    found = run_burst(service, events, wait=lambda done: wait(done, events))
    print(f"\n{events:,} requests at once; the broker is restarted when half of them are launched")
    print("| | |")
    print("|---|---:|")
    print(f"| rebalances before the restart, max.poll.interval 10 s | {found.rebalances:.0f} |")
    print(f"| maximum of simultaneous launches | {found.most_launches} |")
    print(f"| memory at the first launch, MiB | {found.memory / 2**20:.0f} |")
    print(f"| growth at most, MiB | {found.growth / 2**20:.1f} |")
    print(f"| requests lost, or answered more than once | {len(found.lost)} |")
    print(f"| seconds, {found.restarted_s:.0f} of them until the broker was back | {found.seconds:.0f} |")
    return len(found.lost)


def wait(done: Callable[[], bool], events: int) -> None:
    """Wait until `done` returns True, but no longer than the time limit of `events` events."""
    deadline = time.monotonic() + 60 + SECONDS_PER_EVENT * events
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit("the service did not finish in time; is the machine very busy?")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
