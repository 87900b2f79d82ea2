"""How the shim ends a benchmark, and how it reports an end that it did not cause."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from shim_runs import Bench, classified, until

from bai_agent.benchmark.start import launch
from bai_agent.job.outcome import Outcome
from bai_agent.shim.proc import read_process

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ.clear()
        while True:
            print("still here", flush=True)
            time.sleep(0.01)
    os._exit(0)
os.wait()
print("ready", flush=True)
"""


def test_a_benchmark_can_clean_up_on_sigterm_within_its_grace(bench: Bench) -> None:
    bench.launch(
        "sh",
        "-c",
        'trap "echo cleaning; sleep 0.3; echo cleaned; exit 5" TERM; echo ready; while :; do sleep 0.05; done',
    )
    bench.wait_for_output("ready")

    bench.stop(Outcome.MAX_RUNTIME, grace_s=20)

    ended = bench.ended()
    assert (ended["stop"], ended["code"], ended["signal"]) == ("max_runtime", 5, None)
    assert "cleaned" in bench.output
    assert classified(ended)[0] is Outcome.MAX_RUNTIME


def test_processes_that_ignore_sigterm_are_killed(bench: Bench) -> None:
    bench.launch("sh", "-c", "trap '' TERM; echo ready; sleep 60; sleep 60")
    bench.wait_for_output("ready")

    bench.stop(grace_s=0.2)

    ended = bench.ended()
    assert (ended["stop"], ended["signal"]) == ("cancelled", signal.SIGKILL)
    outcome, sentence = classified(ended)
    assert outcome is Outcome.CANCELLED
    assert "did not end on SIGTERM and was killed" in sentence


@pytest.mark.parametrize("end", ["stopped", "by itself"])
def test_a_daemon_that_ignores_sigterm_is_killed_at_the_end(bench: Bench, end: str) -> None:
    bench.grace = timedelta(seconds=0.2)
    bench.python(STUBBORN + ("time.sleep(60)" if end == "stopped" else ""))
    bench.wait_for_output("ready")
    bench.wait_for_output("still here")

    if end == "stopped":
        bench.stop(grace_s=0.2)

    ended = bench.ended()
    assert ended["left_behind"] == 1
    assert ended["code"] == (None if end == "stopped" else 0)
    assert _writers(bench.rundir.output) == []


def test_child_processes_get_the_full_grace_if_their_shell_ends_first(bench: Bench) -> None:
    child = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    bench.launch("sh", "-c", f'sh -c "{child}" & wait')
    bench.wait_for_output("ready")

    bench.stop(grace_s=20)

    ended = bench.ended()
    assert ended["signal"] == signal.SIGTERM
    assert ended["left_behind"] == 0
    assert "saved" in bench.output


def test_processes_left_after_a_normal_end_get_sigterm_before_sigkill(bench: Bench) -> None:
    bench.launch(
        "sh",
        "-c",
        "(trap 'echo bye; exit 0' TERM; : > ready; while :; do sleep 0.05; done) & until [ -e ready ]; do sleep 0.05; done; exit 4",
    )

    ended = bench.ended()

    assert (ended["code"], ended["stop"]) == (4, None)
    assert ended["left_behind"] >= 1
    assert "bye" in bench.output


def test_a_process_that_exits_shortly_after_the_benchmark_does_not_count_as_left_behind(bench: Bench) -> None:
    bench.launch("sh", "-c", "(trap '' TERM; sleep 0.2; echo last) & exit 0")

    ended = bench.ended()

    assert ended["left_behind"] == 0
    assert bench.output == "last\n"


def test_a_benchmark_suspended_by_sigstop_is_ended_too(bench: Bench) -> None:
    bench.launch("sh", "-c", 'trap "exit 6" TERM; echo ready; kill -STOP $$; sleep 60')
    bench.wait_for_output("ready")

    bench.stop(grace_s=20)

    assert bench.ended()["code"] == 6


