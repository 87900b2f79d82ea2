"""Runs at the start of every Python of a benchmark, through PYTHONPATH: makes what it prints appear while it runs.

BAI_BUFFERING=line: one write for each line. PYTHONUNBUFFERED alone makes two, the text's and the newline's, between
which another process's text gets into the line. timed: flushed ten times a second; SIGTERM costs at most what was
printed in the last tenth. After that the `sitecustomize` that would have run without us runs.

No annotations beyond Python 3.6's: the benchmark's Python may be older than the agent's.
"""

import os
import sys
from importlib.machinery import PathFinder

INTERVAL = 0.1


def _write_whole_lines() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, write_through=False)


def _flush_often() -> None:
    import threading  # only where a timer flushes: this runs in every Python process of the benchmark

    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]

    def flush() -> None:
        for stream in streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # the disk is full, or the benchmark closed it: its own write will tell it

    class Flusher:
        """The thread, which steps aside at a fork: it would hold locks in the child, and Python 3.12 warns of it."""

        def __init__(self) -> None:
            self.start()

        def start(self) -> None:
            self.stopped = threading.Event()
            self.thread = threading.Thread(target=self.run, name="bai-flush", daemon=True)
            try:
                self.thread.start()
            except RuntimeError:
                pass  # the interpreter is shutting down, or no thread is to be had; it flushes at its end

        def run(self) -> None:
            while not self.stopped.wait(INTERVAL):
                flush()

        def stop(self) -> None:
            self.stopped.set()
            if self.thread.is_alive():
                self.thread.join()
            flush()

    flusher = Flusher()
    if hasattr(os, "register_at_fork"):  # not in Python 3.6
        os.register_at_fork(before=flusher.stop, after_in_parent=flusher.start, after_in_child=flusher.start)


def _run_the_next() -> None:
    """Run the sitecustomize that stands behind ours on the path, as if ours were not there."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # only where there is another one

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_mode = os.environ.get("BAI_BUFFERING")
if _mode == "line":
    _write_whole_lines()
elif _mode == "timed":
    _flush_often()
_run_the_next()
