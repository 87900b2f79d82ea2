"""What an instance's console says about its boot: the lines that the guardian and its boothook write there.

`BAI <seconds> <step>` for each step, `BAI-END <reason> <detail>` as the last word. A console is 64 KiB of whatever
firmware, kernel, cloud-init and distribution print, cut anywhere:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]?")
_LINE = re.compile(
    r"(?:\[ *\d+\.\d+\] )?BAI(?:-END (?P<end>\S+)(?: (?P<detail>.*))?| (?P<seconds>\d+(?:\.\d+)?) (?P<step>.+))"
)
_LONGEST = 300


@dataclass(frozen=True)
class Step:
    """One step of a boot, and when it was reached, in seconds since the guardian's start."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Console:
    """What the guardian said so far."""

    steps: tuple[Step, ...] = ()
    end: str | None = None
    """The reason of its last word, such as "done" or "no-python"; None while it has not said it."""
    detail: str = ""

    @property
    def last_step(self) -> str | None:
        return self.steps[-1].text if self.steps else None


def read_console(content: str) -> Console:
    """Return what is ours in a console's output; anything else in it is passed over, binary garbage included."""
    steps: list[Step] = []
    end, detail = None, ""
    for line in re.split(r"[\r\n]+", content):
        found = _LINE.match(_ESCAPES.sub("", line).strip())
        if found is None:
            continue
        if found["end"] is not None:
            end, detail = _printable(found["end"]), _printable(found["detail"] or "")
        else:
            steps.append(Step(float(found["seconds"]), _printable(found["step"])))
    return Console(tuple(steps), end, detail)


def _printable(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:_LONGEST].strip()
