"""No secret gets anywhere but into the benchmark's environment: all places where one could be are searched for planted ones."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import secrets

from kafka_brokers import PASSWORD, USER, Broker

from sandbox.fake_aws import FakeAws
from sandbox.sandbox_cli import SandboxCli

TABLES = """
[[output.metrics]]
name = "loss"
units = "nats"
pattern = 'loss=(\\S+)'
[env.secrets]
TOKEN = "ssm:/bai/token"
[kafka]
brokers = ["{broker}"]
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "SCRAM-SHA-256"
sasl_username = "{user}"
sasl_password = "ssm:/bai/kafka"
"""


def test_planted_secrets_are_found_nowhere(aws: FakeAws, cli: SandboxCli, kafka: Broker) -> None:
    broker = kafka.listeners["SASL_PLAINTEXT"]
    aws.expose(int(broker.rpartition(":")[2]))
    token = f"planted-{secrets.token_hex(16)}"
    for name, value in (("/bai/token", token), ("/bai/kafka", PASSWORD)):
        aws.client("ssm", "setup").put_parameter(Name=name, Value=value, Type="SecureString")
    code = 'echo loss=0.5\nprintf %s "$TOKEN" | sha256sum\nenv | grep -v ^TOKEN=\nexit 1'
    more = TABLES.format(broker=broker, user=USER)
    machine = cli.submit(cli.descriptor(code, ec2='keep_on_failure = "5m"', more=more))
    machine.wait_for("keeping this machine for 300 s")

    mine = aws.identities.of("user")
    role = machine.credentials
    planted = {
        "the benchmark's secret": token,
        "the broker's password": PASSWORD,
        "the user's key": mine.secret_key,
        "the user's key id": mine.access_key,
        "the role's key": role.secret_key,
        "the role's key id": role.access_key,
        "the role's token": str(role.token),
    }

    # They were used: the benchmark had its secret, the broker was given its password.
    stored = cli.objects("jobs/job/")
    log = stored[f"attempts/0/nodes/0/log/{0:020}"].decode()
    assert hashlib.sha256(token.encode()).hexdigest() in log
    kafka_result = json.loads(stored["result.json"])["kafka"]
    assert kafka_result["delivered"] > 0
    assert kafka_result["undelivered"] == 0

    request = json.loads(stored["attempts/0/launch.json"])["request"]
    instance = aws.instance(machine.instance_id)
    places = {
        "user data": gzip.decompress(base64.b64decode(request["UserData"])).decode(),
        "the request": json.dumps(request),
        "tags": json.dumps(instance["Tags"]),
        "the console": machine.console(),
        "what calls say": repr([call for call in aws.calls if call.identity == "user"]),
        **{f"s3: {key}": content.decode(errors="replace") for key, content in cli.objects().items()},
        **{f"at the cli: {path}": path.read_text() for path in cli.folder.rglob("*") if path.is_file()},
        "bai status": cli.bai("status", "job").stdout,
        "bai logs --boot": cli.bai("logs", "job", "--boot").stdout,
    }
    found = [
        (what, where) for where, text in places.items() for what, secret in planted.items() if secret in text
    ]
    for what, secret in planted.items():
        files = machine.run(["grep", "-rlaF", "--", secret, "/etc", "/root", "/tmp", "/var"], seconds=60)
        found += [(what, path) for path in files.stdout.splitlines()]
    assert found == []
