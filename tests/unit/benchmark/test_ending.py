from __future__ import annotations

import signal
from typing import Any

import pytest

from bai_agent.benchmark.ending import classify, classify_server, classify_serving
from bai_agent.decode import checked
from bai_agent.job.outcome import Outcome
from bai_agent.job.record_types import RunEnd
from bai_agent.strategy.failure import Cause


def _ended(**what: Any) -> RunEnd:
    table = {
        "code": None,
        "signal": None,
        "exec_error": None,
        "stop": None,
        "stop_signal": None,
        "oom": False,
        "left_behind": 0,
        "wall_seconds": 12.34,
        "peak_memory_bytes": 3 * 2**30,
        "lost": False,
        **what,
    }
    return checked(RunEnd, table, where="exit.json")


@pytest.mark.parametrize(
    ("what", "outcome", "sentence"),
    [
        ({"code": 0}, Outcome.SUCCEEDED, "The benchmark finished successfully after 12.3 s."),
        ({"code": 7}, Outcome.FAILED, "The benchmark failed after 12.3 s: it exited with code 7."),
        (
            {"code": 137},
            Outcome.FAILED,
            "The benchmark failed after 12.3 s: it exited with code 137, "
            "a shell's code for a command that was ended by SIGKILL.",
        ),
        (
            {"code": 127},
            Outcome.FAILED,
            "The benchmark failed after 12.3 s: it exited with code 127, "
            "a shell's code for a command that was not found.",
        ),
        ({"signal": int(signal.SIGSEGV)}, Outcome.FAILED, "The benchmark crashed after 12.3 s: SIGSEGV."),
        (
            {"signal": int(signal.SIGKILL), "wall_seconds": 3725.2},
            Outcome.KILLED,
            "The benchmark was killed after 1 h 2 min 5 s by SIGKILL, which bai did not send.",
        ),
        (
            {"signal": int(signal.SIGKILL), "oom": True},
            Outcome.OOM,
            "The benchmark ran out of memory after 12.3 s: the kernel killed one of its processes (it ended by SIGKILL). "
            "Its largest process had used 3.0 GiB.",
        ),
        (
            {"signal": int(signal.SIGTERM), "stop": "max_runtime", "wall_seconds": 61},
            Outcome.MAX_RUNTIME,
            "The benchmark ran longer than limits.max_runtime and was ended after 1 min 1 s; it ended by SIGTERM.",
        ),
        (
            {"signal": int(signal.SIGKILL), "stop": "no_output", "oom": True},
            Outcome.NO_OUTPUT,
            "The benchmark printed nothing for limits.no_output and was ended after 12.3 s; "
            "the benchmark did not end on SIGTERM and was killed.",
        ),
        (
            {"code": 0, "stop": "cancelled"},
            Outcome.CANCELLED,
            "The job was cancelled after 12.3 s; it exited with code 0.",
        ),
        (
            {"stop": "cancelled", "wall_seconds": 0.0},
            Outcome.CANCELLED,
            "The job was cancelled; its process never started or did not end.",
        ),
        ({"code": 1, "stop": "by hand"}, Outcome.INTERRUPTED, None),
        ({"code": 1, "stop": "disk_full"}, Outcome.DISK_FULL, None),
        (
            {"code": 0, "stop_signal": int(signal.SIGTERM)},
            Outcome.INTERRUPTED,
            "The benchmark was ended after 12.3 s: its shim received SIGTERM, as in a shutdown.",
        ),
        (
            {
                "exec_error": {"errno": 2, "message": "It is not there.", "not_found": True},
                "stop": "cancelled",
            },
            Outcome.NOT_FOUND,
            "It is not there.",
        ),
        (
            {"exec_error": {"errno": 2, "message": "No interpreter.", "not_found": False}},
            Outcome.NOT_EXECUTABLE,
            "No interpreter.",
        ),
        ({"lost": True, "wall_seconds": None}, Outcome.LOST, Outcome.LOST.sentence),
    ],
)
def test_each_end_gives_its_outcome_and_sentence(
    what: dict[str, Any], outcome: Outcome, sentence: str | None
) -> None:
    got, said = classify(_ended(**what))

    assert got is outcome
    assert said.endswith(".")
    assert sentence is None or said == sentence


