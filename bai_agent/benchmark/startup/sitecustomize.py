"""Runs at the start of every Python of a benchmark, through PYTHONPATH, and makes its output appear while it runs.

BAI_BUFFERING=line: one write for each line. PYTHONUNBUFFERED alone makes two writes, of the text and of the
newline, between which another process's text can come. timed: a flush ten times a second, so SIGTERM loses at
most the last tenth. Then the `sitecustomize` of the Python itself runs.

Annotations as in Python 3.6: the benchmark's Python may be older than the agent's.
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
    import threading  # imported only for a timer: this runs in every Python process of the benchmark

    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]

    def flush() -> None:
        for stream in streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # the disk is full, or the benchmark closed it: its own write will report that

    class Flusher:
        """The flushing thread. The timer stops at a fork, because the child would inherit its locks, and
        Python 3.12 warns about it."""

        def __init__(self) -> None:
            self.start()

        def start(self) -> None:
            self.stopped = threading.Event()
            self.thread = threading.Thread(target=self.run, name="bai-flush", daemon=True)
            try:
                self.thread.start()
            except RuntimeError:
                pass  # the interpreter shuts down, or a thread cannot start; output is flushed at the end

        def run(self) -> None:
            while not self.stopped.wait(INTERVAL):
                flush()

        def stop(self) -> None:
            self.stopped.set()
            if self.thread.is_alive():
                self.thread.join()
            flush()

    flusher = Flusher()
    if hasattr(os, "register_at_fork"):  # missing in Python 3.6
        os.register_at_fork(before=flusher.stop, after_in_parent=flusher.start, after_in_child=flusher.start)


def _run_the_next() -> None:
    """Run the next sitecustomize on the path, as if ours did not exist."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec  # imported only if there is another one

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_mode = os.environ.get("BAI_BUFFERING")
if _mode == "line":
    _write_whole_lines()
elif _mode == "timed":
    _flush_often()
_run_the_next()
