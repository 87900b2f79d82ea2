"""What an agent says to its starter."""

from __future__ import annotations

import os
from pathlib import Path

from bai_agent.job.agent_start import say_ready, say_refused
from bai_agent.job.outcome import ExitCode


def test_an_error_reported_after_the_start_corrupts_no_file_with_the_same_descriptor(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    say_ready(writer)

    with (tmp_path / "events.jsonl").open("wb") as opened_later:
        say_refused(writer, ExitCode.OURS, "an error of its own")

        assert opened_later.fileno() != writer
    assert (os.read(reader, 100), os.read(reader, 100)) == (b"ready", b""), (
        "the starter does not wait for more"
    )
    os.close(reader)
    assert (tmp_path / "events.jsonl").read_bytes() == b""
    os.close(writer)
