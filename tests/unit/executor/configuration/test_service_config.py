"""The service's configuration comes from flags, from what its deployments set, and from the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.sink_tables import Kafka
from executor.configuration.config import read_settings
from executor.configuration.service_config import ServiceTable, Topics, service_kafka, service_table
from executor.errors import UsageError


def test_environment_variables_of_benchmark_service_deployments_are_read() -> None:
    environment = {
        "CONSUMER_TOPIC": "in",
        "PRODUCER_TOPIC": "out",
        "STATUS_TOPIC": "status",
        "CMD_SUBMIT_TOPIC": "commands",
        "CMD_RETURN_TOPIC": "answers",
        "CONSUMER_GROUP_ID": "ours",
        "REPLICATION_FACTOR": "2",
        "NUM_PARTITIONS": "6",
    }

    table = service_table(ServiceTable(), environment=environment)

    assert table.topics == Topics(
        fetcher="in", executor="out", status="status", cmd_submit="commands", cmd_return="answers"
    )
    assert (table.group, table.replicas, table.partitions) == ("ours", 2, 6)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        '[service]\ngroup = "file"\nengine_ids = ["a"]\nlaunches = 3\n[service.bounds]\nduration = "2h"\n'
    )
    table = read_settings(environment={}, file=file).service

    from_environment = service_table(table, environment={"CONSUMER_GROUP_ID": "environment"})
    from_flag = service_table(
        table, group="flag", engine_ids=("b",), environment={"CONSUMER_GROUP_ID": "environment"}
    )

    assert service_table(table, environment={}).group == "file"
    assert (from_environment.group, from_environment.engine_ids, from_environment.launches) == (
        "environment",
        ("a",),
        3,
    )
    assert (from_flag.group, from_flag.engine_ids) == ("flag", ("b",))


@pytest.mark.parametrize("name", ["NUM_PARTITIONS", "REPLICATION_FACTOR"])
@pytest.mark.parametrize("text", ["x", "0", "-1", "1.5", "²"])
def test_invalid_numbers_are_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="must be an integer"):
        service_table(ServiceTable(), environment={name: text})


def test_a_mistake_in_the_file_names_its_table(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[service.bounds]\nnode = 3\n")

    with pytest.raises(DescriptorError, match=r'\[service\.bounds\] has no key "node"; did you mean "nodes"'):
        read_settings(environment={}, file=file)


def test_kafka_bootstrap_servers_is_used_if_bai_kafka_brokers_is_not_set() -> None:
    deployed = {"KAFKA_BOOTSTRAP_SERVERS": "a:1, b:2"}
    file = Kafka(brokers=("c:3",), security_protocol="SSL")

    assert service_kafka(None, deployed).brokers == ("a:1", "b:2")
    assert service_kafka(file, deployed) == Kafka(brokers=("a:1", "b:2"), security_protocol="SSL")
    assert service_kafka(file, {**deployed, "BAI_KAFKA_BROKERS": "c:3"}) == file
    assert service_kafka(file, {}) == file
    with pytest.raises(UsageError, match="KAFKA_BOOTSTRAP_SERVERS"):
        service_kafka(None, {})


@pytest.mark.parametrize(
    "url", ["bai-events", "https://example.com/", "sqs://q", "https://h/1/q", "https://h/123456789012/q?x=1"]
)
def test_an_events_queue_that_is_not_an_sqs_address_is_refused(url: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[service]\nevents_queue = "{url}"\n')

    with pytest.raises(DescriptorError, match="events_queue must be the address of an SQS queue"):
        read_settings(environment={}, file=file)
