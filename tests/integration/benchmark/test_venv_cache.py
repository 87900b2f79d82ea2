"""Virtual environments that several jobs use, made by a real pip from an index on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_harness import CliHarness
from small_pythons import small_python

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.run_directory import RunDir, now_ms
from bai_agent.requirements.python_env import discard_requirements, install_requirements
from bai_agent.requirements.venv_cache import cached_venvs
from executor.jobs.prune import prune_venvs

_DESCRIPTOR = """\
spec_version = "0.1.0"
[info]
description = "Says what is installed"
[hardware]
instance_type = "local"
[host_metrics]
enabled = false
[env]
python = "{python}"
[ml]
benchmark_code = "python say.py"
[ml.script]
path = "{scripts}"
requirements = "requirements.txt"
"""


class VenvCacheHarness:
    """An index of one package, a cache, and jobs that require the package."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.cache = folder / "cache"
        self.wheel = self._publish("1.0")

    def job(self, name: str, requirements: str = "tiny==1.0") -> RunDir:
        rundir = RunDir(self.folder / name)
        rundir.scripts.mkdir(parents=True)
        index = (self.folder / "index").as_uri()
        (rundir.scripts / "requirements.txt").write_text(f"--index-url {index}\n{requirements}\n")
        return rundir

    def install(self, rundir: RunDir) -> None:
        job = Job(
            job=Identity(id="j"),
            benchmark=Benchmark(
                argv=("true",), requirements="requirements.txt", python=self.python, inherit_env=True
            ),
        )
        install_requirements(
            job,
            rundir,
            deadline=time.monotonic() + 120,
            stopping=lambda: False,
            base={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            cache=self.cache,
        )

    def _publish(self, version: str) -> Path:
        folder = self.folder / "index" / "tiny"
        folder.mkdir(parents=True)
        wheel = folder / f"tiny-{version}-py3-none-any.whl"
        about = f"tiny-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tiny.py", f"version = {version!r}\n")
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
            archive.writestr(
                f"{about}/WHEEL",
                "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            archive.writestr(f"{about}/RECORD", "")
        (folder / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
        return wheel


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_python(tmp_path_factory.mktemp("python"))


@pytest.fixture
def setup(tmp_path: Path, python: str) -> VenvCacheHarness:
    return VenvCacheHarness(tmp_path, python)


def what_is_in(folder: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mode, status.st_size, status.st_ctime_ns)
    return found


def version_in(rundir: RunDir) -> str:
    program = "import sys, tiny; print(tiny.version, sys.prefix != sys.base_prefix)"
    python = rundir.venv / "bin" / "python"
    done = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_the_next_job_reuses_the_installation(setup: VenvCacheHarness) -> None:
    first, second = setup.job("one"), setup.job("two")
    setup.install(first)
    setup.wheel.unlink()

    setup.install(second)

    assert version_in(first) == version_in(second) == "1.0 True\n"
    assert first.venv.resolve() == second.venv.resolve()
    discard_requirements(second)
    assert not second.venv.exists()
    assert version_in(first) == "1.0 True\n"


def test_a_second_run_reuses_the_venv_of_the_first(setup: VenvCacheHarness, tmp_path: Path) -> None:
    # Given two runs of one benchmark that requires a package, of which the second finds no index any more
    rundir = setup.job("benchmark")
    (rundir.scripts / "say.py").write_text(
        "import os, sys, tiny; print('tiny', tiny.version, os.path.realpath(sys.prefix))\n"
    )
    file = tmp_path / "benchmark.toml"
    file.write_text(_DESCRIPTOR.format(scripts=rundir.scripts, python=setup.python))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "BAI_STORE": str(tmp_path / "store"),
    }
    (tmp_path / "home").mkdir()
    cli = CliHarness(tmp_path, environment)

    def run(job_id: str) -> str:
        done = cli.bai("run", file, "--job-id", job_id)
        node = RunDir(tmp_path / "store" / job_id / "attempts/0/nodes/0")
        assert done.code == 0, done.stdout + done.stderr
        return node.output.read_text()

    first = run("one")
    shutil.rmtree(setup.folder / "index")
    second = run("two")

    (kept,) = cached_venvs(tmp_path / "cache" / "bai" / "venvs")
    assert first == second == f"tiny 1.0 {kept.venv.resolve()}\n"
    # What the ended runs leave keeps nobody from deleting it.
    assert not kept.in_use()


def test_changed_packages_of_the_user_create_a_new_venv(setup: VenvCacheHarness) -> None:
    first, second = setup.job("one"), setup.job("two")
    user = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    own = setup.folder / user / "tiny-1.0.dist-info"
    own.mkdir(parents=True)
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    (own.parent / "tiny.py").write_text("version = 'the user's'\n")
    setup.install(first)
    shutil.rmtree(own.parent)

    setup.install(second)

    assert version_in(second) == "1.0 True\n"
    assert first.venv.resolve() != second.venv.resolve()


def test_two_concurrent_jobs_create_one_shared_venv(setup: VenvCacheHarness) -> None:
    jobs = [setup.job("one"), setup.job("two")]
    threads = [threading.Thread(target=setup.install, args=(each,)) for each in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert [version_in(each) for each in jobs] == ["1.0 True\n"] * 2
    assert len(cached_venvs(setup.cache)) == 1


def test_an_incomplete_cached_venv_is_recreated(setup: VenvCacheHarness) -> None:
    first = setup.job("one")
    setup.install(first)
    (kept,) = cached_venvs(setup.cache)
    # as a kill in the middle of pip's work leaves it
    (setup.cache / f"{kept.key}.json").unlink()
    next(kept.venv.glob("lib/*/site-packages/tiny.py")).unlink()

    second = setup.job("two")
    setup.install(second)

    assert version_in(second) == "1.0 True\n"
    assert second.venv.resolve() == kept.venv.resolve()


def install_foreign_package(packages: Path) -> None:
    (packages / "foreign-1.0.dist-info").mkdir()


def write_into_a_package(packages: Path) -> None:
    module = packages / "tiny.py"
    status = module.stat()
    module.write_text("version = 'bad'\n"[: status.st_size].ljust(status.st_size))
    os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))


