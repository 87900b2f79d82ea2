from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bai_agent.job.record_types import WarningEvent
from bai_agent.job.run_directory import read_json, write_json
from bai_agent.runtime.event_log import EventLog, read_events

# A file that may not grow beyond a limit takes a part of a line, as a disk does that runs full within it.
HALF_WRITTEN = """
import resource, sys
from pathlib import Path
from bai_agent.runtime.event_log import EventLog
from bai_agent.job.record_types import WarningEvent

path = Path(sys.argv[1])
events = EventLog(path)
events.add(WarningEvent(message="first"))
endless = resource.RLIM_INFINITY
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, endless))
try:
    events.add(WarningEvent(message="second"))
except OSError:
    print("no room")
resource.setrlimit(resource.RLIMIT_FSIZE, (endless, endless))
events.add(WarningEvent(message="third"))
"""


def test_an_event_cut_off_by_a_full_disk_does_not_corrupt_the_next(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    child = subprocess.run(
        [sys.executable, "-c", HALF_WRITTEN, path], capture_output=True, text=True, timeout=60, check=True
    )

    assert child.stdout == "no room\n"
    assert [json.loads(line)["message"] for line in path.read_bytes().splitlines()] == ["first", "third"]


def test_a_file_name_that_is_not_utf8_can_be_printed(tmp_path: Path) -> None:
    name = b"model-\xff.pt".decode(errors="surrogateescape")
    events = EventLog(tmp_path / "events.jsonl")

    events.add(WarningEvent(message=f"{name} was not kept"))
    write_json(tmp_path / "result.json", {"warnings": [name]})

    for found in (*read_events(tmp_path / "events.jsonl"), *events.seen):
        assert isinstance(found, WarningEvent)
        assert found.message.encode() == b"model-?.pt was not kept"
    assert len(events.seen) == 1
    assert read_json(tmp_path / "result.json") == {"warnings": ["model-?.pt"]}
