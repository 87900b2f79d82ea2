"""What a report says of a job, in each of its formats."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import subprocess
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path

import pytest
import tomli_w
from cli_harness import BAI
from handmade_job import START, HandmadeJob
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Arm, Repeat
from bai_agent.job.descriptor.metric_tables import Headline, OverRanks
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.descriptor_file import job_table
from executor.report.contents import Report, report_of
from executor.report.html import html_report, script_json
from executor.report.lines import chosen
from executor.report.markdown import markdown_report
from executor.report.plots import plot_data
from executor.report.report_json import write_csv, write_json
from executor.report.words import cost_of, cost_sentence, headlines_of

_FINITE = st.floats(allow_nan=False, allow_infinity=False)


def report(job: HandmadeJob, **prices: float) -> Report:
    return report_of(job.record, now=START + 60_000, prices=prices)


def describe(job: HandmadeJob, made: Job) -> None:
    job.store.put(job.record.key("job.toml"), tomli_w.dumps(job_table(made)).encode())


@given(values=st.lists(_FINITE, min_size=1, max_size=400), limit=st.integers(4, 60))
def test_thinning_keeps_the_extremes_the_ends_and_the_order(values: list[float], limit: int) -> None:
    kept = list(chosen(values, limit))

    assert len(kept) <= max(limit, 4)
    assert kept == sorted(set(kept)) or len(values) > limit
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert {min(values), max(values)} <= {values[index] for index in kept}


def test_many_points_are_thinned_for_the_page_with_a_note(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    values = [math.sin(i / 900) for i in range(17_000)]
    values[12_345] = 99.0
    job.measures("loss", *values)
    made = report(job)

    plots = plot_data(made)

    (series,) = plots.table["plots"][0]["series"]
    assert len(series["v"]) == len(series["t"]) <= 16_000
    assert 99 in series["v"]
    assert f"{len(series['v']):,} of 17,000 points are drawn, including the extremes" in html_report(made)
    assert made.metrics[0].lines[0].figures is not None
    assert made.metrics[0].lines[0].figures.count == 17_000


def test_warm_up_is_drawn_in_plots_but_left_out_of_statistics(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    loss, accuracy = job.job.metrics
    timed = replace(accuracy, warmup=timedelta(milliseconds=3))
    describe(job, replace(job.job, metrics=(replace(loss, warmup_values=2, headline=Headline.MEAN), timed)))
    job.measures("loss", 9.0, 9.0, 2.0, 4.0)
    job.measures("accuracy", 1.0, 0.5)
    job.event("benchmark_started", time=START + 2, pid=1, argv=["x"])
    made = report(job)

    counted, timed_part = made.metrics
    assert counted.lines[0].headline == 3.0
    assert [(each.headline.value, each.of) for each in headlines_of(counted, ())] == [(3.0, "mean of 2")]
    assert timed_part.lines[0].left_out == 1
    page = html_report(made)
    assert "the first 2 values of each series (2 of 4 values) are drawn, and left out of the figures" in page
    assert len(plot_data(made).table["plots"][0]["series"][0]["v"]) == 4
    assert plot_data(made).table["plots"][1]["marks"] == [{"x": 2, "to": 5}]


@pytest.mark.parametrize(
    ("how", "value"),
    [
        (OverRanks.EACH, 3.0),
        (OverRanks.MEAN, 3.0),
        (OverRanks.SUM, 6.0),
        (OverRanks.MIN, 2.0),
        (OverRanks.MAX, 4.0),
    ],
)
def test_a_headline_over_nodes_follows_over_ranks(tmp_path: Path, how: OverRanks, value: float) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    describe(job, replace(job.job, metrics=(replace(job.job.metrics[0], over_ranks=how),)))
    job.measures("loss", 2.0)
    job.on(1).measures("loss", 4.0)

    (part,) = report(job).metrics

    assert [each.headline.value for each in headlines_of(part, ())] == [value]
    assert [line.label for line in part.lines] == ["node 0", "node 1"]


def test_series_with_labels_are_never_merged_like_ranks(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    describe(job, replace(job.job, metrics=(replace(job.job.metrics[0], over_ranks=OverRanks.SUM),)))
    for label, value in (("p50", 2.0), ("p90", 5.0), ("p99", 9.0)):
        job.record_of("loss", value, labels={"quantile": label})
    job.ends()
    made = report(job)

    found = {
        each.headline.labelled: each.headline.value for each in headlines_of(made.metrics[0], made.failed)
    }
    assert found == {"loss{quantile=p50}": 2.0, "loss{quantile=p90}": 5.0, "loss{quantile=p99}": 9.0}
    page = html_report(made)
    assert all(f'class="name">{name} ' in page for name in found)
    assert "16.0" not in page.partition("</header>")[0]


def test_runs_of_one_job_have_a_median_and_a_table(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    for repeat, value in enumerate((5.0, 1.0, 2.0)):
        job.record_of("loss", value, repeat=repeat, time=START + 100 * repeat)
    runs = [
        {
            "repeat": each,
            "outcome": "succeeded" if each else "failed",
            "arm": "ab"[each % 2],
            "started": START + 100 * each,
            "wall_seconds": 0.09,
        }
        for each in range(3)
    ]
    job.ends(repeats=runs)
    made = report(job)

    # The run that failed counts in none
    (headline,) = headlines_of(made.metrics[0], made.failed)
    assert (headline.headline.value, headline.of) == (1.5, "median of 2 runs (last), 1 to 2")
    page = html_report(made)
    assert "3 runs of the benchmark" in page
    assert re.search(r"repeat 0</th><td[^>]*>a</td><td[^>]*>failed</td>", page)
    assert [each["o"] for each in plot_data(made).table["plots"][0]["series"]] == [0, 100, 200]


def test_a_report_of_arms_shows_the_comparison_that_compare_makes(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    repeat = Repeat(runs=12, arms=(Arm(name="old", argv=("x",)), Arm(name="new", argv=("y",))))
    describe(job, replace(job.job, repeat=repeat))
    runs = []
    for number in range(12):
        value = (100.0 if number % 2 == 0 else 120.0) + 0.1 * (number % 5)
        job.record_of("loss", value, units="nats", repeat=number, time=START + 100 * number)
        runs.append(
            {"repeat": number, "outcome": "succeeded", "arm": ("old", "new")[number % 2],
             "started": START + 100 * number, "wall_seconds": 2.0 + 0.01 * (number % 3)}
        )  # fmt: skip
    job.ends(repeats=runs)
    command = [*BAI, "compare", "digits-1", "--json", "--store", job.store.url]
    asked = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    expected = json.loads(asked.stdout)
    made = report(job)
    as_json = io.StringIO()
    write_json(made, as_json)
    loss = next(each for each in expected["metrics"] if each["name"] == "loss")

    assert json.loads(as_json.getvalue())["comparison"] == [expected]
    assert (loss["verdict"], round(loss["change"], 2)) == ("worse", 0.2)
    low, high = loss["interval"]
    assert markdown_report(made).index("| 95 % interval |") < markdown_report(made).index("| headline |")
    for text in (html_report(made), markdown_report(made)):
        for shown in (
            "digits-1 old (6 runs)" if text.startswith("<") else r"digits-1 old \(6 runs\)",
            f"{loss['a']['value']:.6g} nats",
            f"{loss['b']['value']:.6g} nats",
            f"{loss['change'] * 100:+.1f} %".replace("+", "+" if text.startswith("<") else r"\+"),
            f"{low * 100:+.1f} … {high * 100:+.1f} %".replace("+", "+" if text.startswith("<") else r"\+"),
            "worse",
        ):
            assert shown in text, shown


def test_the_report_shows_duration_and_cost_of_launch_boot_and_phases(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    created = "2026-11-18T11:06:00Z"
    assert START == 1_795_000_000_000
    table = {
        "created": created,
        "request": {"InstanceType": "m5.large", "InstanceMarketOptions": {"MarketType": "spot"}},
    }
    job.store.put(job.record.key("attempts/0/launch.json"), json.dumps(table).encode())
    job.event("phase", phase="run", state="started", time=START)
    job.event("phase", phase="run", state="finished", seconds=90.0, time=START + 90_000)
    job.event("phase", phase="drain", state="started", time=START + 90_000)
    made = report(job, **{"m5.large": 3.6})

    (lane,) = made.lanes
    assert [(bar.phase, bar.goes_on) for bar in lane.bars] == [
        ("boot", False),
        ("run", False),
        ("drain", True),
    ]
    assert made.instance_type == "m5.large"
    costs = cost_of(made)
    assert costs is not None
    assert costs["run"] == pytest.approx(0.09)
    assert "USD for 1 × m5.large at 3.6000 USD an hour" in cost_sentence(made)
    assert "at most, because the job ran on spot capacity" in cost_sentence(made)
    assert "write the price under [prices]" in cost_sentence(report(job))


@pytest.mark.parametrize("hours", [1, -1])
def test_a_change_of_the_clock_does_not_change_the_timeline(tmp_path: Path, hours: int) -> None:
    job = HandmadeJob(tmp_path)
    set_by = hours * 3_600_000
    job.event("agent_started", pid=1, boot_id="b", time=START)
    job.event("phase", phase="pull", state="started", uptime=50.0, time=START)
    job.event("agent_started", pid=2, boot_id="b", time=START + 20_000 + set_by)
    job.event(
        "phase", phase="pull", state="finished", seconds=25.0, uptime=75.0, time=START + 25_000 + set_by
    )
    job.event("phase", phase="run", state="started", uptime=75.0, time=START + 25_000 + set_by)
    job.event("phase", phase="run", state="finished", seconds=5.0, uptime=80.0, time=START + 30_000 + set_by)

    (lane,) = report(job).lanes

    assert [(bar.phase, bar.start - START, bar.seconds) for bar in lane.bars] == [
        ("pull", 0, 25.0),
        ("run", 25_000, 5.0),
    ]


def test_the_report_shows_bais_own_usage_on_each_node(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    usage = {
        name: {"cpu_seconds": cpu, "peak_memory_bytes": 40 << 20}
        for name, cpu in (("agent", 0.7), ("extractor", 0.25), ("shim", 0.05))
    }
    node = {"rank": 0, "cpus": 4, "benchmark_seconds": 100.0, **usage}
    killed = {**node, "rank": 1, "extractor": {**usage["extractor"], "at_least": True}, "shim": None}
    job.ends(own_usage=[node, killed])
    made = report(job)

    sentence = (
        "bai itself took at least 1.95 s of processor time on 2 nodes: at least 0.5 % of what the machine's 4 CPUs had "
        "while the benchmark ran; the start and end of bai are included."
    )
    assert f"<caption>{escape(sentence)}</caption>" in html_report(made)
    row = re.search(
        r'<th scope="row">node 1</th>(.*?)</tr>', html_report(made).split(str(escape(sentence)))[1]
    )
    assert row is not None
    assert re.findall(r">([^<]+)<", row[1]) == [
        "0.70 s, 40.0 MiB",
        "at least 0.25 s, 40.0 MiB",
        "–",
        "at least 0.2 %",
    ]
    text = markdown_report(made)
    assert sentence.replace(":", "&#58;") in text
    assert "| node 0 | 0.70 s, 40.0 MiB | 0.25 s, 40.0 MiB | 0.05 s, 40.0 MiB |" in text
    written = io.StringIO()
    write_json(made, written)
    assert json.loads(written.getvalue())["result"]["own_usage"][1]["extractor"]["at_least"] is True


def test_peak_memory_of_a_run_below_the_shims_is_reported_as_a_bound(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    usage = {"cpu_seconds": 0.1, "peak_memory_bytes": 12 << 20}
    runs = [
        {"repeat": number, "outcome": "succeeded", "started": START, "peak_memory_bytes": peak << 20}
        for number, peak in enumerate((11, 30))
    ]
    job.ends(
        repeats=runs,
        own_usage=[{"rank": 0, "cpus": 4, "agent": usage, "extractor": usage, "shim": usage}],
    )

    rows = re.findall(
        r'repeat \d</th>.*?data-name="peak memory \(largest process\)">([^<]*)<', html_report(report(job))
    )

    assert rows == ["below 12.6 MiB", "30.0 MiB"]


def test_the_report_of_a_record_without_own_usage_omits_it(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.ends()
    made = report(job)

    assert "bai itself" not in html_report(made) + markdown_report(made)


def test_differing_nodes_come_first(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    for rank, model in enumerate(("Xeon 1", "Xeon 2")):
        facts = {"cpu": {"model": model}, "memory": {"total_bytes": 2**30}, "warnings": [f"slow {rank}"]}
        (job.on(rank).node / "environment.json").write_text(json.dumps(facts))
    page = html_report(report(job))

    differ, same = page.index("Differences between the 2 nodes"), page.index("The same on all 2 nodes")
    assert differ < page.index("node 0: Xeon 1<br>node 1: Xeon 2") < same
    assert "Node 1: slow 1" in page[: page.index("<main>")]


@pytest.mark.parametrize(("until", "each"), [(None, "--runs 5"), (0.07, "--until 7%")])
def test_the_command_to_repeat_an_ab_job_names_both_files(
    tmp_path: Path, until: float | None, each: str
) -> None:
    job = HandmadeJob(tmp_path)
    arms = (Arm(name="old", argv=("true",)), Arm(name="new", argv=("false",)))
    metric = job.job.metrics[0].name if until is not None else None
    repeat = Repeat(runs=10, arms=arms, seed=3, until=until, metric=metric)
    describe(job, replace(job.job, repeat=repeat, set={"ml.args": "--fast"}))

    together = report(job)
    (tmp_path / "digits-1" / "request.json").write_text("{}")  # as of a job of one file
    alone = report(job)

    for made, command in (
        (together, f"bai ab A.toml B.toml {each} --seed 3 --set ml.args=--fast"),
        (alone, "bai run --like digits-1"),
    ):
        assert command in html_report(made)
        assert f"`{command}`" in markdown_report(made)


def test_the_report_has_everything_needed_to_repeat_the_job(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    source = Source(src="s3://data/train/", path="train", sha256="a" * 64)
    scripts = Source(src="s3://bucket/scripts/x.tar", path="", sha256="b" * 64, kind=SourceKind.SCRIPTS)
    benchmark = replace(job.job.benchmark, secrets={"HF_TOKEN": "env:HF"})
    describe(job, replace(job.job, sources=(source, scripts), set={"ml.args": "--fast"}, benchmark=benchmark))
    job.ends(git={"commit": "c" * 40, "branch": "main", "dirty": True})
    made = report(job)

    for text in (html_report(made), markdown_report(made).replace("\\", "")):
        for needed in (
            "bai run --like digits-1",
            "b" * 64,
            "--set ml.args",
            "--fast",
            "c" * 40,
            "with uncommitted changes",
            "python3 train.py",
            "HF_TOKEN",
        ):
            assert needed in text.replace("&#58;", ":"), needed
    assert "a" * 64 in html_report(made)


def test_hostile_text_is_no_markup_in_markdown(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, name="<img src=x>\x1b[2J | @all [x](http://x) `a`")
    job.record_of("a|b\n# c", 1.0, labels={"k": "](http://x)"})
    job.record_of("a|b\n# c", 2.0)
    text = markdown_report(report(job))

    assert "\x1b" not in text
    assert "<img" not in text
    assert "@all" not in text
    assert "](" not in text
    assert "http://" not in text
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert len(rows) == 2
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 14 for row in rows)


@settings(max_examples=40)
@given(text=st.text())
def test_no_text_in_the_pages_json_closes_its_script_element(text: str) -> None:
    written = script_json({"text": text})

    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written)["text"] == text.encode(errors="replace").decode()


def test_unsteady_series_are_marked(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.measures("loss", *[100.0 - each / 2 for each in range(100)])
    job.measures("accuracy", *[5.0 + each % 3 / 1000 for each in range(100)])
    made = report(job)

    falls, settled = (part.lines[0].unsteady for part in made.metrics)
    assert falls is not None
    assert falls.startswith("not steady: still falls at the end")
    assert settled is None
    assert html_report(made).count("not steady") == markdown_report(made).count("not steady") == 1


@pytest.mark.parametrize(
    ("sample", "title"),
    [
        ("memory_used_bytes", "memory used"),
        ("gpu0_utilization_percent", "GPU utilisation"),
        ("gpu0_memory_used_bytes", "GPU memory used"),
        ("gpu0_temperature_celsius", "GPU temperature"),
        ("gpu0_power_watts", "GPU power"),
        ("network_receive_bytes_per_second", "network received"),
        ("disk_free_bytes", "disk free"),
    ],
)
def test_a_plot_of_the_machine_has_a_plain_title_without_units(
    tmp_path: Path, sample: str, title: str
) -> None:
    job = HandmadeJob(tmp_path)
    job.measures(f"bai_host_{sample}", 3.0, src="host", units="u")

    assert [each.title for each in plot_data(report(job)).plots if each.host] == [title]


def test_json_and_csv_contain_every_point(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path, nodes=2)
    for step in range(30):
        job.record_of("loss", step / 2, step=step)
    job.on(1).measures("loss", 7.0)
    job.measures("bai_host_cpu_percent", 3.0, src="host", units="%")
    made = report(job)
    as_json, as_csv = io.StringIO(), io.StringIO()
    write_json(made, as_json)
    write_csv(made, as_csv)

    table = json.loads(as_json.getvalue())
    first, second = table["metrics"][0]["series"]
    assert first["values"] == [step / 2 for step in range(30)]
    assert first["steps"] == list(range(30))
    assert (second["rank"], second["values"], second["steps"]) == ("1", [7.0], None)
    rows = list(csv.DictReader(as_csv.getvalue().splitlines()))
    assert len(rows) == 32
    assert rows[29] | {"timestamp": ""} == {
        "src": "log", "name": "loss", "labels": "", "rank": "0", "process_rank": "", "arm": "", "repeat": "",
        "timestamp": "", "step": "29.0", "value": "14.5", "units": "", "generation": "",
    }  # fmt: skip


def test_texts_in_csv_are_neither_formulas_nor_half_characters(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.measures("=cmd|' /C calc'!A0", -1.0, units="@x\ud800")
    as_csv = io.StringIO()
    write_csv(report(job), as_csv)

    (row,) = csv.DictReader(as_csv.getvalue().splitlines())
    assert (row["name"], row["units"], row["value"]) == ("'=cmd|' /C calc'!A0", "'@x?", "-1.0")


def test_a_job_that_has_only_started_has_a_report(tmp_path: Path) -> None:
    made = report(HandmadeJob(tmp_path, written=False))

    assert "The job has no result yet" in html_report(made)
    assert "loss, accuracy" in markdown_report(made)


def test_the_html_report_keeps_line_breaks_of_the_log(tmp_path: Path) -> None:
    job = HandmadeJob(tmp_path)
    job.prints("first <b>\n  second\n")

    assert '<pre class="log" tabindex="0">first &lt;b&gt;\n  second</pre>' in html_report(report(job))


def test_the_bundled_plot_library_has_the_documented_checksum() -> None:
    room = files("executor.report") / "vendor" / "uplot"
    named = dict(
        re.findall(r"`(uPlot\.[a-z.]+)` \| SHA-256 `([0-9a-f]{64})`", (room / "README.md").read_text())
    )

    assert set(named) == {"uPlot.iife.min.js", "uPlot.min.css"}
    for name, digest in named.items():
        assert hashlib.sha256((room / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (room / "LICENSE").read_text()


def test_a_plot_over_steps_shows_recomputed_steps_of_the_later_generation(tmp_path: Path) -> None:
    # Given a resume from the checkpoint of step 2, in a metric with two sets of labels, and a generation without a step
    job = HandmadeJob(tmp_path)
    told = [(0, 1), (0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, None)]
    for generation, step in told:
        more = {} if step is None else {"step": step}
        for test in ("a", "b") if generation == 0 else ("a",):
            job.record_of(
                "loss", generation + (step or 0) / 10, generation=generation, labels={"of": test}, **more
            )
    job.ends()

    made = report(job)

    series = plot_data(made).table["plots"][0]["series"]
    assert {each["label"]: (each["v"], each.get("s")) for each in series} == {
        "of=a, generation 0": ([0.1, 0.2, 0.3, 0.4], [1, 2, None, None]),
        "of=a, generation 1": ([1.3, 1.4], [3, 4]),
        "of=a, generation 2": ([2], None),
        "of=b, generation 0": ([0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4]),
    }
    # What no later generation has a number of counts.
    assert [(line.label, line.superseded) for line in made.metrics[0].lines] == [
        ("of=a, generation 0", True),
        ("of=a, generation 1", True),
        ("of=a, generation 2", False),
        ("of=b, generation 0", False),
    ]
