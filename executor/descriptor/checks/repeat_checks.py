"""Checks of `[repeat]` against the rest of the descriptor."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from bai_agent.job.descriptor.metric_tables import OfRun
from bai_agent.job.descriptor.strategy_tables import TOGETHER_STRATEGIES
from executor.descriptor.checks.command_checks import is_script
from executor.descriptor.checks.machine_checks import node_range
from executor.descriptor.checks.metric_checks import preset_metrics
from executor.descriptor.checks.secret_values import looks_secret, secret_fix
from executor.descriptor.raw_table import (
    Raw,
    RawFinding,
    Where,
    at,
    error,
    items,
    text_at,
    warning,
    written_strategy,
)

STEPS = ("prepare", "cleanup")


def repeats(table: Raw) -> Iterator[RawFinding]:
    """Check `[repeat]`: the number of runs, the metric of `until`, the arms, the commands, and what the strategy can repeat."""
    repeat = at(table, "repeat")
    if not repeat:
        return
    yield from _keep_going(table, repeat)
    yield from _ray(table)
    yield from _counts(repeat)
    yield from _until_metric(table, repeat) if "until" in repeat else _unused_metric(repeat)
    yield from _arms(repeat)
    yield from _steps(("repeat",), repeat)
    for where, arm in items(table, "repeat", "arms"):
        yield from _steps(where, arm)
        for name, value in at(arm, "vars").items():
            if (why := looks_secret(name, value)) is not None:
                yield error((*where, "vars", name), f"its value {why}", secret_fix(name))


def _keep_going(table: Raw, repeat: Raw) -> Iterator[RawFinding]:
    strategy = written_strategy(table)
    if repeat.get("keep_going") is not True or strategy not in TOGETHER_STRATEGIES:
        return
    if (nodes := node_range(table)) is not None and nodes.most > 1:
        yield error(
            ("repeat", "keep_going"),
            f"cannot be used with {strategy} on several nodes: after a failed run on one node, the other nodes may wait for ever",
            "remove it: the first run that fails then ends the job",
        )


def _ray(table: Raw) -> Iterator[RawFinding]:
    nodes = node_range(table)
    # Without the table the job has one machine.
    if written_strategy(table) != "ray" or "distributed" not in at(table, "hardware"):
        return
    if nodes is None or nodes.most > 1:
        problem = "cannot be used with ray on several machines, because the other machines join Ray only once"
        yield error(("repeat",), problem, "remove it, or write num_instances = 1")


def _counts(repeat: Raw) -> Iterator[RawFinding]:
    if "runs" not in repeat and "until" not in repeat:
        fix = 'write runs = 10, or until = "2%" and the metric whose interval `until` uses'
        yield error(("repeat", "runs"), "is missing, so the number of runs is unknown", fix)
    if "min_runs" in repeat and "max_time" not in repeat:
        fix = 'add max_time = "1m", or write runs without min_runs'
        yield error(("repeat", "min_runs"), "has an effect only with max_time, which is missing", fix)
    runs, least = repeat.get("runs"), repeat.get("min_runs")
    if type(runs) is int and type(least) is int and least > runs:
        yield error(("repeat", "min_runs"), f"is greater than runs, {runs}", "lower min_runs, or raise runs")


def _steps(where: Where, table: Raw) -> Iterator[RawFinding]:
    """Check the commands before and after a run."""
    for step in STEPS:
        if step in table and isinstance(table[step], str):
            yield from _step((*where, step), table[step])


def _step(where: Where, text: str) -> Iterator[RawFinding]:
    if is_script(text):
        if text.lstrip().startswith("#!"):
            fix = "remove the #! line, because /bin/sh runs the script; or name a file of [ml.script]"
            yield error(where, "starts with a #! line, which has an effect only in a file", fix)
        return
    try:
        words = shlex.split(text)
    except ValueError:
        fix = "close each quote, or write several lines between three quotes ''', which /bin/sh runs"
        yield error(where, "cannot be split into arguments: a quote is never closed", fix)
        return
    if not words:
        yield error(where, "is empty", "write a command, or remove the key")


def _arms(repeat: Raw) -> Iterator[RawFinding]:
    arms = [arm for _, arm in items(repeat, "arms")]
    if not arms:
        return
    if len(arms) < 2 or len({text_at(each, "name") for each in arms}) < len(arms):
        fix = "write two or more tables [[repeat.arms]], each with a name of its own"
        yield error(("repeat", "arms"), "needs two or more arms with different names", fix)
    for key in ("runs", "warmup_runs"):
        count = repeat.get(key)
        if type(count) is int and count % len(arms):
            problem = f"{count} is not a multiple of {len(arms)}, the number of arms"
            more = count + len(arms) - count % len(arms)
            fix = f"write {more}, so that each arm gets {more // len(arms)} runs"
            yield error(("repeat", key), problem, fix)


def _unused_metric(repeat: Raw) -> Iterator[RawFinding]:
    if text_at(repeat, "metric"):
        problem = "has an effect only with until, which is missing"
        yield warning(("repeat", "metric"), problem, "add until, or remove metric")


def _until_metric(table: Raw, repeat: Raw) -> Iterator[RawFinding]:
    """Check that the metric of `until` is defined or, if none is named, that exactly one metric has
    `better`."""
    place, named = ("repeat", "metric"), text_at(repeat, "metric")
    known = {
        text_at(metric, "name"): bool(text_at(metric, "better"))
        for _, metric in items(table, "output", "metrics")
    }
    known |= {each.name: each.better is not None for each in preset_metrics(table)}
    if named in known or named in {each.value for each in OfRun}:
        return
    if named:
        fix = f"write one of: {', '.join(known)}" if known else "add the metric under [[output.metrics]]"
        yield error(place, f'"{named}" is not defined in [[output.metrics]]', fix)
    elif (ranked := sum(known.values())) != 1:
        fix = 'write metric = "…", the name of the metric whose interval `until` uses'
        found = "no metric has" if not ranked else f"{ranked} metrics have"
        yield error(place, f"is missing, and {found} the key better", fix)
