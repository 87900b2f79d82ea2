"""Checks the machines and the strategy of a job against the rest of the descriptor: the number of machines,
`[elastic]`, `[restart]`, `[checkpoint]` and `[server]`."""

from __future__ import annotations

from collections.abc import Iterator

from bai_agent.job.descriptor.metric_tables import About
from bai_agent.job.descriptor.strategy_tables import MPI_STRATEGIES
from bai_agent.job.schema.declared import MistakeError
from bai_agent.job.schema.tables import marked_keys
from executor.descriptor.job_reference import refers_to_job
from executor.descriptor.raw_table import (
    Raw,
    RawFinding,
    at,
    error,
    items,
    text_at,
    warning,
    written_strategy,
)
from executor.descriptor.service_tables import MetricTable
from executor.descriptor.values import NodeRange, read_node_range

_MACHINES = ("hardware", "distributed", "num_instances")
_MAX_RESTARTS = ("restart", "max_restarts")
_OF_TORCHRUN = ("hardware", "distributed", "max_restarts")
_OF_STRATEGIES = {
    "launch": MPI_STRATEGIES,
    "mpirun_options": MPI_STRATEGIES,
    "max_restarts": ("torchrun",),
    "cpus_per_process": (*MPI_STRATEGIES, "torchrun", "adaptdl"),
}
"""Keys of `[hardware.distributed]` → strategies that use them. Other strategies ignore these keys."""
_ZONES = ("availability_zone", "aws_zone_id")


def node_range(table: Raw) -> NodeRange | None:
    """Return the requested number of machines; None if the key is missing or invalid."""
    try:
        return read_node_range(at(table, *_MACHINES[:-1]).get(_MACHINES[-1]))
    except MistakeError:
        return None


def distributed_table(table: Raw) -> Iterator[RawFinding]:
    """Check `[hardware.distributed]` against the strategy."""
    distributed = at(table, "hardware", "distributed")
    place = ("hardware", "distributed")
    strategy = written_strategy(table)
    many = node_range(table)
    if strategy == "single_node" and many is not None and many.most > 1:
        problem = f"single_node uses one machine, not {many}"
        # A single number is ignored. A range would mean an elastic job, which this strategy does not support.
        report, fix = (warning, "remove it") if many.least is None else (error, 'remove it, or write "1:1"')
        yield report((*place, "num_instances"), problem, fix)
    yield from _processes(strategy, distributed.get("processes_per_instance"))
    for key, users in _OF_STRATEGIES.items():
        if key in distributed and strategy not in users:
            problem = f"is only for {' or '.join(users)}, but the strategy is {strategy}"
            yield warning((*place, key), problem, "remove it")
    if text_at(distributed, "launch") == "user" and "mpirun_options" in distributed:
        problem = 'has no effect with launch = "user", because the command starts mpirun'
        yield warning((*place, "mpirun_options"), problem, "remove it")


def _processes(strategy: str, processes: object) -> Iterator[RawFinding]:
    """Check that only one process per machine is requested from a strategy that starts the command only once."""
    is_many = processes == "gpus" or (str(processes).isdecimal() and int(str(processes)) > 1)
    if strategy == "ray" and is_many:
        yield error(
            ("hardware", "distributed", "processes_per_instance"),
            f'"{processes}" cannot be used with ray, which starts the command once, on the first machine',
            "remove it: Ray starts the processes of its tasks",
        )
    if strategy in ("each_node", "inference") and is_many:
        yield error(
            ("hardware", "distributed", "processes_per_instance"),
            f'"{processes}" cannot be used with {strategy}, which starts the command once on each machine',
            "remove it and let the command start its own processes, or use torchrun, mpi or horovod",
        )


def elastic(table: Raw) -> Iterator[RawFinding]:
    """Check that `[elastic]` is consistent with the range of machines, and is not used with `[repeat]`."""
    machines = node_range(table)
    if machines is not None and machines.least is not None:
        yield from _of_range(table, machines, machines.least)
    elif _is_replaced(table):
        yield from _of_one_machine(table)
    elif "elastic" in table and (machines is not None or _MACHINES[-1] not in at(table, *_MACHINES[:-1])):
        problem = "needs a range of machines, but hardware.distributed.num_instances is " + (
            f"{machines}" if machines is not None else "missing"
        )
        yield error(("elastic",), problem, 'write num_instances = "2:4", or remove the table')


