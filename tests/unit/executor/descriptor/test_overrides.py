"""Keys set by options: converted to the key's type, checked as in the file, and named in errors by their option."""

from __future__ import annotations

import copy
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from bai_agent.job.descriptor.source_tables import Unpack
from bai_agent.job.toml import read_toml_text
from executor.descriptor import Descriptor, Finding, Severity, load_table, render_findings
from executor.descriptor.override_places import put_overrides
from executor.descriptor.overrides import (
    key_override,
    program_overrides,
    read_overrides,
    read_value,
    recorded,
)
from executor.descriptor.values import NodeRange
from executor.errors import UsageError

FILE = r"""
spec_version = "0.1.0"
[info]
description = "d"
[hardware]
instance_type = "local"
[ml]
benchmark_code = "true"
args = "--batch 1"
[aws.ec2]
subnets = ["subnet-1", "subnet-2"]
[[data.sources]]
src = "s3://bucket/train.npz"
path = "/data/train.npz"
id = "train"
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\S+)'
[[output.metrics]]
name = "0"
units = "s"
pattern = 'time=(\S+)'
[[output.metrics]]
name = "twice"
units = "s"
pattern = 'a=(\S+)'
[[output.metrics]]
name = "once"
units = "s"
pattern = 'b=(\S+)'
"""


def table(text: str = FILE) -> dict[str, Any]:
    return read_toml_text(text)


def loaded(*texts: str, file: str = FILE) -> Descriptor:
    descriptor, findings = load_table(
        table(file), file="b.toml", folder=None, overrides=read_overrides(texts)
    )
    assert descriptor is not None, findings
    return descriptor


def finding_of(*texts: str, file: str = FILE) -> Finding:
    descriptor, findings = load_table(
        table(file), file="b.toml", folder=None, overrides=read_overrides(texts)
    )
    assert descriptor is None
    [finding] = findings
    return finding


def value_at(descriptor: Any, *steps: str | int) -> Any:
    for step in steps:
        if isinstance(step, int) or isinstance(descriptor, dict):
            descriptor = descriptor[step]
        else:
            descriptor = getattr(descriptor, step)
    return descriptor


