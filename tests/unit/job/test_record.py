"""A job's record in a store."""

from __future__ import annotations

from pathlib import Path

from handmade_job import HandmadeJob


def test_a_descriptor_is_parsed_again_only_after_a_change(tmp_path: Path) -> None:
    record = HandmadeJob(tmp_path).record
    first = record.exact_job()
    assert record.exact_job() is first

    file = tmp_path / record.job_id / "job.toml"
    file.write_text(f"{file.read_text()}\n[repeat]\nruns = 2\n")
    changed = record.exact_job()

    assert first.repeat is None
    assert changed.repeat is not None
