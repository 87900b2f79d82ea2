"""docs/moving-in.md: its commands are accepted, its keys exist, and each row has an answer."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli
from cli_harness import CliHarness

from executor.cli import group
from executor.configuration.config import read_settings
from executor.descriptor.model import Descriptor

ROOT = Path(__file__).parents[3]
_KEY = re.compile(r"\[+[\w.]+\]+ |\w+ = ")
_BASE = """
spec_version = "0.1.0"
info = { description = "Trains", labels = { task_name = "train" } }
hardware = { instance_type = "t3.small" }
ml = { benchmark_code = "python3 train.py" }
"""


class Row(NamedTuple):
    section: str
    theirs: str
    here: str
    note: str

    def spans(self) -> list[str]:
        """Return what a person is to write: code in the column "here", commands and tables also in the note."""
        noted = [each for each in _spans(self.note) if each.startswith(("bai ", "["))]
        return _spans(self.here) + noted


def _spans(text: str) -> list[str]:
    return re.findall(r"(?<!\[)`([^`]+)`", text)


def _rows() -> Iterator[Row]:
    section = ""
    for line in (ROOT / "docs" / "moving-in.md").read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        cells = [each.strip() for each in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[1] != "here":
            yield Row(section, *cells)


ROWS = list(_rows())
COMMANDS = [(row, span) for row in ROWS for span in row.spans() if span.startswith("bai ")]
PLANNED = [(row, span) for row, span in COMMANDS if re.match("bai (run|submit|plan) ", span)]
KEYS = [(row, span) for row in ROWS for span in row.spans() if _KEY.match(span)]


def test_each_row_of_the_page_has_a_replacement_or_the_reason_for_none() -> None:
    assert len(ROWS) > 120
    for row in ROWS:
        written = [each for each in _spans(row.here) if _is_written(each)]
        assert (row.here == "nothing" and row.note) or len(written) == 1, row


def _is_written(span: str) -> bool:
    return span.startswith("bai ") or _KEY.match(span) is not None or (ROOT / span.split()[0]).is_file()


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("petctl", "setup configure run_job upload list_hosts kill_job --s3_bucket --efs_id --instance_type"),
        ("ElasticJob", "rdzvEndpoint minReplicas maxReplicas replicaSpecs[Worker].replicas restartPolicy"),
        (
            "ElasticJob",
            "cleanPodPolicy ttlSecondsAfterFinished activeDeadlineSeconds backoffLimit minAvailable",
        ),
        ("AdaptDL on Ray", "--file --uri --max-cluster-size --gpus --cpus --port-offset --working-dir"),
        ("AdaptDL on Ray", "--checkpoint-timeout --cluster-rescale-timeout arguments"),
    ],
)
def test_each_field_and_option_of_the_other_tool_has_a_row(section: str, names: str) -> None:
    theirs = " ".join(row.theirs for row in ROWS if row.section == section)

    assert [each for each in names.split() if each not in theirs] == []


@pytest.mark.parametrize(("row", "span"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_line_on_the_page_is_accepted_by_bai(row: Row, span: str) -> None:
    name, *arguments = shlex.split(span)[1:]
    before, _, after = shlex.join(arguments).partition(" -- ")
    command = group().commands[name]

    context = command.make_context(
        name, [*shlex.split(before), *(["--", *shlex.split(after)] if after else [])]
    )

    assert context.args == []


@pytest.mark.parametrize(("row", "span"), KEYS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_key_on_the_page_exists_and_accepts_the_value(row: Row, span: str, tmp_path: Path) -> None:
    if not span.startswith("["):
        (tmp_path / "config.toml").write_text(span)
        if not span.startswith("spec_version"):
            assert read_settings(environment={}, file=tmp_path / "config.toml")
            return
    descriptor = tomli.loads(_BASE)
    _merge(descriptor, _as_table(span))

    assert Descriptor.model_validate(descriptor)


def _as_table(span: str) -> dict[str, Any]:
    """Return `[table] key = value, …` as it stands in a file; `[[table]]`: as the only one in a list."""
    if (head := re.match(r"(\[+)([\w.]+)\]+ ", span)) is None:
        return tomli.loads(span)
    inner = f"{{ {span[head.end() :]} }}"
    return tomli.loads(f"{head[2]} = {inner if head[1] == '[' else f'[{inner}]'}")


def _merge(into: dict[str, Any], table: dict[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def test_each_job_of_the_page_has_a_plan_on_ec2(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    for script in ("examples/imagenet/main.py", "main.py"):
        (folder / script).parent.mkdir(parents=True, exist_ok=True)
        (folder / script).write_text("print('trained')\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "BAI_"))}
    (tmp_path / "config.toml").write_text('region = "us-west-2"\n')
    own = {"HOME": str(tmp_path), "BAI_CONFIG": str(tmp_path / "config.toml")}
    ours, theirs = (CliHarness(where, {**kept, **own}) for where in (ROOT, folder))
    # Descriptors of the page use what these jobs keep.
    for name in ("prepare", "workshop"):
        assert ours.bai("run", f"examples/{name}/benchmark.toml").code == 0
    assert len(PLANNED) > 8

    for row, span in PLANNED:
        cli = theirs if row.section in ("petctl", "AdaptDL on Ray") else ours
        arguments = shlex.split(span.replace("${USER}", "me"))[2:]
        at = arguments.index("--") if "--" in arguments else len(arguments)
        planned = cli.bai("plan", *arguments[:at], "--on", "ec2", "--json", *arguments[at:])
        assert planned.code == 0, f"{span}: {planned.stderr}"
        [plan] = planned.objects
        assert plan["request"]["InstanceType"]
