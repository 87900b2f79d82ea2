"""Reads the lines about the boot that the guardian and its boothook write to an instance's console.

The guardian writes `BAI <seconds> <step>` for each step, and `BAI-END <reason> <detail>` as its last line.
EC2 returns the last 64 KiB of a console, truncated anywhere, with the output of firmware, kernel, cloud-init
and distribution: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
"""

from __future__ import annotations

import re

from bai_agent.light_dataclass import dataclass, field

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
    """One step of a boot, with its time since the guardian's start (seconds)."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Console:
    """The guardian's lines on a console."""

    steps: tuple[Step, ...] = ()
    end: str | None = None
    """Reason in the guardian's last line, such as "done" or "no-python"; None if the guardian has not written
    its last line yet."""
    detail: str = ""
    others_only: bool = field(default=False, compare=False)
    """Whether the console has lines, but no line that the guardian or its boothook can have written."""
    ended_without_us: str = field(default="", compare=False)
    """Line that proves that the boot finished without running bai's user data; empty if there is no such
    line."""
    last_line: str = field(default="", compare=False)
    """Last line of the console; empty if the console is empty."""

    @property
    def last_step(self) -> str | None:
        return self.steps[-1].text if self.steps else None


def read_console(content: str) -> Console:
    """Return the lines of the guardian and its boothook in a console's output. All other output is ignored,
    including binary data."""
    steps: list[Step] = []
    end, detail = None, ""
    lines = [_ESCAPES.sub("", line).strip() for line in re.split(r"[\r\n]+", content)]
    for found in filter(None, map(_LINE.match, lines)):
        if found["end"] == "terminated" and end is not None:
            # After the guardian's last line the machine powers off, which also terminates the guardian.
            continue
        if found["end"] is not None:
            end, detail = _printable(found["end"]), _printable(found["detail"] or "")
        else:
            steps.append(Step(float(found["seconds"]), _printable(found["step"])))
    written = list(filter(None, map(_printable, lines)))
    # A line may be garbled if two processes write to the console at the same time. So "BAI" anywhere in the
    # output is enough to assume that the guardian or its boothook has run.
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
    """Return the line that proves that the boot is over, for a console without the guardian's lines; empty if
    there is no such line.

    The boothook writes to /dev/console in cloud-init's network stage, so the boothook's lines would come before
    both of the following lines:

    - cloud-init's last message, which cloud-init also writes to /dev/console:
      https://docs.cloud-init.io/en/latest/reference/modules.html#final-message
    - the login prompt, if cloud-init has written nothing. systemd starts a getty after
      systemd-user-sessions.service (units/serial-getty@.service.in of systemd). That service starts after
      cloud-init's network stage (systemd/cloud-init-network.service.tmpl of cloud-init; before version 24.3,
      cloud-init.service.tmpl). The login prompt is written to the serial port, and /dev/console is the device
      of the kernel's last `console=`: https://docs.kernel.org/admin-guide/serial-console.html

    Only a console with the kernel's first lines is conclusive, because in any other console the guardian's
    lines may have been overwritten.
    """
    if not any("Linux version " in line for line in lines):
        return ""
    if ended := next(filter(_CLOUD_INIT_ENDED.search, lines), ""):
        return ended
    if any("cloud-init" in line.lower() for line in lines) or not _is_serial(lines):
        return ""
    return next(filter(_LOGIN.match, lines), "")


def _is_serial(lines: list[str]) -> bool:
    """Return whether /dev/console is a serial port, according to the kernel's command line."""
    consoles = [each for line in lines if "ommand line: " in line for each in _CONSOLES.findall(line)]
    return bool(consoles) and consoles[-1].startswith(_SERIAL)


def _printable(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:_LONGEST].strip()
