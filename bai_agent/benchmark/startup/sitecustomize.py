"""Runs at the start of every Python process of a benchmark, through PYTHONPATH, so that the log shows the
process's output while the process runs.

With BAI_BUFFERING=line, Python makes one write for each line. PYTHONUNBUFFERED alone makes two writes, one
for the text and one for the newline, so another process's text can come between them. With
BAI_BUFFERING=timed, Python flushes ten times a second, so SIGTERM loses at most the output of the last tenth
of a second. The `sitecustomize` of the Python itself runs after this module.

In a job with the strategy adaptdl, this module makes AdaptDL, whose last version is of 2022, work with
current versions of numpy, semver and setuptools. It also lets AdaptDL use a port that bai's agent has
reserved.

Type annotations have the syntax of Python 3.6, because the benchmark's Python may be older than the agent's.
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
    import atexit
    import threading  # imported only for a timer: this runs in every Python process of the benchmark

    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]

    def flush() -> None:
        for stream in streams:
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # the disk is full, or the benchmark closed it: its own write will report that

    class Flusher:
        """The flushing thread. The thread stops at a fork, because the child process would inherit the
        thread's locks, and because Python 3.12 warns about threads at a fork. The thread also stops before
        the interpreter ends, because an interpreter aborts if a thread is still writing to stdout."""

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
    atexit.register(flusher.stop)
    if hasattr(os, "register_at_fork"):  # missing in Python 3.6
        os.register_at_fork(before=flusher.stop, after_in_parent=flusher.start, after_in_child=flusher.start)


class _AdaptDlFinder:
    """An import finder that finds no module, but restores the names and the port that AdaptDL needs when
    `import adaptdl` calls the finder."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "adaptdl":
            sys.meta_path[:] = [each for each in sys.meta_path if each is not _AdaptDlFinder]
            _restore_for_adaptdl()
            _share_master_port()


def _restore_for_adaptdl() -> None:
    """Restore the names in numpy, semver and setuptools that AdaptDL uses and that current versions have
    removed."""
    from importlib import import_module
    from types import ModuleType, SimpleNamespace

    try:
        numpy, version_info = import_module("numpy"), import_module("semver").VersionInfo
    except ImportError:
        return  # the import itself reports what is missing
    if not hasattr(numpy, "int"):
        vars(numpy)["int"] = int
    if not hasattr(version_info, "isvalid"):
        version_info.isvalid = staticmethod(lambda text: bool(text) and version_info.is_valid(text))
    try:
        import_module("pkg_resources")
    except ImportError:
        from importlib.metadata import version

        module = ModuleType("pkg_resources")
        vars(module)["get_distribution"] = lambda name: SimpleNamespace(version=version(name))
        sys.modules["pkg_resources"] = module


def _share_master_port() -> None:
    """Let AdaptDL's replica of rank 0 bind the port that bai's agent reserves for this replica. The agent
    reserves the port, but does not listen on it."""
    import socket

    port = os.environ.get("ADAPTDL_MASTER_PORT")
    bind = vars(socket.socket).get("bind", socket.socket.bind)

    def share(self, address):  # type: ignore[no-untyped-def]
        if isinstance(address, tuple) and str(address[1]) == port:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return bind(self, address)

    socket.socket.bind = share  # type: ignore[method-assign]


def _run_the_next() -> None:
    """Run the next module `sitecustomize` on the path, as if this module did not exist."""
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
if "ADAPTDL_SUPERVISOR_URL" in os.environ:
    sys.meta_path.insert(0, _AdaptDlFinder)
_run_the_next()
