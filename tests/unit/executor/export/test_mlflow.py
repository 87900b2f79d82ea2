"""A job in MLflow, read back by MLflow's own client: its parameters, its end, and each value once."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from exported_jobs import append, job_of_arms, rewrite_job, two_repeats
from handmade_job import HandmadeJob

from executor.errors import ExportError
from executor.export.facts import job_facts
from executor.export.mlflow import ExportedRun, export_to_mlflow


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """MLflow's store of files: its database needs more packages than its client."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


@pytest.fixture
def job(tmp_path: Path) -> HandmadeJob:
    return HandmadeJob(tmp_path / "store")


def exported(job: HandmadeJob, server: str) -> list[ExportedRun]:
    return export_to_mlflow(job_facts(job.record), uri=server, experiment="digits")


def runs_of(server: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    return sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name)


def history(server: str, run_id: str, key: str) -> list[tuple[float, int, int]]:
    """Value, timestamp and step of each value."""
    from mlflow.tracking import MlflowClient

    found = MlflowClient(tracking_uri=server).get_metric_history(run_id, key)
    return sorted(((each.value, each.timestamp, each.step) for each in found), key=lambda each: each[1])


def test_a_job_is_exported_as_an_mlflow_run_with_parameters_tags_and_values(
    job: HandmadeJob, server: str
) -> None:
    rewrite_job(
        job,
        "[job]\n",
        '[set]\n"ml.args" = "--epochs 2"\n[git]\ncommit = "abc"\nbranch = "main"\n[job]\nlabels = { task_name = "t" }\n',
    )
    append(job, *({"step": 10 * n} for n in range(3)), {"src": "host", "name": "cpu", "value": 50})
    job.ends()

    (told,) = exported(job, server)

    (run,) = runs_of(server)
    assert (told.run_id, told.new, told.values) == (run.info.run_id, True, 5)
    assert run.info.run_name == "digits-1"
    assert (run.info.status, run.info.start_time, run.info.end_time) == (
        "FINISHED",
        job.started,
        job.started + 12_000,
    )
    assert run.data.params == {
        "command": "python3 train.py", "strategy": "single_node", "nodes": "1", "set.ml.args": "--epochs 2",
    }  # fmt: skip
    assert {
        "label.task_name": "t",
        "bai.job_id": "digits-1",
        "bai.outcome": "succeeded",
    }.items() <= run.data.tags.items()
    assert run.data.tags["mlflow.source.git.commit"] == "abc"
    assert history(server, run.info.run_id, "loss") == [(n / 2, job.started + n, 10 * n) for n in range(3)]
    assert history(server, run.info.run_id, "system/cpu") == [(50, job.started + 3, 0)]


def test_a_second_export_adds_only_new_values(job: HandmadeJob, server: str) -> None:
    append(job, *({"value": n} for n in range(3)))
    (first,) = exported(job, server)
    assert runs_of(server)[0].info.status == "RUNNING"
    append(job, *({"value": n, "timestamp": job.started + n} for n in (3, 4)))
    job.ends("failed", 1)

    (second,) = exported(job, server)
    (third,) = exported(job, server)

    assert (first.values, second.values, third.values) == (3, 2, 0)
    assert (first.new, second.new) == (True, False)
    assert first.run_id == second.run_id == third.run_id
    (run,) = runs_of(server)
    assert (run.info.status, run.data.tags["bai.outcome"]) == ("FAILED", "failed")
    assert [each[0] for each in history(server, run.info.run_id, "loss")] == [0, 1, 2, 3, 4]


def test_more_values_than_one_request_allows_are_all_sent(job: HandmadeJob, server: str) -> None:
    append(job, *({"value": n} for n in range(2500)))
    job.ends()

    (told,) = exported(job, server)

    assert [each[0] for each in history(server, told.run_id, "loss")] == list(range(2500))


