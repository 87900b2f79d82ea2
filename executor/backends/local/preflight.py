"""What would be missing if a benchmark ran on this machine now: warnings, as it may run elsewhere or later."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from executor.descriptor import Finding, Severity
from executor.descriptor.command_checks import is_script
from executor.planning.plan import sink_secrets
from executor.planning.request import JobRequest, unset_secrets

if TYPE_CHECKING:
    from executor.descriptor import Descriptor


def preflight(job_request: JobRequest, descriptor: Descriptor) -> list[Finding]:
    """Return warnings about secrets and programs that this machine does not have."""
    file = str(job_request.file)
    found = [
        Finding(
            file=file,
            path=path,
            problem=f"the environment variable {name} is not set here",
            fix=f"export {name} before `bai run`, which would refuse to start",
            severity=Severity.WARNING,
        )
        for path, name in unset_secrets(descriptor.env.secrets, sink_secrets(descriptor), os.environ)
    ]
    if (program := missing_program(descriptor)) is not None:
        found.append(
            Finding(
                file=file,
                path=("ml", "benchmark_code"),
                problem=f"no program {program} is on PATH here",
                fix="install it, correct its name, or write the path to it",
                severity=Severity.WARNING,
            )
        )
    return found


def missing_program(descriptor: Descriptor) -> str | None:
    """Return the program of the command if it is looked for on PATH and is not there; else None."""
    code = (descriptor.ml.benchmark_code if descriptor.ml else None) or ""
    try:
        words = [] if is_script(code) else shlex.split(code)
    except ValueError:  # has been reported
        return None
    if not words or "/" in words[0] or "$" in words[0] or words[0].startswith("~"):
        return None
    if descriptor.ml is not None and descriptor.ml.script is not None and descriptor.ml.script.requirements:
        # They may bring programs of their own.
        return None
    python = descriptor.env.python
    folders = [str(Path(python).expanduser().parent)] if python else []
    path = descriptor.env.vars.get("PATH", os.environ.get("PATH") or os.defpath)
    return None if shutil.which(words[0], path=os.pathsep.join([*folders, path])) else words[0]
