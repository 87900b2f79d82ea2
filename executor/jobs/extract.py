"""Extracts metric records again from a job's saved log. The new records are stored as a separate set, so that
the records of the run do not change.

```
<job>/attempts/<n>/nodes/<rank>/extracts/<number>/  job.toml  metrics/<offset>.jsonl  extracted.json
```
`job.toml` is written first and reserves the set's number. `extracted.json` is written last and marks the set
as complete.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.metric_tables import HostMetrics, Metric, check_patterns
from bai_agent.job.descriptor.restart_tables import Elastic, Restart
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.descriptor_file import parse_job
from bai_agent.job.record import JobRecord, NodeRecord, Stream
from bai_agent.job.record_types import ExtractionSummary, GenerationOutcome
from bai_agent.job.run_directory import RunDir, read_json, write_json
from bai_agent.light_dataclass import dataclass, replace
from bai_agent.run.extractor import ExtractorProcess
from bai_agent.sinks.job_store.stream import StreamUpload, UploadOffset
from executor.backends.local.folder_store import check_own
from executor.errors import ExtractError, UsageError
from executor.owned_folders import scratch_folder
from executor.planning.job_toml import job_toml
from executor.records.counted_values import repeat_lines
from executor.records.generations import generations_in
from executor.records.reading import events_of, node_result, result_of

_PIECE = 8 << 20
_SCRATCH = ".extract-"
_LOG_TAIL = 2000
"""Number of characters at the end of the extractor's own log that an error message shows."""


@dataclass(frozen=True)
class NodeExtract:
    """The result for the log of one node."""

    number: int
    attempt: int
    rank: int
    summary: dict[str, Any]
    """The content of `extracted.json`."""

    def as_table(self) -> dict[str, Any]:
        return {"number": self.number, "attempt": self.attempt, "rank": self.rank, **self.summary}


def stream_of(number: int) -> Stream:
    """Return the stream with the records of a set."""
    return f"extracts/{number}/metrics"


def complete_sets(node: NodeRecord) -> list[int]:
    """Return the numbers of the complete sets of a node. Raises StoreError."""
    store, place = node.job.store, node.key("extracts/")
    numbers = (int(each) for each in store.folders(place) if each.isdecimal())
    return sorted(each for each in numbers if store.find(f"{place}{each}/extracted.json"))


def searched_nodes(record: JobRecord) -> list[NodeRecord]:
    """Return the nodes whose log was saved. Only a saved log can be searched again. Raises StoreError."""
    return [each for each in record.nodes() if each.size("log")]


def chosen_set(record: JobRecord, wanted: str) -> tuple[Job, int]:
    """Return the job descriptor and the number of a set of extracted records. wanted: the number of the set,
    or "last".

    Only sets that are complete on all nodes are considered. Raises UsageError, StoreError, DescriptorError.
    """
    nodes = searched_nodes(record) or [record.node()]
    numbers = sorted(set.intersection(*(set(complete_sets(each)) for each in nodes)))
    if wanted == "last" and numbers:
        return _job_of_set(nodes[0], numbers[-1]), numbers[-1]
    if wanted in map(str, numbers):
        return _job_of_set(nodes[0], int(wanted)), int(wanted)
    there = f"there are {', '.join(map(str, numbers))}" if numbers else "`bai extract` makes one"
    raise UsageError(
        f'--extract: {record.job_id} has no complete set "{wanted}" of extracted records; {there}'
    )


