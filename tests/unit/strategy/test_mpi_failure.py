"""Failures explained from Open MPI's help pages, as its versions 4.1.4, 4.1.8 and 5.0.11 print them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.peers import Peer
from bai_agent.strategy.mpi_failure import explain
from bai_agent.strategy.process_ends import ProcessEnd

PEERS = [Peer(rank=rank, address=f"10.0.0.{rank + 1}", slots=2, instance_id=f"i-{rank}") for rank in range(2)]
RULE = "-" * 74
SAID = "step 1\nValueError: bad weights\n"
PRIMARY = f"""\
{RULE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}
"""
EXITED_4 = f"""{PRIMARY}{RULE}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[22154,1],2]
  Exit code:    7
{RULE}
"""
EXITED_5 = f"""\
{RULE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-9557@1,2]
   Exit code:    7
{RULE}
"""
KILLED_4 = f"""{PRIMARY}{RULE}
mpirun noticed that process rank 2 with PID 0 on node ip-10-0-0-2 exited on signal 9 (Killed).
{RULE}
"""
KILLED_5 = f"""\
{RULE}
prterun noticed that process rank 2 with PID 9575 on node vm exited on
signal 9 (Killed).
{RULE}
"""
LOST = f"""\
{RULE}
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[21679,0],0] on node ip-10-0-0-1
  Remote daemon: [[21679,0],1] on node 10.0.0.2

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
{RULE}
"""


@pytest.mark.parametrize(
    ("page", "code", "signal"),
    [(EXITED_4, 7, None), (EXITED_5, 7, None), (KILLED_4, None, 9), (KILLED_5, None, 9)],
)
def test_the_failed_mpi_process_is_named_with_its_node(
    page: str, code: int | None, signal: int | None
) -> None:
    cause = explain(SAID + page, PEERS)

    assert cause is not None
    assert (cause.process, cause.code, cause.signal) == ("process 2 on node 1 (i-1, 10.0.0.2)", code, signal)
    assert cause.printed == SAID


def test_on_one_node_the_process_alone_is_named() -> None:
    cause = explain(SAID + EXITED_4, PEERS[:1])

    assert cause is not None
    assert cause.process == "process 2"


def test_a_node_whose_daemon_is_gone_is_named() -> None:
    cause = explain(SAID + LOST, PEERS)

    assert cause is not None
    assert cause.process == "the daemon of Open MPI on node 1 (i-1, 10.0.0.2)"
    assert (cause.message, cause.printed) == ("mpirun lost the connection", SAID)


def test_a_malformed_host_name_is_not_quoted_in_the_cause() -> None:
    cause = explain(SAID + LOST.replace("on node 10.0.0.2", "on node \x1b[2J10.0.0.2\x07"), PEERS)

    assert cause is None or "\x1b" not in cause.process


def test_the_cause_is_taken_from_the_last_of_several_mpiruns() -> None:
    cause = explain(EXITED_4.replace(",2]", ",0]") + SAID + EXITED_4, PEERS)

    assert cause is not None
    assert cause.process.startswith("process 2 on node 1")


MORE = "[ip-10-0-0-1:00123] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"


@pytest.mark.parametrize(("page", "code"), [(EXITED_4 + MORE, 7), (EXITED_5, 7), (KILLED_4, 137), (LOST, 1)])
def test_a_command_that_exits_as_its_mpirun_did_failed_for_its_reason(page: str, code: int) -> None:
    assert explain(SAID + page, PEERS, code=code) == explain(SAID + page, PEERS) is not None


@pytest.mark.parametrize(
    ("after", "code"),
    [("", 3), ("evaluation: no such file\n", 7), (f"{RULE}\nsummary\n", 7), ("$ exit 7\n" + MORE, 7)],
)
def test_a_failed_mpirun_is_not_the_cause_if_the_command_continued_after_it(after: str, code: int) -> None:
    assert explain(SAID + EXITED_4 + after, PEERS, code=code) is None


@pytest.mark.parametrize("log", ["", SAID, PRIMARY, f"{RULE}\n{RULE}\n"])
def test_a_log_that_names_no_failed_process_explains_nothing(log: str) -> None:
    assert explain(log, PEERS) is None


PIECES = st.sampled_from([*EXITED_4.splitlines(True), *LOST.splitlines(True), *KILLED_5.splitlines(True)])


@given(st.lists(PIECES | st.text(max_size=20), max_size=30).map("".join))
def test_any_output_of_mpirun_is_read_without_an_error(log: str) -> None:
    cause = explain(log, PEERS)
    explain(log, PEERS, code=7)

    assert cause is None or (cause.printed is not None and log.startswith(cause.printed))


def end(
    rank: int, *, code: int | None = 0, signal: int | None = None, asked: bool = False, time: int = 1
) -> ProcessEnd:
    return ProcessEnd(rank=rank, code=code, signal=signal, asked=asked, time=time, output_bytes=0)


def test_the_first_process_that_failed_without_being_told_to_end_is_the_cause() -> None:
    ends = [
        end(0, code=None, signal=15, asked=True, time=3),
        end(1, code=1, time=5),
        end(2, code=None, signal=9, time=4),
        end(3, time=2),
    ]

    cause = explain(SAID + EXITED_4.replace(",1],2]", ",1],1]"), PEERS, ends=ends)

    assert cause is not None
    assert (cause.process, cause.code, cause.signal) == ("process 2 on node 1 (i-1, 10.0.0.2)", None, 9)
    assert (cause.rank, cause.failed, cause.printed) == (2, 4, None)


def test_without_a_message_of_mpirun_the_recorded_failed_process_is_named() -> None:
    cause = explain("", PEERS[:1], ends=[end(0), end(1, code=7)])
    assert cause is not None
    assert (cause.process, cause.code) == ("process 1", 7)


def test_a_process_on_another_node_that_mpirun_names_is_the_cause() -> None:
    # what failed here followed from it
    cause = explain(SAID + KILLED_4, PEERS, ends=[end(0, code=1), end(1, code=None, signal=15, asked=True)])
    assert cause is not None
    assert (cause.rank, cause.signal, cause.printed) == (2, 9, SAID)


def test_if_all_ranks_were_told_to_end_mpirun_names_the_cause() -> None:
    ends = [end(rank, code=None, signal=15, asked=True) for rank in range(4)]
    assert explain("", PEERS, ends=ends) is None
    cause = explain(SAID + EXITED_5, PEERS, ends=ends)
    assert cause is not None
    assert (cause.rank, cause.code) == (2, 7)
