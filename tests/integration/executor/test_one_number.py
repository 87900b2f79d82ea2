"""Every command shows the same value for a metric: the one that numpy computes from the log."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from local_cli import LocalCli, open_local_cli
from stand_in_torchrun import put_torchrun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from executor.quantities import quantity, seconds

_PRINTS = """
import os, random, sys
run, rank = int(os.environ.get("BAI_REPEAT", "0") or 0), int(os.environ.get("BAI_NODE_RANK", "0"))
generation = int(os.environ["BAI_GENERATION"])
chance = random.Random(1000 * generation + 100 * run + 10 * rank + {seed})
for label in {labels}:
    for _ in range({count}):
        print(f"{{label}}={{chance.uniform(100, 900):.3f}}")
if {fails}:
    sys.exit(3)
"""
_METRIC = """\
[[output.metrics]]
name = "speed"
units = "MB/s"
pattern = '(?P<of>\\w+)=(?P<value>[\\d.]+)'
headline = "median"
better = "higher"
"""
_REPEAT = "[repeat]\nruns = {runs}\n"


_Printed = dict[tuple[str, str | None, int | None], dict[int, list[float]]]


@dataclass(frozen=True)
class Story:
    """A job that was run, and what numpy makes of its log."""

    job_id: str
    printed: _Printed
    """By label, arm and rank: the values of each run that counts."""
    code: int = 0
    repeats: bool = False
    generation: int | None = None
    """The generation of its values."""
    summary: str = ""
    """What `bai run` or `bai ab` printed."""

    @property
    def rows(self) -> dict[str, float]:
        """The headline of each series of the job, by the name of its row."""
        return {
            _row(label, arm=arm, rank=rank): _median_of_medians(runs)
            for (label, arm, rank), runs in self.printed.items()
        }

    @property
    def headlines(self) -> dict[str, float]:
        """The headline of each metric, set of labels and arm: of several ranks their mean in each run."""
        found: dict[str, dict[int, list[float]]] = {}
        for (label, arm, _), runs in self.printed.items():
            of_runs = found.setdefault(_row(label, arm=arm), {})
            for run, values in runs.items():
                of_runs.setdefault(run, []).append(float(numpy.median(values)))
        return {
            name: float(numpy.median([numpy.mean(ranks) for ranks in of_runs.values()]))
            for name, of_runs in found.items()
        }


def _row(label: str, *, arm: str | None = None, rank: int | None = None) -> str:
    words = [f"of={label}"]
    words += [f"rank={rank}"] if rank is not None else []
    words += [f"arm={arm}"] if arm is not None else []
    return f"speed{{{','.join(words)}}}"


def _median_of_medians(runs: Mapping[int, list[float]]) -> float:
    return float(numpy.median([numpy.median(values) for values in runs.values()]))


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("numbers")
    with open_local_cli(folder) as made:
        path = f"{put_torchrun(folder)}:{os.environ['PATH']}"
        yield replace(made, environment={**made.environment, "PATH": path, "MLFLOW_ALLOW_FILE_STORE": "true"})


def _descriptor(
    cli: LocalCli, name: str, *, labels: str = '["all"]', count: int = 5, fails: str = "False", seed: int = 0,
    strategy: str = "single_node", more: str = "",
) -> Path:  # fmt: skip
    code = _PRINTS.format(labels=labels, count=count, fails=fails, seed=seed)
    text = cli.descriptor(code, strategy=strategy, more=more).read_text()
    before, _, after = text.partition("[[output.metrics]]")
    rest = after.partition('better = "lower"\n')[2]
    file = cli.folder / f"{name}.toml"
    file.write_text(f"{before}{_METRIC}{rest}")
    return file


def _log_of(cli: LocalCli, job_id: str, label: str, *, rank: int = 0, run: int | None = None) -> list[float]:
    which = ["--repeat", str(run)] if run is not None else []
    text = cli.bai("logs", job_id, "--node", str(rank), *which).stdout
    return [float(each) for each in re.findall(rf"^{label}=([\d.]+)$", text, re.MULTILINE)]


def _run(cli: LocalCli, *arguments: str | Path) -> str:
    answer = cli.bai("run", *arguments)
    return answer.stdout + answer.stderr


def _one_run(cli: LocalCli) -> Story:
    # More values than a table would choose from
    summary = _run(cli, _descriptor(cli, "one", count=10_001), "--job-id", "one")
    return Story("one", {("all", None, None): {0: _log_of(cli, "one", "all")}}, summary=summary)


def _repeats(cli: LocalCli) -> Story:
    summary = _run(cli, _descriptor(cli, "repeats", more=_REPEAT.format(runs=4)), "--job-id", "repeats")
    runs = {run: _log_of(cli, "repeats", "all", run=run) for run in range(4)}
    return Story("repeats", {("all", None, None): runs}, repeats=True, summary=summary)


def _failed_repeat(cli: LocalCli) -> Story:
    more = _REPEAT.format(runs=4) + "keep_going = true\n"
    summary = _run(cli, _descriptor(cli, "failed", fails="run == 2", more=more), "--job-id", "failed")
    runs = {run: _log_of(cli, "failed", "all", run=run) for run in (0, 1, 3)}
    return Story("failed", {("all", None, None): runs}, code=1, repeats=True, summary=summary)


def _two_arms(cli: LocalCli) -> Story:
    files = [_descriptor(cli, name, seed=seed) for name, seed in (("old", 1), ("new", 2))]
    answer = cli.bai("ab", *files, "--runs", "3", "--seed", "4", "--job-id", "arms")
    printed: _Printed = {}
    for each in cli.result("arms")["repeats"]:
        values = _log_of(cli, "arms", "all", run=each["repeat"])
        printed.setdefault(("all", each["arm"], None), {})[each["repeat"]] = values
    return Story("arms", printed, repeats=True, summary=answer.stdout + answer.stderr)


def _two_nodes(cli: LocalCli) -> Story:
    file = _descriptor(cli, "nodes", strategy="torchrun")
    summary = _run(cli, file, "--nodes", "2", "--job-id", "nodes")
    printed: _Printed = {("all", None, rank): {0: _log_of(cli, "nodes", "all", rank=rank)} for rank in (0, 1)}
    return Story("nodes", printed, summary=summary)


def _labels(cli: LocalCli) -> Story:
    names = ("read", "write", "sync")
    summary = _run(cli, _descriptor(cli, "labels", labels=str(list(names))), "--job-id", "labels")
    printed: _Printed = {(name, None, None): {0: _log_of(cli, "labels", name)} for name in names}
    return Story("labels", printed, summary=summary)


def _three_generations(cli: LocalCli) -> Story:
    more = "[restart]\nmax_restarts = 2\nbackoff = '50ms'\n"
    file = _descriptor(cli, "restarts", fails="generation < 2", more=more)
    summary = _run(cli, file, "--job-id", "restarts")
    values = _log_of(cli, "restarts", "all")[-5:]
    return Story("restarts", {("all", None, None): {0: values}}, generation=2, summary=summary)


def _generations_of_nodes(cli: LocalCli) -> Story:
    # A node that prints nothing in the last generation
    labels = '["all"] if rank == 0 or generation < 2 else []'
    more = "[restart]\nmax_restarts = 2\nbackoff = '50ms'\n"
    fails = "generation < 2 and rank == 0"
    file = _descriptor(cli, "both", labels=labels, fails=fails, strategy="torchrun", more=more)
    summary = _run(cli, file, "--nodes", "2", "--job-id", "both")
    values = _log_of(cli, "both", "all", rank=0)[-5:]
    return Story("both", {("all", None, 0): {0: values}}, generation=2, summary=summary)


_MADE: dict[str, Callable[[LocalCli], Story]] = {
    "one run": _one_run,
    "repeats": _repeats,
    "a failed repeat": _failed_repeat,
    "two arms": _two_arms,
    "two nodes": _two_nodes,
    "labelled series": _labels,
    "three generations": _three_generations,
    "three generations of two nodes": _generations_of_nodes,
}


_FILES = {"one run": "one", "labelled series": "labels"}
"""The descriptors of jobs of one run."""


@pytest.mark.parametrize("kind", _MADE)
def test_every_command_shows_the_statistic_that_numpy_computes(cli: LocalCli, kind: str) -> None:
    story = _MADE[kind](cli)
    job_id = story.job_id
    assert all(values for runs in story.printed.values() for values in runs.values())
    rows = {name: pytest.approx(value, rel=1e-12) for name, value in story.rows.items()}
    headlines = {name: pytest.approx(value, rel=1e-12) for name, value in story.headlines.items()}

    # The summary at the end of `bai run`, and `bai metrics`
    summary = story.summary
    for name, value in story.rows.items():
        assert f"median {_shown(value)}" in _line(summary, name), summary
        assert f"median {_shown(value)}" in _line(cli.bai("metrics", job_id).stdout, name)

    # The list and the status, for people and for programs
    (listed,) = (each for each in cli.bai("list", "--json").objects if each["job_id"] == job_id)
    assert {name: each["value"] for name, each in listed["headlines"].items()} == headlines
    listing = next(line for line in cli.bai("list").stdout.splitlines() if line.startswith(f"{job_id} "))
    assert _shown(next(iter(story.headlines.values()))) in listing
    (status,) = cli.bai("status", job_id, "--json").objects
    assert {name: each["value"] for name, each in status["headlines"].items()} == rows
    said = cli.bai("status", job_id).stdout
    for name, value in story.rows.items():
        assert _shown(value) in _line(said, name)
    if story.repeats:
        means = {name: float(numpy.mean([numpy.median(each) for each in story.printed[key].values()]))
                 for key in story.printed for name in [_row(key[0], arm=key[1])]}  # fmt: skip
        over = {each["name"]: each["mean"] for each in status["over_runs"] if "wall" not in each["name"]}
        assert over == {name: pytest.approx(mean) for name, mean in means.items()}
        for text in (summary, said, _report(cli, job_id, "md").replace("\\", "")):
            after = text[text.index("over runs") :]
            assert all(_shown(mean) in _line(after, name) for name, mean in means.items()), after

    # `bai top` shows the last value of each series, and tells them apart
    top = cli.bai("top", job_id).stdout
    for (label, arm, rank), runs in story.printed.items():
        if kind != "a failed repeat":
            assert _shown(runs[max(runs)][-1]) in _line(top, _row(label, arm=arm, rank=rank)), top

    # The patterns tried on the log of one run: each labelled series is its own there, too
    if kind in ("one run", "labelled series"):
        file, log = cli.folder / f"{_FILES[kind]}.toml", cli.folder / "tried.log"
        log.write_text(cli.bai("logs", job_id).stdout)
        (trial,) = cli.bai("metrics-test", file, log, "--json").objects
        (tried,) = trial["metrics"]
        assert {_row(each["labels"]["of"]): each["headline"] for each in tried["series"]} == headlines
        assert "headline" not in tried
        said = cli.bai("metrics-test", file, log).stdout
        for name, value in story.rows.items():
            assert f"median {_shown(value)}" in _line(said, name)

    # The records: all values, each with its run, rank and arm
    for form in ("jsonl", "csv", "report"):
        assert _of_records(cli, story, form) == rows

    # What other programs read
    if story.code == 0:
        gha = {
            each["name"]: each["value"]
            for each in json.loads(cli.bai("metrics", job_id, "--format", "gha").stdout)
        }
        assert gha == headlines
    openmetrics = cli.bai("metrics", job_id, "--format", "openmetrics").stdout
    assert sorted(
        float(each) for each in re.findall(r"^BAI_METRICS_speed{.*} (\S+)$", openmetrics, re.MULTILINE)
    ) == [pytest.approx(each) for each in sorted(story.headlines.values())]
    bmf = json.loads(cli.bai("metrics", job_id, "--format", "bmf").stdout)
    assert sorted(each["speed"]["value"] for each in bmf.values() if "speed" in each) == [
        pytest.approx(each) for each in sorted(story.headlines.values())
    ]

    # The report
    (speed,) = (
        each for each in json.loads(_report(cli, job_id, "json"))["metrics"] if each["name"] == "speed"
    )
    found = {_row(each["labels"]["of"], arm=each["arm"]): each["value"] for each in speed["headlines"]}
    assert found == headlines
    page, markdown = _report(cli, job_id, "html"), _report(cli, job_id, "md")
    for name, value in story.headlines.items():
        assert re.search(rf'class="name">{re.escape(name)} .*?class="value">{_shown(value)}', page), name
        assert f"| {_shown(value)} | " in markdown

    # The sides of a comparison: the number of each run that counts
    if kind == "two arms":
        (compared,) = cli.bai("compare", job_id, "--json").objects
        (metric,) = (each for each in compared["metrics"] if each["name"].startswith("speed"))
        for side in ("a", "b"):
            of_arm = story.printed["all", compared[side]["name"].split()[-1], None]
            numbers = [float(numpy.median(values)) for values in of_arm.values()]
            assert sorted(metric[side]["runs"]) == pytest.approx(sorted(numbers))

    # The exports: the number of each run, which over the runs is the headline
    assert _of_tensorboard(cli, story) == {
        name: pytest.approx(value, rel=1e-6) for name, value in story.rows.items()
    }
    assert _of_mlflow(cli, story) == rows


def test_every_command_shows_the_duration_measured_by_a_monotonic_clock(tmp_path: Path) -> None:
    with open_local_cli(tmp_path) as own:
        assert own.bai("run", own.descriptor("print('loss=7')"), "--job-id", "set").code == 0
        path = own.store / "set" / "result.json"
        result = json.loads(path.read_bytes())
        took = result["seconds"]
        assert 0 < took < 60
        assert took == pytest.approx((result["ended"] - result["started"]) / 1000, abs=1)

        # As it is where the clock is set forward by an hour meanwhile.
        path.write_text(json.dumps({**result, "ended": result["ended"] + 3_600_000}))

        assert _durations(own, "set") == {took}
        # A job of an older version has nothing else.
        path.write_text(json.dumps({**result, "ended": result["started"] + 61_000, "seconds": None}))
        assert _durations(own, "set") == {61.0}


def _durations(own: LocalCli, job_id: str) -> set[float]:
    """Return for how long a job ran, by every view that says so; where one rounds, what it rounds."""
    whole: float = json.loads(own.bai("status", job_id, "--json").stdout)["seconds"]
    listed: float = own.bai("list", "--json").objects[0]["seconds"]
    shown = f"took {seconds(whole)}"
    assert shown in own.bai("status", job_id).stdout
    assert seconds(whole) in own.bai("list", env={"COLUMNS": "200"}).stdout
    page = own.folder / "report.html"
    assert own.bai("report", job_id, "-o", page).code == 0
    assert f"<dt>from start to end</dt><dd>{seconds(whole)}</dd>" in page.read_text()
    return {whole, listed}


def _shown(value: float) -> str:
    return quantity(value, "MB/s")[0]


def _line(text: str, name: str) -> str:
    """Return the row of a table that is about `name`."""
    found = [line for line in text.splitlines() if name in line]
    assert found, f"{name} is not in:\n{text}"
    return found[0]


def _report(cli: LocalCli, job_id: str, form: str) -> str:
    file = cli.folder / f"{job_id}-report.{form}"
    answer = cli.bai("report", job_id, "--format", form, "-o", file)
    assert answer.code == 0, answer.stderr
    return file.read_text()


def _of_records(cli: LocalCli, story: Story, form: str) -> dict[str, float]:
    """Return what numpy makes of the records as a view prints them, without the runs that do not count."""
    counted = {run for runs in story.printed.values() for run in runs}
    arms = {each["repeat"]: each["arm"] for each in cli.result(story.job_id)["repeats"] or ()}
    series: dict[str, dict[int, list[float]]] = {}
    for each in _records(cli, story.job_id, form):
        if each["name"] != "speed":
            continue
        labels = each["labels"]
        labels = labels if isinstance(labels, dict) else (
            json.loads(labels) if labels.startswith("{") else dict(word.split("=") for word in labels.split(","))
        )  # fmt: skip
        repeat = int(each.get("repeat") or 0)
        rank = each.get("rank") or labels.get("rank")
        arm = each["arm"] or None if "arm" in each else arms.get(repeat)
        if repeat in counted and (story.generation is None or story.generation == int(each["generation"])):
            row = _row(labels["of"], arm=arm, rank=int(rank) if rank else None)
            series.setdefault(row, {}).setdefault(repeat, []).append(float(each["value"]))
    return {name: _median_of_medians(runs) for name, runs in series.items()}


def _records(cli: LocalCli, job_id: str, form: str) -> list[dict[str, Any]]:
    if form == "jsonl":
        return cli.bai("metrics", job_id, "--format", "jsonl").objects
    text = (
        _report(cli, job_id, "csv")
        if form == "report"
        else cli.bai("metrics", job_id, "--format", "csv").stdout
    )
    return list(csv.DictReader(io.StringIO(text)))


def _of_tensorboard(cli: LocalCli, story: Story) -> dict[str, float]:
    answer = cli.bai("export", story.job_id, "--to", "tensorboard", "--dir", cli.folder / "tb")
    assert answer.code == 0, answer.stderr
    found: dict[str, list[float]] = {}
    for file in (cli.folder / "tb" / story.job_id).rglob("events.*"):
        events = EventAccumulator(str(file.parent), size_guidance={"scalars": 0})
        events.Reload()
        parts = dict(
            part.split("-", 1) for part in file.parent.relative_to(cli.folder / "tb" / story.job_id).parts
        )
        for tag in events.Tags()["scalars"]:
            if tag.startswith("headline/speed/of-"):
                assert "generation" not in parts
                rank = parts.get("rank")
                row = _row(tag.partition("of-")[2], arm=parts.get("arm"), rank=int(rank) if rank else None)
                found.setdefault(row, []).append(events.Scalars(tag)[0].value)
    return {name: float(numpy.median(values)) for name, values in found.items()}


def _of_mlflow(cli: LocalCli, story: Story) -> dict[str, float]:
    from mlflow.tracking import MlflowClient

    uri = (cli.folder / f"mlruns-{story.job_id}").as_uri()
    answer = cli.bai("export", story.job_id, "--to", "mlflow", "--tracking-uri", uri, "--experiment", "x")
    assert answer.code == 0, answer.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("x")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
    found: dict[str, list[float]] = {}
    for run in runs:
        for key, value in run.data.metrics.items():
            if key.startswith("headline speed"):
                parts = dict(part.split(":") for part in key.split()[2:])
                assert "generation" not in parts
                rank = parts.get("rank")
                row = _row(parts["of"], arm=run.data.tags.get("bai.arm"), rank=int(rank) if rank else None)
                found.setdefault(row, []).append(value)
    return {name: float(numpy.median(values)) for name, values in found.items()}
