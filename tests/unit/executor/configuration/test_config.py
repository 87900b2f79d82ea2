"""Where a configured value comes from, and that docs/ec2.md names all of them."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path

import pytest

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.sink_tables import Kafka
from executor.configuration.config import VARIABLES, SettingsTable, config_file, read_settings
from executor.configuration.job_tables import JobLimits
from executor.errors import UsageError

DOCUMENT = Path(__file__).parents[4] / "docs" / "ec2.md"


def written(tmp_path: Path, text: str) -> dict[str, str]:
    """Return an environment that names a configuration file with `text`."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    return {"BAI_CONFIG": str(path)}


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    environment = written(tmp_path, 'bucket = "file"\nregion = "file"\nprofile = "file"')
    environment |= {"BAI_BUCKET": "variable", "BAI_REGION": "variable"}

    settings = read_settings({"bucket": "flag", "region": None}, environment=environment)

    assert (settings.bucket, settings.region, settings.profile) == ("flag", "variable", "file")
    assert settings.origins["bucket"] == "--bucket"
    assert settings.origins["region"] == "BAI_REGION"
    assert settings.origins["profile"] == environment["BAI_CONFIG"]


def test_aws_variables_have_the_lowest_precedence(tmp_path: Path) -> None:
    environment = written(tmp_path, 'region = "eu-west-1"') | {
        "AWS_REGION": "us-east-1",
        "AWS_PROFILE": "work",
    }

    settings = read_settings(environment=environment)

    assert (settings.region, settings.profile) == ("eu-west-1", "work")
    assert settings.origins["profile"] == "AWS_PROFILE"


def test_a_file_may_contain_every_setting(tmp_path: Path) -> None:
    settings = read_settings(
        environment=written(
            tmp_path,
            """
            bucket = "b"
            subnets = ["subnet-1", "subnet-2"]
            security_groups = ["sg-1"]
            instance_profile = "bai-instance"
            public_ip = false
            s3_endpoint = "https://vpce-1.s3.eu-west-1.vpce.amazonaws.com"
            client_id = "team"
            [kafka]
            brokers = ["k:9092"]
            sasl_password = "ssm:/kafka"
            [limits]
            max_runtime = "2h"
            [prices]
            "t3.small" = 0.02
            "p5.48xlarge" = 60
            """,
        )
    )

    assert settings.subnets == ("subnet-1", "subnet-2")
    assert settings.public_ip is False
    assert settings.client == "team"
    assert settings.kafka == Kafka(brokers=("k:9092",), sasl_password="ssm:/kafka")
    assert settings.limits == JobLimits(max_runtime=timedelta(hours=2))
    assert settings.prices == {"t3.small": 0.02, "p5.48xlarge": 60.0}
    assert settings.store_url == "s3://b/jobs"
    assert settings.origins["limits.max_runtime"].endswith("config.toml")


def test_lists_and_booleans_are_read_from_the_environment() -> None:
    settings = read_settings(
        environment={
            "BAI_CONFIG": "/dev/null",
            "BAI_SUBNETS": "subnet-1, subnet-2",
            "BAI_PUBLIC_IP": "yes",
            "BAI_KAFKA_BROKERS": "a:1,b:2",
        }
    )

    assert settings.subnets == ("subnet-1", "subnet-2")
    assert settings.public_ip is True
    assert settings.kafka == Kafka(brokers=("a:1", "b:2"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('buket = "b"', 'did you mean "bucket"?'),
        ("subnets = 1", "subnets: expected a list"),
        ('[limits]\npeer_silence = "5s"', "[limits] peer_silence: must be at least 20s"),
        ('[limits]\nmax_runtime = "soon"', '[limits] max_runtime: "soon" is not a duration'),
        ("bucket = ", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    environment = written(tmp_path, text)

    with pytest.raises(DescriptorError, match=re.escape(said)) as caught:
        read_settings(environment=environment)

    assert environment["BAI_CONFIG"] in str(caught.value)


def test_a_variable_that_is_neither_true_nor_false() -> None:
    with pytest.raises(UsageError, match='BAI_PUBLIC_IP is "maybe"; write true or false'):
        read_settings(environment={"BAI_CONFIG": "/dev/null", "BAI_PUBLIC_IP": "maybe"})


def test_a_missing_setting_names_three_ways_to_set_it() -> None:
    settings = read_settings(environment={"BAI_CONFIG": "/dev/null"})

    with pytest.raises(UsageError, match=r'bucket = "my-bai-bucket".*BAI_BUCKET.*--bucket'):
        settings.need_bucket()


def test_the_configuration_has_a_default_path() -> None:
    assert config_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/bai/config.toml")
    assert config_file({}) == Path.home() / ".config/bai/config.toml"


def test_the_ec2_page_documents_every_configuration_key_and_variable() -> None:
    document = DOCUMENT.read_text("utf-8")
    keys = {each.name for each in dataclasses.fields(SettingsTable)} | {
        each.name for each in dataclasses.fields(JobLimits)
    }
    told = set(re.findall(r"^\| `\[?(\w+)\]?`", document, re.MULTILINE))

    assert keys <= told
    assert {name for name, _ in VARIABLES.values()} <= set(re.findall(r"`(BAI_\w+)`", document))


def test_a_configured_cost_is_a_number_above_zero(tmp_path: Path) -> None:
    assert read_settings(environment=written(tmp_path, "limits.max_cost = 25.0")).limits.max_cost == 25.0

    with pytest.raises(
        DescriptorError, match=r"max_cost: must be a number of USD > 0; write for example 25\.0"
    ):
        read_settings(environment=written(tmp_path, "limits.max_cost = 0.0"))
