"""The steps of a proof. Each is a job, or some questions to the account, and what has to be seen for the code to be right."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from executor.backends.ec2.console import read_console
from executor.backends.ec2.launch.error_classes import RetryAction, classify_error
from on_aws.account import NAME, OWNER_TAG, Account
from on_aws.proof import Step, UnansweredError, expect

_EXAMPLES = Path(__file__).parents[2] / "examples"
_DEBIAN = "ssm:/aws/service/debian/release/12/latest/amd64"
_DEEP_LEARNING = (
    "ssm:/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.12-ubuntu-24.04/latest/ami-id"
)
_NO_CLOUD_INIT = "ssm:/aws/service/bottlerocket/aws-ecs-2/x86_64/latest/image_id"
"""Bottlerocket takes TOML as user data, and has no cloud-init."""
_WAITS = "trap 'echo farewell; exit' TERM; echo begun; while :; do sleep 1; done"
_ENDED_ITSELF = "Client.InstanceInitiatedShutdown"
_BY_A_USER = "Client.UserInitiatedShutdown"


def _benchmark(
    code: str, *, image: str = _DEBIAN, kind: str = "t3.small", nodes: str = "", ec2: str = ""
) -> str:
    return f"""\
spec_version = "0.1.0"
[info]
description = "A step of a proof"
execution_engine = "aws.ec2"
[hardware]
instance_type = "{kind}"
{nodes or 'strategy = "single_node"'}
[aws.ec2]
image = "{image}"
{ec2}
[limits]
max_runtime = "10m"
grace = "5s"
[host_metrics]
enabled = false
[ml]
benchmark_code = '''
#!/bin/sh
{code}
'''
"""


def _submit(account: Account, step: str, text: str, files: dict[str, str] | None = None) -> None:
    account.ok(step, "submit", account.write(step, text, files), "--job-id", account.job(step))


def _ended(account: Account, step: str, *, minutes: float) -> dict[str, Any]:
    """Wait until a job has a result, looking as a person would, and return its status."""

    def look() -> dict[str, Any] | None:
        found = account.status(step)
        return (
            found
            if found["status"] not in ("PENDING", "BOOTING", "RUNNING", "PARKED") and found.get("outcome")
            else None
        )

    return account.wait_for("the job ends", look, minutes=minutes)


def _is(status: dict[str, Any], *outcomes: str) -> str:
    """Return the job's sentence. Raises DiffersError if its outcome is another one."""
    lines = " | ".join((status["result"] or {}).get("last_lines", [])[-2:])
    expect(status["outcome"] in outcomes, f"the outcome is {status['outcome']}: {status['sentence']} {lines}")
    return str(status["sentence"])


def _reasons(machines: list[dict[str, Any]]) -> set[str]:
    return {each.get("StateReason", {}).get("Code", "") for each in machines}


def _off_by_themselves(account: Account, step: str) -> str:
    machines = account.wait_gone(step)
    reasons = _reasons(machines)
    expect(reasons == {_ENDED_ITSELF}, f"the machines ended by {', '.join(sorted(reasons))}")
    return f"{len(machines)} machine{'s' if len(machines) > 1 else ''} ended by {_ENDED_ITSELF}"


def set_up(account: Account) -> str:
    began = time.monotonic()
    command = ("setup", "--yes", "--name", NAME, "--region", account.region)
    account.ok("setup", *command, "--bucket", account.bucket, "--spot", minutes=30)
    took = time.monotonic() - began
    again = account.ok("setup", *command, minutes=10)
    expect("no change" in again.both, f"the same call again said: {again.last_line}")
    return f"ready after {took:.0f} s, and the same call again changed nothing"


def examine(account: Account) -> str:
    return f"exit code 0: {account.ok('doctor', 'doctor').last_line}"


def run_digits(account: Account) -> str:
    job = account.job("digits")
    account.ok(
        "digits", "run", _EXAMPLES / "digits/benchmark.toml", "--on", "ec2", "--job-id", job, "--", "--epochs", "3",
        minutes=20,
    )  # fmt: skip
    metrics = account.ok("digits", "metrics", job, "--name", "accuracy", "--format", "jsonl")
    count = len(metrics.out.splitlines())
    expect(count == 6, f"{count} accuracies are in the store, in place of 6")
    return f"6 accuracies in the store; {_off_by_themselves(account, 'digits')}"


