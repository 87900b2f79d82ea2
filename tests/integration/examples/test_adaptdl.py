"""examples/adaptdl with the real AdaptDL and PyTorch: replicas come and go, and the training goes on."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from adaptdl_hints import BOUNDED
from agent_runs import wait_until
from image_pythons import adaptdl, hosts_version, pytorch
from local_cli import LocalCli, open_local_cli

EXAMPLE = Path(__file__).parents[3] / "examples" / "adaptdl" / "benchmark.toml"
SECONDS = 180
UNTIL_TOLD = """
import json, os, runpy
import adaptdl.env, adaptdl.sched_hints, adaptdl.torch
import adaptdl.torch._metrics as metrics

def until_told(epochs):
    for epoch in remaining(epochs):
        yield epoch
        if os.path.exists({flag!r}):
            return

remaining, adaptdl.torch.remaining_epochs_until = adaptdl.torch.remaining_epochs_until, until_told
def report():
    adaptdl.sched_hints.post_sched_hints(json.loads({hints!r}), adaptdl.env.job_id())

metrics._PREV_REPORT, metrics._report_sched_hints = 0, report
runpy.run_path("train.py", run_name="__main__")
"""
"""Runs the script, unchanged, until there is a file; AdaptDL gives recorded hints, first after a step in place of 30 seconds."""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[LocalCli]:
    with open_local_cli(tmp_path) as cli:
        yield cli


def test_an_unchanged_adaptdl_script_scales_up_by_goodput_and_down_again(
    cli: LocalCli, tmp_path: Path
) -> None:
    flag, script = tmp_path / "enough", tmp_path / "until_told.py"
    script.write_text(UNTIL_TOLD.format(flag=str(flag), hints=json.dumps(BOUNDED)))
    options: dict[str, object] = {
        "env.python": pytorch(hosts_version()) / "bin" / "python",
        "env.vars.PYTHONPATH": adaptdl(hosts_version()),
        "ml.benchmark_code": f"python3 {script}",
        "elastic.pause": "1s",
    }
    settings = [word for key, value in options.items() for word in ("--set", f"{key}={value}")]
    log = cli.store / "a1" / "attempts" / "0" / "nodes" / "0" / "output.log"

    def wait_for_steps(replicas: int, *, after: int = 0) -> int:
        """Wait for steps of so many replicas after a place in the log; return the place where the log ends."""

        def steps() -> int:
            lines = log.read_bytes()[after:].split(b"\n") if log.exists() else []
            return sum(line.endswith(b" replicas=%d" % replicas) for line in lines)

        wait_until(lambda: steps() > 10, seconds=SECONDS)
        return log.stat().st_size

    run = ["run", str(EXAMPLE), "--on", "local", "--job-id", "a1", *settings]
    printed = tmp_path / "printed"
    # A full pipe would stop `bai` before it starts the second node.
    with (
        printed.open("w") as file,
        cli.start(*run, "--", "--epochs", "1000000", stdout=file, stderr=subprocess.STDOUT) as bai,
    ):
        try:
            wait_for_steps(1)
            so_far = wait_for_steps(2)
            shown = cli.bai("status", "-v", "a1").stdout
            assert cli.bai("scale", "a1", "1").code == 0
            wait_for_steps(1, after=so_far)
            scaled = cli.bai("status", "-v", "a1").stdout
            flag.touch()
            bai.wait(timeout=SECONDS)
        finally:
            bai.kill()
            flag.touch()

    assert bai.returncode == 0, printed.read_text()[-2000:]
    result = cli.record("a1").result()
    assert result is not None
    generations = [(each["members"], each["code"]) for each in result["generations"]]
    assert generations == [([0], 143), ([0, 1], 143), ([0], 0)]
    # Each goes on where the one before has stopped.
    starts = [int(each) for each in re.findall(r"starting at epoch (\d+)", log.read_text())]
    epochs = [int(each) for each in re.findall(r"^epoch=(\d+) ", log.read_text(), re.MULTILINE)]
    assert len(starts) == 3
    assert 0 == starts[0] <= starts[1] <= starts[2]
    assert epochs == sorted(epochs)
    # AdaptDL on AWS would have two nodes by these hints: the integration test of goodput computes it by that rule.
    assert re.search(r"^a1 .*\(desired 2\): 2 members", shown, re.MULTILINE)
    assert re.search(r"^size +goodput proposed 2 nodes ", shown, re.MULTILINE)
    assert re.search(r"^size +`bai scale` has set 1 node, ", scaled, re.MULTILINE)
    assert re.search(r'^hints +\{"initBatchSize": 64, .*"perfParams": \{"alpha_c": ', shown, re.MULTILINE)
