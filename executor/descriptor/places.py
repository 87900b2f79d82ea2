"""The places that a benchmark descriptor names: sources, paths, brokers."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator

from bai_agent.job.descriptor import is_glob_below, is_web_address, split_address
from bai_agent.job.source_schemes import SCHEMES, schemes_text
from executor.descriptor.values import no_nul, shown, wrong


def _source(text: str) -> str:
    name, separator, _ = text.partition("://")
    if not text.strip():
        raise wrong("is empty", 'write for example "s3://bucket/key" or "https://host/file"')
    if not separator:
        return _no_tilde(text)
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise wrong(f'"{name}://" cannot be pulled from', f"use {schemes_text()} or a path")
    if mistake := scheme.mistake(text):
        raise wrong(*mistake)
    return text


def _no_tilde(text: str) -> str:
    if text.startswith("~"):
        raise wrong('"~" is not expanded', "write an absolute path, or a relative one without ~")
    return text


SourceText = Annotated[str, AfterValidator(no_nul), AfterValidator(_source)]


def _inside(text: str) -> str:
    if not text.strip():
        raise wrong("is empty", 'write a path, for example "data/train.npz"')
    if ".." in PurePosixPath(text).parts:
        raise wrong(f"{shown(text)} leaves its folder", "write it without ..")
    return text


def _target(text: str) -> str:
    if text.startswith("~") and not text.startswith("~/"):
        raise wrong(f"{shown(text)} names another user's home", "write an absolute path, or ~/… for your own")
    return _inside(text)


def _relative_inside(text: str) -> str:
    _no_tilde(text)
    if text.startswith("/"):
        raise wrong(
            f"{shown(text)} is absolute", "write it relative to the folder in which the benchmark runs"
        )
    return _inside(text)


def _glob(text: str) -> str:
    if not is_glob_below(text):
        raise wrong(
            f"{shown(text)} is not a glob", 'let ** stand alone between slashes, for example "runs/**"'
        )
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise wrong(
            f"{shown(text)} is not absolute", 'write the whole path, for example "/opt/pytorch/bin/python"'
        )
    return text


TargetPath = Annotated[str, AfterValidator(no_nul), AfterValidator(_target)]
RelativePath = Annotated[str, AfterValidator(no_nul), AfterValidator(_relative_inside)]
RelativeGlob = Annotated[RelativePath, AfterValidator(_glob)]
FolderPath = Annotated[str, AfterValidator(no_nul), AfterValidator(_no_tilde)]
AbsolutePath = Annotated[str, AfterValidator(no_nul), AfterValidator(_absolute)]


def is_broker(text: str) -> bool:
    """Return whether `text` is host:port, with a port that there can be."""
    found = re.fullmatch(r"(?:[^\s:/,]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})", text)
    return found is not None and 0 < int(found[1]) < 65536


def _broker(text: str) -> str:
    if not is_broker(text):
        raise wrong(
            f"{shown(text)} is not a broker's address", 'write host:port, for example "broker-1:9092"'
        )
    return text


Broker = Annotated[str, AfterValidator(_broker)]


def _at_least_one(brokers: list[str]) -> list[str]:
    if not brokers:
        raise wrong("is an empty list", 'name at least one, for example ["broker-1:9092"]')
    return brokers


Brokers = Annotated[list[Broker], AfterValidator(_at_least_one)]


def _web_address(text: str) -> str:
    if not is_web_address(text):
        raise wrong(
            f"{shown(text)} is not a web server's address",
            'write for example "http://pushgateway:9091"; user and password have keys of their own',
        )
    return text


WebAddress = Annotated[str, AfterValidator(no_nul), AfterValidator(_web_address)]


def _listen_address(text: str) -> str:
    try:
        split_address(text)
    except ValueError:
        raise wrong(
            f"{shown(text)} is not an address to listen on", 'write host:port, for example "127.0.0.1:9109"'
        ) from None
    return text


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
