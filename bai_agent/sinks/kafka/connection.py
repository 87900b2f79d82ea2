"""Connects to Kafka, and explains failed connections in sentences for the user."""

from __future__ import annotations

import functools
import gc
import logging
import os
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bai_agent.aws.credentials import find_keys, takes_botocore
from bai_agent.aws.secrets import resolve
from bai_agent.errors import ConnectError, CredentialsError, MetadataError, SecretError
from bai_agent.job.descriptor.sink_tables import Kafka
from bai_agent.job.redaction import Redactor
from bai_agent.sinks.kafka.library_log import forget_trouble, last_trouble

# kafka-python is imported in functions, because its imports take half a second and most jobs have no Kafka.
if TYPE_CHECKING:
    from kafka import KafkaProducer

log = logging.getLogger(__name__)

PARTITIONS = 3
MAX_REPLICAS = 3
_BOOTSTRAP_MS = 5_000
_REQUEST_MS = 10_000
_DELIVERY_MS = 30_000

_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def client_settings(
    kafka: Kafka, *, environment: Mapping[str, str] = os.environ, redactor: Redactor | None = None
) -> dict[str, Any]:
    """Return kafka-python's settings for `kafka`, in which secrets are resolved. The settings must not be
    logged. After this call, `redactor` also redacts these secrets.

    Raises ConnectError.
    """
    if kafka.security_protocol not in _PROTOCOLS:
        known = ", ".join(_PROTOCOLS)
        raise _wrong(f'security_protocol "{kafka.security_protocol}" is not known; use one of {known}')
    settings: dict[str, Any] = {
        "bootstrap_servers": list(kafka.brokers),
        "security_protocol": kafka.security_protocol,
        "bootstrap_timeout_ms": _BOOTSTRAP_MS,
        "request_timeout_ms": _REQUEST_MS,
        # kafka-python's default pause between attempts grows to 30 s, which is too long to notice that a
        # broker is back.
        "reconnect_backoff_max_ms": 1_000,
    }
    if kafka.security_protocol.endswith("SSL"):
        settings["ssl_context"] = _ssl_context(kafka)
    if kafka.security_protocol.startswith("SASL"):
        settings.update(_sasl_settings(kafka, environment, redactor or Redactor()))
    return settings


def connect(
    kafka: Kafka,
    *,
    client_id: str,
    environment: Mapping[str, str] = os.environ,
    redactor: Redactor | None = None,
) -> KafkaProducer:
    """Return a producer for `kafka`, after making sure that the topic exists. Raises ConnectError. The function
    takes at most 10 s for each of three steps, and the time to look up a secret.
    """
    settings = {**client_settings(kafka, environment=environment, redactor=redactor), "client_id": client_id}

    from kafka import KafkaProducer

    with explained(kafka):
        create_topics([kafka.topic], settings)
        with owned_client(KafkaProducer) as own:
            return KafkaProducer(
                **settings,
                **own,
                acks="all",
                enable_idempotence=True,
                allow_auto_create_topics=False,
                delivery_timeout_ms=_DELIVERY_MS,
                max_block_ms=_REQUEST_MS,
                metrics_enabled=False,
            )


def release(producer: KafkaProducer) -> None:
    """Close `producer` within about a second, even if it holds unsent messages."""
    from kafka.errors import KafkaError

    # close() alone raises an error while messages are unsent, and the producer's thread then continues to
    # send them.
    producer._sender.force_close()
    try:
        producer.close(timeout=1)
    except KafkaError as error:
        log.warning("Kafka: the connection did not close in time: %s", error)


