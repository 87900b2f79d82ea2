"""`bai` and its agent where the locale is not UTF-8, and where names are not."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_harness import BAI, BAI_AGENT
from local_cli import LocalCli, local_cli

_ARGUMENTS = "wört €".encode()
_NAMED = """
spec_version = "0.1.0"
[info]
description = "Prints what it was given, byte for byte"
execution_engine = "local"
[hardware]
instance_type = "local"
strategy = "single_node"
[env.vars]
WORD = "wört €"
[ml]
benchmark_code = "sh 'bénch €.sh' über"
[ml.script]
path = "."
[output]
artifacts = ["ä*"]
[[output.metrics]]
name = "löss"
units = "µs"
pattern = 'löss=(\\S+)'
"""
_SCRIPT = """#!/bin/sh
for word; do printf '<%s>' "$word"; done
env | LC_ALL=C grep -a '^WORD='
pwd
echo löss=0.5
echo '{"ämitted": 1}' > "$BENCHMARK_AI_FIFO_FILEPATH"
touch "ä $1"
"""


@pytest.fixture(scope="module")
def latin(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a person with an ISO-8859-1 locale."""
    folder = tmp_path_factory.mktemp("locales")
    subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", folder / "en_US.ISO-8859-1"],
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )
    return {"LOCPATH": str(folder), "LC_ALL": "en_US.ISO-8859-1"}


@pytest.fixture(params=["latin", "C", "ascii"])
def foreign(request: pytest.FixtureRequest) -> Mapping[str, str]:
    if request.param == "latin":
        found: Mapping[str, str] = request.getfixturevalue("latin")
        return found
    # Python reads the C locale as UTF-8, unless it is told not to.
    return {
        "LC_ALL": "C",
        **({} if request.param == "C" else {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    }


def run(
    cli: LocalCli, more: Mapping[str, str], *arguments: str | bytes | Path
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*BAI, *arguments],
        capture_output=True,
        cwd=cli.folder,
        env={**cli.environment, **more},
        timeout=120,
        check=False,
    )


def cli_among_names(folder: Path) -> LocalCli:
    folder.mkdir()
    (folder / "benchmark.toml").write_text(_NAMED, encoding="utf-8")
    script = folder / "bénch €.sh"
    script.write_text(_SCRIPT, encoding="utf-8")
    script.chmod(0o755)
    return local_cli(folder)


@pytest.mark.parametrize("name", ["jöb €".encode(), b"j\xf6b"])
def test_names_and_arguments_of_any_encoding_reach_the_benchmark_in_any_locale(
    tmp_path: Path, foreign: Mapping[str, str], name: bytes
) -> None:
    cli = cli_among_names(tmp_path / os.fsdecode(name))

    answer = run(cli, foreign, "run", "benchmark.toml", "--job-id", "one", "--", _ARGUMENTS)

    said = (answer.stdout + answer.stderr).decode(errors="replace")
    assert answer.returncode == 0, said
    output = cli.rundir("one").output.read_bytes()
    assert output.startswith("<über><wört €>".encode())
    assert "WORD=wört €\n".encode() in output
    assert os.fsencode(cli.rundir("one").scripts) + b"\n" in output
    assert cli.result("one")["metrics"]["per_metric"] == {"löss": 1, "ämitted": 1}
    assert (cli.store / "one" / "artifacts" / "ä über").exists()
    for command in (
        ("status", "one"),
        ("list",),
        ("logs", "one"),
        ("metrics", "one"),
        ("fetch", "one", "there"),
    ):
        done = run(cli, foreign, *command)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        assert b"Traceback" not in done.stderr


def test_output_is_shown_in_the_terminals_encoding(tmp_path: Path, latin: Mapping[str, str]) -> None:
    cli = cli_among_names(tmp_path / "job")
    assert run(cli, latin, "run", "benchmark.toml", "--job-id", "one").returncode == 0

    shown = run(cli, latin, "metrics", "one").stdout

    assert "löss".encode("iso-8859-1") in shown
    assert "löss".encode() not in shown


def test_an_argument_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    cli = cli_among_names(tmp_path / "job")

    answer = run(cli, {}, "run", "benchmark.toml", "--", b"caf\xe9")

    assert answer.returncode == 2
    assert b"caf" in answer.stderr
    assert b"is not UTF-8" in answer.stderr
    assert b"Traceback" not in answer.stderr


def test_the_agent_alone_works_in_any_locale(tmp_path: Path, foreign: Mapping[str, str]) -> None:
    folder = tmp_path / "jöb €"
    folder.mkdir()
    job = folder / "jöb.toml"
    job.write_text(
        textwrap.dedent(
            """
            version = 1
            [job]
            id = "one"
            [benchmark]
            argv = ["printf", "%s.", "€", "ß"]
            """
        ),
        encoding="utf-8",
    )
    for detach in ([], ["--detach"]):
        done = subprocess.run(
            [*BAI_AGENT, "run", job, "--dir", folder / "rün", *detach],
            capture_output=True,
            env={**os.environ, **foreign},
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (folder / "rün" / "output.log").read_text("utf-8") == "€.ß."
