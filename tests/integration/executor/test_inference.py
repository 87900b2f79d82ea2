"""A server and its client on this machine: their ends, and whose failure is reported."""

from __future__ import annotations

import json
import socket
import sys

from free_ports import free_port
from local_cli import LocalCli
from local_nodes import node_folder, node_output

ASKS = """
import os, time, urllib.request
address = "http://" + os.environ["INFERENCE_SERVER_HOST"] + ":" + os.environ["INFERENCE_SERVER_PORT"]
print("asked", urllib.request.urlopen(address, timeout=60).status, flush=True)
print("loss=0.5", flush=True)
"""
"""Asks the server once."""
ASKS_UNTIL_IT_IS_GONE = (
    ASKS
    + """
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    urllib.request.urlopen(address, timeout=60).close()
    time.sleep(0.05)
"""
)
SERVES = """
import http.server, sys, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/" and not asked.is_set():
            # Before the answer, whose end may be the end of all.
            asked.set()
            print("loss=7", flush=True)
        self.send_response(200)
        self.end_headers()
        if self.path == "/":
            served.set()

def end():
    served.wait()
    if sys.argv[2:]:
        print("out of luck", flush=True)
        import os
        os._exit(int(sys.argv[2]))

asked, served = threading.Event(), threading.Event()
threading.Thread(target=end, daemon=True).start()
http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
"""
"""Serves at a port; with a second argument it ends with that code once it was asked for "/"."""


def server_table(port: int, *, code: str = "", more: str = "") -> str:
    """Return the tables of a server at this port. code: the exit code with which it ends early."""
    return f"""
[server.hardware]
instance_type = "local"
[server.env]
start_command = '''
#!{sys.executable}
{SERVES}
'''
start_command_args = "{port} {code}"
ports = [{port}]
[server.env.readiness_probe]
path = "/ready"
initial_delay_seconds = 0
period_seconds = 1
timeout_seconds = 60
[[server.output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
better = "lower"
{more}
"""


def test_a_server_that_ends_early_fails_the_job_with_the_servers_last_lines(cli: LocalCli) -> None:
    file = cli.descriptor(
        ASKS_UNTIL_IT_IS_GONE, strategy="inference", more=server_table(free_port(), code="3")
    )

    answer = cli.bai("run", file, "--job-id", "one")

    result = cli.record("one").result()
    assert result is not None
    assert (answer.code, result["outcome"]) == (1, "failed"), answer.stdout + answer.stderr
    assert result["sentence"].startswith("Node 1: The server failed after ")
    assert result["sentence"].endswith(": it exited with code 3.")
    assert result["last_lines"][-1] == "out of luck"
    assert "Traceback" not in "".join(result["last_lines"])


def test_runs_of_the_client_are_repeated_against_one_server(cli: LocalCli) -> None:
    repeat = "[repeat]\nruns = 2\n"
    file = cli.descriptor(ASKS, strategy="inference", more=server_table(free_port(), more=repeat))

    answer = cli.bai("run", file, "--job-id", "one")

    result = cli.record("one").result()
    assert result is not None
    assert (answer.code, result["outcome"]) == (0, "succeeded"), answer.stdout + answer.stderr
    assert node_output(cli, "one", 0).count("asked 200") == 2
    assert node_output(cli, "one", 1).count("loss=7") == 1
    # Metrics of one name are apart by their node.
    files = [node_folder(cli, "one", node) / "metrics.jsonl" for node in range(2)]
    records = [[json.loads(line) for line in each.read_text().splitlines()] for each in files]
    values = [[each["value"] for each in some if each["name"] == "loss"] for some in records]
    assert values == [[0.5, 0.5], [7.0]]


def test_two_jobs_are_compared_by_metrics_of_the_client_and_of_the_server(cli: LocalCli) -> None:
    for job_id, loss in (("one", "0.5"), ("two", "0.25")):
        server = server_table(free_port()).replace('name = "loss"', 'name = "server_loss"')
        file = cli.descriptor(ASKS.replace("0.5", loss), strategy="inference", more=server)
        answer = cli.bai("run", file, "--job-id", job_id)
        assert answer.code == 0, answer.stdout + answer.stderr

    answer = cli.bai("compare", "one", "two", "--json")

    found = json.loads(answer.stdout)["metrics"]
    values = {each["name"]: (each["a"]["value"], each["b"]["value"]) for each in found}
    assert (values["loss"], values["server_loss"]) == ((0.5, 0.25), (7.0, 7.0))


def test_a_server_port_in_use_fails_the_job_before_its_start(cli: LocalCli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        file = cli.descriptor(ASKS, strategy="inference", more=server_table(port))

        answer = cli.bai("run", file, "--job-id", "one")

    result = cli.record("one").result()
    assert result is not None
    assert (answer.code, result["outcome"]) == (5, "prepare_failed"), answer.stdout + answer.stderr
    assert f"Node 1: port {port} of the server is taken on this machine" in result["sentence"]
    assert node_output(cli, "one", 0) == ""
