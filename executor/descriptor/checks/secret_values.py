"""Recognises values that look like secrets. Texts for messages never contain the value."""

from __future__ import annotations

import math
import re
from collections import Counter

_KNOWN = (
    (re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"), "an AWS access key"),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), "a Hugging Face token"),
    (re.compile(r"\b(gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"), "a GitHub token"),
    (re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"), "a GitLab token"),
    (re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"), "a Slack token"),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{20,}"), "an API key"),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"), "a Google API key"),
    (re.compile(r"\b(npm_|pypi-)[A-Za-z0-9_-]{30,}"), "a package registry's token"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"), "a private key"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\."), "a JSON web token"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@$]+@"), "an address with a password in it"),
)
_NAME = re.compile(
    r"(^|_)(TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_KEY|SECRET_ACCESS_KEY|API_?KEY|PRIVATE_KEY|CREDENTIALS?)$",
    re.I,
)
_PLAIN = re.compile(r"|[\d.,_+-]+|true|false|yes|no|on|off|none|null|(/|~|\./).*|\$\([A-Za-z_]\w*\)", re.I)
"""Values that are not secrets although the name of the variable suggests a secret. Examples are numbers (MAX_TOKEN =
"512"), paths and references."""
_RUN = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{32,}={0,2}(?![A-Za-z0-9+/=])")
_RANDOM_BITS = 4.3
"""Minimum entropy of a random key (bits per character, computed from the text itself). 40 random base64
characters have 4.6 or more, words less than 4."""


def known_secret(text: str) -> str | None:
    """Return the kind of a secret in `text`, for example "an AWS access key"; None if no secret has a known form."""
    return next((kind for form, kind in _KNOWN if form.search(text)), None)


def looks_secret(name: str, value: object) -> str | None:
    """Return why the value of the variable `name` looks like a secret; None if the value looks harmless. The text is
    the end of a sentence "its value …"."""
    if not isinstance(value, str):
        return None
    kind = known_secret(value)
    if kind:
        return f"looks like {kind}"
    if _NAME.search(name) and not _PLAIN.fullmatch(value):
        return "belongs to a variable whose name suggests a secret"
    if any(_random(run) for run in _RUN.findall(value)):
        return "looks like a random key"
    return None


def secret_fix(name: str) -> str:
    """Return the advice for the variable `name`, whose value looks like a secret."""
    return f'put it into [env.secrets]: {name} = "env:{name}" takes it from the environment of the run'


def _random(text: str) -> bool:
    kinds = (str.islower, str.isupper, str.isdigit)
    # A path contains many slashes. A key contains few separators, and all three kinds of characters.
    if text.count("/") > 3 or not all(any(map(kind, text)) for kind in kinds):
        return False
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts) >= _RANDOM_BITS
