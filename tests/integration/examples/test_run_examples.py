"""The examples, run the way a newcomer runs them: `bai run examples/NAME/benchmark.toml`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

EXAMPLES = Path(__file__).parents[3] / "examples"
BAI = Path(sys.executable).parent / "bai"


@dataclass(frozen=True)
class Ended:
    """What a run left."""

    exit_code: int
    shown: str
    result: dict[str, Any]
    values: dict[str, list[float]]
    """Each metric's values, in their order."""
    artifacts: list[str]
    folder: Path
    """The job's only attempt."""


class Newcomer:
    """Somebody with an empty home, whose Python buffers its output as usual."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
        self.env |= {"HOME": str(home), "PIP_CACHE_DIR": cache}

    def call(self, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self.env,
            cwd=cwd or self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def runs(self, example: str, *arguments: str, file: str = "benchmark.toml", job_id: str = "") -> Ended:
        job_id = job_id or example
        done = self.call(BAI, "run", EXAMPLES / example / file, "--job-id", job_id, *arguments)
        job = self.home / ".bai" / "jobs" / job_id
        run = job / "attempts" / "0" / "nodes" / "0"
        assert (run / "result.json").exists(), done.stdout + done.stderr
        values = defaultdict(list)
        for line in (run / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            values[record["name"]].append(record["value"])
        return Ended(
            exit_code=done.returncode,
            shown=done.stdout,
            result=json.loads((run / "result.json").read_text()),
            values=values,
            artifacts=[
                str(path.relative_to(job / "artifacts"))
                for path in job.glob("artifacts/**/*")
                if path.is_file()
            ],
            folder=job / "attempts" / "0",
        )


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path)


def test_the_example_of_the_api_page_prints_an_accuracy_that_improves(newcomer: Newcomer) -> None:
    page = (EXAMPLES.parent / "docs" / "api.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    done = newcomer.call(sys.executable, "-c", example, cwd=EXAMPLES.parent)

    assert done.returncode == 0, done.stderr
    argv, job, ended, accuracy = done.stdout.splitlines()
    assert "train.py" in argv
    assert job.startswith("the job is digits-")
    assert ended.startswith("SUCCEEDED The benchmark finished successfully")
    assert (newcomer.home / ".bai" / "jobs" / job.removeprefix("the job is ")).is_dir()
    first, last = re.findall(r"\d\.\d+", accuracy)
    assert float(last) > max(float(first), 0.93)


def test_digits_learns_and_saves_its_model(newcomer: Newcomer) -> None:
    ended = newcomer.runs("digits", "--", "--epochs", "4")

    assert (ended.exit_code, ended.result["outcome"]) == (0, "succeeded")
    loss, accuracy, throughput = (ended.values[name] for name in ("loss", "accuracy", "throughput"))
    assert len(loss) == len(accuracy) == len(throughput) == 8
    assert loss[-1] < loss[0] / 3
    assert accuracy[-1] > max(accuracy[0], 0.93)
    assert all(rate > 0 for rate in throughput)
    assert ended.artifacts == ["runs/model.npz"]
    assert "epoch=4" in ended.shown


def test_the_script_mode_example_trains_to_a_high_accuracy(newcomer: Newcomer) -> None:
    ended = newcomer.runs("script-mode")

    assert (ended.exit_code, ended.result["outcome"]) == (0, "succeeded")
    assert ended.values["train_loss"] == sorted(ended.values["train_loss"], reverse=True)
    assert len(ended.values["train_loss"]) == len(ended.values["accuracy"]) == 30
    assert ended.values["accuracy"][-1] > 0.95


def test_the_training_example_uses_the_artifacts_of_the_prepare_job(newcomer: Newcomer) -> None:
    too_early = newcomer.call(BAI, "run", EXAMPLES / "prepare" / "train.toml")
    prepared = newcomer.runs("prepare")
    trained = newcomer.runs("prepare", file="train.toml", job_id="trained")

    assert too_early.returncode == 2
    assert 'data.sources[0].src: "job:last:prepare-digits/prepared/": there are no jobs' in too_early.stderr
    assert sorted(prepared.artifacts) == ["prepared/test.csv", "prepared/train.csv"]
    assert prepared.values["images"] == [359, 1438]
    assert (trained.exit_code, trained.artifacts) == (0, ["model.json"])
    assert trained.values["accuracy"][0] > 0.8


def test_the_emit_example_records_each_of_its_measurements(newcomer: Newcomer) -> None:
    ended = newcomer.runs("emit", "--", "--rounds", "2")

    assert (ended.exit_code, ended.result["outcome"]) == (0, "succeeded")
    for name in ("copy_mib_per_s", "sha256_mib_per_s", "zlib_mib_per_s", "sort_numbers_per_s"):
        assert len(ended.values[name]) == 2
        assert min(ended.values[name]) > 0


def test_the_network_example_measures_every_pair_of_nodes(newcomer: Newcomer) -> None:
    ended = newcomer.runs("network", "--nodes", "3", "--", "--rounds", "20", "--megabytes", "2")

    assert (ended.exit_code, ended.result["outcome"]) == (0, "succeeded")
    for rank in range(3):
        run = newcomer.home / ".bai" / "jobs" / "network" / "attempts" / "0" / "nodes" / str(rank)
        lines = (run / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        # The next one by rank first
        others = [str((rank + 1) % 3), str((rank + 2) % 3)]
        for name in ("round_trip", "throughput"):
            found = [each for each in records if each["name"] == name]
            assert [each["labels"]["peer"] for each in found] == others
            assert all(each["value"] > 0 for each in found)


def test_the_inference_example_measures_its_server(newcomer: Newcomer) -> None:
    port = free_port()
    # The example's own port may be another program's.
    arguments = f"server.env.start_command_args=models/digits-model.json {port}"
    ended = newcomer.runs("inference", "--set", f"server.env.ports=[{port}]", "--set", arguments)

    assert (ended.exit_code, ended.result["outcome"]) == (0, "succeeded"), ended.shown
    assert len(ended.values["latency"]) == 10
    assert min(ended.values["latency"]) > 0
    assert ended.values["latency_p99"][0] >= min(ended.values["latency"])
    assert ended.values["accuracy"][0] == pytest.approx(0.9, abs=0.05)
    # The server's own metric, and its model, are on its node alone.
    client, server = ((ended.folder / f"nodes/{node}") for node in range(2))
    names = [json.loads(line)["name"] for line in (server / "metrics.jsonl").read_text().splitlines()]
    assert names.count("compute_time") == 5
    assert "latency" not in names
    assert "compute_time" not in ended.values
    models = [len(list(each.glob("**/models/digits-model.json"))) for each in (client, server)]
    data = [len(list(each.glob("**/data/digits.csv.gz"))) for each in (client, server)]
    assert (models, data) == ([0, 1], [1, 0])


def test_the_sweep_example_prints_a_comparison_of_its_six_combinations(newcomer: Newcomer) -> None:
    done = newcomer.call(BAI, "run", EXAMPLES / "sweep" / "benchmark.toml", "--job-id", "sweep", "--json")

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["combinations"]
    assert len({(each["set"]["env.vars.KIB"], each["set"]["env.vars.LEVEL"]) for each in rows}) == 6
    assert all(each["metric"] == "throughput" and each["mean"] > 0 for each in rows)


def test_the_failing_example_exits_with_1_and_shows_its_last_lines(newcomer: Newcomer) -> None:
    ended = newcomer.runs("fails")

    assert (ended.exit_code, ended.result["outcome"]) == (1, "failed")
    assert ended.result["benchmark"]["code"] == 7
    assert len(ended.values["rows_per_s"]) == 1
    last = "FileNotFoundError: [Errno 2] No such file or directory: 'stage2.json'"
    assert ended.result["last_lines"][-1] == last
    # Once as it is printed, once in the summary.
    assert ended.shown.count(last) == 2


def test_the_too_long_example_is_ended_at_max_runtime_and_finishes_within_its_grace(
    newcomer: Newcomer,
) -> None:
    ended = newcomer.runs("too-long")

    assert (ended.exit_code, ended.result["outcome"]) == (3, "max_runtime")
    assert ended.values["primes"]
    assert ended.values["primes"] == sorted(ended.values["primes"])
    assert ended.result["last_lines"][-1].startswith("stopped: the largest prime so far is")
