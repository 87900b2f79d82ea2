"""Runs `bai serve` with a real Kafka broker and an emulated AWS account. Each test has its own topics."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import agent_runs
import pytest
import tomli_w
from cli_harness import CliHarness
from kafka_brokers import Broker, TopicReader
from moto_aws import REGION, MotoAws
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP
from sandbox.fake_aws.iam.policy import read_policy

from bai_agent.job.toml import read_toml_text
from executor.configuration.service_config import TOPICS, Topics

DASHBOARD = "https://grafana.example.com/d/bai?var-job={action_id}"
STARTING = ("PENDING", "Benchmark starting")
QUEUE = "bai-events"
"""Name of the queue of EC2's events, in tests that have one."""
_SECONDS = 180.0


@dataclass(frozen=True, kw_only=True)
class KillPoint:
    """A request at which the service is killed."""

    key: str
    """Bucket and key of the object that is written or deleted. For a launch, the job's id."""
    action: str = "PutObject"
    before: bool = False
    """Whether the request is not carried out. If False, it is carried out but not answered."""

    def fits(self, call: Call, *, before: bool) -> bool:
        named = call.resource == self.key or self.key in call.parameters.values()
        return before is self.before and call.action == self.action and named


@dataclass(kw_only=True)
class ServiceProcess:
    """Starts the service, publishes events for it, and reads its answers, on any AWS."""

    cli: CliHarness
    broker: Broker
    topics: Mapping[str, str]
    """fetcher, executor, status, cmd_submit, cmd_return, letters → names."""
    process: subprocess.Popen[str] | None = None
    port: int = 0
    log: Path = field(default_factory=Path)
    readers: dict[str, TopicReader] = field(default_factory=dict)
    """Reader of each topic that was read, by topic."""

    def start(self, *options: str, env: Mapping[str, str] | None = None, ready: bool = True) -> None:
        """Start the service; return when it accepts events."""
        self.log = self.cli.folder / f"serve-{uuid.uuid4().hex[:6]}.log"
        with self.log.open("w") as log:
            self.process = self.cli.start(
                "serve", "--http", "127.0.0.1:0", *options, env=env or {}, stdout=log, stderr=log
            )
        found = self.wait(lambda: re.search(r"listening on port (\d+)", self.log.read_text()), "an address")
        self.port = int(found[1])
        if ready:
            self.wait(lambda: self.get("/readyz")[0] == 200, "that events are taken")

    def stop(self) -> int:
        """End the service by SIGTERM; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=60)

    def close(self) -> None:
        """Kill the service, and stop to read its topics."""
        self.kill()
        for reader in self.readers.values():
            reader.close()

    def publish(self, topic: str, *values: Any, key: str = "client") -> None:
        """Publish events, or bytes as they are, in this order."""
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.broker.address, acks="all", max_request_size=2**25)
        try:
            for value in values:
                content = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
                producer.send(self.topics[topic], key=key.encode(), value=content).get(timeout=60)
        finally:
            producer.close()

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """Return the messages of a topic. A message that was sent several times is returned once."""
        found: dict[str, dict[str, Any]] = {}
        if topic not in self.readers:
            self.readers[topic] = TopicReader(self.broker.address, self.topics[topic])
        for record in self.readers[topic].read():
            value = json.loads(record.value)
            before = found.setdefault(value.get("message_id", record.value), value)
            assert before == value, "a message that is sent again is the same"
            if "client_id" in value:
                assert record.key == value["client_id"].encode()
        return list(found.values())

    def statuses(self, action_id: str | None = None) -> list[tuple[str, str]]:
        """Return (status, message) of a request, or of all requests."""
        return [
            (each["payload"]["status"], each["payload"]["message"])
            for each in self.messages("status")
            if action_id in (None, each["action_id"])
        ]

    def answers(self, action_id: str) -> list[tuple[str, str]]:
        """Return (status, message) of a request, without STARTING."""
        return [each for each in self.statuses(action_id) if each != STARTING]

    def wait_messages(self, topic: str, count: int) -> list[dict[str, Any]]:
        self.wait(lambda: len(self.messages(topic)) >= count, f"{count} messages in {topic}")
        return self.messages(topic)

    def get(self, path: str) -> tuple[int, str]:
        """Query the service's HTTP endpoints."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait(self, done: Callable[[], Any], what: str) -> Any:
        """Wait until `done` returns a true value; return this value."""
        deadline = time.monotonic() + _SECONDS
        while not (found := done()):
            ended = self.process is not None and self.process.poll() is not None
            log = self.log.read_text()[-4000:] if self.log.is_file() else ""
            assert not ended, f"the service has ended:\n{log}"
            assert time.monotonic() < deadline, f"{what} did not come within {_SECONDS:.0f} s:\n{log}"
            time.sleep(0.2)
        return found