def test_each_repeat_is_exported_as_an_mlflow_run(job: HandmadeJob, server: str) -> None:
    append(job, {"repeat": 0, "value": 1}, {"repeat": 1, "value": 2})
    job.ends(repeats=two_repeats(job))

    exported(job, server)

    first, second = runs_of(server)
    assert (first.info.run_name, first.info.status) == ("digits-1 repeat 0", "FINISHED")
    assert (second.info.run_name, second.info.status) == ("digits-1 repeat 1", "FAILED")
    assert (first.data.metrics, second.data.metrics) == (
        {"loss": 1, "headline loss": 1},
        {"loss": 2},
    )
    assert [run.data.tags["bai.repeat"] for run in (first, second)] == ["0", "1"]
    assert (second.info.start_time, second.info.end_time) == (job.started + 200, job.started + 300)


def test_a_run_of_an_arm_has_that_arms_command_environment_and_tag(job: HandmadeJob, server: str) -> None:
    job_of_arms(job)

    exported(job, server)

    found = {run.data.tags["bai.arm"]: run for run in runs_of(server)}
    for name, option in (("old", "-n"), ("new", "-g")):
        run = found[name]
        assert (run.data.params["command"], run.data.params["env.MODE"]) == (f"sort {option}", name)
        assert run.info.run_name == f"digits-1 repeat {run.data.tags['bai.repeat']} arm {name}"
        assert run.data.metrics["loss"] == int(run.data.tags["bai.repeat"]) + 1


def test_metrics_that_differ_in_node_label_or_characters_keep_separate_names(
    tmp_path: Path, server: str
) -> None:
    job = HandmadeJob(tmp_path / "store", nodes=2)
    for rank in (0, 1):
        append(job, {"value": rank}, rank=rank)
    append(
        job,
        {"name": "p=99%", "value": 3},
        {"name": "p_99_", "value": 4},
        {"labels": {"kind": "a b"}, "value": 5},
    )

    exported(job, server)

    (run,) = runs_of(server)
    assert run.data.metrics == {
        "loss rank:0": 0, "loss rank:1": 1, "p_99_ rank:0": 3, "p_99_ rank:0_2": 4, "loss rank:0 kind:a b": 5,
    }  # fmt: skip


def test_secrets_are_not_exported(job: HandmadeJob, server: str) -> None:
    rewrite_job(
        job, "[benchmark]\n", '[benchmark]\nenv = { THREADS = "4" }\nsecrets = { TOKEN = "env:MY_TOKEN" }\n'
    )

    exported(job, server)

    (run,) = runs_of(server)
    assert run.data.params["env.THREADS"] == "4"
    assert "TOKEN" not in str(run.data)


def test_an_unreachable_server_is_reported(job: HandmadeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    with pytest.raises(
        ExportError,
        match=r"^MLflow at http://127\.0\.0\.1:9 cannot be reached \(Connection refused\); start it, or ",
    ):
        exported(job, "http://127.0.0.1:9")


class Api(BaseHTTPRequestHandler):
    """As much of MLflow's REST API as an export of one run needs."""

    logged: ClassVar[list[dict[str, Any]]] = []

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/runs/log-batch"):
            self.logged.append(body)
        self._answer()

    def _answer(self) -> None:
        info = {"run_id": "r", "run_uuid": "r", "run_name": "n", "experiment_id": "1", "status": "RUNNING"}
        experiment = {"experiment_id": "1", "name": "digits", "lifecycle_stage": "active"}
        found: dict[str, Any] = {
            "experiment": experiment,
            "run": {"info": info, "data": {}},
            "run_info": info,
        }
        if self.path.endswith("/runs/search"):
            found = {}
        content = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


def test_standard_output_contains_only_the_export(
    job: HandmadeJob, capfd: pytest.CaptureFixture[str]
) -> None:
    append(job, *({"value": n} for n in range(3)))
    job.ends()
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        (told,) = exported(job, f"http://127.0.0.1:{server.server_port}")

        server.shutdown()
    assert (told.run_id, told.values) == ("r", 4)
    assert [each["value"] for batch in Api.logged for each in batch.get("metrics", ())] == [0, 1, 2, 2]
    assert capfd.readouterr().out == ""


def test_without_the_library_the_error_tells_how_to_install_it(
    job: HandmadeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)

    with pytest.raises(ExportError, match=r"pip install 'bai-agent\[mlflow\]'"):
        exported(job, "http://127.0.0.1:9")
