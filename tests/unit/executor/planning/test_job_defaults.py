"""The configuration's image, type, volume, key pair, market and limits, for what a descriptor does not set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.configuration.config import Settings, read_settings
from executor.descriptor import Descriptor
from executor.planning.job_defaults import notes_of, used_defaults, with_defaults

_CONFIGURED = """
image = "ami-0c0ffee"
instance_type = "c7i.large"
key_pair = "mine"
spot = true
subnets = ["subnet-1"]
[volume]
size = 100
iops = 4000
[limits]
max_runtime = "2h"
"""
_SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config.toml").write_text(_CONFIGURED)
    return read_settings(environment={"BAI_CONFIG": str(tmp_path / "config.toml")})


def _descriptor(ec2: dict[str, Any] | None = None, *, kind: str = "local", **tables: Any) -> Descriptor:
    given = {
        "spec_version": "0.1.0",
        "info": {"description": "d"},
        "hardware": {"instance_type": kind},
        "aws": {"ec2": ec2} if ec2 is not None else {},
        **tables,
    }
    return Descriptor.model_validate(given)


def test_a_descriptor_without_values_gets_the_configurations(settings: Settings) -> None:
    made = with_defaults(_descriptor(), settings)

    assert made.hardware.instance_type == "c7i.large"
    assert made.aws.ec2 is not None
    assert made.aws.ec2.image == "ami-0c0ffee"
    assert made.aws.ec2.run_instances == {"KeyName": "mine", **_SPOT}
    assert made.aws.ec2.volume is not None
    assert (made.aws.ec2.volume.size, made.aws.ec2.volume.iops) == (100, 4000)


def test_a_descriptors_values_come_before_the_configurations(settings: Settings) -> None:
    own = {
        "image": "ami-0beef",
        "spot": False,
        "volume": {"size": 50},
        "run_instances": {"KeyName": "other"},
    }

    made = with_defaults(_descriptor(own, kind="t3.small"), settings)

    assert made.hardware.instance_type == "t3.small"
    assert made.aws.ec2 is not None
    assert (made.aws.ec2.image, made.aws.ec2.run_instances) == ("ami-0beef", {"KeyName": "other"})
    assert made.aws.ec2.volume is not None
    assert (made.aws.ec2.volume.size, made.aws.ec2.volume.iops) == (50, 4000)


@pytest.mark.parametrize(
    "request_",
    [
        {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.1"}}},
        {
            "CapacityReservationSpecification": {
                "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
            }
        },
    ],
)
def test_a_market_in_run_instances_overrides_the_configurations(
    settings: Settings, request_: dict[str, Any]
) -> None:
    made = with_defaults(_descriptor({"run_instances": request_}), settings)

    assert made.aws.ec2 is not None
    assert made.aws.ec2.run_instances == {**request_, "KeyName": "mine"}


def test_a_descriptor_may_ask_for_spot_itself() -> None:
    made = with_defaults(_descriptor({"spot": True}, kind="t3.small"), Settings())

    assert made.aws.ec2 is not None
    assert made.aws.ec2.run_instances == _SPOT


@pytest.mark.parametrize("env", [{"image": "ami-0e"}, {"docker_image": "ami-0d"}])
def test_an_image_of_the_environment_comes_before_the_configurations(
    settings: Settings, env: dict[str, str]
) -> None:
    made = with_defaults(_descriptor(env=env), settings)

    assert made.aws.ec2 is not None
    assert made.aws.ec2.image is None


def test_each_used_value_has_its_origin(settings: Settings, tmp_path: Path) -> None:
    descriptor = _descriptor({"volume": {"size": 50}}, limits={"grace": "5s"})

    there = used_defaults(descriptor, settings, on_ec2=True)
    here = used_defaults(descriptor, settings, on_ec2=False)

    file = str(tmp_path / "config.toml")
    assert {each.key: each.origin for each in there} == dict.fromkeys(
        [
            "image",
            "instance_type",
            "volume.iops",
            "key_pair",
            "spot",
            "subnets",
            "limits.max_runtime",
        ],
        file,
    )
    assert notes_of(here) == [f'limits.max_runtime = "2h", from {file}']


def test_without_a_configuration_the_image_is_chosen_by_the_type() -> None:
    [image] = used_defaults(_descriptor(kind="t3.small"), Settings(), on_ec2=True)

    assert notes_of([image]) == ['image = "auto", from default']
