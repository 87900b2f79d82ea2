"""Reads the environments of a job's nodes, which their agents recorded in `environment.json`. The table
`FACTS` says which facts of two machines are compared, and how each fact is shown as text.

A new fact needs only a row in this table and a reader in `bai_agent/machine/`. A test compares `FACTS` with
the readers and with `docs/run-directory.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from bai_agent.errors import StoreError
from bai_agent.job.record import JobRecord, NodeRecord
from bai_agent.light_dataclass import dataclass
from executor.records.reading import read_each

_RANKS = 6
"""Maximum number of nodes that a sentence names."""
_UNWRITTEN = (
    "its agent has written no environment.json: the benchmark has not started, or an older version ran it"
)
_DIFFERENT = "Its container's image {} differs from that of other nodes; name the image by its digest."


@dataclass(frozen=True, kw_only=True)
class NodeEnvironment:
    """The recorded environment of one node, or the reason why it is unknown."""

    attempt: int
    rank: int
    environment: dict[str, Any] | None
    trouble: str | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """The known facts; empty if no facts are known."""
        return self.environment or {}

    def sentences(self, name: str) -> list[str]:
        """Return the sentences in the list `name` of the environment. Values of the list that are not
        sentences are left out."""
        found = self.facts.get(name)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def as_table(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return dict(self.__dict__)


def environments(record: JobRecord) -> list[NodeEnvironment]:
    """Return the environment of each node of the job's last attempt. Raises StoreError if the nodes cannot be listed."""
    nodes = record.nodes()
    last = [node for node in nodes if node.attempt == nodes[-1].attempt]
    return read_each(_environment, last, folder=record.store.folder)


@dataclass(frozen=True, kw_only=True)
class MachineWarning:
    """A warning about a machine: a fact that distorts measurements on one or more nodes."""

    sentence: str
    ranks: tuple[int, ...]
    """Numbers of the nodes to which the warning applies."""
    several: bool
    """Whether the job also has nodes to which the warning does not apply."""

    def as_table(self) -> dict[str, Any]:
        """Return the warning as JSON values."""
        return {"sentence": self.sentence, "ranks": list(self.ranks)}

    @property
    def text(self) -> str:
        """The warning's sentence, with the nodes to which the warning applies, unless these are all nodes."""
        if not self.several:
            return self.sentence
        shown = ", ".join(map(str, self.ranks[:_RANKS])) + (", …" if len(self.ranks) > _RANKS else "")
        return f"node {shown}: {self.sentence}"


def machine_warnings(nodes: Iterable[NodeEnvironment]) -> list[MachineWarning]:
    """Return the warnings of `environments` for a summary. Warnings that apply to most desktop machines are
    left out. Each sentence appears once, with the nodes to which it applies.
    """
    ranks: dict[str, list[int]] = {}
    images: dict[str, list[int]] = {}
    count = 0
    for node in nodes:
        count += 1
        if image := table_in(node.facts, "container").get("image"):
            images.setdefault(_DIFFERENT.format(str(image)[:12]), []).append(node.rank)
        minor = node.sentences("minor")
        for sentence in node.sentences("warnings"):
            if sentence not in minor:
                ranks.setdefault(sentence, []).append(node.rank)
    return [
        MachineWarning(sentence=sentence, ranks=tuple(found), several=len(found) < count)
        for sentence, found in ((images if len(images) > 1 else {}) | ranks).items()
    ]


