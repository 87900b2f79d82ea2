"""Job ids in a real bash, by the script that `bai --show-completion` installs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from handmade_job import HandmadeJob

PROGRAMS = Path(sys.executable).parent
_ASK = r"""
eval "$(_BAI_COMPLETE=source_bash bai)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p bai | sed 's/.*-F \([^ ]*\).*/\1/') bai
printf '%s\n' "${COMPREPLY[@]}"
"""


def completed(store: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of `words`."""
    done = subprocess.run(
        ["bash", "--norc", "-c", _ASK, "bash", *words],
        env={**os.environ, "BAI_STORE": str(store), "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def add(store: Path, job_id: str, *, age_s: int) -> HandmadeJob:
    job = HandmadeJob(store, job_id)
    created = 1_795_000_000 - age_s
    os.utime(store / job_id / "job.toml", (created, created))
    return job


def test_bash_completes_job_ids_the_newest_first(tmp_path: Path) -> None:
    add(tmp_path, "digits-a", age_s=20).ends()
    add(tmp_path, "digits-b", age_s=10)
    add(tmp_path, "sorting-c", age_s=30)
    (tmp_path / "digits-no-job").mkdir()

    assert completed(tmp_path, "bai", "status", "digits-") == ["digits-b", "digits-a"]
    assert completed(tmp_path / "away", "bai", "logs", "--store", str(tmp_path), "-f", "s") == ["sorting-c"]
    assert completed(tmp_path, "bai", "cancel", "la") == ["last"]


def test_completion_shows_each_jobs_outcome_without_validation(tmp_path: Path) -> None:
    add(tmp_path, "digits-a", age_s=10).ends("failed", 1)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", PROGRAMS / "bai"],
        env={
            **os.environ,
            "BAI_STORE": str(tmp_path),
            "_BAI_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_ARGS": "bai status dig",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["digits-a\tfailed"]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "executor.jobs.completion" in imported
    assert not imported & {
        "boto3",
        "botocore",
        "obstore",
        "executor.records.reading",
        "executor.descriptor.model",
    }
