"""Descriptors as users of the benchmark service write them are valid here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bai_agent.job.descriptor_file import parse_job
from executor.descriptor import Descriptor, Finding, load, render_findings

SCRIPT_MODE = r"""
spec_version = "0.1.0"
[info]
description = "A hello world example of script mode"
execution_engine = "aws.ec2"
[info.labels]
task_name = "Hello_world_script-mode"
[hardware]
instance_type = "t3.small"
strategy = "single_node"
[aws.ec2]
image = "ami-0123456789abcdef0"
[ml]
benchmark_code = "$(BAI_SCRIPTS_PATH)/src/entrypoint.sh"
[[output.metrics]]
name = "train_loss"
units = "ratio"
pattern = "train loss (\\d+\\.\\d+|\\d+)"
[[output.metrics]]
name = "accuracy"
units = "ratio"
pattern = 'accuracy=([-+]?\d*\.\d+|\d+)'
"""

HOROVOD = """
spec_version = "0.1.0"
[info]
description = "Horovod, two nodes"
execution_engine = "aws.ec2"
[info.labels]
task_name = "horovod_benchmark_example"
[hardware]
instance_type = "p3.8xlarge"
strategy = "horovod"
[hardware.distributed]
num_instances = 2
processes_per_instance = "gpus"
[aws.ec2]
image = "ami-0123456789abcdef0"
[ml]
benchmark_code = "python3 train.py"
args = "--epochs 8"
[[data.sources]]
src = "https://example.com/mnist.npz"
path = "/data/mnist.npz"
md5 = "8a61469f7ea1b51cbae51d4f78837e45"
"""

AMI_AS_DOCKER_IMAGE = """
spec_version = "0.1.0"
[info]
description = "d"
execution_engine = "aws.ec2"
labels = { task_name = "t" }
[hardware]
instance_type = "t3.small"
strategy = "single_node"
[env]
docker_image = "ami-0abc"
[ml]
benchmark_code = "echo"
[output]
metrics = [ { name = "a", units = "u", pattern = "a=(\\\\d+)" } ]
"""

CONTAINER = """
spec_version = "0.1.0"
[info]
description = "Written for containers"
task_name = "Title with spaces"
scheduling = "*/5 * * * *"
[hardware]
instance_type = "local"
aws_zone_id = "use1-az5"
[hardware.distributed]
num_instances = 1
processes_per_instance = 4
[env]
docker_image = "python:3-alpine"
privileged = false
extended_shm = true
[env.vars]
OMP_NUM_THREADS = 36
KMP_AFFINITY = "granularity=fine,verbose,compact,1,0"
[ml]
framework = "tensorflow"
framework_version = "1.15.3"
benchmark_code = "python -W ignore train.py --job Testjob"
[data]
[[data.sources]]
src = "s3://bucket-one/imagenet/train-480px"
path = "~/data/imagenet/train"
[[data.sources]]
src = "s3://bucket-two/imagenet/validation"
path = "~/data/imagenet/validation"
id = "validation"
[custom_params]
python_version = "py3"
sagemaker_job_name = "testJob"
merge = true
region = "us-east-1"
dashboard = "test_dashboard"
[custom_params.hyper_params]
amp = "true"
validation_frequency = 10
[aws.sagemaker]
anything = [1, 2.5, { deep = true }]
"""

INFERENCE = r"""
spec_version = "0.1.0"
[info]
description = "A server and its client"
[hardware]
instance_type = "t3.small"
strategy = "inference"
[env]
docker_image = "example/client:1"
[ml]
benchmark_code = "./run_benchmark.sh"
args = "--host=$(INFERENCE_SERVER_HOST) --port=$(INFERENCE_SERVER_PORT) --admin=$(INFERENCE_SERVER_PORT_1)"
[[output.metrics]]
name = "response_time"
units = "seconds"
pattern = 'response_time:([-+]?\d*\.\d+|\d+)'
[server]
[server.hardware]
instance_type = "t3.small"
[server.env]
docker_image = "example/server:1"
start_command = "serve --models /models"
start_command_args = "--foreground"
ports = [8080, 8081]
[server.env.vars]
MODEL = "squeezenet"
[server.env.readiness_probe]
path = "/ping"
port = 8080
scheme = "http"
initial_delay_seconds = 5
[[server.models]]
src = "https://example.com/model.mar"
path = "/models/model.mar"
md5 = "5d41402abc4b2a76b9719d911017c593"
[[server.models]]
id = "second"
src = "s3://models/model2"
path = "/path/to/model2"
[server.output]
[[server.output.metrics]]
name = "Requests2XX"
units = "requests"
pattern = 'Requests2XX\.Count:(\d+)'
"""

OTHER_ENGINE_WITHOUT_ML = """
spec_version = "0.1.0"
[info]
description = "Runs elsewhere"
execution_engine = "aws.sagemaker"
[hardware]
instance_type = "ml.c5.18xlarge"
[env]
docker_image = "example/training:1"
"""


def read(folder: Path, text: str, *, script: Path | None = None) -> tuple[Descriptor | None, list[Finding]]:
    path = folder / "benchmark.toml"
    path.write_text(text, "utf-8")
    return load(path, script=script)


@pytest.mark.parametrize(
    "text",
    [HOROVOD, AMI_AS_DOCKER_IMAGE, CONTAINER, INFERENCE, OTHER_ENGINE_WITHOUT_ML],
    ids=["horovod", "ami-as-docker-image", "container", "inference", "other-engine"],
)
def test_a_sample_of_the_service_is_valid(tmp_path: Path, text: str) -> None:
    descriptor, findings = read(tmp_path, text)

    assert descriptor is not None, render_findings(findings)


def test_the_script_mode_sample_is_valid_with_its_scripts(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "entrypoint.sh").write_text("#!/bin/sh\n")

    descriptor, findings = read(tmp_path, SCRIPT_MODE, script=tmp_path / "src")

    assert descriptor is not None, render_findings(findings)


def test_a_descriptor_without_a_command_has_one_finding(tmp_path: Path) -> None:
    descriptor, findings = read(tmp_path, SCRIPT_MODE.replace("benchmark_code", "framework_version"))

    assert descriptor is None
    assert [finding.key for finding in findings] == ["ml.benchmark_code"]


def test_a_client_without_a_command_is_refused_as_by_plan(tmp_path: Path) -> None:
    descriptor, findings = read(tmp_path, INFERENCE.replace("benchmark_code", "framework_version"))

    assert descriptor is None
    assert "ml.benchmark_code" in [finding.key for finding in findings]


def test_variables_of_the_server_are_known_to_its_client_alone(tmp_path: Path) -> None:
    for text, words in ((INFERENCE, 0), (INFERENCE.replace('strategy = "inference"', ""), 3)):
        _, findings = read(tmp_path, text)

        assert len([each for each in findings if "INFERENCE_SERVER" in each.problem]) == words


def test_examples_of_the_descriptor_reference_are_valid_descriptors(tmp_path: Path) -> None:
    examples = toml_blocks("benchmark-descriptor.md")

    assert len(examples) >= 2
    (tmp_path / "train.py").touch()
    for text in examples:
        descriptor, findings = read(tmp_path, text)
        errors = [finding for finding in findings if finding.severity.value == "error"]
        assert descriptor is not None, render_findings(errors)


def test_the_examples_of_the_job_descriptors_reference_are_job_descriptors() -> None:
    examples = toml_blocks("job-descriptor.md")

    assert len(examples) >= 2
    for text in examples:
        assert parse_job(text.encode(), where="docs/job-descriptor.md").job.id


def toml_blocks(page: str) -> list[str]:
    docs = Path(__file__).parents[4] / "docs"
    return re.findall(r"^```toml\n(.*?)^```$", (docs / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
