"""The benchmark service's inference job: two machines of two types, of which one serves and the other measures it."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from kafka_brokers import Broker
from service_events import fetcher_event
from service_runs import open_service_process

from executor.owned_folders import cache_folder
from sandbox.fake_aws import open_fake_aws
from sandbox.fake_aws.control_plane.images import DEBIAN
from sandbox.fake_aws.fake_aws import PROFILE
from sandbox.fake_aws.iam.identities import SETUP

ACTION, CLIENT = "ACTION-ID-inference", "CLIENT-ID-12345678"
MODEL = "http://h/squeezenet.mar"
SERVER = """
import http.server, sys
model = open(sys.argv[1]).read()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("Requests2XX.Count:1", flush=True)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(model.encode())

http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
ASKS = """
import os, time, urllib.request
assert not os.path.exists("/models/squeezenet.mar")
address = "http://%s:%s/predict" % (os.environ["INFERENCE_SERVER_HOST"], os.environ["INFERENCE_SERVER_PORT"])
for _ in range(3):
    begun = time.monotonic()
    assert urllib.request.urlopen(address, timeout=60).read() == b"weights"
    print("response_time:%f" % (time.monotonic() - begun), flush=True)
"""
SERVER_TABLE: dict[str, Any] = {
    "hardware": {"instance_type": "t3.medium"},
    "env": {
        "docker_image": "example/server:1",
        "start_command": "python3 $(BAI_SCRIPTS_PATH)/src/server.py",
        "start_command_args": "/models/squeezenet.mar",
        "ports": [8080, 8081],
        "readiness_probe": {"path": "/ping", "port": 8080, "scheme": "http", "initial_delay_seconds": 0},
    },
    "models": [{"src": MODEL, "path": "/models/squeezenet.mar"}],
    "output": {
        "metrics": [{"name": "Requests2XX", "units": "requests", "pattern": r"Requests2XX\.Count:(\d+)"}]
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("needs root: machines are made of namespaces and mounts")
    (tmp_path / "home").mkdir()
    return tmp_path


def test_the_services_inference_job_runs_on_two_machines_of_two_types(kafka: Broker, folder: Path) -> None:
    port = int(kafka.address.rpartition(":")[2])
    with open_fake_aws(folder / "aws") as aws:
        aws.expose(port)
        aws.policies.attach("executor", aws.policies.documented("executor", "serve"))
        s3 = aws.client("s3", SETUP)
        s3.put_object(Bucket=aws.data_bucket, Key="models/0f/squeezenet.mar", Body=b"weights")
        s3.put_object(Bucket=aws.data_bucket, Key="scripts/2cf5f8ef.tar", Body=scripts())
        environment = {
            "PATH": os.environ["PATH"],
            "XDG_CACHE_HOME": str(cache_folder(os.environ).parent),
            **aws.environment("executor"),
        }
        configuration = (
            f'bucket = "{aws.bucket}"\ninstance_profile = "{PROFILE}"\ns3_endpoint = "{aws.endpoint}"'
            '\n[service]\nlook_interval = "1s"'
        )
        with open_service_process(
            folder / "home", kafka, environment, configuration, "-inference"
        ) as service:
            service.start()
            service.publish("fetcher", event(aws.data_bucket), key=CLIENT)
            service.wait(
                lambda: ("SUCCEEDED", "Benchmark finished successfully") in service.statuses(ACTION),
                "its end",
            )
            for machine in aws.machines:
                machine.wait_off()
            statuses = service.statuses(ACTION)
            assert service.stop() == 0

        assert statuses[0] == ("PENDING", "Processing benchmark submission request...")
        assert ("RUNNING", "Benchmark running") in statuses
        machines = [aws.instance(each.instance_id) for each in aws.machines]
        assert [each["InstanceType"] for each in machines] == ["t3.small", "t3.medium"]
        assert len({each["SubnetId"] for each in machines}) == 1
        assert [each.exit_codes for each in aws.machines] == [[0], [0]]
    found = [json.loads(record.value) for record in kafka.read("BAI_METRICS")]
    labels = {"client": {"role": "client", "rank": "0"}, "server": {"role": "server", "rank": "1"}}
    for name, role, count in (("response_time", "client", 3), ("Requests2XX", "server", 4)):
        own = [each for each in found if each["name"] == name]
        assert len(own) == count
        for each in own:
            assert labels[role].items() <= each["labels"].items()
            assert each["labels"]["action-id"] == ACTION


def event(bucket: str) -> dict[str, Any]:
    """Return the request of the service, with what its fetcher has brought."""
    model = {
        "src": MODEL,
        "path": "/models/squeezenet.mar",
        "id": None,
        "md5": None,
        "dst": f"s3://{bucket}/models/0f/squeezenet.mar",
        "type": "FILE",
        "status": "DONE",
        "message": None,
        "size_info": None,
    }
    metric = {"name": "response_time", "units": "seconds", "pattern": r"response_time:([-+]?\d*\.\d+|\d+)"}
    changes = {
        "hardware.strategy": "inference",
        "env.docker_image": DEBIAN.image_id,
        "ml.benchmark_code": "python3 $(BAI_SCRIPTS_PATH)/src/client.py",
        "output.metrics": [metric],
        "server": SERVER_TABLE,
    }
    payload = {"models": [model], "scripts": [{"dst": f"s3://{bucket}/scripts/2cf5f8ef.tar"}]}
    return fetcher_event(changes, action_id=ACTION, client_id=CLIENT, payload=payload)


def scripts() -> bytes:
    """Return what the service's client makes of `--script src`."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, text in (("server.py", SERVER), ("client.py", ASKS)):
            member = tarfile.TarInfo(f"src/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()
