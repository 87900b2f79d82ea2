"""The instance's side: pull, run, measure, report, end."""

import sys

__version__ = "0.2.0"

if sys.platform == "win32":
    # Half of the next imports do not exist on Windows; a traceback would name the first missing one.
    sys.stderr.write(
        "bai: Windows is not supported; use the Windows Subsystem for Linux (WSL 2), a Mac or a Linux machine\n"
    )
    raise SystemExit(2)
