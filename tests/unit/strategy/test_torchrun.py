"""What torchrun is started with, and how its failures are explained."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.limit_tables import Limits
from bai_agent.job.descriptor.strategy_tables import StrategyTable
from bai_agent.job.peers import Peer
from bai_agent.strategy import explain_failure, strategy_of
from bai_agent.strategy.failure import LeftFile, Remains
from bai_agent.strategy.launch import Launch

PEERS = [Peer(rank=0, address="10.0.0.1", slots=2, port=4711), Peer(rank=1, address="10.0.0.2", slots=2)]
COMMAND = ("python3", "train.py", "--epochs", "3")
STACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: bad\n\tweights\n'


def job(**table: object) -> Job:
    return Job(
        job=Identity(id="j", attempt=2),
        benchmark=Benchmark(argv=COMMAND),
        strategy=StrategyTable(name="torchrun", nodes=2, processes_per_node="2", **table),  # type: ignore[arg-type]
        limits=Limits(join=timedelta(minutes=2)),
    )


def launched(rank: int, **table: object) -> tuple[Launch, dict[str, str]]:
    """Return what node `rank` starts, and torchrun's options in it."""
    launch = strategy_of(job(**table)).launch(job(**table), COMMAND, PEERS[rank], PEERS)
    end = launch.argv.index("--")
    assert launch.argv[end + 1 :] == COMMAND
    words = [each.removeprefix("--").partition("=") for each in launch.argv[1:end]]
    return launch, {name: value for name, _, value in words}


def test_torchrun_without_restarts_uses_static_ranks() -> None:
    launch, options = launched(1)

    assert (options["rdzv-backend"], options["node-rank"], options["max-restarts"]) == ("static", "1", "0")
    assert (options["master-addr"], options["master-port"]) == ("10.0.0.1", "4711")
    assert (options["rdzv-conf"], options["rdzv-id"]) == ("timeout=120", "j-2")
    assert (options["local-addr"], options["nnodes"], options["nproc-per-node"]) == ("10.0.0.2", "2", "2")
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in launch.env


def test_a_restart_is_a_new_torchrun_with_the_same_ranks() -> None:
    _, options = launched(1, max_restarts=3)

    assert (options["rdzv-backend"], options["max-restarts"], options["node-rank"]) == ("static", "0", "1")
    assert job(max_restarts=3).restart_policy.max_restarts == 3


