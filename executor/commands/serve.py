"""`bai serve`: runs jobs that users request through the benchmark service."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from executor.commands.job_options import AwsOptions
from executor.commands.printing import say

_OBJECTS = 2_000
"""Number of new objects after which Python's garbage collection searches for reference cycles."""


def serve(
    options: AwsOptions,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="NAME", help="The Kafka consumer group [default: ec2-executor]."),
    ] = None,
    engine_id: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-id",
            metavar="ID",
            help="Run requests with this value of info.execution_engine; can be repeated [default: aws.ec2].",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="[HOST]:PORT",
            help="Serve /healthz, /readyz and /metrics at this address [default: not at all].",
        ),
    ] = None,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log one JSON object per line.")] = False,
) -> None:
    """Run jobs that are requested through Kafka on EC2.

    Requests and answers are messages in the benchmark service's topics. The command runs until SIGTERM or
    Ctrl-C. Accepted requests are stored in the bucket, so that the next start continues with them.
    """
    # The modules are imported here, because `bai --help` needs none of them.
    from executor.configuration.service_config import service_kafka, service_table
    from executor.service.counters import ServiceCounters
    from executor.service.http import HttpEndpoints, parse_address
    from executor.service.service import Service
    from executor.service.service_log import log_level, start_log

    level = log_level(os.environ)
    address = parse_address(http) if http is not None else None
    settings = options.settings
    table = service_table(settings.service, group=group, engine_ids=tuple(engine_id or ()))
    counters = ServiceCounters()
    service = Service(settings, table, service_kafka(settings.kafka), counters=counters)
    endpoints = HttpEndpoints(address, counters) if address is not None else None
    start_log(level=level, as_json=json_log)
    # With the threshold of short commands (`executor/__main__.py`), reference cycles that contain AWS's
    # answers would stay in memory for long.
    gc.set_threshold(_OBJECTS)

    def on_signal(number: int, frame: FrameType | None) -> None:
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    if endpoints is not None:
        endpoints.start()
        say(f"listening on port {endpoints.port}")
    try:
        ended = service.run()
    finally:
        if endpoints is not None:
            endpoints.close()
    logging.getLogger(__name__).info("the service has ended")
    if not ended:
        # A launch can take minutes. The end of this process does not wait for it, because its progress is
        # recorded and the next start of `bai serve` continues it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
