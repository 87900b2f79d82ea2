"""`bai logs`: the output of a job's benchmark, and the consoles of its machines."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from bai_agent.job.record import JobRecord
from executor.commands.job_options import JobOptions
from executor.commands.options import JobArgument, JsonOption
from executor.commands.printing import print_json, say
from executor.documents.text import safe_line, tell
from executor.errors import UsageError

# `bai --help` and each shell completion load this module, so modules that the command needs are imported in
# its function.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bai_agent.job.record import NodeRecord
    from executor.view.log import LogView, RawLog


def logs(
    job: JobArgument,
    options: JobOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Print only this number of last lines.")
    ] = None,
    boot: Annotated[
        bool, typer.Option("--boot", help="For a job on EC2: print the consoles of its machines instead.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option("--node", metavar="R", min=0, help="Log of the node with this rank; by default 0."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Logs of all nodes, each line with its node's rank.")
    ] = False,
    repeat: Annotated[
        int | None,
        typer.Option("--repeat", metavar="N", min=0, help="With [repeat]: only the run with this number."),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Print the output of a job's benchmark.

    For a job with several nodes, prints the log of the first node by default. For an elastic job, prints the
    log of the node that currently has rank 0.
    """
    from executor.jobs.stream import pieces_of_repeat
    from executor.records.nodes import NodeListing, node_of_rank

    others = {"--follow": follow, "--lines": lines is not None, "--boot": boot, "--all": every}
    if rank is not None and every:
        raise UsageError("--node and --all exclude each other; write one of them")
    if repeat is not None and any(others.values()):
        given = " and ".join(name for name, is_given in others.items() if is_given)
        raise UsageError(f"--repeat prints the whole output of one run; leave out {given}")
    record = options.find(job)
    node = record.node() if rank is None else node_of_rank(record, rank)
    if boot:
        _print_consoles(record, options, rank=rank, json_=json_)
        return
    listing = NodeListing(record)
    if rank is None and not every and not json_ and not listing.is_elastic and sys.stderr.isatty():
        _say_of_other_nodes(len(listing.look()))
    with _log_view(json_=json_, follow=follow, with_ranks=every) as view:
        if repeat is not None:
            for piece in pieces_of_repeat(node, repeat):
                view.feed(piece)
        elif rank is None and not every and listing.is_elastic:
            _print_leads(view, record, options, follow=follow, lines=lines)
        else:
            shown = listing.look if every else lambda: [node]
            _print_logs(view, shown, options, follow=follow, lines=lines, with_ranks=every)


def _log_view(*, json_: bool, follow: bool, with_ranks: bool) -> LogView | RawLog:
    from executor.view.log import LogView, RawLog

    if not json_ and not sys.stdout.isatty():
        return RawLog(follow=follow, with_ranks=with_ranks)
    return LogView(json_=json_, follow=follow, with_ranks=with_ranks)


def _print_logs(
    view: LogView | RawLog,
    list_nodes: Callable[[], Sequence[NodeRecord]],
    options: JobOptions,
    *,
    follow: bool,
    lines: int | None,
    with_ranks: bool,
) -> None:
    """Print the logs of nodes. lines: number of last lines that are printed; None for all."""
    from executor.jobs.stream import pieces_of_nodes, position_of_last_lines
    from executor.records.follower import TRUNCATED

    nodes = list_nodes()
    positions = (
        {each.rank: position_of_last_lines(each, lines) for each in nodes} if lines is not None else {}
    )

    def on_truncated(rank: int) -> None:
        view.print_rests(rank)
        say(f"node {rank}: {TRUNCATED}" if with_ranks else TRUNCATED)

    for rank, piece in pieces_of_nodes(
        nodes,
        "log",
        positions=positions,
        follow=follow,
        on_truncated=on_truncated,
        on_status=partial(_say_between, view),
        backends=options.backends,
        again=list_nodes,
    ):
        view.feed(piece, rank)


def _print_leads(
    view: LogView | RawLog, record: JobRecord, options: JobOptions, *, follow: bool, lines: int | None
) -> None:
    """Print the log of the node that has rank 0 in an elastic job. When another node gets rank 0, a message
    says so."""
    from executor.jobs.stream import pieces_of_leads
    from executor.records.follower import TRUNCATED

    def say_after_rest(sentence: str) -> None:
        view.print_rests()
        say(sentence)

    for rank, piece in pieces_of_leads(
        record,
        lines=lines,
        follow=follow,
        on_lead=lambda lead: say_after_rest(f"output {lead.sentence}"),
        on_truncated=lambda node: say_after_rest(f"node {node}: {TRUNCATED}"),
        on_status=partial(_say_between, view),
        backends=options.backends,
    ):
        view.feed(piece, rank)


def _say_between(view: LogView | RawLog, sentence: str) -> None:
    with view.paused():
        say(sentence)


def _say_of_other_nodes(count: int) -> None:
    if count > 1:
        say(f"this is node 0 of {count}; --node R shows another one, --all shows all of them")


def _print_consoles(record: JobRecord, options: JobOptions, *, rank: int | None, json_: bool) -> None:
    for each in options.backends.of(record).consoles(record, on_status=say):
        if rank is not None and each.node != rank:
            continue
        if json_:
            print_json({"instance_id": each.instance_id, "state": each.state, "console": each.text})
            continue
        tell(f"== {each.instance_id} ({each.state}), node {each.node}")
        print("\n".join(safe_line(line) for line in each.text.splitlines()) or "(its console is empty)")
