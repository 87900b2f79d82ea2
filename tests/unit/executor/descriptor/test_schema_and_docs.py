"""The schema, the template and the reference agree with the model."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Arm, Benchmark, Git, Identity, Output, Repeat
from bai_agent.job.descriptor.limit_tables import End, Limits
from bai_agent.job.descriptor.metric_tables import About, HostMetrics, Metric, Results
from bai_agent.job.descriptor.restart_tables import Checkpoint, CheckpointOrigin, Elastic, Restart
from bai_agent.job.descriptor.sink_tables import CloudWatch, Kafka, LogLines, Prometheus, Store
from bai_agent.job.descriptor.source_tables import Source
from bai_agent.job.descriptor.strategy_tables import ReadinessProbe, Server, StrategyTable
from bai_agent.job.schema.durations import format_duration
from bai_agent.job.schema.tables import marked_keys
from executor.descriptor import TEMPLATE, json_schema, load
from executor.descriptor.model import Descriptor
from executor.descriptor.reference import reference
from executor.descriptor.schema import resolved, schema_at, tables
from executor.descriptor.service_tables import MetricTable
from executor.descriptor.toml_file import parse_toml
from executor.descriptor.toml_text import toml_value
from executor.planning.job_toml import job_toml
from executor.planning.plan import PlanInputs, plan

DOCS = Path(__file__).parents[4] / "docs"


def test_the_schema_is_a_json_schema() -> None:
    Draft202012Validator.check_schema(json_schema())


def test_the_schema_accepts_the_template_and_names_a_misspelt_key() -> None:
    table, _ = parse_toml(TEMPLATE.encode(), file="template")
    assert table is not None
    validator = Draft202012Validator(json_schema())

    assert list(validator.iter_errors(table)) == []
    table["limits"]["max_runtme"] = "2h"
    assert "max_runtme" in next(validator.iter_errors(table)).message


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (MetricTable, {"name", "of_run", "required", "example"}),
        (Metric, {"name", "of_run", "required", "revision", "server"}),
    ],
)
def test_every_key_of_a_metric_says_once_what_it_is_about(kind: Any, others: set[str]) -> None:
    about = sorted(key for mark in About for key in marked_keys(kind, mark))

    assert about == sorted({each.name for each in fields(kind)} - others)


def test_every_key_is_described_and_shows_an_example() -> None:
    for header, table in tables():
        assert table["description"], header
        for key, value in table["properties"].items():
            schema = resolved(value)
            if "properties" in schema or "properties" in resolved(schema.get("items", {})):
                continue
            assert schema["description"], f"{header} {key}"
            shown = schema.get("examples") or "x-other-engine" in schema or schema["type"] == "boolean"
            assert shown, f"{header} {key}"


def test_the_examples_of_the_keys_are_valid() -> None:
    smallest: dict[str, Any] = {
        "spec_version": "0.1.0",
        "info": {"description": "d"},
        "hardware": {"instance_type": "local"},
    }
    for header, table in tables():
        names = header.strip("[]").split(".") if header else []
        if names[:1] == ["server"] or header.startswith("[["):
            continue
        values = {
            key: resolved(value)["examples"][0]
            for key, value in table["properties"].items()
            if resolved(value).get("examples")
        }
        descriptor: dict[str, Any] = {
            key: dict(value) if isinstance(value, dict) else value for key, value in smallest.items()
        }
        inner = descriptor
        for name in names:
            inner = inner.setdefault(name, {})
        inner.update(values)
        Descriptor.model_validate(descriptor)


def test_the_schema_of_a_key_is_found_by_its_path() -> None:
    assert (schema_at(("output", "metrics", 3, "better")) or {})["enum"] == ["lower", "higher"]
    assert schema_at(("info", "labels", "anything")) is not None
    assert schema_at(("info", "nothing")) is None


def test_the_template_is_valid_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.toml"
    path.write_text(TEMPLATE, "utf-8")

    descriptor, findings = load(path)

    assert TEMPLATE.startswith("#:schema ")
    assert descriptor is not None
    assert findings == []


def test_the_commented_parts_of_the_template_are_also_valid(tmp_path: Path) -> None:
    """Its example lines are single keys and headers; prose has spaces before any "="."""
    lines = [
        re.sub(r"^# (?=\[\[?[a-z_.0-9]+\]\]?$|[A-Za-z_0-9]+ = )", "", line) for line in TEMPLATE.splitlines()
    ]
    text = "\n".join(lines).replace('sha256 = "…"', f'sha256 = "{"0" * 64}"')
    (tmp_path / "requirements.txt").touch()
    path = tmp_path / "benchmark.toml"
    path.write_text(text, "utf-8")

    descriptor, findings = load(path)

    assert descriptor is not None, findings
    assert descriptor.aws.ec2
    assert descriptor.kafka
    assert descriptor.ml
    assert descriptor.ml.script


def test_the_templates_benchmark_prints_what_its_patterns_find(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.toml"
    path.write_text(TEMPLATE, "utf-8")
    descriptor, _ = load(path)
    assert descriptor is not None
    job = plan(descriptor, PlanInputs(folder=tmp_path, job_id="j", client_id="c"))

    script = job.benchmark.script or ""
    assert script.startswith("#!/usr/bin/env python3\n")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )

    lines = done.stdout.splitlines()
    assert len(lines) == 10
    for metric in job.metrics:
        assert all(re.search(metric.pattern, line) for line in lines)


def test_the_reference_equals_the_models_docstrings() -> None:
    page = (DOCS / "benchmark-descriptor.md").read_text("utf-8")

    assert reference().strip() in page, (
        "run: python -m executor.descriptor.reference, and replace the page's last part"
    )


JOB_TABLES = {
    "At the top of the file": Job,
    "`[job]`": Identity,
    "`[strategy]`": StrategyTable,
    "`[benchmark]`": Benchmark,
    "`[limits]`": Limits,
    "`[[sources]]`": Source,
    "`[[metrics]]`": Metric,
    "`[[results]]`": Results,
    "`[host_metrics]`": HostMetrics,
    "`[kafka]`": Kafka,
    "`[log_lines]`": LogLines,
    "`[prometheus]`": Prometheus,
    "`[cloudwatch]`": CloudWatch,
    "`[output]`": Output,
    "`[restart]`": Restart,
    "`[elastic]`": Elastic,
    "`[checkpoint]`": Checkpoint,
    "`[checkpoint.origin]`": CheckpointOrigin,
    "`[repeat]`": Repeat,
    "`[[repeat.arms]]`": Arm,
    "`[server]`": Server,
    "`[server.readiness_probe]`": ReadinessProbe,
    "`[store]`": Store,
    "`[end]`": End,
    "`[git]`": Git,
}


@pytest.mark.parametrize("title", JOB_TABLES)
def test_the_job_descriptors_reference_names_every_key_and_default(title: str) -> None:
    page = (DOCS / "job-descriptor.md").read_text("utf-8")
    section = page.split(f"\n### {title}\n", 1)[1].split("\n### ", 1)[0]

    rows = [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for row in section.splitlines()
        if row.startswith("| `")
    ]

    kind = JOB_TABLES[title]
    assert sorted(row[0].strip("` ") for row in rows) == sorted(field.name for field in fields(kind))
    if kind is not Job:
        defaults = {row[0].strip("` "): row[2] for row in rows}
        assert defaults == {field.name: _default(field) for field in fields(kind)}


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING or field.default == ():
        return "none"
    if field.default is MISSING:
        return "**required**"
    value = field.default
    if value is None:
        return "unset"
    if isinstance(value, timedelta):
        value = format_duration(value)
    return f"`{toml_value(value.value if isinstance(value, Enum) else value)}`"


def test_the_planned_template_is_readable_toml(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.toml"
    path.write_text(TEMPLATE, "utf-8")
    descriptor, _ = load(path)
    assert descriptor is not None

    text = job_toml(plan(descriptor, PlanInputs(folder=tmp_path, job_id="j", client_id="c")))

    assert "\nimport hashlib, os, time\n" in text
