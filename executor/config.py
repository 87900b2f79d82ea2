"""The configuration: where jobs of this user run and what they may use, each value with its origin.

A value is taken from the first that has it: a flag, an environment variable `BAI_…`, the configuration file, AWS's own
variables, a default. `docs/ec2.md` is the reference.
"""

from __future__ import annotations

import dataclasses
import getpass
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor import CloudWatch, Kafka, Limits, LogLines, Prometheus
from bai_agent.job.tables import read_table
from bai_agent.job.toml import read_toml_text
from executor.errors import UsageError
from executor.service_config import ServiceTable


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """The `[limits]` table: for descriptors that do not say. Unset: the product's own default."""

    max_runtime: timedelta | None = None
    pull_timeout: timedelta | None = None
    grace: timedelta | None = None
    extract_timeout: timedelta | None = None
    join: timedelta | None = None
    peer_silence: timedelta | None = None
    store_away: timedelta | None = None
    drain: timedelta | None = None
    no_output: timedelta | None = None
    wait_for_capacity: timedelta | None = None
    max_cost: float | None = None
    """USD that a job on EC2 may cost at most."""

    def __post_init__(self) -> None:
        if self.max_cost is not None and not 0 < self.max_cost < math.inf:
            raise ValueError("max_cost must be a number of USD > 0")
        if self.peer_silence is not None:
            Limits(peer_silence=self.peer_silence)  # which says what is wrong with it


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """What a configuration file may hold."""

    bucket: str | None = None
    """The staging bucket: the agent, scripts, local data and the job store."""
    region: str | None = None
    """The AWS region of the bucket, and of the instances unless a descriptor names another."""
    profile: str | None = None
    """The profile of the AWS configuration whose credentials are used."""
    subnets: tuple[str, ...] = ()
    """Candidate subnets, tried in turn. Unset: those of the default VPC."""
    security_groups: tuple[str, ...] = ()
    """Security groups' ids. Unset: the VPC's default group."""
    instance_profile: str | None = None
    """The instance profile's name or ARN."""
    public_ip: bool | None = None
    """Whether instances get a public address. Unset: the subnet's default."""
    s3_endpoint: str | None = None
    """Another address for S3, such as a VPC endpoint's."""
    client_id: str | None = None
    """Whose jobs these are. Unset: the user's name."""
    kafka: Kafka | None = None
    """Where metrics go for descriptors without a `[kafka]` table."""
    log_lines: LogLines | None = None
    """Where the benchmark's output goes as JSON lines for descriptors without a `[log_lines]` table."""
    prometheus: Prometheus | None = None
    """Where the last values of metrics go for descriptors without a `[prometheus]` table."""
    cloudwatch: CloudWatch | None = None
    """Where metrics go in CloudWatch's format for descriptors without a `[cloudwatch]` table."""
    limits: LimitSettings = LimitSettings()
    service: ServiceTable = field(default_factory=ServiceTable)
    """For `bai serve`."""
    prices: dict[str, float] = field(default_factory=dict)
    """Instance type → USD an hour. What is not here is asked of AWS's price list."""


@dataclass(frozen=True, kw_only=True)
class Settings(SettingsTable):
    """The configuration that holds now."""

    origins: dict[str, str] = field(default_factory=dict)
    """Key ("bucket", "limits.max_runtime") → where its value came from."""

    @property
    def store_url(self) -> str | None:
        """Return where the jobs on EC2 are kept; None without a bucket."""
        return f"s3://{self.bucket}/jobs" if self.bucket else None

    @property
    def sinks(self) -> dict[str, Any]:
        """Return where records and output go when a descriptor does not say, by the tables' names."""
        return {
            "kafka": self.kafka,
            "log_lines": self.log_lines,
            "prometheus": self.prometheus,
            "cloudwatch": self.cloudwatch,
        }

    @property
    def aws_profile(self) -> str | None:
        """Return the profile to ask AWS's library for; None where its own variable names one, which it honours behind keys."""
        return None if self.origins.get("profile") == "AWS_PROFILE" else self.profile

    @property
    def client(self) -> str:
        """Return whose jobs these are."""
        return self.client_id or user_name()

    def need_bucket(self) -> str:
        """Return the staging bucket. Raises UsageError."""
        return self.bucket or self._missing("bucket", "an S3 bucket of yours", "my-bai-bucket")

    def need_region(self) -> str:
        """Return the region. Raises UsageError."""
        return self.region or self._missing("region", "the AWS region", "eu-central-1")

    def _missing(self, key: str, what: str, example: str) -> str:
        raise UsageError(
            f'no {key} is configured ({what}); write {key} = "{example}" into {config_file(os.environ)}, '
            f"or set BAI_{key.upper()}, or give --{key}; docs/ec2.md tells how to set up"
        )


