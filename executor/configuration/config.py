"""Reads the configuration for this user's jobs, with the origin of each value.

A value comes from the first source that sets the value: a flag, an environment variable `BAI_…`, the configuration
file, AWS's own variables, a default. `docs/ec2.md` is the reference.
"""

from __future__ import annotations

import dataclasses
import getpass
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.sink_tables import CloudWatch, Kafka, LogLines, Prometheus
from bai_agent.job.schema.field_types import is_broker
from bai_agent.job.schema.tables import read_table
from bai_agent.job.toml import read_toml_text
from bai_agent.light_dataclass import dataclass, field
from executor.configuration.job_tables import JobLimits, Volume
from executor.configuration.service_config import ServiceTable
from executor.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """The tables of a configuration file."""

    bucket: str | None = None
    """Staging bucket for the agent, scripts, local data and the job store."""
    region: str | None = None
    """AWS region of the bucket, and of the instances unless a descriptor names another."""
    profile: str | None = None
    """Profile of the AWS configuration with the credentials."""
    subnets: tuple[str, ...] = ()
    """Candidate subnets, which are tried in this order; if empty, the default VPC's subnets are used."""
    security_groups: tuple[str, ...] = ()
    """Ids of security groups; if empty, the VPC's default group is used."""
    instance_profile: str | None = None
    """Name or ARN of the instance profile."""
    image: str | None = None
    """Image for descriptors that do not name an image; None stands for "auto", the deep learning image for
    the instance type."""
    instance_type: str | None = None
    """Instance type for descriptors whose type is "local"."""
    volume: Volume = field(default_factory=Volume)
    """Root volume, for the keys that a descriptor does not set."""
    key_pair: str | None = None
    """Name of the EC2 key pair with which users can log in to instances."""
    spot: bool = False
    """Whether spot instances are requested if the descriptor does not decide."""
    public_ip: bool | None = None
    """Whether instances get a public address; if None, the subnet's setting is used."""
    s3_endpoint: str | None = None
    """Address of S3 if it is not AWS's default, for example the address of a VPC endpoint."""
    client_id: str | None = None
    """Client id of the jobs; if None, the user's name is used."""
    kafka: Kafka | None = None
    """Destination of metrics for descriptors without a `[kafka]` table."""
    log_lines: LogLines | None = None
    """Destination of the output as JSON lines for descriptors without a `[log_lines]` table."""
    prometheus: Prometheus | None = None
    """Destination of the last values of metrics for descriptors without a `[prometheus]` table."""
    cloudwatch: CloudWatch | None = None
    """Destination of metrics in CloudWatch's format for descriptors without a `[cloudwatch]` table."""
    limits: JobLimits = field(default_factory=JobLimits)
    """Limits for keys that a descriptor does not set."""
    service: ServiceTable = field(default_factory=ServiceTable)
    """Settings of `bai serve`."""
    prices: dict[str, float] = field(default_factory=dict)
    """Instance type → USD per hour. Types that are not in this table are looked up in AWS's price list."""


@dataclass(frozen=True, kw_only=True)
class Settings(SettingsTable):
    """The effective configuration."""

    origins: dict[str, str] = field(default_factory=dict)
    """Key (for example "bucket" or "limits.max_runtime") → origin of its value."""

    @property
    def store_url(self) -> str | None:
        """Return the URL of the store of jobs on EC2; None without a bucket."""
        return f"s3://{self.bucket}/jobs" if self.bucket else None

    @property
    def sinks(self) -> dict[str, Any]:
        """Return the default destinations of records and output, by the names of their tables."""
        return {
            "kafka": self.kafka,
            "log_lines": self.log_lines,
            "prometheus": self.prometheus,
            "cloudwatch": self.cloudwatch,
        }

    @property
    def aws_profile(self) -> str | None:
        """Return the profile to pass to AWS's library; None if AWS_PROFILE names the profile. The library reads
        AWS_PROFILE itself, after the library has looked for access keys in the environment."""
        return None if self.origins.get("profile") == "AWS_PROFILE" else self.profile

    @property
    def client(self) -> str:
        """Return the client id of the jobs."""
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
            f"or set BAI_{key.upper()}, or give --{key}; `bai setup` prepares an account and writes the key"
        )


def read_settings(
    flags: Mapping[str, Any] = MappingProxyType({}),
    *,
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Settings:
    """Return the configuration. A flag is None if the user did not give it. Raises UsageError,
    DescriptorError. file: the configuration file; None for the default file, which need not exist.
    """
    place = file or config_file(environment)
    values, origins = _from_file(place, must_exist=file is not None)
    _add_environment(values, origins, environment)
    for key, value in flags.items():
        if value is not None:
            values[key], origins[key] = value, f"--{key.replace('_', '-')}"
    table = read_table(SettingsTable, values, where=f"{place}:")
    fields = {each.name: getattr(table, each.name) for each in dataclasses.fields(table)}
    return Settings(**fields, origins=origins)


def _add_environment(values: dict[str, Any], origins: dict[str, str], environment: Mapping[str, str]) -> None:
    for key, (name, read) in VARIABLES.items():
        if text := environment.get(name, "").strip():
            values[key], origins[key] = read(name, text), name
    for key, names in _AWS_VARIABLES.items():
        for name in names:
            if key not in values and environment.get(name):
                values[key], origins[key] = environment[name], name
    name = "BAI_KAFKA_BROKERS"
    if brokers := environment.get(name, "").strip():
        kafka = values.get("kafka")
        values["kafka"] = {**(kafka if isinstance(kafka, dict) else {}), "brokers": _brokers(name, brokers)}
        origins["kafka.brokers"] = name


def config_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the configuration file: BAI_CONFIG, otherwise bai/config.toml in the user's
    configuration folder."""
    if named := environment.get("BAI_CONFIG"):
        return Path(named)
    folder = environment.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "bai" / "config.toml"


def user_name() -> str:
    """Return this user's name, or "local" if the user id has no name, as in some containers."""
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


def _brokers(name: str, text: str) -> list[str]:
    brokers: list[str] = _items(name, text)
    for each in brokers:
        if not is_broker(each):
            raise UsageError(f'{name}: "{each}" is not a broker\'s address; write host:port')
    return brokers


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
"""Key → its environment variable, and the function that reads the variable. Lists are separated by commas."""
_AWS_VARIABLES = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "profile": ("AWS_PROFILE",)}
