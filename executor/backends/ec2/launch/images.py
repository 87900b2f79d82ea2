"""Looks up the image that instances boot from and the instance type, and checks that the type can boot the
image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.session import AwsSession, plain_errors, tolerated
from executor.descriptor import Descriptor
from executor.descriptor.model import Hardware
from executor.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef, InstanceTypeInfoTypeDef, NetworkInfoTypeDef

_AMI = re.compile(r"ami-[0-9a-f]+")
_WITHOUT_GPUS = re.compile(r"([acdhimrtxz]|dl|f|hpc|im|inf|is|mac|trn|u|vt)[0-9-]|g4ad\.")
"""Instance families without NVIDIA GPUs: families without accelerators, with other accelerators, or with
AMD's GPUs. Families that do not match may have NVIDIA GPUs."""
_ARM = re.compile(r"a1\.|[a-z]+[0-9]+[a-z]*g[a-z]*[.-]|p[0-9]+[a-z]*-gb")
"""Instance families with AWS's or NVIDIA's Arm processors:
https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html"""
_NEURON = re.compile(r"(inf|trn)[0-9]")
"""Instance families with AWS's own accelerators."""
AUTO = "auto"
"""Value of the descriptor's `image` for which bai itself chooses an image that matches the instance type."""
_PYTORCH_IMAGES = {
    "x86_64": "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/ami-id",
    "arm64": "/aws/service/deeplearning/ami/arm64/oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04/latest/ami-id",
}
"""Deep learning AMIs by architecture, for types with NVIDIA GPUs and without accelerators: https://docs.aws.amazon.com/dlami/latest/devguide/"""
_NEURON_IMAGE = "/aws/service/neuron/dlami/multi-framework/ubuntu-24.04/latest/image_id"
"""Deep learning AMI for Inferentia and Trainium: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/dlami/"""
_PARAMETER = re.compile(r"(?:resolve:)?(?:ssm:)?(/.+)")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An AMI."""

    id: str
    architecture: str
    """EC2's name of the architecture: x86_64, arm64."""
    root_device: str
    root_gib: int | None
    """Size of the root volume (GiB); None if the size was not looked up."""
    other_devices: tuple[str, ...] = ()
    """Names of further EBS volumes in the image's block device mapping."""
    owner: str = ""
    """Id of the account that owns the image."""
    operation: str = ""
    """Code of the image's charges in bills and price list: "RunInstances" for plain Linux,
    "RunInstances:0010" for RHEL:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/billing-info-fields.html"""
    marketplace: bool = False
    """Whether the image is from the Marketplace, so that its software may be charged separately."""


@dataclass(frozen=True, kw_only=True)
class NetworkCard:
    """A network card of an instance type: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_NetworkCardInfo.html"""

    index: int
    most_interfaces: int
    takes_efa: bool


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """The relevant properties of an instance type."""

    name: str
    architectures: tuple[str, ...]
    ebs_mib_per_second: int | None
    """Maximum throughput to EBS (MiB/s); None if EC2 does not report the throughput."""
    gpus: int | None = None
    """Number of NVIDIA GPUs, and of processes if the descriptor sets `processes_per_instance = "gpus"`; None if the
    number was not looked up."""
    vcpus: int | None = None
    """Number of vCPUs that one instance uses of the account's quota; None if the number was not looked up."""
    efa_interfaces: int | None = None
    """Maximum number of network interfaces that may be EFAs; None if the number was not looked up."""
    network_cards: tuple[NetworkCard, ...] = ()
    """Network cards in the order of their indexes; empty if the cards were not looked up."""


def placeholder(what: str) -> str:
    """Return the placeholder for a value that is looked up only at submission."""
    return f"<resolved at submission: {what}>"


def image_reference(descriptor: Descriptor, kinds: Sequence[InstanceType]) -> str:
    """Return the image as the descriptor names it: an AMI's id, or "ssm:/…". Raises UsageError. kinds: the
    instance types, which determine the image for "auto".
    """
    ec2, env = descriptor.aws.ec2, descriptor.env
    for key, text in (
        ("aws.ec2.image", ec2.image if ec2 else None),
        ("env.image", env.image),
        ("env.docker_image", env.docker_image),
    ):
        if not text:
            continue
        if text == AUTO:
            break
        if _AMI.fullmatch(text):
            return text
        if found := _PARAMETER.fullmatch(text):
            return f"ssm:{found[1]}"
        raise UsageError(
            f'{key}: "{text}" is not an AMI; write an id ("ami-…"), a public parameter '
            '("ssm:/aws/service/…") or "auto" as [aws.ec2] image'
        )
    return _automatic(kinds)


