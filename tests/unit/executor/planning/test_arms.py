"""Two descriptors as the arms of one job."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import SourceKind
from bai_agent.job.descriptor_file import parse_job
from executor.backends.ec2.staging_bucket import local_files
from executor.descriptor import Descriptor
from executor.errors import UsageError
from executor.planning.arms import as_arms
from executor.planning.job_toml import job_toml
from executor.planning.plan import PlanInputs, plan
from executor.planning.requested_job import arm_files


def version(folder: Path, text: str, **tables: Any) -> tuple[Path, Descriptor]:
    """Return the file of a descriptor in `folder`, with a script that holds `text`, and what it says."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    given: dict[str, Any] = {
        "spec_version": "0.1.0",
        "info": {"description": text},
        "hardware": {"instance_type": "t3.small"},
        "ml": {"benchmark_code": "python3 train.py", "script": {"path": "."}},
        **tables,
    }
    return folder / "bench.toml", Descriptor.model_validate(given)


def merged(*versions: tuple[Path, Descriptor]) -> Descriptor:
    files, descriptors = zip(*versions, strict=True)
    return as_arms(files, descriptors, runs=3, until=None, seed=1)


def on_ec2(descriptor: Descriptor, folder: Path) -> tuple[Job, dict[str, list[str]]]:
    """Return the job that `descriptor` becomes on EC2, and the members of what is uploaded for it, by its key."""
    with local_files(descriptor, folder, None, bucket="b", region=None) as files:
        packed = {}
        for each in files.uploads:
            if each.key.endswith(".tar"):
                with tarfile.open(each.path) as archive:
                    packed[each.key] = sorted(archive.getnames())
        job = plan(
            descriptor,
            PlanInputs(
                folder=folder,
                job_id="job-1",
                client_id="alice",
                where="ec2",
                uploads=files.sources,
                arms=arm_files(descriptor),
            ),
        )
    return job, packed


def test_scripts_of_both_arms_are_uploaded_for_a_job_on_ec2(tmp_path: Path) -> None:
    found = merged(version(tmp_path / "old", "1"), version(tmp_path / "new", "2"))

    job, packed = on_ec2(found, tmp_path / "old")

    assert [(each.arm, each.path, each.kind) for each in job.sources] == [
        ("old", ".", SourceKind.SCRIPTS),
        ("new", ".", SourceKind.SCRIPTS),
    ]
    # Each is checked where it is pulled.
    assert [each.src for each in job.sources] == [f"s3://b/scripts/{each.sha256}.tar" for each in job.sources]
    assert list(packed.values()) == [["train.py"], ["train.py"]]
    assert len(packed) == 2
    assert parse_job(job_toml(job).encode(), where="") == job
    assert job.repeat is not None
    one, other = (job.of_arm(each) for each in job.repeat.arms)
    assert (one.sources[0].sha256, other.sources[0].sha256) == tuple(each.sha256 for each in job.sources)
    assert one.sources[0].arm is None


def test_data_that_both_files_share_is_used_by_both(tmp_path: Path) -> None:
    (tmp_path / "common.txt").write_text("x")
    data = [
        {"src": "https://example.com/x", "path": "/data/x"},
        {"src": str(tmp_path / "common.txt"), "path": "common.txt"},
    ]
    own = [{"src": "own.txt", "path": "own.txt"}]
    found = merged(
        version(tmp_path / "old", "1", data={"sources": data}),
        version(tmp_path / "new", "2", data={"sources": data + own}),
    )

    assert [each.path for each in found.data.sources] == ["/data/x", "common.txt"]
    (tmp_path / "new" / "own.txt").write_text("y")
    job, _ = on_ec2(found, tmp_path / "old")
    assert [(each.arm, each.path) for each in job.sources if each.kind is SourceKind.DATA] == [
        (None, "/data/x"),
        (None, "common.txt"),
        ("new", "own.txt"),
    ]