def run_torch(account: Account) -> str:
    job = account.job("torch")
    account.ok(
        "torch", "run", _EXAMPLES / "torch-digits/torchrun.toml", "--on", "ec2", "--instance-type", "c7i.large",
        "--job-id", job, "--", "--epochs", "2",
        minutes=40,
    )  # fmt: skip
    logs = [account.ok("torch", "logs", job, "--node", rank).out for rank in ("0", "1")]
    expect("accuracy=" in logs[0], "node 0 printed no accuracy")
    return f"both nodes trained together; {_off_by_themselves(account, 'torch')}"


_MPI = """\
strategy = "mpi"
[hardware.distributed]
num_instances = 2"""


def run_mpi(account: Account) -> str:
    text = _benchmark(
        'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"',
        image=_DEEP_LEARNING,
        kind="c7i.large",
        nodes=_MPI,
    )
    _submit(account, "mpi", text)
    _is(_ended(account, "mpi", minutes=25), "succeeded")
    log = account.ok("mpi", "logs", account.job("mpi")).out
    expect(all(f"rank {rank} of 2" in log for rank in (0, 1)), "the log lacks a rank")
    return f"two ranks, one on each machine; {_off_by_themselves(account, 'mpi')}"


_RULE = """\
import sys
import boto3
from botocore.exceptions import ClientError
bucket, job, region, *endpoint = sys.argv[1:]
s3 = boto3.client("s3", region_name=region, endpoint_url=endpoint[0] if endpoint else None)
def put(name, **how):
    try:
        s3.put_object(Bucket=bucket, Key=f"jobs/{job}/{name}", Body=b"{}", **how)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "done"
print("rule", put("result.json"), put("result.json", IfNoneMatch="*"), put("result.json", IfNoneMatch="*"),
      put("cancel.json", IfNoneMatch="*"), put("attempts/0/launch.json", IfNoneMatch="*"), put("attempts/0/signs/0"))
"""
_RULED = "rule AccessDenied done PreconditionFailed AccessDenied AccessDenied done"


def try_rule(account: Account) -> str:
    endpoint = os.environ.get("BAI_S3_ENDPOINT", "")
    arguments = f"{account.bucket} {account.job('rule')}-other {account.region} {endpoint}"
    code = f'exec /opt/pytorch/bin/python "$BAI_SCRIPTS_PATH/rule.py" {arguments}'
    text = _benchmark(code, image=_DEEP_LEARNING, kind="c7i.large") + '[ml.script]\npath = "."\n'
    _submit(account, "rule", text, {"rule.py": _RULE})
    _is(_ended(account, "rule", minutes=20), "succeeded")
    log = account.ok("rule", "logs", account.job("rule")).out
    said = next((line for line in log.splitlines() if line.startswith("rule ")), "nothing")
    expect(said == _RULED, f"the machine got: {said}; assumed: {_RULED}")
    return "result.json of another job: refused without If-None-Match, written once with it; what launches and cancels: refused"


