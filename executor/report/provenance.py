"""What a job ran on, and all that is needed to run it again."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator

from bai_agent.job.descriptor import Git, Job, Source, SourceKind
from bai_agent.job.record_types import GitCommit
from executor.quantities import size
from executor.report.contents import Report
from executor.report.markup import Cell, escaped, escaped_lines, pairs, table
from executor.view.environment import environment_lines

_NODES = 64
_PASSING = frozenset({"load", "instance"})
"""Lines of a node's environment that differ on equal machines, or name the machine itself."""


def environment_section(report: Report) -> Iterator[str]:
    """Yield what the nodes ran on: first in what they differ, then what they share."""
    yield '<h2 id="environment">What it ran on</h2>'
    known = [each for each in report.environments if each.environment is not None]
    if not known:
        why = report.environments[0].trouble if report.environments else "no agent of this job has started"
        yield f'<p class="soft">Not known: {escaped(why or "")}</p>'
        return
    lines = {each.rank: _lines_of(list(environment_lines(each))) for each in known}
    labels = list(dict.fromkeys(label for each in lines.values() for label in each))
    shared: list[tuple[str, dict[int, str]]] = []
    differing: list[tuple[str, dict[int, str]]] = []
    for label in labels:
        values = {rank: each.get(label, "–") for rank, each in lines.items()}
        (shared if len(set(values.values())) == 1 else differing).append((label, values))
    # What may explain a difference of results comes before what only passes.
    differing.sort(key=lambda each: each[0] in _PASSING)
    if differing:
        yield from pairs(
            f"In what the {len(known)} nodes differ",
            [
                (
                    escaped(label),
                    "<br>".join(
                        f"node {rank}: {escaped(text)}" for rank, text in list(values.items())[:_NODES]
                    ),
                )
                for label, values in differing
            ],
        )
    caption = (
        f"The same on all {len(known)} nodes"
        if len(known) > 1
        else "The machine, just before the benchmark began"
    )
    yield from pairs(
        caption, [(escaped(label), escaped(next(iter(values.values())))) for label, values in shared]
    )


def _lines_of(found: list[tuple[str, str]]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for label, text in found:
        if label != "warning":  # they stand at the page's head
            lines[label] = f"{lines[label]}; {text}" if label in lines else text
    return lines


def repeat_section(report: Report) -> Iterator[str]:
    """Yield what is needed to repeat the job."""
    job = report.job
    yield '<h2 id="repeat">To repeat it</h2>'
    yield f"<pre>{escaped(again(report))}</pre>"
    yield from pairs("Where it came from", [(name, escaped(text)) for name, text in origin(report)])
    if job.sources:
        heads: list[Cell] = [("", "source"), ("text", "to"), ("n", "size"), ("text", "checksum")]
        yield from table("What was pulled", heads, [_source_row(each, job) for each in job.sources])
    yield "<details><summary>the job descriptor, as the agents had it</summary>"
    yield f"<pre>{escaped_lines(report.descriptor)}</pre></details>"


def again(report: Report) -> str:
    """Return the command that repeats a job."""
    repeat = report.job.repeat
    if not report.of_two_files or repeat is None:
        return shlex.join(["bai", "run", "--like", report.job.job.id])
    # With `until` the number of runs is a bound, which the files say.
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
    """Yield what a job was made of: name and text."""
    job, result = report.job, report.result
    if job.benchmark.script is not None:
        yield (
            "command",
            "a script of the descriptor"
            + (f", with {shlex.join(job.benchmark.argv)}" if job.benchmark.argv else ""),
        )
    else:
        yield "command", shlex.join(job.benchmark.argv)
    for key, text in job.set.items():
        yield f"--set {key}", text
    arms = job.repeat.arms if job.repeat is not None else ()
    git = result.git if result is not None and result.git is not None else job.git
    commits: dict[str, Git | GitCommit | None] = {
        f"git of {each.name}": each.git for each in arms if each.git is not None
    }
    for name, commit in (commits or {"git": git}).items():
        if commit is not None:
            dirty = ", with uncommitted changes" if commit.dirty else ""
            yield name, f"{commit.commit}{f' ({commit.branch})' if commit.branch else ''}{dirty}"
    for source in job.sources:
        if source.kind is SourceKind.SCRIPTS:
            of = f" of {source.arm}" if source.arm else ""
            sums = [each.scripts_sha256 for each in arms if each.name == source.arm]
            digest = source.sha256 or next(iter(sums), None)
            yield f"scripts{of}", f"SHA-256 {digest}" if digest else source.src
    if job.benchmark.secrets:
        yield "secrets", f"{', '.join(job.benchmark.secrets)}: looked up where it runs, never kept"
    yield "record", f"{report.record.store.url}/{report.record.job_id}"


def checksum(source: Source) -> str:
    """Return what a source is checked by."""
    if source.sha256 is not None:
        return f"SHA-256 {source.sha256}"
    return f"MD5 {source.md5}" if source.md5 is not None else "none"


def _source_row(source: Source, job: Job) -> list[Cell]:
    known = size(source.size) if source.size is not None else "–"
    return [
        ("", escaped(source.src)),
        ("text", escaped(f"{source.path} of {source.arm}" if source.arm else source.path)),
        ("n", known),
        ("text", escaped(checksum(source))),
    ]
