"""Checkpoints of earlier jobs: which job and checkpoint a reference means, and what cannot be used."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import tomli_w
from handmade_job import HandmadeJob
from saved_files import keep_checkpoint

from bai_agent.generations.checkpoint_marker import CheckpointMarker, CheckpointRecord, marker_digest
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.restart_tables import Checkpoint, CheckpointOrigin
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor_file import job_table
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace
from executor.descriptor import load
from executor.descriptor.model import Descriptor
from executor.descriptor.overrides import read_overrides, recorded
from executor.errors import PlanError, UsageError
from executor.jobs.earlier_jobs import use_earlier_jobs, without_earlier_jobs
from executor.jobs.rerun import Rerun, from_checkpoint
from executor.jobs.scope import JobScope
from executor.planning.plan import PlanInputs, plan
from executor.planning.request import JobRequest
from executor.planning.requested_job import same_job

_TEXT = """
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "local"
[ml]
benchmark_code = "true"
[checkpoint]
path = "checkpoints"
from = "{origin}"
"""
_PLAIN = Checkpoint(path="checkpoints")

Make = Callable[..., HandmadeJob]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def made(store: Path) -> Make:
    def make(
        job_id: str,
        *,
        started: int = 1,
        checkpoint: Checkpoint | None = _PLAIN,
        outcome: str | None = "failed",
    ) -> HandmadeJob:
        job = HandmadeJob(store, job_id, started=started, labels={"stage": "train"})
        table = job_table(replace(job.job, checkpoint=checkpoint))
        job.store.put(job.record.key("job.toml"), tomli_w.dumps(table).encode())
        if outcome is not None:
            job.ends(outcome, exit_code=0 if outcome == "succeeded" else 1)
        return job

    return make


def _descriptor(origin: str) -> Descriptor:
    descriptor, findings = load(Path("b.toml"), content=_TEXT.format(origin=origin).encode())
    assert descriptor is not None, findings
    return descriptor


def _used(
    store: Path, origin: str, *, job_id: str | None = None, **request: object
) -> tuple[JobRequest, Descriptor]:
    job_request = JobRequest(file=Path("b.toml"), **request)  # type: ignore[arg-type]
    return use_earlier_jobs(job_request, _descriptor(origin), JobScope(store=str(store)), job_id=job_id)


def _planned(descriptor: Descriptor, store: str) -> Job:
    return plan(descriptor, PlanInputs(folder=Path("/"), job_id="new", client_id="c", store=Store(url=store)))


def _origin(job: HandmadeJob, marker: CheckpointMarker) -> CheckpointOrigin:
    return CheckpointOrigin(job=job.record.job_id, name=marker.name, sha256=marker_digest(marker))


@pytest.mark.parametrize("name", ["train-1", "train", "last", "last:digits", "label=stage=train"])
@pytest.mark.parametrize("outcome", ["failed", "succeeded"])
def test_a_reference_to_a_job_means_its_newest_checkpoint(
    store: Path, made: Make, name: str, outcome: str
) -> None:
    keep_checkpoint(made("older", started=1).record, {"step": "1"})
    job = made("train-1", started=2, outcome=outcome)
    keep_checkpoint(job.record, {"step": "7"})
    newest = keep_checkpoint(job.record, {"step": "8"}, number=1)

    request, descriptor = _used(store, f"job:{name}")

    planned = _planned(descriptor, job.store.url)
    assert planned.checkpoint == replace(_PLAIN, origin=_origin(job, newest))
    pinned = {"checkpoint.from": "job:train-1"} if name != "train-1" else {}
    assert recorded(request.overrides) == pinned


def test_a_checkpoint_with_missing_files_is_skipped(store: Path, made: Make) -> None:
    job = made("train-1")
    whole = keep_checkpoint(job.record, {"step": "7"})
    torn = keep_checkpoint(job.record, {"step": "81"}, number=1)
    job.store.put(CheckpointRecord(AttemptRecord(job.record, 0)).file_key(torn, 0), b"8")

    _, descriptor = _used(store, "job:train-1")

    assert _planned(descriptor, job.store.url).checkpoint == replace(_PLAIN, origin=_origin(job, whole))


def test_a_job_without_checkpoints_passes_on_the_one_from_which_it_began(store: Path, made: Make) -> None:
    first = made("first")
    origin = _origin(first, keep_checkpoint(first.record, {"step": "7"}))
    made("second", checkpoint=replace(_PLAIN, origin=origin))

    _, descriptor = _used(store, "job:second")
    assert _planned(descriptor, first.store.url).checkpoint == replace(_PLAIN, origin=origin)

    (store / "first/attempts/0/signs/checkpoint-0-0.json").unlink()
    with pytest.raises(UsageError, match=r"first/checkpoint-0-0, from which it began, is gone"):
        _used(store, "job:second")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"outcome": None}, r"the job train-1 has not ended; wait for it with `bai status train-1 --wait`"),
        ({"checkpoint": None}, r"the job train-1 has no \[checkpoint\], so no checkpoint was saved"),
        (
            {"checkpoint": Checkpoint(path="/fsx", shared=True)},
            r"the job train-1 keeps its checkpoints in the shared folder /fsx, not in its record",
        ),
        ({}, r"the job train-1 has kept no complete checkpoint"),
    ],
)
def test_a_job_without_a_checkpoint_to_begin_from_is_refused(
    store: Path, made: Make, job: dict[str, object], reason: str
) -> None:
    made("train-1", **job)

    with pytest.raises(UsageError, match=rf'^checkpoint.from: "job:train-1": {reason}'):
        _used(store, "job:train-1")


@pytest.mark.parametrize("name", ["gone", "..", "label=stage=test", "\u202ex"])
def test_a_job_that_does_not_exist_is_refused(store: Path, made: Make, name: str) -> None:
    made("train-1")

    with pytest.raises(UsageError, match=r"^checkpoint.from: "):
        use_earlier_jobs(
            JobRequest(file=Path("b.toml")),
            _descriptor("job:last").model_copy(
                update={"checkpoint": replace(_descriptor("job:last").checkpoint, from_=f"job:{name}")}  # type: ignore[type-var]
            ),
            JobScope(store=str(store)),
            job_id=None,
        )


def test_a_checkpoint_of_another_store_is_refused(store: Path, made: Make) -> None:
    job = made("train-1")
    keep_checkpoint(job.record, {"step": "7"})
    _, descriptor = _used(store, "job:train-1")

    with pytest.raises(
        PlanError, match=rf"train-1 is in {job.store.url}, but this job would be in s3://b/jobs"
    ):
        _planned(descriptor, "s3://b/jobs")


def test_planning_an_unresolved_reference_to_a_job_is_refused() -> None:
    with pytest.raises(PlanError, match=r'checkpoint.from: "job:last" is another job'):
        _planned(_descriptor("job:last"), "file:///store")

    assert _planned(without_earlier_jobs(_descriptor("job:last")), "file:///store").checkpoint == _PLAIN


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("last", "train-1"),
        ("last:digits", "train-1"),
        ("label=stage=train", "train-1"),
        ("train", "train-1"),
        ("train-1", "train-1"),
        # It names another job now, of which the one that exists already does not take the place.
        ("other-1", "other-1"),
    ],
)
def test_resubmitting_a_job_id_uses_the_same_earlier_job(
    store: Path, made: Make, name: str, means: str
) -> None:
    keep_checkpoint(made("train-1", started=1).record, {"step": "7"})
    keep_checkpoint(made("other-1", started=1).record, {"step": "8"})
    again = made("again", started=2)
    table = job_table(replace(again.job, set={"checkpoint.from": "job:train-1"}))
    again.store.put(again.record.key("job.toml"), tomli_w.dumps(table).encode())

    _, descriptor = _used(store, f"job:{name}", job_id="again")

    checkpoint = _planned(descriptor, again.store.url).checkpoint
    assert checkpoint is not None
    assert checkpoint.origin is not None
    assert checkpoint.origin.job == means


@pytest.mark.parametrize("name", ["train-1", "last", "label=stage=train"])
def test_resubmitting_a_job_id_works_after_the_earlier_job_was_deleted(
    store: Path, made: Make, name: str
) -> None:
    keep_checkpoint(made("train-1").record, {"step": "7"})
    request, descriptor = _used(store, f"job:{name}")
    there = replace(_planned(descriptor, DirectoryStore(store).url), set=recorded(request.overrides))
    again = made("again", started=2)
    again.store.put(again.record.key("job.toml"), tomli_w.dumps(job_table(there)).encode())
    shutil.rmtree(store / "train-1")

    _, descriptor = _used(store, f"job:{name}", job_id="again")

    same_job(there, _planned(descriptor, again.store.url), request)
    for other, job_id in (("job:train-2", "again"), ("job:train-1", "new")):
        with pytest.raises(UsageError, match=r'^checkpoint.from: "job:train-\d": there is no job'):
            _used(store, other, job_id=job_id)


def test_the_recorded_reference_names_the_job_that_was_used(store: Path, made: Make) -> None:
    keep_checkpoint(made("train-1").record, {"step": "7"})

    request, _ = _used(
        store, "job:last", overrides=read_overrides(["checkpoint.from=job:last", "ml.args=-f"])
    )

    assert recorded(request.overrides) == {"checkpoint.from": "job:train-1", "ml.args": "-f"}


def test_resume_is_refused_for_a_job_without_checkpoints(made: Make) -> None:
    with pytest.raises(
        UsageError,
        match=r"^--resume train-1: the job has no \[checkpoint\], so no checkpoint was saved; --like",
    ):
        from_checkpoint(made("train-1", checkpoint=None).record)


def test_resume_of_an_adaptdl_job_works_without_a_checkpoint_table(store: Path, made: Make) -> None:
    job = made("train-1")
    strategy = replace(job.job.strategy, name="adaptdl", min_nodes=1)
    table = job_table(replace(job.job, strategy=strategy, checkpoint=_PLAIN))
    job.store.put(job.record.key("job.toml"), tomli_w.dumps(table).encode())

    assert recorded(from_checkpoint(job.record)) == {
        "checkpoint.from": "job:train-1",
        "checkpoint.path": "checkpoints",
    }


@pytest.mark.parametrize("option", ["--like", "--resume"])
def test_a_job_that_cannot_be_run_again_is_named_with_the_given_option(made: Make, option: str) -> None:
    record = made("train-1").record

    with (
        ExitStack() as stack,
        pytest.raises(UsageError, match=f"^{option} train-1: the job's record contains no request"),
    ):
        Rerun(
            record=record, option=option, stack=stack, open_store=lambda url: DirectoryStore(Path(url))
        ).request()
