"""The image, the compose file, the manifests and the patch agree with the program and its documentation."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from executor.configuration.config import VARIABLES, read_settings

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "service"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [
    tuple(line.split(maxsplit=1))
    for line in DOCKERFILE.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]
RUNTIME = INSTRUCTIONS[max(at for at, each in enumerate(INSTRUCTIONS) if each[0] == "FROM") :]
COMPOSE = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
MANIFESTS = {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())}
POD = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def of_image(instruction: str) -> str:
    (found,) = [rest for name, rest in RUNTIME if name == instruction]
    return found


def image_environment() -> dict[str, str]:
    return dict(each.split("=", 1) for each in shlex.split(of_image("ENV")))


def parsed(command: list[str]) -> dict[str, Any]:
    """Return what the program takes a command line for. Raises where it does not know an option."""
    from executor.cli import group

    name, *options = command
    found: dict[str, Any] = group().commands[name].make_context(name, options).params
    return found


def known_variables() -> set[str]:
    table = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs" / "service.md").read_text(), re.MULTILINE))
    assert "CONSUMER_GROUP_ID" in table
    aws = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_PROFILE"}
    own = {name for name, _ in VARIABLES.values()}
    return (
        table | aws | own | {"KAFKA_BOOTSTRAP_SERVERS", "BAI_KAFKA_BROKERS", "BAI_CONFIG", "XDG_CACHE_HOME"}
    )


@pytest.mark.parametrize(
    "command",
    [json.loads(of_image("CMD")), COMPOSE["services"]["bai"]["command"], CONTAINER["args"]],
    ids=["image", "compose", "kubernetes"],
)
def test_the_command_line_of_the_examples_is_valid(command: list[str]) -> None:
    assert json.loads(of_image("ENTRYPOINT")) == ["bai"]
    assert command[0] == "serve"
    assert parsed(command)["http"] == f":{of_image('EXPOSE')}"


def test_every_variable_of_the_examples_is_read_by_bai() -> None:
    given = {
        *COMPOSE["services"]["bai"]["environment"],
        *(each["name"] for each in CONTAINER["env"]),
        *(image_environment().keys() - {"PATH", "PYTHONUNBUFFERED"}),
        *re.findall(r"--env (\w+)", DOCKERFILE),
    }
    assert given - known_variables() == set()


def test_no_secret_is_written_down() -> None:
    assert [
        name
        for name, value in COMPOSE["services"]["bai"]["environment"].items()
        if value is not None and re.search("KEY|SECRET|TOKEN|PASSWORD", name)
    ] == []
    assert "Secret" not in MANIFESTS
    for path in EXAMPLES.iterdir():
        assert not re.search(r"AKIA|BEGIN [A-Z ]*PRIVATE KEY|password", path.read_text()), path


def test_the_image_contains_all_modules_and_runs_unprivileged() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [rest.split()[:-1] for name, rest in INSTRUCTIONS if name == "COPY" and "--from" not in rest]
    for source in {each for sources in copied for each in sources}:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= {each for sources in copied for each in sources}
    user, _, group = of_image("USER").partition(":")
    assert int(user) == int(group) == POD["securityContext"]["runAsUser"] > 0
    assert f"--uid {user}" in next(rest for name, rest in RUNTIME if name == "RUN")
    # Nothing of what builds it is left: the last stage takes two folders of the first.
    assert {rest.split()[1] for name, rest in RUNTIME if name == "COPY"} == {"/opt/bai", "/opt/cache"}


def test_probes_request_existing_endpoints() -> None:
    source = (ROOT / "executor" / "service" / "http.py").read_text()
    answered = set(re.findall(r'"(/\w+)"', source))
    probes = {CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")}
    assert probes == {"/healthz", "/readyz"}
    annotations = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert {*probes, annotations["prometheus.io/path"]} == answered
    port = int(of_image("EXPOSE"))
    assert [each["containerPort"] for each in CONTAINER["ports"]] == [port]
    assert annotations["prometheus.io/port"] == str(port)
    assert f":{port}/healthz" in of_image("HEALTHCHECK")


def test_the_config_map_is_a_configuration_where_the_image_looks(tmp_path: Path) -> None:
    ((name, text),) = MANIFESTS["ConfigMap"]["data"].items()
    (mount,) = [each["mountPath"] for each in CONTAINER["volumeMounts"] if each["name"] == "config"]
    assert image_environment()["BAI_CONFIG"] == f"{mount}/{name}"
    file = tmp_path / name
    file.write_text(text)

    settings = read_settings(environment={}, file=file)

    assert settings.need_bucket()
    assert settings.service.bounds.cost is not None
    assert POD["serviceAccountName"] == MANIFESTS["ServiceAccount"]["metadata"]["name"]


def test_compose_has_the_brokers_that_the_service_is_given() -> None:
    kafka, bai = COMPOSE["services"]["kafka"], COMPOSE["services"]["bai"]
    advertised = kafka["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert f"INSIDE://{bai['environment']['KAFKA_BOOTSTRAP_SERVERS']}" in advertised
    assert kafka["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert (EXAMPLES / bai["build"]).resolve() == ROOT


def test_fluent_bit_reads_the_documented_path() -> None:
    text = (EXAMPLES / "fluent-bit.conf").read_text()
    given = dict(re.findall(r"^ +(\w+) +(\S+)$", text, re.MULTILINE))
    documented = re.search(r'\[log_lines\]\npath = "(.+)"', (ROOT / "docs" / "service.md").read_text())
    assert documented is not None
    assert given["Path"] == documented[1]
    assert (given["Logstash_Prefix"], given["Type"]) == ("logstash", "fluentd")
    parsers = (EXAMPLES / given["Parsers_File"]).read_text()
    assert f"Name         {given['Parser']}\n" in parsers
    assert f"Time_Key     {given['Time_Key']}\n" in parsers
