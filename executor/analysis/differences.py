"""What else than the change under test tells two sides apart: machines, software, descriptors. Named before any number.

Of an environment only what stays as it is counts: types, models, versions, settings. What jitters from run to run (load, clock
rates of the moment, free bytes, ids of machines) would be named each time, and soon be overlooked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bai_agent.job.descriptor import Job, SourceKind
from bai_agent.job.descriptor_file import job_table
from executor.records.environments import table_in, tables_in

_STABLE: Mapping[str, Sequence[str]] = {
    "instance": ("type", "market", "image_id"),
    "cpu": ("model", "count", "usable", "threads_per_core", "numa_nodes", "virtualised", "governors", "max_mhz"),
    "gpus": ("driver", "cuda"),
    "system": ("kernel", "architecture", "distribution", "image_name", "boot_parameters"),
    "memory": ("total_bytes", "transparent_huge_pages"),
    "python": ("version",),
    "software": (
        "nccl", "cudnn", "cuda_toolkit", "libfabric", "efa_installer", "efa_driver",
    ),
    "agent": ("version",),
}  # fmt: skip
"""Keys of `environment.json` in the order in which differences are named; behind them those of lists and packages."""
_GPU = ("name", "memory_bytes", "max_sm_mhz", "persistence", "power_limit_watts", "ecc", "mig")
_DISK = ("model", "rotates", "scheduler")
_INTERFACE = ("driver", "mbit_per_second", "mtu")
_MOUNT = ("type",)

_OWN = frozenset(
    {
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
    }
)
"""Tables of a job descriptor that are compared apart, or say nothing of what is measured."""
_LONGEST = 60


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that is not the same on both sides."""

    what: str
    """"cpu model", "package torch", "benchmark.argv"."""
    a: str
    b: str
    """All that was seen there, "-" for nothing."""

    def as_table(self) -> dict[str, str]:
        return dict(self.__dict__)


def environment_differences(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> list[Difference]:
    """Return in what the machines of two sides differ. a, b: the `environment.json` of each node of each run."""
    if not a or not b:
        return []
    return _differences([dict(_facts(each)) for each in a], [dict(_facts(each)) for each in b])


def descriptor_differences(a: Sequence[Job], b: Sequence[Job]) -> list[Difference]:
    """Return in what the job descriptors of two sides differ, as far as that changes what is measured."""
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
    """Yield what is compared of one machine: name and value."""
    for table, keys in _STABLE.items():
        for key in keys:
            value = table_in(environment, table).get(key)
            if value is None:
                continue
            if key == "total_bytes":
                # Some of it is the kernel's own, a little more or less from boot to boot.
                value = f"{value / 2**30:.2g} GiB" if type(value) is int else value
            yield f"{table} {key.replace('_', ' ')}".replace("total bytes", "size"), _text(value)
    mpi = table_in(table_in(environment, "software"), "open_mpi").get("version")
    if mpi is not None:
        yield "software Open MPI", _text(mpi)
    for name, devices, keys in (
        ("gpu", table_in(environment, "gpus").get("devices"), _GPU),
        ("disk", environment.get("disks"), _DISK),
        ("network", environment.get("network"), _INTERFACE),
    ):
        for key in keys:
            values = [_text(each[key]) for each in tables_in(devices) if each.get(key) is not None]
            if values:
                counts = {value: values.count(value) for value in sorted(set(values))}
                yield (
                    f"{name} {key.replace('_', ' ')}",
                    ", ".join(
                        value if count == 1 else f"{count} x {value}" for value, count in counts.items()
                    ),
                )
    for name, mount in table_in(environment, "mounts").items():
        for key in _MOUNT:
            if isinstance(mount, Mapping) and mount.get(key) is not None:
                yield f"mount {name} {key}".replace("_", " "), _text(mount[key])
    python = table_in(environment, "python")
    for name, version in {**table_in(python, "packages"), **table_in(python, "distributions")}.items():
        yield f"package {name}", _text(version)


def _described(job: Job) -> Iterator[tuple[str, str]]:
    table = job_table(job)
    for name, value in table.items():
        if name not in _OWN:
            yield from _flat(name, value)
    for source in job.sources:
        known = source.sha256 or source.md5
        if source.kind is SourceKind.SCRIPTS and known:
            # Their address is that of the job's own copy, or has their checksum in it.
            yield "scripts", known[:12]
            continue
        yield f"source {source.path}", _text(f"{source.src}{f' ({known[:12]})' if known else ''}")
    for key, value in job.set.items():
        yield f"--set {key}", _text(value)
    for metric in job.metrics:
        for key in ("pattern", "number", "repaint", "over_ranks", "headline", "warmup", "warmup_values"):
            value = getattr(metric, key)
            yield f"metric {metric.name}: {key}", _text(getattr(value, "value", value))
        for key in ("json", "after", "until", "context"):
            if value := getattr(metric, key):
                yield f"metric {metric.name}: {key}", _text(value)
    paths: list[str] = []
    for results in table.get("results", ()):
        paths.append(results["path"])
        count = paths.count(results["path"])
        name = f"results {results['path']}{f' ({count})' if count > 1 else ''}"
        yield name, results["format"]
        for key, value in results.items():
            if key not in ("path", "format", "units", "better", "required", "tolerance"):
                yield from _flat(f"{name}: {key}", value)
    if job.git is not None:
        yield "git", f"{job.git.commit[:12]}{', with uncommitted changes' if job.git.dirty else ''}"


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
    # Two long texts that differ behind the cut are still told apart.
    return f"{text[: _LONGEST - 17]}… ({hashlib.sha256(text.encode()).hexdigest()[:12]})"
