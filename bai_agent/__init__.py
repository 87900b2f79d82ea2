"""The agent runs on the benchmark's machine. The agent pulls the inputs, runs the benchmark, measures, and
reports."""

import sys

__version__ = "0.2.0"

if sys.platform == "win32":
    # Half of the following imports do not exist on Windows, and a traceback would only name the first missing
    # module.
    sys.stderr.write(
        "bai: Windows is not supported; use the Windows Subsystem for Linux (WSL 2), a Mac or a Linux machine\n"
    )
    raise SystemExit(2)
