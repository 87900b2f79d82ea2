"""What a run's benchmark prints is in the file that its descriptor or the configuration names."""

from __future__ import annotations

import json
from pathlib import Path

from agent_runs import events_of
from local_cli import local_cli


def test_the_log_lines_file_has_all_output_when_a_run_has_ended(tmp_path: Path) -> None:
    cli = local_cli(tmp_path)
    file = tmp_path / "logs" / "benchmark.jsonl"
    descriptor = cli.descriptor("print('loss=0.5\\nend')", more=f'[log_lines]\npath = "{file}"')

    done = cli.bai("run", descriptor, "--job-id", "one")

    assert done.code == 0, done.stdout + done.stderr
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["log"] for each in entries] == ["loss=0.5", "end"]
    assert {each["kubernetes"]["labels"]["action-id"] for each in entries} == {"one"}
    (told,) = (
        each
        for each in events_of(cli.rundir("one").path)
        if each["type"] == "delivery" and each["sink"] == "the log file"
    )
    assert (told["delivered"], told["undelivered"]) == (2, 0)
