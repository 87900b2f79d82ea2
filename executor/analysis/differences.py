"""Finds differences between two sides that may affect their numbers in addition to the change under test:
differences of machines, software and descriptors.

The user sees the differences before the numbers of the comparison. Only stable facts of a machine are
compared: types, models, versions, settings. Facts that vary from run to run (load, current clock rates, free
bytes, ids) are not compared, because users soon overlook what is shown every time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import About, Metric
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.descriptor_file import job_table
from bai_agent.job.schema.tables import marked_keys
from bai_agent.light_dataclass import dataclass
from executor.planning.request import MATRIX
from executor.records.machine_facts import compared_values, table_in, times

_OWN = frozenset(
    [
        "job",
        "store",
        "version",
        "git",
        "kafka",
        "log_lines",
        "prometheus",
        "cloudwatch",
        "end",
        "limits",
        "set",
        "metrics",
        "results",
        "sources",
        "host_metrics",
        "restart",
    ]
)
"""Tables of a job descriptor that are not compared as a whole, because this module compares them in another
way, or because they do not change what is measured."""
_LONGEST = 60


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs between the sides."""

    what: str
    """Name of the value, for example "cpu model", "package torch" or "benchmark.argv"."""
    a: str
    b: str
    """All values of side B, as text; "-" if side B has no value."""

    def as_table(self) -> dict[str, str]:
        return dict(self.__dict__)


def environment_differences(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    """Return the differences between the machines of two sides. a, b: the `environment.json` of each node of each run."""
    if not a or not b:
        return []
    return _differences([dict(_facts(each)) for each in a], [dict(_facts(each)) for each in b])


def descriptor_differences(a: Sequence[Job], b: Sequence[Job]) -> list[Difference]:
    """Return the differences between the job descriptors of two sides that change what is measured."""
    return _differences([dict(_described(each)) for each in a], [dict(_described(each)) for each in b])


def _differences(a: Sequence[Mapping[str, str]], b: Sequence[Mapping[str, str]]) -> list[Difference]:
    names = {name: None for each in (*a, *b) for name in each}
    found = []
    for name in names:
        sides = [list(dict.fromkeys(each.get(name, "-") for each in side)) for side in (a, b)]
        if set(sides[0]) != set(sides[1]) or len(sides[0]) > 1:
            found.append(Difference(what=name, a=_listed(sides[0]), b=_listed(sides[1])))
    return found


def _listed(values: Sequence[str]) -> str:
    return " or ".join(values[:3]) + (f" and {len(values) - 3} more" if len(values) > 3 else "")


def _facts(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact of one machine that is compared."""
    values: dict[str, list[str]] = {}
    for title, value in compared_values(environment):
        values.setdefault(title, []).append(_text(value))
    for title, texts in values.items():
        counts = Counter(sorted(texts)).items()
        yield title, ", ".join(times(count, text) for text, count in counts)
    python = table_in(environment, "python")
    for name, version in {**table_in(python, "packages"), **table_in(python, "distributions")}.items():
        yield f"package {name}", _text(version)


def _described(job: Job) -> Iterator[tuple[str, str]]:
    """Yield name and value of each key of a job descriptor that is compared."""
    table = job_table(job)
    for name, value in table.items():
        if name not in _OWN:
            yield from _flat(name, value)
    for source in job.sources:
        yield _source(source)
    for key, value in job.set.items():
        if key != MATRIX:
            yield f"--set {key}", _text(value)
    for metric in job.metrics:
        yield from _metric(metric)
    yield from _results(table.get("results", ()))
    if job.git is not None:
        yield "git", f"{job.git.commit[:12]}{', with uncommitted changes' if job.git.dirty else ''}"


def _source(source: Source) -> tuple[str, str]:
    known = (source.sha256 or source.md5 or "")[:12]
    if source.kind is SourceKind.SCRIPTS and known:
        # The address of the scripts is left out, because it is the address of the job's own copy, or contains
        # the checksum.
        return "scripts", known
    return f"source {source.path}", _text(f"{source.src}{f' ({known})' if known else ''}")


def _metric(metric: Metric) -> Iterator[tuple[str, str]]:
    for key in marked_keys(Metric, About.LINE, About.LINES_ABOVE, About.SUMMARY):
        if (value := getattr(metric, key)) not in (None, ()):
            yield f"metric {metric.name}: {key}", _text(getattr(value, "value", value))


def _results(tables: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the compared keys of `[[output.results]]`. Several tables with the same path are numbered."""
    paths: Counter[str] = Counter()
    for each in tables:
        paths[each["path"]] += 1
        count = paths[each["path"]]
        name = f"results {each['path']}{f' ({count})' if count > 1 else ''}"
        yield name, each["format"]
        for key, value in each.items():
            if key not in ("path", "format", "units", "better", "required", "tolerance"):
                yield from _flat(f"{name}: {key}", value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}", each)
    elif isinstance(value, str) and "\n" in value:
        digest = hashlib.sha256(value.encode()).hexdigest()[:12]
        yield name, f"{len(value.splitlines())} lines ({digest})"
    elif isinstance(value, (list, tuple)):
        yield name, _text(" ".join(map(str, value)))
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if len(text) <= _LONGEST:
        return text
    # A checksum is appended to a truncated text, to distinguish long texts that differ only in the part that
    # was cut off.
    return f"{text[: _LONGEST - 17]}… ({hashlib.sha256(text.encode()).hexdigest()[:12]})"