@pytest.mark.parametrize(
    ("text", "place", "value"),
    [
        ("ml.args=--batch 64", ("ml", "args"), "--batch 64"),
        ('ml.args="--batch 64"', ("ml", "args"), "--batch 64"),
        ("ml.args=", ("ml", "args"), ""),
        ("ml.args=--lr=0.1 --x 'a b'", ("ml", "args"), "--lr=0.1 --x 'a b'"),
        ("""ml.args="'a b'" """, ("ml", "args"), "'a b'"),
        ("ml.args=3", ("ml", "args"), "3"),
        ("ml.args=true", ("ml", "args"), "true"),
        ("ml.args=3 # three", ("ml", "args"), "3 # three"),
        ("ml.args='a' # b", ("ml", "args"), "'a' # b"),
        ("info.task_name=abc", ("info", "task_name"), "abc"),
        ("info.task_name=2026-11-22", ("info", "task_name"), "2026-11-22"),
        ("env.vars.OMP_NUM_THREADS=4", ("env", "vars", "OMP_NUM_THREADS"), "4"),
        ("env.vars.MASK=0x10", ("env", "vars", "MASK"), "0x10"),
        ("env.vars.NUMBER=1_000", ("env", "vars", "NUMBER"), "1_000"),
        ('info.labels."a.b"=1', ("info", "labels", "a.b"), "1"),
        (" info . labels . 'a.b' =1", ("info", "labels", "a.b"), "1"),
        ("limits.max_runtime=2h", ("limits", "max_runtime"), timedelta(hours=2)),
        ("hardware.distributed.max_restarts=1", ("hardware", "distributed", "max_restarts"), 1),
        (
            "hardware.distributed.num_instances=1",
            ("hardware", "distributed", "num_instances"),
            NodeRange(most=1),
        ),
        (
            "hardware.distributed.num_instances=1:1",
            ("hardware", "distributed", "num_instances"),
            NodeRange(most=1, least=1),
        ),
        (
            "hardware.distributed.processes_per_instance=8",
            ("hardware", "distributed", "processes_per_instance"),
            "8",
        ),
        ("output.warmup=30s", ("output", "warmup"), timedelta(seconds=30)),
        ("output.metrics[loss].warmup=100", ("output", "metrics", 0, "warmup"), 100),
        ("output.metrics[loss].tolerance=2.5%", ("output", "metrics", 0, "tolerance"), 0.025),
        ("host_metrics.enabled=false", ("host_metrics", "enabled"), False),
        ('output.artifacts=["runs/**", "*.csv"]', ("output", "artifacts"), ["runs/**", "*.csv"]),
        ("output.metrics[0].required=true", ("output", "metrics", 0, "required"), True),
        ("output.metrics[loss].required=true", ("output", "metrics", 0, "required"), True),
        ('output.metrics["0"].required=true', ("output", "metrics", 1, "required"), True),
        ("data.sources[train].unpack=true", ("data", "sources", 0, "unpack"), Unpack.INTO),
        ("data.sources[0].unpack=into", ("data", "sources", 0, "unpack"), Unpack.INTO),
        ("data.sources[0].mode=0755", ("data", "sources", 0, "mode"), "0755"),
        ("data.sources[0].mode=755", ("data", "sources", 0, "mode"), "755"),
        ("aws.ec2.subnets[1]=subnet-3", ("aws", "ec2", "subnets"), ["subnet-1", "subnet-3"]),
        ("aws.ec2.volume.size=200", ("aws", "ec2", "volume", "size"), 200),
        ("aws.ec2.run_instances.KeyName=my-key", ("aws", "ec2", "run_instances"), {"KeyName": "my-key"}),
        ("custom_params.hyper_params.epochs=8", ("custom_params", "hyper_params", "epochs"), 8),
        ("custom_params.hyper_params.name=resnet", ("custom_params", "hyper_params", "name"), "resnet"),
        ('env.vars={ A = "1", B = 2 }', ("env", "vars"), {"A": "1", "B": "2"}),
    ],
)
def test_a_value_is_converted_to_the_keys_type(text: str, place: tuple[str | int, ...], value: Any) -> None:
    found = value_at(loaded(text), *place)

    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "key", "problem", "fix"),
    [
        ("ml.arg=3", "ml.arg", 'no key "arg" in [ml]', 'did you mean "args"?'),
        ("mll.args=3", "mll", "no table [mll]", 'did you mean "ml"?'),
        ("outputs.metrics[0].required=true", "outputs", "no table [outputs]", 'did you mean "output"?'),
        ("kafka.borkers[0]=b:9092", "kafka.borkers", "no table [kafka.borkers]", 'did you mean "brokers"?'),
        ("kafka.topic=x", "kafka.brokers", "is missing", "add brokers"),
        (
            "hardware.distributed.num_instances=two",
            "hardware.distributed.num_instances",
            '"two" is not a number of machines',
            "num_instances = 2",
        ),
        ("aws.ec2.volume.size=1.5", "aws.ec2.volume.size", "not the number 1.5", "size = 200"),
        ("host_metrics.enabled=1", "host_metrics.enabled", "not the number 1", "enabled = true"),
        ("limits.max_runtime=2", "limits.max_runtime", '"2" is not a duration', '"2h"'),
        ("output.artifacts=runs", "output.artifacts", "expected a list", 'artifacts = ["runs"]'),
        ("output.artifacts=[runs]", "", "is not valid TOML: Invalid value", "put texts in quotes"),
        ("output.metrics[4].required=true", "", "has 4 items", "[0] to [3]"),
        ("output.metrics[acc].required=true", "", 'is named "acc"', 'output.metrics["loss"]'),
        ("output.metrics.required=true", "", "the key names no item", "output.metrics[0]"),
        ("server.models[0].id=x", "", "server.models is not in this file", "set the whole list"),
        ("ml.args[0]=x", "", "ml.args is not a list", "leave the brackets out"),
        ("ml.args.x=1", "", "ml.args is not a table", "correct the key"),
        ("env.vars.HF_TOKEN=abcdef", "env.vars.HF_TOKEN", "whose name suggests a secret", "[env.secrets]"),
        ("ml.args=--key AKIAABCDEFGHIJKLMNOP", "ml.args", "an AWS access key", "[env.secrets]"),
    ],
)
def test_a_mistake_names_the_option_as_its_place(text: str, key: str, problem: str, fix: str) -> None:
    finding = finding_of(text)

    assert finding.option == f"--set {text.partition('=')[0]}"
    assert finding.key == key
    assert problem in finding.problem
    assert fix in finding.fix
    assert render_findings([finding]).startswith(f"error: {finding.option}")
    assert "b.toml" not in render_findings([finding])


def test_a_mistake_of_the_file_still_names_the_file() -> None:
    finding = finding_of("ml.args=3", file=FILE.replace("description", "descripton"))

    assert render_findings([finding]).startswith("error: b.toml: info.descripton\n")


