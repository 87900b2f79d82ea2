"""What podman is asked for; a stand-in of it records its arguments and answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bai_agent.benchmark import container
from bai_agent.benchmark.container import (
    Container,
    bring_image,
    contained,
    find_container,
    find_podman,
    own_environment,
    remove_container,
)
from bai_agent.errors import SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.descriptor.source_tables import Mount, MountType, Source, SourceKind
from bai_agent.job.run_directory import RunDir

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1"
TOKEN = "QVdTOnMzY3JldA=="

_STAND_IN = """\
#!{python}
import json, os, sys
from pathlib import Path
files = {{word: [Path(word.partition("=")[2]).read_text(), oct(Path(word.partition("=")[2]).stat().st_mode)]
         for word in sys.argv if word.startswith("--authfile=")}}
with open({calls!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ), files]) + "\\n")
{answer}
"""
INSPECTED = 'print(json.dumps([{"Id": "abc", "Config": {"Env": ["PATH=/image/bin", "SAYS=a=b"]}}]))'
USUAL = f"""
if "--version" in sys.argv: print("podman version 4.9.3")
elif "exists" in sys.argv: sys.exit(1)
elif "inspect" in sys.argv: {INSPECTED}
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a podman with an answer (Python), and returns the file of its calls."""
    monkeypatch.setattr(container, "_GPU", tmp_path / "no-gpu")

    def make(answer: str = USUAL) -> Path:
        folder, calls = tmp_path / "bin", tmp_path / "calls.jsonl"
        folder.mkdir(exist_ok=True)
        (folder / "podman").write_text(
            _STAND_IN.format(python=sys.executable, calls=str(calls), answer=answer)
        )
        (folder / "podman").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return calls

    return make


def pulls(calls: Path) -> list[list[Any]]:
    """Return the calls of podman that pull an image."""
    return [each for each in map(json.loads, calls.read_text().splitlines()) if "pull" in each[0]]


def job(**benchmark: object) -> Job:
    table = {"argv": ("train",), "container": "registry.example/train:1", **benchmark}
    return Job(job=Identity(id="j"), benchmark=Benchmark(**table))  # type: ignore[arg-type]


def rundir(folder: Path) -> RunDir:
    (folder / "run").mkdir(exist_ok=True)
    return RunDir(folder / "run")


def brought(folder: Path, one: Job, *, seconds: float = 60.0) -> None:
    bring_image(
        one, rundir(folder), deadline=time.monotonic() + seconds, stopping=lambda: False, on_instance=False
    )


def words_of(
    folder: Path, one: Job, env: dict[str, str], user: User | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    found = Container(podman="/bin/podman", image="abc", environment={})
    return contained(found, one, rundir(folder), env=env, cwd=folder / "run" / "work", user=user)


def test_gpus_are_passed_to_podman_by_cdi(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stand_in(USUAL)
    gpu, folder = tmp_path / "nvidiactl", tmp_path / "cdi"
    gpu.touch()
    folder.mkdir()
    monkeypatch.setattr(container, "_GPU", gpu)
    monkeypatch.setattr(container, "_CDI_FOLDERS", (folder,))
    with pytest.raises(SetupError, match=r"does not know the GPUs .* run `sudo nvidia-ctk cdi generate"):
        brought(tmp_path, job())
    (folder / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    brought(tmp_path, job())

    found = find_container("registry.example/train:1", rundir(tmp_path))
    words, env = contained(found, job(), rundir(tmp_path), env={}, cwd=tmp_path / "run" / "work", user=None)
    subprocess.run([*words, "train"], env=env, check=True, timeout=60)

    argv = json.loads(calls.read_text().splitlines()[-1])[0]
    assert "--device=nvidia.com/gpu=all" in argv
    assert argv[-2:] == ["abc", "train"]


@pytest.mark.parametrize("works", [True, False])
def test_an_ec2_instance_generates_its_cdi_description_of_gpus(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    stand_in(USUAL)
    (tmp_path / "nvidiactl").touch()
    program = tmp_path / "bin" / "nvidia-ctk"
    program.write_text(
        f'#!/bin/sh\n{"" if works else "echo no driver; exit 3"}\necho "$3" >"${{3#--output=}}"\n'
    )
    program.chmod(0o755)
    for name, value in {
        "_GPU": tmp_path / "nvidiactl",
        "_CDI_FOLDERS": (tmp_path / "etc" / "cdi",),
        "DEFAULT_PATH": f"{program.parent}:/bin",
    }.items():
        monkeypatch.setattr(container, name, value)

    def bring() -> None:
        bring_image(
            job(),
            rundir(tmp_path),
            deadline=time.monotonic() + 60,
            stopping=lambda: False,
            on_instance=True,
        )

    if works:
        bring()
        assert (tmp_path / "etc" / "cdi" / "nvidia.yaml").exists()
    else:
        with pytest.raises(
            SetupError, match=r"does not know the GPUs of this machine: 'no driver'; run `sudo"
        ):
            bring()


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

    with pytest.raises(SetupError, match=r"\[env.vars\] LD_ADDRESS: .* and it has a secret"):
        words_of(tmp_path, one, {**variables, "LD_ADDRESS": "http://u:s3cret@h/", "TOKEN": "s3cret"})
    words_of(tmp_path, one, {"AT": "u:s3cret@h", "PODMAN_USER": "u", "TOKEN": "s3cret"})


def test_a_variable_that_would_make_podman_hang_is_kept_from_its_own_environment(tmp_path: Path) -> None:
    words, given = words_of(tmp_path, job(), {"_PODMAN_PAUSE": "1"})

    assert "--env=_PODMAN_PAUSE=1" in words
    assert "_PODMAN_PAUSE" not in given


def test_an_image_cannot_ask_for_variables_of_the_caller(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    stand_in(USUAL.replace('"SAYS=a=b"', '"SAYS=a=b", "*=x", "AWS*=x", "=x"'))

    found = find_container("registry.example/train:1", rundir(tmp_path))

    assert found.environment == {"PATH": "/image/bin", "SAYS": "a=b"}


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


def test_the_id_and_environment_of_an_image_are_read(tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    stand_in(USUAL)

    found = find_container("registry.example/train:1", rundir(tmp_path))

    assert (found.image, found.environment) == ("abc", {"PATH": "/image/bin", "SAYS": "a=b"})


@pytest.mark.parametrize(
    "answer", ["print('[]')", "print('{')", 'print(\'[{"Id": 1, "Config": 3}]\')', "sys.exit(125)"]
)
def test_an_image_that_cannot_be_inspected_is_named(
    tmp_path: Path, stand_in: Callable[[str], Path], answer: str
) -> None:
    stand_in(USUAL.replace(INSPECTED, answer))

    with pytest.raises(SetupError, match=r'image "registry.example/train:1" cannot be found on this machine'):
        find_container("registry.example/train:1", rundir(tmp_path))


def test_restarts_use_the_image_that_was_pulled_although_its_tag_has_moved(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    """Also after a restart of the agent, unless somebody has removed the image meanwhile."""
    called = 'print(json.dumps([{{"Id": {}, "Config": {{}}}}]))'
    there = USUAL.replace("sys.exit(1)", "sys.exit(0)")
    stand_in(there.replace(INSPECTED, called.format('"abc"')))
    brought(tmp_path, job())
    calls = stand_in(there.replace(INSPECTED, called.format('"abc" if "abc" in sys.argv else "def"')))

    brought(tmp_path, job())
    assert find_container("registry.example/train:1", rundir(tmp_path)).image == "abc"
    assert pulls(calls) == []

    stand_in(USUAL.replace(INSPECTED, called.format('"abc" if "abc" in sys.argv else "def"')))
    brought(tmp_path, job())
    assert find_container("registry.example/train:1", rundir(tmp_path)).image == "def"
    assert len(pulls(calls)) == 1


def test_a_missing_podman_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SetupError, match=r"podman is not on this machine; install the package podman .*dnf"):
        brought(tmp_path, job())


@pytest.mark.parametrize("version", ["podman version 3.4.4", "?"])
def test_an_old_podman_is_refused(stand_in: Callable[[str], Path], version: str) -> None:
    stand_in(f"print({version!r})")

    with pytest.raises(SetupError, match=r"4\.1 is the oldest that works"):
        find_podman()


def test_a_podman_that_lacks_permissions_is_refused_with_its_own_message(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    stand_in(
        USUAL.replace("sys.exit(1)", "print('Error: cannot clone: Operation not permitted'); sys.exit(125)")
    )

    with pytest.raises(SetupError, match=r"podman does not work on this machine: .*Operation not permitted"):
        brought(tmp_path, job())


def test_a_pull_that_hangs_ends_at_the_deadline(tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    stand_in(USUAL + "elif 'pull' in sys.argv: import time; time.sleep(600)\n")

    with pytest.raises(SetupError, match=r"could not be pulled within limits.pull_timeout"):
        brought(tmp_path, job(), seconds=0.5)


def test_the_ecr_login_is_a_private_file_that_is_removed_after_the_pull(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stand_in(USUAL)
    asked = []

    def login(service: str, target: str, question: object, **more: object) -> object:
        asked.append((service, target, more["region"]))
        return {"authorizationData": [{"authorizationToken": TOKEN}]}

    monkeypatch.setattr("bai_agent.aws.registry_login.ask", login)

    brought(tmp_path, job(container=ECR))

    ((argv, _, files),) = pulls(calls)
    ((text, mode),) = files.values()
    assert argv[:2] == ["pull", "--quiet"]
    assert argv[-1] == ECR
    assert json.loads(text) == {"auths": {ECR.partition("/")[0]: {"auth": TOKEN}}}
    assert mode == oct(0o100600)
    assert asked == [("ecr", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken", "eu-west-1")]
    assert TOKEN not in " ".join(argv)
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["image.id"]


def test_a_role_that_may_not_log_in_is_named_with_the_policy(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(USUAL)
    monkeypatch.setattr("bai_agent.aws.registry_login.ask", lambda *_, **__: {"authorizationData": []})

    with pytest.raises(
        SetupError, match=r"authorizationToken; the role .*AmazonEC2ContainerRegistryReadOnly"
    ):
        brought(tmp_path, job(container=ECR))


def test_a_container_that_cannot_be_removed_causes_a_warning(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    stand_in(USUAL + "elif 'rm' in sys.argv: print('Error: it is busy'); sys.exit(125)\n")

    assert remove_container(rundir(tmp_path)) == "The container could not be removed: 'it is busy'"
    stand_in(USUAL)
    assert remove_container(rundir(tmp_path)) is None
