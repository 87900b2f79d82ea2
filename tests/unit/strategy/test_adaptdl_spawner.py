"""The spawner of a node's replicas, as a program of its own: real children, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from agent_runs import is_alive, wait_until

from bai_agent.strategy import adaptdl_spawner

SECONDS = 60
ENDS_AS_TOLD = """
import os, signal, sys, time
rank = int(os.environ["ADAPTDL_REPLICA_RANK"])
end = sys.argv[1 + rank]
if end == "waits":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
if end == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, f"{rank} is {os.getpid()}\\n".encode())
if end.lstrip("-").isdecimal():
    while not os.path.exists("go"):
        time.sleep(0.02)
    if int(end) < 0:
        os.kill(os.getpid(), -int(end))
    sys.exit(int(end))
while True:
    time.sleep(0.05)
"""
"""A replica that ends with the code or by the signal that its argument says once there is a file `go`; `waits` saves at SIGTERM, `hangs` does nothing."""


class Spawned:
    def __init__(self, folder: Path, child: subprocess.Popen[bytes], count: int) -> None:
        self.folder, self.child, self._count = folder, child, count

    def replicas(self) -> dict[int, int]:
        """Return the process of each replica once all have begun."""
        wait_until(lambda: self._lines().count(" is ") == self._count, seconds=SECONDS)
        words = [each.split(" is ") for each in self._lines().splitlines()]
        return {int(rank): int(pid) for rank, pid in words}

    def end(self) -> int:
        """Let them end, and return how the spawner did."""
        self.replicas()
        (self.folder / "go").touch()
        return self.child.wait(timeout=SECONDS)

    def note(self) -> Any:
        path = self.folder / "note.json"
        return json.loads(path.read_text()) if path.exists() else None

    def _lines(self) -> str:
        return (self.folder / "out").read_text()


@contextmanager
def spawned(
    folder: Path, ends: Sequence[str], *, first: int = 0, grace: float = 60, **variables: str
) -> Iterator[Spawned]:
    command = [sys.executable, "-c", ENDS_AS_TOLD, *["0"] * first, *ends]
    argv = [sys.executable, "-I", "-S", adaptdl_spawner.__file__, str(first), str(len(ends)), f"{grace:g}"]
    env = {**os.environ, adaptdl_spawner.FAILURE_FILE: str(folder / "note.json"), **variables}
    with (folder / "out").open("wb") as output:
        child = subprocess.Popen(
            [*argv, "--", *command], cwd=folder, env=env, stdout=output, start_new_session=True
        )
    try:
        yield Spawned(folder, child, len(ends))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (["0", "0"], 0),
        (["143", "143"], 143),
        (["0", "143"], 143),
        (["143", "waits"], 143),  # a replica's own 143 takes the others along
        (["-15", "waits"], 143),  # ended before AdaptDL handles SIGTERM
        (["7", "waits"], 7),
        (["-11", "waits"], 128 + signal.SIGSEGV),
        (["-9", "waits"], 128 + signal.SIGKILL),
        (["7", "hangs"], 7),  # those that cannot save any more are killed
    ],
)
def test_the_spawner_exits_with_the_code_of_its_replicas(tmp_path: Path, ends: list[str], code: int) -> None:
    with spawned(tmp_path, ends) as it:
        processes = it.replicas()

        assert it.end() == code
        assert not any(map(is_alive, processes.values()))
        failed = it.note()
        assert (failed is None) == (code in (0, 143))
        assert failed is None or (failed["rank"], failed["local"]) == (0, 0)


def test_a_sibling_that_does_not_save_is_killed_after_the_grace(tmp_path: Path) -> None:
    with spawned(tmp_path, ["143", "hangs"], grace=0.2) as it:
        assert it.end() == 143
        assert it.note() is None


def test_sigterm_reaches_all_replicas(tmp_path: Path) -> None:
    with spawned(tmp_path, ["waits", "waits"]) as it:
        it.replicas()
        it.child.terminate()

        assert it.child.wait(timeout=SECONDS) == 143


def test_the_first_failed_replica_is_recorded_with_its_rank_in_the_job(tmp_path: Path) -> None:
    with spawned(tmp_path, ["waits", "9"], first=4) as it:
        assert it.end() == 9
        assert {name: it.note()[name] for name in ("rank", "local", "code", "signal")} == {
            "rank": 5,
            "local": 1,
            "code": 9,
            "signal": None,
        }


def test_a_missing_command_is_reported_by_the_spawner(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", adaptdl_spawner.__file__, "0", "1", "1", "--", "no-such-program"]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)

    assert done.returncode == 127
    assert '"no-such-program" cannot be started: No such file or directory' in done.stderr


SHOWN = (
    "ADAPTDL_REPLICA_RANK",
    "ADAPTDL_SHARE_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NO_PROXY",
    "no_proxy",
    "PYTHONPATH",
)


def environments(folder: Path, count: int, **variables: str) -> list[dict[str, str]]:
    """Return what each replica has of the variables `SHOWN`."""
    show = f"import json, os; shown = {{each: os.environ.get(each) for each in {SHOWN}}}"
    show += r"; os.write(1, f'{json.dumps(shown)}\n'.encode())"  # whole lines
    argv = [sys.executable, "-I", "-S", adaptdl_spawner.__file__, "2", str(count), "1", "--"]
    env = {name: value for name, value in os.environ.items() if name not in SHOWN}
    done = subprocess.run(
        [*argv, sys.executable, "-c", show],
        cwd=folder,
        env={**env, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(found, key=lambda each: each["ADAPTDL_REPLICA_RANK"])


def test_replicas_get_a_rank_a_share_folder_the_startup_path_and_no_proxy(tmp_path: Path) -> None:
    found = environments(tmp_path, 2, NO_PROXY="example.com", PYTHONPATH="/theirs")

    assert [each["ADAPTDL_REPLICA_RANK"] for each in found] == ["2", "3"]
    for each in found:
        assert each["ADAPTDL_SHARE_PATH"] == str(tmp_path)
        assert (each["NO_PROXY"], each["no_proxy"]) == ("example.com,127.0.0.1", "127.0.0.1")
        assert each["PYTHONPATH"] == f"{adaptdl_spawner.STARTUP}:/theirs"


@pytest.mark.parametrize(
    ("count", "listed", "devices"),
    [
        (2, "4,GPU-9f", ["4", "GPU-9f"]),
        (2, "0,1,2", ["0", "1"]),
        (2, "0", ["0", "0"]),
        (1, "4,5", ["4,5"]),
    ],
)
def test_each_replica_gets_its_own_gpu_if_there_are_enough(
    tmp_path: Path, count: int, listed: str, devices: list[str]
) -> None:
    found = environments(tmp_path, count, CUDA_VISIBLE_DEVICES=listed)

    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == devices
