"""What a benchmark prints without flushing is there while it runs, and after it was ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from shim_runs import Bench

from bai_agent.benchmark.environment import STARTUP, prepare_environment
from bai_agent.benchmark.start import Order, launch
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Buffering, Identity

PRINTS = "import time\nprint('loss=1')\nprint('loss=2')\n"
WAITS = "time.sleep(600)\n"


def _launch(
    bench: Bench,
    buffering: Buffering,
    *argv: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    job = Job(
        job=Identity(id="j"),
        benchmark=Benchmark(argv=argv, buffering=buffering, inherit_env=True, env=dict(env or {})),
    )
    base = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    order = Order(
        argv=argv,
        env=prepare_environment(job, bench.rundir, scripts=None, secrets={}, base=base),
        cwd=cwd or bench.rundir.path,
        grace=bench.grace,
    )
    launch(order, bench.rundir)


@pytest.mark.parametrize("buffering", [Buffering.LINE, Buffering.TIMED])
def test_prints_of_python_appear_immediately_and_survive_sigterm(bench: Bench, buffering: Buffering) -> None:
    _launch(bench, buffering, sys.executable, "-c", PRINTS + WAITS)

    bench.wait_for_output("loss=1\nloss=2\n")
    bench.stop()

    assert bench.ended()["signal"] == signal.SIGTERM
    assert bench.output == "loss=1\nloss=2\n"


def test_with_line_buffering_no_printed_line_is_lost_after_sigkill(bench: Bench) -> None:
    _launch(
        bench,
        Buffering.LINE,
        sys.executable,
        "-c",
        "import os, signal\nprint('loss=1')\nos.kill(os.getpid(), 9)",
    )

    assert bench.ended()["signal"] == signal.SIGKILL
    assert bench.output == "loss=1\n"


def test_with_own_buffering_unflushed_output_is_lost_after_sigkill(bench: Bench) -> None:
    _launch(bench, Buffering.OWN, sys.executable, "-c", PRINTS + "import os, signal\nos.kill(os.getpid(), 9)")

    bench.ended()

    assert bench.output == ""


def test_with_line_buffering_each_line_is_written_at_once(bench: Bench, tmp_path: Path) -> None:
    # With PYTHONUNBUFFERED alone, Python writes text and newline apart, and lines of several processes get mixed.
    trace = tmp_path / "trace"
    program = "print('loss=1')\nprint('a', 'b', 3)\n"
    _launch(
        bench, Buffering.LINE, "strace", "-o", str(trace), "-e", "trace=write", sys.executable, "-c", program
    )

    assert bench.ended()["code"] == 0
    writes = [
        line.split(", ", 1)[1] for line in trace.read_text().splitlines() if line.startswith("write(1,")
    ]
    assert [line.split('"')[1] for line in writes] == [r"loss=1\n", r"a b 3\n"]


def test_c_programs_are_line_buffered(bench: Bench) -> None:
    # `tr` of coreutils buffers whole blocks into a file.
    _launch(bench, Buffering.LINE, "sh", "-c", "(echo loss=1; sleep 600) | tr a-z A-Z")

    bench.wait_for_output("LOSS=1\n")


def test_timed_flushing_continues_in_forked_children(bench: Bench) -> None:
    program = (
        "import os, time, multiprocessing\n"
        "def child(name):\n"
        "    print('from', name)\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    print('once')\n"
        "    for method in ('fork', 'spawn'):\n"
        "        multiprocessing.get_context(method).Process(target=child, args=(method,), daemon=True).start()\n"
        "    if os.fork() == 0:\n"
        "        child('plain')\n"
        "    time.sleep(600)\n"
    )
    script = bench.rundir.path / "forks.py"
    script.write_text(program)
    _launch(bench, Buffering.TIMED, sys.executable, "-W", "error", str(script))

    for name in ("fork", "spawn", "plain"):
        bench.wait_for_output(f"from {name}\n")

    assert bench.output.count("once\n") == 1
    assert "Warning" not in bench.output


def test_with_timed_buffering_all_output_is_flushed_at_the_end(bench: Bench) -> None:
    _launch(bench, Buffering.TIMED, sys.executable, "-c", "import sys\nprint('x' * 100_000)\nsys.exit(3)")

    assert bench.ended()["code"] == 3
    assert bench.output == "x" * 100_000 + "\n"


@pytest.mark.parametrize("buffering", [Buffering.LINE, Buffering.TIMED])
def test_the_benchmarks_own_sitecustomize_still_runs(
    bench: Bench, tmp_path: Path, buffering: Buffering
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.their_mark = 'ran'\n")
    program = (
        "import sys, sitecustomize\n"
        "print(sys.their_mark, sitecustomize.__file__, [p for p in sys.path if 'startup' in p], 'threading' in sys.modules)\n"
    )
    _launch(bench, buffering, sys.executable, "-c", program, env={"PYTHONPATH": str(own)})

    assert bench.ended()["code"] == 0, bench.output
    assert bench.output == f"ran {own}/sitecustomize.py [] {buffering is Buffering.TIMED}\n"


def test_other_pythons_of_the_machine_load_the_sitecustomize(bench: Bench) -> None:
    # Whatever `python3` the machine has, of whichever version.
    _launch(
        bench,
        Buffering.TIMED,
        "/usr/bin/env",
        "-u",
        "VIRTUAL_ENV",
        "python3",
        "-W",
        "error",
        "-c",
        PRINTS + WAITS,
    )

    bench.wait_for_output("loss=2\n")


def test_timed_flushing_tolerates_a_stdout_that_the_benchmark_closed(bench: Bench) -> None:
    program = "import sys, time\nprint('before')\nsys.stdout.close()\ntime.sleep(0.3)\nprint('after', file=sys.stderr)\n"
    _launch(bench, Buffering.TIMED, sys.executable, "-c", program)

    assert bench.ended()["code"] == 0
    assert bench.output == "before\nafter\n"


def test_a_python_that_exits_during_a_timed_flush_ends_normally() -> None:
    # Nobody reads the full pipe, so the flush of the last line is still in progress when the program ends.
    program = (
        "import os, time\n"
        "os.set_blocking(1, False)\n"
        "try:\n"
        "    while os.write(1, b'.' * 4096): pass\n"
        "except BlockingIOError:\n"
        "    os.set_blocking(1, True)\n"
        "print('last')\n"
        "time.sleep(0.5)\n"
    )
    env = {"PYTHONPATH": str(STARTUP), "BAI_BUFFERING": "timed", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        time.sleep(3)  # the interpreter waits one second for a thread that holds the lock, then aborts
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, output.lstrip(b"."), errors) == (0, b"last\n", b"")


def test_every_supported_python_runs_the_startup_file(tmp_path: Path) -> None:
    pythons = sorted(Path.home().glob(".pyenv/versions/3.1*/bin/python3")) or [Path(sys.executable)]
    for python in pythons:
        for mode in ("line", "timed"):
            env = {"PYTHONPATH": str(STARTUP), "BAI_BUFFERING": mode, "PATH": "/usr/bin:/bin"}
            run = subprocess.run(
                [python, "-W", "error", "-c", "import os\nprint('a')\nif os.fork(): os.wait()\n"],
                env=env,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (run.returncode, run.stdout, run.stderr) == (0, "a\n", ""), (python, mode)
