"""Whatever others wrote into a job, a descriptor or a path: nothing that a terminal obeys is printed."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest
from handmade_job import HandmadeJob
from hypothesis import given
from hypothesis import strategies as st
from local_cli import LocalCli, local_cli

from executor.documents.text import plain_text, safe_line, visible

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EVIL = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202eb\u2066c\u200b\r\x00\x7f\u2028d\U000e0041"
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


@pytest.fixture
def cli(tmp_path: Path) -> LocalCli:
    return local_cli(tmp_path, BAI_CLIENT_ID=EVIL.replace("\0", ""))


@pytest.fixture
def job(cli: LocalCli) -> HandmadeJob:
    job = HandmadeJob(cli.store, "evil-1", name=EVIL.replace("\0", ""))
    job.phases("prepare", until="run")
    job.event("warning", message=EVIL)
    job.event("stop", reason="cancelled", message=EVIL)
    job.measures(EVIL, 1.5, src="emit", units=EVIL)
    job.measures("=cmd|' /C calc'!A0", -1.5, src="emit", units="@SUM(A1)")
    result = {
        "version": 1,
        "outcome": EVIL,
        "status": EVIL,
        "exit_code": 1,
        "sentence": EVIL,
        "started": 1_795_000_000_000,
        "ended": 1_795_000_001_000,
        "last_lines": [EVIL],
        "warnings": [EVIL],
        "kafka": {"delivered": 0, "undelivered": 1, "error": EVIL},
        "git": {"commit": EVIL, "branch": EVIL},
        "benchmark": {"code": 1, "exec_error": {"message": EVIL}},
    }
    job.record.store.put(job.record.key("result.json"), json.dumps(result).encode())
    (cli.store / EVIL.replace("\0", "")).mkdir()
    (cli.store / EVIL.replace("\0", "") / "job.toml").write_text("version = 1")
    return job


DESCRIPTOR = f"""
spec_version = "0.1.0"
[info]
task_name = {json.dumps(EVIL)}
{json.dumps(EVIL)} = 1
[[output.metrics]]
name = {json.dumps(EVIL)}
pattern = {json.dumps("(" + EVIL.replace(chr(0), ""))}
""".replace("\\ud", "\\ud")


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("list", "--json"),
        ("status", "evil-1"),
        ("status", "evil-1", "--json"),
        ("metrics", "evil-1"),
        ("metrics", "evil-1", "--format", "csv"),
        ("prune", "--older-than", "1s", "--dry-run"),
        ("fetch", "evil-1", "there"),
        ("cancel", "evil-1"),
        ("status", EVIL.replace("\0", "")),
        ("validate", EVIL.replace("\0", "")),
        ("list", "--store", EVIL.replace("\0", "")),
        ("config",),
    ],
    ids=lambda arguments: " ".join(map(plain_text, arguments)),
)
def test_no_command_prints_control_sequences_of_others(
    cli: LocalCli, job: HandmadeJob, arguments: tuple[str, ...]
) -> None:
    answer = cli.bai(*arguments)

    assert answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    assert not _OBEYED.search(answer.stdout), answer.stdout
    assert not _OBEYED.search(answer.stderr), answer.stderr


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_findings_show_control_sequences_as_escapes(tmp_path: Path, cli: LocalCli, command: str) -> None:
    name = "d\x1b[31m.toml"
    surrogates = re.sub(r"\\ud[89ab]..\\ud...", "", DESCRIPTOR)
    (tmp_path / name).write_text(surrogates)

    answer = cli.bai(command, name)

    assert answer.code == 2
    assert not _OBEYED.search(answer.stdout + answer.stderr)
    assert "\\u001b" in answer.stdout + answer.stderr


def test_csv_output_escapes_text_that_a_spreadsheet_would_run_as_a_formula(
    cli: LocalCli, job: HandmadeJob
) -> None:
    rows = list(csv.DictReader(io.StringIO(cli.bai("metrics", "evil-1", "--format", "csv").stdout)))

    assert [row["value"] for row in rows] == ["1.5", "-1.5"]
    assert rows[1]["name"].startswith("'=cmd")
    assert rows[1]["units"] == "'@SUM(A1)"


def test_a_store_that_does_not_exist_is_an_error(tmp_path: Path, cli: LocalCli) -> None:
    for command in (("list",), ("prune",), ("status", "x")):
        answer = cli.bai(*command, "--store", tmp_path / "nowhere")
        assert answer.code != 0
        assert f"{tmp_path / 'nowhere'} does not exist" in answer.stderr
    assert not (tmp_path / "nowhere").exists()
    assert cli.bai("list").code == 0  # the usual place is made with its first job


def test_an_impossible_job_name_is_reported_as_unknown(cli: LocalCli, job: HandmadeJob) -> None:
    for name in ("x" * 300, "x" * 5000, "a/b", ".."):
        answer = cli.bai("status", name)
        assert answer.code == 2
        assert "there is no job" in answer.stderr


@given(st.text(max_size=40))
def test_control_sequences_are_removed_from_any_text(text: str) -> None:
    assert not _OBEYED.search(visible(text))
    assert not _OBEYED.search(plain_text(text))
    assert not _OBEYED.search(safe_line(text).replace("\x1b[", ""))


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=40))
def test_visible_toml_has_the_same_values(text: str) -> None:
    import tomli_w

    assert tomllib.loads(visible(tomli_w.dumps({"key": text, text: 1}))) == {"key": text, text: 1}