@dataclass(kw_only=True)
class ServiceRuns(ServiceProcess):
    """The service on an emulated account, in which no machine boots."""

    aws: MotoAws
    missing: Callable[[], set[KillPoint]] = set
    """Return the kill points that the service has not reached yet."""

    def kill_at(self, *points: KillPoint, at_once: int | None = None) -> None:
        """Kill the service when it has reached all of `points`, or `at_once` of them.

        A request at a point waits there.
        """
        enough = len(points) if at_once is None else min(at_once, len(points))
        changed = threading.Condition()
        reached: set[KillPoint] = set()

        def stop(call: Call, *, before: bool) -> bool:
            found = {each for each in points if each.fits(call, before=before)}
            with changed:
                if found:
                    reached.update(found)
                    if len(reached) >= enough and self.process is not None:
                        self.process.send_signal(signal.SIGKILL)
                        self.process.wait(timeout=60)
                        changed.notify_all()
                    else:
                        changed.wait_for(lambda: len(reached) >= enough, _SECONDS)
            return bool(found)

        def answered(call: Call) -> None:
            stop(call, before=False)

        self.aws.prevents = lambda call: stop(call, before=True)
        self.aws.answered = answered
        self.missing = lambda: set(points) - reached

    def wait_killed(self, *, more: bool = False) -> None:
        """Wait until the service was killed. more: whether another `kill_at` follows."""
        assert self.process is not None
        try:
            code = self.process.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it did not come to {self.missing()}:\n{self.log.read_text()[-8000:]}")
        assert code == -signal.SIGKILL
        if not more:
            self.forget_points()

    def forget_points(self) -> None:
        """Forget all kill points, so that the service continues."""
        self.aws.prevents, self.aws.answered = lambda call: False, lambda call: None

    @contextmanager
    def agent(self, job_id: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run the agent of a launched job here, with the options of its record. It ends with the context."""
        key = f"jobs/{job_id}/job.toml"
        body = self.aws.client("s3", SETUP).get_object(Bucket=self.aws.bucket, Key=key)["Body"]
        table = read_toml_text(body.read().decode())
        # The tests' own machine must not be powered off.
        del table["end"]
        folder = self.cli.folder / f"machine-{job_id}"
        folder.mkdir()
        (folder / "job.toml").write_text(tomli_w.dumps(table))
        env = agent_runs.environment(**self.aws.environment(INSTANCE), HOME=str(folder))
        started = agent_runs.start_agent(folder / "job.toml", folder / "run", env=env)
        try:
            yield started
        finally:
            started.terminate()
            started.wait(timeout=60)

    @contextmanager
    def beside(self) -> Iterator[ServiceRuns]:
        """Run another replica of the service, which ends with the context."""
        other = replace(self, process=None)
        other.start()
        try:
            yield other
        finally:
            other.kill()

    def keys(self, prefix: str) -> list[str]:
        """Return the bucket's keys that begin with `prefix`."""
        answer = self.aws.client("s3", "setup").list_objects_v2(Bucket=self.aws.bucket, Prefix=prefix)
        return [each["Key"] for each in answer.get("Contents", ())]


def allow_serving(aws: MotoAws, *more: str) -> None:
    """Give `bai` only the rights of a service's policies and of the policies `more`."""
    folder = Path(__file__).parents[2] / "executor/backends/ec2/iam"
    texts = [(folder / f"{name}.json").read_text() for name in ("executor", "serve", *more)]
    statements = [each for text in texts for each in json.loads(text)["Statement"]]
    both = json.dumps({"Version": "2012-10-17", "Statement": statements})
    names = {"BUCKET": aws.bucket, "ACCOUNT": aws.account, "REGION": REGION, "QUEUE": QUEUE}
    for name, value in names.items():
        both = re.sub(rf"\b{name}\b", value, both)
    aws.policies.attach("user", read_policy(both))


@contextmanager
def open_service_runs(
    folder: Path,
    broker: Broker,
    aws: MotoAws,
    environment: Mapping[str, str],
    configuration: str = "",
    service: str = 'look_interval = "1s"',
) -> Iterator[ServiceRuns]:
    """Make a service with its own topics and configuration. At the end no service is left running.

    configuration: lines for its file. service: lines for the table `[service]`.
    """
    mark = uuid.uuid4().hex[:8]
    variables = {**environment, **aws.environment()}
    cli, topics = _configured(folder, broker, variables, f"{configuration}\n[service]\n{service}", f"-{mark}")
    runs = ServiceRuns(cli=cli, broker=broker, aws=aws, topics=topics)
    try:
        yield runs
    finally:
        runs.close()


@contextmanager
def open_service_process(
    folder: Path, broker: Broker, environment: Mapping[str, str], configuration: str, mark: str = ""
) -> Iterator[ServiceProcess]:
    """Make a service with its own topics, whose names end in `mark`. At the end the service does not run.

    configuration: lines for its file, the last of them in the table `[service]`.
    mark: without one they are the topics of the benchmark service, which one test of a broker may use.
    """
    cli, topics = _configured(folder, broker, environment, configuration, mark)
    runs = ServiceProcess(cli=cli, broker=broker, topics=topics)
    try:
        yield runs
    finally:
        runs.close()


def _configured(
    folder: Path, broker: Broker, environment: Mapping[str, str], configuration: str, mark: str
) -> tuple[CliHarness, dict[str, str]]:
    """Return a service's program and its topics, whose names end in `mark` (by default the usual topics)."""
    topics = {name: f"{topic}{mark}" for name, topic in asdict(Topics()).items()}
    topics["letters"] = f"letters{mark}"
    config = folder / "config.toml"
    # The group detects the loss of a killed service after the shortest time that the broker allows.
    session = "" if "session_timeout" in configuration else 'session_timeout = "6s"\n'
    own = f'dead_letter_topic = "{topics["letters"]}"\n{session}dashboard = "{DASHBOARD}"'
    config.write_text(f"{configuration}\n{own}\n")
    names = {name: topics[key] for name, key in TOPICS.items()} if mark else {}
    names["KAFKA_BOOTSTRAP_SERVERS"] = broker.address
    names["CONSUMER_GROUP_ID"] = f"ec2-executor{mark}"
    variables = {**environment, **names, "HOME": str(folder), "BAI_CONFIG": str(config)}
    return CliHarness(folder, variables), topics
