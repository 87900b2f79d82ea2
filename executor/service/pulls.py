"""What an event says was fetched: datasets, models and scripts, as what a job pulls. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Source, SourceKind, Unpack
from bai_agent.job.source_schemes import SCHEMES, grants_access, scheme_of, source_name
from executor.descriptor.raw_table import Raw, items, text_of
from executor.service.trust import REMOTE_SCHEMES

_MD5 = re.compile(r"[0-9a-fA-F]{32}")
_KINDS = {"FILE": False, "DIRECTORY": True}
_KEPT = ("id", "md5", "sha256", "unpack", "mode")
"""What the descriptor says of a source that stays true for its copy."""


@dataclass(frozen=True, kw_only=True)
class Pulls:
    """What a job brings to its machines."""

    sources: tuple[dict[str, Any], ...]
    """Datasets and models, as items of `data.sources`."""
    sizes: Mapping[str, int]
    """Address → bytes, as far as the fetcher knows."""
    scripts: tuple[Source, ...]
    problems: tuple[str, ...]
    """Why the job cannot run; a sentence each."""


def read_pulls(payload: Mapping[str, Any], contents: Raw) -> Pulls:
    """Return what the `payload` of a fetcher event brings for its descriptor, `contents`.

    Sources of the descriptor that the fetcher did not fetch are pulled from where they are.
    """
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    sizes: dict[str, int] = {}
    written = [each for _, each in items(contents, "data", "sources")]
    fetched: set[str] = set()
    for name in ("datasets", "models"):
        for where, item in _items(payload, name, problems):
            src = text_of(item, "src")
            fetched.add(src)
            read = _fetched(where, item, _written(written, src, item.get("path")), problems)
            if read is not None:
                found.append(read)
                if (size := _size(item)) is not None:
                    sizes[read["src"]] = size
    found += [dict(each) for each in written if text_of(each, "src") not in fetched]
    scripts = tuple(_scripts(payload, problems))
    return Pulls(sources=tuple(found), sizes=sizes, scripts=scripts, problems=tuple(problems))


def _items(
    payload: Mapping[str, Any], name: str, problems: list[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of a list, each with its place, and say what is none."""
    value = payload.get(name)
    if value is None:
        return
    if not isinstance(value, list):
        problems.append(f"payload.{name} must be a list")
        return
    for index, item in enumerate(value):
        where = f"payload.{name}[{index}]"
        if isinstance(item, Mapping):
            yield where, item
        else:
            problems.append(f"{where} must be a table")


def _written(sources: list[Raw], src: str, path: Any) -> Raw:
    """Return what the descriptor says of a source; the same one may go to several places."""
    same = [each for each in sources if text_of(each, "src") == src]
    return next((each for each in same if each.get("path") == path), same[0] if same else {})


def _fetched(where: str, item: Mapping[str, Any], written: Raw, problems: list[str]) -> dict[str, Any] | None:
    """Return a dataset or model as a source of a descriptor."""
    src = text_of(item, "src")
    called = f'{where} ("{source_name(src)}")' if src else where
    dst, status = item.get("dst"), item.get("status")
    if dst is None or status == "FAILED":
        why = item.get("message")
        said = f": {why}" if isinstance(why, str) and why else ""
        problems.append(f"{called} was not fetched{said}; check that its address can be read")
        return None
    if not _is_address(called, dst, problems):
        return None
    kind = item.get("type")
    if kind is not None and (not isinstance(kind, str) or kind not in _KINDS):
        problems.append(f"{called}: type must be FILE or DIRECTORY")
        return None
    directory = _KINDS.get(kind, False) if kind is not None else False
    md5 = item.get("md5")
    if md5 is not None and not directory and not (isinstance(md5, str) and _MD5.fullmatch(md5)):
        problems.append(f"{called}: md5 must be 32 hexadecimal digits")
        return None
    source: dict[str, Any] = {key: written[key] for key in _KEPT if written.get(key) is not None}
    source["path"] = item.get("path")
    source["src"] = f"{dst.rstrip('/')}/" if directory else dst
    if directory:
        source.pop("md5", None)
        source.pop("sha256", None)
    elif md5 is not None:
        source["md5"] = md5
    return source


def _scripts(payload: Mapping[str, Any], problems: list[str]) -> Iterator[Source]:
    for where, item in _items(payload, "scripts", problems):
        dst = item.get("dst")
        if dst is None:
            problems.append(f"{where} has no dst: the scripts did not arrive; submit them again")
        elif _is_address(where, dst, problems):
            yield Source(src=dst, path=".", kind=SourceKind.SCRIPTS, unpack=Unpack.INTO, size=_size(item))


def _is_address(where: str, dst: Any, problems: list[str]) -> bool:
    """Return whether `dst` is an address that an instance can pull from; say so where it is not."""
    if not isinstance(dst, str) or scheme_of(dst) not in REMOTE_SCHEMES or "\0" in dst:
        problems.append(f"{where}: dst must be an address such as s3://bucket/key")
        return False
    scheme = SCHEMES.get(dst.partition("://")[0])
    mistake = scheme.mistake(dst) if scheme is not None else ("is not written in lower case", "")
    if mistake is not None:
        problems.append(f"{where}: dst {mistake[0]}")
        return False
    if grants_access(dst):
        problems.append(f"{where}: dst holds a password or a signature, which must not get into user data")
        return False
    return True


def _size(item: Mapping[str, Any]) -> int | None:
    info = item.get("size_info")
    size = info.get("total_size") if isinstance(info, Mapping) else None
    return size if type(size) is int and 0 <= size < 2**53 else None