def look_at_ec2(account: Account) -> str:
    """Compare what EC2 returns of a machine with what was asked for."""
    step = "ec2"
    _submit(account, step, _benchmark("sleep 45"))
    [machine] = account.instances(step)
    tags = {each["Key"]: each["Value"] for each in machine.get("Tags", [])}
    wanted = {"bai:job-id": account.job(step), "bai:attempt": "0", OWNER_TAG: NAME}
    expect(wanted.items() <= tags.items() and "bai:expires" in tags, f"the machine's tags are {tags}")
    name = machine["InstanceId"]
    filters = [{"Name": "attachment.instance-id", "Values": [name]}]

    def volume() -> dict[str, Any] | None:
        found = account.answer(step, "ec2", "describe_volumes", Filters=filters)["Volumes"]
        return found[0] if found else None

    disk = account.wait_for("a volume is attached", volume, minutes=3)
    on_disk = {each["Key"]: each["Value"] for each in disk.get("Tags", [])}
    expect(wanted.items() <= on_disk.items(), f"the volume's tags are {on_disk}")
    ec2 = account.client("ec2")
    given = ec2.describe_instance_attribute(InstanceId=name, Attribute="userData")
    launch = account.client("s3").get_object(
        Bucket=account.bucket, Key=f"jobs/{account.job(step)}/attempts/0/launch.json"
    )
    asked = json.loads(launch["Body"].read())["request"]["UserData"]
    returned = given["UserData"].get("Value", "")
    expect(base64.b64decode(returned) == base64.b64decode(asked), "the user data are not those of the launch")
    behaviour = account.answer(
        step,
        "ec2",
        "describe_instance_attribute",
        InstanceId=name,
        Attribute="instanceInitiatedShutdownBehavior",
    )
    kind = behaviour["InstanceInitiatedShutdownBehavior"]["Value"]
    expect(kind == "terminate", f"its shutdown leads to: {kind}")
    _is(_ended(account, step, minutes=15), "succeeded")
    ends = _off_by_themselves(account, step)
    later = account.instances(step)[0].get("Tags")

    def last_word() -> str | None:
        output = account.answer(step, "ec2", "get_console_output", InstanceId=name, Latest=True).get(
            "Output", ""
        )
        return read_console(output).end

    word = account.wait_for("the console of the ended machine has a last word", last_word, minutes=12)
    expect(word == "done", f"the console's last word is {word}")
    return (
        f"tags on machine and volume, the same user data ({len(returned)} characters of base64); {ends}; the console "
        f"says BAI-END {word} afterwards; the tags {'stay' if later else 'are gone'} then"
    )


def boot_without_cloud_init(account: Account) -> str:
    step = "no-init"
    try:
        account.client("ssm").get_parameter(Name=_NO_CLOUD_INIT.removeprefix("ssm:"))
    except ClientError as error:
        raise UnansweredError(f"there is no such image here: {error}") from None
    _submit(account, step, _benchmark("echo never", image=_NO_CLOUD_INIT))
    sentence = _is(_ended(account, step, minutes=72), "boot_failed")
    return f"{sentence} {_terminated(account, step)}"


def kill_every_python(account: Account) -> str:
    step = "pythons"
    _submit(account, step, _benchmark("while :; do pkill -9 python; sleep 0.2; done"))
    status = _ended(account, step, minutes=15)
    expect(status["exit_code"] == 5, f"the exit code is {status['exit_code']}: {status['sentence']}")
    account.bai(step, "logs", account.job(step), "--boot")
    return f"{_off_by_themselves(account, step)}; {status['sentence']}"


def panic(account: Account) -> str:
    step = "panic"
    _submit(
        account,
        step,
        _benchmark("sync; sleep 5; sync; echo c >/proc/sysrq-trigger; sleep 600"),
    )
    sentence = _is(_ended(account, step, minutes=20), "lost", "interrupted")
    return f"{_off_by_themselves(account, step)}, after a reboot; {sentence}"


_HANGS = "pkill -STOP -f [g]uardian; pkill -STOP -f [d]eadman; echo begun"
"""A stand-in for a volume or driver that holds up the power-off: the programs that would ask for it are stopped."""


def hang_in_shutdown(account: Account) -> str:
    step = "hangs"
    _submit(account, step, _benchmark(_HANGS))
    _is(_ended(account, step, minutes=15), "succeeded")

    def look() -> bool:
        account.status(step)
        return _going(account, step)

    account.wait_for("`bai status` terminates the machine", look, minutes=15)
    return f"a stand-in: what asks for the power-off was stopped; {_terminated(account, step)} after the next look"


def hang_while_nobody_looks(account: Account) -> str:
    step = "nobody"
    _submit(account, step, _benchmark(_HANGS))
    with account.running(step, "reap", "--every", "30s", "--region", account.region) as look:
        account.wait_for("the look terminates the machine", lambda: _going(account, step), minutes=30)
    expect(account.job(step) in look.said.both, f"`bai reap` said: {look.said.last_line}")
    return f"{_terminated(account, step)}, by a look that knew the job from its bucket alone"


