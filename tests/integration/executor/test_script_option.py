"""`--script PATH`, and commands of the scripts' folder that are not executable: what users of the benchmark service rely on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_harness import CliHarness

DESCRIPTOR = """
spec_version = "0.1.0"
[info]
description = "Prints a number"
[hardware]
instance_type = "local"
[host_metrics]
enabled = false
[ml]
benchmark_code = "{command}"
[[output.metrics]]
name = "answer"
units = "1"
pattern = 'answer=(\\d+)'
required = true
"""


@pytest.fixture
def cli(tmp_path: Path) -> CliHarness:
    return CliHarness(tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})


def source(tmp_path: Path) -> Path:
    """Return a folder with a script that is not executable, and a file beside it."""
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "run.sh").write_text('#!/bin/sh\ncat "$(dirname "$0")/answer.txt"\n')
    (folder / "run.sh").chmod(0o644)
    (folder / "answer.txt").write_text("answer=42\n")
    return folder


def descriptor(tmp_path: Path, command: str) -> Path:
    file = tmp_path / "benchmark.toml"
    file.write_text(DESCRIPTOR.format(command=command))
    return file


def test_script_option_includes_a_folder_under_its_name(cli: CliHarness, tmp_path: Path) -> None:
    file = descriptor(tmp_path, "$(BAI_SCRIPTS_PATH)/src/run.sh")

    done = cli.bai("run", file, "--script", source(tmp_path))

    assert done.code == 0, done.stdout + done.stderr
    assert "answer=42" in done.stdout


def test_script_option_includes_a_file_under_its_name(cli: CliHarness, tmp_path: Path) -> None:
    script = tmp_path / "elsewhere" / "say.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho answer=7\n")
    file = descriptor(tmp_path, "$(BAI_SCRIPTS_PATH)/say.sh")

    done = cli.bai("run", file, "--script", script)

    assert done.code == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", ["./run.sh", "$(BAI_SCRIPTS_PATH)/run.sh"])
def test_a_script_without_the_x_bit_is_executed(cli: CliHarness, tmp_path: Path, command: str) -> None:
    source(tmp_path)
    file = descriptor(tmp_path, command)
    file.write_text(file.read_text() + '[ml.script]\npath = "src"\n')

    done = cli.bai("run", file)

    assert done.code == 0, done.stdout + done.stderr
    assert (tmp_path / "src/run.sh").stat().st_mode & 0o111 == 0


def test_a_script_that_is_not_there_is_named(cli: CliHarness, tmp_path: Path) -> None:
    file = descriptor(tmp_path, "$(BAI_SCRIPTS_PATH)/src/run.sh")

    done = cli.bai("run", file, "--script", tmp_path / "src")

    assert done.code == 2
    assert "src/run.sh is not in" in done.stderr


def test_script_option_keeps_the_folders_name_on_ec2(cli: CliHarness, tmp_path: Path) -> None:
    file = descriptor(tmp_path, "$(BAI_SCRIPTS_PATH)/src/run.sh")
    file.write_text(file.read_text() + '[aws.ec2]\nimage = "ami-0123456789abcdef0"\n')

    done = cli.bai(
        "plan", file, "--on", "ec2", "--script", source(tmp_path), "--json", "--instance-type", "t3.small"
    )

    assert done.code == 0, done.stderr
    (plan,) = done.objects
    (scripts,) = plan["job"]["sources"]
    assert (scripts["path"], scripts["kind"], scripts["unpack"]) == ("src", "scripts", "into")


def test_a_script_path_that_cannot_be_read_is_a_usage_error(cli: CliHarness, tmp_path: Path) -> None:
    file = descriptor(tmp_path, "true")

    done = cli.bai("run", file, "--script", tmp_path / ("long" * 100))

    assert done.code == 2
    assert done.stderr.startswith("bai: --script ")
    assert "cannot be read: File name too long; name a file or folder that you may read" in done.stderr
