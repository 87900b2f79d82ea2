"""The command that starts a benchmark in its container, and the container's removal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stand_in_podman import USUAL, put_podman

from bai_agent.benchmark import container_image
from bai_agent.benchmark.container import contained, own_environment, remove_container
from bai_agent.benchmark.container_image import Container
from bai_agent.errors import SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.descriptor.source_tables import Mount, MountType, Source, SourceKind
from bai_agent.job.run_directory import RunDir


def job(**benchmark: object) -> Job:
    table = {"argv": ("train",), "container": "registry.example/train:1", **benchmark}
    return Job(job=Identity(id="j"), benchmark=Benchmark(**table))  # type: ignore[arg-type]


def rundir(folder: Path) -> RunDir:
    (folder / "run").mkdir(exist_ok=True)
    return RunDir(folder / "run")


def words_of(
    folder: Path, one: Job, env: dict[str, str], user: User | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    found = Container(podman="/bin/podman", image="abc", environment={})
    return contained(found, one, rundir(folder), env=env, cwd=folder / "run" / "work", user=user)


@pytest.mark.parametrize("exists", [True, False])
def test_gpus_are_passed_to_podman_by_cdi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    gpu = tmp_path / "nvidiactl"
    if exists:
        gpu.touch()
    monkeypatch.setattr(container_image, "_GPU", gpu)

    words, _ = words_of(tmp_path, job(), {})

    assert ("--device=nvidia.com/gpu=all" in words) == exists
    assert words[-1] == "abc"


def test_values_of_variables_are_not_in_podmans_arguments_unless_podman_itself_reads_them(
    tmp_path: Path,
) -> None:
    env = {"TOKEN": "s3cret", "PATH": "/image/bin", "LD_PRELOAD": "/image/x.so", "XDG_X": "1"}

    words, given = words_of(tmp_path, job(), env)

    assert {"--env=TOKEN", "--env=PATH=/image/bin", "--env=LD_PRELOAD=/image/x.so"} <= set(words)
    assert "s3cret" not in " ".join(words)
    assert given["TOKEN"] == "s3cret"
    assert given["PATH"] == os.environ["PATH"]
    assert given.get("LD_PRELOAD") == os.environ.get("LD_PRELOAD")


def test_a_secret_in_a_variable_that_podman_itself_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"\[env.secrets\] CONTAINERS_CONF"):
        words_of(tmp_path, job(secrets={"CONTAINERS_CONF": "env:X"}), {"CONTAINERS_CONF": "/x"})
    words_of(tmp_path, job(secrets={"GOOGLE_API_KEY": "env:X"}), {"GOOGLE_API_KEY": "x"})


def test_a_variable_that_contains_a_secret_is_not_in_podmans_arguments(tmp_path: Path) -> None:
    variables = {"AT": "u:$(TOKEN)@h", "LD_ADDRESS": "http://$(AT)/", "PODMAN_USER": "u"}
    one = job(secrets={"TOKEN": "env:X"}, env=variables)

    with pytest.raises(SetupError, match=r"\[env.vars\] LD_ADDRESS: .* it contains a secret"):
        words_of(tmp_path, one, {**variables, "LD_ADDRESS": "http://u:s3cret@h/", "TOKEN": "s3cret"})
    words_of(tmp_path, one, {"AT": "u:s3cret@h", "PODMAN_USER": "u", "TOKEN": "s3cret"})


def test_a_variable_that_would_make_podman_hang_is_kept_from_its_own_environment(tmp_path: Path) -> None:
    words, given = words_of(tmp_path, job(), {"_PODMAN_PAUSE": "1"})

    assert "--env=_PODMAN_PAUSE=1" in words
    assert "_PODMAN_PAUSE" not in given


def test_the_container_runs_as_the_benchmarks_user_and_groups(tmp_path: Path) -> None:
    user = User(name="u", uid=7, gid=8, groups=(8, 9), home="/home/u")

    words, _ = words_of(tmp_path, job(), {}, user)
    plain, _ = words_of(tmp_path, job(), {})

    assert {"--user=7:8", "--group-add=9"} <= set(words)
    assert "--group-add=8" not in words
    assert "--user=0:0" in plain


def test_folders_and_data_of_the_job_have_the_same_paths_in_the_container(tmp_path: Path) -> None:
    data, efs = tmp_path / "data", tmp_path / "efs"
    (data / "y").mkdir(parents=True)
    paths = (str(data), str(data / "y"), "relative")
    one = Job(
        job=Identity(id="j"),
        benchmark=job().benchmark,
        sources=tuple(Source(kind=SourceKind.DATA, src="s3://b/k", path=path) for path in paths),
        mounts=(Mount(type=MountType.NFS, src="h:/x", target=str(efs)),),
    )
    with pytest.raises(SetupError, match=f"{efs} does not exist on this machine"):
        words_of(tmp_path, one, {})
    efs.mkdir()

    words, _ = words_of(tmp_path, one, {})

    mounts = [each.removeprefix("--mount=") for each in words if each.startswith("--mount=")]
    # The first is how Python's output is buffered.
    assert mounts[1:] == [f"type=bind,src={each},dst={each}" for each in (tmp_path / "run", data, efs)]


@pytest.mark.parametrize(("shared", "mounted"), [(False, "g1"), (True, "")])
def test_the_mounted_checkpoint_folder_is_that_of_bai_checkpoint_dir(
    tmp_path: Path, shared: bool, mounted: str
) -> None:
    folder = tmp_path / "job-1" / "g1"
    folder.mkdir(parents=True)
    one = Job(
        job=Identity(id="j"),
        benchmark=job().benchmark,
        checkpoint=Checkpoint(path=f"{tmp_path}/$(BAI_JOB_ID)", shared=shared),
    )

    words, _ = words_of(tmp_path, one, {"BAI_CHECKPOINT_DIR": str(folder)})

    place = folder.parent / mounted
    assert f"--mount=type=bind,src={place},dst={place}" in words


def test_a_path_that_podman_would_split_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a,readonly"
    folder.mkdir()
    with pytest.raises(SetupError, match="a comma"):
        words_of(folder, job(), {})


def test_variables_of_the_hosts_account_and_loader_are_not_passed_into_a_container() -> None:
    env = {"HOME": "/root", "LD_PRELOAD": "libstdbuf.so", "SAYS": "hello", "USER": "x"}

    assert own_environment(env, job(), Container(podman="p", image="i", environment={})) == {"SAYS": "hello"}
    kept = own_environment(
        env, job(env={"USER": "x"}), Container(podman="p", image="i", environment={"HOME": "/h"})
    )
    assert set(kept) == {"HOME", "SAYS", "USER"}


def test_a_container_that_cannot_be_removed_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    put_podman(tmp_path / "bin", USUAL + "elif 'rm' in sys.argv: print('Error: it is busy'); sys.exit(125)\n")

    assert remove_container(rundir(tmp_path)) == "The container could not be removed: 'it is busy'"
    put_podman(tmp_path / "bin")
    assert remove_container(rundir(tmp_path)) is None
