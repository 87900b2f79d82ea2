"""Redacts secrets in all text that leaves this process: logs, events, results, warnings, examples.

Files that the benchmark writes are stored unchanged. Text that bai quotes from such files is redacted.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_SHORTEST = 4
"""Minimum length of a text that is redacted as a secret. The redaction of shorter texts would hide ordinary words."""
_SHORTEST_LINE = 8
"""Minimum length of a single line of a secret that is redacted. Shorter lines of a secret, such as "}" and "EOF",
also occur in many other texts."""
_STARS = "***"
_KEY = 3
"""Number of first characters by which the forms of secrets are indexed. The shortest form of a secret has three
characters: two lines of one character each, and a line break."""
_IN_ADDRESSES = re.compile(
    r"(?P<user>(?<=://)[^/?#\s@\"'<>]+(?=@))"
    r"|(?P<key>[?&](?:X-(?:Amz|Goog)-(?:Signature|Security-Token|Credential)|AWSAccessKeyId|Signature|sig)=)[^&\s\"'<>]+"
)
"""Pattern of credentials in an address: a user or password before the host, or a signature in the query."""
_AS_TEXT = logging.Formatter()


class Redactor(logging.Filter):
    """Redacts known secrets in texts and, as a logging filter, in log messages."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()
        self._forms = _Forms()

    @property
    def known(self) -> list[str]:
        """The known secrets, unchanged."""
        return sorted(self._known)

    def know(self, secrets: Iterable[str]) -> None:
        """Redact `secrets` from now on. A secret is recognised as a whole, by its single lines, as JSON,
        percent-encoded, and in base64."""
        new = set(secrets) - self._known
        if not new:
            return
        self._known |= new
        self._forms.add(form for secret in new for form in _forms(secret))

    def redact(self, text: str) -> str:
        """Return `text` with every known secret, and every credential in an address, replaced by three stars."""
        text = self._forms.replaced(text)
        return _IN_ADDRESSES.sub(_without_credentials, text) if "=" in text or "@" in text else text

    def redact_all(self, value: Any, *, own_levels: int = 0) -> Any:
        """Return `value` with all texts redacted, including keys. The keys of the outermost `own_levels` tables stay
        unchanged.

        Keys of the outermost tables are bai's own names, which must not be redacted even if a secret is
        "metrics". Call `redact_all` before the value is encoded, because quotes and line ends of a secret
        look different after encoding.
        """
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, (list, tuple)):
            return [self.redact_all(each) for each in value]
        if isinstance(value, Mapping):
            return {
                key if own_levels > 0 else self.redact(str(key)): self.redact_all(
                    each, own_levels=own_levels - 1
                )
                for key, each in value.items()
            }
        return value

    def prepare(self, handler: logging.Handler) -> None:
        """Configure `handler` to write lines in the format of the agent's processes, with times in UTC and
        without secrets."""
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        handler.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # a mistake in a library's own logging call; `logging` ignores it too
            text = f"{record.msg} {record.args}"
        record.msg = self.redact(text)
        record.args = ()
        if record.exc_info:
            # A formatter uses a log record's `exc_text` if it is set.
            record.exc_text = self.redact(_AS_TEXT.formatException(record.exc_info))
        if record.stack_info:
            record.stack_info = self.redact(record.stack_info)
        return True


class _Forms:
    """The texts to replace, indexed by their first characters. An index is used because a regular expression of all
    lines of a key file would take seconds for a thousand lines."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[int, set[str]]] = {}
        """Forms of secrets, by first characters and length. Longer forms come first, because a longer form can contain
        a shorter form."""
        self._first = re.compile(r"(?!)")
        """Pattern that matches the first character of every form."""

    def add(self, forms: Iterable[str]) -> None:
        for form in forms:
            self._by_key.setdefault(form[:_KEY], {}).setdefault(len(form), set()).add(form)
        for key, by_length in self._by_key.items():
            self._by_key[key] = dict(sorted(by_length.items(), reverse=True))
        if self._by_key:
            self._first = re.compile(f"[{re.escape(''.join(sorted({key[0] for key in self._by_key})))}]")

    def replaced(self, text: str) -> str:
        pieces = []
        kept = at = 0
        while found := self._first.search(text, at):
            start = found.start()
            length = self._length_at(text, start)
            at = start + (length or 1)
            if length:
                pieces += [text[kept:start], _STARS]
                kept = at
        return "".join([*pieces, text[kept:]])

    def _length_at(self, text: str, start: int) -> int:
        """Return the length of the longest form that begins at `start`; 0 if no form begins there."""
        for length, forms in self._by_key.get(text[start : start + _KEY], {}).items():
            if text[start : start + length] in forms:
                return length
        return 0


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms in which `secret` may occur in a text."""
    import base64  # most processes know no secret

    for plain in _parts(secret):
        yield plain
        yield json.dumps(plain)[1:-1]
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield repr(plain)[1:-1]
        as_bytes = plain.encode("utf-8", "surrogateescape")
        yield quote(as_bytes)
        yield quote(as_bytes, safe="")
        yield quote_plus(as_bytes)
        yield base64.b64encode(as_bytes).decode("ascii")
        yield base64.urlsafe_b64encode(as_bytes).decode("ascii")


def _parts(secret: str) -> Iterator[str]:
    """Yield the secret, and each line of a secret of several lines, because a log or a list of last lines
    contains the lines separately."""
    stripped = secret.strip()
    lines = [line.strip() for line in stripped.splitlines()]
    if len(stripped) >= _SHORTEST:
        yield from {secret, stripped}
    if len(lines) > 1:
        yield "\n".join(lines)
        yield from (line for line in lines if len(line) >= _SHORTEST_LINE)


def _without_credentials(match: re.Match[str]) -> str:
    return f"{match['key'] or ''}{_STARS}"
