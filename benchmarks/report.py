"""Time of `bai metrics` and `bai report` for a job of a million points, and size and smoothness of the HTML report.

    .venv/bin/python benchmarks/report.py [--points 1000000] [--rounds 5] [--no-page]

The job has two nodes and four metrics, with steps and noise. `bai metrics`, the report and a plain loop run in turns. The plain
loop decodes each line, and prints figures, JSON Lines with the rank, or CSV. In a second pass each MiB has a damaged line, so
that the pattern for the agent's own lines reads no record. The page is opened in Chromium without a window, scrolled to its end,
hovered over and zoomed. The figure for each of these actions is the longest task of the browser's main thread, during which
nothing on the page moves.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/harness"))

from browser import Page, open_browser
from goals import print_figure

_NODES, _METRICS = 2, 4
_START = 1_795_000_000_000
_BAI = "from executor.__main__ import main; main()"
_FORMS = {"table": "metrics-table", "jsonl": "metrics-jsonl", "csv": "metrics-csv"}
"""Forms of `bai metrics`, with their goals."""
_PLAIN = """
import csv, json, statistics, sys
form, *files = sys.argv[1:]
values = {}
table = csv.DictWriter(sys.stdout, ["seq", "src", "off", "name", "value", "units", "timestamp", "step", "rank"], extrasaction="ignore")
for rank, file in enumerate(files):
    for line in open(file, "rb"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if form == "jsonl":
            print(json.dumps({**record, "labels": {"rank": str(rank)}}))
        elif form == "csv":
            table.writerow({**record, "rank": rank})
        else:
            values.setdefault((record["name"], rank), []).append(record["value"])
for row, found in values.items():
    print(row, min(found), max(found), statistics.fmean(found), statistics.median(found))
"""
"""Program of the plain loop, which computes fewer figures than the table."""
_NOTE_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) window.longest = Math.max(window.longest, each.duration);
}).observe({type: "longtask"});
"""
"""Script that records the longest task. Chromium reports tasks of 50 ms and more: https://w3c.github.io/longtasks/"""
_DRAWN = "new Promise((done) => setTimeout(done, 300))"
"""Script that waits until the page is drawn. If the task that draws is still running after 300 ms, the timer waits for its
end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-page", action="store_true", help="neither report nor browser")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        _write_job(store, options.points)
        compare_forms(store, options.points, options.rounds)
        if options.no_page:
            return
        if not (shutil.which("chromium") or shutil.which("chromium-browser")):
            sys.exit("Chromium is not installed, so no page is opened: scripts/debian-packages chromium")
        page = store / "report.html"
        for form, output in (("html", page), ("md", store / "report.md"), ("csv", store / "report.csv")):
            wall, cpu = _run(store, _bai("report", "million", "--format", form, "-o", str(output)))
            print(
                f"{form:<5} {options.points:,} points: {wall:.1f} s ({cpu:.1f} s of CPU), {output.stat().st_size / 1e6:.2f} MB"
            )
        with open_browser(store / "profile") as browser:
            _use(browser.page(page, first=_NOTE_TASKS))


def compare_forms(store: Path, points: int, rounds: int) -> None:
    """Print the time of `bai metrics` and of its peers for each format, with undamaged and with damaged lines."""
    print("| lines | form | s | s of CPU | × plain loop | × HTML report |")
    print("|---|---|---:|---:|---:|---:|")
    figures: dict[tuple[str, str], tuple[list[float], float]] = {}
    for lines in ("as written", "each MiB damaged"):
        if lines != "as written":
            _damage(store)
        taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(rounds):
            page = _run(store, _bai("report", "million", "-o", str(store / "report.html")))
            for form in _FORMS:
                plain = [sys.executable, "-c", _PLAIN, form, *map(str, _records(store))]
                for way, found in (
                    ("bai", _run(store, _bai("metrics", "million", "--format", form))),
                    ("plain", _run(store, plain)),
                    ("page", page),
                ):
                    taken.setdefault((form, way), []).append(found)
        for form in _FORMS:
            walls = [wall for wall, _ in taken[form, "bai"]]
            cpu, plain_cpu, page_cpu = (
                statistics.median(cpu for _, cpu in taken[form, way]) for way in ("bai", "plain", "page")
            )
            figures[form, lines] = walls, cpu
            print(
                f"| {lines} | {form} | {statistics.median(walls):.2f} | {cpu:.2f} | {plain_cpu / cpu:.1f} | {page_cpu / cpu:.1f} |",
                flush=True,
            )
    for (form, lines), (walls, cpu) in figures.items():
        if lines == "as written" and points >= 1_000_000:
            print_figure(_FORMS[form], walls, case=f"{points:,} points, two nodes; {cpu:.1f} s of CPU")


def _bai(*words: str) -> list[str]:
    return [sys.executable, "-c", _BAI, *words]


def _run(store: Path, command: list[str]) -> tuple[float, float]:
    """Return the seconds that a command takes, of the clock and of CPU."""
    before, started = _children(), time.perf_counter()
    environment = {**os.environ, "BAI_STORE": str(store)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started, _children() - before


def _records(store: Path) -> list[Path]:
    return sorted(store.glob("million/attempts/0/nodes/*/metrics/*.jsonl"))


def _damage(store: Path) -> None:
    """Insert a line that is not a record into each half MiB."""
    for file in _records(store):
        pieces = io.BytesIO(file.read_bytes())
        with file.open("wb") as damaged:
            while lines := pieces.readlines(2**19):
                damaged.write(b"".join([*lines, b"damaged\n"]))


def _use(page: Page) -> None:
    """Scroll, hover and zoom an open page like a reader, and print the longest task of the main thread for each action."""
    page.await_true("document.querySelector('#chart-0 canvas') !== null")
    loaded = page.ask("performance.getEntriesByType('navigation')[0].loadEventEnd")
    _print_longest(page, f"opened in {loaded:.0f} ms")
    height = page.ask("document.documentElement.scrollHeight")
    for top in range(0, height, 300):
        page.ask(f"scrollTo({{top: {top}, behavior: 'instant'}}); {_DRAWN}")
    _print_longest(page, f"scrolled through its {height:,} pixels")
    page.ask(f"document.getElementById('chart-0').scrollIntoView({{behavior: 'instant'}}); {_DRAWN}")
    x, y, width = page.ask(
        "(() => { const r = document.querySelector('#chart-0 .u-over').getBoundingClientRect(); return [r.x, r.y + r.height / 2, r.width]; })()"
    )
    for step in range(50):
        page.move_mouse(x + width * step / 50, y)
    _print_longest(page, "hovered over a plot")
    page.drag((x + width * 0.3, y), (x + width * 0.6, y))
    _print_longest(page, "zoomed into all plots")


def _print_longest(page: Page, what: str) -> None:
    page.ask(_DRAWN)
    longest = page.ask("(() => { const found = window.longest; window.longest = 0; return found; })()")
    print(f"page  {what}: the longest task took {f'{longest:.0f} ms' if longest else 'less than 50 ms'}")


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _write_job(store: Path, points: int) -> None:
    job = store / "million"
    job.mkdir()
    metrics = "".join(
        f'[[metrics]]\nname = "metric{each}"\npattern = "x"\nunits = "ms"\n' for each in range(_METRICS)
    )
    (job / "job.toml").write_text(
        'version = 1\n[job]\nid = "million"\nname = "a million points"\n[benchmark]\nargv = ["true"]\n'
        f'[strategy]\nname = "torchrun"\nnodes = {_NODES}\n{metrics}'
    )
    noise = random.Random(1)
    each_node = points // _NODES
    for rank in range(_NODES):
        node = job / "attempts/0/nodes" / str(rank)
        (node / "metrics").mkdir(parents=True)
        events = [
            {"time": _START, "type": "phase", "phase": "run", "state": "started", "seconds": None},
            {
                "time": _START + each_node * 2,
                "type": "phase",
                "phase": "run",
                "state": "finished",
                "seconds": each_node / 500,
            },
        ]
        (node / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        with (node / "metrics" / f"{0:020}.jsonl").open("w") as file:
            for seq in range(each_node):
                step, metric = divmod(seq, _METRICS)
                value = 50 + 20 * math.sin(step / 9000) + noise.gauss(0, 3)
                file.write(
                    f'{{"seq":{seq},"src":"log","off":{seq * 40},"i":{metric},"k":0,"name":"metric{metric}","value":{value:.5f},'
                    f'"units":"ms","timestamp":{_START + seq * 2},"step":{step}}}\n'
                )


if __name__ == "__main__":
    main()
