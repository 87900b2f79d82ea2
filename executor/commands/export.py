"""The command that exports a job to other systems."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bai_agent.job.record import JobRecord
from executor.commands.job_options import JobOptions
from executor.commands.options import JobArgument, JsonOption, choices, print_result, say
from executor.errors import UsageError


def export(
    job: JobArgument,
    options: JobOptions,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="mlflow|tensorboard",
            help="The system to export to.",
            autocompletion=choices("mlflow", "tensorboard"),
        ),
    ],
    tracking_uri: Annotated[
        str | None,
        typer.Option("--tracking-uri", metavar="URI", help="MLflow's server. Unset: MLFLOW_TRACKING_URI."),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment", metavar="NAME", help="MLflow's experiment. Unset: the benchmark's name."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="The folder for TensorBoard; the job gets one in it."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Bring a job's metrics to MLflow or TensorBoard.

    Its parameters go along. If a job is exported again, MLflow gets the new values, and TensorBoard's files
    are replaced.
    """
    if to == "mlflow":
        if folder is not None:
            raise UsageError("--dir is for --to tensorboard")
        _to_mlflow(options.find(job), tracking_uri, experiment, json_=json_)
    elif to == "tensorboard":
        if tracking_uri is not None or experiment is not None:
            raise UsageError("--tracking-uri and --experiment are for --to mlflow")
        if folder is None:
            raise UsageError("the folder is not named; give --dir DIR")
        _to_tensorboard(options.find(job), folder, json_=json_)
    else:
        raise UsageError(f'--to: "{to}" is not known; write mlflow or tensorboard')


def _to_mlflow(record: JobRecord, tracking_uri: str | None, experiment: str | None, *, json_: bool) -> None:
    from executor.export.facts import job_facts
    from executor.export.mlflow import export_to_mlflow

    if tracking_uri is None and not os.environ.get("MLFLOW_TRACKING_URI"):
        raise UsageError("MLflow's server is not named; give --tracking-uri URI, or set MLFLOW_TRACKING_URI")
    facts = job_facts(record)
    name = experiment or facts.job.job.name or "bai"
    for each in export_to_mlflow(facts, uri=tracking_uri, experiment=name):
        table = {"run_id": each.run_id, "new": each.new, "values": each.values}
        print_result(table, f"{each.run_id}  {each.values:,} values", json_=json_)
    say(f'{record.job_id} is in MLflow\'s experiment "{name}"')


def _to_tensorboard(record: JobRecord, folder: Path, *, json_: bool) -> None:
    from executor.export.facts import job_facts
    from executor.export.tensorboard import export_to_tensorboard

    place = str(export_to_tensorboard(job_facts(record), folder))
    print_result({"folder": place}, place, json_=json_)
    say(f"{record.job_id} is there; look at it: tensorboard --logdir {folder}")
