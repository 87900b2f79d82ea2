"""Texts about a job that has ended: facts for its status and its report, the summary on one screen, and the
table of generations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Git
from bai_agent.job.outcome import ExitCode, signal_name
from bai_agent.job.record_types import (
    BenchmarkExit,
    CheckpointSummary,
    GenerationOutcome,
    GitCommit,
    HeadlineValue,
    JobResult,
    KafkaDelivery,
    OwnUsage,
)
from bai_agent.light_dataclass import replace
from executor.documents.document import (
    Block,
    Code,
    Column,
    Fact,
    Facts,
    Notes,
    OutcomeLine,
    Paragraph,
    Phrase,
    Table,
    Title,
)
from executor.documents.job_view import JobView, phase_words
from executor.documents.machines import node_table, peak_words, warning_facts
from executor.documents.metrics import metric_notes, metric_table, over_runs_table, spread_table, unseen_notes
from executor.documents.screen import Screen
from executor.quantities import amount, counted, seconds, size
from executor.records.counted_values import headline_floors
from executor.records.generations import RUNNING, change_seconds, headline_names
from executor.records.over_ranks import over_ranks, spreads
from executor.records.series import Series

_LAST_LINES = 10
_GENERATIONS = 12
_GENERATION_METRICS = 2
"""Largest number of rows, and of metrics with a column, in the table of generations on a screen."""
_ROWS = 30
"""Largest number of metrics in the summary on a screen."""


def result_outcome(result: JobResult) -> OutcomeLine:
    """Return the line that says how a job ended."""
    if result.exit_code == ExitCode.SUCCEEDED:
        return OutcomeLine(result.sentence, "good")
    return OutcomeLine(result.sentence, "bad", f"({result.outcome}: bai's exit code is {result.exit_code})")


def result_facts(result: JobResult) -> Iterator[Fact]:
    """Yield all facts of a job's result except its outcome. Warnings come last."""
    if result.benchmark is not None and (words := list(_benchmark_words(result.benchmark, result))):
        yield Fact("benchmark", " · ".join(words))
    if result.git is not None:
        yield Fact("git", commit_words(result.git, digits=12))
    if result.kafka is not None:
        yield _kafka_fact(result.kafka)
    for sentence in transport_sentences(result.transports):
        yield Fact("transport", sentence)
    if result.checkpoints is not None:
        yield Fact("checkpoints", checkpoint_words(result.checkpoints))
    yield from _replaced(result)
    for warning in result.warnings or ():
        yield Fact("warning", warning, "caution")


def _replaced(result: JobResult) -> Iterator[Fact]:
    if result.replaced:
        several = "s" if len(result.replaced) > 1 else ""
        yield Fact("replaced", f"node{several} {', '.join(map(str, result.replaced))}")


def checkpoint_words(checkpoints: CheckpointSummary) -> str:
    """Return as text how many checkpoints were saved and restored, with their size and the time that this
    took."""
    parts = []
    if checkpoints.kept:
        parts.append(
            f"{checkpoints.kept:,} kept, {size(checkpoints.bytes)} in {seconds(checkpoints.seconds)}"
        )
    if checkpoints.restored:
        times = "once" if checkpoints.restored == 1 else f"{checkpoints.restored:,} times"
        took = f"{size(checkpoints.restored_bytes)} in {seconds(checkpoints.restore_seconds)}"
        parts.append(f"restored {times}{f', {took}' if checkpoints.restored_bytes else ''}")
    if checkpoints.newest is not None:
        parts.append(f"newest {checkpoints.newest}")
    return " · ".join(parts) or "none kept"


def last_lines(result: JobResult) -> Iterator[Block]:
    """Yield the last output lines of a failed benchmark."""
    if result.exit_code and (lines := list(result.last_lines or ())[-_LAST_LINES:]):
        yield Paragraph("the benchmark's last lines", "soft")
        yield Code("\n".join(line.replace("\n", " ") for line in lines), log=True)


def transport_sentences(transports: Mapping[str, Sequence[str]] | None) -> Iterator[str]:
    """Yield a sentence per library about the network transports that it reported."""
    for library, uses in (transports or {}).items():
        yield f"{library}: {', '.join(uses)}"


