"""Evidence of a proof for others to read: without account ids, user data, addresses, keys or names of the person."""

from __future__ import annotations

import ipaddress
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

_SECRET_KEYS = frozenset({"UserData"})
_ADDRESS_KEY = re.compile(r".*Ip(?:v6)?Address|PublicIp|.*DnsName|MacAddress")
_HIDDEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(?:AKIA|ASIA|AIDA|AROA|ANPA|AIPA)[A-Z0-9]{12,}\b"), "<key id>"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w"), "<e-mail>"),
    (re.compile(r"\b(?:ip|ec2)-\d{1,3}(?:-\d{1,3}){3}\b"), "<address>"),
    (re.compile(r"\b[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}\b"), "<address>"),
    (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d])"), "<address>"),
    (re.compile(r"(?<!\d)\d{12}(?!\d)"), "<account>"),
    (re.compile(r"[A-Za-z0-9+/_=-]{160,}"), "<long value>"),
)
"""What may be secret by its form. Base64 that long is user data or a token."""
_IPV6_LENGTH = 45
_COLONS = re.compile(r"(?<![\w:])[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


class Redactor:
    """Takes what was learned to be secret, and what looks so, out of texts."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def learn(self, text: str, name: str) -> None:
        """Have `text` replaced by `<name>` wherever it stands."""
        if len(text) > 2:
            with self._lock:
                self._known[text] = f"<{name}>"

    def learn_answer(self, answer: Any) -> None:
        """Have the addresses and the user data of an answer of AWS's replaced."""
        for key, value in _strings(answer):
            if key in _SECRET_KEYS:
                self.learn(value, "user data")
            elif _ADDRESS_KEY.fullmatch(key):
                self.learn(value, "address")

    def redact(self, text: str) -> str:
        """Return `text` without what is secret."""
        with self._lock:
            known = sorted(self._known.items(), key=lambda item: len(item[0]), reverse=True)
        for secret, name in known:
            text = text.replace(secret, name)
        for pattern, name in _HIDDEN:
            text = pattern.sub(name, text)
        return _COLONS.sub(_without_ipv6, text)

    def answer_text(self, answer: Any) -> str:
        """Return an answer of AWS's as JSON; its addresses and its user data are known from now on."""
        self.learn_answer(answer)
        return json.dumps(answer, indent=1, default=str, ensure_ascii=False)


def write_bundle(folder: Path, bundle: Path, redactor: Redactor) -> None:
    """Pack the files below `folder` into the new archive `bundle`, redacted, their names too. Raises OSError."""
    with tarfile.open(bundle, "x:gz") as archive:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            content = redactor.redact(file.read_text(errors="replace")).encode()
            entry = tarfile.TarInfo(
                redactor.redact(f"{bundle.name.partition('.')[0]}/{file.relative_to(folder)}")
            )
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts of an answer, each with its key."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _strings(each, key if key in _SECRET_KEYS else str(name))
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, key)
    elif isinstance(value, str):
        yield key, value


def _without_ipv6(found: re.Match[str]) -> str:
    text = found[0].lstrip(".")
    for end in range(min(len(text), _IPV6_LENGTH), 1, -1):
        try:
            ipaddress.IPv6Address(text[:end])
        except ValueError:
            continue
        return f"<address>{_COLONS.sub(_without_ipv6, text[end:])}"
    return found[0]
