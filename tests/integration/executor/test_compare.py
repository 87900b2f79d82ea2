"""`bai compare` of real runs: it finds what is there, says what it cannot tell, and its exit code can be relied on."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import open_browser
from local_cli import LocalCli, open_local_cli

DESCRIPTOR = f'''
spec_version = "0.1.0"
[info]
description = "Prints seeded numbers"
execution_engine = "local"
labels = {{ task_name = "seeded" }}
[hardware]
instance_type = "local"
[host_metrics]
enabled = false
[ml]
benchmark_code = """
#!{sys.executable}
import random, sys
chance = random.Random(int(sys.argv[1]))
level = float(sys.argv[2]) * chance.gauss(1, 0.02)
for step in range(20):
    print("warm" if step < 2 else "", "throughput:", level / 2 if step < 2 else level * chance.gauss(1, 0.05))
"""
[[output.metrics]]
name = "throughput"
units = "images/s"
pattern = 'throughput: (\\S+)'
better = "higher"
headline = "median"
warmup = 2
'''
RUNS = 5


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCli]:
    """Five runs of a program, and five of the same with another seed that is 20 % slower."""
    with open_local_cli(tmp_path_factory.mktemp("compared")) as cli:
        path = cli.folder / "seeded.toml"
        path.write_text(DESCRIPTOR)
        started = [
            cli.start("run", path, "--job-id", f"{side}{i}", "--", str(seed + i), str(level))
            for side, seed, level in (("fast", 100, 1000), ("slow", 300, 800))
            for i in range(RUNS)
        ]
        for each in started:
            output, errors = each.communicate(timeout=240)
            assert each.returncode == 0, output + errors
        yield cli


def side(name: str, count: int = RUNS) -> list[str]:
    return [f"{name}{i}" for i in range(count)]


class Page(HTMLParser):
    """Collects what a page shows and what it would load."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.classes: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.classes += [value or "" for name, value in attributes if name == "class"]
        self.loads += [value or "" for name, value in attributes if name in ("src", "href", "srcset")]


def test_a_slowdown_of_20_percent_is_found_with_a_correct_interval(cli: LocalCli) -> None:
    path = cli.folder / "compare.html"
    done = cli.bai("compare", *side("fast"), "vs", *side("slow"), "--json", "-o", path)

    assert done.code == 1
    (found,) = done.objects
    throughput = next(each for each in found["metrics"] if each["name"] == "throughput")
    assert throughput["verdict"] == "worse"
    low, high = throughput["interval"]
    assert low < -0.2 < high < -0.1
    assert len(throughput["a"]["runs"]) == RUNS
    # What was different is named
    assert any(each["what"] == "benchmark.argv" for each in found["differences"])
    # The page shows every run of throughput and of the wall time, and loads nothing
    page = Page(path.read_text(encoding="utf-8"))
    assert page.loads == []
    assert "script" not in page.tags
    assert (page.tags.count("circle"), page.tags.count("rect")) == (2 * RUNS, 2 * RUNS)


def test_a_comparison_of_single_runs_without_earlier_ones_asks_for_more_runs(cli: LocalCli) -> None:
    one = cli.bai("compare", "fast0", "slow0")
    assert one.code == 0
    assert "cannot tell" in one.stdout
    assert "more run" in one.stdout
    assert "given that earlier runs scatter" in one.stdout


def test_runs_of_the_same_program_are_not_called_worse(cli: LocalCli) -> None:
    equal = cli.bai("compare", "fast0", "fast1", "vs", "fast2", "fast3", "--json")
    assert equal.code == 0
    (found,) = equal.objects
    assert next(each for each in found["metrics"] if each["name"] == "throughput")["verdict"] != "worse"


def test_conditions_decide_the_exit_code_if_there_are_any(cli: LocalCli) -> None:
    sides = (*side("fast"), "vs", *side("slow"))

    assert cli.bai("compare", *sides, "--fail-if", "throughput < -5%").code == 1
    assert cli.bai("compare", *sides, "--fail-if", "throughput < -50%").code == 0
    unjudged = cli.bai("compare", "fast0", "slow0", "--fail-if", "throughput < -5%")
    assert unjudged.code == 2
    assert "cannot be judged" in unjudged.stderr


def test_a_run_is_compared_with_the_history_of_its_label(cli: LocalCli) -> None:
    label = ("--baseline", "task_name=seeded")
    # The newest of all, against those before it
    (found,) = cli.bai("compare", *label, "--last", "4", "--json").objects
    assert len(found["history"]) == 4
    assert found["run"] not in found["history"]

    done = cli.bai("compare", *label)
    assert "history" in done.stdout
    assert "task_name=seeded" in done.stdout


