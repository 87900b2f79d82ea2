"""What a command imports is waited for: looking at jobs needs no descriptor, no AWS and no pydantic."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from handmade_job import HandmadeJob

PROGRAMS = Path(sys.executable).parent
_DESCRIPTOR = """
spec_version = "0.1.0"
[info]
description = "nothing"
[hardware]
instance_type = "t3.small"
[ml]
benchmark_code = "true"
"""
_NEEDLESS = ("boto3", "botocore", "executor.descriptor.model", "kafka", "numpy", "pydantic", "scipy")


def imported(store: Path, *words: str) -> list[str]:
    """Return the modules that a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", PROGRAMS / "bai", *words],
        env={**os.environ, "BAI_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return re.findall(r"(?m)^import time: +\d+ \| +\d+ \| +([\w.]+)$", done.stderr)


@pytest.mark.parametrize("words", [("--help",), ("list",), ("status", "digits-a"), ("status", "last")])
def test_commands_that_show_jobs_import_neither_pydantic_nor_boto3(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    HandmadeJob(tmp_path, "digits-a").ends()

    modules = imported(tmp_path, *words)

    assert "executor.cli" in modules
    assert [each for each in modules if each.startswith(_NEEDLESS)] == []


def test_a_list_of_few_jobs_loads_neither_openssl_nor_columns_of_points(tmp_path: Path) -> None:
    HandmadeJob(tmp_path, "digits-a").ends()

    modules = imported(tmp_path, "list")

    assert {"_hashlib", "hashlib", "executor.records.points"} & set(modules) == set()


@pytest.mark.parametrize(
    "words", [("list",), ("list", "--json"), ("status", "last"), ("status", "--json", "digits-a")]
)
def test_a_command_line_without_other_options_is_read_without_typer(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    HandmadeJob(tmp_path, "digits-a").ends()

    modules = imported(tmp_path, *words)

    assert "executor.jobs.job_list" in modules
    assert [each for each in modules if each.startswith("typer")] == []


def test_help_imports_no_command(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--help")

    commands = {each for each in modules if each.startswith("executor.commands.")}
    assert commands == {f"executor.commands.{name}" for name in ("job_options", "options", "printing")}
    assert "bai_agent.job.descriptor" not in modules


def test_a_run_without_sources_and_scripts_imports_nothing_for_them(tmp_path: Path) -> None:
    (tmp_path / "benchmark.toml").write_text(_DESCRIPTOR)

    modules = imported(tmp_path / "store", "run", str(tmp_path / "benchmark.toml"))

    needless = ("boto3", "botocore", "http", "kafka", "numpy", "pathspec", "scipy", "ssl")
    assert [each for each in modules if each.startswith(needless)] == []
    before_the_agent = modules[: modules.index("executor.records.follower")]
    assert "executor.backends.local.agent" in before_the_agent
    assert [each for each in before_the_agent if each.startswith("rich")] == []