def _automatic(kinds: Sequence[InstanceType]) -> str:
    """Return the SSM parameter of the deep learning image for these types. Raises UsageError if the types
    need different images."""
    wanted = {_deep_learning_image(each): each.name for each in kinds}
    if len(wanted) > 1:
        raise UsageError(
            f'{" and ".join(wanted.values())} need different images, so "auto" names none; write [aws.ec2] image, '
            "or choose types that need the same image"
        )
    return f"ssm:{next(iter(wanted))}"


def _deep_learning_image(kind: InstanceType) -> str:
    if _NEURON.match(kind.name):
        return _NEURON_IMAGE
    arm = "x86_64" not in kind.architectures if kind.architectures else bool(_ARM.match(kind.name))
    return _PYTORCH_IMAGES["arm64" if arm else "x86_64"]


def find_image(reference: str, aws: AwsSession) -> Image:
    """Return the image that `reference` names. Raises UsageError, AwsError."""
    image_id = _parameter(reference.removeprefix("ssm:"), aws) if reference.startswith("ssm:") else reference
    found: list[ImageTypeDef] = []
    with plain_errors(f"describing the image {image_id}", region=aws.region), tolerated("InvalidAMIID"):
        found = aws.ec2().describe_images(ImageIds=[image_id])["Images"]
    if not found:
        raise UsageError(
            f"the image {image_id} does not exist in {aws.region}; an AMI belongs to one region: check [aws.ec2] region "
            f"({aws.region} now), and whether the AMI is shared with you"
        )
    return _image(found[0])


def found_before(reference: str, image_id: str, now: Image, aws: AwsSession) -> Image:
    """Return the image `image_id` if an earlier look-up of `reference` may have returned that image.
    If the earlier look-up cannot have returned `image_id`, return `now`, the image of the current look-up.

    A public parameter names newer images over time, all of the same owner, but an AMI's id always names the
    same image. Raises AwsError.
    """
    if image_id == now.id or not reference.startswith("ssm:") or not _AMI.fullmatch(image_id):
        return now
    try:
        before = find_image(image_id, aws)
    except UsageError:
        return now
    return before if before.owner == now.owner != "" else now


def find_type(name: str, aws: AwsSession, *, key: str = "hardware.instance_type") -> InstanceType:
    """Return EC2's description of an instance type. Raises UsageError, AwsError. key: the descriptor's key
    that names the type."""
    found: list[InstanceTypeInfoTypeDef] = []
    unknown = tolerated("InvalidInstanceType", "InvalidParameterValue")
    with plain_errors(f"describing the instance type {name}", region=aws.region), unknown:
        found = aws.ec2().describe_instance_types(InstanceTypes=[name])["InstanceTypes"]  # type: ignore[list-item]
    if not found:
        raise UsageError(
            f'there is no instance type "{name}" in {aws.region}; correct {key}, or [aws.ec2] region'
        )
    return _type(found[0], name)


def check_fit(image: Image, kind: InstanceType, *, key: str = "hardware.instance_type") -> None:
    """Raise UsageError if instances of this type, which the descriptor's `key` names, cannot boot the
    image."""
    if kind.architectures and image.architecture not in kind.architectures:
        raise UsageError(
            f"the image {image.id} is for {image.architecture}, but {kind.name} is {' or '.join(kind.architectures)}; "
            f"take another image or another {key}"
        )


def gpus_by_name(instance_type: str) -> int | None:
    """Return 0 for a type whose name shows that the type has no NVIDIA GPUs; None for any other type.

    https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
    """
    return 0 if _WITHOUT_GPUS.match(instance_type) else None


def check_processes(hardware: Hardware, kinds: Sequence[InstanceType]) -> None:
    """Raise UsageError if one process per GPU is requested, but a type has no GPUs, or the types have
    different numbers of GPUs."""
    distributed = hardware.distributed
    if (
        hardware.strategy == "single_node"
        or distributed is None
        or distributed.processes_per_instance != "gpus"
    ):
        return
    first, *others = kinds
    for kind in kinds:
        if kind.gpus != 0:
            continue
        raise UsageError(
            f'hardware.distributed.processes_per_instance: "gpus" starts one process for each NVIDIA GPU, but {kind.name} has '
            "no NVIDIA GPU; set a number (--set hardware.distributed.processes_per_instance=1), or choose another "
            + ("hardware.instance_type" if kind is first else "aws.ec2.instance_types")
        )
    for kind in others:
        if None not in (kind.gpus, first.gpus) and kind.gpus != first.gpus:
            raise UsageError(
                f'aws.ec2.instance_types: {kind.name} has {kind.gpus} GPUs and {first.name} has {first.gpus}, but "gpus" '
                "(hardware.distributed.processes_per_instance) needs types with the same number of GPUs; choose other types, or set a number"
            )


