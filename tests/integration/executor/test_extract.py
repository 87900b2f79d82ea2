"""`bai extract`: records from the log that a job has kept, beside those of its run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cli_harness import CliResult
from handmade_job import HandmadeJob
from local_cli import LocalCli
from s3_gate import Gate

from bai_agent.job.descriptor.metric_tables import Metric
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import locked
from bai_agent.job.store import open_store
from executor.errors import UsageError
from executor.jobs.extract import NodeExtract, complete_sets, extract_again, stream_of

PROGRAM = """
for step in range(3000):
    print(f"step={step} loss={step}.5 accuracy={step}.25")
"""
FORGOTTEN = """\
[[output.metrics]]
name = "accuracy"
units = "ratio"
pattern = 'accuracy=(\\S+)'
"""


def numbers(answer: CliResult, name: str) -> list[float]:
    assert answer.code == 0, answer.stderr
    return [each["value"] for each in answer.objects if each["name"] == name]


def test_bai_extract_reads_output_that_was_not_searched_during_the_run(cli: LocalCli) -> None:
    file = cli.descriptor(PROGRAM, limits='extract_timeout = "0s"')
    assert cli.bai("run", file, "--job-id", "one").code == 0
    before = cli.rundir("one").metrics.read_bytes()

    answer = cli.bai("extract", "one")

    assert answer.code == 0, answer.stderr
    assert "bai metrics one --extract 1 shows the records" in answer.stdout
    extracted = cli.bai("metrics", "one", "--extract", "1", "--json")
    assert numbers(extracted, "loss") == [step + 0.5 for step in range(3000)]
    assert [each["seq"] for each in extracted.objects] == list(range(3000))
    assert all(each["late"] for each in extracted.objects)
    assert cli.rundir("one").metrics.read_bytes() == before


def test_bai_extract_adds_a_metric_from_another_descriptor(cli: LocalCli) -> None:
    file = cli.descriptor(PROGRAM)
    assert cli.bai("run", file, "--job-id", "one").code == 0
    text = file.read_text()
    other = cli.folder / "other.toml"
    other.write_text(text[: text.index("[[output.metrics]]")] + FORGOTTEN)

    made = cli.bai("extract", "one", "--descriptor", other, "--json")
    again = cli.bai("extract", "one", "--json")

    assert [each["number"] for each in (*made.objects, *again.objects)] == [1, 2]
    assert made.objects[0]["per_metric"] == {"accuracy": 3000}
    assert numbers(cli.bai("metrics", "one", "--extract", "1", "--json"), "accuracy")[-1] == 2999.25
    assert numbers(cli.bai("metrics", "one", "--extract", "last", "--json"), "loss")[-1] == 2999.5
    assert "ratio" in cli.bai("metrics", "one", "--extract", "1").stdout
    assert len(numbers(cli.bai("metrics", "one", "--json"), "accuracy")) == 0
    there = cli.folder / "there"
    assert cli.bai("fetch", "one", there).code == 0
    assert len((there / "nodes/0/extracts/1/metrics.jsonl").read_bytes().splitlines()) == 3000
    assert json.loads((there / "nodes/0/extracts/2/extracted.json").read_bytes())["records"] == 3000


def test_a_metric_with_the_jobs_own_label_is_refused(cli: LocalCli) -> None:
    assert cli.bai("run", cli.descriptor(PROGRAM), "--job-id", "one").code == 0
    metric = Metric(name="other", pattern=r"(?P<task_name>step)=(?P<value>\d+)")

    with pytest.raises(
        UsageError, match=r'^one: \[\[metrics\]\] 0 "other": the group "task_name" has the name'
    ):
        list(extract_again(cli.record("one"), [metric], on_progress=print))


def test_a_job_that_cannot_be_extracted_reports_the_reason(cli: LocalCli, tmp_path: Path) -> None:
    job = HandmadeJob(cli.store, "one")
    running = cli.bai("extract", "one")
    job.ends()
    silent = cli.bai("extract", "one")
    missing = cli.bai("metrics", "one", "--extract", "3")
    endless = cli.bai("metrics", "one", "--extract", "9" * 5000)

    for answer, told in (
        (running, "has not ended"),
        (silent, "has no log, because"),
        (missing, 'no complete set "3"'),
        (endless, 'no complete set "99'),
    ):
        assert (answer.code, told in answer.stderr) == (2, True), answer.stderr


def test_an_interrupted_extraction_is_not_shown_and_its_number_not_reused(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path / "store")
    job.prints("loss=1.5\n")
    job.ends()
    job.store.put(job.record.node().key("extracts/1/job.toml"), b"")

    (made,) = extract(job.record)

    assert made.number == 2
    assert complete_sets(job.record.node()) == [2]


def test_a_killed_extraction_is_removed_by_the_next_one(cli: LocalCli) -> None:
    assert cli.bai("run", cli.descriptor(PROGRAM), "--job-id", "one").code == 0
    folder = cli.store / "one"

    def scratch() -> set[str]:
        return {each.name for each in folder.iterdir() if each.name.startswith(".extract-")}

    def killed() -> str:
        before = scratch()
        bai = cli.start("extract", "one", stdout=None, stderr=None)
        while not (new := scratch() - before):
            assert bai.poll() is None
            time.sleep(0.005)
        bai.kill()
        bai.wait(60)
        return new.pop()

    first = killed()
    second = killed()
    assert first != second
    assert scratch() == {second}

    # One that is still at work keeps its folder. (What a killed one had started may hold the lock a little longer.)
    with locked(folder / second / "lock", wait_s=30):
        assert cli.bai("extract", "one").code == 0
        assert scratch() == {second}
    assert cli.bai("extract", "one").code == 0
    assert scratch() == set()


def test_a_log_in_a_bucket_is_extracted_into_the_bucket(gate: Gate, tmp_path: Path) -> None:
    here = HandmadeJob(tmp_path / "store")
    here.ends(metrics={"log_bytes": 40, "remaining_bytes": 0})
    there = JobRecord(open_store("s3://bucket/jobs"), here.record.job_id)
    for name in ("job.toml", "result.json"):
        there.store.put(there.key(name), here.store.get(here.record.key(name)))
    there.store.put(there.node().key("result.json"), here.store.get(here.record.key("result.json")))
    there.store.put(there.node().key(f"log/{0:020}"), b"loss=1.5\nlo")
    there.store.put(there.node().key(f"log/{11:020}"), b"ss=2.5\naccuracy=0.5")
    said: list[str] = []

    (made,) = extract(there, said=said)

    assert (made.summary["records"], made.summary["per_metric"]) == (3, {"loss": 2, "accuracy": 1})
    content = there.node().read(stream_of(made.number), 0)
    assert [json.loads(line)["value"] for line in content.splitlines()] == [1.5, 2.5, 0.5]
    assert said == ["node 0: of the 40 bytes that were printed, the last 30 are kept"]


def extract(record: JobRecord, *, said: list[str] | None = None) -> list[NodeExtract]:
    heard: Any = (said if said is not None else []).append
    return list(extract_again(record, None, on_progress=heard))