def hang_beside_the_watcher(account: Account) -> str:
    """The last step with a machine: the watcher would look at the jobs of the others, too."""
    step = "watcher"
    watched = ("--watcher", "--watcher-types", "t3.*", "--watcher-usd-a-day", "1")
    account.ok(step, "setup", "--yes", "--name", NAME, "--region", account.region, *watched, minutes=30)
    _submit(account, step, _benchmark(_HANGS))
    account.wait_for("the watcher terminates the machine", lambda: _going(account, step), minutes=30)
    return f"{_terminated(account, step)}, and no command of `bai` had looked"


def _going(account: Account, step: str) -> bool:
    return all(each["State"]["Name"] in ("shutting-down", "terminated") for each in account.instances(step))


def _terminated(account: Account, step: str) -> str:
    reasons = _reasons(account.wait_gone(step))
    expect(reasons == {_BY_A_USER}, f"the machine ended by {', '.join(sorted(reasons))}")
    return f"the machine was terminated ({_BY_A_USER})"


def interrupt_spot(account: Account) -> str:
    step = "spot"
    market = '[aws.ec2.run_instances.InstanceMarketOptions]\nMarketType = "spot"'
    _submit(account, step, _benchmark(_WAITS, ec2=market))
    account.wait_for("the benchmark runs", lambda: account.status(step)["status"] == "RUNNING", minutes=12)
    [machine] = account.instances(step)
    _inject(account, step, machine["InstanceId"])
    sentence = _is(_ended(account, step, minutes=12), "interrupted")
    expect("farewell" in account.ok(step, "logs", account.job(step)).out, "the benchmark was not told")
    reasons = _reasons(account.wait_gone(step))
    return f"{sentence} The machine ended by {', '.join(sorted(reasons))}"


def _inject(account: Account, step: str, instance: str) -> None:
    """Have AWS's fault injection service interrupt a spot machine. Raises UnansweredError if the account does not allow it."""
    partition = account.client("sts").meta.partition
    iam, role = account.client("iam"), f"{NAME}-fis"
    trust = {"Effect": "Allow", "Principal": {"Service": "fis.amazonaws.com"}, "Action": "sts:AssumeRole"}
    rights = {
        "Effect": "Allow",
        "Action": ["ec2:SendSpotInstanceInterruptions", "ec2:DescribeInstances"],
        "Resource": "*",
    }
    try:
        arn = iam.create_role(RoleName=role, AssumeRolePolicyDocument=_policy(trust))["Role"]["Arn"]
        iam.put_role_policy(RoleName=role, PolicyName=NAME, PolicyDocument=_policy(rights))
        fis = account.client("fis")
        # A role is known to other services some seconds after it was made.
        time.sleep(15)
        template = fis.create_experiment_template(
            clientToken=f"{NAME}-{account.stamp}",
            description="Interrupts the spot machine of a proof",
            roleArn=arn,
            stopConditions=[{"source": "none"}],
            targets={
                "machine": {
                    "resourceType": "aws:ec2:spot-instance",
                    "resourceArns": [
                        f"arn:{partition}:ec2:{account.region}:{account.id}:instance/{instance}"
                    ],
                    "selectionMode": "ALL",
                }
            },
            actions={
                "interrupt": {
                    "actionId": "aws:ec2:send-spot-instance-interruptions",
                    "parameters": {"durationBeforeInterruption": "PT2M"},
                    "targets": {"SpotInstances": "machine"},
                }
            },
            tags={OWNER_TAG: NAME},
        )["experimentTemplate"]["id"]
        experiment = fis.start_experiment(experimentTemplateId=template)["experiment"]["id"]

        def state() -> dict[str, str] | None:
            found: dict[str, str] = fis.get_experiment(id=experiment)["experiment"]["state"]
            return None if found["status"] in ("pending", "initiating") else found

        began = account.wait_for("the fault injection begins", state, minutes=5)
    except ClientError as error:
        began = {"status": "failed", "reason": str(error)}
    if began["status"] not in ("running", "completed"):
        account.bai(step, "cancel", account.job(step), "--now")
        raise UnansweredError(f"the account does not allow fault injection: {began.get('reason', began)}")


