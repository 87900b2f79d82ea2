"""Runs the watcher as Lambda does, with the function's memory: one call, or many forked calls."""

from __future__ import annotations

import importlib
import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import Any


class _Context:
    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def main() -> None:
    """Call the handler with the event on stdin. "null" only imports the handler.

    Arguments: folder of the unpacked archive, name of the handler, bytes of memory, and the number of a socket if calls are forked.
    """
    code, name, memory, *asked = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    # As Lambda does.
    logging.basicConfig()
    sys.path[:0] = [code]
    begun = time.process_time()
    module, _, function = name.rpartition(".")
    handler = getattr(importlib.import_module(module), function)
    imported, cold = sorted(sys.modules), time.process_time() - begun
    for number in asked:
        _fork(int(number))
    event = json.loads(sys.stdin.read())
    answer = handler(event, _Context()) if event is not None else None
    # getrusage may report the peak of the parent.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    print(json.dumps({"answer": answer, "imported": imported, "cold_s": cold, "peak": peak}))


def _fork(number: int) -> None:
    """Return in each forked process. Modules for a call are loaded before, ours only from the archive."""
    import gc
    import socket

    sys.path.append(str(Path(__file__).parent))
    from preloaded_bai import fork_when_asked
    from service_models import share_service_models

    sys.path.pop()
    import boto3

    share_service_models()
    session: Any = boto3.Session("key", "secret", region_name="eu-central-1")
    for service in ("ec2", "pricing", "sts"):
        session.client(service)
    importlib.import_module("obstore.store")
    gc.collect()
    gc.freeze()
    fork_when_asked(socket.socket(fileno=number))


if __name__ == "__main__":
    main()
