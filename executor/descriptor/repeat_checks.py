"""Checks of `[repeat]` against the rest of the descriptor."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from bai_agent.job.descriptor import OfRun
from executor.descriptor.command_checks import is_script
from executor.descriptor.preset_checks import preset_metrics
from executor.descriptor.raw_table import ERROR, WARNING, Raw, RawFinding, Where, at, items, text_of
from executor.descriptor.secret_values import looks_secret

STEPS = ("prepare", "cleanup")


def repeats(table: Raw) -> Iterator[RawFinding]:
    """Check that the number of runs is said, that the metric of `until` is known, and that the strategy can repeat."""
    repeat = at(table, "repeat")
    if not repeat:
        return
    strategy = text_of(at(table, "hardware"), "strategy") or "single_node"
    nodes = at(table, "hardware", "distributed").get("num_instances")
    if strategy == "torchrun" and type(nodes) is int and nodes > 1 and repeat.get("keep_going") is True:
        yield (
            ("repeat", "keep_going"),
            "does not work with torchrun on several nodes: where a run fails on one of them, the others may wait for it for ever",
            "remove it: the first run that fails then ends the job",
            ERROR,
        )
    if "runs" not in repeat and "until" not in repeat:
        fix = 'write runs = 10, or until = "2%" with the metric whose interval it is about'
        yield ("repeat", "runs"), "is missing: nothing says how many runs there are", fix, ERROR
    if "min_runs" in repeat and "max_time" not in repeat:
        fix = 'add max_time = "1m", or write runs alone'
        yield ("repeat", "min_runs"), "is for max_time, which is not there", fix, ERROR
    runs, least = repeat.get("runs"), repeat.get("min_runs")
    if type(runs) is int and type(least) is int and least > runs:
        yield ("repeat", "min_runs"), f"is more than runs, {runs}", "lower it, or raise runs", ERROR
    yield from _metric(table, repeat)
    yield from _arms(repeat)
    yield from _steps(("repeat",), repeat)
    for where, arm in items(table, "repeat", "arms"):
        yield from _steps(where, arm)


def _steps(where: Where, table: Raw) -> Iterator[RawFinding]:
    """Check the commands before and after a run."""
    for step in STEPS:
        text = text_of(table, step)
        if is_script(text):
            if text.lstrip().startswith("#!"):
                fix = "leave that line out, as /bin/sh runs several lines, or name a file of [ml.script]"
                yield (*where, step), "starts with #!, and is no file of its own", fix, ERROR
            continue
        try:
            empty = step in table and isinstance(table[step], str) and not shlex.split(text)
        except ValueError:
            fix = "close each quote, or write several lines between three quotes ''', which /bin/sh runs"
            yield (*where, step), "cannot be split into arguments: a quote is never closed", fix, ERROR
        else:
            if empty:
                yield (*where, step), "is empty", "write a command, or remove the key", ERROR


def _arms(repeat: Raw) -> Iterator[RawFinding]:
    arms = [arm for _, arm in items(repeat, "arms")]
    if not arms:
        return
    names = [text_of(each, "name") for each in arms]
    if len(arms) < 2 or len(set(names)) < len(names):
        fix = "write two or more tables [[repeat.arms]], each with a name of its own"
        yield ("repeat", "arms"), "compares two arms or more", fix, ERROR
    for key in ("runs", "warmup_runs"):
        count = repeat.get(key)
        if type(count) is int and count % len(arms):
            problem = f"{count} runs cannot be shared equally by {len(arms)} arms"
            more = count + len(arms) - count % len(arms)
            yield ("repeat", key), problem, f"write {more}: each arm does {more // len(arms)} of them", ERROR
    for index, arm in enumerate(arms):
        for name, value in at(arm, "vars").items():
            why = looks_secret(name, value) if isinstance(value, str) else None
            if why:
                fix = f'put it into [env.secrets]: {name} = "env:{name}" takes it from your environment where it runs'
                yield ("repeat", "arms", index, "vars", name), f"its value {why}", fix, ERROR


def _metric(table: Raw, repeat: Raw) -> Iterator[RawFinding]:
    named = text_of(repeat, "metric")
    metrics = [metric for _, metric in items(table, "output", "metrics")]
    if "until" not in repeat:
        if named:
            yield ("repeat", "metric"), "is for until, which is not there", "add until, or remove it", WARNING
        return
    of_presets = preset_metrics(table)
    known = [*(text_of(each, "name") for each in metrics), *(each.name for each in of_presets)]
    if named:
        if named not in known and named not in {each.value for each in OfRun}:
            fix = f"write one of: {', '.join(known)}" if known else "add the metric under [[output.metrics]]"
            yield ("repeat", "metric"), f'"{named}" is none of [[output.metrics]]', fix, ERROR
        return
    ranked = [text_of(each, "name") for each in metrics if text_of(each, "better")]
    ranked += [each.name for each in of_presets if each.better]
    if len(ranked) != 1:
        fix = 'write metric = "…", the name of the metric whose interval until is about'
        found = "no metric has" if not ranked else f"{len(ranked)} metrics have"
        yield ("repeat", "metric"), f"is missing, and {found} better", fix, ERROR
