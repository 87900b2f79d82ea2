"""Ray's program on a node, with a stand-in for Ray: real children, real signals, real ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from agent_runs import is_alive, wait_until
from free_ports import free_port
from stand_in_ray import StandInRay

from bai_agent.strategy import ray_node

SECONDS = 120
HEAD, WORKER = "127.0.0.1", "127.0.0.2"
TOKEN = "0123456789abcdef"
TELLS = """
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith(("RAY_", "BAI_RAY_"))}
told["token"] = open(told["RAY_AUTH_TOKEN_PATH"]).read()
print(json.dumps(told), flush=True)
"""
WAITS = """
import os, signal, sys, time
def end(*_):
    print("saved with", *sorted(os.listdir(sys.argv[1])), flush=True)
    os._exit(5)
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
while True:
    time.sleep(0.05)
"""
"""Says at SIGTERM which nodes its Ray has then."""


class Node:
    def __init__(self, folder: Path, child: subprocess.Popen[bytes], temporary: Path) -> None:
        self.folder, self.child, self._temporary = folder, child, temporary

    @property
    def output(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def note(self) -> Any:
        path = self.folder / "note.json"
        return json.loads(path.read_text())["message"] if path.exists() else None

    def wait(self) -> int:
        """Return how it ended; nothing of it is left."""
        code = self.child.wait(timeout=SECONDS)
        assert list(self._temporary.iterdir()) == []
        return code


class Cluster:
    """Two nodes on this machine."""

    def __init__(self, folder: Path) -> None:
        self.ray = StandInRay(folder)
        self.port = free_port()
        self._folder = folder
        self.nodes: list[Node] = []

    def start(
        self, role: str, *command: str, nodes: str = f"{HEAD},{WORKER}", join: float = SECONDS, least: int = 2
    ) -> Node:
        address = HEAD if role == "head" else WORKER
        # Short, as its path must be; each has one of its own.
        temporary = Path("/tmp", f"t{os.getpid()}{role[0]}")
        temporary.mkdir(exist_ok=True)
        folder = self._folder / role
        folder.mkdir()
        options = {"role": role, "address": address, "port": self.port, "nodes": nodes}
        options |= {"least": least, "join": join, "share": 2}
        words = [f"--{name}={value}" for name, value in options.items()]
        env = {**os.environ, **self.ray.env, "TMPDIR": str(temporary), ray_node.TOKEN: TOKEN}
        env[ray_node.FAILURE_FILE] = str(folder / "note.json")
        with (folder / "out").open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", ray_node.__file__, *words, "--", *command],
                env=env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.nodes.append(Node(folder, child, temporary))
        return self.nodes[-1]

    def started(self, address: str) -> Any:
        path = self.ray.shared / f"started-{address}"
        wait_until(path.exists, seconds=SECONDS)
        wait_until(lambda: path.read_text().endswith("}"), seconds=SECONDS)
        return json.loads(path.read_text())

    def close(self) -> None:
        for each in self.nodes:
            with suppress(ProcessLookupError):
                os.killpg(each.child.pid, signal.SIGKILL)
            each.child.wait()
        for path in self.ray.shared.glob("started-*"):
            with suppress(ProcessLookupError):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
        for each in self.nodes:
            subprocess.run(["rm", "-rf", str(each._temporary)], check=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def test_the_command_runs_in_a_ray_cluster_of_all_nodes_and_gives_the_heads_exit_code(
    cluster: Cluster,
) -> None:
    head = cluster.start("head", sys.executable, "-c", TELLS + "sys.exit(3)")
    # It waits for the second node.
    cluster.started(HEAD)
    assert head.output == ""
    worker = cluster.start("worker")

    assert head.wait() == 3
    told = json.loads(head.output)
    assert told["RAY_ADDRESS"] == f"{HEAD}:{cluster.port}"
    assert (told["RAY_AUTH_MODE"], told["token"]) == ("token", TOKEN)
    assert not {"BAI_RAY_TOKEN", "RAY_AUTH_TOKEN"} & told.keys()
    assert not is_alive(cluster.started(HEAD)["pid"])

    # The other node's Ray outlives its head, and ends by our order.
    assert worker.child.poll() is None
    assert cluster.ray.nodes() == [WORKER]
    worker.child.terminate()
    assert (worker.wait(), worker.output, worker.note) == (0, "", None)
    assert not is_alive(cluster.started(WORKER)["pid"])


def test_ray_reads_the_token_from_a_file_that_only_its_user_can_read(cluster: Cluster) -> None:
    cluster.start("head", "true")
    cluster.start("worker")

    for address in (HEAD, WORKER):
        told = cluster.started(address)
        assert (told["token"], told["mode"], told["env"]["RAY_AUTH_MODE"]) == (TOKEN, "0o100600", "token")
        assert TOKEN not in json.dumps([told["argv"], told["env"]])


def test_each_node_listens_at_its_own_address_and_at_free_ports(cluster: Cluster) -> None:
    cluster.start("head", "true")
    cluster.start("worker")

    head, worker = cluster.started(HEAD)["argv"], cluster.started(WORKER)["argv"]
    assert {f"--node-ip-address={HEAD}", "--head", f"--port={cluster.port}"} <= set(head)
    assert {f"--node-ip-address={WORKER}", f"--address={HEAD}:{cluster.port}", "--num-gpus=0"} <= set(worker)
    for words in (head, worker):
        assert {"--node-manager-port=0", "--object-manager-port=0", "--dashboard-agent-listen-port=0"} <= set(
            words
        )
        folder = next(each for each in words if each.startswith("--temp-dir=")).removeprefix("--temp-dir=")
        longest = f"{folder}/session_2026-11-26_17-00-06_862685_4194304/sockets/plasma_store.10"
        assert len(longest) <= 107


def test_the_command_gets_sigterm_while_ray_still_runs(cluster: Cluster) -> None:
    head = cluster.start("head", sys.executable, "-c", WAITS, str(cluster.ray.shared / "nodes"))
    cluster.start("worker")
    wait_until(lambda: "begun" in head.output, seconds=SECONDS)

    os.killpg(head.child.pid, signal.SIGTERM)

    assert head.wait() == 5
    assert f"saved with {HEAD} {WORKER}" in head.output
    assert not is_alive(cluster.started(HEAD)["pid"])


def test_a_head_that_gets_sigterm_before_the_command_does_not_start_it(cluster: Cluster) -> None:
    head = cluster.start("head", sys.executable, "-c", TELLS)
    cluster.started(HEAD)

    os.killpg(head.child.pid, signal.SIGTERM)

    assert (head.wait(), head.output, head.note) == (-signal.SIGTERM, "", None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_head_ends_by_the_signal_that_ended_the_command(cluster: Cluster, number: int) -> None:
    code = f"import os; os.kill(os.getpid(), {number:d})"
    head = cluster.start("head", sys.executable, "-c", code, nodes=HEAD)

    assert head.wait() == -number


@pytest.mark.parametrize(
    ("told", "join", "sentence"),
    [
        ("fails", SECONDS, "Ray on this node exited with code 1: ConnectionError: this Ray is broken"),
        ("hangs", 0.5, "Ray's head did not listen at {head} within limits.join (0.5 s)"),
    ],
)
def test_a_ray_head_that_fails_to_start_ends_with_one_sentence(
    cluster: Cluster, told: str, join: float, sentence: str
) -> None:
    cluster.ray.tell(told)
    head = cluster.start("head", "true", nodes=HEAD, join=join)

    assert head.wait() == 1
    assert head.note == sentence.format(head=f"{HEAD}:{cluster.port}")
    assert head.output == f"[bai] {head.note}\n"


def test_a_ray_port_in_use_is_named(cluster: Cluster) -> None:
    with socket.create_server((HEAD, cluster.port)):
        head = cluster.start("head", "true", nodes=HEAD)

        assert head.wait() == 1
    assert head.note == (
        f"the port {cluster.port} of {HEAD}, at which Ray's head is to listen, is taken by another program"
    )


def test_a_node_whose_head_never_answers_ends_within_the_limit(cluster: Cluster) -> None:
    worker = cluster.start("worker", join=0.5)

    assert worker.wait() == 1
    assert worker.note == f"Ray's head at {HEAD}:{cluster.port} did not answer within limits.join (0.5 s)"


def test_a_node_whose_ray_was_killed_ends_with_the_reason(cluster: Cluster) -> None:
    cluster.ray.tell()
    cluster.start("head", sys.executable, "-c", WAITS, str(cluster.ray.shared))
    worker = cluster.start("worker")
    pid = cluster.started(WORKER)["pid"]

    os.kill(pid, signal.SIGKILL)

    assert worker.wait() == 1
    assert worker.note.startswith("Ray on this node was ended by signal 9")


class WithoutNodes:
    """A Ray whose head listens, and never has these nodes; an hour passes each time it is asked for them."""

    def __init__(self, *absent: str) -> None:
        self.now, self._absent, self.env = 0.0, list(absent), dict(os.environ)
        self.port = free_port()
        self.head = f"{HEAD}:{self.port}"

    def start(self) -> None:
        self.server = socket.create_server((HEAD, self.port))

    def require_running(self) -> None:
        pass

    def missing(self) -> list[str]:
        self.now += 3600
        return self._absent

    def end_look(self) -> None:
        self.server.close()

    def run(self, *, least: int) -> int:
        options = Namespace(nodes=[HEAD, WORKER], port=self.port, join=600, least=least)
        return ray_node.Runner(
            options, cast(ray_node.RayNode, self), ["false"], clock=lambda: self.now
        ).head()


@pytest.mark.parametrize(
    ("absent", "sentence"),
    [
        ([WORKER], f"Ray has 1 of 2 nodes after limits.join (600 s): {WORKER} did not join"),
        ([HEAD, WORKER], "Ray's head at {head} did not report its nodes within limits.join (600 s)"),
    ],
)
def test_the_nodes_that_are_missing_at_the_limit_are_named(absent: list[str], sentence: str) -> None:
    ray = WithoutNodes(*absent)

    with pytest.raises(ray_node.RayError) as failed:
        ray.run(least=2)

    ray.server.close()
    assert str(failed.value) == sentence.format(head=ray.head)


def test_the_command_starts_without_missing_nodes_if_enough_are_there(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert WithoutNodes(WORKER).run(least=1) == 1

    missing = f"Ray has 1 of 2 nodes after limits.join (600 s): {WORKER} did not join"
    assert capfd.readouterr().err == f"[bai] {missing}; the command starts without these nodes\n"


def test_a_missing_command_ends_the_head_with_code_127(cluster: Cluster) -> None:
    head = cluster.start("head", "no-such-command", nodes=HEAD)

    assert head.wait() == 127
    assert head.output == '[bai] "no-such-command" cannot be started: No such file or directory\n'


def test_only_unused_temporary_folders_of_ray_are_removed(cluster: Cluster, tmp_path: Path) -> None:
    head = cluster.start("head", sys.executable, "-c", WAITS, str(cluster.ray.shared), nodes=HEAD)
    wait_until(lambda: "begun" in head.output, seconds=SECONDS)
    (in_use,) = head._temporary.iterdir()
    old = head._temporary / "bai-ray-old"
    new = head._temporary / "bai-ray-new"
    for each in (old, new):
        (each / "session").mkdir(parents=True)
    hour_ago = time.time() - 3600
    for each in (old, in_use):
        os.utime(each, (hour_ago, hour_ago))

    env = {**os.environ, "TMPDIR": str(head._temporary), "PATH": str(tmp_path)}
    words = ["--role=head", f"--address={WORKER}", f"--port={free_port()}", f"--nodes={WORKER}"]
    words += ["--least=1", "--join=1", "--share=1", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", ray_node.__file__, *words], env=env, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (
        1,
        "[bai] ray cannot be started: No such file or directory\n",
    )
    assert sorted(head._temporary.iterdir()) == sorted([in_use, new])
    new.joinpath("session").rmdir()
    new.rmdir()
    os.killpg(head.child.pid, signal.SIGTERM)
    assert head.wait() == 5


@pytest.mark.parametrize(
    ("folder", "problem"),
    [("/no-such", "No such file or directory"), ("/dev/null", "Not a directory")],
)
def test_a_temporary_folder_that_ray_cannot_use_is_named(tmp_path: Path, folder: str, problem: str) -> None:
    note = tmp_path / "note.json"
    env = {**os.environ, "TMPDIR": folder, ray_node.FAILURE_FILE: str(note)}
    words = ["--role=head", f"--address={HEAD}", "--port=1", f"--nodes={HEAD}", "--least=1", "--join=1"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", ray_node.__file__, *words, "--share=1", "--", "true"],
        env=env,
        capture_output=True,
        text=True,
    )

    said = f"Ray cannot have a folder for temporary files in {folder}: {problem}"
    assert (done.returncode, done.stderr) == (1, f"[bai] {said}\n")
    assert json.loads(note.read_text())["message"] == said


@pytest.mark.parametrize("wanted", ["t", "", "/" + "t" * 24])
def test_a_tmpdir_that_ray_does_not_support_is_replaced_by_tmp(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray takes absolute paths alone."""
    monkeypatch.setenv("TMPDIR", wanted)

    assert ray_node._temporary_parent() == Path("/tmp")


def test_a_command_started_during_a_sigterm_to_the_head_also_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not in the process group yet when the group gets SIGTERM."""
    ray = WithoutNodes()
    options = Namespace(nodes=[HEAD], port=ray.port, join=SECONDS, least=1)
    runner = ray_node.Runner(options, cast(ray_node.RayNode, ray), ["sleep", "600"])
    popen = subprocess.Popen

    def start(*args: Any, **others: Any) -> subprocess.Popen[bytes]:
        runner.ask()
        return popen(*args, **others)

    monkeypatch.setattr(subprocess, "Popen", start)

    assert runner.head() == -signal.SIGTERM
