"""Which of the agent's packages this Python lacks: it runs without some of them, slower or with less, and says so."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_PARTS = {
    "obstore": "nothing can be read from or written to S3",
    "ahocorasick_rs": "metrics are extracted the slow way",
    "psutil": "the machine is not measured",
    "kafka": "no metrics are sent to Kafka",
    "zstandard": "no .zst archive can be unpacked",
}


def missing_dependencies() -> list[str]:
    """Return a sentence for each package that cannot be imported."""
    wanted = [each for each in _PARTS if each != "zstandard" or sys.version_info < (3, 14)]
    python = ".".join(map(str, sys.version_info[:2]))
    return [
        f"there is no {name} for this Python ({python}): {_PARTS[name]}"
        for name in wanted
        if find_spec(name) is None
    ]
