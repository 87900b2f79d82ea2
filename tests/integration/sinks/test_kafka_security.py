from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_brokers import PASSWORD, USER, Broker
from metric_files import append_records, kafka_job, new_run, sequence

from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.job.schema.declared import MistakeError
from bai_agent.sinks.kafka.pusher import KafkaPusher
from bai_agent.sinks.sink import Delivery

REFERENCE: dict[str, Any] = {"sasl_username": USER, "sasl_password": "env:KAFKA_PASSWORD"}


def push(
    address: str, topic: str, folder: Path, *, seconds: float = 60, password: str = PASSWORD, **settings: Any
) -> Delivery:
    rundir = new_run(folder)
    append_records(rundir, range(10))
    job = kafka_job(address, topic, **settings)
    pusher = KafkaPusher(job, rundir, rank=0, environment={"KAFKA_PASSWORD": password})
    pusher.start()
    return pusher.finish(time.monotonic() + seconds)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_records_are_delivered_with_a_correct_sasl_password(
    kafka: Broker,
    free_topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    mechanism: str,
) -> None:
    with caplog.at_level(logging.DEBUG):
        delivery = push(
            kafka.listeners[protocol], free_topic, tmp_path,
            security_protocol=protocol, sasl_mechanism=mechanism, ssl_cafile=kafka.cafile, **REFERENCE,
        )  # fmt: skip

    assert (delivery.delivered, delivery.error) == (10, None)
    assert sequence(kafka.read(free_topic)) == list(range(10))
    assert PASSWORD not in caplog.text


def test_records_are_delivered_over_tls(kafka: Broker, free_topic: str, tmp_path: Path) -> None:
    delivery = push(
        kafka.listeners["SSL"], free_topic, tmp_path, security_protocol="SSL", ssl_cafile=kafka.cafile
    )

    assert (delivery.delivered, delivery.error) == (10, None)
    assert sequence(kafka.read(free_topic)) == list(range(10))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_reported_at_once_and_not_shown(
    kafka: Broker, free_topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    address = kafka.listeners["SASL_PLAINTEXT"]

    # An hour to drain: it is not waited for, as nothing can come of it.
    with caplog.at_level(logging.DEBUG):
        delivery = push(
            address, free_topic, tmp_path, seconds=3600, password="looking-glass",
            security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, **REFERENCE,
        )  # fmt: skip

    assert (delivery.delivered, delivery.undelivered) == (0, 10)
    assert delivery.error is not None
    assert all(part in delivery.error for part in (address, USER, mechanism, "env:KAFKA_PASSWORD"))
    assert "looking-glass" not in delivery.error + caplog.text


def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(
    kafka: Broker, free_topic: str, tmp_path: Path
) -> None:
    delivery = push(kafka.listeners["SSL"], free_topic, tmp_path, seconds=8, security_protocol="SSL")

    assert delivery.undelivered == 10
    assert delivery.error is not None
    assert "certificate verify failed" in delivery.error


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_username": "u",
                "sasl_password": "env:HOME",
            },
            "OAUTHBEARER",
        ),
        (
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_username": "u",
                "sasl_password": "env:NOT_SET",
            },
            "NOT_SET",
        ),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "AWS_MSK_IAM"}, "SASL_SSL"),
    ],
)
def test_settings_that_cannot_work_are_explained_at_once(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    delivery = push("127.0.0.1:1", "metrics", tmp_path, seconds=3600, **settings)

    assert delivery.undelivered == 10
    assert delivery.error is not None
    assert reason in delivery.error


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "sasl_mechanism is missing"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_username is missing"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u"}, "sasl_password is missing"),
    ],
)
def test_incomplete_settings_are_refused_with_the_descriptor(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(MistakeError, match=reason):
        Kafka(brokers=("127.0.0.1:1",), security_protocol="SASL_PLAINTEXT", **settings)
