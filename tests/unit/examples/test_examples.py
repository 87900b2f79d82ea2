"""What the examples' descriptors say is true of the files beside them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from executor.descriptor.checks.metric_checks import try_examples
from executor.descriptor.job_reference import refers_to_job
from executor.descriptor.model import Descriptor
from executor.descriptor.toml_file import read_toml

EXAMPLES = Path(__file__).parents[3] / "examples"
DESCRIPTORS = sorted(EXAMPLES.glob("*/*.toml"))

of_each_example = pytest.mark.parametrize(
    "path", DESCRIPTORS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)


def read(path: Path) -> Descriptor:
    table, findings = read_toml(path)
    assert table is not None, findings
    return Descriptor.model_validate(table)


def test_every_example_has_a_descriptor_and_a_row_in_the_table() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    rows = re.findall(
        r"^\| \[([a-z-]+)\]\(\1/benchmark\.toml\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE
    )
    # How the service is deployed, which is no benchmark.
    folders.remove("service")
    assert folders == {path.parent.name for path in DESCRIPTORS}
    assert folders == set(rows)


@of_each_example
def test_an_example_runs_on_this_machine_unless_told_otherwise(path: Path) -> None:
    assert read(path).info.execution_engine == "local"


@of_each_example
def test_every_metrics_pattern_matches_a_number_in_its_example(path: Path) -> None:
    for metric in read(path).output.metrics:
        assert metric.pattern is not None, metric.name
        assert metric.example is not None, metric.name
        match = re.search(metric.pattern, metric.example)
        assert match is not None, metric.name
        float(match["value"] if "value" in match.re.groupindex else match[1])


@of_each_example
def test_the_data_exists_and_matches_its_checksum(path: Path) -> None:
    for source in read(path).data.sources:
        if refers_to_job(source.src):  # what another example keeps
            continue
        content = (path.parent / source.src).read_bytes()
        assert source.sha256 == hashlib.sha256(content).hexdigest()


@of_each_example
def test_the_files_that_a_descriptor_names_exist(path: Path) -> None:
    ml = read(path).ml
    assert ml is not None
    assert ml.script is not None
    assert ml.script.path is not None
    assert ml.benchmark_code is not None
    scripts = path.parent / ml.script.path
    command = ml.benchmark_code.split()
    named = [scripts / each.replace("$(BAI_SCRIPTS_PATH)", str(scripts)) for each in command]
    program = next((each for each in named if each.is_file()), None)
    assert program is not None
    assert command[0] == "python3" or os.access(program, os.X_OK)
    if ml.script.requirements is not None:
        assert (scripts / ml.script.requirements).is_file()


def test_examples_of_a_servers_metrics_are_also_checked() -> None:
    found = try_examples(read(EXAMPLES / "inference/benchmark.toml"))

    assert {each["name"]: each["values"][0]["value"] for each in found}["compute_time"] == 81.3