def _policy(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def ask_where_there_is_none(account: Account) -> str:
    """Ask EC2 itself for a type in a zone that lacks it, and classify its answer as a launch would."""
    step = "capacity"
    ec2 = account.client("ec2")
    zones = {
        each["AvailabilityZone"]: each["SubnetId"]
        for each in ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    }
    kind, zone = _lacking(account, step, set(zones))
    refused = account.bai(
        step, "submit", account.write(step, _benchmark("echo never").replace("t3.small", kind).replace("[aws.ec2]", f'availability_zone = "{zone}"\n[aws.ec2]')),
        "--job-id", account.job(step),
    )  # fmt: skip
    expect(
        refused.code == 2 and "is not offered in" in refused.err, f"`bai submit` said: {refused.last_line}"
    )
    image = account.client("ssm").get_parameter(Name=_DEBIAN.removeprefix("ssm:"))["Parameter"]["Value"]
    tags = [{"Key": OWNER_TAG, "Value": NAME}, {"Key": "bai:job-id", "Value": account.job(step)}]
    try:
        ec2.run_instances(
            ImageId=image, InstanceType=kind, SubnetId=zones[zone], MinCount=1, MaxCount=1,
            InstanceInitiatedShutdownBehavior="terminate",
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )  # fmt: skip
    except ClientError as error:
        meaning = classify_error(error)
        account.keep(step, "answer.txt", f"{meaning.code}: {error}\n")
        expect(meaning.next is RetryAction.NEXT_SUBNET, f"{meaning.code} counts as: {meaning.next.value}")
        return f"{kind} in {zone}: `bai submit` refuses by itself; EC2 answers {meaning.code}, and the next zone would be asked"
    expect(False, f"EC2 launched {kind} in {zone}, which does not offer it")
    return ""


def _lacking(account: Account, step: str, zones: set[str]) -> tuple[str, str]:
    """Return a small type, and a zone of `zones` that does not offer it. Raises UnansweredError."""
    offered: dict[str, set[str]] = {}
    pages = account.client("ec2").get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["*.medium", "*.large"]}]
    )  # fmt: skip
    for page in pages:
        for each in page["InstanceTypeOfferings"]:
            offered.setdefault(each["InstanceType"], set()).add(each["Location"])
    amd64 = ("c5.", "c6i.", "c7a.", "c7i.", "c8i.", "m5.", "m6a.", "m7a.", "m7i.", "r7a.", "c5a.", "c6a.")
    for kind in sorted(each for each in offered if each.startswith(amd64)):
        for zone in sorted(zones - offered[kind]):
            return kind, zone
    raise UnansweredError("each zone of the region offers all of the small types")


def cancel(account: Account) -> str:
    step = "cancel"
    _submit(account, step, _benchmark(_WAITS))
    account.wait_for("the benchmark runs", lambda: account.status(step)["status"] == "RUNNING", minutes=12)
    account.ok(step, "cancel", account.job(step))
    _is(_ended(account, step, minutes=10), "cancelled")
    expect("farewell" in account.ok(step, "logs", account.job(step)).out, "the benchmark was not told")
    return f"the benchmark got SIGTERM and its last line is kept; {_off_by_themselves(account, step)}"


def close_the_group(account: Account) -> str:
    """Launch into a group that lets nothing out, as some accounts have their default one."""
    step = "closed"
    ec2 = account.client("ec2")
    vpc = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not vpc:
        raise UnansweredError("there is no default VPC")
    group = ec2.create_security_group(
        GroupName=f"{NAME}-closed-{account.stamp}",
        Description="Lets nothing out",
        VpcId=vpc[0]["VpcId"],
        TagSpecifications=[{"ResourceType": "security-group", "Tags": [{"Key": OWNER_TAG, "Value": NAME}]}],
    )["GroupId"]
    everything = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=everything)
    file = account.write(step, _benchmark("echo never", ec2=f'security_groups = ["{group}"]'))
    examined = account.bai(step, "doctor", file)
    expect("blocks all outgoing traffic" in examined.both, f"`bai doctor FILE` said: {examined.last_line}")
    account.ok(step, "submit", file, "--job-id", account.job(step))
    sentence = _is(_ended(account, step, minutes=40), "boot_failed")
    return f"`bai doctor FILE` names the group; {_off_by_themselves(account, step)}; {sentence}"


