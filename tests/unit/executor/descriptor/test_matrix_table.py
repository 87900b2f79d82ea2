"""`[matrix]` of a descriptor: keys with values, and their mistakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor.configuration.service_config import Bounds
from executor.descriptor import Descriptor, Finding, has_errors, load
from executor.descriptor.overrides import read_overrides
from executor.descriptor.toml_file import parse_toml
from executor.errors import UsageError
from executor.planning.matrix import matrix_plan
from executor.planning.request import (
    FindingsError,
    JobRequest,
    MatrixError,
    group_of,
    read_request,
)
from executor.service.events.policy import check_trust

FILE = Path("/somewhere/b.toml")
BASE = """\
spec_version = "0.1.0"
[info]
description = "A sweep"
[hardware]
instance_type = "t3.small"
strategy = "torchrun"
[hardware.distributed]
num_instances = 1
[ml]
benchmark_code = "echo hello"
[[output.metrics]]
name = "loss"
units = ""
pattern = 'loss=(\\S+)'
"""
TWO_KEYS = '"ml.args" = ["a", "b"]\nhardware.distributed.num_instances = [1, 2]\n'


def read(matrix: str) -> tuple[Descriptor | None, list[Finding]]:
    return load(FILE, content=f"{BASE}[matrix]\n{matrix}".encode())


def request(matrix: str) -> JobRequest:
    return JobRequest(file=FILE, content=f"{BASE}[matrix]\n{matrix}".encode())


def test_keys_with_and_without_quotes_have_their_values_combined_in_the_order_of_the_file() -> None:
    descriptor, findings = read(f"{TWO_KEYS}max_parallel = 2\nmax_cost = 40")

    assert not has_errors(findings)
    assert descriptor is not None
    assert descriptor.matrix is not None
    assert descriptor.matrix.max_cost == 40
    assert descriptor.matrix.axes == {"ml.args": ["a", "b"], "hardware.distributed.num_instances": [1, 2]}
    plan, _ = matrix_plan(JobRequest(file=FILE, content=f"{BASE}[matrix]\n{TWO_KEYS}".encode()), "g")
    assert [jobs[0].set for jobs in plan.combinations] == [
        {"ml.args": args, "hardware.distributed.num_instances": nodes}
        for args in ("a", "b")
        for nodes in ("1", "2")
    ]


@pytest.mark.parametrize(
    ("matrix", "key", "problem"),
    [
        ('"ml.args" = "a"', 'matrix."ml.args"', "is not a list of values"),
        ('"ml.args" = []', 'matrix."ml.args"', "is not a list of values"),
        ("max_paralel = 2", "matrix.max_paralel", "is not a list of values"),
        ('"ml.args" = ["a", "b", "a"]', 'matrix."ml.args"[2]', "is in the list twice"),
        ('"ml.args" = [2026-01-01]', 'matrix."ml.args"[0]', "is a date or a time"),
        ('"ml..args" = ["a"]', 'matrix."ml..args"', "is not a dotted key"),
        ('"ml" = [{}]\n"ml.args" = ["a"]', 'matrix."ml.args"', "sets the same key as ml"),
        ('"matrix.seed" = [1]', 'matrix."matrix.seed"', "is not a key that [matrix] can set"),
        ('"ml.args=x" = ["a"]', 'matrix."ml.args=x"', "is not a key that [matrix] can set"),
        ('"info.execution_engine" = ["local"]', 'matrix."info.execution_engine"', "is the same for all jobs"),
        ("max_parallel = 2", "matrix", "names no key with a list of values"),
        (f'"env.vars.A" = {list(range(100))}\n"env.vars.B" = [1, 2, 3]', "matrix", "makes 300 jobs"),
        (f'"env.vars.A" = {list(range(100))}\nrounds = 3', "matrix", "makes 300 jobs"),
        ('"ml.args" = ["a"]\nmax_parallel = 0', "matrix.max_parallel", "at least 1"),
        ('"ml.args" = ["a"]\nmax_cost = -1.0', "matrix.max_cost", "0"),
        ('"ml.args" = ["a"]\nmax_cost = nan', "matrix.max_cost", ""),
        ('"ml.args" = ["a"]\nseed = "x"', "matrix.seed", ""),
    ],
)
def test_a_mistake_is_named_with_its_key(matrix: str, key: str, problem: str) -> None:
    descriptor, findings = read(matrix)

    assert descriptor is None
    (found,) = [each for each in findings if each.key == key]
    assert problem in found.problem
    assert found.fix


def test_a_mistake_of_one_combination_names_the_key_of_the_matrix() -> None:
    with pytest.raises(FindingsError) as raised:
        matrix_plan(request('"hardware.strategy" = ["torchrun", "magic"]'), "g")

    assert "[matrix] hardware.strategy" in str(raised.value)


@pytest.mark.parametrize("key", ["nothing.there", "output.metrics[speed].units"])
def test_an_unknown_key_in_matrix_is_refused(key: str) -> None:
    with pytest.raises(FindingsError) as raised:
        matrix_plan(request(f'"{key}" = ["a"]'), "g")

    assert f"[matrix] {key}" in str(raised.value)


def test_each_job_of_a_matrix_has_its_values_and_no_matrix_table() -> None:
    plan, _ = matrix_plan(
        request(
            '"output.metrics[loss].units" = ["nats", "bits"]\n"hardware.distributed.num_instances" = [1, "2:4"]'
        ),
        "g",
    )

    read = [read_request(plan.job_request(each))[0] for each in plan.jobs]

    found = {
        (each.output.metrics[0].units, str(each.hardware.distributed.num_instances))
        for each in read
        if each.hardware.distributed is not None
    }
    assert found == {(units, nodes) for units in ("nats", "bits") for nodes in ("1", "2:4")}
    assert [each.job_id for jobs in plan.combinations for each in jobs] == [
        "g.001",
        "g.002",
        "g.003",
        "g.004",
    ]
    assert {group_of(each.job_id) for each in plan.jobs} == {"g"}


def test_each_round_has_each_combination_once_in_an_order_that_the_seed_decides() -> None:
    matrix = '"env.vars.A" = [1, 2, 3, 4, 5]\nrounds = 3\nseed = '
    one, same, other = (matrix_plan(request(f"{matrix}{seed}"), "g")[0] for seed in (7, 7, 8))

    assert one.jobs == same.jobs
    assert one.jobs != other.jobs
    for number in (1, 2, 3):
        its = one.jobs[5 * number - 5 : 5 * number]
        assert sorted(each.job_id for each in its) == [f"g.{which:03}.{number}" for which in range(1, 6)]
    assert len(one.combinations) == 5
    assert all(len(jobs) == 3 for jobs in one.combinations)


def test_a_matrix_with_a_secret_value_or_a_too_long_id_is_refused() -> None:
    with pytest.raises(UsageError, match=r"env\.vars\.API_TOKEN: its value is a secret"):
        matrix_plan(request('"env.vars.API_TOKEN" = ["hf_abcdefghijklmnopqrstuvwxyz012345"]'), "g")
    with pytest.raises(UsageError, match="too long for a group"):
        matrix_plan(request('"ml.args" = ["a"]'), "g" * 128)


def test_an_option_that_sets_a_key_of_the_matrix_is_refused_and_another_one_counts() -> None:
    both = replace(request('"ml.args" = ["a"]'), overrides=read_overrides(["ml.args=b"]))
    with pytest.raises(UsageError, match=r"--set ml\.args: \[matrix\] sets ml\.args as well"):
        matrix_plan(both, "g")

    other = replace(both, overrides=read_overrides(["env.vars.X=1", "matrix.max_parallel=3"]))
    plan, _ = matrix_plan(other, "g")

    assert plan.max_parallel == 3
    assert read_request(plan.job_request(plan.jobs[0]))[0].env.vars == {"X": "1"}


def test_an_option_that_sets_the_origin_of_each_job_is_refused() -> None:
    given = replace(
        request('"checkpoint.from" = ["job:a", "job:b"]'),
        overrides=read_overrides(["checkpoint.path=saved", "checkpoint.from=job:c"]),
    )

    with pytest.raises(UsageError, match=r"--set checkpoint\.from: \[matrix\] sets checkpoint\.from as well"):
        matrix_plan(given, "g")


def test_values_that_are_looked_up_for_all_jobs_are_no_options() -> None:
    given = request('"checkpoint.from" = ["job:a", "job:b"]')
    looked_up = read_overrides(["checkpoint.path=saved", "checkpoint.from=job:c"])

    plan, _ = matrix_plan(
        replace(given, overrides=looked_up[:1]),
        "g",
        resolve=lambda job_request, _: replace(job_request, overrides=looked_up),
    )

    assert [jobs[0].set for jobs in plan.combinations] == [
        {"checkpoint.from": "job:a"},
        {"checkpoint.from": "job:b"},
    ]


def test_a_variable_of_the_caller_is_expanded_when_the_group_is_made() -> None:
    text = BASE.replace("[ml]", '[env.vars]\nSIZE = "${SIZE}"\nOTHER = "${OTHER}"\n[ml]')
    content = f'{text}[matrix]\n"env.vars.SIZE" = ["1", "2"]'.encode()
    given = JobRequest(file=FILE, content=content, variables={"SIZE": "9", "OTHER": "x"})

    plan, _ = matrix_plan(given, "g")

    jobs = [read_request(plan.job_request(each))[0].env.vars for jobs in plan.combinations for each in jobs]
    assert jobs == [{"SIZE": "1", "OTHER": "x"}, {"SIZE": "2", "OTHER": "x"}]


def test_variables_in_values_of_the_matrix_are_expanded_as_in_the_rest_of_the_file() -> None:
    matrix = '"ml.args" = ["--lr ${LR} \'${NAME}\'", "b"]\n"env.vars" = [{ A = "${LR}", B = "$${LR}" }]\n"info.description" = ["${LR}"]'
    given = replace(request(matrix), variables={"LR": "0.1", "NAME": "it's $(HOME)"})

    first, second = [
        read_request(plan.job_request(each))[0]
        for plan in [matrix_plan(given, "g")[0]]
        for each in [jobs[0] for jobs in plan.combinations]
    ]

    assert first.ml.args == "--lr 0.1 'it'\"'\"'s $$(HOME)'"
    assert second.ml.args == "b"
    assert first.env.vars == {"A": "0.1", "B": "${LR}"}
    assert first.info.description == "${LR}"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("${LR}", "the environment variable LR is not set"),
        ("${API_TOKEN}", "belongs to a variable whose name suggests a secret"),
        ("${0}", "is not the name of a variable"),
    ],
)
def test_a_variable_of_the_matrix_that_cannot_be_replaced_is_named_with_its_value(
    value: str, problem: str
) -> None:
    given = replace(request(f'"ml.args" = ["a", "{value}"]'), variables={"API_TOKEN": "abc"})

    with pytest.raises(FindingsError) as raised:
        matrix_plan(given, "g")

    (found,) = raised.value.findings
    assert found.key == 'matrix."ml.args"[1]'
    assert problem in found.problem
    assert "abc" not in str(raised.value)


@pytest.mark.parametrize("values", ['["1", 1]', '["${ONE}", "1"]'])
def test_matrix_values_that_give_the_same_job_twice_are_refused(values: str) -> None:
    given = replace(request(f'"env.vars.A" = {values}'), variables={"ONE": "1"})

    with pytest.raises(UsageError, match=r'\[matrix\] env\.vars\.A: two values are "1"'):
        matrix_plan(given, "g")


def test_reading_a_matrix_as_one_job_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"\[matrix\] makes several jobs, which only `bai run` starts"):
        read_request(request('"ml.args" = ["a"]'))


def test_the_service_refuses_a_matrix_with_one_sentence() -> None:
    table, _ = parse_toml(f'{BASE}[matrix]\n"ml.args" = ["a"]'.encode(), file="b.toml")
    assert table is not None

    (found,) = check_trust(table, Bounds(), file="the descriptor", region="eu-central-1")

    assert found.key == "matrix"
    assert (
        found.problem
        == "makes a group of jobs, but a request is one job; send a request for each combination"
    )
