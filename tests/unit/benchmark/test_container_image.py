"""The engine and the image of a job's container; a stand-in of podman records its arguments and answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_in_podman import INSPECTED, USUAL, put_podman

from bai_agent.benchmark import container_image
from bai_agent.benchmark.container_image import bring_image, find_container, find_podman
from bai_agent.errors import ServiceError, SetupError
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.run_directory import RunDir

IMAGE = "registry.example/train:1"
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1"
TOKEN = "QVdTOnMzY3JldA=="


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a podman with an answer (Python), and returns the file of its calls."""
    monkeypatch.setattr(container_image, "_GPU", tmp_path / "no-gpu")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return lambda answer: put_podman(tmp_path / "bin", answer)


def pulls(calls: Path) -> list[list[Any]]:
    """Return the calls of podman that pull an image."""
    return [each for each in map(json.loads, calls.read_text().splitlines()) if "pull" in each[0]]


def rundir(folder: Path) -> RunDir:
    (folder / "run").mkdir(exist_ok=True)
    return RunDir(folder / "run")


def bring(folder: Path, *, container: str = IMAGE, seconds: float = 60.0, on_instance: bool = False) -> None:
    bring_image(
        Job(job=Identity(id="j"), benchmark=Benchmark(argv=("train",), container=container)),
        rundir(folder),
        deadline=time.monotonic() + seconds,
        stopping=lambda: False,
        on_instance=on_instance,
    )


def test_an_engine_that_does_not_know_the_gpus_is_refused(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(USUAL)
    gpu, folder = tmp_path / "nvidiactl", tmp_path / "cdi"
    gpu.touch()
    folder.mkdir()
    monkeypatch.setattr(container_image, "_GPU", gpu)
    monkeypatch.setattr(container_image, "_CDI_FOLDERS", (folder,))
    with pytest.raises(SetupError, match=r"does not know the GPUs .* run `sudo nvidia-ctk cdi generate"):
        bring(tmp_path)
    (folder / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")

    bring(tmp_path)


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
        monkeypatch.setattr(container_image, name, value)

    if works:
        bring(tmp_path, on_instance=True)
        assert (tmp_path / "etc" / "cdi" / "nvidia.yaml").exists()
    else:
        with pytest.raises(
            SetupError, match=r"does not know the GPUs of this machine: 'no driver'; run `sudo"
        ):
            bring(tmp_path, on_instance=True)


def test_an_image_cannot_ask_for_variables_of_the_caller(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    stand_in(USUAL.replace('"SAYS=a=b"', '"SAYS=a=b", "*=x", "AWS*=x", "=x"'))

    found = find_container(IMAGE, rundir(tmp_path))

    assert found.environment == {"PATH": "/image/bin", "SAYS": "a=b"}


def test_the_id_and_environment_of_an_image_are_read(tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    stand_in(USUAL)

    found = find_container(IMAGE, rundir(tmp_path))

    assert (found.image, found.environment) == ("abc", {"PATH": "/image/bin", "SAYS": "a=b"})


@pytest.mark.parametrize(
    "answer", ["print('[]')", "print('{')", 'print(\'[{"Id": 1, "Config": 3}]\')', "sys.exit(125)"]
)
def test_an_image_that_cannot_be_inspected_is_named(
    tmp_path: Path, stand_in: Callable[[str], Path], answer: str
) -> None:
    stand_in(USUAL.replace(INSPECTED, answer))

    with pytest.raises(SetupError, match=r'image "registry.example/train:1" cannot be found on this machine'):
        find_container(IMAGE, rundir(tmp_path))


def test_restarts_use_the_image_that_was_pulled_although_its_tag_has_moved(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    """Also after a restart of the agent, unless somebody has removed the image meanwhile."""
    called = 'print(json.dumps([{{"Id": {}, "Config": {{}}}}]))'
    there = USUAL.replace("sys.exit(1)", "sys.exit(0)")
    stand_in(there.replace(INSPECTED, called.format('"abc"')))
    bring(tmp_path)
    calls = stand_in(there.replace(INSPECTED, called.format('"abc" if "abc" in sys.argv else "def"')))

    bring(tmp_path)
    assert find_container(IMAGE, rundir(tmp_path)).image == "abc"
    assert pulls(calls) == []

    stand_in(USUAL.replace(INSPECTED, called.format('"abc" if "abc" in sys.argv else "def"')))
    bring(tmp_path)
    assert find_container(IMAGE, rundir(tmp_path)).image == "def"
    assert len(pulls(calls)) == 1


def test_podman_is_asked_for_its_version_once(tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    """Arms and generations of a job each look for their container."""
    calls = stand_in(USUAL)

    bring(tmp_path)
    for _ in range(3):
        find_container(IMAGE, rundir(tmp_path))

    asked = [json.loads(each)[0] for each in calls.read_text().splitlines()]
    assert asked.count(["--version"]) == 1


def test_a_missing_podman_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SetupError, match=r"podman is not on this machine; install the package podman .*dnf"):
        bring(tmp_path)


@pytest.mark.parametrize("version", ["podman version 3.4.4", "?"])
def test_an_old_podman_is_refused(stand_in: Callable[[str], Path], version: str) -> None:
    stand_in(f"print({version!r})")

    with pytest.raises(SetupError, match=r"version 4\.1 or later is needed"):
        find_podman()


def test_a_podman_that_lacks_permissions_is_refused_with_its_own_message(
    tmp_path: Path, stand_in: Callable[[str], Path]
) -> None:
    stand_in(
        USUAL.replace("sys.exit(1)", "print('Error: cannot clone: Operation not permitted'); sys.exit(125)")
    )

    with pytest.raises(SetupError, match=r"podman does not work on this machine: .*Operation not permitted"):
        bring(tmp_path)


def test_a_pull_that_hangs_ends_at_the_deadline(tmp_path: Path, stand_in: Callable[[str], Path]) -> None:
    stand_in(USUAL + "elif 'pull' in sys.argv: import time; time.sleep(600)\n")

    with pytest.raises(SetupError, match=r"could not be pulled within limits.pull_timeout"):
        bring(tmp_path, seconds=0.5)


def test_the_ecr_login_is_a_private_file_that_is_removed_after_the_pull(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = stand_in(USUAL)
    asked = []

    def login(service: str, target: str, question: object, **more: object) -> object:
        asked.append((service, target, more["region"]))
        return {"authorizationData": [{"authorizationToken": TOKEN}]}

    monkeypatch.setattr("bai_agent.aws.registry_login.ask", login)

    bring(tmp_path, container=ECR)

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

    def refuse(*_: object, **__: object) -> None:
        raise ServiceError("ecr says AccessDeniedException: not authorized", code="AccessDeniedException")

    monkeypatch.setattr("bai_agent.aws.registry_login.ask", refuse)

    with pytest.raises(SetupError, match=r"not authorized; the role .*AmazonEC2ContainerRegistryReadOnly"):
        bring(tmp_path, container=ECR)


def test_another_failed_login_says_nothing_of_the_role(
    tmp_path: Path, stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(USUAL)
    monkeypatch.setattr("bai_agent.aws.registry_login.ask", lambda *_, **__: {"authorizationData": []})

    with pytest.raises(SetupError, match=r"could not be pulled: ecr gave no authorizationToken$"):
        bring(tmp_path, container=ECR)
