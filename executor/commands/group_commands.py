"""The parts of commands that handle a group of jobs. `[matrix]` in a descriptor defines a group."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bai_agent.errors import BaiError
from bai_agent.job.record import JobRecord
from bai_agent.job.run_directory import write_atomic
from executor.commands.job_options import JobOptions
from executor.commands.printing import exit_code_of, print_done, print_findings, print_json, say
from executor.documents.screen import show_blocks
from executor.documents.text import tell
from executor.errors import UsageError
from executor.jobs.job_group import GroupRecord

# Modules for a run and for a comparison are imported in functions, because `bai status` needs neither.
if TYPE_CHECKING:
    from executor.descriptor import Descriptor
    from executor.jobs.group_comparison import GroupComparison, GroupView
    from executor.jobs.resolved_request import FetchedScripts
    from executor.planning.request import JobRequest


def run_group(job_request: JobRequest, options: JobOptions, *, group_id: str | None, json_: bool) -> int:
    """Create the group that `job_request` describes, and run it. Return the worst exit code of the group's
    jobs. If the group exists already, it is continued."""
    from executor.jobs.resolved_request import FetchedScripts
    from executor.signals import SignalError, raised_signals

    with FetchedScripts() as fetched:
        try:
            with raised_signals():
                group, there = _make_group(job_request, options, fetched, group_id=group_id)
        except SignalError as interrupted:
            say("interrupted before a job was started")
            return interrupted.exit_code
        return _follow_group(group, there, fetched, json_=json_)


def _make_group(
    job_request: JobRequest, options: JobOptions, fetched: FetchedScripts, *, group_id: str | None
) -> tuple[GroupRecord, JobOptions]:
    """Create the group that `job_request` describes, unless its store already has the group. Return the
    group, and the options with which commands find it."""
    from executor.jobs.resolved_request import fetched_digest, resolved_request
    from executor.planning.matrix import matrix_plan
    from executor.planning.request import check_id, read_file
    from executor.planning.requested_job import new_job_id

    if group_id is not None:
        check_id(group_id)
    descriptor, _ = read_file(job_request)
    drawn = group_id or new_job_id(job_request, descriptor)
    backend = options.backends.of_request(job_request, descriptor)
    there = options.for_submitted(backend)
    group = GroupRecord(backend.submission_store(), drawn)

    def resolve(given: JobRequest, descriptor: Descriptor) -> JobRequest:
        with resolved_request(given, descriptor, options, job_id=None, fetched=fetched) as (resolved, _):
            return resolved

    # All jobs of the group use the same artifacts and scripts, even if newer ones appear while the group
    # runs.
    digest = partial(fetched_digest, fetched=fetched, leave_out=group.left_out)
    plan, findings = matrix_plan(job_request, drawn, resolve=resolve, digest=digest)
    print_findings(findings)
    if JobRecord(group.store, drawn).exists():
        raise UsageError(f'"{drawn}" is a job; give the group another --job-id')
    if not group.create(plan) and group.first_plan() != plan:
        raise UsageError(
            f'the group "{drawn}" exists already and runs something else than {job_request.file} with these options; '
            f"give another --job-id, or none; `{there.command('resume', drawn)}` continues the group"
        )
    say(f"the group {drawn} has {len(plan.jobs)} jobs, {plan.max_parallel} at a time")
    return group, there


def plan_group(job_request: JobRequest, options: JobOptions, *, group_id: str | None, json_: bool) -> None:
    """Print the combinations of a group, each with the maximum cost of a job. Nothing is created."""
    from executor.documents.group_document import plan_blocks
    from executor.jobs.resolved_request import FetchedScripts, resolved_request
    from executor.planning.matrix import matrix_plan
    from executor.planning.request import UNDRAWN_ID, read_request

    plan, findings = matrix_plan(job_request, group_id or UNDRAWN_ID)
    print_findings(findings)
    rows = []
    with FetchedScripts() as fetched:
        for jobs in plan.combinations:
            request = plan.job_request(jobs[0])
            descriptor = read_request(request)[0]
            backend = options.backends.of_request(request, descriptor)
            with (
                resolved_request(request, descriptor, options, job_id=None, fetched=fetched) as resolved,
                backend.plan(*resolved, job_id=jobs[0].job_id, on_progress=say) as planned,
            ):
                if (refusal := planned.refusal()) is not None:
                    say(f"{jobs[0].words}: {refusal}")
                table = planned.table()
                rows.append((jobs[0].words, len(jobs), table["cost"]["usd"] if backend.remote else None))
            if json_:
                print_json({"set": dict(jobs[0].set), "jobs": len(jobs), "plan": table})
    if not json_:
        show_blocks(plan_blocks(rows, max_cost=plan.max_cost))


def continue_group(group: GroupRecord, options: JobOptions, *, json_: bool) -> int:
    """Run a group to its end, and print the comparison of its combinations. Return the worst exit code of the
    group's jobs."""
    from executor.jobs.resolved_request import FetchedScripts

    with FetchedScripts() as fetched:
        return _follow_group(group, options, fetched, json_=json_)