def adaptdl(table: Raw) -> Iterator[RawFinding]:
    """Check that an AdaptDL job has a range of machines, and a checkpoint folder that is copied to all
    machines."""
    if written_strategy(table) != "adaptdl":
        return
    machines = node_range(table)
    if machines is None or machines.least is None:
        is_missing = _MACHINES[-1] not in at(table, *_MACHINES[:-1])
        if is_missing or machines is not None:
            problem = f"is {'missing' if is_missing else machines}, but adaptdl runs on a range of machines"
            many = machines.most if machines is not None else 4
            yield error(_MACHINES, problem, f'write num_instances = "1:{many}"')
        if "repeat" in table:
            problem = "cannot be used with adaptdl, because the runs would have different numbers of machines"
            yield error(("repeat",), problem, "remove it")
    if at(table, "checkpoint").get("shared") is True:
        problem = "cannot be used with adaptdl, which needs the same folder in all generations"
        yield error(("checkpoint", "shared"), problem, "remove it: the folder is copied to all machines")


def size_policy(table: Raw) -> Iterator[RawFinding]:
    """Check that goodput is used with AdaptDL, whose benchmarks give hints."""
    strategy = written_strategy(table)
    if at(table, "elastic").get("policy") == "goodput" and strategy != "adaptdl":
        problem = f'is "goodput", which needs AdaptDL\'s hints, and hardware.strategy is {strategy}'
        yield error(("elastic", "policy"), problem, 'remove it, or write strategy = "adaptdl"')


def _is_replaced(table: Raw) -> bool:
    """Return whether the job has a single machine that can be replaced by another machine."""
    is_single = written_strategy(table) == "single_node"
    return is_single and "replacements" in at(table, "elastic")


def _of_one_machine(table: Raw) -> Iterator[RawFinding]:
    if "repeat" in table:
        problem = "cannot be combined with [repeat], because runs on different machines cannot be compared"
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
        problem = f'"{machines}" cannot be combined with [repeat], because the runs would have different numbers of machines'
        yield error(_MACHINES, problem, "write one number, or remove [repeat]")


def checkpoints(table: Raw) -> Iterator[RawFinding]:
    """Check that `[checkpoint]` is not used with `[repeat]`, and that the keys of `[checkpoint]` have an effect."""
    if "checkpoint" not in table:
        return
    checkpoint = at(table, "checkpoint")
    if "repeat" in table:
        problem = "cannot be combined with [repeat], because a continued run is no valid measurement"
        yield error(("checkpoint",), problem, "remove one of them")
    if checkpoint.get("shared") is True and "every" in checkpoint:
        problem = "has no effect, because shared = true copies no folder"
        yield warning(("checkpoint", "every"), problem, "remove it")
    yield from _shared_folder(table)


def _shared_folder(table: Raw) -> Iterator[RawFinding]:
    """Warn about a folder on a file system that all nodes share, because each node would copy the checkpoints
    of the first node there."""
    checkpoint, machines = at(table, "checkpoint"), node_range(table)
    if checkpoint.get("shared") is True or machines is None or machines.most == 1:
        return
    path, own = text_at(checkpoint, "path"), "name a folder on each node's own disk"
    fix = own if written_strategy(table) == "adaptdl" else f"add shared = true, or {own}"
    for _, mount in items(table, "mounts"):
        target = text_at(mount, "target")
        if target and f"{path}/".startswith(f"{target}/"):
            problem = f"is on the file system at {target}, which all nodes share, so each node would restore the same files there"
            yield warning(("checkpoint", "path"), problem, fix)


def restarts(table: Raw) -> Iterator[RawFinding]:
    """Check that the job can be restarted, and that only one key sets the number of restarts."""
    wanted = [
        where
        for where in (_MAX_RESTARTS, _OF_TORCHRUN)
        if _is_positive(at(table, *where[:-1]).get(where[-1]))
    ]
    if "repeat" in table:
        for where in wanted:
            problem = "cannot be combined with [repeat], because a restarted run is no valid measurement"
            yield error(where, problem, "remove one of them")
    if len(wanted) > 1:
        yield error(_OF_TORCHRUN, "has the same meaning as restart.max_restarts", "remove one of them")
    if _MAX_RESTARTS in wanted:
        return
    for key in ("backoff", "exit_codes"):
        if key in at(table, "restart"):
            yield warning(("restart", key), "needs max_restarts, which is missing", "add max_restarts = 3")