def create_topics(
    topics: Sequence[str],
    settings: Mapping[str, Any],
    *,
    partitions: int = PARTITIONS,
    replicas: int | None = None,
) -> None:
    """Create the topics of `topics` that do not exist. replicas: number of replicas per topic. With None, a topic has three
    replicas, or one replica per broker if there are fewer than three brokers.

    Raises ConnectError if this user cannot see a topic, and errors of kafka-python.
    """
    from kafka import KafkaAdminClient
    from kafka.errors import AuthorizationError, TopicAlreadyExistsError

    with owned_client(KafkaAdminClient) as own:
        admin = KafkaAdminClient(**settings, **own)
        try:
            there = admin.describe_topics(list(topics))
            missing = [each["name"] for each in there if each["error_code"] != 0]
            if not missing:
                return
            copies = replicas or min(MAX_REPLICAS, len(admin.describe_cluster()["brokers"]))
            for topic in missing:
                try:
                    wanted = {topic: {"num_partitions": partitions, "replication_factor": copies}}
                    admin.create_topics(wanted, timeout_ms=_REQUEST_MS)
                except TopicAlreadyExistsError:
                    continue
                log.info("Kafka: created topic %s with %d partitions, %d replicas", topic, partitions, copies)
        except AuthorizationError as error:
            raise ConnectError(
                f"Kafka: topic {', '.join(topics)} is not visible, and cannot be created either ({error}); "
                "create it, or permit Describe and Write on it",
                permanent=True,
            ) from error
        finally:
            admin.close()


@contextmanager
def owned_client(owner: Any) -> Iterator[dict[str, Any]]:
    """Close the network client if the constructor of its `owner` raises an error. An unclosed client would
    leave sockets and a thread behind after each attempt to reach an absent broker.
    """
    clients: list[Any] = []
    _hear_last_words()

    def make(**settings: Any) -> Any:
        client = owner.DEFAULT_CONFIG["kafka_client"](**settings)
        clients.append(client)
        return client

    try:
        yield {"kafka_client": make}
    except BaseException:
        for client in clients:
            client.close()
        # The sockets of failed attempts are in reference cycles. Without a garbage collection, each attempt
        # during a long outage would leave a few more open files.
        gc.collect()
        raise


@functools.cache
def _hear_last_words() -> None:
    """Let kafka-python read a broker's last message before kafka-python closes a connection. The message
    says, for example, that the broker refuses a password.

    kafka-python drops received bytes if the broker has also closed the connection by then, and only reports "socket
    disconnected". On a busy machine, the broker has usually closed the connection by then. With this function, the end of the
    connection is found by the next read.
    """
    from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

    for transport in (KafkaTCPTransport, KafkaSSLTransport):
        transport._sock_recv = _received_first(transport._sock_recv)


def _received_first(receive: Callable[[Any], tuple[bytes, Any]]) -> Callable[[Any], tuple[bytes, Any]]:
    def receive_first(transport: Any) -> tuple[bytes, Any]:
        received, error = receive(transport)
        return received, None if received else error

    return receive_first


@contextmanager
def explained(kafka: Kafka) -> Iterator[None]:
    """Convert exceptions of kafka-python to ConnectError."""
    from kafka.errors import (
        AuthorizationError,
        InvalidTopicError,
        KafkaConfigurationError,
        KafkaError,
        SaslAuthenticationFailedError,
        UnsupportedSaslMechanismError,
    )

    forget_trouble()
    brokers = ", ".join(kafka.brokers)
    try:
        yield
    except (KafkaError, OSError, ValueError, RuntimeError) as error:
        # kafka-python retries a refused password until its time limit, and then raises a timeout.
        reason = last_trouble() or error
        if isinstance(reason, (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)):
            raise ConnectError(
                f'Kafka at {brokers} refuses "{kafka.sasl_username}" with {kafka.sasl_mechanism}: {reason}; '
                f"check [kafka] sasl_mechanism, sasl_username and what sasl_password ({kafka.sasl_password}) refers to",
                permanent=True,
            ) from error
        if isinstance(error, (AuthorizationError, InvalidTopicError, KafkaConfigurationError)):
            raise ConnectError(
                f"Kafka at {brokers} refuses topic {kafka.topic}: {error}", permanent=True
            ) from error
        raise ConnectError(
            f"Kafka at {brokers} cannot be reached with {kafka.security_protocol}: {reason}; "
            "check [kafka] brokers, security_protocol and the network"
        ) from error


