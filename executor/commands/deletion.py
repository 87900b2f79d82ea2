"""Commands that delete what lies on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.durations import parse_duration
from bai_agent.job.outcome import ExitCode
from bai_agent.job.run_directory import now_ms
from executor.commands.job_options import JobOptions
from executor.commands.options import JsonOption, StoreOption, label_values, print_json, say
from executor.errors import UsageError
from executor.view.text import tell

# What only one command needs is imported there: `bai --help` and each completion in a shell load this module.
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bai_agent.job.store.directory import DirectoryStore


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Since its end: "30d", "12h".')
    ] = "30d",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="KEY=VALUE", help="Not jobs with this label; can be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask on a terminal.")] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete old jobs, and virtual environments long unused.

    Never a job that runs. On a terminal it shows what would go, and asks first. Exit code 5 if one cannot be deleted.
    """
    from executor.backends.local.job_store import store_at

    try:
        age = parse_duration(older_than)
    except ValueError as error:
        raise UsageError(f"--older-than: {error}") from error
    pruning = _Pruning(
        store=store_at(store, exists=True),
        before_ms=now_ms() - round(age.total_seconds() * 1000),
        keep=label_values(keep, option="--keep"),
    )
    asks = not (dry_run or yes or json_) and sys.stdin.isatty() and sys.stderr.isatty()
    if asks:
        what = pruning.run(dry_run=True, json_=False)
        if what is None:
            say("nothing to delete")
            return
        if not typer.confirm(f"Delete {what}?", err=True):
            say("nothing was deleted")
            return
    what = pruning.run(dry_run=dry_run, json_=json_, silent=asks)
    say(f"{what or 'nothing'} {'would be deleted' if dry_run else 'deleted'}")
    if pruning.failed:
        raise typer.Exit(ExitCode.OURS)


@dataclass
class _Pruning:
    """What `bai prune` is asked to delete."""

    store: DirectoryStore
    before_ms: int
    keep: Mapping[str, str]
    failed: int = 0

    def run(self, *, dry_run: bool, json_: bool, silent: bool = False) -> str | None:
        """Delete, or only look; print each thing unless `silent`. Return what all of it is and takes; None if there is nothing."""
        from bai_agent.benchmark.venv_cache import venv_cache
        from executor.jobs.prune import prune_jobs, prune_venvs
        from executor.quantities import size

        def on_failure(why: str) -> None:
            self.failed += 1
            say(why)

        jobs = prune_jobs(
            self.store,
            before_ms=self.before_ms,
            dry_run=dry_run,
            keep=self.keep,
            left=(lambda why: None) if silent else say,
            on_failure=on_failure,
        )
        cache = venv_cache(os.environ)
        venvs = prune_venvs(cache, before_ms=self.before_ms, dry_run=dry_run, on_failure=on_failure)
        counts, total = {"job": 0, "virtual environment": 0}, 0
        for kind, found in (("job", jobs), ("virtual environment", venvs)):
            for each in found:
                counts[kind], total = counts[kind] + 1, total + each.bytes
                if json_:
                    key = "job_id" if kind == "job" else "venv"
                    print_json({key: each.job_id, "bytes": each.bytes, "deleted": not dry_run})
                elif not silent:
                    tell(f"{'' if kind == 'job' else f'{kind} '}{each.job_id}  {size(each.bytes)}")
        parts = [f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items() if count]
        return f"{' and '.join(parts)}, {size(total)}," if parts else None


def rm(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help='Job ids, or the beginnings of some; "last" and "last:NAME" too.'
        ),
    ],
    options: JobOptions,
    json_: JsonOption = False,
) -> None:
    """Delete jobs of this machine that have ended.

    Records, logs, metrics and artifacts. A job that runs is refused; nothing is deleted unless all are found.
    """
    from executor.jobs.prune import remove_job
    from executor.quantities import size

    for record in [options.find(each) for each in jobs]:
        freed = remove_job(record)
        if json_:
            print_json({"job_id": record.job_id, "bytes": freed, "deleted": True})
        else:
            tell(f"{record.job_id}  {size(freed)}")
