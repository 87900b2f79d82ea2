"""Reads references to other jobs in a descriptor: `job:last/model.pt`, `job:label=stage=prepare/`, and
`job:ID` for a checkpoint."""

from __future__ import annotations

from bai_agent.job.schema.declared import Mistake
from bai_agent.job.schema.field_types import is_job_id, shown
from bai_agent.light_dataclass import dataclass

_MARK = "job:"
_LABEL = "label="
_NEWEST = "last"
_ARTIFACT = 'write "job:last/model.pt" for an artifact, or "job:last/" for all of them'
_JOB = 'write "job:ID", or "job:last" for the newest job'
FORMS = "`job:JOB/path` and `job:JOB/folder/` (artifacts of a job that succeeded)"
"""Forms of references to artifacts, as text for `docs/benchmark-descriptor.md`."""


def refers_to_job(src: str) -> bool:
    return src.startswith(_MARK)


@dataclass(frozen=True)
class JobReference:
    """A reference to a job, or to an artifact of a job."""

    job: str
    """Name of the job, as commands accept it ("last", the beginning of an id), or "label=KEY=VALUE"."""
    artifact: str | None
    """Path of the artifact. The path of a folder ends in a slash; "" stands for all artifacts. None if no
    artifact is named."""

    @property
    def label(self) -> tuple[str, str] | None:
        """Key and value of the label in "label=KEY=VALUE"; None if the reference names the job by another form."""
        if not self.job.startswith(_LABEL):
            return None
        key, _, value = self.job.removeprefix(_LABEL).partition("=")
        return key, value

    def of(self, job_id: str, artifact: str | None = None) -> str:
        """Return the text of this reference, with the id of the job as the job's name. artifact: replaces the
        reference's artifact if not None."""
        artifact = self.artifact if artifact is None else artifact
        return f"{_MARK}{job_id}" + ("" if artifact is None else f"/{artifact}")


def read_reference(text: str) -> JobReference:
    """Return the reference in `text`, which begins with "job:"."""
    job, slash, artifact = text.removeprefix(_MARK).partition("/")
    return JobReference(job, artifact if slash else None)


def with_job_of(before: str | None, text: str) -> str:
    """Return the reference `text` with the job of an earlier reference, `before`. Return `text` unchanged if
    `before` is None, or if `text` cannot mean the job of `before`."""
    if before is None or not refers_to_job(before):
        return text
    reference, job = read_reference(text), read_reference(before).job
    changes = (
        reference.label is not None or reference.job == _NEWEST or reference.job.startswith(f"{_NEWEST}:")
    )
    return reference.of(job) if changes or job.startswith(reference.job) else text


def artifact_mistake(text: str) -> Mistake | None:
    """Return the mistake in a reference to an artifact; None if there is none."""
    reference = read_reference(text)
    if (mistake := _name_mistake(text, reference, fix=_ARTIFACT)) is not None:
        return mistake
    if reference.artifact is None:
        return f"{shown(text)} names a job, but none of its artifacts", _ARTIFACT
    parts = reference.artifact.removesuffix("/").split("/")
    if not reference.artifact.isprintable():
        return f"{shown(text)} has a character that cannot be printed", "rename it"
    if reference.artifact and not all(part not in ("", ".", "..") for part in parts):
        return (
            f'{shown(text)} has an empty, "." or ".." part',
            f"name a path among the artifacts; {_ARTIFACT}",
        )
    return None


def job_mistake(text: str) -> Mistake | None:
    """Return the mistake in a reference to a job, not to an artifact; None if the reference has no mistake."""
    if not refers_to_job(text):
        return f"{shown(text)} names no job", _JOB
    reference = read_reference(text)
    if (mistake := _name_mistake(text, reference, fix=_JOB)) is not None:
        return mistake
    if reference.artifact is not None:
        is_usable = reference.label is not None or is_job_id(reference.job.removeprefix(f"{_NEWEST}:"))
        return (
            f"{shown(text)} names an artifact, but this key takes only a job",
            f'write "{_MARK}{reference.job}"' if is_usable else _JOB,
        )
    return None


def _name_mistake(text: str, reference: JobReference, *, fix: str) -> Mistake | None:
    if not reference.job.isprintable() or not reference.job:
        return f"{shown(text)} names no job", fix
    if reference.label is not None and not all(reference.label):
        return f"{shown(text)} names no label", 'write "job:label=KEY=VALUE"'
    return None
