from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bai_agent.job.events import EventLog, read_events
from bai_agent.job.run_directory import read_json, write_json

# A file that may not grow beyond a limit takes a part of a line, as a disk does that runs full within it.
HALF_WRITTEN = """
import resource, sys
from pathlib import Path
from bai_agent.job.events import EventLog

path = Path(sys.argv[1])
events = EventLog(path)
events.add("warning", message="first")
endless = resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, endless))
try:
    events.add("warning", message="second")
except OSError:
    print("no room")
resource.setrlimit(resource.RLIMIT_FSIZE, (endless, endless))
events.add("warning", message="third")
"""


def test_an_event_that_did_not_fit_onto_the_disk_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    child = subprocess.run(
        [sys.executable, "-c", HALF_WRITTEN, path], capture_output=True, text=True, timeout=60, check=True
    )

    assert child.stdout == "no room\n"
    assert [json.loads(line)["message"] for line in path.read_bytes().splitlines()] == ["first", "third"]


def test_a_files_name_that_is_no_utf8_can_be_told(tmp_path: Path) -> None:
    name = b"model-\xff.pt".decode(errors="surrogateescape")
    events = EventLog(tmp_path / "events.jsonl")

    events.add("warning", message=f"{name} was not kept")
    write_json(tmp_path / "result.json", {"warnings": [name]})

    assert [event["message"] for event in read_events(tmp_path / "events.jsonl")] == [
        "model-?.pt was not kept"
    ]
    assert events.seen[-1]["message"].encode() == b"model-?.pt was not kept"
    assert read_json(tmp_path / "result.json") == {"warnings": ["model-?.pt"]}
