"""A job descriptor that was written is read back as the same job, whatever it holds."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Buffering, Git, Identity, Output
from bai_agent.job.descriptor.limit_tables import End, Limits, Power
from bai_agent.job.descriptor.metric_tables import (
    Better,
    Headline,
    HostMetrics,
    Metric,
    OverRanks,
    ResultFormat,
    Results,
)
from bai_agent.job.descriptor.sink_tables import CloudWatch, Kafka, Prometheus, Store
from bai_agent.job.descriptor.source_tables import Source, SourceKind, Unpack
from bai_agent.job.descriptor.strategy_tables import ReadinessProbe, Server, StrategyTable
from bai_agent.job.descriptor_file import parse_job
from executor.planning.job_toml import job_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
"""Whatever TOML can hold, which is all of Unicode but lone surrogates, less NUL, which no text of a job may hold."""
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
LABELS = st.dictionaries(TEXT, TEXT, max_size=3)
DURATIONS = st.integers(0, 10**11).map(lambda milliseconds: timedelta(milliseconds=milliseconds))
FILLED = TEXT.filter(bool)
METRIC_NAMES = FILLED.filter(lambda text: text.strip() and text.isprintable())
POSITIVE = DURATIONS.filter(bool)
WORDS = st.from_regex(r"[A-Za-zé\"'\\\[\]]{1,5}", fullmatch=True)
PATTERNS = TEXT.map(re.escape) | st.sampled_from(
    [r"a\xb0", r"loss=([-+]?\d*\.\d+|\d+)", r'"\\"', "'''", '"""', "\t", "é\u2028(.)", "\r\n"]
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


