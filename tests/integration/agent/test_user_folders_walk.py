"""Each name in the folders of the benchmark's user is replaced by a link at each call of root's agent: nothing outside is touched."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from agent_runs import environment, records_of, result_of
from nobodys_jobs import nobody, nobodys_job, node_of, run_job, scripts_source

import bai_agent
from bai_agent.job.outcome import ExitCode

pytestmark = pytest.mark.root

_SOURCE = Path(__file__).parents[2] / "harness" / "link_exchanger.c"
_PYTHON = "/usr/bin/python3"
"""One that every user may run."""
_BENCHMARK = """
set -eu
python3 -c 'import tiny; print(tiny.version)'
cat sub/words data/numbers unpacked/inner/member > copy
echo '{"loss": 0.25}' > numbers.json
mkdir -p kept/deep
echo an artifact > kept/deep/file
ln -s file kept/deep/link
"""
_MPIRUN = """#!/bin/sh
for shift in 1 2 3 4 5 6 7 8 9; do case "$1" in -np) break ;; *) shift ;; esac; done
run=$(dirname "$BENCHMARK_AI_FIFO_FILEPATH")
echo loss=0.5 > "$run/processes/0.log"
echo '{"code": 3, "signal": null, "asked": null, "time": 1, "output_bytes": 9}' > "$run/processes/0.json"
echo words > "$run/processes/note"
exit 3
"""


def write_wheel(folder: Path) -> str:
    """Write a package "tiny" as a wheel; return its file's name."""
    name, about = "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("tiny.py", "version = 'tiny 1.0'\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{about}/RECORD", "")
    return name


def all_kinds_of_sources(folder: Path) -> list[dict[str, Any]]:
    scripts = folder / "scripts"
    (scripts / "sub").mkdir(parents=True)
    (scripts / "sub" / "words").write_text("some words\n")
    (scripts / "link").symlink_to("sub/words")
    (scripts / "requirements.txt").write_text(f"./{write_wheel(scripts)}\n")
    numbers = folder / "numbers"
    numbers.write_text("1 2 3\n")
    archive = folder / "archive.tar"
    with tarfile.open(archive, "w") as tar:
        for name, kind, target in (
            ("inner/member", tarfile.REGTYPE, ""),
            ("inner/second", tarfile.LNKTYPE, "inner/member"),
            ("inner/link", tarfile.SYMTYPE, "member"),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            member.size = 7 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"packed\n"))
    return [
        scripts_source(scripts),
        {"src": numbers.as_uri(), "path": "data/numbers"},
        {"src": archive.as_uri(), "path": "unpacked", "unpack": "into"},
    ]


def enterable_agent(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return what starts an agent whose code and Python stand where each user may enter, in mounts of its own, and its variables."""
    python = folder / "python"
    python.mkdir()
    shutil.copytree(Path(bai_agent.__file__).parent, folder / "program" / "bai_agent")
    program = python / Path(os.path.realpath(sys.executable)).relative_to(sys.base_prefix)
    enter = f'mount --bind {sys.base_prefix} {python} && cd {folder} && shift && exec {program} "$@"'
    found = os.pathsep.join([str(folder / "program"), *filter(None, sys.path)])
    return ["unshare", "--mount", "sh", "-c", enter, "sh"], {"PYTHONPATH": found}


class Walk:
    """Runs agents under the library that exchanges links, and reads what it noted."""

    def __init__(self, folder: Path) -> None:
        library = folder / "link_exchanger.so"
        command = [
            "gcc",
            "-shared",
            "-fPIC",
            "-O2",
            "-Wall",
            "-Werror",
            "-o",
            str(library),
            str(_SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True, timeout=60)
        self._report = folder / "exchanges"
        self.out_there = folder / "out-there"
        self.out_there.mkdir(mode=0o700)
        self.env = environment(
            LD_PRELOAD=str(library),
            EXCHANGER_UID=str(nobody().pw_uid),
            EXCHANGER_OUTSIDE=str(self.out_there),
            EXCHANGER_REPORT=str(self._report),
            EXCHANGER_WITHIN=str(node_of(folder)),
        )

    @property
    def met(self) -> list[tuple[str, str, str]]:
        """Verdict, function and path of each exchange."""
        lines = self._report.read_text().splitlines() if self._report.exists() else []
        found = [tuple(line.split("\t")[:3]) for line in lines]
        return [(verdict, function, path) for verdict, function, path in found]

    def require_nothing_touched(self) -> Counter[str]:
        """Return how many exchanges each function met."""
        touched = [each for each in self.met if each[0] != "tried"]
        assert touched == []
        return Counter(function for _, function, _ in self.met)


@pytest.fixture
def walk(folder: Path) -> Walk:
    return Walk(folder)


def test_no_file_operation_of_a_run_follows_a_link_out_of_its_folders(folder: Path, walk: Walk) -> None:
    job = nobodys_job(
        folder,
        [],
        benchmark={
            "script": f"#!/bin/sh\n{_BENCHMARK}",
            "requirements": "requirements.txt",
            "python": _PYTHON,
            "user": "nobody",
            "inherit_env": False,
        },
        sources=all_kinds_of_sources(folder),
        results=[{"path": "*.json", "format": "json", "values": ["loss"]}],
        output={"artifacts": ["kept/**", "copy"]},
    )
    node = node_of(folder)

    code = run_job(job, node, env=walk.env)

    assert code == ExitCode.SUCCEEDED, result_of(node)
    calls = walk.require_nothing_touched()
    assert result_of(node)["artifacts"]["files"] == 3
    assert {record["name"] for record in records_of(node)} >= {"loss"}
    print(sum(calls.values()), "exchanges:", dict(calls))
    assert {"open64", "mkdir", "rename", "unlink", "lstat64"} <= calls.keys()


def test_no_file_operation_of_an_mpi_run_follows_a_link_out_of_its_folders(folder: Path, walk: Walk) -> None:
    mpirun = folder / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(_MPIRUN)
    mpirun.chmod(0o755)
    job = nobodys_job(
        folder,
        ["true"],
        benchmark={"env": {"PATH": f"{mpirun.parent}:/usr/bin:/bin"}, "inherit_env": False},
        strategy={"name": "mpi", "processes_per_node": "2"},
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
        limits={"no_output": "60s"},
    )
    node = node_of(folder)
    prefix, env = enterable_agent(folder)

    code = run_job(job, node, prefix=prefix, env={**walk.env, **env})

    assert code == ExitCode.BENCHMARK_FAILED, result_of(node)
    calls = walk.require_nothing_touched()
    print(sum(calls.values()), "exchanges:", dict(calls))
    assert {record["name"] for record in records_of(node)} >= {"loss"}
    assert any("/processes/0.log" in path for _, _, path in walk.met)