def commit_words(git: Git | GitCommit, *, digits: int | None = None) -> str:
    """Return the Git commit of the benchmark as text. digits: number of digits of the hash that are shown;
    None for all."""
    branch = f" ({git.branch})" if git.branch else ""
    return f"{git.commit[:digits]}{branch}{', with uncommitted changes' if git.dirty else ''}"


def _benchmark_words(benchmark: BenchmarkExit, result: JobResult) -> Iterator[str]:
    if result.generations is not None and len(result.generations) > 1:
        yield f"generation {result.generations[-1].generation}"
    if benchmark.exec_error:
        yield "never ran"
    elif benchmark.signal is not None:
        yield signal_name(benchmark.signal)
    elif benchmark.code:
        yield f"exit code {benchmark.code}"
    for label in ("wall", "user", "system"):
        if (time := getattr(benchmark, f"{label}_seconds")) is not None:
            yield f"{label} {seconds(time)}"
    yield from _memory_words(benchmark, result.own_usage or ())


def _memory_words(benchmark: BenchmarkExit, usage: Sequence[OwnUsage]) -> Iterator[str]:
    largest, tree = benchmark.peak_memory_bytes or 0, benchmark.tree_peak_memory_bytes or 0
    if largest:
        yield f"peak memory {peak_words(largest, usage)} (largest process)"
    # The peak of all processes leaves out file pages that were already in memory, but the peak of a single
    # process includes them.
    if tree > largest:
        yield f"{size(tree)} (all processes, with cached files)"


def _kafka_fact(kafka: KafkaDelivery) -> Fact:
    delivered = f"{kafka.delivered or 0:,} messages delivered"
    if not kafka.undelivered:
        return Fact("kafka", delivered)
    why = f" ({kafka.error})" if kafka.error else ""
    return Fact("kafka", f"{delivered}, {kafka.undelivered:,} not delivered{why}", "caution")


def show_summary(console: Console, job_view: JobView, *, unicode: bool = True) -> None:
    """Print the summary of a job that has ended."""
    Screen(width=console.width, unicode=unicode).show(console, summary_blocks(job_view))


def summary_blocks(job_view: JobView) -> Iterator[Block]:
    """Yield the outcome, the last output lines of a failed benchmark, timings, metrics, and where the files
    are."""
    result = job_view.result
    yield Title(job_view.job_id, ruled=True)
    if result is not None:
        yield from last_lines(result)
        yield result_outcome(result)
    yield Facts(list(_facts(job_view)))
    yield from _metrics(job_view)
    yield generations_of_result(job_view.job, result)
    yield Facts(list(_places(job_view)))


def _facts(job_view: JobView) -> Iterator[Fact]:
    result = job_view.result
    took = {**((result and result.phases) or {}), **job_view.state.finished}
    yield Fact("phases", phase_words(took))
    if result is not None:
        yield from result_facts(result)
    more = job_view.command("status", "-v", job_view.job_id)
    yield from warning_facts(job_view.machine_warnings, more=more)
    if malformed := job_view.measurements.malformed.count:
        text = f"{malformed:,} lines of the job's metrics are not metric records and were skipped"
        yield Fact("warning", text, "caution")


def _places(job_view: JobView) -> Iterator[Fact]:
    yield Fact("files", job_view.place, copied=True)
    kept = job_view.result.artifacts if job_view.result is not None else None
    if kept is not None and kept.files:
        files = f"{counted(kept.files, 'file')}, {size(kept.bytes)}"
        where = f", kept in {job_view.artifacts}" if job_view.artifacts else ""
        yield Fact("artifacts", files + where, copied=True)
    more = (job_view.command(word, job_view.job_id) for word in ("logs", "metrics"))
    yield Fact("more", " · ".join(more), copied=True)


