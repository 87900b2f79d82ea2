"""What an instance's console says about its boot: the lines that the guardian and its boothook write there.

`BAI <seconds> <step>` for each step, `BAI-END <reason> <detail>` as the last word. A console is 64 KiB of whatever
firmware, kernel, cloud-init and distribution print, cut anywhere:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]?")
_LINE = re.compile(
    r"(?:\[ *\d+\.\d+\] )?BAI(?:-END (?P<end>\S+)(?: (?P<detail>.*))?| (?P<seconds>\d+(?:\.\d+)?) (?P<step>.+))"
)
_LONGEST = 300
_CLOUD_INIT_ENDED = re.compile(r"Cloud-init v\. \S+ finished at ")
_LOGIN = re.compile(r"(?!Last )[\w.-]+ login:(?: |$)")
_CONSOLES = re.compile(r"\bconsole=(\S+)")
_SERIAL = ("ttyS", "ttyAMA", "hvc")


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
    others_only: bool = field(default=False, compare=False)
    """Something is written there, and nothing of it can be ours."""
    ended_without_us: str = field(default="", compare=False)
    """The line that proves that the boot is over and never ran our user data; empty where no line does."""
    last_line: str = field(default="", compare=False)
    """The last line of anybody; empty where the console is."""

    @property
    def last_step(self) -> str | None:
        return self.steps[-1].text if self.steps else None


def read_console(content: str) -> Console:
    """Return what is ours in a console's output; anything else in it is passed over, binary garbage included."""
    steps: list[Step] = []
    end, detail = None, ""
    lines = [_ESCAPES.sub("", line).strip() for line in re.split(r"[\r\n]+", content)]
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        if found["end"] is not None:
            end, detail = _printable(found["end"]), _printable(found["detail"] or "")
        else:
            steps.append(Step(float(found["seconds"]), _printable(found["step"])))
    written = [text for line in lines if (text := _printable(line))]
    # Two that write at once may spoil a line of ours; its first word is enough to leave the machine alone.
    others_only = bool(written) and "BAI" not in content
    return Console(
        tuple(steps),
        end,
        detail,
        others_only=others_only,
        ended_without_us=_end_of_boot(written) if others_only else "",
        last_line=written[-1] if written else "",
    )


def _end_of_boot(lines: list[str]) -> str:
    """Return the line of a console without a word of ours that proves that the boot is over; empty where none does.

    The boothook writes to /dev/console in cloud-init's network stage, so its words would come before both:

    - cloud-init's last message, which goes to /dev/console too:
      https://docs.cloud-init.io/en/latest/reference/modules.html#final-message
    - the prompt for a login, where cloud-init has written nothing. systemd starts a getty after systemd-user-sessions.service,
      cloud-init's network stage comes before that (systemd/cloud-init-network.service.tmpl, and cloud-init.service.tmpl before
      24.3, of cloud-init; units/serial-getty@.service.in of systemd). The prompt is on the serial port, and /dev/console is
      what the kernel's last `console=` names: https://docs.kernel.org/admin-guide/serial-console.html

    Only of a console that still has the kernel's first lines: in any other one our words may have been pushed out.
    """
    if not any("Linux version " in line for line in lines):
        return ""
    for line in lines:
        if _CLOUD_INIT_ENDED.search(line):
            return line
    if any("cloud-init" in line.lower() for line in lines):
        return ""
    parameters = [each for line in lines if "ommand line: " in line for each in _CONSOLES.findall(line)]
    if not parameters or not parameters[-1].startswith(_SERIAL):
        return ""
    return next((line for line in lines if _LOGIN.match(line)), "")


def _printable(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:_LONGEST].strip()
