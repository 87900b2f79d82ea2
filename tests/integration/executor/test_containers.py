"""Jobs whose benchmark runs in a container, by a real podman with an image of this machine's busybox."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cli_harness import BAI
from local_cli import PATIENCE, LocalCli, open_local_cli
from own_podman import IMAGE, own_podman, podman
from small_cgroups import small_cgroup

from bai_agent.shim.container_run import CIDFILE

pytestmark = pytest.mark.root

_ENV = """\
[env]
container = "{image}"
vars = {{ SAYS = "$(IMAGE_SAYS) $(TOKEN)", PATH = "/bin" }}
secrets = {{ TOKEN = "env:TOKEN" }}
[output]
artifacts = ["*.txt"]
"""

WAITS = """
echo loss=0.5
until [ -e go ]; do sleep 0.1; done
echo loss=0.25
"""


@dataclass(frozen=True)
class ContainerCli(LocalCli):
    """A person with podman and an image."""

    podman: tuple[tuple[str, str], ...] = ()

    def write(
        self,
        code: str,
        *,
        image: str = IMAGE,
        strategy: str = "single_node",
        grace: str = "20s",
        more: str = "",
        pull: str = "60s",
    ) -> Path:
        """Write a descriptor whose benchmark is `code`, a shell script."""
        return self.descriptor(
            code,
            limits=f'grace = "{grace}"\npull_timeout = "{pull}"',
            strategy=strategy,
            more=_ENV.format(image=image) + more,
            interpreter="/bin/sh",
        )

    def assert_nothing_is_left(self, job_id: str) -> None:
        """No container, no cgroup of it, and no process of the job or of the engine's monitor."""
        listed = podman(dict(self.podman), "ps", "--all", "--quiet")
        assert (listed.returncode, listed.stdout) == (0, b""), listed
        assert not processes_of(str(self.store / job_id))
        name = (self.rundir(job_id).path / CIDFILE).read_text()
        assert not list(Path("/sys/fs/cgroup").glob(f"*/libpod_parent/libpod-{name}"))


@pytest.fixture(scope="session")
def podman_of_tests() -> Iterator[dict[str, str]]:
    # A short path: podman waits 20 s at the end of a container if those of its sockets are longer than the kernel takes.
    with tempfile.TemporaryDirectory(prefix="bai-podman-") as folder:
        yield own_podman(Path(folder))


@pytest.fixture
def cli(tmp_path: Path, podman_of_tests: dict[str, str]) -> Iterator[ContainerCli]:
    with open_local_cli(tmp_path) as made:
        environment = {**made.environment, **podman_of_tests, "TOKEN": "s3cret", "OF_CALLER": "yes"}
        yield ContainerCli(made.folder, environment, podman=tuple(podman_of_tests.items()))


def processes_of(place: str) -> list[str]:
    """Return the command lines and environments of processes that name a place."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                content = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            except OSError:
                continue
            if place.encode() in content:
                found.append(content.replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_a_run_in_a_container_keeps_metrics_files_variables_and_the_exit_code(cli: ContainerCli) -> None:
    code = """
echo "loss=0.5 $SAYS in $PWD of $(id -u) from '$OF_CALLER' home $HOME"
echo kept >kept.txt
ls /proc/1/root >/dev/null && echo "host's processes"
exit 7
"""
    answer = cli.bai("run", cli.write(code), "--job-id", "one")

    assert answer.code == 1, answer.stdout + answer.stderr
    result = cli.result("one")
    assert (result["outcome"], result["benchmark"]["code"]) == ("failed", 7)
    assert result["metrics"]["per_metric"] == {"loss": 1}
    work = cli.rundir("one").work
    assert f"hello s3cret in {work} of 0 from '' home /" in cli.output("one")
    assert (cli.store / "one" / "artifacts" / "kept.txt").read_text() == "kept\n"
    (inspected,) = json.loads(podman(dict(cli.podman), "image", "inspect", IMAGE).stdout)
    environment = json.loads(cli.rundir("one").environment.read_text())
    assert environment["container"] == {"image": inspected["Id"]}
    # The secret is no argument of a program, and in no record.
    recorded = cli.rundir("one").events.read_text() + json.dumps(result)
    assert "s3cret" not in recorded
    cli.assert_nothing_is_left("one")


def test_cancel_sends_sigterm_to_every_process_of_the_container(cli: ContainerCli) -> None:
    code = """