def extract_again(
    record: JobRecord, metrics: Sequence[Metric] | None, *, on_progress: Callable[[str], None]
) -> Iterator[NodeExtract]:
    """Search the saved logs of all nodes for `metrics` (None: the job's own metrics); yield a result for each
    node. `on_progress` is called with warnings. Raises ExtractError, StoreError, and UsageError if the job
    belongs to another user, has not ended or has no saved log.
    """
    if record.store.folder is not None:
        check_own(record.store.folder, record.job_id)
    result = result_of(record)
    if result is None:
        raise UsageError(
            f"{record.job_id} has not ended: its numbers are still being extracted, and `bai metrics` shows them"
        )
    job = record.job()
    job = replace(
        job,
        metrics=job.metrics if metrics is None else tuple(metrics),
        # Metrics from result files cannot be extracted again, because the benchmark's result files are gone.
        results=(),
        host_metrics=HostMetrics(enabled=False),
        kafka=None,
    )
    if not job.metrics:
        raise UsageError(
            f"{record.job_id} has no metrics to look for; name a file that has [[output.metrics]] with --descriptor"
        )
    try:
        check_patterns(job.metrics, labels=job.job.labels)
    except ValueError as error:
        raise UsageError(f"{record.job_id}: {error}") from error
    nodes = searched_nodes(record)
    if not nodes:
        raise UsageError(f"{record.job_id} has no log, because its benchmark printed nothing or never ran")
    number = _claim(nodes[0], job_toml(job).encode())
    for node in nodes:
        _warn_of_missing_log(node, on_progress)
        yield _extract_node(node, job, number)


def _job_of_set(node: NodeRecord, number: int) -> Job:
    """Return the job descriptor with the metrics of a set. Raises StoreError, DescriptorError."""
    name = f"extracts/{number}/job.toml"
    return parse_job(node.job.store.get(node.key(name)), where=node.url(name))


def _claim(node: NodeRecord, descriptor: bytes) -> int:
    """Reserve an unused number for a new set. Numbers of interrupted extractions count as used."""
    store = node.job.store
    taken = [int(each) for each in store.folders(node.key("extracts/")) if each.isdecimal()]
    number = max(taken, default=0) + 1
    while not store.put(node.key(f"extracts/{number}/job.toml"), descriptor, if_absent=True):
        number += 1
    return number


def _warn_of_missing_log(node: NodeRecord, on_progress: Callable[[str], None]) -> None:
    """Warn if the saved log is incomplete, because the benchmark truncated the log or the store did not
    receive the whole log."""
    extracted = _extraction_of(node)
    printed = extracted.log_bytes + extracted.remaining_bytes if extracted is not None else 0
    kept = node.size("log")
    if kept < printed:
        on_progress(
            f"node {node.rank}: of the {printed:,} bytes that were printed, the last {kept:,} are kept"
        )


def _extraction_of(node: NodeRecord) -> ExtractionSummary | None:
    """Return the summary of the extraction that ran on this node during the run. Raises StoreError,
    RecordError."""
    attempt = AttemptRecord(node.job, node.attempt)
    if node.rank in attempt.ended():
        # The result of a job of several nodes covers all nodes together, so the node's own outcome is read
        # instead.
        return attempt.node_outcome(node.rank).metrics
    result = node_result(node)
    return result.metrics if result is not None else None


def _extract_node(node: NodeRecord, job: Job, number: int) -> NodeExtract:
    store, place = node.job.store, node.key(f"extracts/{number}")
    descriptor = job_toml(job).encode()
    # The saved log contains the output of all processes together.
    generations = _generations_of(node) if job.has_generations else []
    strategy = StrategyTable(min_nodes=1 if generations else None)
    if job.server is not None:
        strategy = job.strategy
    whole = job_toml(
        replace(job, strategy=strategy, restart=Restart(), elastic=Elastic(), checkpoint=None)
    ).encode()
    near = store.folder / node.job.job_id if store.folder is not None else None
    try:
        # For a job on this machine, the temporary files are on the disk with the job's folder, which has more
        # space than /tmp.
        with ExitStack() as stack:
            folder = scratch_folder(_SCRATCH, near=near, stack=stack)
            rundir = RunDir(folder)
            rundir.job.write_bytes(whole)
            _bring_log(node, rundir)
            if job.repeat is not None:
                rundir.repeats.write_bytes(repeat_lines(node))
            _write_ends(rundir, generations)
            # Records extracted here are marked like records after a restart of the agent: the lines were not
            # read at the time when the benchmark printed them.
            rundir.extractor_offset.write_bytes(b"{}\n")
            summary = _extract(rundir, job, node=node.rank)
            store.put(f"{place}/job.toml", descriptor)
            upload = StreamUpload(
                rundir.metrics,
                reached=UploadOffset(),
                put=lambda start, content: _put(node, f"{place}/metrics/{start:020}.jsonl", content),
                save=lambda reached: None,
                whole_lines=True,
            )
            while upload.send():
                continue
    except OSError as error:
        where = error.filename or near or tempfile.gettempdir()
        raise ExtractError(
            f"{where}: {error.strerror}; the log is extracted on this machine, and the log of a job elsewhere in the "
            "folder that TMPDIR names"
        ) from error
    store.put(f"{place}/extracted.json", json.dumps(summary).encode() + b"\n")
    return NodeExtract(number, node.attempt, node.rank, summary)


