"""Shows `bai serve` at work: a request that runs, an invalid request, and a cancel.

`scripts/demo-service` runs it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka_brokers import new_broker
from moto_aws import open_moto_aws
from sandbox.fake_aws.iam.identities import INSTANCE
from service_events import cancel_event, fetcher_event
from service_runs import ServiceRuns, allow_serving, open_service_runs

from executor.owned_folders import cache_folder

WORKS, MISTAKEN, CANCELLED = "demo-works", "demo-mistaken", "demo-cancelled"
_MEASURE = """\
#!/bin/sh
for epoch in 1 2 3; do
    sleep 0.5
    echo "epoch $epoch accuracy=0.$((epoch * 3))"
done
"""
_METRICS = [{"name": "accuracy", "units": "ratio", "pattern": r"accuracy=(\d\.\d+)"}]


@dataclass
class _Demo:
    """Prints the service's messages as they arrive."""

    service: ServiceRuns
    printed: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Run the demo. Raises AssertionError if an answer does not come."""
        _say("starting bai serve")
        self.service.start()

        _say(f"publishing the request {WORKS}, as the benchmark service does")
        works = fetcher_event({"ml.benchmark_code": _MEASURE, "output.metrics": _METRICS}, action_id=WORKS)
        self.service.publish("fetcher", works)
        self._launched(WORKS)
        with self.service.agent(WORKS):
            self._wait(lambda said: said.count("METRICS AVAILABLE") == 2, WORKS)
        for metric in self._metrics():
            _print(
                WORKS,
                "metric",
                f"{metric['name']} = {metric['value']}, labels {json.dumps(metric['labels'])}",
            )

        _say(f"publishing {MISTAKEN}, in which two things are wrong")
        mistakes = {"env.user": "root", "ml.benchmark_code": "echo 'x"}
        self.service.publish("fetcher", fetcher_event(mistakes, action_id=MISTAKEN))
        self._wait(lambda said: "ERROR" in said, MISTAKEN)

        _say(f"publishing {CANCELLED}, and cancelling it while it runs")
        self.service.publish(
            "fetcher", fetcher_event({"ml.benchmark_code": "sleep 600"}, action_id=CANCELLED)
        )
        self._launched(CANCELLED)
        with self.service.agent(CANCELLED):
            self._wait(lambda said: "RUNNING" in said, CANCELLED)
            self.service.publish(
                "cmd_submit", cancel_event({"target_action_id": CANCELLED}, action_id="demo-command")
            )
            (answer,) = self.service.wait_messages("cmd_return", 1)
            payload: dict[str, Any] = answer["payload"]
            _say(f"its answer: return code {payload['return_code']}, {payload['message']}")
            self._wait(lambda said: "CANCELED" in said, CANCELLED)
        _say(f"bai serve ended with exit code {self.service.stop()}")

    def _launched(self, action_id: str) -> None:
        self._wait(lambda said: "SUCCEEDED" in said, action_id)
        found = self.service.wait(
            lambda: [each for each in self.service.messages("executor") if each["action_id"] == action_id],
            f"the event of {action_id}",
        )
        extras = found[0]["payload"]["job"]["extras"]
        _say(f"its instance is {extras['instance_ids'][0]} in {extras['availability_zone']}")

    def _wait(self, done: Callable[[list[str]], bool], action_id: str) -> None:
        """Print statuses until `done` is true of the statuses of a request."""

        def look() -> bool:
            messages = self.service.messages("status")
            for message in messages:
                if message["message_id"] not in self.printed:
                    self.printed.add(message["message_id"])
                    _print(message["action_id"], message["payload"]["status"], message["payload"]["message"])
            mine = [each for each in messages if each["action_id"] == action_id]
            return done([each["payload"]["status"] for each in mine])

        self.service.wait(look, f"what is said about {action_id}")

    def _metrics(self) -> list[dict[str, Any]]:
        values = [json.loads(record.value) for record in self.service.broker.read("BAI_METRICS")]
        return [each for each in values if each["name"] == "accuracy"]


def main() -> None:
    """Run the demo. If an answer does not come, print a sentence and exit with 1."""
    # SIGTERM acts like Ctrl-C, so that the broker is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        _prepared()
    except AssertionError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    _say("done")


def _prepared() -> None:
    """Start all that the demo needs, run the demo, and stop everything."""
    with tempfile.TemporaryDirectory(prefix="bai-demo-") as name:
        folder = Path(name)
        (folder / "home").mkdir()
        _say(
            "starting Kafka, and an emulated AWS account in which no instance boots: an agent on this machine does its work"
        )
        broker = new_broker(folder / "kafka")
        try:
            # Wheels that were fetched before are used again.
            environment = {**os.environ, "XDG_CACHE_HOME": str(cache_folder(os.environ).parent)}
            with (
                open_moto_aws() as aws,
                open_service_runs(folder / "home", broker, aws, environment) as service,
            ):
                allow_serving(aws)
                aws.policies.attach(INSTANCE)
                _Demo(service).run()
        finally:
            broker.stop()


def _print(action_id: str, what: str, text: str) -> None:
    print(f"  {action_id:<14}  {what:<17}  {text}", flush=True)


def _say(sentence: str) -> None:
    print(f"demo: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
