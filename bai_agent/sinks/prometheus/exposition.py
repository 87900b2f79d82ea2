"""Prometheus' text format, and what metrics and labels are called in it.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
https://prometheus.io/docs/concepts/data_model/#metric-names-and-labels
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "BAI_METRICS_"
"""Before the name of every metric of a benchmark: the benchmark service's own exporter calls them so, and dashboards fit both."""
OWN_LABELS = frozenset(["job", "instance", "job_id", "rank"])
"""Labels that say which run it is. One of the user's with such a name becomes `exported_…`, as Prometheus itself does it."""

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass
class Family:
    """All series of one name."""

    name: str
    kind: str
    """gauge or counter."""
    help: str
    samples: dict[str, float]
    """Labels as `labels_text` makes them → value."""


def metric_name(name: str) -> str:
    """Return what Prometheus calls the metric `name`."""
    return PREFIX + _NOT_IN_A_NAME.sub("_", name)


def label_names(labels: Mapping[str, str]) -> dict[str, str]:
    """Return `labels` under names that Prometheus takes. The values of two that become one stand there with a semicolon between."""
    found: dict[str, str] = {}
    for key in sorted(labels):
        name = _NOT_IN_A_NAME.sub("_", key)
        if not name or name[0].isdigit() or name.startswith("__"):
            name = f"label_{name}"
        if name in OWN_LABELS:
            name = f"exported_{name}"
        value = labels[key].encode("utf-8", "replace").decode()
        found[name] = f"{found[name]};{value}" if name in found else value
    return found


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as they stand between a metric's name and its value."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)) + "}"


def exposition(families: Iterable[Family]) -> bytes:
    """Return the text of all families."""
    lines: list[str] = []
    for family in families:
        help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {family.name} {help_text}\n", f"# TYPE {family.name} {family.kind}\n"]
        lines += [f"{family.name}{labels} {float(value)!r}\n" for labels, value in family.samples.items()]
    return "".join(lines).encode("utf-8", "replace")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
