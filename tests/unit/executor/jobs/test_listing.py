"""Which jobs a list contains, and what it shows of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from handmade_job import START, HandmadeJob
from rich.console import Console

from bai_agent.job.store.directory import DirectoryStore
from bai_agent.job.toml import read_toml_text
from executor.backends import Backends
from executor.documents.listing import jobs_table
from executor.documents.screen import Screen
from executor.jobs.job_list import EVERY_JOB, JobFilter, ListedJob, listed

MINUTE = 60_000


def jobs(folder: Path, only: JobFilter = EVERY_JOB, *, count: int | None = 30) -> list[str]:
    return [each.status.job_id for each in found(folder, only, count=count)]


def found(folder: Path, only: JobFilter = EVERY_JOB, *, count: int | None = 30) -> list[ListedJob]:
    return listed([DirectoryStore(folder)], count, Backends(), only=only).jobs


def change(job: HandmadeJob, /, **tables: dict[str, Any]) -> None:
    """Change tables of a job's descriptor."""

    path = Path(job.store.folder) / job.record.key("job.toml")
    table = read_toml_text(path.read_text())
    for name, values in tables.items():
        table[name] = {**table.get(name, {}), **values}
    path.write_bytes(tomli_w.dumps(table).encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four jobs, a minute apart."""
    for number in range(4):
        job = HandmadeJob(tmp_path, f"job-{number}", started=START + number * MINUTE)
        change(job, job={"labels": {"team": "vision" if number % 2 else "speech", "run": str(number)}})
        if number == 1:
            job.ends("failed", 1)
        elif number < 3:
            job.ends()
    return tmp_path


def test_all_given_labels_must_match(folder: Path) -> None:
    assert jobs(folder, JobFilter(labels={"team": "vision"})) == ["job-1", "job-3"]
    assert jobs(folder, JobFilter(labels={"team": "vision", "run": "3"})) == ["job-3"]
    assert jobs(folder, JobFilter(labels={"tea": "vision"})) == []


def test_list_accepts_a_status_or_outcome_in_any_letter_case(folder: Path) -> None:
    assert jobs(folder, JobFilter(statuses=["failed"])) == ["job-1"]
    assert jobs(folder, JobFilter(statuses=["Succeeded", "died"])) == ["job-0", "job-2", "job-3"]


def test_since_filters_by_the_jobs_start(folder: Path) -> None:
    assert jobs(folder, JobFilter(since=START + 2 * MINUTE)) == ["job-2", "job-3"]


def test_the_limit_applies_to_the_newest_jobs_that_match(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor.jobs.job_list._PORTION", 1)
    assert jobs(folder, JobFilter(labels={"team": "speech"}), count=1) == ["job-2"]
    assert jobs(folder, count=2) == ["job-2", "job-3"]


def test_headlines_and_parameters_are_in_the_list_and_in_json(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    change(job, benchmark={"argv": ["python3", "train.py", "--lr", "0.1"]}, set={"ml.args": "--lr 0.1"})
    job.ends(metrics={"headlines": {"loss": {"value": 0.25, "units": "nats"}}})
    (row,) = found(tmp_path)
    table = json.loads(json.dumps(row.as_table()))
    assert (table["headlines"]["loss"]["value"], table["headlines"]["loss"]["units"]) == (0.25, "nats")
    assert (table["arguments"], table["set"]) == (["train.py", "--lr", "0.1"], {"ml.args": "--lr 0.1"})
    assert table["dollars"] is None


def test_a_job_with_arms_lists_their_names_as_parameters(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    arms = [{"name": f"sleep-{each}", "argv": ["sleep", each]} for each in ("1", "2")]
    change(job, benchmark={"argv": ["sleep", "1"]}, repeat={"runs": 2, "seed": 1, "arms": arms})
    job.ends()

    (row,) = found(tmp_path)

    assert (row.as_table()["arms"], row.as_table()["arguments"]) == (["sleep-1", "sleep-2"], [])
    shown = io.StringIO()
    Screen(width=200).show(Console(width=200, file=shown), [jobs_table([row])])
    assert "sleep-1, sleep-2" in shown.getvalue()


def test_a_broken_descriptor_hides_no_other_job(folder: Path) -> None:
    (folder / "job-1/job.toml").write_text("[")
    assert jobs(folder) == ["job-0", "job-1", "job-2", "job-3"]
    assert jobs(folder, JobFilter(labels={"team": "vision"})) == ["job-3"]
