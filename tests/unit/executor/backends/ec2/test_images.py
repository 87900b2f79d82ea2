"""The image "auto": by architecture and accelerator of the instance types."""

from __future__ import annotations

import pytest

from executor.backends.ec2.launch.images import InstanceType, image_reference
from executor.backends.ec2.launch.resolve import unresolved
from executor.configuration.config import Settings
from executor.descriptor import Descriptor
from executor.descriptor.model import Hardware
from executor.errors import UsageError


def _reference(*kinds: str, architectures: tuple[str, ...] = (), **ec2: str) -> str:
    descriptor = Descriptor.model_validate(
        {
            "spec_version": "0.1.0",
            "info": {"description": "d"},
            "hardware": {"instance_type": kinds[0]},
            "aws": {"ec2": ec2},
        }
    )
    return image_reference(
        descriptor,
        [InstanceType(name=each, architectures=architectures, ebs_mib_per_second=None) for each in kinds],
    )


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["t3.small"], "/ami/x86_64/"),
        (["g5.xlarge", "g6e.12xlarge"], "/ami/x86_64/"),
        (["p5.48xlarge"], "/ami/x86_64/"),
        (["g4ad.xlarge"], "/ami/x86_64/"),
        (["c7g.large"], "/ami/arm64/"),
        (["g5g.xlarge"], "/ami/arm64/"),
        (["c6gn.large", "x2gd.large"], "/ami/arm64/"),
        (["c7g-flex.large"], "/ami/arm64/"),
        (["p6e-gb200.36xlarge"], "/ami/arm64/"),
        (["a1.large"], "/ami/arm64/"),
        (["trn1.2xlarge"], "/neuron/"),
        (["inf2.xlarge"], "/neuron/"),
    ],
)
def test_the_automatic_image_depends_on_the_instance_type(kinds: list[str], words: str) -> None:
    assert words in _reference(*kinds, image="auto")
    assert _reference(*kinds) == _reference(*kinds, image="auto")


def test_the_described_architecture_overrides_that_of_the_types_name() -> None:
    assert "/arm64/" in _reference("z9.large", architectures=("arm64",))
    assert "/x86_64/" in _reference("z9g.large", architectures=("i386", "x86_64"))


def test_an_automatic_image_is_refused_for_types_that_need_different_ones() -> None:
    with pytest.raises(UsageError, match=r"c7i\.large and c7g\.large need different images"):
        _reference("c7i.large", "c7g.large")


def test_a_name_that_is_not_an_image_is_refused() -> None:
    with pytest.raises(UsageError, match=r'aws\.ec2\.image: "ubuntu" is not an AMI.*or "auto"'):
        _reference("t3.small", image="ubuntu")


def test_the_automatic_image_must_also_fit_the_server() -> None:
    server = {"hardware": {"instance_type": "inf2.xlarge"}, "env": {"start_command": "serve", "ports": [80]}}
    descriptor = Descriptor.model_validate(
        {
            "spec_version": "0.1.0",
            "info": {"description": "d"},
            "hardware": {"instance_type": "c7i.large", "strategy": "inference"},
            "server": server,
        }
    )
    with pytest.raises(UsageError, match=r"c7i\.large and inf2\.xlarge need different images"):
        unresolved(descriptor, Settings(), "us-east-1")
    of_two_sizes = descriptor.model_copy(
        update={"hardware": Hardware(instance_type="inf2.8xlarge", strategy="inference")}
    )
    assert "/neuron/" in unresolved(of_two_sizes, Settings(), "us-east-1").image.id
