"""What moto forgets about an instance's volumes."""

from __future__ import annotations

import re
from typing import Any

_SETTING = re.compile(r"BlockDeviceMapping\.(\d+)\.Ebs\.(Iops|Throughput|VolumeInitializationRate)")
_ATTRIBUTES = {
    "Iops": "iops",
    "Throughput": "throughput",
    "VolumeInitializationRate": "volume_initialization_rate",
}


def with_root_device(mappings: list[dict[str, Any]] | None, image: Any) -> list[dict[str, Any]]:
    """Return the block devices of a launch: those of the request, and the image's root where it does not name it."""
    mappings = list(mappings or [])
    for device in image.block_device_mappings:
        if all(mapping["DeviceName"] != device["DeviceName"] for mapping in mappings):
            mappings.append({"VirtualName": None, "NoDevice": None, **device})
    for mapping in mappings:
        if mapping["Ebs"].get("VolumeSize") is None:
            mapping["Ebs"]["VolumeSize"] = image.block_device_mappings[0]["Ebs"]["VolumeSize"]
    return mappings


def keep_volume_settings(backend: Any, instance: Any, parameters: dict[str, str]) -> None:
    """Give the instance's volumes the IOPS, throughput and initialization rate that were asked for."""
    for name, value in parameters.items():
        found = _SETTING.fullmatch(name)
        if found:
            device = parameters.get(f"BlockDeviceMapping.{found[1]}.DeviceName", "")
            attached = instance.block_device_mapping.get(device)
            if attached is not None:
                [volume] = backend.describe_volumes(volume_ids=[attached.volume_id])
                setattr(volume, _ATTRIBUTES[found[2]], int(value))
