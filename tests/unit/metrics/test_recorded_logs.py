"""Presets find in recorded outputs of other programs what a person reads there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from extraction_runs import EXITED, extracted, records
from recorded_logs import PAGE, RecordedLog, page, recorded_logs

from bai_agent.job.descriptor_file import parse_job
from bai_agent.job.run_directory import RunDir
from bai_agent.metrics.process import Extractor
from executor.descriptor import load
from executor.descriptor.presets import preset_names, read_preset
from executor.planning.job_toml import job_toml
from executor.planning.plan import PlanInputs, plan

DESCRIPTOR = """
spec_version = "0.1.0"
[info]
description = "recorded"
[hardware]
instance_type = "local"
[ml]
benchmark_code = "true"
[output]
preset = "{preset}"
"""


def test_every_preset_has_recorded_logs_of_two_forms() -> None:
    logs = recorded_logs()
    forms = Counter(each.preset.name for each in logs)

    assert set(forms) == set(preset_names())
    assert {name: 1 + len(read_preset(name).also) for name in preset_names()} == forms
    assert min(forms.values()) >= 2


@pytest.mark.parametrize("recorded", recorded_logs(), ids=lambda recorded: recorded.name)
def test_presets_find_the_hand_checked_values_in_recorded_logs(tmp_path: Path, recorded: RecordedLog) -> None:
    file = tmp_path / "benchmark.toml"
    file.write_text(DESCRIPTOR.format(preset=recorded.preset.name))
    descriptor, findings = load(file)
    assert (descriptor is not None, findings) == (True, [])
    assert descriptor is not None
    job = plan(descriptor, PlanInputs(folder=tmp_path, job_id="recorded", client_id="c"))
    rundir = RunDir(tmp_path / "run")
    rundir.path.mkdir()
    rundir.job.write_text(job_toml(job))
    rundir.output.write_bytes(recorded.log.read_bytes())
    rundir.exit.write_text(json.dumps(EXITED))

    Extractor(rundir, parse_job(rundir.job.read_bytes(), where="job.toml")).run()

    assert values_in(rundir) == recorded.values
    told = extracted(rundir)
    assert list(told["not_numbers"]) == recorded.left_out
    assert len(told["warnings"]) == len(recorded.left_out)
    assert told["empty_presets"] == ([] if recorded.values else [recorded.preset.name])


def test_the_page_of_presets_is_generated_from_the_recorded_logs() -> None:
    assert PAGE.read_text() == page()


def values_in(rundir: RunDir) -> dict[str, list[dict[str, Any]]]:
    """Return what was recorded by metric: value, and step and labels where there are any."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in records(rundir):
        if each["src"] == "log":
            kept: dict[str, Any] = {key: each[key] for key in ("value", "step", "labels") if key in each}
            found.setdefault(each["name"], []).append(kept)
    return found