@pytest.mark.parametrize(
    ("cause", "what", "outcome", "sentence"),
    [
        (
            Cause(process="process 3 (local rank 1)", code=1, message="ValueError: bad weights."),
            {"code": 1},
            Outcome.FAILED,
            "The benchmark failed after 12.3 s: process 3 (local rank 1) exited with code 1: ValueError: bad weights.",
        ),
        (
            Cause(process="process 3 (local rank 1)", code=7),
            {"code": 1},
            Outcome.FAILED,
            "The benchmark failed after 12.3 s: process 3 (local rank 1) exited with code 7.",
        ),
        (
            Cause(process="torchrun itself", message="RendezvousTimeoutError:"),
            {"code": 1},
            Outcome.FAILED,
            "The benchmark failed after 12.3 s: torchrun itself failed: RendezvousTimeoutError:.",
        ),
        (
            Cause(process="process 0 (local rank 0)", signal=signal.SIGSEGV),
            {"code": 1},
            Outcome.FAILED,
            "The benchmark failed after 12.3 s: process 0 (local rank 0) crashed with SIGSEGV.",
        ),
        (
            Cause(process="process 0 (local rank 0)", signal=signal.SIGKILL),
            {"code": 1},
            Outcome.KILLED,
            "The benchmark failed after 12.3 s: process 0 (local rank 0) was ended by SIGKILL, which bai did not send.",
        ),
        (
            Cause(process="process 0 (local rank 0)", signal=signal.SIGKILL),
            {"code": 1, "oom": True},
            Outcome.OOM,
            "The benchmark ran out of memory after 12.3 s: the kernel killed one of its processes (process 0 (local rank 0) "
            "ended by SIGKILL). Its largest process had used 3.0 GiB.",
        ),
    ],
)
def test_the_process_that_failed_first_is_named(
    cause: Cause, what: dict[str, Any], outcome: Outcome, sentence: str
) -> None:
    assert classify(_ended(**what), cause) == (outcome, sentence)


@pytest.mark.parametrize(
    ("what", "outcome", "words"),
    [
        ({"signal": int(signal.SIGTERM), "stop": "succeeded"}, Outcome.SUCCEEDED, "ended by SIGTERM"),
        (
            {"signal": int(signal.SIGTERM), "stop": "succeeded", "oom": True},
            Outcome.SUCCEEDED,
            "ended by SIGTERM",
        ),
        ({"signal": int(signal.SIGTERM), "stop": "peer_failed"}, Outcome.PEER_FAILED, "Another node"),
        (
            {"signal": int(signal.SIGTERM), "stop": "peer_failed", "oom": True},
            Outcome.OOM,
            "ran out of memory on this node",
        ),
        ({"code": 0}, Outcome.LOST, "ended by itself after 12.3 s: it exited with code 0."),
        ({"code": 255}, Outcome.LOST, "it exited with code 255."),
        ({"signal": int(signal.SIGKILL)}, Outcome.LOST, "it ended by SIGKILL."),
        ({"code": None, "lost": True}, Outcome.LOST, "The benchmark was lost"),
        ({"signal": int(signal.SIGTERM), "stop_signal": int(signal.SIGTERM)}, Outcome.INTERRUPTED, "SIGTERM"),
    ],
)
def test_a_serving_node_succeeds_only_if_it_ended_because_it_was_told_to(
    what: dict[str, Any], outcome: Outcome, words: str
) -> None:
    got, said = classify_serving(_ended(**what), program="sshd")

    assert got is outcome
    assert words in said


@pytest.mark.parametrize(
    ("what", "outcome", "sentence"),
    [
        (
            {"code": 0},
            Outcome.FAILED,
            "The server ended by itself after 12.3 s, before its client: it exited with code 0.",
        ),
        ({"code": 3}, Outcome.FAILED, "The server failed after 12.3 s: it exited with code 3."),
        (
            {"signal": int(signal.SIGKILL)},
            Outcome.KILLED,
            "The server was killed after 12.3 s by SIGKILL, which bai did not send.",
        ),
        (
            {"signal": int(signal.SIGTERM), "stop": "succeeded"},
            Outcome.SUCCEEDED,
            "The server finished successfully after 12.3 s; it ended by SIGTERM.",
        ),
    ],
)
def test_a_server_that_ends_before_its_client_has_failed(
    what: dict[str, Any], outcome: Outcome, sentence: str
) -> None:
    assert classify_server(_ended(**what)) == (outcome, sentence)
