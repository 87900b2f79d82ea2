"""What NCCL and Open MPI print of the network that they chose is recorded; sockets where EFA was asked for are warned of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agent_runs import events_of
from hypothesis import given
from hypothesis import strategies as st
from run_contexts import SteppingClock, make_context

from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.run_directory import RunDir
from bai_agent.phases.transport import HEAD_BYTES, TransportLook, TransportScan, transports_in
from bai_agent.run.run_context import RunContext

NODE = "ip-10-0-0-7:7614:7691 [0] NCCL INFO"
EFA_LINES = f"""\
{NODE} Bootstrap : Using ens5:10.0.0.7<0>
{NODE} NET/Plugin: Failed to find ncclCollNetPlugin symbol (>= v5). ncclCollNetPlugin symbols v4 and lower are not supported.
{NODE} NET/OFI Initializing aws-ofi-nccl 1.12.1-aws
{NODE} NET/OFI Using transport protocol SENDRECV
{NODE} NET/OFI Selected Provider is efa (found 1 nics)
{NODE} Using network AWS Libfabric
{NODE} Channel 00/0 : 3[1] -> 4[0] [send] via NET/AWS Libfabric/0/GDRDMA
{NODE} Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
"""
NEWER_EFA_LINES = f"""\
[1,0]<stdout>:{NODE} NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)
[1,0]<stdout>:{NODE} Initialized NET plugin Libfabric
[1,0]<stdout>:{NODE} Using network Libfabric
[1,0]<stdout>:{NODE} Channel 01/0 : 1[1] -> 0[0] [send] via SHM/direct/direct
"""
SOCKET_LINES = f"""\
{NODE} NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
{NODE} NET/IB : No device found.
{NODE} NET/Socket : Using [0]ens5:10.0.0.7<0>
{NODE} Using network Socket
{NODE} Channel 01/0 : 1[1] -> 0[0] [send] via NET/Socket/0
"""
LIBFABRIC_TCP_LINES = f"""\
{NODE} NET/OFI Selected Provider is tcp;ofi_rxm (found 2 nics)
{NODE} Using network AWS Libfabric
"""
MPI_EFA_LINES = """\
[ip-10-0-0-7:05353] mca:base:select:(  pml) Querying component [cm]
[ip-10-0-0-7:05353] mtl_ofi_component.c:362: mtl:ofi:provider: rdmap0s31-rdm
[ip-10-0-0-7:05353] select: component cm selected
"""
MPI_TCP_LINES = """\
[ip-10-0-0-7:05353] mtl_ofi_component.c:362: mtl:ofi:provider: none
[ip-10-0-0-7:05353] select: component ob1 selected
[ip-10-0-0-7:05353] mca: bml: Using self btl for send to [[26333,1],1] on node ip-10-0-0-7
[ip-10-0-0-7:05353] mca: bml: Using tcp btl for send to [[26333,1],0] on node ip-10-0-0-8
"""


def scanned(tmp_path: Path, text: str) -> dict[str, list[str]]:
    file = tmp_path / "output.log"
    file.write_text(text)
    return TransportScan().read([file], ended=True)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (EFA_LINES, {"NCCL": ["NET/AWS Libfabric", "NET/OFI provider efa", "P2P"]}),
        (NEWER_EFA_LINES, {"NCCL": ["NET/Libfabric", "NET/OFI provider efa", "SHM"]}),
        (SOCKET_LINES, {"NCCL": ["NET/Socket"]}),
        (LIBFABRIC_TCP_LINES, {"NCCL": ["NET/AWS Libfabric", "NET/OFI provider tcp;ofi_rxm"]}),
        (MPI_EFA_LINES, {"Open MPI": ["pml/cm", "mtl/ofi provider rdmap0s31-rdm"]}),
        (MPI_TCP_LINES, {"Open MPI": ["pml/ob1", "btl/self", "btl/tcp"]}),
        ("loss=0.5 via NET/ and via P2P or SHM\nUsing network drives\nselect: component tree\n", {}),
    ],
)
def test_network_transports_are_recognised_in_the_output_of_nccl_and_open_mpi(
    tmp_path: Path, lines: str, found: dict[str, list[str]]
) -> None:
    assert scanned(tmp_path, lines) == found
    assert scanned(tmp_path, lines.rstrip("\n")) == found


@given(st.lists(st.integers(1, 200), max_size=12))
def test_transports_are_recognised_however_the_output_grows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    file = tmp_path_factory.mktemp("grows") / "output.log"
    content = (EFA_LINES + MPI_TCP_LINES).encode()
    scan, at = TransportScan(), 0
    with file.open("wb", buffering=0) as growing:
        for size in sizes:
            growing.write(content[at : at + size])
            at += size
            scan.read([file])
        growing.write(content[at:])
    found = scan.read([file], ended=True)

    whole = TransportScan().read([file], ended=True)
    assert {name: set(words) for name, words in found.items()} == {
        name: set(words) for name, words in whole.items()
    }


def test_at_most_a_hundred_networks_are_recorded(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"NCCL INFO Using network n{number}\n" for number in range(1000)))

    found = TransportScan().read([log], ended=True)

    assert found["NCCL"][:2] == ["NET/n0", "NET/n1"]
    assert len(found["NCCL"]) < 100


def test_only_the_beginning_of_the_output_is_searched(tmp_path: Path) -> None:
    assert scanned(tmp_path, "x" * 100 + "\n" + "y" * HEAD_BYTES + "\n" + SOCKET_LINES) == {}
    padding = "step 1\n" * ((HEAD_BYTES - 10_000) // 7)
    assert scanned(tmp_path, padding + SOCKET_LINES) == {"NCCL": ["NET/Socket"]}


def test_a_special_file_is_ignored_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")

    names = ("none", "fifo", "folder", "link")
    assert TransportScan().read([tmp_path / name for name in names], ended=True) == {}


def context(rundir: RunDir, *, efa: bool = True, nodes: int = 2) -> RunContext:
    strategy = StrategyTable(name="torchrun", nodes=nodes, efa=efa)
    rundir.kept_output.parent.mkdir(parents=True, exist_ok=True)
    return make_context(rundir, tables={"strategy": strategy}, clock=SteppingClock(step=0.5))


def warnings_in(rundir: RunDir) -> list[str]:
    return [each["message"] for each in events_of(rundir.path) if each["type"] == "warning"]


def test_tcp_instead_of_the_requested_efa_causes_a_warning_during_the_run(rundir: RunDir) -> None:
    ctx = context(rundir)
    look = TransportLook(ctx)
    with rundir.kept_output.open("w") as output:
        output.write(SOCKET_LINES[:80])
        output.flush()
        look()
        assert transports_in(ctx) == {}
        output.write(SOCKET_LINES[80:])
        output.flush()
        for _ in range(20):
            look()

    assert transports_in(ctx) == {"NCCL": ["NET/Socket"]}
    [warning] = warnings_in(rundir)
    assert warning.startswith("EFA was requested, but NCCL uses sockets (NET/Socket)")
    # An agent that is started again says nothing twice.
    TransportLook(context(rundir))(ended=True)
    assert len([each for each in events_of(rundir.path) if each["type"] == "transport"]) == 1
    assert len(warnings_in(rundir)) == 1


def test_logs_of_mpi_processes_are_searched_for_transports_on_their_node(rundir: RunDir) -> None:
    ctx = context(rundir)
    rundir.kept_output.write_text("")
    rundir.processes.mkdir()
    (rundir.processes / "3.log").write_text(MPI_TCP_LINES)

    TransportLook(ctx)(ended=True)

    assert transports_in(ctx) == {"Open MPI": ["pml/ob1", "btl/self", "btl/tcp"]}


@pytest.mark.parametrize("lines", [LIBFABRIC_TCP_LINES, MPI_TCP_LINES])
def test_tcp_used_through_libfabric_or_open_mpi_causes_the_warning_too(rundir: RunDir, lines: str) -> None:
    ctx = context(rundir)
    rundir.kept_output.write_text(lines)

    TransportLook(ctx)(ended=True)

    assert len(warnings_in(rundir)) == 1


@pytest.mark.parametrize(
    ("efa", "nodes", "lines"),
    [(False, 2, SOCKET_LINES), (True, 1, SOCKET_LINES), (True, 2, EFA_LINES), (True, 2, MPI_EFA_LINES)],
)
def test_matching_transports_cause_no_warning(rundir: RunDir, efa: bool, nodes: int, lines: str) -> None:
    ctx = context(rundir, efa=efa, nodes=nodes)
    rundir.kept_output.write_text(lines)

    TransportLook(ctx)(ended=True)

    assert transports_in(ctx)
    assert warnings_in(rundir) == []
