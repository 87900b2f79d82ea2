"""How commands print results, messages and errors."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bai_agent.errors import BaiError, DescriptorError
from bai_agent.job.outcome import ExitCode
from bai_agent.job.run_directory import FULL
from executor.documents.text import plain_text, tell
from executor.errors import NotStartedError, PlanError, ScriptsError, UsageError

# `bai --help` loads this module, so modules that only one function needs are imported in it.
if TYPE_CHECKING:
    from bai_agent.job.record import JobRecord
    from executor.descriptor import Finding


def say(sentence: str) -> None:
    """Print a message to stderr."""
    print(f"bai: {plain_text(sentence)}", file=sys.stderr)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print the warnings of a descriptor to stderr."""
    if findings:
        from executor.descriptor import render_findings

        tell(render_findings(findings), end="", stream=sys.stderr)


def print_done(record: JobRecord, what: str, *, json_: bool) -> None:
    """Print a message about a job."""
    line = plain_text(f"{record.job_id}: {what}")
    print_result({"job_id": record.job_id, "message": what}, line, json_=json_)


def print_result(value: Mapping[str, Any], line: str, *, json_: bool) -> None:
    """Print a result as JSON, or as a line of text for the user."""
    if json_:
        print_json(value)
    else:
        tell(line, flush=True)


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=True, default=str))


NOBODY_READS = 128 + 13
"""Exit code if the reader of standard output closed it. The code is that of a process that SIGPIPE
terminated."""


def nobody_reads(error: OSError) -> bool:
    """Return whether `error` means that this program's output has no reader any more. A closed terminal gives
    EIO."""
    return error.errno in (errno.EPIPE, errno.EIO)


def write_error(error: OSError) -> str | None:
    """Return a sentence about the output file if `error` means that this program's output goes to a file that
    cannot grow any more. None for any other error."""
    if error.filename is None and error.errno in (*FULL, errno.EFBIG):
        return f"the output cannot be written: {error.strerror}"
    return None


def silence() -> None:
    """Discard what is still buffered for standard output. Python would otherwise try to write the buffered
    text at exit, and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def exit_code_of(error: BaiError) -> ExitCode:
    """Return the exit code with which an error ends a command."""
    # Imported here, so that `bai --help` does not wait for it.
    from executor.planning.request import FindingsError

    if isinstance(error, NotStartedError):
        return error.outcome.exit_code
    usage = (FindingsError, UsageError, DescriptorError, PlanError, ScriptsError)
    return ExitCode.USAGE if isinstance(error, usage) else ExitCode.OURS
