"""Makes the jobs of a group from the combinations of `[matrix]`, in the order in which the jobs start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from bai_agent.decode import Rule
from bai_agent.errors import RecordError
from bai_agent.job.descriptor.benchmark_tables import shuffled_blocks
from bai_agent.job.record_types import Count, Number, Text, Truth
from bai_agent.job.schema.field_types import is_job_id, shown
from bai_agent.light_dataclass import dataclass, replace
from executor.descriptor.overrides import REDACTED, Override, read_overrides, recorded
from executor.descriptor.toml_text import overlap, read_key_path
from executor.errors import UsageError
from executor.planning.request import MATRIX, FindingsError, JobRequest, group_of, read_file, read_request
from executor.planning.requested_job import digest_of
from executor.planning.rerun_record import KeptRequest, request_table

if TYPE_CHECKING:
    from executor.descriptor import Descriptor, Finding
    from executor.descriptor.matrix_table import MatrixTable

_KEPT = "{}: its value is a secret, but the values of a group are saved in its record; write it into [env.secrets]"


@dataclass(frozen=True, kw_only=True)
class MatrixJob:
    """One job of a group."""

    job_id: Text
    set: dict[Text, Text]
    """The job's combination: each key of the matrix → its value, as the text of `--set`."""
    scripts_sha256: Text | None = None
    """Checksum of the job's scripts; None if the job has no scripts."""

    @property
    def words(self) -> str:
        return " ".join(f"{key}={text}" for key, text in self.set.items())


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """The content of `group.json`."""

    request: KeptRequest
    exclusive: Truth
    jobs: Annotated[list[MatrixJob], Rule("a list of the group's jobs")]
    """Jobs in the order in which they start."""
    max_parallel: Count
    max_cost: Number | None
    """Upper bound of the cost (USD); None if there is no bound."""

    @property
    def combinations(self) -> list[list[MatrixJob]]:
        """The jobs of each combination. Combinations are in the order of the descriptor."""
        found: dict[tuple[tuple[str, str], ...], list[MatrixJob]] = {}
        for job in sorted(self.jobs, key=lambda each: each.job_id):
            found.setdefault(tuple(job.set.items()), []).append(job)
        return list(found.values())

    def job_request(self, job: MatrixJob) -> JobRequest:
        """Return the request that runs `job`, one of the group's jobs."""
        paths = [read_key_path(key)[0] for key in (*job.set, MATRIX)]
        base = {
            key: text
            for key, text in self.request.set.items()
            if not any(overlap(read_key_path(key)[0], path) for path in paths)
        }
        request = self.request.as_request({**base, MATRIX: "{}"})
        mine = (
            replace(each, option=f"[{MATRIX}] {each.key}", must_count=True)
            for each in read_overrides(f"{key}={text}" for key, text in job.set.items())
        )
        return replace(request, overrides=(*request.overrides, *mine), exclusive=self.exclusive)


