"""The patch of the benchmark service applies, and its schema lets pass what `bai serve` runs.

The service's files are not kept here. The patch is applied to files that have the lines that it names, where it names them.
docs/service.md has the command that tries it on the service itself.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomli
from jsonschema import Draft7Validator
from service_events import DATASET, encoded, fetcher_event, put

from executor.configuration.service_config import Bounds, ServiceTable
from executor.descriptor.model import Descriptor
from executor.service.events.event import read_event
from executor.service.events.policy import check_trust
from executor.service.events.requests import ServiceJob, read_request

ROOT = Path(__file__).parents[3]
PATCH = ROOT / "examples" / "service" / "benchmark-service.patch"
SCHEMA = "bai-bff/resources/ec2_descriptor_schema.json"
DESCRIPTORS = sorted((ROOT / "examples").glob("*/*.toml"))
REFUSED = {
    table
    for table in Descriptor.model_fields
    if any(each.path == (table,) for each in check_trust({table: {}}, Bounds(), file="", region=None))
}
"""Tables that no request may have, by the service's own rules."""

HOROVOD: dict[str, Any] = {
    "spec_version": "0.1.0",
    "info": {
        "description": "Older form: the image's script gets arguments",
        "labels": {"task_name": "horovod"},
    },
    "hardware": {
        "instance_type": "p3.8xlarge",
        "strategy": "horovod",
        "aws_zone_id": "use1-az2",
        "distributed": {"num_instances": 2},
    },
    "env": {"docker_image": "example/horovod:1", "privileged": True},
    "ml": {"args": "8"},
    "data": {"sources": [{"src": "http://h/mnist.npz", "path": "/root/mnist.npz", "md5": "8a" * 16}]},
}
INFERENCE: dict[str, Any] = {
    "spec_version": "0.1.0",
    "info": {"description": "A model server and its client", "labels": {"task_name": "inference"}},
    "hardware": {"instance_type": "t3.small", "strategy": "inference"},
    "env": {"docker_image": "example/client:1", "vars": {"MODEL_NAME": "squeezenet_v1.1"}},
    "ml": {"benchmark_code": "./run_benchmark.sh"},
    "output": {"metrics": [{"name": "response_time", "units": "seconds", "pattern": r"response_time:(\d+)"}]},
    "server": {
        "hardware": {"instance_type": "t3.small"},
        "env": {
            "docker_image": "example/server:1",
            "start_command": "serve --models /models",
            "ports": [8080, 8081],
            "readiness_probe": {"path": "/ping", "port": 8080, "scheme": "http"},
        },
        "models": [{"src": "http://h/one.mar", "path": "/models/one.mar"}],
        "output": {
            "metrics": [{"name": "Requests2XX", "units": "requests", "pattern": r"Requests2XX:(\d+)"}]
        },
    },
}
"""The service's samples, as its users write them."""


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the service that the patch touches, as far as it names their lines, with the patch applied."""
    folder = tmp_path_factory.mktemp("service")
    for name, lines in _lines_before().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    for options in (["--check"], []):
        applied = subprocess.run(
            ["git", "apply", *options, PATCH],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert applied.returncode == 0, applied.stderr
    return folder


def _lines_before() -> dict[str, list[str]]:
    """Return each file of the patch with the lines that its hunks name, at their places, and others around them."""
    found = {}
    for part in PATCH.read_text().split("diff --git ")[1:]:
        name = re.match(r"a/(\S+) ", part)
        assert name is not None
        if "\nnew file" in part:
            continue
        lines: list[str] = []
        for start, body in re.findall(r"^@@ -(\d+)\S* [^\n]*\n((?:[ +-].*\n)+)", part, re.MULTILINE):
            lines += [f"line {number}" for number in range(len(lines) + 1, int(start))]
            lines += [line[1:] for line in body.splitlines() if not line.startswith("+")]
        found[name[1]] = [*lines, "the end"]
    return found


@pytest.fixture(scope="module")
def schema(patched: Path) -> Draft7Validator:
    read = json.loads((patched / SCHEMA).read_text())
    Draft7Validator.check_schema(read)
    return Draft7Validator(read)


def test_the_patched_files_name_our_engine(patched: Path) -> None:
    (engine,) = ServiceTable().engine_ids

    named = {path.name for path in patched.rglob("*.*") if f'"{engine}"' in path.read_text()}
    assert named == {
        "ec2_descriptor_schema.json",
        "events.clj",
        "descriptor.py",
        "kafka_service_watcher.py",
    }
    assert f'"{Path(SCHEMA).name}"' in (patched / "bai-bff/src/bai_bff/events.clj").read_text()


def test_the_schema_has_every_table_that_a_request_may_have(schema: Draft7Validator) -> None:
    assert {"matrix", "kafka"} <= REFUSED
    assert isinstance(schema.schema, dict)
    assert set(schema.schema["properties"]) == set(Descriptor.model_fields) - REFUSED


@pytest.mark.parametrize("path", DESCRIPTORS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_schema_accepts_our_examples(schema: Draft7Validator, path: Path) -> None:
    descriptor = tomli.loads(path.read_text())
    descriptor["info"]["execution_engine"] = "aws.ec2"
    refused = REFUSED & set(descriptor)
    for table in refused:
        assert not schema.is_valid(descriptor)
        del descriptor[table]

    assert [each.message for each in schema.iter_errors(descriptor)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limit", {"max_runtime": "2h"}),
        ("kafka", {"brokers": ["broker:9092"]}),
        ("info.execution_engine", "default"),
        ("info.labels", {"task_name": "two words"}),
        ("info.labels", {f"label-{number}": "x" for number in range(11)}),
        ("hardware", {"strategy": "single_node"}),
        ("data", {"sources": [{"src": "s3://bucket/x"}]}),
        ("server", {"models": [{"path": "/models/x"}]}),
        ("ml.script", {"script": 3}),
        ("spec_version", "0.2.0"),
    ],
)
def test_the_schema_refuses_what_the_service_cannot_read(
    schema: Draft7Validator, key: str, value: Any
) -> None:
    contents = fetcher_event()["payload"]["toml"]["contents"]
    assert schema.is_valid(contents)

    put(contents, key, value)

    assert not schema.is_valid(contents)


def _changes(sample: str) -> dict[str, str]:
    """Return the keys that docs/service.md has for one of the service's samples."""
    row = re.search(rf"^\| {sample} \|[^|]*\|([^|]*)\|", (ROOT / "docs/service.md").read_text(), re.MULTILINE)
    assert row is not None
    return {key: json.loads(value) for key, value in re.findall(r'`([\w.]+) = ("[^`]*")`', row[1])}