def test_the_same_folder_named_in_two_ways_is_shared(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    one = version(tmp_path, "1")
    other = version(tmp_path, "1", ml={"benchmark_code": "python3 x", "script": {"path": "sub/.."}})

    job, packed = on_ec2(merged(one, (tmp_path / "other.toml", other[1])), tmp_path)

    assert job.arms_apart == ()
    assert [each.arm for each in job.sources] == [None]
    assert len(packed) == 1


def test_arms_with_separate_folders_have_separate_requirements(tmp_path: Path) -> None:
    script = {"path": ".", "requirements": "r.txt"}
    with_packages = {"benchmark_code": "python3 train.py", "script": script}
    found = merged(version(tmp_path / "old", "1"), version(tmp_path / "new", "2", ml=with_packages))

    job, _ = on_ec2(found, tmp_path / "old")

    assert job.repeat is not None
    assert [job.of_arm(each).benchmark.requirements for each in job.repeat.arms] == [None, "r.txt"]


@pytest.mark.parametrize("place", ["/data/x", "/data/x/y", "/data"])
def test_arms_with_different_data_for_the_same_path_are_refused(tmp_path: Path, place: str) -> None:
    def of(name: str, path: str) -> tuple[Path, Descriptor]:
        sources = [{"src": f"https://example.com/{name}", "path": path}]
        return version(tmp_path / name, name, data={"sources": sources})

    with pytest.raises(UsageError, match="so write relative paths"):
        merged(of("old", "/data/x"), of("new", place))
    merged(of("old", "/data/x"), of("new", "/data/xy"))


def test_arms_that_differ_in_hardware_limits_or_secrets_are_refused(tmp_path: Path) -> None:
    old = version(tmp_path / "old", "1")
    for tables, key in (
        ({"hardware": {"instance_type": "t3.large"}}, "hardware.instance_type"),
        ({"env": {"secrets": {"TOKEN": "ssm:x"}}}, "env.secrets"),
        ({"env": {"python": "/usr/bin/python3"}}, "env.python"),
        ({"limits": {"max_runtime": "1h"}}, "limits.max_runtime"),
    ):
        with pytest.raises(UsageError, match=key):
            merged(old, version(tmp_path / "new", "2", **tables))


def test_arms_with_different_models_behind_the_same_relative_path_are_refused(tmp_path: Path) -> None:
    def of(name: str, src: str) -> tuple[Path, Descriptor]:
        env = {"start_command": "serve", "ports": [80]}
        server = {
            "hardware": {"instance_type": "t3.small"},
            "env": env,
            "models": [{"src": src, "path": "/models/a"}],
        }
        hardware = {"instance_type": "t3.small", "strategy": "inference"}
        return version(tmp_path / name, name, server=server, hardware=hardware)

    with pytest.raises(UsageError, match=r"server\.models\.1\.src: .*old/model\.bin, .*new/model\.bin;"):
        merged(of("old", "model.bin"), of("new", "model.bin"))
    merged(of("old", "../model.bin"), of("new", "../model.bin"))
    merged(of("old", "s3://bucket/model.bin"), of("new", "s3://bucket/model.bin"))


def test_three_files_are_three_arms_in_blocks_of_three(tmp_path: Path) -> None:
    versions = [version(tmp_path / name, name) for name in ("one", "two", "three")]

    job, packed = on_ec2(merged(*versions), tmp_path)

    assert job.repeat is not None
    assert [each.name for each in job.repeat.arms] == ["one", "two", "three"]
    assert len(packed) == 3
    turns = job.repeat.sequence
    assert len(turns) == 9
    assert all(sorted(turns[i : i + 3]) == [0, 1, 2] for i in (0, 3, 6))


def test_a_third_file_that_differs_elsewhere_is_named(tmp_path: Path) -> None:
    versions = [version(tmp_path / name, name) for name in ("one", "two")]
    odd = version(tmp_path / "odd", "odd", hardware={"instance_type": "t3.large"})

    with pytest.raises(
        UsageError, match=r"hardware.instance_type: .*one.* says t3.small, .*odd.* says t3.large"
    ):
        merged(*versions, odd)


def test_labels_may_differ_between_arms(tmp_path: Path) -> None:
    files = [
        version(
            tmp_path / name,
            "same",
            info={"description": name, "labels": {"team": "x", "branch": name}, "task_name": name},
        )
        for name in ("old", "new")
    ]

    job, _ = on_ec2(merged(*files), tmp_path)

    assert job.job.labels == {"team": "x"}
    assert job.repeat is not None
    assert [each.labels for each in job.repeat.arms] == [{"branch": "old"}, {"branch": "new"}]
    assert parse_job(job_toml(job).encode(), where="job.toml") == job