IDENTITIES = st.builds(
    Identity,
    id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    name=TEXT,
    action_id=maybe(TEXT),
    parent_action_id=maybe(TEXT),
    client_id=TEXT,
    attempt=st.integers(0, 2**63 - 1),
    labels=LABELS,
)
BENCHMARKS = st.builds(
    Benchmark,
    argv=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
    script=maybe(TEXT),
    cwd=maybe(TEXT),
    env=st.dictionaries(NAMES, TEXT, max_size=3),
    secrets=st.dictionaries(NAMES, TEXT, max_size=2),
    inherit_env=st.booleans(),
    python=maybe(TEXT),
    requirements=maybe(TEXT),
    user=maybe(TEXT),
    buffering=st.sampled_from(Buffering),
)
SOURCES = st.builds(
    Source,
    src=TEXT,
    path=TEXT,
    kind=st.sampled_from(SourceKind),
    id=maybe(TEXT),
    directory=st.booleans(),
    size=maybe(st.integers(0, 2**63 - 1)),
    md5=maybe(st.just("8a61469f7ea1b51cbae51d4f78837e45")),
    unpack=st.sampled_from(Unpack),
    mode=maybe(st.just("0755")),
    region=maybe(TEXT),
    anonymous=st.booleans(),
)
METRICS = st.builds(
    Metric,
    name=TEXT,
    pattern=PATTERNS.filter(bool),
    units=TEXT,
    better=maybe(st.sampled_from(Better)),
    required=st.booleans(),
)
RESULTS = st.builds(
    Results,
    path=st.sampled_from(["runs/**", "*.csv", "é \"'\\[a]\u2028"]),
    format=st.just(ResultFormat.CSV),
    metrics=st.lists(METRIC_NAMES, max_size=2).map(tuple),
    required=st.booleans(),
    better=maybe(st.sampled_from(Better)),
    over_ranks=st.sampled_from(OverRanks),
    headline=st.sampled_from(Headline),
    tolerance=maybe(st.floats(0, 10)),
    values=st.lists(FILLED, min_size=2, max_size=3).map(tuple),
    name=st.none(),
    name_from=st.none(),
    units=TEXT,
    units_from=maybe(FILLED),
    step=maybe(FILLED),
    labels=st.dictionaries(st.from_regex(r"own_[a-z]{1,5}", fullmatch=True), FILLED, max_size=2),
    delimiter=st.sampled_from(",;\t|"),
    header=st.booleans(),
)
JOBS = st.builds(
    Job,
    job=IDENTITIES,
    benchmark=BENCHMARKS,
    strategy=st.builds(
        StrategyTable,
        # Texts are also drawn from the words of the code; the strategy inference needs a server.
        name=TEXT.filter(lambda name: name != "inference"),
        nodes=st.integers(1, 1000),
        processes_per_node=st.sampled_from(["1", "16", "gpus"]),
    ),
    limits=st.builds(
        Limits,
        max_runtime=maybe(POSITIVE),
        pull_timeout=POSITIVE,
        grace=DURATIONS,
        extract_timeout=DURATIONS,
        drain=DURATIONS,
        no_output=maybe(POSITIVE),
    ),
    sources=st.lists(SOURCES, max_size=2).map(tuple),
    metrics=st.lists(METRICS, max_size=3).map(tuple),
    results=st.lists(RESULTS, max_size=2).map(tuple),
    host_metrics=st.builds(
        HostMetrics,
        enabled=st.booleans(),
        interval=DURATIONS.map(lambda each: each + timedelta(milliseconds=100)),
    ),
    kafka=maybe(
        st.builds(
            Kafka,
            brokers=st.lists(st.sampled_from(["b:9092", "[::1]:1", "é:65535"]), min_size=1, max_size=2).map(
                tuple
            ),
            topic=FILLED,
            sasl_username=maybe(TEXT),
            sasl_password=maybe(FILLED.map("ssm:{}".format)),
        )
    ),
    prometheus=maybe(
        st.builds(
            Prometheus,
            pushgateway=maybe(st.just("https://host:9091/path")),
            listen=st.sampled_from(["127.0.0.1:9109", "[::1]:0"]),
            delete_on_end=st.booleans(),
        )
    ),
    cloudwatch=maybe(
        st.builds(
            CloudWatch, log_group=st.just("/a/b#c"), dimensions=maybe(st.lists(WORDS, max_size=2).map(tuple))
        )
    ),
    output=st.builds(
        Output,
        artifacts=st.lists(st.sampled_from(["runs/**", "*.csv", "é \"'\\[a]\u2028"]), max_size=2).map(tuple),
    ),
    store=maybe(st.builds(Store, url=TEXT)),
    end=st.builds(End, power=st.sampled_from(Power)),
    git=maybe(st.builds(Git, commit=TEXT, branch=TEXT, dirty=st.booleans())),
)


def job_with(**benchmark: Any) -> Job:
    return Job(job=Identity(id="j"), benchmark=Benchmark(**benchmark))


@settings(max_examples=150, deadline=None)
@given(JOBS)
@example(job_with(script="\n\n#!/bin/sh\r\necho '''\"\"\"\\\n"))
@example(job_with(script='ends with a quote"'))
@example(job_with(script="line\\\n   continued \\\\r\n"))
@example(job_with(argv=("\x7f\x1b\x85\u2028\ufeff", "")))
@example(
    replace(
        job_with(argv=("client",)),
        strategy=StrategyTable(name="inference", nodes=2),
        server=Server(
            ports=(80, 8443),
            script="exec serve '\"",
            env={"A": "\u2028"},
            readiness_probe=ReadinessProbe(path="/ping", port=80),
        ),
    )
)
def test_a_job_is_read_back_unchanged(job: Job) -> None:
    assert parse_job(job_toml(job).encode("utf-8"), where="job.toml") == job


@pytest.mark.parametrize("document", [{"p": "a\\xb"}, {"p": [["a"], [["b", "c"], []], [{"d": [1, [2]]}]]}])
def test_the_library_that_writes_toml_keeps_backslashes_and_nested_lists(document: dict[str, Any]) -> None:
    assert tomllib.loads(tomli_w.dumps(document)) == document
