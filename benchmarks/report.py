"""How long `bai report` takes for a job of a million points, how large its page is, and how smoothly that opens.

    .venv/bin/python benchmarks/report.py [POINTS]

The job has two nodes and four metrics, with steps and noise. The page is opened in Chromium without a window, scrolled to its end,
hovered over and zoomed. What a person would feel is the longest task of its main thread in each of these: nothing moves meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import Page, open_browser

_NODES, _METRICS = 2, 4
_START = 1_795_000_000_000
_BAI = "from executor.cli import main; main()"
_NOTE_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) window.longest = Math.max(window.longest, each.duration);
}).observe({type: "longtask"});
"""
"""Chromium tells of tasks of 50 ms and more: https://w3c.github.io/longtasks/"""
_DRAWN = "new Promise((done) => setTimeout(done, 300))"
"""What was asked for is drawn by then, or the task that draws it has begun, and the timer waits for its end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=int, nargs="?", default=1_000_000)
    points: int = parser.parse_args().points
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        _write_job(store, points)
        page = store / "report.html"
        environment = {**os.environ, "BAI_STORE": folder}
        for form, output in (("html", page), ("md", store / "report.md"), ("csv", store / "report.csv")):
            before, started = _children(), time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", _BAI, "report", "million", "--format", form, "-o", output],
                check=True,
                env=environment,
                stdout=subprocess.DEVNULL,
            )
            wall, cpu = time.perf_counter() - started, _children() - before
            print(
                f"{form:<5} {points:,} points: {wall:.1f} s ({cpu:.1f} s of CPU), {output.stat().st_size / 1e6:.2f} MB"
            )
        with open_browser(store / "profile") as browser:
            _use(browser.page(page, first=_NOTE_TASKS))


def _use(page: Page) -> None:
    """Do with an open page what a reader does, and print how long each of that takes hold of the main thread."""
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
