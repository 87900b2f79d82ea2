"""The extractor's process: `python -m bai_agent.metrics DIR`, started by the agent (see `bai_agent/run/extractor.py`)."""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

from bai_agent.errors import BaiError
from bai_agent.job.descriptor_file import read_job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir, locked
from bai_agent.metrics.checkpoint import read_checkpoint
from bai_agent.metrics.order import BLAME, CAREFUL, LEAVE_REST, NO_QUOTES, SECRETS
from bai_agent.metrics.process import Extractor
from bai_agent.metrics.watchdog import blame

log = logging.getLogger("bai_agent.metrics")

_PR_SET_PDEATHSIG = 1
_LOCK_SECONDS = 5.0
"""For a predecessor that is just dying."""


def main() -> int:
    """Extract until the run's end, or until LEAVE_REST. Exit code 0: `extracted.json` is written."""
    parser = argparse.ArgumentParser(prog="bai_agent.metrics", description=__doc__)
    parser.add_argument("dir", type=Path, help="the run directory")
    parser.add_argument("--parent", type=int, help="end when this process, our parent, does")
    parser.add_argument(CAREFUL, action="store_true", help="note each search, and time it by itself")
    parser.add_argument(BLAME, action="store_true", help="switch off the search that the last process was at")
    parser.add_argument(
        SECRETS, action="store_true", help="standard input: a JSON list of what is not to be quoted"
    )
    parser.add_argument(NO_QUOTES, action="store_true", help="quote nothing that the benchmark printed")
    arguments = parser.parse_args()
    redactor = Redactor()
    if arguments.secrets:
        redactor.know(json.load(sys.stdin))
    _log_to_stderr(redactor)
    if arguments.parent is not None and not _die_with(arguments.parent):
        return 1
    rundir = RunDir(arguments.dir)
    try:
        with locked(rundir.extractor_lock, wait_s=_LOCK_SECONDS):
            if rundir.extracted.exists():
                return 0
            # The agent put it there after it had read it.
            job = read_job(rundir.job, checked=True)
            if arguments.blame:
                known = read_checkpoint(
                    rundir.extractor_offset, metrics=len(job.metrics), metrics_file=rundir.metrics
                )
                places = known.logs if known is not None else {}
                found = blame(rundir.extractor_search, rundir.extractor_disabled, places=places)
                log.warning("switched off: %s", found)
            # Each block makes thousands of short-lived objects, none in a cycle: to look for cycles often is in vain.
            gc.freeze()
            gc.set_threshold(100_000)
            quote = _hide if arguments.no_quotes else redactor.redact
            work = Extractor(rundir, job, careful=arguments.careful, quote=quote)
            signal.signal(LEAVE_REST, lambda number, frame: work.leave_rest())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {LEAVE_REST})
            work.run()
    except BaiError as error:
        log.error("%s", error)  # noqa: TRY400 - foreseen: the sentence says it all
        return 1
    return 0


def _die_with(parent: int) -> bool:
    """Ask the kernel to kill this process when `parent` dies; return False where it has died already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent


def _hide(_: str) -> str:
    return "(not shown: it may hold a secret)"


def _log_to_stderr(redactor: Redactor) -> None:
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    handler.addFilter(redactor)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