def replace_a_machine(account: Account) -> str:
    step, job = "replaced", account.job("replaced")
    account.ok(
        step, "submit", _EXAMPLES / "torch-digits/elastic.toml", "--instance-type", "c7i.large", "--nodes", "1:2",
        "--set", "elastic.replacements=1", "--set", "limits.max_runtime=60m", "--job-id", job, "--", "--steps", "1000000",
    )  # fmt: skip
    s3 = account.client("s3")

    def joined(node: int) -> bool:
        account.status(step)
        key = f"jobs/{job}/attempts/0/joined/{node}.json"
        return bool(s3.list_objects_v2(Bucket=account.bucket, Prefix=key)["KeyCount"])

    account.wait_for("both nodes join", lambda: joined(0) and joined(1), minutes=20)
    _, second = account.instances(step)
    account.client("ec2").terminate_instances(InstanceIds=[second["InstanceId"]])
    account.wait_for("node 2 joins in place of node 1", lambda: joined(2), minutes=25)
    account.ok(step, "cancel", job)
    result = _ended(account, step, minutes=12)["result"]
    expect(result["replaced"] == [1], f"the result says: replaced {result['replaced']}")
    of_the_job = [{"Name": "tag:bai:job-id", "Values": [job]}]

    def are_gone() -> bool:
        found = account.answer(step, "ec2", "describe_instances", Filters=of_the_job)["Reservations"]
        return all(each["State"]["Name"] == "terminated" for one in found for each in one["Instances"])

    account.wait_for("all of its machines are terminated", are_gone, minutes=10)
    return "the machine of node 1 was terminated; the next look launched node 2, which joined; the result names it"


def run_on_a_gpu(account: Account) -> str:
    step, job = "gpu", account.job("gpu")
    account.ok(
        step, "run", _EXAMPLES / "torch-digits/benchmark.toml", "--on", "ec2", "--instance-type", "g4dn.xlarge",
        "--set", f"aws.ec2.image={_DEEP_LEARNING}", "--job-id", job, "--", "--epochs", "2",
        minutes=35,
    )  # fmt: skip
    shown = account.ok(step, "status", job, "-v").out
    expect("T4" in shown, "`bai status -v` names no T4")
    return f"the GPU is named in the record; {_off_by_themselves(account, step)}"


FIRST = (
    Step(
        name="setup",
        checks="`bai setup` makes the account ready, and changes nothing the second time",
        assumption="executor/backends/ec2/setup/account_setup.py · wait_for_profile",
        run=set_up,
    ),
    Step(
        name="doctor",
        checks="`bai doctor` finds nothing missing",
        assumption="executor/backends/ec2/doctor/doctor.py · examine",
        run=examine,
    ),
)
"""Tried one after the other; without them nothing else is tried."""

