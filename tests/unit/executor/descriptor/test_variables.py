"""`${NAME}` is expanded once, in the listed keys only, and its value arrives unchanged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bai_agent.benchmark.environment import expand
from executor.descriptor import load_table, render_findings
from executor.descriptor.load import load
from executor.descriptor.overrides import read_overrides, recorded
from executor.descriptor.toml_text import toml_document
from executor.descriptor.variables import expand_variables
from executor.planning.request import JobRequest, OtherArms, read_request, set_values

NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True).filter(lambda name: "KEY" not in name)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def table(**tables: Any) -> dict[str, Any]:
    return {
        "spec_version": "0.1.0",
        "info": {"description": "d", **tables.pop("info", {})},
        "hardware": {"instance_type": "local", **tables.pop("hardware", {})},
        "ml": {"benchmark_code": "true", **tables.pop("ml", {})},
        **tables,
    }


def expanded(text: str, variables: dict[str, str], *path: str) -> str:
    """Return the value of the key at `path`, in which `text` is written."""
    tables: Any = text
    for key in reversed(path):
        tables = {key: tables}
    changed, findings = expand_variables(tables, variables, file="f", skip={})
    assert not findings
    (found,) = [each.value for each in changed] or [text]
    assert isinstance(found, str)
    return found


@given(st.text(max_size=30), st.dictionaries(NAMES, VALUES, max_size=3))
def test_text_without_references_is_not_changed(text: str, variables: dict[str, str]) -> None:
    text = text.replace("${", "$")

    assert expanded(text, variables, "aws", "ec2", "region") == text


@given(st.text(max_size=30), st.dictionaries(NAMES, VALUES, max_size=3))
@example("$${A}", {"A": "1"})
@example("$$${A}", {"A": "1"})
def test_an_escaped_reference_is_not_expanded(text: str, variables: dict[str, str]) -> None:
    assert expanded(text.replace("${", "$${"), variables, "aws", "ec2", "region") == text


@given(NAMES, VALUES.filter(len), st.text(st.characters(exclude_characters="$"), max_size=6), VALUES)
@example("A", "${B}", "x", "")
def test_a_substituted_value_is_not_expanded_again(name: str, value: str, around: str, default: str) -> None:
    default = default.replace("}", "")
    texts = {f"{around}${{{name}}}{around}", f"{around}${{{name}:-{default}}}{around}"}
    for text in texts:
        assert (
            expanded(text, {"B": "2", name: value}, "hardware", "aws_zone_id") == f"{around}{value}{around}"
        )
    for unset in ({}, {name: ""}):
        assert (
            expanded(f"{around}${{{name}:-{default}}}", unset, "hardware", "aws_zone_id") == around + default
        )


@given(VALUES, st.sampled_from(["'", '"']))
@example("$$", '"')
@example("$(HOME)", "'")
@example('\\"', '"')
def test_a_quoted_variable_is_one_word_of_the_arguments(value: str, quote: str) -> None:
    text = f"--a 'it is' {quote}x${{A}}{quote} \"b\""

    words = shlex.split(expanded(text, {"A": value}, "ml", "args"))

    assert [expand(word, {"HOME": "/root"}) for word in words] == ["--a", "it is", f"x{value}", "b"]


def test_an_unquoted_variable_is_split_into_words() -> None:
    text = expanded("--lr ${LR} ${MORE}", {"LR": "0.1", "MORE": "--fast --seed 3"}, "ml", "args")

    assert shlex.split(text) == ["--lr", "0.1", "--fast", "--seed", "3"]


def test_a_value_substituted_into_env_vars_is_escaped_against_later_expansion() -> None:
    assert expanded("${A}:$(HOME)", {"A": "$(HOME) $$"}, "env", "vars", "X") == "$$(HOME) $$:$(HOME)"


EXPANDED = {
    "ml": {"args": "${V}"},
    "env": {"vars": {"A": "${V}"}},
    "data": {"sources": [{"src": "s3://${V}/a", "path": "/${V}"}]},
    "aws": {"ec2": {"region": "${V}", "subnets": ["a", "${V}"], "run_instances": {"KeyName": "${V}"}}},
    "hardware": {"instance_type": "${V}", "distributed": {"num_instances": "${V}"}},
    "repeat": {"arms": [{"name": "a", "args": "${V}", "vars": {"B": "${V}"}}]},
}
LITERAL = {
    "ml": {"benchmark_code": "echo ${V}", "cwd": "${V}"},
    "aws": {"ec2": {"init_commands": ["echo ${V}"]}, "sagemaker": {"x": "${V}"}},
    "output": {"metrics": [{"name": "a", "pattern": "${V}"}], "artifacts": ["${V}"]},
    "repeat": {
        "prepare": "echo ${V}",
        "arms": [{"name": "${V}", "benchmark_code": "${V}", "prepare": "${V}"}],
    },
    "checkpoint": {"path": "${V}"},
    "info": {"labels": {"a": "${V}"}},
}


def test_only_the_listed_keys_are_expanded() -> None:
    changed, findings = expand_variables(EXPANDED, {"V": "7"}, file="f", skip={})

    assert not findings
    assert {each.key: each.value for each in changed} == {
        "ml.args": "7",
        "env.vars.A": "7",
        "data.sources[0].src": "s3://7/a",
        "data.sources[0].path": "/7",
        "aws.ec2.region": "7",
        "aws.ec2.subnets[1]": "7",
        "aws.ec2.run_instances.KeyName": "7",
        "hardware.instance_type": "7",
        "hardware.distributed.num_instances": "7",
        "repeat.arms[0].args": "7",
        "repeat.arms[0].vars.B": "7",
    }
    assert expand_variables(LITERAL, {}, file="f", skip={}) == ([], [])


def test_a_substituted_value_is_converted_to_the_type_of_its_key() -> None:
    written = table(
        hardware={
            "strategy": "torchrun",
            "distributed": {"num_instances": "${N}", "cpus_per_process": "${C}"},
        },
        aws={"ec2": {"public_ip": "${P:-true}", "keep_on_failure": "${K:-30m}", "volume": {"size": "${S}"}}},
    )

    descriptor, findings = load_table(
        written, file="f", folder=None, variables={"N": "2:4", "C": "3", "S": "200"}
    )

    assert descriptor is not None, render_findings(findings)
    assert descriptor.hardware.distributed is not None
    assert descriptor.aws.ec2 is not None
    assert descriptor.aws.ec2.volume is not None
    assert str(descriptor.hardware.distributed.num_instances) == "2:4"
    assert descriptor.hardware.distributed.cpus_per_process == 3
    assert (descriptor.aws.ec2.public_ip, descriptor.aws.ec2.volume.size) == (True, 200)


def test_nothing_is_expanded_without_variables() -> None:
    written = table(ml={"args": "'${LR}'"}, env={"vars": {"A": "${B} $${C}"}})

    descriptor, findings = load_table(written, file="f", folder=None)

    assert descriptor is not None, render_findings(findings)
    assert (descriptor.ml.args, descriptor.env.vars) == ("'${LR}'", {"A": "${B} $${C}"})


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("${LR}", "the environment variable LR is not set", "write a default: ${LR:-…}"),
        ("a ${1X}", "`${1X}` is not the name of a variable", "or $${ for a ${ that is meant as text"),
        ("${LR", "`${LR` is not the name", "write ${NAME}"),
        ("${LR:?}", "`${LR:?}` is not the name", "write ${NAME}"),
        ("${BAD}", r'the value of ${BAD} is not UTF-8: "\xff"', "change the value"),
        (
            "--token ${HF_TOKEN}",
            "the value of ${HF_TOKEN} belongs to a variable whose name suggests a secret",
            'put it into [env.secrets]: HF_TOKEN = "env:HF_TOKEN"',
        ),
        ("--token ${PLAIN}", "looks like a Hugging Face token", "[env.secrets]"),
        ("--token ${DB_PASSWORD:-swordfish}", "whose name suggests a secret", "[env.secrets]"),
    ],
)
def test_a_mistake_names_file_key_and_correction(text: str, problem: str, fix: str) -> None:
    variables = {"BAD": "\udcff", "HF_TOKEN": "swordfish", "PLAIN": "hf_" + "a1B2" * 8}
    written = table(ml={"args": text}, env={"vars": {"OTHER": "${NONE}"}})

    descriptor, findings = load_table(written, file="job.toml", folder=None, variables=variables)

    assert descriptor is None
    shown = " ".join(render_findings(findings).split())
    assert "error: job.toml: ml.args" in shown
    assert problem in shown
    assert fix in shown
    assert "error: job.toml: env.vars.OTHER the environment variable NONE is not set" in shown
    assert [each.key for each in findings] == ["ml.args", "env.vars.OTHER"]
    assert "swordfish" not in shown.replace(":-swordfish", "")


def test_a_value_that_an_option_sets_needs_no_variable() -> None:
    written = table(
        ml={"args": "${LR}"}, data={"sources": [{"id": "train", "src": "${SRC}", "path": "/data/train"}]}
    )
    overrides = read_overrides(
        ["ml.args=--lr ${LR}", 'data.sources["train"]={ src = "s3://b/k", path = "/p" }']
    )

    descriptor, findings = load_table(written, file="f", folder=None, overrides=overrides, variables={})

    assert descriptor is not None, render_findings(findings)
    assert descriptor.ml.args == "--lr ${LR}"


@given(VALUES.filter(lambda text: text.strip() != ""))
@example('"quoted"')
@example("'quoted'")
@example("7")
@example("true")
def test_a_recorded_value_of_a_variable_gives_the_same_job_again(value: str) -> None:
    written = table(env={"vars": {"A": "${V}"}})
    changed, _ = expand_variables(written, {"V": value}, file="f", skip={})
    first, findings = load_table(written, file="f", folder=None, variables={"V": value})
    values = recorded(changed)
    if first is None:  # it looks like a secret
        return

    again = read_overrides(f"{key}={text}" for key, text in values.items())
    second, findings = load_table(written, file="f", folder=None, overrides=again)

    assert second is not None, render_findings(findings)
    assert second.env.vars == first.env.vars


def test_the_record_has_options_and_variables(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    file.write_text(toml_document(table(ml={"args": "--lr ${LR:-0.1}"}, env={"vars": {"A": "${B}"}})))
    given_values = read_overrides(["env.vars.A=4"])
    asked = JobRequest(file=file, overrides=given_values, variables={"B": "2"})

    assert set_values(asked) == {"env.vars.A": "4", "ml.args": "--lr 0.1"}
    assert load(file, overrides=given_values, variables={})[0] is not None


def test_each_arm_has_the_values_of_its_own_file(tmp_path: Path) -> None:
    for name in ("A", "B"):
        written = table(ml={"args": f"${{{name}}}"}, hardware={"instance_type": "${TYPE:-local}"})
        (tmp_path / f"{name}.toml").write_text(toml_document(written))
    arms = OtherArms(files=(tmp_path / "B.toml",), runs=2)
    asked = JobRequest(file=tmp_path / "A.toml", other_arms=arms, variables={"A": "1", "B": "2"})

    descriptor, findings = read_request(asked)

    assert descriptor.repeat is not None, findings
    assert [each.args for each in descriptor.repeat.arms] == ["1", "2"]
    assert set_values(asked) == {}
