"""The decision that a generation begins. The decision that a generation begins is written to the run
directory before any process of the generation is started."""

from __future__ import annotations

from typing import Annotated

from bai_agent.decode import Rule, checked
from bai_agent.errors import RecordError
from bai_agent.generations.decision import StartGeneration
from bai_agent.job.generation_records import Ledger, Nodes
from bai_agent.job.run_directory import RunDir, make_folder, read_json, write_json
from bai_agent.light_dataclass import asdict, dataclass, field


@dataclass(frozen=True, kw_only=True)
class _Record:
    """The keys of a `StartGeneration` that are read back from the run directory."""

    ledger: Annotated[Ledger, Rule("a ledger")]
    members: Nodes = field(default_factory=list)


def write_decision(rundir: RunDir, decision: StartGeneration) -> None:
    """Record durably that the generation of `rundir` begins. Raises OSError."""
    make_folder(rundir.shim_folder, private=rundir.path)
    ledger = {name: value for name, value in asdict(decision.ledger).items() if value not in (None, {})}
    write_json(rundir.decision, {"members": decision.members, "ledger": ledger})


def read_ledger(rundir: RunDir) -> Ledger:
    """Return the restarts and losses of the generations before the generation of `rundir`. If the decision's
    file is missing, the generation's number gives the number of restarts."""
    return _read(rundir).ledger


def read_members(rundir: RunDir) -> list[int] | None:
    """Return the numbers of the nodes of the generation of `rundir`, in the order of their ranks. Return None
    if the generation's decision file does not list the nodes."""
    return _read(rundir).members or None


def _read(rundir: RunDir) -> _Record:
    try:
        return checked(_Record, read_json(rundir.decision), where=str(rundir.decision))
    except RecordError:
        return _Record(ledger=Ledger(restarts=rundir.generation))


def generation_environment(rundir: RunDir) -> dict[str, str]:
    """Return the variables that tell the benchmark its generation."""
    return {
        "BAI_GENERATION": str(rundir.generation),
        "BAI_RESTARTS": str(read_ledger(rundir).restarts),
    }