def table_in(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table `name` of an environment, or of a table in an environment; an empty table if that
    table is missing."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def tables_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the tables of a list in an environment; empty if `value` is not a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _environment(node: NodeRecord) -> NodeEnvironment:
    try:
        found, trouble = node.read_object("environment.json"), _UNWRITTEN
    except StoreError as error:
        found, trouble = None, str(error)
    known = None if found is not None else trouble
    return NodeEnvironment(attempt=node.attempt, rank=node.rank, environment=found, trouble=known)


def same(value: Any) -> Any:
    """Return a fact unchanged, for facts that are compared exactly."""
    return value


def same_size(value: Any) -> Any:
    """Return a size rounded to two digits for comparison, because the kernel reserves slightly different
    amounts of memory at each boot."""
    return f"{value / 2**30:.2g} GiB" if type(value) is int else value


@dataclass(frozen=True)
class MachineFact:
    """A fact of a machine."""

    path: str
    """Path of keys in `environment.json`; `[]` stands for each table of a list, `*` for each name. A value is
    a size if the last key ends in "bytes".
    """
    compared: Callable[[Any], Any] | None = None
    """Function that returns the part of the value by which two machines are compared. None if the value is
    not compared, because it varies or does not affect measurements."""
    words: str | Callable[[Any, Mapping[str, Any]], str] = ""
    """Text for the user with {} in place of the value, or a function that makes the text from the value and
    the fact's table. "" if the fact is not shown."""
    line: str = ""
    """Label of the output line that shows the fact, if the label is not the first key of `path`."""
    called: str = ""
    """Name of the fact in a list of differences, if it is not the fact's key. The list shows the table's name
    before the fact's name."""

    @property
    def table(self) -> str:
        """Path of the fact's table."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Key of the fact in the fact's table."""
        return self.path.rpartition(".")[2]

    @property
    def title(self) -> str:
        """Name of the fact in a list of differences; `*` stands for the name of the fact's table."""
        return f"{_TITLES.get(self.table, self.table)} {self.called or self.name.replace('_', ' ')}"


_TITLES = {
    "gpus.devices[]": "gpu",
    "software.open_mpi": "software",
    "disks[]": "disk",
    "network[]": "network",
    "mounts.*": "mount *",
}
"""Path of a table → name of the table in a list of differences, if it is not the path."""

LINES = (
    "instance", "image", "kernel", "cpu", "memory", "gpus", "disk", "network", "python", "packages", "software", "load",
)  # fmt: skip
"""Labels of the lines that describe a machine, in the order of the lines."""


def _processors(count: Any, cpu: Mapping[str, Any]) -> str:
    usable = cpu.get("usable")
    return "{} processors" + (f" ({usable} usable)" if usable not in (None, count) else "")


FACTS = (
    MachineFact("instance.type", same, "{}"),
    MachineFact("instance.id", words="{}"),
    MachineFact("instance.availability_zone", words="{}"),
    MachineFact("instance.market", same, "{}"),
    MachineFact("instance.image_id", same, "{}", line="image"),
    MachineFact("cpu.model", same, "{}"),
    MachineFact("cpu.count", same, _processors),
    MachineFact("cpu.usable", same),
    MachineFact("cpu.threads_per_core", same),
    MachineFact("cpu.numa_nodes", same, lambda count, _: "{} NUMA node" if count == 1 else "{} NUMA nodes"),
    MachineFact("cpu.virtualised", same),
    MachineFact("cpu.governors", same, "governor {}"),
    MachineFact("cpu.scaling_driver"),
    MachineFact("cpu.mhz", words="{} MHz"),
    MachineFact("cpu.max_mhz", same, "{} MHz at most"),
    MachineFact("gpus.devices[].name", same, "{}"),
    MachineFact("gpus.devices[].memory_bytes", same, "{}"),
    MachineFact("gpus.devices[].memory_used_bytes"),
    MachineFact("gpus.devices[].sm_mhz"),
    MachineFact("gpus.devices[].max_sm_mhz", same, "{} MHz at most"),
    MachineFact("gpus.devices[].memory_mhz"),
    MachineFact("gpus.devices[].power_limit_watts", same, "{} W"),
    MachineFact("gpus.devices[].default_power_limit_watts"),
    MachineFact(
        "gpus.devices[].persistence",
        same,
        lambda on, _: "persistence off" if on is False else "",
    ),
    MachineFact("gpus.devices[].ecc", same),
    MachineFact("gpus.devices[].mig", same),
    MachineFact("gpus.devices[].processes"),
    MachineFact("gpus.driver", same, "driver {}"),
    MachineFact("gpus.cuda", same, "CUDA {}"),
    MachineFact("system.kernel", same, "{}", line="kernel"),
    MachineFact("system.architecture", same, "{}", line="kernel"),
    MachineFact("system.image_name", same, "{}", line="image"),
    MachineFact("system.distribution", same, "{}", line="image"),
    MachineFact("system.cloud_init", words="cloud-init {}", line="kernel"),
    MachineFact("system.boot_parameters", same),
    MachineFact("memory.total_bytes", same_size, "{}", called="size"),
    MachineFact("memory.available_bytes", words="{} available"),
    MachineFact("memory.swap_bytes"),
    MachineFact("memory.swap_used_bytes", words=lambda used, _: "{} of swap used" if used else ""),
    MachineFact("memory.transparent_huge_pages", same),
    MachineFact("python.version", same, "{}"),
    MachineFact("python.executable", words="{}"),
    MachineFact("python.prefix"),
    MachineFact("software.open_mpi.mpirun"),
    MachineFact("software.open_mpi.version", same, "Open MPI {}", called="Open MPI"),
    MachineFact("software.open_mpi.says", words=lambda _, mpi: "" if mpi.get("version") else "Open MPI {}"),
    MachineFact("software.nccl", same, "NCCL {}"),
    MachineFact("software.cudnn", same, "cuDNN {}"),
    MachineFact("software.cuda_toolkit", same, "CUDA toolkit {}"),
    MachineFact("software.libfabric", same, "libfabric {}"),
    MachineFact("software.efa_installer", same, "EFA installer {}"),
    MachineFact("software.efa_driver", same, "EFA driver {}"),
    MachineFact("container.image", same, lambda image, _: f"container {str(image)[:12]}", line="image"),
    MachineFact("agent.version", same, "agent {}", line="kernel"),
    MachineFact("disks[].name"),
    MachineFact("disks[].model", same),
    MachineFact("disks[].bytes"),
    MachineFact("disks[].rotates", same),
    MachineFact("disks[].scheduler", same),
    MachineFact("network[].name", words="{}"),
    MachineFact("network[].driver", same, "{}"),
    MachineFact("network[].mbit_per_second", same, "{} Mbit/s"),
    MachineFact("network[].mtu", same),
    MachineFact("network[].state"),
    MachineFact("mounts.*.point"),
    MachineFact("mounts.*.device", words="{}", line="disk"),
    MachineFact("mounts.*.type", same, "{}", line="disk"),
    MachineFact("mounts.*.options"),
    MachineFact("mounts.*.bytes"),
    MachineFact("mounts.*.free_bytes", words="{} free", line="disk"),
    MachineFact("load.average", words="{} (1, 5, 15 minutes)"),
    MachineFact("load.busiest[].name", words="{}"),
    MachineFact("load.busiest[].user", words="({})"),
    MachineFact("load.busiest[].cores", words="{} cores"),
    MachineFact("load.busiest[].cpu_seconds"),
)
"""All facts in the order in which they are reported, the important facts first. The packages of the
benchmark's Python are reported after `FACTS`, each as a fact of its own."""

TABLES: Mapping[str, tuple[MachineFact, ...]] = {
    path: tuple(facts) for path, facts in groupby(FACTS, key=lambda fact: fact.table)
}


def tables_at(path: str, environment: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables at a path of `TABLES`, each with the name that stands at `*` ("" if the path has no
    `*`)."""
    *above, key = path.removesuffix(".*").removesuffix("[]").split(".")
    for name in above:
        environment = table_in(environment, name)
    if path.endswith("[]"):
        return [("", each) for each in tables_in(environment.get(key))]
    found = table_in(environment, key)
    if path.endswith("*"):
        return [(name, each) for name, each in found.items() if isinstance(each, Mapping)]
    return [("", found)]


def compared_values(environment: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each fact of a machine that is compared. If a machine has several devices of a
    kind, their facts have the same names."""
    for path, facts in TABLES.items():
        for name, table in tables_at(path, environment):
            for fact in facts:
                value = table.get(fact.name)
                if fact.compared is not None and value is not None:
                    yield fact.title.replace("*", name.replace("_", " ")), fact.compared(value)


def times(count: int, text: str) -> str:
    """Return the text for a number of equal devices."""
    return f"{count} x {text}" if count > 1 else text
