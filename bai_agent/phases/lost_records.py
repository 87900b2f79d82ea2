"""Reads the values that lost nodes measured. The leader reads the values from the lost nodes' records in the
job store, because a lost node cannot report values."""

from __future__ import annotations

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bai_agent.errors import StoreError
from bai_agent.job.descriptor import Job
from bai_agent.job.outcome import Outcome
from bai_agent.job.record import NodeRecord
from bai_agent.job.record_types import ExtractionSummary, GenerationOutcome, NodeOutcome
from bai_agent.job.run_directory import now_ms
from bai_agent.light_dataclass import replace
from bai_agent.metrics.headlines import Headlines

log = logging.getLogger(__name__)

_MOST_BYTES = 64 * 2**20
"""Largest size of a lost node's records (bytes). Larger records are not read."""
_PIECE = 4 * 2**20


def outcomes_of_lost(
    job: Job,
    nodes: Iterable[NodeRecord],
    heard: Sequence[NodeOutcome],
    *,
    members: Mapping[int, Sequence[int]],
    folder: Path,
    over: Callable[[], bool],
) -> list[NodeOutcome]:
    """Return an outcome for each lost node in `nodes`, with the values that the node measured. Values are
    read until `over()` returns True. An outcome has a warning if values of the node are missing.

    heard: outcomes of the other nodes. members: the members of each generation, by its number.
    """
    starts: dict[int | None, int] = {}
    for each in (each for node in heard for each in node.generations or ()):
        if each.started is not None:
            starts[each.generation] = min(each.started, starts.get(each.generation, each.started))
    found = []
    for node in nodes:
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix=f"lost-{node.rank}-") as file:
                _copy(node, Path(file.name), over=over)
                found.append(_outcome(job, node.rank, Path(file.name), starts, members=members, over=over))
        except (OSError, StoreError) as error:
            log.warning("the values of node %d are not in the result: %s", node.rank, error)
            missing = f"The values of this node are not in the result: {error}."
            found.append(replace(_nothing_of(node.rank), warnings=[missing]))
    return found


def _copy(node: NodeRecord, path: Path, *, over: Callable[[], bool]) -> None:
    """Copy the records of a node from the store to `path`. Raises OSError or StoreError, for example if no
    time is left or the records are too large."""
    position = 0
    with path.open("wb") as file:
        while piece := node.read("metrics", position, limit=_PIECE):
            position += len(piece)
            if over():
                raise StoreError("no time was left to read the records of the node")
            if position > _MOST_BYTES:
                raise StoreError(f"the records of the node have more than {_MOST_BYTES:,} bytes")
            file.write(piece)


def _outcome(
    job: Job,
    rank: int,
    path: Path,
    starts: dict[int | None, int],
    *,
    members: Mapping[int, Sequence[int]],
    over: Callable[[], bool],
) -> NodeOutcome:
    headlines = Headlines(job.named_metrics(), started=starts.get, restarts=True)
    headlines.miss()
    found = headlines.values(path, of_several_nodes=True, stopping=over)
    records, counts = _counts(job, path)
    presets = {metric.preset for metric in job.metrics if metric.preset is not None}
    seen = {metric.preset for metric in job.metrics if counts.get(metric.name)}
    return replace(
        _nothing_of(rank),
        metrics=ExtractionSummary(
            records=records,
            per_metric=counts,
            headlines=found.of_job,
            required_missing=[each.name for each in job.metrics if each.required and not counts[each.name]],
            empty_presets=sorted(presets - seen),
            # The lost node's result files were not read.
            results_missing=[each.path for each in job.results if not each.required],
            required_results_missing=[each.path for each in job.results if each.required],
        ),
        generations=[
            GenerationOutcome(
                generation=number,
                outcome=Outcome.PEER_LOST.value,
                members=list(members.get(number, ())),
                headlines=each,
            )
            for number, each in found.of_generations.items()
        ],
    )


def _nothing_of(rank: int) -> NodeOutcome:
    return NodeOutcome(
        rank=rank, outcome=Outcome.PEER_FAILED.value, sentence=f"Node {rank} was lost.", ended=now_ms()
    )


def _counts(job: Job, path: Path) -> tuple[int, dict[str, int]]:
    """Return the number of records in the file, and the number of records of each metric of the job."""
    found: Counter[bytes] = Counter()
    with path.open("rb") as file:
        # These markers cannot occur within a text of a record, because quotes are escaped there.
        found.update(
            line.partition(b',"name":')[2].partition(b',"value":')[0] for line in file if line.endswith(b"\n")
        )
    named = {metric.name: found[json.dumps(metric.name).encode()] for metric in job.metrics}
    return found.total(), named
