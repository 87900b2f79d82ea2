"""The extractor as a process: slow patterns, huge input, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from extraction_runs import entries, extracted, finish_run, make_run, records

from bai_agent.job.run_directory import RunDir
from bai_agent.run.extractor import ExtractorProcess

LIMIT_SECONDS = 120
LOSS = ("loss", r"loss=([\d.]+)")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)


def supervise(rundir: RunDir) -> None:
    """Run the extractor as the agent does, to its end."""
    extractor = ExtractorProcess(rundir)
    extractor.start()

    def finished() -> bool:
        extractor.poll()
        return extractor.finished

    try:
        wait_until(finished, "the end of the extraction")
    finally:
        extractor.stop()


def values(rundir: RunDir, name: str) -> list[float]:
    return [each[6] for each in entries(rundir, "log")["log"] if each[5] == name]


def wait_for_values(rundir: RunDir, count: int) -> None:
    """Wait until so many numbers of the log are recorded."""

    def there() -> bool:
        content = rundir.metrics.read_bytes() if rundir.metrics.exists() else b""
        return content[: content.rfind(b"\n") + 1].count(b'"src":"log"') >= count

    wait_until(there, f"{count} values")


def test_a_pattern_that_backtracks_for_ever_is_disabled_and_others_continue(tmp_path: Path) -> None:
    # given a pattern that takes for ever on the third line, one that takes for ever on a line of digits, and a good one
    nested = ("nested", r"n: ((?:x+)+)y|n=(?P<value>\d+)")
    digits = ("digits", r"(\d+)x")
    lines = [b"loss=1 n=1 7x", b"loss=2 n=2 8x", b"loss=3 n: " + b"x" * 60, b"loss=4 n=4 9x", b"5" * 2**20]
    output = b"\n".join([*lines, b"loss=6 n=6 6x"])
    rundir = make_run(tmp_path, [nested, LOSS, digits], output=output)

    supervise(rundir)

    assert values(rundir, "loss") == [1, 2, 3, 4, 6]
    assert values(rundir, "nested") == [1, 2]
    assert values(rundir, "digits") == [7, 8, 9]
    off = [sentence for sentence in extracted(rundir)["warnings"] if "switched off" in sentence]
    assert len(off) == 2
    assert '"nested"' in off[0]

    # and a later process decides the same
    before = entries(rundir)
    for path in (rundir.extracted, rundir.metrics, rundir.extractor_offset):
        path.unlink()
    supervise(rundir)
    assert entries(rundir) == before


def test_an_endless_section_pattern_disables_only_its_metric(tmp_path: Path) -> None:
    lines = [b"begin", b"n=1 loss=1", b"x" * 60, b"begin", b"n=2 loss=2"]
    rundir = make_run(tmp_path, [("n", r"n=(\d)"), LOSS], output=b"\n".join(lines), after="begin|(?:x+)+y")

    supervise(rundir)

    assert values(rundir, "n") == [1]
    assert values(rundir, "loss") == [1, 2]
    (off,) = [sentence for sentence in extracted(rundir)["warnings"] if "switched off" in sentence]
    assert '"n": its pattern or after took more than' in off


def test_an_endless_context_pattern_disables_only_its_metric(tmp_path: Path) -> None:
    lines = [b"of a", b"n=1 loss=1", b"x" * 60, b"of b", b"n=2 loss=2"]
    context = ["of (?P<of>.)", "(?P<never>(?:x+)+y)"]
    rundir = make_run(tmp_path, [("n", r"n=(\d)"), LOSS], output=b"\n".join(lines), context=context)

    supervise(rundir)

    assert values(rundir, "n") == [1]
    assert values(rundir, "loss") == [1, 2]
    (off,) = [sentence for sentence in extracted(rundir)["warnings"] if "switched off" in sentence]
    assert '"n": its pattern or context took more than' in off


def test_a_slow_pattern_in_a_dense_log_is_disabled_from_the_line_on_which_it_hangs(tmp_path: Path) -> None:
    # given a log whose patterns search many lines at once, and two lines in its midst on which one takes for ever
    nested = ("nested", r"n=(?:x+)+y(\d+)")
    lines = [b"loss=%d n=xy%d" % (n, n) for n in range(6000)]
    lines[3000] = lines[4000] = b"loss=3000 n=" + b"x" * 60
    rundir = make_run(tmp_path, [nested, LOSS], output=b"\n".join(lines))

    supervise(rundir)

    assert values(rundir, "nested") == list(range(3000))
    assert values(rundir, "loss") == [3000 if n == 4000 else n for n in range(6000)]
    (off,) = [sentence for sentence in extracted(rundir)["warnings"] if "switched off" in sentence]
    assert f"byte {len(b' '.join(lines[:3000])) + 1} of" in off


def test_huge_lines_and_binary_data_need_bounded_memory_and_hide_no_match(tmp_path: Path) -> None:
    garbage = bytes(range(256)) * 4096
    rundir = make_run(tmp_path, [LOSS, ("µ", "µ=(\\d)")], exited=False)
    with rundir.output.open("wb") as file:
        file.write(b"loss=1 " + b"x" * 100_000_000 + b" loss=2\nloss=3 \xb5=1 \xc2\xb5=2\n")
        file.write(garbage + b"\nloss=4\r")
        file.write(b"\xff" * 10_000_000)
    extractor = ExtractorProcess(rundir)
    extractor.start()
    try:
        wait_for_values(rundir, 4)
        status = Path(f"/proc/{extractor.pid}/status").read_text()
        finish_run(rundir)
        wait_until(lambda: extractor.finished, "the end")
    finally:
        extractor.stop()

    assert values(rundir, "loss") == [1, 3, 4]
    assert values(rundir, "µ") == [2]
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak_kib < 60 * 1024
    assert any("not searched" in sentence for sentence in extracted(rundir)["warnings"])


def test_a_running_benchmark_is_followed_and_its_host_sampled(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], exited=False, host_metrics=True)
    extractor = ExtractorProcess(rundir)
    extractor.start()
    try:
        for number in range(3):
            with rundir.output.open("ab") as file:
                file.write(b"loss=%d\n" % number)
            wait_for_values(rundir, number + 1)
        wait_until(
            lambda: len({each["off"] for each in records(rundir) if each["src"] == "host"}) > 2, "samples"
        )
        finish_run(rundir)
        wait_until(lambda: extractor.finished, "the end")
    finally:
        extractor.stop()

    host = entries(rundir, "host")["host"]
    assert all(each[5].startswith("bai_host_") for each in host)
    assert [each[:5] for each in host] == sorted(each[:5] for each in host)


def test_the_extractor_dies_with_its_parent(tmp_path: Path) -> None:
    # given a parent that started an extractor and is killed
    rundir = make_run(tmp_path, [LOSS], exited=False, output=b"loss=1\n")
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from bai_agent.run.extractor import ExtractorProcess\nfrom bai_agent.job.run_directory import RunDir\n"
        f"extractor = ExtractorProcess(RunDir(Path({str(tmp_path)!r})))\nextractor.start()\n"
        "print(extractor.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for_values(rundir, 1)
        parent.kill()

    # then it is gone too, and another can take its place
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), "the extractor's end")
    finish_run(rundir)
    supervise(rundir)
    assert values(rundir, "loss") == [1]


def test_a_second_extractor_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], exited=False, output=b"loss=1\n")
    extractor = ExtractorProcess(rundir)
    extractor.start()
    try:
        wait_for_values(rundir, 1)
        second = subprocess.run(
            [sys.executable, "-m", "bai_agent.run.extractor", str(tmp_path)],
            timeout=LIMIT_SECONDS,
            capture_output=True,
            check=False,
        )
    finally:
        extractor.stop()

    assert second.returncode == 1
    assert b"another live process holds extractor.lock" in second.stderr


def test_no_file_descriptor_of_the_parent_is_inherited(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, [LOSS], exited=False)
    extractor = ExtractorProcess(rundir)
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    try:
        extractor.start()
        os.close(write_end)
        # if the child held the other end, there would be no end of file
        assert os.read(read_end, 1) == b""
    finally:
        extractor.stop()
        os.close(read_end)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
