"""Makes the sections of a report about the machines of a job, and about how to run the job again."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Arm, Git
from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.record_types import GitCommit
from executor.documents.document import (
    Block,
    Code,
    Column,
    Fact,
    Facts,
    PageOnly,
    Paragraph,
    Phrase,
    Table,
)
from executor.documents.machines import environment_facts
from executor.documents.summary import commit_words
from executor.quantities import size
from executor.report.contents import Report

_NODES = 64
_PASSING = frozenset({"load", "instance"})
"""Facts that differ even between machines of the same kind, or that identify a single machine."""


def environment_blocks(report: Report) -> Iterator[Block]:
    """Yield the facts about the nodes: first facts in which nodes differ, then the common facts."""
    known = {each.rank: each for each in report.environments if each.environment is not None}
    if not known:
        why = report.environments[0].trouble if report.environments else "no agent of this job has started"
        yield Paragraph(f"Not known: {why or ''}", "soft")
        return
    lines = {rank: _lines_of(environment_facts(each)) for rank, each in known.items()}
    shared: list[Fact] = []
    differing: list[list[Fact]] = []
    for label in dict.fromkeys(chain.from_iterable(lines.values())):
        texts = [each.get(label, "–") for each in lines.values()]
        if len(set(texts)) == 1:
            shared.append(Fact(label, texts[0]))
        else:
            named = zip(lines, texts, strict=True)
            differing.append([Fact(label, f"node {rank}: {text}") for rank, text in named][:_NODES])
    # Differences that may explain results come before differences that vary from run to run.
    differing.sort(key=lambda each: each[0].label in _PASSING)
    if differing:
        yield Facts(list(chain(*differing)), f"Differences between the {len(known)} nodes")
    several = f"The same on all {len(known)} nodes"
    yield Facts(shared, several if len(known) > 1 else "The machine, just before the benchmark began")


def _lines_of(facts: Iterable[Fact]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for label, text, *_ in facts:
        if label != "warning":  # Warnings are left out, because the head of the page already shows them.
            lines[label] = f"{lines[label]}; {text}" if label in lines else text
    return lines


def repeat_blocks(report: Report) -> Iterator[Block]:
    """Yield the command that repeats the job, and the job's inputs."""
    yield Code(again(report))
    yield Facts([Fact(*each) for each in origin(report)], "Where it came from")
    if sources := report.job.sources:
        heads = [
            Column("source"),
            Column("to", number=False),
            Column("size"),
            Column("checksum", number=False),
        ]
        yield PageOnly([Table(heads, [_source_row(each) for each in sources], "What was pulled")])
    yield PageOnly([Code(report.descriptor)], "the job descriptor, as the agents had it")


def again(report: Report) -> str:
    """Return the command that repeats a job."""
    repeat = report.job.repeat
    if not report.of_two_files or repeat is None:
        return shlex.join(["bai", "run", "--like", report.job.job.id])
    # With `until`, the number of runs is only a maximum, and the descriptor files already contain it.
    arms = len(repeat.arms)
    each = (
        ("--runs", str(repeat.runs // arms))
        if repeat.until is None
        else ("--until", f"{100 * repeat.until:g}%")
    )
    files = [f"{string.ascii_uppercase[i % 26]}.toml" for i in range(arms)]
    overrides = [word for key, text in report.job.set.items() for word in ("--set", f"{key}={text}")]
    return shlex.join(["bai", "ab", *files, *each, "--seed", str(repeat.seed), *overrides])


def origin(report: Report) -> Iterator[tuple[str, str]]:
    """Yield name and text of each input of a job."""
    job = report.job
    yield "command", _command(job)
    for key, text in job.set.items():
        yield f"--set {key}", text
    for name, commit in _commits(report):
        yield name, commit_words(commit)
    for source in job.sources:
        if source.kind is SourceKind.SCRIPTS:
            yield _scripts(source, report)
    if job.benchmark.secrets:
        yield (
            "secrets",
            f"{', '.join(job.benchmark.secrets)}: looked up on the machine that runs the job, never stored",
        )
    yield "record", f"{report.record.store.url}/{report.record.job_id}"


def _command(job: Job) -> str:
    words = shlex.join(job.benchmark.argv)
    if job.benchmark.script is None:
        return words
    return "a script of the descriptor" + (f", with {words}" if words else "")


def _commits(report: Report) -> Iterator[tuple[str, Git | GitCommit]]:
    """Yield the commits of the arms, or the commit of the job."""
    found = [(f"git of {each.name}", each.git) for each in _arms(report.job) if each.git is not None]
    if found:
        yield from found
        return
    measured = report.result.git if report.result is not None else None
    if (git := measured or report.job.git) is not None:
        yield "git", git


def _scripts(source: Source, report: Report) -> tuple[str, str]:
    of = f" of {source.arm}" if source.arm else ""
    sums = (each.scripts_sha256 for each in _arms(report.job) if each.name == source.arm)
    digest = source.sha256 or next(sums, None)
    return f"scripts{of}", f"SHA-256 {digest}" if digest else source.src


def _arms(job: Job) -> Sequence[Arm]:
    return job.repeat.arms if job.repeat is not None else ()


def checksum(source: Source) -> str:
    """Return the checksum of a source as text."""
    if source.sha256 is not None:
        return f"SHA-256 {source.sha256}"
    return f"MD5 {source.md5}" if source.md5 is not None else "none"


def _source_row(source: Source) -> list[Phrase]:
    known = size(source.size) if source.size is not None else "–"
    where = f"{source.path} of {source.arm}" if source.arm else source.path
    return [Phrase(text) for text in (source.src, where, known, checksum(source))]