(trap 'echo the child was told; exit 0' TERM; while :; do sleep 0.1; done) &
trap 'echo the first was told; wait; exit 3' TERM
echo loss=0.5
while :; do sleep 0.1; done
"""
    cli.bai("run", cli.write(code), "--job-id", "one", "--detach")
    cli.await_output("one", "loss=0.5")

    cli.bai("cancel", "one")

    assert cli.bai("status", "one", "--wait").code == 4
    assert "the child was told" in cli.output("one")
    assert "the first was told" in cli.output("one")
    assert cli.result("one")["benchmark"]["code"] == 3, cli.rundir("one").exit.read_text()
    cli.assert_nothing_is_left("one")


def test_a_container_that_ignores_sigterm_is_killed_and_removed(cli: ContainerCli) -> None:
    code = "trap '' TERM\necho loss=0.5\nwhile :; do sleep 0.1; done"
    cli.bai("run", cli.write(code, grace="1s"), "--job-id", "one", "--detach")
    cli.await_output("one", "loss=0.5")

    cli.bai("cancel", "one")

    assert cli.bai("status", "one", "--wait").code == 4
    cli.assert_nothing_is_left("one")


def test_a_container_outlives_its_agent_and_is_adopted(cli: ContainerCli) -> None:
    cli.bai("run", cli.write(WAITS), "--job-id", "one", "--detach")
    cli.await_output("one", "loss=0.5")
    cli.kill_agent("one")
    assert cli.bai("status", "one", "--wait").code == 5

    cli.bai("resume", "one")
    (cli.rundir("one").work / "go").touch()

    assert cli.bai("status", "one", "--wait").code == 0
    assert cli.output("one").count("loss=0.5") == 1
    assert cli.result("one")["metrics"]["per_metric"] == {"loss": 2}
    cli.assert_nothing_is_left("one")


def test_a_lost_container_is_ended_and_removed(cli: ContainerCli) -> None:
    """After a SIGKILL of the agent and of the shim nothing of ours watches the container."""
    cli.bai("run", cli.write(WAITS), "--job-id", "one", "--detach")
    cli.await_output("one", "loss=0.5")
    started = json.loads(cli.rundir("one").started.read_text())
    cli.kill_agent("one")
    subprocess.run(["kill", "-9", str(started["shim_pid"]), str(started["pid"])], check=True, timeout=60)

    cli.bai("resume", "one")

    assert cli.bai("status", "one", "--wait").code == 5
    assert cli.result("one")["outcome"] == "lost"
    cli.assert_nothing_is_left("one")


def test_out_of_memory_in_a_container_is_reported(cli: ContainerCli) -> None:
    """The container obeys the memory limit of the agent's cgroup, though podman gives it one of its own."""
    code = "until grep -q bai-test /proc/self/cgroup; do sleep 0.1; done\ndd if=/dev/zero of=/dev/null bs=600M count=1\nexit 3"
    file = cli.write(code)
    with small_cgroup(400_000_000) as members:
        answer = subprocess.run(
            ["sh", "-c", f'echo $$ >{members}; exec "$@"', "sh", *BAI, "run", file, "--job-id", "one"],
            env=cli.environment,
            cwd=cli.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert answer.returncode == 6, answer.stdout + answer.stderr
    benchmark = cli.result("one")["benchmark"]
    assert (benchmark["oom"], benchmark["code"]) == (True, 3)
    cli.assert_nothing_is_left("one")


def test_repeated_runs_and_their_prepare_commands_run_in_containers(cli: ContainerCli) -> None:
    more = "[repeat]\nruns = 2\nprepare = \"sh -c 'echo prepared $1 $2' sh $(IMAGE_SAYS) $(OF_HOST)\""
    code = "echo loss=0.$BAI_REPEAT"

    answer = cli.bai("run", cli.write(code, more=more), "--job-id", "one", env={"OF_HOST": "of the host"})

    assert answer.code == 0, answer.stdout + answer.stderr
    assert cli.output("one").count("prepared hello $(OF_HOST)\n") == 2
    assert cli.result("one")["metrics"]["per_metric"] == {"loss": 2}
    cli.assert_nothing_is_left("one")


def test_local_nodes_restart_in_separate_containers(cli: ContainerCli) -> None:
    more = '[hardware.distributed]\nnum_instances = 2\n[restart]\nmax_restarts = 1\nbackoff = "100ms"'
    code = "echo loss=0.$BAI_NODE_RANK\nsleep 1\n[ $BAI_GENERATION = 1 ] || exit 9"

    answer = cli.bai("run", cli.write(code, strategy="each_node", more=more), "--job-id", "one")

    assert answer.code == 0, answer.stdout + answer.stderr
    assert "(restarted once)" in answer.stdout
    cli.assert_nothing_is_left("one")


def test_a_command_missing_in_the_image_is_reported_as_not_found(cli: ContainerCli) -> None:
    file = cli.write("")

    answer = cli.bai("run", file, "--set", "ml.benchmark_code=no-such-program", "--job-id", "one")

    assert answer.code == 1
    assert cli.result("one")["outcome"] in ("not_found", "not_executable")
    assert "no-such-program" in cli.output("one")
    cli.assert_nothing_is_left("one")


@pytest.fixture
def silent_registry() -> Iterator[str]:
    """A registry that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class _EmptyRegistry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = (
            b"{}"
            if self.path == "/v2/"
            else b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "no such"}]}'
        )
        self.send_response(200 if self.path == "/v2/" else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that the server calls

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def empty_registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptyRegistry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_missing_image_fails_the_job_before_its_nodes_join(cli: ContainerCli, empty_registry: str) -> None:
    image = f"{empty_registry}/train:1"
    (cli.folder / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{empty_registry}"\ninsecure = true\n'
    )
    more = "[hardware.distributed]\nnum_instances = 2"
    file = cli.write("true", image=image, strategy="each_node", more=more, pull="60s")

    cli.bai(
        "run",
        file,
        "--job-id",
        "one",
        env={"CONTAINERS_REGISTRIES_CONF": str(cli.folder / "registries.conf")},
    )

    result = cli.result("one")
    assert result["outcome"] == "prepare_failed"
    assert f'[env] container: image "{image}" could not be pulled: ' in result["sentence"]
    assert "manifest unknown" in result["sentence"]
    assert not cli.output("one")


def test_a_pull_that_hangs_ends_at_its_limit(cli: ContainerCli, silent_registry: str) -> None:
    image = f"{silent_registry}/train:1"

    cli.bai("run", cli.write("true", image=image, pull="2s"), "--job-id", "one")

    result = cli.result("one")
    assert result["outcome"] == "prepare_failed"
    assert (
        f'[env] container: image "{image}" could not be pulled within limits.pull_timeout'
        in result["sentence"]
    )


@pytest.mark.parametrize("resumes", [True, False])
def test_the_pull_of_a_killed_agent_ends_with_the_next_agent(
    cli: ContainerCli, silent_registry: str, resumes: bool
) -> None:
    # given a pull that hangs, and whose agent is killed
    cli.bai("run", "--detach", cli.write("true", image=f"{silent_registry}/train:1"), "--job-id", "one")
    await_pulls(silent_registry, lambda pulls: len(pulls) == 1)
    (left,) = pulls_from(silent_registry)
    cli.kill_agent("one")

    # when another agent goes on, its pull is the only one
    if resumes:
        assert cli.bai("resume", "one").code == 0
        await_pulls(silent_registry, lambda pulls: len(pulls) == 1 and left not in pulls)

    # then a cancelled job leaves none
    cli.bai("cancel", "one")
    assert cli.bai("status", "one", "--wait").code == 4
    assert not pulls_from(silent_registry)
    assert not cli.rundir("one").image_pull_log.exists()


def pulls_from(registry: str) -> list[int]:
    """Return the processes of podman that pull an image of a registry."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
            if b"pull" in words and f"{registry}/train:1".encode() in words:
                found.append(int(folder.name))
    return found


def await_pulls(registry: str, fit: Callable[[list[int]], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not fit(found := pulls_from(registry)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