@pytest.mark.parametrize(("grace_s", "told"), [(30, "30"), (0.5, "1"), (600, "600")])
def test_the_shutdown_timeout_of_torchrun_is_the_jobs_grace(grace_s: float, told: str) -> None:
    limits = Limits(grace=timedelta(seconds=grace_s))
    of_grace = replace(job(), limits=limits)
    of_user = replace(
        of_grace, benchmark=Benchmark(argv=COMMAND, env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"})
    )

    def env(job: Job) -> Mapping[str, str]:
        return strategy_of(job).launch(job, COMMAND, PEERS[0], PEERS).env

    assert env(of_grace)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == told
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in env(of_user)


def test_omp_num_threads_equals_cpus_per_process_unless_the_job_sets_it() -> None:
    launch, _ = launched(0, cpus_per_process=3)
    told = replace(job(cpus_per_process=3), benchmark=Benchmark(argv=COMMAND, env={"OMP_NUM_THREADS": "1"}))

    assert (launch.env["OMP_NUM_THREADS"], launch.needs.cpus) == ("3", 6)
    assert "OMP_NUM_THREADS" not in strategy_of(told).launch(told, COMMAND, PEERS[0], PEERS).env


def test_gloo_uses_the_network_of_the_nodes() -> None:
    peers = [replace(PEERS[0], interface="ens5"), PEERS[1]]
    told = replace(job(), benchmark=Benchmark(argv=COMMAND, env={"GLOO_SOCKET_IFNAME": "eth9"}))
    strategy = strategy_of(told)

    assert strategy.launch(job(), COMMAND, peers[0], peers).env["GLOO_SOCKET_IFNAME"] == "ens5"
    assert "GLOO_SOCKET_IFNAME" not in strategy.launch(job(), COMMAND, peers[1], peers).env
    assert "GLOO_SOCKET_IFNAME" not in strategy.launch(told, COMMAND, peers[0], peers).env
    assert "GLOO_SOCKET_IFNAME" not in strategy.launch(job(), COMMAND, peers[0], peers[:1]).env


def entry(rank: int, *, code: int, time: str = "2026-11-22_14:00:00", local: int | None = None) -> str:
    name = f" ({signal.Signals(-code).name})" if code < 0 else ""
    return (
        f"[0]:\n  time      : {time}\n  host      : ip-10-0-0-2\n  rank      : {rank} (local_rank: {rank % 2 if local is None else local})\n"
        f"  exitcode  : {code} (pid: 4242) {name}\n  error_file: <N/A>\n  traceback : See the manual."
    )


def log_of(root: str, *others: str) -> str:
    return f"""\
loss=0.5
no such weights
W1122 14:00:00.250000 4200 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 4243 closing signal SIGTERM
E1122 14:00:00.350000 4200 torch/distributed/elastic/multiprocessing/api.py:1003] failed (exitcode: 1) local_rank: 0 (pid: 4242) of binary: python3
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
{chr(10).join(others) or "  <NO_OTHER_FAILURES>"}
------------------------------------------------------------
Root Cause (first observed failure):
{root}
============================================================
"""


def error_file(
    local: int, message: str = "ValueError: bad\n\tweights", *, modified: int = 1000, attempt: int = 0
) -> LeftFile:
    content = {"message": {"message": message, "extraInfo": {"py_callstack": STACK, "timestamp": "1"}}}
    path = f"j-2_x1/attempt_{attempt}/{local}/error.json"
    return LeftFile(path=path, content=json.dumps(content), modified=modified)


def test_the_failure_summary_of_torchrun_gives_process_and_exit_code() -> None:
    cause = explain_failure(job(), Remains(log=log_of(entry(2, code=7))), PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.code, cause.signal, cause.message) == (
        "process 2 (local rank 0)",
        7,
        None,
        "",
    )
    assert cause.printed == "loss=0.5\nno such weights\n"


def test_a_process_error_file_adds_the_exception_and_its_time_to_the_cause() -> None:
    remains = Remains(log=log_of(entry(3, code=1)), files=[error_file(1, modified=1_700_000_000_123)])

    cause = explain_failure(job(), remains, PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.code) == ("process 3 (local rank 1)", 1)
    assert (cause.message, cause.failed) == ("ValueError: bad", 1_700_000_000_123)
    assert cause.traceback[-2:] == ["ValueError: bad", "\tweights"]


def test_an_error_file_without_a_summary_gives_the_process() -> None:
    cause = explain_failure(job(), Remains(log="", files=[error_file(1)]), PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.code, cause.printed) == ("process 3 (local rank 1)", None, None)


def test_the_first_exception_is_the_cause() -> None:
    files = [error_file(0, "RuntimeError: connection closed", modified=2000), error_file(1, modified=1000)]
    log = log_of(entry(2, code=1), entry(3, code=1))

    cause = explain_failure(job(), Remains(log=log, files=files), PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.message) == ("process 3 (local rank 1)", "ValueError: bad")


def test_a_killed_process_is_the_cause_of_exceptions() -> None:
    files = [error_file(0, "RuntimeError: connection closed")]
    log = log_of(entry(2, code=1), entry(3, code=-9, time="2026-11-22_14:00:01"))

    cause = explain_failure(job(), Remains(log=log, files=files), PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.signal, cause.message) == ("process 3 (local rank 1)", 9, "")


def test_a_process_that_torchrun_ended_is_not_the_cause() -> None:
    # It sends SIGTERM, and SIGKILL 30 s later.
    log = log_of(entry(2, code=1), entry(3, code=-15), entry(4, code=-9, time="2026-11-22_14:00:30", local=2))

    cause = explain_failure(job(), Remains(log=log), PEERS[1], PEERS)

    assert cause is not None
    assert cause.process == "process 2 (local rank 0)"


def test_the_error_file_of_the_last_attempt_is_used() -> None:
    files = [error_file(0, "ValueError: first", modified=1), error_file(1, "ValueError: last", attempt=2)]

    cause = explain_failure(job(max_restarts=2), Remains(log="", files=files), PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.message) == ("process 3 (local rank 1)", "ValueError: last")


def test_a_failure_of_torchrun_itself_is_reported() -> None:
    own = LeftFile(
        path="torchrun.json", content=error_file(0, "RendezvousTimeoutError: ").content, modified=1
    )

    cause = explain_failure(job(), Remains(log="", files=[own]), PEERS[1], PEERS)

    assert cause is not None
    assert (cause.process, cause.message) == ("torchrun itself", "RendezvousTimeoutError:")


def test_an_exception_before_a_restart_does_not_hide_a_failure_of_torchrun_itself() -> None:
    own = LeftFile(path="torchrun.json", content=error_file(0, "RendezvousClosedError: ").content, modified=9)
    copied = replace(own, content=error_file(0).content)

    cause = explain_failure(job(max_restarts=1), Remains(log="", files=[error_file(0), own]), PEERS[1], PEERS)
    child = explain_failure(job(), Remains(log="", files=[error_file(0), copied]), PEERS[1], PEERS)

    assert cause is not None
    assert cause.process == "torchrun itself"
    assert child is not None
    assert child.process == "process 2 (local rank 0)"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "null",
        "[]",
        "7",
        '{"message": 7}',
        '{"message": {"message": []}}',
        '{"message"',
        '"message"',
        "[" * 9999,
    ],
)
def test_a_corrupt_error_file_is_ignored(content: str) -> None:
    file = LeftFile(path="j_x/attempt_0/0/error.json", content=content, modified=1)

    assert explain_failure(job(), Remains(log="", files=[file]), PEERS[1], PEERS) is None
    cause = explain_failure(job(), Remains(log=log_of(entry(2, code=1)), files=[file]), PEERS[1], PEERS)
    assert cause is not None
    assert (cause.code, cause.message) == (1, "")


@given(
    log=st.lists(
        st.sampled_from(
            [
                *log_of(entry(2, code=1), entry(3, code=-9)).splitlines(),
                "  time      : 9999999999_1",
                "  rank :",
            ]
        )
        | st.text(max_size=50)
    ),
    files=st.lists(
        st.builds(
            LeftFile,
            path=st.sampled_from(
                ["torchrun.json", "x", "j/attempt_0/0/error.json", "j/attempt_999999999/1/error.json"]
            ),
            content=st.text()
            | st.recursive(
                st.none() | st.text(max_size=5) | st.integers(),
                lambda inner: st.dictionaries(
                    st.sampled_from(["message", "extraInfo", "py_callstack"]), inner
                ),
            ).map(json.dumps),
            modified=st.integers(-(2**70), 2**70),
        )
    ),
)
def test_any_leftover_log_and_error_files_are_read_without_an_error(
    log: list[str], files: list[LeftFile]
) -> None:
    explain_failure(job(), Remains(log="\n".join(log), files=files), PEERS[1], PEERS)


def test_a_strategy_without_failure_analysis_gives_no_cause() -> None:
    alone = Job(job=Identity(id="j"), benchmark=Benchmark(argv=COMMAND))

    assert explain_failure(alone, Remains(log=log_of(entry(2, code=1))), PEERS[0], PEERS[:1]) is None
