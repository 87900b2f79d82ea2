"""Artifacts of earlier jobs: which job and file a reference means, and what cannot be used."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from handmade_job import HandmadeJob

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.sink_tables import Store
from bai_agent.job.descriptor_file import job_table
from bai_agent.job.schema.source_schemes import file_path
from bai_agent.job.store.directory import DirectoryStore
from bai_agent.light_dataclass import replace
from executor.descriptor import load
from executor.descriptor.model import Descriptor
from executor.descriptor.overrides import read_overrides, recorded
from executor.errors import UsageError
from executor.jobs.earlier_jobs import use_earlier_jobs, without_earlier_jobs
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
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def made(store: Path) -> Callable[..., HandmadeJob]:
    def make(job_id: str, *, started: int = 1, outcome: str = "succeeded", **files: bytes) -> HandmadeJob:
        job = HandmadeJob(store, job_id, started=started, labels={"stage": "prepare"})
        for name, content in files.items():
            job.store.put(job.record.key(f"artifacts/{name.replace('__', '/')}"), content)
        job.ends(outcome, exit_code=0 if outcome == "succeeded" else 1)
        return job

    return make


def _descriptor(*sources: str) -> Descriptor:
    text = _TEXT + "".join(f"[[data.sources]]\n{each}\n" for each in sources)
    descriptor, findings = load(Path("b.toml"), content=text.encode())
    assert descriptor is not None, findings
    return descriptor


def _used(
    store: Path,
    src: str,
    more: str = "",
    *,
    path: str = "/data/in",
    job_id: str | None = None,
    **request: object,
) -> tuple[JobRequest, Descriptor]:
    job_request = JobRequest(file=Path("b.toml"), **request)  # type: ignore[arg-type]
    descriptor = _descriptor(f'src = "{src}"\npath = "{path}"\n{more}')
    return use_earlier_jobs(job_request, descriptor, JobScope(store=str(store)), job_id=job_id)


def _planned(descriptor: Descriptor, store: Path) -> Job:
    url = DirectoryStore(store).url
    return plan(descriptor, PlanInputs(folder=Path("/"), job_id="again", client_id="c", store=Store(url=url)))


@pytest.mark.parametrize("name", ["prep-1", "prep", "last", "last:digits", "label=stage=prepare"])
def test_a_reference_to_a_job_means_its_artifact_with_a_checksum(
    store: Path, made: Callable[..., HandmadeJob], name: str
) -> None:
    made("older", started=1, model=b"old")
    made("prep-1", started=2, model=b"weights")

    request, descriptor = _used(store, f"job:{name}/model", 'mode = "0600"')

    [source] = descriptor.data.sources
    assert file_path(source.src) == store / "prep-1/artifacts/model"
    assert (source.path, source.mode) == ("/data/in", "0600")
    assert source.sha256 == hashlib.sha256(b"weights").hexdigest()
    pinned = {"data.sources[0].src": "job:prep-1/model"} if name != "prep-1" else {}
    assert recorded(request.overrides) == pinned


def test_a_folder_of_artifacts_becomes_one_source_for_each_file(
    store: Path, made: Callable[..., HandmadeJob]
) -> None:
    made("prep-1", out__train=b"t", out__more__test=b"u", log=b"l")

    _, some = _used(store, "job:prep-1/out/", path="/data/")
    _, every = _used(store, "job:prep-1/")

    assert {each.path: each.sha256 for each in some.data.sources} == {
        "/data/train": hashlib.sha256(b"t").hexdigest(),
        "/data/more/test": hashlib.sha256(b"u").hexdigest(),
    }
    assert {each.path for each in every.data.sources} == {
        "/data/in/log",
        "/data/in/out/train",
        "/data/in/out/more/test",
    }


def test_the_recorded_source_address_names_the_job_that_was_used(
    store: Path, made: Callable[..., HandmadeJob]
) -> None:
    made("prep-1", model=b"weights")
    given = read_overrides(["data.sources[in].src=job:last/model", "ml.args=--fast"])

    request, _ = _used(store, "job:last/model", 'id = "in"', overrides=given)

    assert recorded(request.overrides) == {
        "ml.args": "--fast",
        "data.sources[0].src": "job:prep-1/model",
    }


@pytest.mark.parametrize("src", ["job:prep-1/out/train", "job:last/out/", "job:label=stage=prepare/"])
def test_resubmitting_a_job_id_works_after_the_earlier_job_was_deleted(
    store: Path, made: Callable[..., HandmadeJob], src: str
) -> None:
    # Given a job with artifacts of another one, which was deleted
    made("prep-1", out__train=b"t", out__more__test=b"u", log=b"l")
    request, descriptor = _used(store, src, 'mode = "0600"')
    there = replace(_planned(descriptor, store), set=recorded(request.overrides))
    again = made("again", started=2)
    again.store.put(again.record.key("job.toml"), tomli_w.dumps(job_table(there)).encode())
    shutil.rmtree(store / "prep-1")

    _, descriptor = _used(store, src, 'mode = "0600"', job_id="again")

    same_job(there, _planned(descriptor, store), request)
    for more in ('mode = "0644"', f'sha256 = "{"0" * 64}"', "unpack = true"):
        _, changed = _used(store, src, more, job_id="again")
        with pytest.raises(UsageError, match="exists already and runs something else"):
            same_job(there, _planned(changed, store), request)
    for other, job_id in (("job:prep-1/log/x", "again"), ("job:prep-2/", "again"), (src, "new")):
        with pytest.raises(UsageError, match=r"^data\.sources\[0\]\.src: "):
            _used(store, other, job_id=job_id)


@pytest.mark.parametrize(
    ("src", "more", "words"),
    [
        ("job:absent/model", "", 'there is no job "absent"'),
        ("job:label=stage=prepar/model", "", 'no job with the label stage=prepar; did you mean "prepare"'),
        ("job:failed-1/model", "", 'the job failed-1 ended as "failed"'),
        ("job:running-1/model", "", "the job running-1 has not ended"),
        ("job:prep-1/modle", "", 'no artifact modle; did you mean "model"'),
        ("job:prep-1/zzz", "", "no artifact zzz; it has linked, model, out/train"),
        ("job:prep-1/out", "", 'write a slash at its end, "out/"'),
        ("job:prep-1/none/", "", "no artifacts in none/"),
        ("job:empty-1/", "", "no artifacts; list the files to keep in [output] artifacts"),
        ("job:prep-1/out/", "unpack = true", "a folder has no checksum and is not unpacked"),
        ("job:prep-1/model", f'sha256 = "{"0" * 64}"', "the artifact's SHA-256 is"),
        ("job:prep-1/linked", "", "is a symbolic link"),
    ],
)
def test_artifacts_that_cannot_be_used_are_refused_with_the_key(
    store: Path, made: Callable[..., HandmadeJob], src: str, more: str, words: str
) -> None:
    prepared = made("prep-1", model=b"weights", out__train=b"t")
    made("empty-1")
    made("failed-1", outcome="failed", model=b"x")
    HandmadeJob(store, "running-1")
    assert prepared.store.folder is not None
    (prepared.store.folder / "prep-1/artifacts/linked").symlink_to("/etc/passwd")

    with pytest.raises(UsageError, match=r"^data\.sources\[0\]\.src: ") as refused:
        _used(store, src, more)

    assert words in str(refused.value)


def test_only_a_reference_to_an_artifact_with_an_unprintable_name_is_refused(
    store: Path, made: Callable[..., HandmadeJob]
) -> None:
    made("prep-1", model=b"weights", out__train=b"t")
    (store / "prep-1/artifacts/out/a\nb").write_text("odd")

    with pytest.raises(UsageError, match="has a character that cannot be printed"):
        _used(store, "job:prep-1/out/")
    _, descriptor = _used(store, "job:prep-1/model")
    assert len(descriptor.data.sources) == 1


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("job:last", "names a job, but none of its artifacts"),
        ("job:/model", "names no job"),
        ("job:label=stage/model", "names no label"),
        ("job:last/../model", 'has an empty, "." or ".." part'),
        ("job:last//etc/passwd", 'has an empty, "." or ".." part'),
        ("job:last/a//", 'has an empty, "." or ".." part'),
    ],
)
def test_a_malformed_job_reference_is_a_finding(src: str, words: str) -> None:
    text = _TEXT + f'[[data.sources]]\nsrc = "{src}"\npath = "/data/in"\n'

    descriptor, findings = load(Path("b.toml"), content=text.encode())

    assert descriptor is None
    assert [words in each.problem for each in findings] == [True]


def test_references_to_other_jobs_are_left_out_for_checks() -> None:
    descriptor = _descriptor('src = "job:last/model"\npath = "/a"', 'src = "https://host/b"\npath = "/b"')

    assert [each.src for each in without_earlier_jobs(descriptor).data.sources] == ["https://host/b"]
