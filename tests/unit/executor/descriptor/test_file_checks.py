"""The files that a command names: whether they go along, and can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.descriptor import Finding, Severity, load

HEAD = """
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "local"
"""


def findings(tmp_path: Path, text: str, *, script: Path | None = None) -> list[Finding]:
    file = tmp_path / "benchmark.toml"
    file.write_text(HEAD + text)
    return load(file, script=script)[1]


def test_a_script_next_to_the_descriptor_that_is_not_included_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")

    (finding,) = findings(tmp_path, "[ml]\nbenchmark_code = 'python3 train.py --epochs 3'\n")

    assert (finding.key, finding.severity) == ("ml.benchmark_code", Severity.ERROR)
    assert "train.py is in this file's folder" in finding.problem
    assert finding.fix.startswith('add [ml.script] path = "."')


def test_a_data_file_next_to_the_descriptor_that_is_not_included_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1\n")

    (finding,) = findings(tmp_path, "[ml]\nbenchmark_code = 'fio'\nargs = 'config.yaml'\n")

    assert (finding.key, finding.severity) == ("ml.args", Severity.WARNING)


def test_a_program_next_to_the_descriptor_must_be_written_with_dot_slash(tmp_path: Path) -> None:
    (tmp_path / "run-it.sh").write_text("#!/bin/sh\n")

    (finding,) = findings(tmp_path, "[ml]\nbenchmark_code = 'run-it.sh'\n")

    assert finding.fix.endswith("write ./run-it.sh")


@pytest.mark.parametrize(
    "text",
    [
        "[ml]\nbenchmark_code = 'python3 train.py'\n[ml.script]\npath = '.'\n",
        "[ml]\nbenchmark_code = './run.sh'\n[ml.script]\npath = '.'\n",
        "[ml]\nbenchmark_code = '$(BAI_SCRIPTS_PATH)/run.sh'\n[ml.script]\npath = '.'\n",
        "[ml]\nbenchmark_code = 'python3 train.py'\n[[data.sources]]\nsrc = 'train.py'\npath = 'train.py'\n",
        "[ml]\nbenchmark_code = 'python3 -m train'\n",
    ],
)
def test_included_files_have_no_findings(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")

    assert findings(tmp_path, text) == []


def test_using_bai_scripts_path_without_scripts_is_an_error(tmp_path: Path) -> None:
    text = "[ml]\nbenchmark_code = '$(BAI_SCRIPTS_PATH)/src/run.sh'\n"

    (finding,) = findings(tmp_path, text)

    assert finding.severity is Severity.ERROR
    assert finding.problem == "uses $(BAI_SCRIPTS_PATH), but the job has no scripts"


def test_a_folder_given_by_the_script_option_is_the_only_member(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "run.sh").write_text("#!/bin/sh\n")
    good = "[ml]\nbenchmark_code = '$(BAI_SCRIPTS_PATH)/src/run.sh'\n"
    bad = good.replace("src/", "")

    assert findings(tmp_path, good, script=tmp_path / "src") == []
    (finding,) = findings(tmp_path, bad, script=tmp_path / "src")
    assert "which contains only src" in finding.fix


@pytest.mark.parametrize("name", ["missing.sh", "sub/missing.py"])
def test_a_command_that_is_not_among_the_scripts_is_an_error(tmp_path: Path, name: str) -> None:
    text = f"[ml]\nbenchmark_code = 'python3 {name}'\n[ml.script]\npath = '.'\n"

    (finding,) = findings(tmp_path, text)

    assert (finding.severity, finding.problem) == (Severity.ERROR, f"{name} is not in {tmp_path}")


def test_a_program_that_prepare_builds_is_a_warning(tmp_path: Path) -> None:
    text = "[ml]\nbenchmark_code = './p'\n[ml.script]\npath = '.'\n[repeat]\nruns = 2\nprepare = 'make p'\n"

    (finding,) = findings(tmp_path, text)

    assert (finding.severity, finding.problem) == (
        Severity.WARNING,
        f"./p is not in {tmp_path} before the first run",
    )


def test_a_script_without_an_interpreter_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo hello\n")

    (finding,) = findings(tmp_path, "[ml]\nbenchmark_code = './run.sh'\n[ml.script]\npath = '.'\n")

    assert "has no #! line" in finding.problem


def test_a_command_in_another_working_directory_is_checked_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")

    assert not findings(tmp_path, f"[ml]\nbenchmark_code = 'python3 train.py'\ncwd = '{tmp_path}'\n")