def read_settings(
    flags: Mapping[str, Any] = MappingProxyType({}),
    *,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Settings:
    """Return the configuration. A flag that is None was not given. Raises UsageError, DescriptorError.

    file: the configuration file; unset: the usual one, which need not exist.
    """
    place = file or config_file(environment)
    values, origins = _from_file(place, must_exist=file is not None)
    for key, (name, read) in VARIABLES.items():
        if text := environment.get(name, "").strip():
            values[key], origins[key] = read(name, text), name
    for key, names in _AWS_VARIABLES.items():
        for name in names:
            if key not in values and environment.get(name):
                values[key], origins[key] = environment[name], name
    if brokers := environment.get("BAI_KAFKA_BROKERS", "").strip():
        kafka = values.get("kafka")
        values["kafka"] = {
            **(kafka if isinstance(kafka, dict) else {}),
            "brokers": list(_items("BAI_KAFKA_BROKERS", brokers)),
        }
        origins["kafka.brokers"] = "BAI_KAFKA_BROKERS"
    for key, value in flags.items():
        if value is not None:
            values[key], origins[key] = value, f"--{key.replace('_', '-')}"
    table = read_table(SettingsTable, values, where=f"{place}:")
    fields = {each.name: getattr(table, each.name) for each in dataclasses.fields(table)}
    return Settings(**fields, origins=origins)


def config_file(environment: Mapping[str, str]) -> Path:
    """Return where the configuration file is: BAI_CONFIG, else bai/config.toml in the user's configuration folder."""
    if named := environment.get("BAI_CONFIG"):
        return Path(named)
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "bai" / "config.toml"


def user_name() -> str:
    """Return who we are; "local" for a user id without a name, as containers have it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "local"


def _from_file(path: Path, *, must_exist: bool) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        if must_exist:
            raise UsageError(f"the configuration file {path} does not exist") from None
        return {}, {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error}") from error
    try:
        values = read_toml_text(text)
        return values, dict.fromkeys(_keys(values), str(path))
    except ValueError as error:
        raise DescriptorError(f"{path}: not valid TOML: {error}") from error


def _keys(table: Mapping[str, Any], before: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        found += _keys(value, f"{before}{key}.") if isinstance(value, dict) else [before + key]
    return found


def _text(name: str, text: str) -> Any:
    return text


def _items(name: str, text: str) -> Any:
    return [each.strip() for each in text.split(",") if each.strip()]


def _truth(name: str, text: str) -> Any:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise UsageError(f'{name} is "{text}"; write true or false')
    return known[text.lower()]


VARIABLES: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "bucket": ("BAI_BUCKET", _text),
    "region": ("BAI_REGION", _text),
    "profile": ("BAI_PROFILE", _text),
    "subnets": ("BAI_SUBNETS", _items),
    "security_groups": ("BAI_SECURITY_GROUPS", _items),
    "instance_profile": ("BAI_INSTANCE_PROFILE", _text),
    "public_ip": ("BAI_PUBLIC_IP", _truth),
    "s3_endpoint": ("BAI_S3_ENDPOINT", _text),
    "client_id": ("BAI_CLIENT_ID", _text),
}
"""Key → its environment variable, and how that is read. Lists have commas."""
_AWS_VARIABLES = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "profile": ("AWS_PROFILE",)}
