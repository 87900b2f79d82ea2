"""Checks of a range of machines, `[elastic]`, `[restart]` and `[checkpoint]` against the rest of the descriptor."""

from __future__ import annotations

from collections.abc import Iterator

from bai_agent.job.schema.declared import MistakeError
from executor.descriptor.raw_table import Raw, RawFinding, at, error, items, text_at, warning
from executor.descriptor.values import NodeRange, read_node_range

_MACHINES = ("hardware", "distributed", "num_instances")
_MAX_RESTARTS = ("restart", "max_restarts")
_OF_TORCHRUN = ("hardware", "distributed", "max_restarts")


def node_range(table: Raw) -> NodeRange | None:
    """Return the requested number of machines; None if the key is missing or wrong."""
    try:
        return read_node_range(at(table, *_MACHINES[:-1]).get(_MACHINES[-1]))
    except MistakeError:
        return None


def elastic(table: Raw) -> Iterator[RawFinding]:
    """Check that `[elastic]` fits the range of machines, and is not used with `[repeat]`."""
    machines = node_range(table)
    if machines is not None and machines.least is not None:
        yield from _of_range(table, machines, machines.least)
    elif is_replaced(table):
        yield from _of_one_machine(table)
    elif "elastic" in table and (machines is not None or _MACHINES[-1] not in at(table, *_MACHINES[:-1])):
        problem = "is for a range of machines, and hardware.distributed.num_instances is " + (
            f"{machines}" if machines is not None else "missing"
        )
        yield error(("elastic",), problem, 'write num_instances = "2:4", or remove the table')


def adaptdl(table: Raw) -> Iterator[RawFinding]:
    """Check that a job of AdaptDL has a range of machines, and a folder of checkpoints that is copied to all of them."""
    if at(table, "hardware").get("strategy") != "adaptdl":
        return
    machines = node_range(table)
    if machines is None or machines.least is None:
        is_missing = _MACHINES[-1] not in at(table, *_MACHINES[:-1])
        if is_missing or machines is not None:
            problem = f"is {'missing' if is_missing else machines}, and adaptdl runs on a range of machines"
            many = machines.most if machines is not None else 4
            yield error(_MACHINES, problem, f'write num_instances = "1:{many}"')
        if "repeat" in table:
            problem = "is not for adaptdl: its runs would not have the same number of machines"
            yield error(("repeat",), problem, "remove it")
    if at(table, "checkpoint").get("shared") is True:
        problem = (
            "is not for adaptdl, which reads and writes one folder: each generation would have another one"
        )
        yield error(("checkpoint", "shared"), problem, "remove it: the folder is copied to all machines")


def size_policy(table: Raw) -> Iterator[RawFinding]:
    """Check that goodput is used with AdaptDL, whose benchmarks give hints."""
    strategy = at(table, "hardware").get("strategy", "single_node")
    if at(table, "elastic").get("policy") == "goodput" and strategy != "adaptdl":
        problem = f'is "goodput", which needs AdaptDL\'s hints, and hardware.strategy is {strategy}'
        yield error(("elastic", "policy"), problem, 'remove it, or write strategy = "adaptdl"')


def is_replaced(table: Raw) -> bool:
    """Return whether the job is one machine that may be replaced by others."""
    is_single = at(table, "hardware").get("strategy", "single_node") == "single_node"
    return is_single and "replacements" in at(table, "elastic")


def _of_one_machine(table: Raw) -> Iterator[RawFinding]:
    if "repeat" in table:
        problem = "is not for a benchmark with [repeat]: a run on another machine measures something else"
        yield error(("elastic", "replacements"), problem, "remove one of them")
    wanted = at(table, "elastic").get("nodes")
    if type(wanted) is int and wanted != 1:
        problem = f"{wanted} machines are too many for the strategy single_node"
        yield error(("elastic", "nodes"), problem, "remove it")


def _of_range(table: Raw, machines: NodeRange, least: int) -> Iterator[RawFinding]:
    wanted = at(table, "elastic").get("nodes")
    if type(wanted) is int and not least <= wanted <= machines.most:
        problem = f"{wanted} machines are outside the range {machines} of hardware.distributed.num_instances"
        yield error(("elastic", "nodes"), problem, f"write a number from {least} to {machines.most}")
    if "repeat" in table:
        problem = f'"{machines}" is not for a benchmark with [repeat]: its runs would not have the same number of machines'
        yield error(_MACHINES, problem, "write one number, or remove [repeat]")


def checkpoints(table: Raw) -> Iterator[RawFinding]:
    """Check that `[checkpoint]` is not used with `[repeat]`, and that its keys have an effect."""
    if "checkpoint" not in table:
        return
    checkpoint = at(table, "checkpoint")
    if "repeat" in table:
        problem = "is not for a benchmark with [repeat]: a run that continues another one measures nothing"
        yield error(("checkpoint",), problem, "remove one of them")
    if checkpoint.get("shared") is True and "every" in checkpoint:
        problem = "is for copies of the folder, and nothing is copied with shared = true"
        yield warning(("checkpoint", "every"), problem, "remove it")
    yield from _shared_folder(table)


def _shared_folder(table: Raw) -> Iterator[RawFinding]:
    """Warn of a folder on a file system of all nodes, to which each of them would copy the checkpoints of the first."""
    checkpoint, machines = at(table, "checkpoint"), node_range(table)
    if checkpoint.get("shared") is True or machines is None or machines.most == 1:
        return
    path, own = text_at(checkpoint, "path"), "name a folder that each node has for itself"
    fix = own if at(table, "hardware").get("strategy") == "adaptdl" else f"add shared = true, or {own}"
    for _, mount in items(table, "mounts"):
        target = text_at(mount, "target")
        if target and f"{path}/".startswith(f"{target}/"):
            problem = f"is on the file system at {target}, which all nodes share, and each would restore the same files there"
            yield warning(("checkpoint", "path"), problem, fix)


def restarts(table: Raw) -> Iterator[RawFinding]:
    """Check that the job can be restarted, and that only one key says how often."""
    wanted = [
        where
        for where in (_MAX_RESTARTS, _OF_TORCHRUN)
        if _is_positive(at(table, *where[:-1]).get(where[-1]))
    ]
    if "repeat" in table:
        for where in wanted:
            problem = "is not for a benchmark with [repeat]: a run that was restarted measures nothing"
            yield error(where, problem, "remove one of them")
    if len(wanted) > 1:
        yield error(_OF_TORCHRUN, "says the same as restart.max_restarts", "remove one of them")
    if _MAX_RESTARTS in wanted:
        return
    for key in ("backoff", "exit_codes"):
        if key in at(table, "restart"):
            yield warning(("restart", key), "is for max_restarts, which is missing", "add max_restarts = 3")


def _is_positive(count: object) -> bool:
    return type(count) is int and count > 0