def _metrics(job_view: JobView) -> Iterator[Block]:
    measured = job_view.measurements
    empty = [each for each in measured.benchmark.values() if not each.count]
    every = over_ranks((each for each in measured.benchmark.values() if each.count), measured.over_ranks)
    seen, apart = spreads(every)
    more = job_view.command("metrics", job_view.job_id)
    yield replace(metric_table(seen[:_ROWS], final=True), more=more, hidden=max(0, len(seen) - _ROWS))
    yield replace(spread_table(apart), more=more)
    yield node_table(measured.host)
    yield replace(over_runs_table(job_view.over_runs), more=more)
    yield metric_notes(seen[:_ROWS])
    # An empty series causes no note if its node is no longer a member and other nodes continued the series.
    go_on = {each.without_ranks for each in measured.benchmark.values() if each.count}
    notes = (
        text
        for each in empty
        if not (each.of_earlier and each.without_ranks in go_on)
        for text in _why_empty(each)
    )
    yield Notes([Phrase(text, "caution") for text in notes])
    yield unseen_notes([each.name for each in empty if not each.seen], job_view.result)
    if job_view.partial:
        yield Paragraph(f"of the first {measured.records:,} records; all: {more}", "soft")


def _why_empty(series: Series) -> Iterator[str]:
    if series.of_failed:
        yield f"{series.name}: all its values ({series.of_failed:,}) are of runs that failed"
    elif series.of_earlier:
        yield f"{series.name}: all its values ({series.of_earlier:,}) are of earlier generations"
    elif series.left_out:
        yield f"{series.name}: all its values ({series.left_out:,}) are warm-up"


def generations_of_result(job: Job, result: JobResult | None) -> Table:
    """Return the generations of an ended job."""
    found = (result.generations if result is not None else None) or []
    headlines = {name: each for one in found for name, each in one.headlines.items()}
    floors = headline_floors(job, headlines, result.own_usage if result is not None else None)
    return generations_table(found, metrics=_GENERATION_METRICS, most=_GENERATIONS, floors=floors)


def generations_table(
    found: Sequence[GenerationOutcome], *, metrics: int, most: int, floors: Mapping[str, float] | None = None
) -> Table:
    """Return a table with a row per generation. The table is empty if the job has only one generation.
    metrics: number of metrics with a column. most: largest number of rows; the last generations are shown.
    floors: values up to which headlines are only bounds, by metric with labels.
    """
    if len(found) < 2:
        return Table([], [])
    named = headline_names(found)[:metrics]
    shares = [name for name in named if any(_per_node(each, name) is not None for each in found)]
    of_nodes = any(len(each.members) > 1 for each in found)
    columns = [Column("generation"), *([Column("nodes", pointed=False, drops=3)] if of_nodes else [])]
    columns += [Column("time", pointed=False, drops=4), Column("before it", pointed=False, drops=5)]
    for name in named:
        columns.append(Column(name, drops=6))
        columns += [Column("per node", drops=7)] if name in shares else []
    columns.append(Column("end", number=False, wraps=True))
    rows = []
    for each in found[-most:]:
        cells = [str(each.generation), *([members_words(each.members)] if of_nodes else [])]
        cells += [_seconds(each.wall_seconds), _seconds(each.gap_seconds)]
        cells += _headline_cells(each, named, shares, floors or {})
        rows.append([Phrase(text or "–") for text in (*cells, _generation_end(each))])
    last = f", the last {most:,}" if len(found) > most else ""
    changes = f"{seconds(change_seconds(found))} between generations in which nothing ran"
    return Table(columns, rows, f"{len(found):,} generations{last}, and {changes}")


def members_words(members: Sequence[int]) -> str:
    """Return as text how many members a generation has and their node numbers, for example "4: 0–2, 5"."""
    if not members:
        return ""
    spans: list[list[int]] = []
    for node in sorted(members):
        if spans and node == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], node]
        else:
            spans.append([node])
    listed = ", ".join("–".join(map(str, span)) for span in spans)
    return f"{len(members)}: {listed}"


def _headline_cells(
    each: GenerationOutcome, named: Sequence[str], shares: Sequence[str], floors: Mapping[str, float]
) -> Iterator[str]:
    for name in named:
        headline = each.headlines.get(name)
        yield amount(headline.value, headline.units, floor=floors.get(name)) if headline is not None else ""
        if name in shares:
            share = _per_node(each, name)
            yield amount(share, headline.units) if headline is not None and share is not None else ""


def _per_node(each: GenerationOutcome, name: str) -> float | None:
    headline: HeadlineValue | None = each.headlines.get(name)
    return headline.per_node if headline is not None else None


def _seconds(value: float | None) -> str:
    return seconds(value) if value is not None else ""


def _generation_end(each: GenerationOutcome) -> str:
    return "it runs" if each.outcome == RUNNING else each.sentence
