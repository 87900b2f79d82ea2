"""Makes the strategy of a job: the number of nodes, and the processes that each node starts. The module does
no I/O."""

from __future__ import annotations

from typing import Literal

from bai_agent.job.descriptor.strategy_tables import MPI_STRATEGIES, StrategyTable
from bai_agent.light_dataclass import replace
from executor.descriptor.ec2_table import efa_interfaces
from executor.descriptor.model import Descriptor, Distributed


def plan_strategy(descriptor: Descriptor, where: Literal["local", "ec2"]) -> StrategyTable:
    hardware, ec2 = descriptor.hardware, descriptor.aws.ec2
    distributed = hardware.distributed
    table = StrategyTable(name=hardware.strategy)
    if hardware.strategy == "single_node":
        table = replace(table, min_nodes=_least_of_one(descriptor, distributed))
    elif hardware.strategy == "inference":
        table = replace(table, nodes=hardware.nodes)
    elif distributed is not None:
        table = _distributed(table, distributed)
        if where == "local" and hardware.strategy in MPI_STRATEGIES:
            table = replace(table, nodes=1, min_nodes=None, processes_per_node=_on_one_node(distributed))
    if where == "ec2" and ec2 is not None:
        table = replace(table, efa=ec2.efa is not None or efa_interfaces(ec2.run_instances) > 0)
    return table


def one_node_note(descriptor: Descriptor) -> str | None:
    """Return a note for the user if the descriptor has several nodes that share this machine, under one
    mpirun or in one Ray cluster; otherwise None."""
    hardware = descriptor.hardware
    distributed = hardware.distributed
    if distributed is None or str(distributed.num_instances) == "1":
        return None
    if hardware.strategy == "ray":
        most = distributed.num_instances.most
        return f"ray: each of the {most} nodes has 1/{most} of this machine's CPUs and memory, and the first one its GPUs"
    if hardware.strategy not in MPI_STRATEGIES:
        return None
    processes = _on_one_node(distributed)
    many = "one process for each of the machine's GPUs" if processes == "gpus" else f"{processes} processes"
    note = f"{hardware.strategy}: this machine replaces {distributed.num_instances.most} nodes, as one node with {many}"
    fixed = distributed.num_instances.least is None
    return note if fixed else f"{note}, and the job is not elastic on one machine"


def nodes_on_this_machine(descriptor: Descriptor) -> int:
    """Return the number of nodes of `descriptor` on this machine. Each node has an agent."""
    return plan_strategy(descriptor, "local").nodes


def _least_of_one(descriptor: Descriptor, distributed: Distributed | None) -> int | None:
    """Return the minimum number of nodes for a job with one node: 1 if another machine may replace a lost
    node, otherwise the descriptor's minimum."""
    least = distributed.num_instances.least if distributed is not None else None
    return 1 if descriptor.elastic.replacements else least


def _distributed(table: StrategyTable, distributed: Distributed) -> StrategyTable:
    table = replace(
        table,
        nodes=distributed.num_instances.most,
        min_nodes=distributed.num_instances.least,
        processes_per_node=distributed.processes_per_instance,
        cpus_per_process=distributed.cpus_per_process,
    )
    if table.name not in MPI_STRATEGIES:
        return table
    return replace(table, launch=distributed.launch, mpirun_options=tuple(distributed.mpirun_options))


def _on_one_node(distributed: Distributed) -> str:
    """Return the total number of processes of all nodes on this machine; "gpus" if each GPU gets a process.
    GPUs are counted once, because all nodes share the machine's GPUs."""
    each = distributed.processes_per_instance
    return each if each == "gpus" else str(distributed.num_instances.most * int(each))