def leave_code_that_runs_at_each_start(packages: Path) -> None:
    (packages / "foreign.pth").write_text("import sys; print('foreign code')\n")


def replace_a_package_by_a_link(packages: Path) -> None:
    (packages / "tiny.py").rename(packages.parents[2] / "old.py")
    (packages / "tiny.py").symlink_to("../../../old.py")


def replace_the_interpreter(packages: Path) -> None:
    python = packages.parents[2] / "bin" / "python"
    python.unlink()
    python.write_text("#!/bin/sh\necho foreign code\n")
    python.chmod(0o755)


@pytest.mark.parametrize(
    "change",
    [
        install_foreign_package,
        write_into_a_package,
        leave_code_that_runs_at_each_start,
        replace_a_package_by_a_link,
        replace_the_interpreter,
    ],
)
def test_a_cached_venv_that_a_benchmark_changed_is_not_reused(
    setup: VenvCacheHarness, change: Callable[[Path], None]
) -> None:
    first, second, third = setup.job("one"), setup.job("two"), setup.job("three")
    setup.install(first)
    kept = first.venv.resolve()
    change(next(kept.glob("lib/*/site-packages")))
    left = what_is_in(kept)

    # while the first one lives, the second one gets a venv of its own
    with first.agent_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        setup.install(second)
        assert what_is_in(kept) == left
    setup.install(third)

    assert not second.venv.is_symlink()
    assert third.venv.resolve() == kept
    assert what_is_in(kept) != left
    assert version_in(second) == version_in(third) == "1.0 True\n"


def test_byte_code_written_by_a_run_does_not_prevent_reuse_of_a_cached_venv(setup: VenvCacheHarness) -> None:
    first, second = setup.job("one"), setup.job("two")
    setup.install(first)
    for byte_code in first.venv.resolve().rglob("__pycache__"):
        shutil.rmtree(byte_code)
    version_in(first)  # which writes byte code again
    shutil.rmtree(setup.folder / "index")

    setup.install(second)

    assert second.venv.resolve() == first.venv.resolve()


def let_everybody_write(cache: Path) -> None:
    cache.chmod(0o777)


def let_everybody_write_above(cache: Path) -> None:
    cache.parent.chmod(0o777)


def give_away(cache: Path) -> None:
    os.chown(cache, 64321, 64321)


def give_away_what_is_above(cache: Path) -> None:
    os.chown(cache.parent, 64321, 64321)


@pytest.mark.parametrize(
    "open_door",
    [
        let_everybody_write,
        let_everybody_write_above,
        pytest.param(give_away, marks=pytest.mark.root),
        pytest.param(give_away_what_is_above, marks=pytest.mark.root),
    ],
)
def test_a_venv_cache_that_another_user_can_write_is_not_used(
    setup: VenvCacheHarness, open_door: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a whole venv of these requirements, which another user has exchanged code in and marked as complete
    setup.cache = setup.folder / "home" / "cache"
    first, second = setup.job("one"), setup.job("two")
    setup.install(first)
    (kept,) = cached_venvs(setup.cache)
    next(kept.venv.glob("lib/*/site-packages/tiny.py")).write_text("version = 'foreign'\n")
    kept.complete()
    open_door(setup.cache)

    setup.install(second)

    assert not second.venv.is_symlink()
    assert version_in(second) == "1.0 True\n"
    assert "another user can write in" in caplog.text
    said: list[str] = []
    later = now_ms() + 60_000
    assert list(prune_venvs(setup.cache, before_ms=later, dry_run=False, on_failure=said.append)) == []
    assert kept.venv.exists()
    assert "another user can write in" in said[0]


def test_a_venv_with_a_package_from_a_local_path_is_not_cached(setup: VenvCacheHarness) -> None:
    rundir = setup.job("one", str(setup.wheel))

    setup.install(rundir)

    assert version_in(rundir) == "1.0 True\n"
    assert not rundir.venv.is_symlink()
    assert cached_venvs(setup.cache) == []


def test_prune_deletes_unused_environments(setup: VenvCacheHarness) -> None:
    rundir = setup.job("one")
    setup.install(rundir)
    later = now_ms() + 60_000

    with rundir.agent_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert list(prune_venvs(setup.cache, before_ms=later, dry_run=False)) == []
    assert list(prune_venvs(setup.cache, before_ms=now_ms() - 60_000, dry_run=False)) == []
    (would,) = prune_venvs(setup.cache, before_ms=later, dry_run=True)
    assert rundir.venv.exists()
    (pruned,) = prune_venvs(setup.cache, before_ms=later, dry_run=False)

    assert pruned == would
    assert pruned.bytes > 10_000
    assert not rundir.venv.exists()
    assert cached_venvs(setup.cache) == []