def _ssl_context(kafka: Kafka) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
        if kafka.ssl_certfile is not None:
            # Without a password here, OpenSSL would ask for an encrypted key's password on the terminal, and
            # wait.
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise _wrong(
            f"ssl_cafile ({kafka.ssl_cafile}), ssl_certfile ({kafka.ssl_certfile}) or ssl_keyfile ({kafka.ssl_keyfile}) "
            f"cannot be used here: {error}; use PEM files, and a key without a password"
        ) from error
    return context


def _sasl_settings(kafka: Kafka, environment: Mapping[str, str], redactor: Redactor) -> dict[str, Any]:
    mechanism = kafka.sasl_mechanism
    if mechanism == "AWS_MSK_IAM":
        _check_msk(kafka, environment)
        return {"sasl_mechanism": mechanism}
    if mechanism not in _PASSWORD_MECHANISMS:
        known = ", ".join(_PASSWORD_MECHANISMS)
        raise _wrong(f'sasl_mechanism "{mechanism}" is not supported; use one of {known} or AWS_MSK_IAM')
    if kafka.sasl_username is None or kafka.sasl_password is None:
        raise _wrong(f"{mechanism} needs sasl_username and sasl_password")
    try:
        password = resolve(kafka.sasl_password, environment=environment)
    except SecretError as error:
        raise _wrong(f"sasl_password: {error}") from error
    redactor.know([password])
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": kafka.sasl_username,
        "sasl_plain_password": password,
    }


_NO_REGION = "AWS_MSK_IAM needs the cluster's region; set AWS_DEFAULT_REGION in the agent's environment"
_NO_CREDENTIALS = "AWS_MSK_IAM needs AWS credentials, but there are none; give the instance a role"


def _check_msk(kafka: Kafka, environment: Mapping[str, str]) -> None:
    """Raise ConnectError for mistakes in the settings that kafka-python would report only as an
    AttributeError on its network thread."""
    if kafka.security_protocol != "SASL_SSL":
        raise _wrong("AWS_MSK_IAM needs security_protocol SASL_SSL")
    if not takes_botocore(environment):
        if not _region(environment):
            raise _wrong(_NO_REGION)
        try:
            _use_own_credentials(environment)
        except (CredentialsError, MetadataError) as error:
            raise _wrong(f"AWS_MSK_IAM needs AWS credentials: {error}") from error
        return
    from botocore.session import Session

    session = Session()
    if not session.get_config_variable("region"):
        raise _wrong(_NO_REGION)
    if session.get_credentials() is None:
        raise _wrong(_NO_CREDENTIALS)


def _use_own_credentials(environment: Mapping[str, str]) -> None:
    """Make kafka-python authenticate with the AWS keys in `environment` or with the instance's role. botocore
    is not needed.

    Raises CredentialsError, MetadataError.
    """
    from kafka.errors import KafkaConnectionError
    from kafka.net.sasl import register_sasl_mechanism
    from kafka.net.sasl.msk import AwsMskIamClient, SaslMechanismAwsMskIam

    keys = find_keys(environment)
    region = _region(environment)

    class OwnCredentials(SaslMechanismAwsMskIam):  # type: ignore[misc] # kafka-python has no types
        def __init__(self, **config: Any) -> None:
            # The constructor of the base class is not called, because it requires botocore.
            self.host = config["host"]
            self._auth = None
            self._is_done = self._is_authenticated = False

        def _build_client(self) -> AwsMskIamClient:
            try:
                found = keys()
            except MetadataError as error:
                raise KafkaConnectionError(f"no AWS credentials: {error}") from error
            return AwsMskIamClient(
                host=self.host,
                access_key=found.access,
                secret_key=found.secret,
                region=region,
                token=found.token,
            )

    keys()
    register_sasl_mechanism("AWS_MSK_IAM", OwnCredentials, overwrite=True)


def _region(environment: Mapping[str, str]) -> str | None:
    """Return the AWS region of the Kafka cluster."""
    return environment.get("AWS_DEFAULT_REGION") or environment.get("AWS_REGION") or None


def _wrong(text: str) -> ConnectError:
    return ConnectError(f"[kafka] {text}", permanent=True)