def test_setting_a_key_of_an_item_with_an_ambiguous_name_needs_its_position() -> None:
    file = FILE.replace('"once"', '"twice"')

    _, findings = load_table(
        table(file), file="b.toml", folder=None, overrides=read_overrides(["output.metrics[twice].units=ms"])
    )

    assert findings[0].problem == "2 items of output.metrics have this name"
    assert findings[0].fix == "write [2] or [3]"


@pytest.mark.parametrize(
    ("texts", "option", "problem"),
    [
        (["ml.args=1", "ml.args=1"], "ml.args", "is given twice"),
        (["ml.args=1", "ml . args=2"], "ml . args", "is set by --set ml.args as well"),
        (["env.vars.A=1", "env.vars={}"], "env.vars", "is set by --set env.vars.A as well"),
        (["env.vars={}", "env.vars.A=1"], "env.vars.A", "is set by --set env.vars as well"),
        (
            ["output.metrics[0].units=ms", 'output.metrics["loss"].units=s'],
            'output.metrics["loss"].units',
            "is set by --set output.metrics[0].units as well",
        ),
    ],
)
def test_a_key_that_is_set_twice_is_refused(texts: list[str], option: str, problem: str) -> None:
    finding = finding_of(*texts)

    assert finding.option == f"--set {option}"
    assert finding.problem == problem


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["limits.max_runtime"], '--set "limits.max_runtime": there is no = in it'),
        (["ml.args --batch 64"], '--set "ml.args --batch 64": there is no = in it'),
        (["'a=b"], "not a dotted key"),
        (["=3"], "is missing at character 1"),
        (["ml..args=3"], "is missing at character 3"),
        (["ml.=3"], "is missing at character 3"),
        (["output.metrics[=3"], "is missing at character 15"),
        (["größe=3"], "is missing at character 3"),
        (['info.labels."\\q"=3'], "not a dotted key"),
        (["ml.args=\udcff"], "--set 'ml.args': it is not UTF-8"),
    ],
)
def test_a_malformed_set_option_gives_one_sentence(texts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_overrides(texts)

    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_keys_of_one_table_can_be_set() -> None:
    texts = ["env.vars.A=1", "env.vars.AB=2", "kafka.topic=t", 'kafka.brokers=["b:9092"]']

    descriptor = loaded(*texts)

    assert descriptor.env.vars == {"A": "1", "AB": "2"}
    assert descriptor.kafka is not None
    assert (descriptor.kafka.topic, descriptor.kafka.brokers) == ("t", ("b:9092",))


def test_an_option_that_has_no_effect_is_an_error() -> None:
    place = ("hardware", "distributed", "num_instances")
    by_flag = key_override("--nodes", place, 4)

    descriptor, [error] = load_table(table(), file="b.toml", folder=None, overrides=[by_flag])
    _, [warning] = load_table(
        table(), file="b.toml", folder=None, overrides=read_overrides([f"{'.'.join(place)}=4"])
    )

    assert descriptor is None
    assert (error.option, error.severity) == ("--nodes", Severity.ERROR)
    assert warning.severity is Severity.WARNING
    assert error.problem == warning.problem == "single_node uses one machine, not 4"


def test_relative_paths_start_at_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    script = read_overrides(["ml.script.path=beside", "ml.benchmark_code=/bin/true"])

    descriptor, findings = load_table(table(), file="b.toml", folder=tmp_path, overrides=script)
    _, missing = load_table(table(), file="b.toml", folder=tmp_path / "elsewhere", overrides=script)

    assert descriptor is not None, findings
    assert [each.option for each in missing] == ["--set ml.script.path"]


def test_the_table_of_the_file_is_not_changed() -> None:
    before = table()
    given = copy.deepcopy(before)

    load_table(given, file="b.toml", folder=None, overrides=read_overrides(["output.metrics[0].units=ms"]))

    assert given == before


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ml.args=--batch 64", "--batch 64"),
        ('env.vars={ A = "1" }', '{ A = "1" }'),
        ("env.secrets.HF_TOKEN=env:HF_TOKEN", "env:HF_TOKEN"),
        ("custom_params.hyper_params.api_key=abcdef", "***"),
        ('custom_params.hyper_params={ deep = [{ api_key = "abcdef" }] }', "***"),
        ("info.description=hf_abcdefghijklmnopqrstuvwxyz", "***"),
        ("data.sources[0].src=https://me:word@host/file", "***"),
        ("data.sources[0].src=https://host/file?X-Amz-Signature=abc", "***"),
    ],
)
def test_the_record_keeps_overrides_without_secrets(text: str, kept: str) -> None:
    assert recorded(read_overrides([text])) == {text.partition("=")[0]: kept}


