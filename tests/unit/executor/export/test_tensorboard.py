"""A job's event files, read back by TensorBoard's own accumulator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_harness import BAI
from exported_jobs import append, job_of_arms, two_repeats
from handmade_job import HandmadeJob
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from executor.errors import ExportError
from executor.export.facts import job_facts
from executor.export.tensorboard import export_to_tensorboard


@pytest.fixture
def job(tmp_path: Path) -> HandmadeJob:
    return HandmadeJob(tmp_path / "store")


def exported(job: HandmadeJob, folder: Path) -> Path:
    return export_to_tensorboard(job_facts(job.record), folder)


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(folder: Path) -> dict[str, list[float]]:
    found = read(folder)
    return {tag: [each.value for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_values_have_their_steps_and_times(job: HandmadeJob, tmp_path: Path) -> None:
    append(
        job,
        *({"step": 10 * n, "labels": {"kind": "a"}} for n in range(3)),
        {"src": "host", "name": "cpu", "value": 50},
    )
    job.ends()

    place = exported(job, tmp_path / "tb")

    assert place == tmp_path / "tb" / "digits-1"
    found = read(place)
    assert sorted(found.Tags()["scalars"]) == ["headline/loss/kind-a", "host/cpu", "loss/kind-a"]
    points = found.Scalars("loss/kind-a")
    assert [(each.value, each.step) for each in points] == [(0, 0), (0.5, 10), (1, 20)]
    assert [each.wall_time for each in points] == pytest.approx([(job.started + n) / 1000 for n in range(3)])


def test_metric_names_that_map_to_the_same_tag_get_a_suffix(job: HandmadeJob, tmp_path: Path) -> None:
    append(job, {"name": "p=99%", "value": 1}, {"name": "p_99_", "value": 2})

    assert scalars(exported(job, tmp_path / "tb")) == {"p_99_": [1], "p_99__2": [2]}


def test_resource_metrics_are_exported_under_their_metric_name(job: HandmadeJob, tmp_path: Path) -> None:
    append(job, {"src": "exit", "name": "took", "value": 3})

    assert scalars(exported(job, tmp_path / "tb")) == {"took": [3]}


def test_parameters_and_outcome_are_written_as_a_text(job: HandmadeJob, tmp_path: Path) -> None:
    append(job, {})
    job.ends()

    found = read(exported(job, tmp_path / "tb"))

    (text,) = found.Tensors("job/text_summary")
    content = text.tensor_proto.string_val[0].decode()
    assert "| command | python3 train.py |" in content
    assert "| outcome | succeeded |" in content


def test_each_arm_is_exported_to_a_folder_with_its_command(job: HandmadeJob, tmp_path: Path) -> None:
    job_of_arms(job)

    place = exported(job, tmp_path / "tb")

    found = {each.parent.relative_to(place).parts: each.parent for each in place.rglob("events.*")}
    assert {arm for arm, _ in found} == {"arm-old", "arm-new"}
    for (arm, repeat), folder in found.items():
        assert scalars(folder)["loss"] == [int(repeat[-1]) + 1]
        content = read(folder).Tensors("job/text_summary")[0].tensor_proto.string_val[0].decode()
        name = arm.removeprefix("arm-")
        assert f"| command | sort {'-n' if name == 'old' else '-g'} |" in content
        assert f"| env.MODE | {name} |" in content
        assert f"| arm | {name} |" in content


def test_each_node_and_repeat_is_exported_to_a_folder(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path / "store", nodes=2)
    for rank in (0, 1):
        append(job, {"repeat": 0, "value": rank}, {"repeat": 1, "value": 10 + rank}, rank=rank)
    job.ends(repeats=two_repeats(job))

    place = exported(job, tmp_path / "tb")

    found = {str(each.parent.relative_to(place)): scalars(each.parent) for each in place.rglob("events.*")}
    # The second repeat failed: no number stands for it
    assert found == {
        "repeat-0/rank-0": {"loss": [0], "headline/loss": [0]},
        "repeat-0/rank-1": {"loss": [1], "headline/loss": [1]},
        "repeat-1/rank-0": {"loss": [10]},
        "repeat-1/rank-1": {"loss": [11]},
    }


def test_an_earlier_export_is_replaced(job: HandmadeJob, tmp_path: Path) -> None:
    append(job, {"value": 1})
    exported(job, tmp_path / "tb")
    append(job, {"value": 2})

    place = exported(job, tmp_path / "tb")

    assert scalars(place) == {"loss": [1, 2]}
    assert [each.name for each in (tmp_path / "tb").iterdir()] == ["digits-1"]


def test_a_foreign_folder_is_not_touched(job: HandmadeJob, tmp_path: Path) -> None:
    theirs = tmp_path / "tb" / "digits-1" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine")

    with pytest.raises(ExportError, match="was not made by an export"):
        exported(job, tmp_path / "tb")

    assert theirs.read_text() == "mine"
    assert len(list((tmp_path / "tb").iterdir())) == 1


def test_bai_export_prints_the_path_of_the_files(job: HandmadeJob, tmp_path: Path) -> None:
    append(job, {"value": 1})
    job.ends()
    command = [*BAI, "export", "digits-1", "--store", str(job.store.folder)]

    done = subprocess.run(
        [*command, "--to", "tensorboard", "--dir", str(tmp_path / "tb")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    wrong = subprocess.run([*command, "--to", "excel"], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/tb/digits-1\n"), done.stderr
    assert f"tensorboard --logdir {tmp_path}/tb" in done.stderr
    assert scalars(tmp_path / "tb" / "digits-1") == {"loss": [1], "headline/loss": [1]}
    assert wrong.returncode == 2
    assert "write mlflow or tensorboard" in wrong.stderr


def test_without_the_library_the_error_tells_how_to_install_it(
    job: HandmadeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)

    with pytest.raises(ExportError, match=r"pip install 'bai-agent\[tensorboard\]'"):
        exported(job, tmp_path / "tb")
    assert not (tmp_path / "tb").exists()