def _parameter(name: str, aws: AwsSession) -> str:
    """Return the AMI's id from the public SSM parameter `name`. Raises UsageError, AwsError."""
    value: str | None = None
    unknown = tolerated("ParameterNotFound", "ParameterVersionNotFound", "ValidationException")
    with plain_errors(f"reading the parameter {name}", region=aws.region), unknown:
        value = aws.ssm().get_parameter(Name=name)["Parameter"].get("Value", "")
    if value is None:
        raise UsageError(
            f"there is no parameter {name} in {aws.region}; "
            "`aws ssm get-parameters-by-path --path /aws/service/deeplearning --recursive` lists those of AWS"
        )
    if not _AMI.fullmatch(value):
        raise UsageError(
            f"the parameter {name} does not contain an AMI's id; name one that ends in image_id or ami-id"
        )
    return value


def _image(found: ImageTypeDef) -> Image:
    image_id = found.get("ImageId", "")
    state = found.get("State")
    if state != "available":
        raise UsageError(f"the image {image_id} is {state}, not available; take another")
    if found.get("Platform", "").lower() == "windows":
        raise UsageError(f"the image {image_id} is a Windows image; benchmarks run on Linux")
    root = found.get("RootDeviceName", "")
    mappings = found.get("BlockDeviceMappings", [])
    ebs = {each.get("DeviceName", ""): each["Ebs"] for each in mappings if each.get("Ebs")}
    if root not in ebs:
        raise UsageError(f"the image {image_id} has no EBS root volume; choose an EBS-backed image")
    return Image(
        id=image_id,
        architecture=str(found.get("Architecture", "")),
        root_device=root,
        root_gib=ebs[root].get("VolumeSize", 8),
        other_devices=tuple(sorted(ebs.keys() - {root})),
        owner=found.get("OwnerId", ""),
        operation=found.get("UsageOperation", ""),
        marketplace=any(
            each.get("ProductCodeType") == "marketplace" for each in found.get("ProductCodes", ())
        ),
    )


def _type(found: InstanceTypeInfoTypeDef, name: str) -> InstanceType:
    limits = found.get("EbsInfo", {}).get("EbsOptimizedInfo", {})
    throughput = limits.get("MaximumThroughputInMBps")
    network = found.get("NetworkInfo", {})
    return InstanceType(
        name=name,
        architectures=tuple(map(str, found.get("ProcessorInfo", {}).get("SupportedArchitectures", []))),
        ebs_mib_per_second=int(throughput * 10**6 / 2**20) if throughput else None,
        gpus=sum(
            each.get("Count", 0)
            for each in found.get("GpuInfo", {}).get("Gpus", [])
            if each.get("Manufacturer", "").upper() == "NVIDIA"
        ),
        vcpus=found.get("VCpuInfo", {}).get("DefaultVCpus"),
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1)
        if network.get("EfaSupported")
        else 0,
        network_cards=_cards(network),
    )


def _cards(network: NetworkInfoTypeDef) -> tuple[NetworkCard, ...]:
    cards = (
        NetworkCard(
            index=each.get("NetworkCardIndex", 0),
            most_interfaces=each.get("MaximumNetworkInterfaces", 1),
            # Older answers of EC2 do not report the maximum number of EFAs. Without that number, each card is
            # assumed to accept one EFA if the type supports EFA.
            takes_efa="efa-only" in each.get("InterfaceTypes", ["efa-only"]),
        )
        for each in network.get("NetworkCards", ())
    )
    return tuple(sorted(cards, key=lambda card: card.index))


def unknown_names(types: Iterable[str], region: str | None) -> list[str]:
    """Return a warning for each name that boto3 does not know, so that a typo is found without querying AWS.
    The name may also be newer than boto3's lists."""
    from botocore.loaders import Loader

    loader = Loader()
    known_types = loader.load_service_model("ec2", "service-2")["shapes"]["InstanceType"]["enum"]
    found = [_name_warning("instance type", name, known_types) for name in types if name not in known_types]
    if region is not None:
        partitions = loader.load_data("endpoints")["partitions"]
        regions = [name for partition in partitions for name in partition["regions"]]
        found += [_name_warning("region", region, regions)] if region not in regions else []
    return found


def _name_warning(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    hint = f'did you mean "{near[0]}"?' if near else "check its spelling"
    return f'boto3 knows no {what} "{name}"; {hint} Ignore this if the name is newer than boto3.'
