"""What a node ran on, in a few lines. Whatever its file holds is shown as far as it makes sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from executor.quantities import size
from executor.records.environments import MachineWarning, NodeEnvironment, table_in, tables_in

_CHARACTERS = 1000
"""Of a line that are shown at most."""
_WARNINGS = 4
"""Lines of warnings in a summary."""
_LISTED = 12
"""Items of a list that are shown at most."""


def environment_lines(node: NodeEnvironment) -> Iterator[tuple[str, str]]:
    """Yield what is known of a node: label and text."""
    if node.environment is None:
        yield "machine", node.trouble or ""
        return
    facts = node.environment
    system, host = table_in(facts, "system"), table_in(facts, "instance")
    lines: dict[str, list[Any]] = {
        "instance": [host.get(name) for name in ("type", "id", "availability_zone", "market")],
        "image": [host.get("image_id"), system.get("image_name"), system.get("distribution")],
        "kernel": [
            _named("", system.get("kernel")),
            system.get("architecture"),
            _named("cloud-init ", system.get("cloud_init")),
            _named("agent ", table_in(facts, "agent").get("version")),
        ],
        "cpu": list(_cpu(table_in(facts, "cpu"))),
        "memory": list(_memory(table_in(facts, "memory"))),
        "gpus": list(_gpus(table_in(facts, "gpus"))),
        "disk": [_mount(name, value) for name, value in table_in(facts, "mounts").items()],
        "network": [_interface(each) for each in tables_in(facts.get("network"))],
        "python": [
            _named("", table_in(facts, "python").get("version")),
            table_in(facts, "python").get("executable"),
        ],
        "packages": _packages(table_in(facts, "python")),
        "software": list(_software(table_in(facts, "software"))),
        "load": list(_load(table_in(facts, "load"))),
    }
    for label, parts in lines.items():
        if text := ", ".join(str(part) for part in parts[:_LISTED] if part not in (None, "")):
            yield label, text[:_CHARACTERS]
    for name, why in list(table_in(facts, "missing").items())[:_LISTED]:
        yield "unknown", f"{name}: {why}"[:_CHARACTERS]
    warnings = facts.get("warnings")
    for each in warnings[:_LISTED] if isinstance(warnings, list) else ():
        yield "warning", str(each)[:_CHARACTERS]


def warning_lines(warnings: Sequence[MachineWarning], *, more: str) -> Iterator[tuple[str, str]]:
    """Yield what a summary says of the machines that a job ran on: label and text. more: the command that shows all."""
    for each in warnings[:_WARNINGS]:
        yield "machine", each.text[:_CHARACTERS]
    if len(warnings) > _WARNINGS:
        yield "", f"and {len(warnings) - _WARNINGS} more: {more}"


def _cpu(cpu: Mapping[str, Any]) -> Iterator[str | None]:
    yield _named("", cpu.get("model"))
    count, usable = cpu.get("count"), cpu.get("usable")
    if count is not None:
        yield f"{count} processors" + (f" ({usable} usable)" if usable not in (None, count) else "")
    if cpu.get("numa_nodes") is not None:
        yield f"{cpu['numa_nodes']} NUMA node{'' if cpu['numa_nodes'] == 1 else 's'}"
    governors = cpu.get("governors")
    if isinstance(governors, list):
        yield _named("governor ", " and ".join(map(str, governors)))
    if cpu.get("mhz") is not None:
        yield f"{cpu['mhz']} MHz" + (f" of {cpu['max_mhz']}" if cpu.get("max_mhz") is not None else "")


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    for key, words in (
        ("total_bytes", ""),
        ("available_bytes", " available"),
        ("swap_used_bytes", " of swap used"),
    ):
        if (text := _size(memory.get(key))) and (key != "swap_used_bytes" or memory[key]):
            yield text + words


def _gpus(gpus: Mapping[str, Any]) -> Iterator[str | None]:
    names = [_gpu(each) for each in tables_in(gpus.get("devices"))]
    for text, same in groupby(names):
        count = len(list(same))
        yield f"{count} x {text}" if count > 1 else text
    yield _named("driver ", gpus.get("driver"))
    yield _named("CUDA ", gpus.get("cuda"))


def _gpu(device: Mapping[str, Any]) -> str:
    parts = [
        str(device.get("name", "GPU")),
        _size(device.get("memory_bytes")),
        _named("", device.get("power_limit_watts"), " W"),
        _named("", device.get("max_sm_mhz"), " MHz at most"),
        "persistence off" if device.get("persistence") is False else None,
    ]
    return " ".join(filter(None, parts))


def _mount(name: str, value: Any) -> str | None:
    mount = value if isinstance(value, Mapping) else {}
    free = _size(mount.get("free_bytes"))
    parts = [mount.get("device"), mount.get("type"), f"{free} free" if free else None]
    text = " ".join(str(part) for part in parts if part)
    return f"{name.replace('_', ' ')} on {text}" if text else None


def _interface(each: Mapping[str, Any]) -> str:
    speed = _named("", each.get("mbit_per_second"), " Mbit/s")
    return " ".join(str(part) for part in (each.get("name"), each.get("driver"), speed) if part)


def _packages(python: Mapping[str, Any]) -> list[str]:
    found = [f"{name} {version}" for name, version in table_in(python, "packages").items()]
    if every := table_in(python, "distributions"):
        found.insert(_LISTED - 1, f"{len(every)} distributions in all")
    return [*found[: _LISTED - 1], *found[-1:]] if len(found) > _LISTED else found


def _software(software: Mapping[str, Any]) -> Iterator[str | None]:
    mpi = table_in(software, "open_mpi")
    yield _named("Open MPI ", mpi.get("version") or mpi.get("says"))
    for key, words in (
        ("nccl", "NCCL "),
        ("cudnn", "cuDNN "),
        ("cuda_toolkit", "CUDA toolkit "),
        ("libfabric", "libfabric "),
        ("efa_installer", "EFA installer "),
        ("efa_driver", "EFA driver "),
    ):
        yield _named(words, software.get(key))


def _load(load: Mapping[str, Any]) -> Iterator[str]:
    average = load.get("average")
    if isinstance(average, list) and average:
        yield f"{' '.join(map(str, average))} (1, 5, 15 minutes)"
    for each in tables_in(load.get("busiest")):
        yield f"{each.get('name')} ({each.get('user')}) {each.get('cores')} cores"


def _named(words: str, value: Any, after: str = "") -> str | None:
    return None if value in (None, "") else f"{words}{value}{after}"


def _size(value: Any) -> str:
    return size(value) if type(value) is int and 0 <= value < 2**63 else ""