def _generations_of(node: NodeRecord) -> Sequence[GenerationOutcome]:
    """Return the position of each generation in a node's log. For a lost node, which has written no result,
    the positions are read from the node's events. Raises StoreError, RecordError."""
    attempt = AttemptRecord(node.job, node.attempt)
    if node.rank in attempt.ended():
        # The result of a job of several nodes covers all nodes together, but the positions in the result are
        # in one node's log.
        told = attempt.node_outcome(node.rank).generations
    else:
        result = node_result(node) if node.job.job().strategy.nodes == 1 else None
        told = result.generations if result is not None else None
    return told or generations_in(events_of(node))


def _write_ends(rundir: RunDir, generations: Sequence[GenerationOutcome]) -> None:
    """Write the files that record the end of the benchmark or of each generation."""
    if not generations:
        rundir.exit.write_bytes(b"{}\n")
        return
    for each in generations:
        own = rundir.of_generation(each.generation)
        own.shim_folder.mkdir(parents=True, exist_ok=True)
        own.decision.write_bytes(b"{}\n")
        process = {
            "shim_pid": 1,
            "shim_start": 0,
            "pid": 1,
            "start": 0,
            "boot_id": "",
            "time": each.started or 0,
        }
        write_json(own.started, {**process, "output_bytes": each.output_begin})
        write_json(own.exit, {"output_bytes": each.output_end, "time": each.ended})
    rundir.end.parent.mkdir(exist_ok=True)
    write_json(rundir.end, {})


def _put(node: NodeRecord, key: str, content: bytes) -> None:
    node.job.store.put(key, content)


def _bring_log(node: NodeRecord, rundir: RunDir) -> None:
    store = node.job.store
    if store.folder is not None:
        kept = RunDir(store.folder / node.place).kept_output
        if kept.exists() and kept.stat().st_size == node.size("log"):
            rundir.output.symlink_to(kept)
            return
    position = 0
    with rundir.output.open("wb") as file:
        while piece := node.read("log", position, limit=_PIECE):
            file.write(piece)
            position += len(piece)


def _extract(rundir: RunDir, job: Job, *, node: int) -> dict[str, Any]:
    """Run the extractor in the same way as during a run: each search has a time limit, and the extractor is
    restarted if it fails."""
    extractor = ExtractorProcess(rundir, node=node)
    # The job's secrets are not known here and cannot be redacted, so a warning must not quote the benchmark's
    # output.
    extractor.start(secrets=None if job.benchmark.secrets else ())
    try:
        done = extractor.wait(lambda: False)
    finally:
        extractor.stop()
    summary = read_json(rundir.extracted)
    if not done or summary is None:
        words = (
            rundir.agent_log.read_text("utf-8", "replace")[-_LOG_TAIL:] if rundir.agent_log.exists() else ""
        )
        raise ExtractError(f"the extractor made no progress and was ended:\n{words}")
    return summary