def _follow_group(group: GroupRecord, options: JobOptions, fetched: FetchedScripts, *, json_: bool) -> int:
    from executor.jobs.group_comparison import NOT_STARTED, REFUSED
    from executor.jobs.group_run import GroupListener, GroupRun
    from executor.view.watch import Interrupts, LeftError

    plan = group.plan()
    try:
        with Interrupts() as interrupts:
            listener = GroupListener(
                on_status=say, exit_code=exit_code_of, cancelling=lambda: interrupts.count > 0
            )
            run = GroupRun(group=group, plan=plan, scope=options, listener=listener, fetched=fetched)
            code = run.run()
    except LeftError as left:
        # After Ctrl-C, the group has been cancelled, or is just being cancelled.
        word, effect = ("cancel", "asks them to end") if interrupts.count > 1 else ("resume", "continues")
        next_step = f"`{options.command(word, group.group_id)}` {effect}"
        say(f"no longer following; the running jobs go on, and no further one starts: {next_step}")
        return left.exit_code
    compared = group_comparison(group, options)
    _print(compared, json_=json_)
    if not compared.view.cancelled and any(
        each.word in (NOT_STARTED, REFUSED) for each in compared.view.jobs
    ):
        say(f"`{options.command('resume', group.group_id)}` starts the jobs that were not started")
    return code


def group_status(group: GroupRecord, options: JobOptions, *, wait: bool, json_: bool) -> None:
    """Print the jobs of a group."""
    from executor.documents.group_document import group_blocks

    if wait:
        raise UsageError(
            f"--wait is for one job; `{options.command('resume', group.group_id)}` follows the group {group.group_id} to its end"
        )
    view = _view(group, options)
    if json_:
        print_json(view.as_table())
    else:
        show_blocks(group_blocks(view))


def cancel_group(group: GroupRecord, options: JobOptions, *, now: bool, json_: bool) -> None:
    """Prevent further jobs of a group from starting, and ask its running jobs to end. Raises the first error
    if a request to a job fails."""
    first = group.cancel()
    running = [
        each for each in _view(group, options).jobs if each.status is not None and each.status.outcome is None
    ]
    errors: list[BaiError] = []
    for each in running:
        record = group.job(each.job.job_id)
        try:
            print_done(record, options.backends.of(record).cancel(record, now=now), json_=json_)
        except BaiError as error:
            errors.append(error)
    done = "no further job of the group starts" if first else "it was cancelled before"
    print_done(JobRecord(group.store, group.group_id), done, json_=json_)
    for also in errors[1:]:
        say(str(also))
    if errors:
        raise errors[0]


def compare_group(group: GroupRecord, options: JobOptions, *, output: Path | None, json_: bool) -> None:
    """Print a comparison with a row for each combination of a group."""
    compared = group_comparison(group, options)
    _print(compared, json_=json_)
    if output is not None:
        write_page(compared, "html", output)
        say(f"{output} shows the group")


def group_comparison(group: GroupRecord, options: JobOptions) -> GroupComparison:
    """Return the comparison of a group's combinations. Raises StoreError, RecordError."""
    from executor.jobs.group_comparison import compared_group

    return compared_group(_view(group, options))


def write_page(compared: GroupComparison, form: str, output: Path | None) -> None:
    """Write the report of a group to `output`, or to standard output if `output` is None. Raises UsageError
    for a format that groups do not support."""
    from executor.documents.group_document import combination_blocks, job_blocks
    from executor.report.html import html_page
    from executor.report.markdown import markdown_page

    blocks = [*combination_blocks(compared), *job_blocks(compared.view)]
    title = compared.view.group.group_id
    if form == "csv":
        raise UsageError("--format csv is for one job; a group has html, md and json")
    text = (
        json.dumps(compared.as_table(), ensure_ascii=True) + "\n"
        if form == "json"
        else html_page(title, blocks)
        if form == "html"
        else markdown_page(title, blocks)
    )
    if output is None:
        tell(text, end="")
    else:
        write_atomic(output, text.encode())


def _view(group: GroupRecord, options: JobOptions) -> GroupView:
    from executor.jobs.group_comparison import group_view

    records = [group.job(each.job_id) for each in group.plan().jobs]
    there = [each for each in records if each.exists()]
    backend = options.backends.of(JobRecord(group.store, group.group_id))
    return group_view(group, {each.job_id: each for each in backend.statuses(there)})


def _print(compared: GroupComparison, *, json_: bool) -> None:
    from executor.documents.group_document import combination_blocks

    if json_:
        print_json(compared.as_table())
    else:
        show_blocks(combination_blocks(compared))
