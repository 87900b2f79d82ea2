"""Takes the pictures in docs/images/: the page of a handmade job of two nodes with three runs.

The noise of the job's values has a fixed seed. `scripts/report-images` runs this program.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import tomli_w
from browser import Page, open_browser
from handmade_job import HandmadeJob

from bai_agent.job.descriptor.metric_tables import Better, Metric, OverRanks
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.descriptor_file import job_table
from executor.report.contents import report_of
from executor.report.html import html_report

_FOLDER = Path(__file__).parents[2] / "docs" / "images"
_PHASES = (("prepare", 4), ("pull", 31), ("join", 3), ("run", 420), ("drain", 5), ("end", 2))
_BOOT_S = 38
_CPU = "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        job = _job(Path(folder) / "store")
        made = report_of(job.record, now=job.started + 600_000, prices={"p4d.24xlarge": 32.7726})
        page.write_text(html_report(made))
        with open_browser(Path(folder) / "profile") as browser:
            _picture(browser.page(page, width=1160, height=900), "report.png", 0)
            _picture(browser.page(page, width=1160, height=860, dark=True), "report-dark.png", "#metrics")
            _picture(browser.page(page, width=400, height=800), "report-phone.png", "#metrics")


def _picture(page: Page, name: str, at: int | str) -> None:
    top = (
        at
        if isinstance(at, int)
        else page.ask(f"document.querySelector('{at}').getBoundingClientRect().top + scrollY - 16")
    )
    page.ask(f"scrollTo({{top: {top}, behavior: 'instant'}})")
    if at:
        page.await_true("!!document.querySelector('#chart-0 canvas')")
        x, y = page.ask(
            "(() => { const r = document.querySelector('#chart-0 .u-over').getBoundingClientRect(); return [r.x + r.width * 0.62, r.y + r.height / 2]; })()"
        )
        page.move_mouse(x, y)
    time.sleep(0.5)  # until what the mouse changed is painted
    page.picture(_FOLDER / name)


def _job(store: Path) -> HandmadeJob:
    noise = random.Random(7)
    job = HandmadeJob(
        store, "resnet50-20261122-5e1f02", name="ResNet-50, 2 x 8 GPUs", nodes=2, labels={"team": "vision"}
    )
    loss = Metric(name="loss", pattern="x", units="nats", better=Better.LOWER, over_ranks=OverRanks.MEAN)
    rate = Metric(
        name="throughput",
        pattern="x",
        units="img/s",
        better=Better.HIGHER,
        over_ranks=OverRanks.SUM,
        warmup_values=20,
    )
    source = Source(src="s3://datasets/imagenet/train/", path="train", directory=True)
    described = replace(
        job.job,
        metrics=(loss, rate),
        strategy=StrategyTable(name="torchrun", nodes=2, processes_per_node="8"),
        sources=(source,),
        set={"ml.args": "--batch-size 256"},
    )
    job.store.put(job.record.key("job.toml"), tomli_w.dumps(job_table(described)).encode())
    began = job.started
    launch = {"created": "2026-11-18T11:05:58Z", "request": {"InstanceType": "p4d.24xlarge"}}
    job.store.put(job.record.key("attempts/0/launch.json"), json.dumps(launch).encode())
    for rank in range(2):
        node, at = job.on(rank), began + _BOOT_S * 1000 + rank * 2600
        for phase, took in _PHASES:
            node.event("phase", phase=phase, state="started", time=at)
            if phase == "run":
                node.event("benchmark_started", pid=1, argv=["python3", "train.py"], time=at)
                _measure(node, rank, at, noise)
            at += took * 1000 - (rank * 2600 if phase == "join" else 0)
            node.event("phase", phase=phase, state="finished", seconds=float(took), time=at)
        facts = {
            "instance": {
                "type": "p4d.24xlarge",
                "id": f"i-0a41c0ffee{rank}",
                "availability_zone": "us-east-1a",
                "market": "on-demand",
            },
            "cpu": {"model": _CPU, "count": 96, "governors": ["performance"] if rank else ["powersave"]},
            "memory": {"total_bytes": 1152 << 30, "available_bytes": 1140 << 30},
            "gpus": {
                "driver": "570.86.15",
                "cuda": "12.8",
                "devices": [{"name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 << 30}] * 8,
            },
            "warnings": []
            if rank
            else ['The frequency governor is "powersave": processors may run slower than they can.'],
        }
        (node.node / "environment.json").write_text(json.dumps(facts))
        node.prints("".join(f"step {step} loss {2.9 - step / 900:.4f}\n" for step in range(1180, 1240)))
    job.ends(
        started=began + _BOOT_S * 1000, ended=began + 504_000, sentence="The benchmark finished successfully after 6 min 59 s.",
        git={"commit": "8d0f6c2b6c1e4c0f5a3b9d7e2a1c4f6e8b0d2a4c", "branch": "main", "dirty": False},
    )  # fmt: skip
    return job


def _measure(node: HandmadeJob, rank: int, at: int, noise: random.Random) -> None:
    for step in range(800):
        time_ms = at + 4000 + step * 510
        slow = 0.62 if 430 <= step < 478 else 1.0
        node.record_of(
            "loss",
            1.1 + 5.6 * math.exp(-step / 210) + noise.gauss(0, 0.05),
            units="nats",
            time=time_ms,
            step=step,
        )
        rate = (9800 - rank * 180) * min(1.0, 0.4 + step / 30) * slow + noise.gauss(0, 90)
        node.record_of("throughput", rate, units="img/s", time=time_ms + 1, step=step)
        if step % 10 == 0:
            samples = (
                (
                    "cpu_percent",
                    34 + 5 * math.sin(step / 40) + noise.gauss(0, 2) + (38 if slow < 1 and not rank else 0),
                    "%",
                ),
                ("gpu0_utilization_percent", min(100.0, 96 * slow + noise.gauss(0, 1.5)), "%"),
                ("memory_used_bytes", (210 + step / 30) * 2**30, "B"),
                ("network_receive_bytes_per_second", (5.2 * slow + noise.gauss(0, 0.15)) * 1e9, "B/s"),
            )
            for name, value, units in samples:
                node.record_of(f"bai_host_{name}", value, src="host", units=units, time=time_ms)


if __name__ == "__main__":
    main()