def test_a_second_stop_order_is_ignored(bench: Bench) -> None:
    bench.launch("sh", "-c", "trap '' TERM; echo ready; sleep 60; sleep 60")
    bench.wait_for_output("ready")

    assert bench.stop(Outcome.NO_OUTPUT, grace_s=0.3)
    assert not bench.stop(Outcome.CANCELLED, grace_s=100)

    assert bench.ended()["stop"] == "no_output"
    assert [path.name for path in bench.rundir.path.iterdir() if "draft" in path.name] == []


def test_a_malformed_stop_order_is_ignored(bench: Bench) -> None:
    bench.launch("sh", "-c", "echo ready; sleep 60")
    bench.wait_for_output("ready")

    for content in ("", "{", "[]", '{"reason": "cancelled"}', '{"reason": "cancelled", "grace_seconds": 1}'):
        until(lambda: read_process(bench.started["shim_pid"]) is not None, "the shim lives")
        bench.rundir.stop.write_text(content)
        time.sleep(0.3)  # the shim looks five times a second

    assert bench.ended()["stop"] == "cancelled"


def test_a_stop_order_after_the_end_of_the_benchmark_is_ignored(bench: Bench) -> None:
    bench.launch("sh", "-c", "(trap '' TERM; echo ready; sleep 3) & exit 0")
    bench.wait_for_output("ready")
    until(lambda: not Path(f"/proc/{bench.started['pid']}").exists(), "the benchmark ends by itself")

    bench.stop(grace_s=0)

    ended = bench.ended()
    assert (ended["stop"], ended["code"]) == (None, 0)
    assert classified(ended)[0] is Outcome.SUCCEEDED


def test_a_benchmark_cancelled_before_its_start_never_runs(bench: Bench) -> None:
    bench.stop(Outcome.CANCELLED)

    bench.launch("touch", bench.rundir.path / "ran")

    ended = bench.ended()
    assert (ended["stop"], ended["code"], ended["signal"]) == ("cancelled", None, None)
    assert not (bench.rundir.path / "ran").exists()
    assert not bench.rundir.started.exists()
    assert classified(ended)[0] is Outcome.CANCELLED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_shim_ends_the_benchmark(bench: Bench, number: signal.Signals) -> None:
    bench.launch("sh", "-c", 'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.05; done')
    bench.wait_for_output("ready")

    os.kill(bench.started["shim_pid"], number)

    ended = bench.ended()
    assert (ended["stop"], ended["stop_signal"], ended["code"]) == (None, number, 0)
    assert classified(ended)[0] is Outcome.INTERRUPTED
    assert "bye" in bench.output


def test_a_benchmark_killed_by_a_shutdown_before_its_shim_ends_as_interrupted(bench: Bench) -> None:
    bench.launch("sh", "-c", "echo ready; exec sleep 600")
    bench.wait_for_output("ready")

    os.kill(bench.started["pid"], signal.SIGTERM)
    until(lambda: not Path(f"/proc/{bench.started['pid']}").exists(), "the shim sees its end")
    os.kill(bench.started["shim_pid"], signal.SIGTERM)

    ended = bench.ended()
    assert (ended["signal"], ended["stop_signal"]) == (signal.SIGTERM, signal.SIGTERM)
    assert classified(ended)[0] is Outcome.INTERRUPTED


def test_a_shutdown_shortens_a_long_grace(bench: Bench) -> None:
    bench.launch("sh", "-c", "trap '' TERM; echo ready; sleep 600; sleep 600")
    bench.wait_for_output("ready")
    bench.stop(grace_s=600)

    os.kill(bench.started["shim_pid"], signal.SIGTERM)

    assert bench.ended()["signal"] == signal.SIGKILL


def test_the_shim_ignores_sighup(bench: Bench) -> None:
    bench.launch("sh", "-c", "sleep 0.5; exit 9")

    os.kill(bench.started["shim_pid"], signal.SIGHUP)

    assert bench.ended()["code"] == 9