def test_a_run_outside_the_band_fails_a_condition_and_is_plotted(cli: LocalCli) -> None:
    far_off = ("--job-id", "far-off", "--set", "info.labels.task_name=other", "--", "1", "100")
    assert cli.bai("run", cli.folder / "seeded.toml", *far_off).code == 0
    newest, path = ("compare", "far-off", "--baseline", "task_name=seeded"), cli.folder / "band.html"

    done = cli.bai(*newest, "--fail-if", "throughput < -5%", "-o", path)
    less = cli.bai(*newest, "--fail-if", "throughput < -99%")
    more = cli.bai(*newest, "--fail-if", "throughput > 5%", "--fail-if", "throughput < -100")
    short = cli.bai(*newest, "--last", "2", "--fail-if", "throughput < -5%")
    unknown = cli.bai(*newest, "--fail-if", "speed < -5%")

    assert (done.code, less.code, more.code, short.code, unknown.code) == (1, 0, 1, 2, 2), done.stderr
    assert "throughput < -5%: holds" in done.stderr
    assert "throughput > 5%" not in more.stderr
    assert "cannot be judged, the history is too short for a band" in short.stderr
    assert 'no metric "speed" in common' in unknown.stderr
    # Throughput and the wall time: each run of the history, the one in question, and the band.
    page = Page(path.read_text(encoding="utf-8"))
    assert page.loads == []
    assert "script" not in page.tags
    shown = {name: page.classes.count(name) for name in ("a", "b", "band")}
    assert shown == {"a": 2 * 2 * RUNS, "b": 2, "band": 2}


def test_metrics_with_different_definitions_are_not_compared(cli: LocalCli) -> None:
    path = cli.folder / "max.toml"
    path.write_text(DESCRIPTOR.replace('headline = "median"', 'headline = "max"'))
    done = cli.bai(
        "run", path, "--job-id", "by-max", "--set", "info.labels.task_name=other", "--", "1", "500"
    )
    assert done.code == 0
    condition = ("--fail-if", "throughput < -5%")

    for words in (("fast0", "by-max"), ("by-max", "--baseline", "task_name=seeded")):
        compared = cli.bai("compare", *words, *condition)
        assert compared.code == 2
        assert "not comparable" in compared.stdout
        assert "headline: median and max" in " ".join(compared.stdout.split())
        assert "cannot be judged, not comparable" in compared.stderr


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_screen_keeps_verdict_and_change(cli: LocalCli, columns: int) -> None:
    from rich.console import Console

    from executor.documents.comparison_document import pair_blocks
    from executor.documents.screen import Screen
    from executor.jobs.compared import RunReader
    from executor.jobs.compared_pair import compared_pairs
    from executor.jobs.job_lookup import find_job

    store = cli.record("fast0").store
    sides = RunReader(lambda name: find_job([store], name), lambda: [store]).sides(
        [*side("fast"), "vs", *side("slow")]
    )
    console = Console(width=columns, record=True, file=io.StringIO())
    Screen(width=columns).show(console, pair_blocks(compared_pairs(sides)[0]))
    lines = console.export_text().splitlines()

    assert max(map(len, lines)) <= columns
    name = next(i for i, line in enumerate(lines) if line.startswith("throughput"))
    assert "images/s" in lines[name]
    row = next(line for line in lines[name:] if " %" in line)
    assert "worse" in row


def test_pages_fit_a_narrow_screen(cli: LocalCli, tmp_path: Path) -> None:
    # Given sides of long names that differ in something long, and metrics of long names
    more = ("--set", f"info.description={'x' * 200}", "--set", "info.labels.task_name=narrow")
    named = ("--set", f"output.metrics[0].name=throughput_{'of_the_whole_' * 8}")
    for job_id in ("narrow-1", "narrow-2"):
        ran = cli.bai("run", cli.folder / "seeded.toml", "--job-id", job_id, *more, *named, "--", "1", "100")
        assert ran.code == 0, ran.stderr
    pages = [tmp_path / f"{name}.html" for name in ("sides", "other", "band")]
    cli.bai("compare", *side("fast"), "vs", *side("slow"), "-o", pages[0])
    cli.bai("compare", "narrow-1", "fast0", "-o", pages[1])
    cli.bai("compare", "narrow-2", "--baseline", "task_name=narrow", "-o", pages[2])

    with open_browser(tmp_path / "profile") as browser:
        for path in pages:
            page = browser.page(path, width=400, height=800)
            assert page.ask("document.querySelectorAll('table.wide tr').length") > 1
            assert page.ask("document.documentElement.scrollWidth") <= 400, path.name
            outside = "[...document.querySelectorAll('td, h1, h2, svg')].filter((e) => e.getBoundingClientRect().right > 400).length"
            assert page.ask(outside) == 0, path.name


def test_json_of_each_pair_is_one_line(cli: LocalCli) -> None:
    done = cli.bai("compare", "fast0", "fast1", "slow0", "--json")

    assert [json.loads(line)["b"]["name"] for line in done.stdout.splitlines()] == ["fast1", "slow0"]
