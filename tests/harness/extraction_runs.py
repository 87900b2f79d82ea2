"""Makes run directories for the extractor, and reads the extractor's results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from failures import KilledError

from bai_agent.job.descriptor_file import read_job
from bai_agent.job.run_directory import RunDir
from bai_agent.metrics.process import Extractor

Entry = tuple[str, int, int, int, int, str, float]
"""(src, gen, off, i, k, name, value): these must not depend on how often the extractor was killed."""

EXITED = {
    "code": 0,
    "wall_seconds": 2.5,
    "user_seconds": 1.25,
    "system_seconds": 0.5,
    "peak_memory_bytes": 1_000_000,
    "context_switches_voluntary": 10,
    "context_switches_involuntary": 3,
}


def make_run(
    folder: Path,
    metrics: Sequence[tuple[str, str]],
    *,
    output: bytes | None = None,
    processes: Sequence[bytes] = (),
    mpi: bool = False,
    emitted: bytes | None = None,
    exited: bool = True,
    host_metrics: bool = False,
    results: Sequence[Mapping[str, Any]] = (),
    **keys: Any,
) -> RunDir:
    """Make a run directory of a job with `metrics` (name, pattern); `keys` go into the first of them.

    processes: what each process printed, where mpirun started them; `mpi` without them: their logs come later. results: tables of files, which are to lie in `work/`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rundir = RunDir(folder)
    tables: list[dict[str, Any]] = [{"name": name, "pattern": pattern} for name, pattern in metrics]
    if tables:
        tables[0].update(keys)
    rundir.job.write_text(
        tomli_w.dumps(
            {
                "version": 1,
                "job": {"id": "test"},
                "benchmark": {"argv": ["true"]},
                "host_metrics": {"enabled": host_metrics, "interval": "100ms"},
                "metrics": tables,
                "results": list(results),
                **(
                    {"strategy": {"name": "mpi", "processes_per_node": str(len(processes) or 1)}}
                    if processes or mpi
                    else {}
                ),
            }
        )
    )
    if output is not None:
        rundir.output.write_bytes(output)
    for rank, printed in enumerate(processes):
        rundir.processes.mkdir(exist_ok=True)
        (rundir.processes / f"{rank}.log").write_bytes(printed)
    if emitted is not None:
        rundir.emit.write_bytes(emitted)
    if exited:
        finish_run(rundir)
    return rundir


def extract(rundir: RunDir) -> None:
    """Extract all that is there, to the extractor's end."""
    Extractor(rundir, read_job(rundir.job), sleep=lambda _: None).run()


def extract_until_killed(rundir: RunDir, *, rounds: int = 1) -> None:
    """Extract all that is there, and die after `rounds` rounds without anything left to do."""
    left = [rounds]

    def sleep(_: float) -> None:
        left[0] -= 1
        if not left[0]:
            raise KilledError

    with pytest.raises(KilledError):
        Extractor(rundir, read_job(rundir.job), sleep=sleep).run()


def extract_after_any_prefix(rundir: RunDir, *, with_checkpoint: bool, step: int = 1) -> Iterator[None]:
    """Truncate the metrics of an extraction at every `step`th byte; yield after each new extraction."""
    content, checkpoint = rundir.metrics.read_bytes(), rundir.extractor_offset.read_bytes()
    for size in (*range(0, len(content), step), len(content)):
        rundir.extracted.unlink()
        rundir.metrics.write_bytes(content[:size])
        if with_checkpoint:
            rundir.extractor_offset.write_bytes(checkpoint)
        else:
            rundir.extractor_offset.unlink()
        extract(rundir)
        yield


def finish_run(rundir: RunDir) -> None:
    """Record that the benchmark has exited."""
    rundir.exit.write_text(json.dumps(EXITED))


def records(rundir: RunDir) -> list[dict[str, Any]]:
    """Return the records, after a check that their numbers have no gap."""
    content = rundir.metrics.read_bytes()
    assert content.endswith(b"\n") or not content
    found = [json.loads(line) for line in content.splitlines()]
    assert [each["seq"] for each in found] == list(range(len(found)))
    return found


def entries(rundir: RunDir, *sources: str) -> dict[str, list[Entry]]:
    """Return the entries of each source, in order. By default the host's samples are left out."""
    found: dict[str, list[Entry]] = {src: [] for src in sources or ("log", "emit", "run")}
    for each in records(rundir):
        if each["src"] in found:
            found[each["src"]].append(
                (
                    each["src"],
                    each.get("gen", 0),
                    each["off"],
                    each["i"],
                    each["k"],
                    each["name"],
                    each["value"],
                )
            )
    return found


def extracted(rundir: RunDir) -> dict[str, Any]:
    """Return the extractor's final report, without its resource usage, which differs between processes."""
    value = json.loads(rundir.extracted.read_text())
    assert isinstance(value, dict)
    del value["own_usage"]
    return value
