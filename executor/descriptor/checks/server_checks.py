"""Checks of `[server]` against the rest of the descriptor, for the strategy `inference`."""

from __future__ import annotations

from collections.abc import Iterator

from executor.descriptor.checks.elastic_checks import node_range
from executor.descriptor.job_reference import refers_to_job
from executor.descriptor.raw_table import Raw, RawFinding, at, error, items, text_at, warning

_MACHINES = ("hardware", "distributed", "num_instances")
_SHARED = ("units", "better", "headline", "over_ranks", "tolerance", "warmup")
"""Keys of a metric that lists and comparisons look up by its name."""
_ZONES = ("availability_zone", "aws_zone_id")


def server(table: Raw) -> Iterator[RawFinding]:
    """Check that the server is described, and that nothing is asked for that a server and its client cannot do."""
    if text_at(at(table, "hardware"), "strategy") != "inference":
        return
    if not at(table, "server"):
        fix = "describe the server under [server] and [server.env]"
        yield error(("server",), "is missing, and the strategy is inference", fix)
        return
    yield from _machines(table)
    yield from _network(table)
    yield from _one_start(table)
    yield from _ports(table)
    yield from _same_names(table)
    for where, model in items(table, "server", "models"):
        if refers_to_job(text_at(model, "src")):
            problem = "is an artifact of another job, and only [[data.sources]] can be that"
            yield error((*where, "src"), problem, "write its address, for example s3://bucket/key")
    if "role" in at(table, "info", "labels"):
        problem = "is the label by which metrics of the server and its client are told apart"
        yield error(("info", "labels", "role"), problem, "choose another name")


def _network(table: Raw) -> Iterator[RawFinding]:
    """Check that nothing is asked of EC2 that is for machines of one type."""
    ec2 = at(table, "aws", "ec2")
    if "efa" in ec2:
        problem = "writes the network interfaces of one type, and a server and its client may have two"
        yield error(("aws", "ec2", "efa"), problem, "remove it")


def _machines(table: Raw) -> Iterator[RawFinding]:
    many = node_range(table)
    if many is not None and many.least is not None:
        problem = f"{many} is a range, and inference uses two machines: a server and its client"
        yield error(_MACHINES, problem, "remove it")
    elif many is not None and many.most != 2:
        problem = f"{many} has no effect: inference uses two machines, a server and its client"
        yield warning(_MACHINES, problem, "remove it")
    for key in _ZONES:
        ours, theirs = (text_at(at(table, *where), key) for where in (("hardware",), ("server", "hardware")))
        if ours and theirs and ours != theirs:
            problem = f'"{theirs}" is not "{ours}", the zone of the client: both machines are in one subnet'
            yield error(("server", "hardware", key), problem, "remove it, or write the same in [hardware]")


def _one_start(table: Raw) -> Iterator[RawFinding]:
    """Check that nothing asks for another start of the client with its server."""
    restarts = at(table, "restart").get("max_restarts")
    if type(restarts) is int and restarts > 0:
        problem = "is not for inference: the server would not be in the state of its first start"
        yield error(("restart", "max_restarts"), problem, "remove it")
    for key in ("elastic", "checkpoint"):
        if key in table:
            yield error((key,), "is not for inference, whose two machines start once", "remove it")


def _ports(table: Raw) -> Iterator[RawFinding]:
    ports = at(table, "server", "env").get("ports")
    if isinstance(ports, list):
        for index, port in enumerate(ports):
            if port in ports[:index]:
                yield error(
                    ("server", "env", "ports", index), f"{port} is listed twice", "remove one of them"
                )


def _same_names(table: Raw) -> Iterator[RawFinding]:
    """Check that a metric of the server is described like a metric of the client with the same name."""
    of_client = {text_at(each, "name"): each for _, each in items(table, "output", "metrics")}
    for where, metric in items(table, "server", "output", "metrics"):
        other = of_client.get(text_at(metric, "name"))
        if other is None:
            continue
        differing = [key for key in _SHARED if metric.get(key) != other.get(key)]
        if not differing and not metric.get("over_ranks"):
            problem = f'"{metric.get("name")}" is also a metric of the client: lists and comparisons take the mean of the two'
            yield warning((*where, "name"), problem, "give one of them another name")
        for key in differing:
            problem = f'differs from the metric "{metric.get("name")}" of [[output.metrics]]'
            yield error((*where, key), problem, "make them the same, or give one of them another name")