STEPS = (
    Step(
        name="digits",
        checks="a job from `bai run` to a machine that is gone",
        assumption="cloud_init/guardian.sh, cloud_init/machine.sh · power_off",
        run=run_digits,
        machines=1,
        type="c7i.large",
        minutes=20,
    ),
    Step(
        name="torch",
        checks="two machines under torchrun train together",
        assumption="executor/backends/ec2/security_group.py · group_request",
        run=run_torch,
        machines=2,
        type="c7i.large",
        minutes=40,
        needs_real="its image has no PyTorch; tests/sandbox/test_torch_on_ec2.py brings one, and trains on two machines",
    ),
    Step(
        name="mpi",
        checks="one mpirun reaches two machines",
        assumption="bai_agent/strategy/mpi.py · _FOLDERS, bai_agent/benchmark/openssh.py",
        run=run_mpi,
        machines=2,
        type="c7i.large",
        minutes=25,
    ),
    Step(
        name="rule",
        checks="a machine's role writes a result once, and nothing that launches or cancels",
        assumption="executor/backends/ec2/iam/instance.json · WriteDescriptorAndResultOnce",
        run=try_rule,
        machines=1,
        type="c7i.large",
        minutes=20,
        needs_real="whether S3 enforces s3:if-none-match in a policy",
        runs_anyway=True,
    ),
    Step(
        name="ec2",
        checks="tags, user data, state reason and console as EC2 returns them",
        assumption="executor/backends/ec2/console.py · read_console, executor/backends/ec2/instances.py · described",
        run=look_at_ec2,
        machines=1,
        minutes=30,
        needs_real="the form in which EC2 returns them",
        runs_anyway=True,
    ),
    Step(
        name="no-init",
        checks="a machine of an image without cloud-init is found and terminated",
        assumption="executor/backends/ec2/monitor/boot_failure.py · never_booted",
        run=boot_without_cloud_init,
        machines=1,
        minutes=75,
        needs_real="there is no such image, and a console that nobody has written",
    ),
    Step(
        name="pythons",
        checks="a benchmark that kills every Python does not keep the machine",
        assumption="cloud_init/guardian.sh · run_agent",
        run=kill_every_python,
        machines=1,
        minutes=15,
    ),
    Step(
        name="panic",
        checks="after a kernel panic the machine reboots and powers off",
        assumption="cloud_init/boothook.sh · /proc/sys/kernel/panic",
        run=panic,
        machines=1,
        minutes=25,
        needs_real="its machines share this one's kernel",
    ),
    Step(
        name="hangs",
        checks="a machine that does not power off after its job is terminated by the next look (a stand-in for one that hangs)",
        assumption="executor/backends/ec2/monitor/ended_job.py · POWER_OFF",
        run=hang_in_shutdown,
        machines=1,
        minutes=30,
    ),
    Step(
        name="nobody",
        checks="the same while nobody looks at the job, by `bai reap --every`",
        assumption="executor/backends/ec2/monitor/bucket_look.py, executor/backends/ec2/watched_jobs.py",
        run=hang_while_nobody_looks,
        machines=1,
        minutes=30,
    ),
    Step(
        name="spot",
        checks="a spot interruption is noticed, and the benchmark told (simulated by AWS's fault injection)",
        assumption="bai_agent/run/stop_sources.py, bai_agent/cli.py · _spot",
        run=interrupt_spot,
        machines=1,
        minutes=30,
        needs_real="there is no fault injection service",
    ),
    Step(
        name="capacity",
        checks="a type that a zone lacks is refused, and counts as a lack of capacity",
        assumption="executor/backends/ec2/launch/error_classes.py · _CAPACITY",
        run=ask_where_there_is_none,
        needs_real="EC2's own refusal",
    ),
    Step(
        name="cancel",
        checks="`bai cancel` ends benchmark and machine, and keeps what was said",
        assumption="bai_agent/run/stop_sources.py",
        run=cancel,
        machines=1,
        minutes=20,
    ),
    Step(
        name="closed",
        checks="a security group that lets nothing out is named before, and ends the machine",
        assumption="executor/backends/ec2/doctor/doctor.py, cloud_init/fetch_agent.py",
        run=close_the_group,
        machines=1,
        minutes=40,
        needs_real="its network does not obey security groups",
    ),
    Step(
        name="replaced",
        checks="a lost machine of an elastic job is replaced",
        assumption="executor/backends/ec2/monitor/replacer.py",
        run=replace_a_machine,
        machines=2,
        type="c7i.large",
        minutes=50,
        needs_real="its image has no PyTorch; tests/sandbox/test_elastic_nodes.py replaces machines of another training",
    ),
    Step(
        name="gpu",
        checks="a job on a machine with a GPU",
        assumption="bai_agent/machine/gpu.py",
        run=run_on_a_gpu,
        machines=1,
        type="g4dn.xlarge",
        minutes=40,
        needs_real="there is no GPU",
        gpu=True,
    ),
)
"""Tried at the same time."""

LAST = (
    Step(
        name="watcher",
        checks="the same by the watcher in the account, while no program of `bai` runs elsewhere",
        assumption="executor/backends/ec2/setup/watcher.yaml, executor/backends/ec2/watcher/handler.py · handler",
        run=hang_beside_the_watcher,
        machines=1,
        minutes=45,
        needs_real="no function runs in it",
    ),
)
"""Tried after those."""