@pytest.mark.usefixtures("_no_memory_killer")
@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGKILL, Outcome.KILLED), (signal.SIGTERM, Outcome.KILLED), (signal.SIGSEGV, Outcome.FAILED)],
)
def test_a_signal_that_bai_did_not_send_is_reported(
    bench: Bench, number: signal.Signals, outcome: Outcome
) -> None:
    bench.launch("sh", "-c", f"ulimit -c 0; kill -{number.value} $$")

    ended = bench.ended()

    assert (ended["signal"], ended["code"], ended["stop"], ended["oom"]) == (number, None, None, False)
    assert classified(ended)[0] is outcome
    assert number.name in classified(ended)[1]


def test_python_stacks_are_in_the_log_before_the_end(bench: Bench) -> None:
    bench.python(
        "import time\n"
        "def waits_for_ever():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(600)\n"
        "waits_for_ever()\n"
    )
    bench.wait_for_output("ready")

    bench.stop(Outcome.NO_OUTPUT, stacks=True)

    ended = bench.ended()
    assert (ended["stop"], ended["signal"]) == ("no_output", signal.SIGTERM)
    assert f"[bai] the Python stacks of process {bench.started['pid']}" in bench.output
    assert "waits_for_ever" in bench.output


def test_a_line_in_the_log_says_why_python_stacks_are_missing(bench: Bench) -> None:
    from dataclasses import replace

    order = replace(
        bench.order("python3", "-c", "import time; print('ready', flush=True); time.sleep(600)"), py_spy=None
    )
    launch(order, bench.rundir)
    bench.wait_for_output("ready")

    bench.stop(Outcome.NO_OUTPUT, stacks=True)

    assert bench.ended()["stop"] == "no_output"
    assert "[bai] no Python stacks: py-spy is not installed" in bench.output


def _writers(path: Path) -> list[str]:
    """Return the descriptors, of whichever process, that are open on `path`."""
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it is gone, or not ours to look at
            if descriptor.readlink() == path:
                found.append(str(descriptor))
    return found


def test_output_after_the_end_of_the_benchmark_is_not_counted_as_its_own(bench: Bench) -> None:
    # Given a process that prints and emits as long as the benchmark does not run any more
    program = (
        'say() { [ -n "$said" ] || { said=yes; echo late; echo late > $F; }; }; '
        # It may be told to end before it has seen the end of the other one.
        "trap 'say; echo bye; echo {} > $F; exit' TERM; : > ready; "
        "while kill -0 $$ 2> /dev/null; do sleep 0.02; done; say; sleep 60 & wait"
    )
    wait = "until [ -e ready ]; do sleep 0.02; done"
    bench.launch(
        "sh", "-c", f"F={bench.rundir.fifo}; ({program}) & {wait}; echo first > $F; echo own; printf 'a rest'"
    )

    ended = bench.ended()

    assert bench.output == "own\na restlate\nbye\n"
    assert ended["output_bytes"] == len("own\na rest")
    assert ended["emit_bytes"] == len("first\n")
    assert bench.rundir.emit.read_text() == "first\nlate\n{}\n"
    assert ended["left_behind_names"]["sleep"] >= 1
    assert sum(ended["left_behind_names"].values()) == ended["left_behind"]


@pytest.mark.parametrize("left", ["(sleep 60; echo late) &", "(sleep 60; echo late) > /dev/null &", ""])
def test_output_through_a_filter_process_counts_as_the_benchmarks(bench: Bench, left: str) -> None:
    slow = 'while read -r line; do sleep 0.1; echo "$line"; done'
    bench.launch("bash", "-c", f"exec > >({slow}); echo one; echo two; {left} exit 3")

    ended = bench.ended()

    assert ended["code"] == 3
    assert ended["output_bytes"] == len("one\ntwo\n")


def test_a_filter_with_a_late_pipe_passes_on_all_output(bench: Bench) -> None:
    # as one that was only just forked: the pipe becomes its standard input when the benchmark has gone
    late = "exec 6<&0 < /dev/null; while kill -0 $$ 2> /dev/null; do :; done; exec <&6 6<&-; cat"
    bench.launch("bash", "-c", f"exec > >({late}); echo one; exit 3")

    ended = bench.ended()

    assert ended["code"] == 3
    assert ended["output_bytes"] == len("one\n")
    assert ended["left_behind"] == 0
