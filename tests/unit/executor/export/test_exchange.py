"""One number for each metric, as other programs read it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.metric_tables import Better, Metric
from executor.analysis.measured_runs import JobRuns, Run, RunValue
from executor.errors import UsageError
from executor.export.exchange import headlines_of, text_of

JOB = Job(job=Identity(id="j-1", name="digits"), benchmark=Benchmark(argv=("true",)))
BMF = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
            "required": ["value"],
            "additionalProperties": False,
        },
    },
}
"""What Bencher's reference says of its format."""


def value(number: float, name: str, *, better: Better | None = None, **labels: str) -> RunValue:
    return RunValue(
        value=number,
        count=3,
        name=name,
        labels=tuple(sorted(labels.items())),
        units="ms",
        metric=Metric(name=name, pattern="x", better=better),
    )


def runs(*each: dict[str, RunValue]) -> JobRuns:
    repeats = range(len(each)) if len(each) > 1 else [None]
    made = tuple(
        Run(job_id="j-1", repeat=repeat, values=values) for repeat, values in zip(repeats, each, strict=True)
    )
    return JobRuns(job_id="j-1", job=JOB, runs=made)


def printed(form: str, of: JobRuns, *names: str) -> tuple[str, list[str]]:
    text, notes = text_of(form, headlines_of(of, names), job_id="j-1", benchmark="digits")
    return text.decode(), notes


ONE = runs({"time{n=1}": value(2.5, "time", better=Better.LOWER, n="1"), "plain": value(7, "plain")})


def test_bmf_export_of_one_run_has_no_bounds() -> None:
    found = json.loads(printed("bmf", ONE)[0])

    Draft7Validator(BMF).validate(found)
    assert found == {"digits{n=1}": {"time": {"value": 2.5}}, "digits": {"plain": {"value": 7}}}


def test_bmf_export_of_repeats_is_their_median_with_bounds() -> None:
    found = json.loads(printed("bmf", runs(*({"time": value(n, "time")} for n in (3, 1, 2))))[0])

    Draft7Validator(BMF).validate(found)
    assert found == {"digits": {"time": {"value": 2, "lower_value": 1, "upper_value": 3}}}


def test_the_gha_format_fits_its_custom_tools() -> None:
    text, notes = printed(
        "gha",
        runs(
            *(
                {**ONE.runs[0].values, "time{n=1}": value(n, "time", better=Better.LOWER, n="1")}
                for n in (1, 2, 3)
            )
        ),
    )

    assert json.loads(text) == [
        {
            "name": "time{n=1}",
            "unit": "ms",
            "value": 2,
            "range": "± 1",
            "extra": "job j-1, the median of 3 runs",
        }
    ]
    assert notes == ["tool: customSmallerIsBetter", "left out, because they have no better direction: plain"]


def test_gha_export_of_metrics_with_both_directions_asks_for_names() -> None:
    both = runs(
        {"time": value(1, "time", better=Better.LOWER), "rate": value(2, "rate", better=Better.HIGHER)}
    )

    with pytest.raises(UsageError, match="lower is better for time; higher is better for rate; choose"):
        printed("gha", both)
    text, notes = printed("gha", both, "rate")
    assert [each["name"] for each in json.loads(text)] == ["rate"]
    assert notes == ["tool: customBiggerIsBetter"]
    with pytest.raises(UsageError, match="no metric has better"):
        printed("gha", ONE, "plain")


def test_exporting_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(UsageError, match='no metric "tame"; it has time, plain'):
        headlines_of(ONE, ["tame"])


def test_exporting_a_job_without_a_successful_run_is_an_error() -> None:
    failed = JobRuns(job_id="j-1", job=JOB, runs=(), left_out=("j-1 ended as failed",))

    with pytest.raises(UsageError, match="j-1 ended as failed: only runs that succeeded"):
        headlines_of(failed, [])


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    ]


def test_the_openmetrics_format_is_read_by_prometheus() -> None:
    assert samples(printed("openmetrics", ONE)[0]) == [
        ("BAI_METRICS_time", {"n": "1", "job_id": "j-1"}, 2.5),
        ("BAI_METRICS_plain", {"job_id": "j-1"}, 7.0),
    ]


NAMES = st.text(min_size=1, max_size=6) | st.sampled_from(
    ["a total", "a_total", "a.b", "a-b", "x_bucket", "0"]
)


@given(
    values=st.lists(
        st.tuples(NAMES, st.dictionaries(NAMES, st.text(max_size=4), max_size=2), st.floats(allow_nan=False)),
        max_size=4,
        unique_by=lambda each: each[0],
    )
)
def test_any_name_and_label_becomes_valid_openmetrics(
    values: list[tuple[str, dict[str, str], float]],
) -> None:
    def of(number: float, name: str, labels: dict[str, Any]) -> RunValue:
        return RunValue(value=number, count=1, name=name, labels=tuple(sorted(labels.items())), units='m"\n')

    text, _ = printed(
        "openmetrics", runs({name: of(number, name, labels) for name, labels, number in values})
    )

    assert sorted(number for _, _, number in samples(text)) == sorted(number for _, _, number in values)
