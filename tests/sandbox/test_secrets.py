"""No secret gets anywhere but to whom it is for: all places where one could be are searched for planted ones.

The machine sends its numbers wherever numbers can be sent to, as each of these places has a secret of its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import secrets
from pathlib import Path

from emf_schema import checked, values_of
from free_ports import free_port
from kafka_brokers import PASSWORD, USER, Broker
from pushgateways import PASSWORD as PUSH_PASSWORD
from pushgateways import USER as PUSH_USER
from pushgateways import running_gateway

from sandbox.fake_aws import FakeAws
from sandbox.fake_aws.fake_aws import LOG_GROUP
from sandbox.fake_aws.iam.identities import INSTANCE, SETUP
from sandbox.fake_aws.iam.permissions import needed
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
[prometheus]
pushgateway = "{gateway}"
username = "{push_user}"
password = "ssm:/bai/pushgateway"
[cloudwatch]
log_group = "{log_group}"
"""


def test_planted_secrets_are_found_nowhere(
    aws: FakeAws, cli: SandboxCli, kafka: Broker, tmp_path: Path
) -> None:
    broker, port = kafka.listeners["SASL_PLAINTEXT"], free_port()
    aws.expose(int(broker.rpartition(":")[2]))
    aws.expose(port)
    token = f"planted-{secrets.token_hex(16)}"
    for name, value in {
        "/bai/token": token,
        "/bai/kafka": PASSWORD,
        "/bai/pushgateway": PUSH_PASSWORD,
    }.items():
        aws.client("ssm", SETUP).put_parameter(Name=name, Value=value, Type="SecureString")
    logs = aws.client("logs", SETUP)
    logs.create_log_group(logGroupName=LOG_GROUP)
    aws.policies.attach(INSTANCE, aws.policies.documented("instance", "cloudwatch"))
    code = 'echo loss=0.5\nprintf %s "$TOKEN" | sha256sum\nenv | grep -v ^TOKEN=\nexit 1'
    with running_gateway(tmp_path, port=port, secured=True) as gateway:
        more = TABLES.format(
            broker=broker, user=USER, gateway=gateway.address, push_user=PUSH_USER, log_group=LOG_GROUP
        )
        machine = cli.submit(cli.descriptor(code, ec2='keep_on_failure = "5m"', more=more))
        machine.wait_for("keeping this machine for 300 s")
        pushed = gateway.samples("job", secured=True)

    mine = aws.identities.of("user")
    role = machine.credentials
    planted = {
        "the benchmark's secret": token,
        "the broker's password": PASSWORD,
        "the Pushgateway's password": PUSH_PASSWORD,
        "the same as it is sent": base64.b64encode(f"{PUSH_USER}:{PUSH_PASSWORD}".encode()).decode(),
        "the user's key": mine.secret_key,
        "the user's key id": mine.access_key,
        "the role's key": role.secret_key,
        "the role's key id": role.access_key,
        "the role's token": str(role.token),
    }

    # They were used: the benchmark had its secret, broker and Pushgateway were given their passwords, CloudWatch the role's.
    stored = cli.objects("jobs/job/")
    log = stored[f"attempts/0/nodes/0/log/{0:020}"].decode()
    assert hashlib.sha256(token.encode()).hexdigest() in log
    kafka_result = json.loads(stored["result.json"])["kafka"]
    assert kafka_result["delivered"] > 0
    assert kafka_result["undelivered"] == 0
    assert [value for _, value in pushed["BAI_METRICS_loss"]] == [0.5]
    stream = logs.get_log_events(logGroupName=LOG_GROUP, logStreamName="job/0", startFromHead=True)
    documents = [checked(event["message"]) for event in stream["events"]]
    assert [value for each in documents if "loss" in each for value in values_of(each, "loss")] == [0.5]
    events = [json.loads(line) for line in stored["attempts/0/nodes/0/events.jsonl"].splitlines()]
    told = {
        each["sink"]: (each["delivered"] > 0, each["undelivered"])
        for each in events
        if each["type"] == "delivery"
    }
    assert told == dict.fromkeys(("The job store", "Kafka", "Prometheus", "CloudWatch"), (True, 0))
    sent = [call for call in aws.calls if call.service == "logs"]
    assert {call.instance_id for call in sent} == {machine.instance_id}
    asked = [permission for call in sent for permission in needed(call, aws.policies.around)]
    assert aws.policies.documented("cloudwatch").unused(asked) == set()

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