def _through_the_service(schema: Draft7Validator, sample: dict[str, Any], name: str) -> ServiceJob:
    """Return the job of a sample with its changes, after the front end's check and the fetcher's copies."""
    contents = copy.deepcopy(sample)
    for key, value in (_changes("all") | _changes(f"`{name}`")).items():
        put(contents, key, value)
    assert [each.message for each in schema.iter_errors(contents)] == []
    sources = contents.get("data", {}).get("sources", [])
    models = contents.get("server", {}).get("models", [])
    event = fetcher_event(
        payload={
            "toml": {"contents": contents, "descriptor_filename": "descriptor.toml"},
            "datasets": [{**DATASET, **each} for each in sources],
            "models": [{**DATASET, **each} for each in models],
            "scripts": [{"dst": "s3://scripts-exchange/anubis/2cf5f8ef.tar"}],
        }
    )
    return read_request(read_event(encoded(event)), Bounds(), region="us-east-1")


def test_the_services_horovod_sample_is_a_job(schema: Draft7Validator) -> None:
    job = _through_the_service(schema, HOROVOD, "horovod").descriptor

    assert job.ml is not None
    assert (job.ml.benchmark_code, job.ml.args) == ("$(BAI_SCRIPTS_PATH)/src/train.sh", "8")
    assert job.hardware.distributed is not None
    assert job.hardware.distributed.launch == "user"
    assert job.hardware.distributed.num_instances.most == 2
    assert [each.path for each in job.data.sources] == ["/root/mnist.npz"]


def test_the_services_inference_sample_is_a_job(schema: Draft7Validator) -> None:
    job = _through_the_service(schema, INFERENCE, "inference-benchmark").descriptor

    assert job.server is not None
    assert [each.path for each in job.server.models] == ["/models/one.mar"]
    assert job.env.docker_image == "ami-0123456789abcdef0"
