"""Commands that change the size of jobs, end jobs, release their machines, and delete jobs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.outcome import ExitCode
from bai_agent.light_dataclass import dataclass
from executor.commands.job_options import JobOptions, label_values, time_ago
from executor.commands.options import JobArgument, JsonOption, StoreOption
from executor.commands.printing import print_done, print_result, say

# `bai --help` and each shell completion load this module, so modules that only one command needs are imported
# in its function.
if TYPE_CHECKING:
    from collections.abc import Mapping

    from bai_agent.job.store.directory import DirectoryStore


def cancel(
    job: JobArgument,
    options: JobOptions,
    now: Annotated[
        bool,
        typer.Option("--now", help="Terminate a job's machines on EC2 at once; unsent data is lost."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Ask a job to end.

    The job's benchmark gets SIGTERM, and after limits.grace SIGKILL. If the agent of a job on this machine
    has died, the agent is restarted to end the job. For a group of jobs, no further job starts, and the
    running jobs are asked to end.
    """
    from executor.jobs.job_group import GroupNamedError

    try:
        record = options.find(job)
    except GroupNamedError as named:
        from executor.commands.group_commands import cancel_group

        cancel_group(named.group, options, now=now, json_=json_)
        return
    print_done(record, options.backends.of(record).cancel(record, now=now), json_=json_)


def scale(
    job: JobArgument,
    nodes: Annotated[int, typer.Argument(metavar="N", min=1, help="The new number of nodes.")],
    options: JobOptions,
    json_: JsonOption = False,
) -> None:
    """Change the number of nodes of an elastic job while it runs.

    The job ends its processes, and starts new processes on N nodes. The old processes have limits.grace to
    save their state. N must be within the range of hardware.distributed.num_instances. Nodes with the highest
    numbers leave; a new node gets a number that no node had before.
    """

    record = options.find(job)
    print_done(record, options.backends.of(record).scale(record, nodes), json_=json_)


def release(job: JobArgument, options: JobOptions, json_: JsonOption = False) -> None:
    """Release the machines that a job keeps.

    These are machines on EC2 that keep_on_failure or keep_after keeps for inspection. The released machines
    power off within a minute.
    """

    record = options.find(job)
    print_done(record, options.backends.of(record).release(record), json_=json_)


def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Time since the job ended, such as "12h".')
    ] = "30d",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="KEY=VALUE", help="Keep jobs with this label; can be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    store: StoreOption = None,
    json_: JsonOption = False,
) -> None:
    """Delete old jobs, and old virtual environments.

    A running job is never deleted. On a terminal, the command shows what would be deleted, and asks for
    confirmation. Exit code 5 if a job cannot be deleted.
    """
    from executor.backends.local.folder_store import store_at

    before_ms = time_ago("--older-than", older_than)
    pruning = _Pruning(
        store=store_at(store, exists=True),
        before_ms=before_ms,
        keep=label_values(keep, option="--keep"),
    )
    asks = not (dry_run or yes or json_) and sys.stdin.isatty() and sys.stderr.isatty()
    if asks and not _confirmed(pruning):
        return
    what = pruning.run(dry_run=dry_run, json_=json_, silent=asks)
    say(f"{what or 'nothing'} {'would be deleted' if dry_run else 'deleted'}")
    if pruning.failed:
        raise typer.Exit(ExitCode.OURS)


def _confirmed(pruning: _Pruning) -> bool:
    """Show what would be deleted, and ask for confirmation. Return the answer."""
    what = pruning.run(dry_run=True, json_=False)
    if what is None:
        say("nothing to delete")
        return False
    agreed: bool = typer.confirm(f"Delete {what}?", err=True)
    if not agreed:
        say("nothing was deleted")
    return agreed


@dataclass
class _Pruning:
    """Carries out one call of `bai prune`."""

    store: DirectoryStore
    before_ms: int
    keep: Mapping[str, str]
    failed: int = 0

    def run(self, *, dry_run: bool, json_: bool, silent: bool = False) -> str | None:
        """Delete the jobs and environments, or only list them. Each job and environment is printed unless
        `silent`. Return the number and total size of jobs and environments as text; None if there are
        none."""
        from bai_agent.requirements.venv_cache import venv_cache
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
        parts, total = [], 0
        for kind, key, found in (("job", "job_id", jobs), ("virtual environment", "venv", venvs)):
            name = "" if kind == "job" else f"{kind} "
            count = 0
            for each in found:
                count, total = count + 1, total + each.bytes
                table = {key: each.job_id, "bytes": each.bytes, "deleted": not dry_run}
                if json_ or not silent:
                    print_result(table, f"{name}{each.job_id}  {size(each.bytes)}", json_=json_)
            parts += [f"{count:,} {kind}{'' if count == 1 else 's'}"] if count else []
        return f"{' and '.join(parts)}, {size(total)}," if parts else None


def rm(
    jobs: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help='Job ids, beginnings of job ids, "last" or "last:NAME".'),
    ],
    options: JobOptions,
    json_: JsonOption = False,
) -> None:
    """Delete ended jobs of this machine.

    Deletes the records, logs, metrics and artifacts of the jobs. A running job is not deleted. If one of the
    named jobs is not found, nothing is deleted.
    """
    from executor.jobs.prune import remove_job
    from executor.quantities import size

    for record in [options.find(each) for each in jobs]:
        freed = remove_job(record)
        table = {"job_id": record.job_id, "bytes": freed, "deleted": True}
        print_result(table, f"{record.job_id}  {size(freed)}", json_=json_)