def test_a_program_sets_python_values() -> None:
    overrides = program_overrides(
        {
            "ml.args": '"quoted"',
            "output.metrics[loss].required": True,
            "output.artifacts": ("runs/**",),
            "ml.benchmark_code": Path("/bin/true"),
        }
    )

    descriptor, findings = load_table(table(), file="b.toml", folder=None, overrides=overrides)

    assert descriptor is not None, findings
    assert descriptor.ml is not None
    assert (descriptor.ml.args, descriptor.ml.benchmark_code) == ('"quoted"', "/bin/true")
    assert descriptor.output.metrics[0].required is True
    assert recorded(overrides)["output.artifacts"] == '["runs/**"]'


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("ml.args=3", "set: write a dict"),
        ({3: "x"}, "set: write a dict"),
        ({"ml.args=3": "x"}, 'remove "=3"'),
        ({"ml..args": "x"}, 'set["ml..args"]: this is not a dotted key'),
        ({"ml.args": None}, 'set["ml.args"]: NoneType is not a type of TOML'),
        ({"aws.ec2.volume.size": 2**63}, "must fit into 64 bits"),
    ],
)
def test_a_wrong_value_from_a_program_gives_one_sentence(values: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        program_overrides(values)

    assert sentence in str(caught.value)


SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.dates(min_value=date(1, 1, 1))
    | st.datetimes(min_value=datetime(1, 1, 1))  # noqa: DTZ001 - TOML's local date-time
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
@example("'quoted' # and more")
def test_any_value_of_toml_is_read_back(value: Any) -> None:
    # In two lists, as a table has a header of its own elsewhere.
    text = tomli_w.dumps({"v": [[value]]}).removeprefix("v = ").strip()

    assert read_value(text) == [[value]]
    file = table()
    assert (
        put_overrides(file, read_overrides([f"custom_params.hyper_params.x={text}"]), file="b.toml")[1] == []
    )
    assert file["custom_params"]["hyper_params"]["x"] == [[value]]


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_any_dotted_key_is_read_back(names: list[str]) -> None:
    key = ".".join(tomli_w.dumps({name: 0}).removesuffix(" = 0\n") for name in names)

    [override] = read_overrides([f"{key}=1"])

    assert override.path == tuple(names)
    assert override.value == "1"


@given(st.text())
@example("'")
@example('"a" # b')
@example("3} #")
@example("3\nother = 4")
@example("[" * 5000)
@example("9" * 5000)
@example("0x" + "f" * 5000)
def test_a_string_key_accepts_any_text(text: str) -> None:
    file = table()

    _, findings = put_overrides(file, read_overrides([f"ml.args={text}"]), file="b.toml")

    assert findings == []
    args = file["ml"]["args"]
    assert isinstance(args, str)
    assert args == text or text.strip()[0] in "'\""


@given(st.text(st.characters(exclude_categories=())) | st.text("ml.args[]0='\"\\ {}#\n", max_size=20))
@example("ml=[[[[[")
@example("output.metrics[999999999].x=1")
@example("output[0]=1")
def test_any_text_given_to_set_is_accepted_or_a_usage_error(text: str) -> None:
    try:
        overrides = read_overrides([text])
    except UsageError:
        return

    descriptor, findings = load_table(table(), file="b.toml", folder=None, overrides=overrides)

    assert (descriptor is None) == any(each.severity is Severity.ERROR for each in findings)
    render_findings(findings)
    recorded(overrides)


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["ml.script.path=."], {"path": "."}),
        (["ml.script.script=a.tar"], {"script": "a.tar"}),
        (['ml.script={path="."}'], {"path": "."}),
        (["ml.script.folder=lib"], {"git": "https://host/r", "ref": "main", "folder": "lib"}),
        (
            ["ml.script.path=.", "ml.script.git=https://host/other"],
            {"path": ".", "git": "https://host/other"},
        ),
    ],
)
def test_setting_other_scripts_replaces_the_repository_of_the_file(
    texts: list[str], left: dict[str, str]
) -> None:
    read = table(f"{FILE}[ml.script]\ngit = 'https://host/r'\nref = 'main'\nfolder = 'src'\n")

    put_overrides(read, read_overrides(texts), file="b.toml")

    assert read["ml"]["script"] == left
