"""The extractor's work on one run directory, in this process."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from extraction_runs import (
    EXITED,
    entries,
    extract,
    extract_after_any_prefix,
    extract_until_killed,
    extracted,
    finish_run,
    make_run,
    records,
)

from bai_agent.decode import checked
from bai_agent.job.descriptor_file import read_job
from bai_agent.job.job_result import missing_sentence
from bai_agent.job.record_types import ExtractionSummary
from bai_agent.job.run_directory import write_all
from bai_agent.metrics import process
from bai_agent.metrics import records as records_module
from bai_agent.metrics.process import Extractor

LOSS = ("loss", r"loss=(\S+)")
ACCURACY = ("accuracy", r"acc=([\d.]+)")
OUTPUT = (
    b"loss=1 acc=0.5\nnothing\r\n\x1b[31mloss\x1b[0m=0.5 loss=0.25 acc=.75\rloss=nan\n\nacc=0.875 loss=1e-3"
)
EMITTED = b'{"a": 1, "b": 2.5}\nrubbish\n{"c": "text", "d": 4}\n{"half": {"e": 5}\n{"f": 6}'


def test_a_finished_run_is_extracted_including_a_last_line_without_newline(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS, ACCURACY], output=OUTPUT, emitted=EMITTED)

    extract(rundir)

    found = entries(rundir)
    assert [(each[5], each[6]) for each in found["log"]] == [
        ("loss", 1),
        ("accuracy", 0.5),
        ("loss", 0.5),
        ("loss", 0.25),
        ("accuracy", 0.75),
        ("loss", 0.001),
        ("accuracy", 0.875),
    ]
    assert [(each[2], each[3], each[5], each[6]) for each in found["emit"]] == [
        (0, 0, "a", 1),
        (0, 1, "b", 2.5),
        (27, 1, "d", 4),
        (49, 0, "e", 5),
        (67, 0, "f", 6),
    ]
    assert {each[5]: each[6] for each in found["run"]} == {
        f"bai_run_{key}": value for key, value in EXITED.items() if key != "code"
    }
    last = extracted(rundir)
    assert last["records"] == len(records(rundir)) == 18
    assert last["lines"] == 5
    assert last["log_bytes"] == len(OUTPUT)
    assert last["per_metric"] == {"loss": 4, "accuracy": 3, "a": 1, "b": 1, "d": 1, "e": 1, "f": 1}
    assert last["not_numbers"] == {"loss": 1, "c": 1}
    assert last["emit_bad_lines"] == 2
    assert last["lost_bytes"] == 0
    assert any('"nan"' in sentence for sentence in last["warnings"])


def test_an_emitted_lone_surrogate_does_not_stop_the_extraction(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [], output=b"", emitted=b'{"a": "\\ud800"}\n{"b": "\xff"}\n{"c": 1}\n')

    extract(rundir)

    last = extracted(rundir)
    assert last["not_numbers"] == {"a": 1, "b": 1}
    assert last["per_metric"] == {"c": 1}
    assert sum('the first was "?"' in sentence for sentence in last["warnings"]) == 2


def test_a_record_is_complete_and_has_its_reading_time(tmp_path: Path) -> None:
    rundir = make_run(
        tmp_path, [("näme", r"step (?P<step>\d+) (?P<value>\d+)")], output=b"step 3 7\n", units='"%"'
    )

    Extractor(rundir, read_job(rundir.job), sleep=lambda _: None, now=lambda: 1234).run()

    assert records(rundir)[0] == {
        "seq": 0,
        "src": "log",
        "off": 0,
        "i": 0,
        "k": 0,
        "name": "näme",
        "value": 7,
        "units": '"%"',
        "timestamp": 1234,
        "step": 3,
    }


@pytest.mark.slow
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_restarting_after_any_prefix_gives_the_same_records(tmp_path: Path, with_checkpoint: bool) -> None:
    # given an undisturbed run
    output, emitted = b"loss=1 loss=2\nloss=x\nloss=3", b'{"a": 1, "b": 2.5}\n'
    whole = make_run(tmp_path, [LOSS], output=output, emitted=emitted)
    extract(whole)
    expected, last = entries(whole), extracted(whole)

    # when the file ends at any byte of it
    for _ in extract_after_any_prefix(whole, with_checkpoint=with_checkpoint):
        # then nothing is missing and nothing is there twice
        assert entries(whole) == expected
        assert extracted(whole) == last


def test_a_restart_continues_and_counts_from_the_checkpoint(tmp_path: Path) -> None:
    # given a process that was killed after it had read two of three lines, and a checkpoint after the first
    rundir = make_run(tmp_path, [LOSS], output=b"loss=1\nloss=x\n", exited=False)
    extract_until_killed(rundir)
    before = json.loads(rundir.extractor_offset.read_text())["own_usage"]
    with rundir.output.open("ab") as file:
        file.write(b"loss=3\n")
    finish_run(rundir)

    extract(rundir)

    found = records(rundir)
    assert [each["value"] for each in found if each["src"] == "log"] == [1, 3]
    assert [each.get("late") for each in found if each["src"] == "log"] == [None, True]
    last = extracted(rundir)
    assert (last["lines"], last["per_metric"], last["not_numbers"]) == (3, {"loss": 2}, {"loss": 1})
    used = json.loads(rundir.extracted.read_text())["own_usage"]
    assert used["cpu_seconds"] > before["cpu_seconds"] > 0
    assert (before["at_least"], used["at_least"]) == (False, True)


def test_extracting_a_finished_run_again_changes_no_record(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], output=OUTPUT)
    extract(rundir)
    content = rundir.metrics.read_bytes()

    rundir.extracted.unlink()
    extract(rundir)

    assert rundir.metrics.read_bytes() == content


def test_records_after_a_truncation_have_the_number_of_truncations(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], output=b"loss=1\nloss=2\nloss=", exited=False)

    def truncate(_: float) -> None:
        if not rundir.exit.exists():
            rundir.output.write_bytes(b"loss=3\n")
            finish_run(rundir)

    Extractor(rundir, read_job(rundir.job), sleep=truncate).run()

    assert [(each[1], each[2], each[6]) for each in entries(rundir)["log"]] == [
        (0, 0, 1),
        (0, 7, 2),
        (1, 0, 3),
    ]
    assert extracted(rundir)["lost_bytes"] == 5
    assert extracted(rundir)["log_bytes"] == 26
    assert any("truncated once" in sentence for sentence in extracted(rundir)["warnings"])


def test_a_truncation_between_two_extractors_is_noticed_at_the_restart(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], output=b"loss=1\nloss=2\n", exited=False)
    extract_until_killed(rundir)
    rundir.output.write_bytes(b"loss=3\n")
    finish_run(rundir)

    extract(rundir)

    assert [(each[1], each[6]) for each in entries(rundir)["log"]] == [(0, 1), (0, 2), (1, 3)]


def test_a_replaced_log_is_read_through_its_hard_link(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], output=b"loss=1\n")
    rundir.log_chunks.mkdir()
    os.link(rundir.output, rundir.log_chunks / f"{0:020}")
    rundir.output.unlink()
    rundir.output.write_bytes(b"loss=2\n")

    extract(rundir)

    assert [each[6] for each in entries(rundir)["log"]] == [1]


def test_required_metrics_that_were_never_seen_are_named(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS, ACCURACY], output=b"acc=1\nloss=none\n", required=True)
    extract(rundir)
    assert extracted(rundir)["required_missing"] == ["loss"]


def test_a_disabled_pattern_is_not_searched_after_the_recorded_line(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS, ACCURACY], output=b"loss=1 acc=1\nloss=2 acc=2\nloss=3 acc=3\n")
    rundir.extractor_disabled.write_text(json.dumps({"gen": 0, "off": 13, "i": 0}) + "\n")

    extract(rundir)

    assert [each[5:] for each in entries(rundir)["log"]] == [
        ("loss", 1),
        ("accuracy", 1),
        ("accuracy", 2),
        ("accuracy", 3),
    ]
    assert any("switched off" in sentence for sentence in extracted(rundir)["warnings"])


def test_without_the_prefilter_records_are_the_same_and_a_warning_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = make_run(tmp_path / "fast", [LOSS, ACCURACY], output=OUTPUT)
    extract(fast)
    plain = make_run(tmp_path / "plain", [LOSS, ACCURACY], output=OUTPUT)
    monkeypatch.setattr(process, "prefilter_available", lambda: False)
    extract(plain)

    assert entries(plain) == entries(fast)
    assert any("ahocorasick_rs" in sentence for sentence in extracted(plain)["warnings"])


def test_a_host_that_cannot_be_sampled_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bai_agent.machine.host_usage", None)
    rundir = make_run(tmp_path, [LOSS], output=OUTPUT, host_metrics=True)

    extract(rundir)

    assert entries(rundir, "host") == {"host": []}
    assert sum("psutil" in sentence for sentence in extracted(rundir)["warnings"]) == 1


def test_a_full_disk_is_waited_for_and_causes_no_incomplete_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = make_run(tmp_path, [LOSS], output=OUTPUT)
    failures = [3, 2, 1]

    def full_at_first(descriptor: int, content: bytes) -> None:
        if failures:
            write_all(descriptor, content[: failures.pop() * 10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(descriptor, content)

    monkeypatch.setattr(records_module, "write_all", full_at_first)
    extract(rundir)

    assert [each[6] for each in entries(rundir)["log"]] == [1, 0.5, 0.25, 0.001]


def test_matches_without_a_number_are_distinguished_from_no_match(tmp_path: Path) -> None:
    rundir = make_run(
        tmp_path, [("loss", r"loss=(\S+)"), ACCURACY], output=b"loss=nan\nloss=inf\n", required=True
    )

    extract(rundir)

    last = extracted(rundir)
    assert last["never_numbers"] == {"loss": {"count": 2, "first": "nan"}}
    summary = checked(ExtractionSummary, last, where="extracted.json")
    sentence = missing_sentence([*summary.required_missing, "accuracy"], summary.never_numbers or {})
    assert sentence == (
        'these required metrics were never seen: "accuracy"; '
        'the required metric "loss" matched 2 times, but no match was a number; the first match was "nan"'
    )


def test_a_partly_matched_number_causes_one_warning_with_its_line(tmp_path: Path) -> None:
    output = b"rate=60,911.3 req/s\n" * 3 + b"rate=7\n"
    rundir = make_run(tmp_path, [("rate", r"rate=([\d.]+)")], output=output)

    extract(rundir)

    assert [each[6] for each in entries(rundir)["log"]] == [60, 60, 60, 7]
    (warning,) = (each for each in extracted(rundir)["warnings"] if '"rate"' in each)
    for part in ('"60"', '"60,911.3"', "(3 times)", 'number = "thousands"', "rate=60,911.3 req/s"):
        assert part in warning


def test_secrets_in_lines_quoted_by_warnings_are_redacted(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [("rate", r"rate=([\d.]+)")], output=b"key=hunter2222 rate=60,911\n")

    Extractor(rundir, read_job(rundir.job), quote=lambda text: text.replace("hunter2222", "***")).run()

    (warning,) = (each for each in extracted(rundir)["warnings"] if '"rate"' in each)
    assert "hunter2222" not in warning
    assert "key=*** rate=60,911" in warning


def test_labels_units_and_steps_are_in_the_records(tmp_path: Path) -> None:
    pattern = r"(?P<step>\d+): t=(?P<threads>\d+) (?P<value>[\d.]+)(?P<unit>\w+)"
    rundir = make_run(tmp_path, [("lat", pattern)], output=b"3: t=4 1.5s\n", units="ms")

    extract(rundir)

    (record,) = (each for each in records(rundir) if each["src"] == "log")
    assert (record["value"], record["units"], record["step"]) == (1500, "ms", 3)
    assert record["labels"] == {"threads": "4"}
