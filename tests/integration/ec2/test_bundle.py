"""The agent's bundle: the same bytes twice, and a whole job run from it by a Python that has no packages."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.metric_tables import Metric
from executor.backends.ec2.bundle.bundle import BuiltBundle, agent_files, build, pack
from executor.backends.ec2.bundle.wheels import find_wheels
from executor.errors import WheelError
from executor.owned_folders import cache_folder
from executor.planning.job_toml import job_toml

_IMPORTED = ("obstore", "ahocorasick_rs", "psutil", "kafka", "crc32c", "pynvml", "bai_agent.cli")


@pytest.fixture(scope="module")
def bundle() -> BuiltBundle:
    return build(platform.machine(), cache=cache_folder(os.environ))


@pytest.fixture(scope="module")
def unpacked(bundle: BuiltBundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent")
    with tarfile.open(bundle.path) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with nothing but its standard library."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    return folder / "bin" / "python"


def run(command: Sequence[str | Path], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    return subprocess.run(
        command, cwd=cwd, env=bare, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_whole_job_runs_from_the_bundle_with_a_bare_python(
    unpacked: Path, bare_python: Path, tmp_path: Path
) -> None:
    job = Job(
        job=Identity(id="bare-1"),
        benchmark=Benchmark(argv=("sh", "-c", "for i in 1 2 3; do echo loss=0.$i; done")),
        metrics=(Metric(name="loss", pattern=r"loss=(\S+)", required=True),),
    )
    (tmp_path / "job.toml").write_text(job_toml(job))

    done = run(
        (bare_python, unpacked / "start_agent.py", "run", "job.toml", "--dir", tmp_path / "run", "--quiet"),
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["outcome"] == "succeeded"
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [each["value"] for each in records if each["name"] == "loss"] == [0.1, 0.2, 0.3]
    assert any(
        each["name"].startswith("bai_host_") or each["name"].startswith("bai_run_") for each in records
    )


def test_every_module_is_imported_from_the_bundle(unpacked: Path, bare_python: Path, tmp_path: Path) -> None:
    # A machine's own package with a part of the same name, as older ones of this name are.
    (tmp_path / "backports").mkdir()
    (tmp_path / "backports/__init__.py").touch()
    parts = [*_IMPORTED, *(["backports.zstd"] if sys.version_info < (3, 14) else [])]
    program = (
        "import importlib, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import start_agent; sys.path.append('.'); "
        "sys.path[:0] = start_agent.search_path(Path(sys.argv[1]), sys.version_info[:2]); "
        "print(*[importlib.import_module(each).__file__ for each in sys.argv[2:]], sep='\\n')"
    )

    done = run((bare_python, "-I", "-c", program, str(unpacked), *parts), cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(parts)
    assert all(Path(line).is_relative_to(unpacked) for line in done.stdout.splitlines())


def test_the_bundle_has_native_packages_for_each_python_and_py_spy(unpacked: Path) -> None:
    names = {each.name for each in (unpacked / "native").iterdir()}

    assert {"cp310", "cp311", "cp312", "cp313", "cp314", "cp311-abi3", "cp36-abi3"} == names
    assert os.access(unpacked / "bin" / "py-spy", os.X_OK)


def test_building_the_same_files_again_gives_the_same_bytes(bundle: BuiltBundle) -> None:
    files = agent_files()
    assert pack(files) == pack(dict(reversed(files.items())))
    assert build(bundle.architecture, cache=cache_folder(os.environ), download=False).path.exists()


def test_a_cached_bundle_is_used_without_downloading_wheels(bundle: BuiltBundle, tmp_path: Path) -> None:
    kept = tmp_path / "bundles" / bundle.path.name
    kept.parent.mkdir()
    shutil.copyfile(bundle.path, kept)

    assert build(bundle.architecture, cache=tmp_path, download=False) == replace(bundle, path=kept)


def test_bundles_that_were_not_used_lately_are_removed_from_the_cache(
    bundle: BuiltBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a cache with bundles of earlier versions, and the wheels
    (tmp_path / "wheels").symlink_to(cache_folder(os.environ) / "wheels")
    (tmp_path / "bundles").mkdir()
    for number in range(9):
        earlier = tmp_path / "bundles" / f"{number}.tar.gz"
        earlier.touch()
        os.utime(earlier, (1_000_000 + number, 1_000_000 + number))
    monkeypatch.setattr("executor.backends.ec2.bundle.bundle.pack", lambda _: b"packed")

    # when this version's is made
    built = build(bundle.architecture, cache=tmp_path, download=False)

    # then it is there with those that were used last
    left = {each.name for each in (tmp_path / "bundles").iterdir()}
    assert left == {built.path.name, *(f"{number}.tar.gz" for number in range(5, 9))}


def test_a_bundle_built_without_a_package_index_gives_one_sentence_of_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")

    with pytest.raises(WheelError, match=r"pip could not download.*Check the network") as caught:
        find_wheels("x86_64", cache=tmp_path)

    assert "\n" not in str(caught.value)
    with pytest.raises(WheelError):
        find_wheels("x86_64", cache=tmp_path, download=False)
