"""Exports a job as runs of MLflow. If the job is exported again, only new values are sent, so nothing is
duplicated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from bai_agent.light_dataclass import dataclass
from executor.errors import ExportError
from executor.export.facts import JobFacts, RunFacts, headline_key, place_of, steps_of, unique
from executor.records.points import SeriesKey

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_MOST_METRICS, _MOST_PARAMETERS = 1000, 100
"""Limits of one request: https://mlflow.org/docs/latest/api_reference/rest-api.html#log-batch"""
_LONGEST_PARAMETER, _LONGEST_TAG, _LONGEST_KEY = 6000, 5000, 250
_HEADLINE = "headline "
"""Prefix of the name under which a series' headline is exported. The headline is exported because MLflow
itself shows only the last value of a series."""
_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9_\-. :/]")
_ENVIRONMENT = {
    # MLflow's default time limits are reduced, because with them an unreachable server is noticed only after
    # many minutes.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "GIT_PYTHON_REFRESH": "quiet",
    # Without this setting, MLflow writes two lines per run to standard output if a server is used. The two
    # lines would break the output of `--json`.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclass(frozen=True, kw_only=True)
class ExportedRun:
    """A run in MLflow after an export."""

    run_id: str
    new: bool
    """Whether this export created the run."""
    values: int
    """Number of values that this export sent."""


def export_to_mlflow(facts: JobFacts, *, uri: str | None, experiment: str) -> list[ExportedRun]:
    """Send a job to the tracking server, or the folder, at `uri`. If `uri` is None, MLflow's own
    configuration names the server.

    Raises ExportError.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ExportError(
            f"MLflow's library is not installed ({error}); install it: pip install 'bai-agent[mlflow]'"
        ) from error
    try:
        client = MlflowClient(tracking_uri=uri)
        place = _experiment_id(client, experiment)
        return [_export_run(client, place, facts, run) for run in facts.runs]
    except MlflowException as error:
        raise ExportError(_sentence(error, place=uri or os.environ.get("MLFLOW_TRACKING_URI"))) from error
    except OSError as error:
        raise ExportError(f"MLflow at {uri or 'its default place'} cannot be written: {error}") from error


def _experiment_id(client: MlflowClient, name: str) -> str:
    """Return the id of an experiment, which is created if it does not exist. Raises ExportError."""
    found = client.get_experiment_by_name(name)
    if found is None:
        made: str = client.create_experiment(name)
        return made
    if found.lifecycle_stage == "deleted":
        raise ExportError(
            f'MLflow\'s experiment "{name}" is deleted; restore it there, or name another one with --experiment'
        )
    there: str = found.experiment_id
    return there


def _export_run(client: MlflowClient, experiment_id: str, facts: JobFacts, run: RunFacts) -> ExportedRun:
    from mlflow.entities import Param, RunTag

    tags = _run_tags(facts, run)
    found = _find(client, experiment_id, tags)
    there = found or client.create_run(
        experiment_id, start_time=run.started, run_name=tags["mlflow.runName"], tags=tags
    )
    run_id = there.info.run_id
    parameters = [
        Param(key, value[:_LONGEST_PARAMETER])
        for name, value in run.parameters.items()
        if (key := _key(name)) not in there.data.params
    ]
    for piece in _pieces(parameters, _MOST_PARAMETERS):
        client.log_batch(run_id, params=piece)
    changed = [RunTag(name, value) for name, value in tags.items()] if found is not None else []
    for piece in _pieces(changed, _MOST_PARAMETERS):
        client.log_batch(run_id, tags=piece)
    sent = 0
    for piece in _pieces(_new_values(client, run_id, there.data.metrics, run), _MOST_METRICS):
        client.log_batch(run_id, metrics=piece)
        sent += len(piece)
    if run.outcome is not None:
        status = "FINISHED" if run.succeeded else "KILLED" if run.cancelled else "FAILED"
        client.set_terminated(run_id, status=status, end_time=run.ended)
    return ExportedRun(run_id=run_id, new=found is None, values=sent)


def _find(client: MlflowClient, experiment_id: str, tags: dict[str, str]) -> Any:
    """Return the run that an earlier export created; None if there is no such run."""
    # A job id contains no quotes.
    wanted = f"tags.`bai.job_id` = '{tags['bai.job_id']}'"
    for run in client.search_runs([experiment_id], filter_string=wanted, max_results=10_000):
        if run.data.tags.get("bai.repeat") == tags.get("bai.repeat"):
            return run
    return None


def _new_values(client: MlflowClient, run_id: str, there: dict[str, float], run: RunFacts) -> Iterator[Any]:
    """Yield the values that MLflow does not have yet. A series only grows at its end. A run that has ended
    has one headline per series."""
    from mlflow.entities import Metric

    taken: set[str] = set()
    for each in run.series:
        key = _metric_key(each.key, taken)
        have = len(client.get_metric_history(run_id, key)) if key in there else 0
        points = zip(each.values, each.timestamps, steps_of(each), strict=True)
        for value, timestamp, step in islice(points, have, None):
            yield Metric(key, value, timestamp, step)
    for each in run.series:
        if each.key in run.headlines:
            key = _metric_key(headline_key(each.key), taken, front=_HEADLINE)
            if key not in there:
                yield Metric(key, run.headlines[each.key], each.timestamps[-1], 0)


def _run_tags(facts: JobFacts, run: RunFacts) -> dict[str, str]:
    identity = facts.job.job
    name = identity.id if run.repeat is None else f"{identity.id} repeat {run.repeat}"
    name += "" if run.arm is None else f" arm {run.arm}"
    tags = {
        **facts.tags,
        "mlflow.runName": name,
        "mlflow.user": identity.client_id,
        "mlflow.note.content": run.sentence,
        "mlflow.source.name": identity.name or identity.id,
        "bai.outcome": run.outcome or "running",
    }
    if facts.job.git is not None:
        tags["mlflow.source.git.commit"] = facts.job.git.commit
    if run.repeat is not None:
        tags["bai.repeat"] = str(run.repeat)
    if run.arm is not None:
        tags["bai.arm"] = run.arm
    return {_key(name): value[:_LONGEST_TAG] for name, value in tags.items()}


def _metric_key(key: SeriesKey, taken: set[str], *, front: str = "") -> str:
    """Return MLflow's name of a series: "loss rank:0 kind:test". MLflow shows names below system/ as metrics
    of the machine."""
    front = "system/" if key.src == "host" else front
    behind = [f"{name}:{value}" for name, value in (*place_of(key), *key.labels)]
    # The name contains no slashes, because for "loss" and "loss/…" MLflow's file store would need a file and
    # a folder of the same name.
    return unique(_key(front + " ".join([key.name or "_", *behind]))[: _LONGEST_KEY - 8], taken)


def _key(text: str) -> str:
    """Return a name that MLflow accepts, with only allowed characters and no path that leads out of its
    folder."""
    cleaned = _NOT_IN_A_KEY.sub("_", text)[:_LONGEST_KEY]
    parts = [
        part if part.strip(". ") else part.replace(".", "_").replace(" ", "_") or "_"
        for part in cleaned.split("/")
    ]
    return "/".join(parts)


def _pieces(items: Any, size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while piece := list(islice(iterator, size)):
        yield piece


def _sentence(error: Exception, *, place: str | None) -> str:
    """Return an error of the library as one sentence. If no server answers, the library nests four
    messages."""
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import Timeout

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)  # type: ignore[arg-type]  # an Exception, as what it caused is one
    where = f"MLflow at {place or 'its default place'}"
    if not any(isinstance(each, (NoConnection, Timeout)) for each in causes):
        return f"{where}: {_first_line(error)}"
    reasons = [each.strerror for each in causes if isinstance(each, OSError) and each.strerror]
    reason = f" ({reasons[-1]})" if reasons else ""
    return f"{where} cannot be reached{reason}; start it, or name another server with --tracking-uri"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["it gives no reason"])[0]
