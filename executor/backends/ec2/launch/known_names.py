"""Region and instance types of a descriptor beside the names that boto3 knows: a typo is seen before AWS is asked."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_names(types: Iterable[str], region: str | None) -> list[str]:
    """Return a warning for each name that is not in the lists that come with boto3. They may be older than the name."""
    from botocore.loaders import Loader

    loader = Loader()
    known_types = loader.load_service_model("ec2", "service-2")["shapes"]["InstanceType"]["enum"]
    found = [_warning("instance type", name, known_types) for name in types if name not in known_types]
    if region is not None:
        partitions = loader.load_data("endpoints")["partitions"]
        regions = [name for partition in partitions for name in partition["regions"]]
        found += [_warning("region", region, regions)] if region not in regions else []
    return found


def _warning(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    hint = f'did you mean "{near[0]}"?' if near else "check its spelling"
    return f'boto3 knows no {what} "{name}"; {hint} Ignore this if the name is newer than boto3.'