def _is_positive(count: object) -> bool:
    return type(count) is int and count > 0


def server(table: Raw) -> Iterator[RawFinding]:
    """Check that the server is described, and that no key requests anything that a server and its client do
    not support."""
    if written_strategy(table) != "inference":
        return
    if not at(table, "server"):
        fix = "describe the server under [server] and [server.env]"
        yield error(("server",), "is missing, but required by the strategy inference", fix)
        return
    yield from _machines(table)
    yield from _network(table)
    yield from _one_start(table)
    yield from _ports(table)
    yield from _same_names(table)
    for where, model in items(table, "server", "models"):
        if refers_to_job(text_at(model, "src")):
            problem = "is an artifact of another job, which only [[data.sources]] can name"
            yield error((*where, "src"), problem, "write another address, for example s3://bucket/key")
    if "role" in at(table, "info", "labels"):
        problem = "is the label by which metrics of the server and its client are told apart"
        yield error(("info", "labels", "role"), problem, "choose another name")


def _network(table: Raw) -> Iterator[RawFinding]:
    """Check that no key of `[aws.ec2]` needs machines of the same type."""
    ec2 = at(table, "aws", "ec2")
    if "efa" in ec2:
        problem = "needs machines of one type, but a server and its client can have different types"
        yield error(("aws", "ec2", "efa"), problem, "remove it")


def _machines(table: Raw) -> Iterator[RawFinding]:
    many = node_range(table)
    if many is not None and many.least is not None:
        problem = f"{many} is a range, but inference always uses two machines: a server and its client"
        yield error(_MACHINES, problem, "remove it")
    elif many is not None and many.most != 2:
        problem = f"{many} has no effect: inference uses two machines, a server and its client"
        yield warning(_MACHINES, problem, "remove it")
    for key in _ZONES:
        ours, theirs = (text_at(at(table, *where), key) for where in (("hardware",), ("server", "hardware")))
        if ours and theirs and ours != theirs:
            problem = f'"{theirs}" is not "{ours}", the zone of the client, but both machines share a subnet'
            yield error(("server", "hardware", key), problem, "remove it, or change [hardware]")


def _one_start(table: Raw) -> Iterator[RawFinding]:
    """Check that no key requests a second start of the client and its server."""
    restarts = at(table, "restart").get("max_restarts")
    if type(restarts) is int and restarts > 0:
        problem = "cannot be used with inference: the server would not be in its initial state"
        yield error(("restart", "max_restarts"), problem, "remove it")
    for key in ("elastic", "checkpoint"):
        if key in table:
            yield error((key,), "cannot be used with inference, whose machines start only once", "remove it")


def _ports(table: Raw) -> Iterator[RawFinding]:
    ports = at(table, "server", "env").get("ports")
    if isinstance(ports, list):
        for index, port in enumerate(ports):
            if port in ports[:index]:
                yield error(
                    ("server", "env", "ports", index), f"{port} is listed twice", "remove one of them"
                )


def _same_names(table: Raw) -> Iterator[RawFinding]:
    """Check that metrics of the server and of the client with the same name have the same description."""
    shared = marked_keys(MetricTable, About.SUMMARY, About.JUDGEMENT)
    of_client = {text_at(each, "name"): each for _, each in items(table, "output", "metrics")}
    for where, metric in items(table, "server", "output", "metrics"):
        other = of_client.get(text_at(metric, "name"))
        if other is None:
            continue
        differing = [key for key in shared if metric.get(key) != other.get(key)]
        if not differing and not metric.get("over_ranks"):
            problem = f'"{metric.get("name")}" is a metric of server and client: lists and comparisons use the mean of both'
            yield warning((*where, "name"), problem, "rename one of the two metrics")
        for key in differing:
            problem = f'differs from the metric "{metric.get("name")}" of [[output.metrics]]'
            yield error((*where, key), problem, "write the same value, or rename one of the two metrics")