def matrix_plan(
    job_request: JobRequest,
    group_id: str,
    *,
    resolve: Callable[[JobRequest, Descriptor], JobRequest] = lambda job_request, descriptor: job_request,
    digest: Callable[[JobRequest, Descriptor], str | None] = digest_of,
) -> tuple[GroupPlan, list[Finding]]:
    """Return the group of jobs that a request makes, and the warnings about these jobs.

    resolve: function that looks up the earlier jobs and commits that the request refers to. `resolve` is
    called once for all jobs of the group. digest: function that returns the checksum of a job's scripts.
    Raises the errors of `resolve` and `digest`, UsageError, ScriptsError, and FindingsError for the first job
    with mistakes.
    """
    job_request = replace(job_request, content=job_request.read_content())
    descriptor, _ = read_file(job_request)
    table = descriptor.matrix
    if table is None or not table.axes:
        raise UsageError(f"{job_request.file}: there is no [matrix] with values in it")
    _check_overrides(job_request, table)
    request = KeptRequest(**request_table(resolve(job_request, descriptor)))
    for key, text in request.set.items():
        if text == REDACTED:
            raise UsageError(_KEPT.format(key))
    combinations = _combinations(_expanded(table.axes, job_request))
    order = shuffled_blocks(len(combinations), table.rounds, seed=table.seed)
    jobs = [
        MatrixJob(
            job_id=_job_id(group_id, which, place // len(combinations), table.rounds), set=combinations[which]
        )
        for place, which in enumerate(order)
    ]
    if not is_job_id(jobs[0].job_id):
        raise UsageError(f"--job-id: {group_id} is too long for a group, whose jobs have longer ids")
    plan = GroupPlan(
        request=request,
        exclusive=job_request.exclusive,
        jobs=jobs,
        max_parallel=table.max_parallel,
        max_cost=table.max_cost,
    )
    return _checked(plan, digest)


def _combinations(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, str]]:
    """Return each combination of values, as texts of `--set`. The last key changes fastest. Raises
    UsageError."""
    texts = {
        key: [recorded([_override(key, value)])[key] for value in values] for key, values in axes.items()
    }
    for key, each in texts.items():
        if REDACTED in each:
            raise UsageError(_KEPT.format(key))
        if (same := next((text for text in each if each.count(text) > 1), None)) is not None:
            raise UsageError(
                f"[{MATRIX}] {key}: two values are {shown(same)}; remove one. To run every combination twice, write rounds = 2"
            )
    return [dict(zip(texts, values, strict=True)) for values in product(*texts.values())]


def _expanded(axes: Mapping[str, Sequence[Any]], job_request: JobRequest) -> Mapping[str, Sequence[Any]]:
    """Return the values of each key, with `${NAME}` variables replaced as in the rest of the file. Raises
    FindingsError."""
    from executor.descriptor.variables import expand_value

    if (variables := job_request.variables) is None:
        return axes
    found: dict[str, list[Any]] = {key: [] for key in axes}
    findings: list[Finding] = []
    for key, values in axes.items():
        path, _ = read_key_path(key)
        for number, each in enumerate(values):
            where = (MATRIX, key, number)
            value, mistakes = expand_value(each, path, variables, file=str(job_request.file), where=where)
            found[key].append(value)
            findings += mistakes
    if findings:
        raise FindingsError(findings)
    return found


def _checked(
    plan: GroupPlan, digest: Callable[[JobRequest, Descriptor], str | None]
) -> tuple[GroupPlan, list[Finding]]:
    """Return the plan with the checksums of its jobs' scripts, and the warnings about these jobs. Raises the
    same errors as `matrix_plan`."""
    findings: dict[Finding, None] = {}
    digests: dict[tuple[tuple[str, str], ...], str | None] = {}
    for job in plan.jobs:
        if (key := tuple(job.set.items())) not in digests:
            request = plan.job_request(job)
            descriptor, warnings = read_request(request)
            findings.update(dict.fromkeys(warnings))
            digests[key] = digest(request, descriptor)
    jobs = [replace(job, scripts_sha256=digests[tuple(job.set.items())]) for job in plan.jobs]
    return replace(plan, jobs=jobs), list(findings)


def check_plan(plan: GroupPlan, group_id: str, *, where: str) -> None:
    """Raise RecordError unless all jobs of a stored plan are jobs of this group."""
    for job in plan.jobs:
        if not is_job_id(job.job_id) or group_of(job.job_id) != group_id:
            raise RecordError(f"{where}: {job.job_id!r} is not a job of the group")


def _check_overrides(job_request: JobRequest, table: MatrixTable) -> None:
    """Raise UsageError if an option sets a key of the matrix."""
    for key in table.axes:
        for each in job_request.overrides:
            if overlap(read_key_path(key)[0], each.path):
                raise UsageError(f"{each.option}: [matrix] sets {key} as well; keep one of the two")


def _job_id(group_id: str, combination: int, number: int, rounds: int) -> str:
    return f"{group_id}.{combination + 1:03}" + (f".{number + 1}" if rounds > 1 else "")


def _override(key: str, value: Any) -> Override:
    return Override(option=f"[{MATRIX}] {key}", key=key, path=read_key_path(key)[0], value=value, typed=False)
