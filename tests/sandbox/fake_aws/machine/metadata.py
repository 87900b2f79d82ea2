"""The metadata tree of an instance: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from sandbox.fake_aws.iam.identities import Credentials
from sandbox.fake_aws.machine.facts import Facts


def metadata_tree(facts: Facts, credentials: Credentials) -> dict[str, str]:
    """Return path (below `latest/`) → content. Tags are off, as they are unless asked for at launch."""
    host = f"{facts.host_name}.{facts.region}.compute.internal"
    top = {
        "ami-id": facts.image_id,
        "ami-launch-index": str(facts.launch_index),
        "ami-manifest-path": "(unknown)",
        "block-device-mapping/ami": facts.root_device,
        "block-device-mapping/root": facts.root_device,
        "hostname": host,
        "instance-action": "none",
        "instance-id": facts.instance_id,
        "instance-life-cycle": "spot" if facts.spot else "on-demand",
        "instance-type": facts.instance_type,
        "local-hostname": host,
        "local-ipv4": facts.address,
        "mac": facts.mac,
        "placement/availability-zone": facts.zone,
        "placement/availability-zone-id": facts.zone_id,
        "placement/region": facts.region,
        "profile": "default-hvm",
        "reservation-id": facts.reservation_id,
        "security-groups": "\n".join(name for _, name in facts.security_groups),
        "services/domain": "amazonaws.com",
        "services/partition": "aws",
    }
    tree = {f"meta-data/{name}": value for name, value in top.items()}
    tree |= _interface(facts, host)
    if facts.profile_arn is not None:
        tree |= _role(facts.profile_arn, facts.role, credentials)
    document = {
        "accountId": facts.account,
        "architecture": facts.architecture,
        "availabilityZone": facts.zone,
        "imageId": facts.image_id,
        "instanceId": facts.instance_id,
        "instanceType": facts.instance_type,
        "privateIp": facts.address,
        "region": facts.region,
        "version": "2017-09-30",
    }
    tree["dynamic/instance-identity/document"] = json.dumps(document)
    return tree


def _interface(facts: Facts, host: str) -> dict[str, str]:
    fields = {
        "device-number": "0",
        "interface-id": facts.interface_id,
        "local-hostname": host,
        "local-ipv4s": facts.address,
        "mac": facts.mac,
        "owner-id": facts.account,
        "security-group-ids": "\n".join(group for group, _ in facts.security_groups),
        "security-groups": "\n".join(name for _, name in facts.security_groups),
        "subnet-id": facts.subnet_id,
        "subnet-ipv4-cidr-block": facts.subnet_range,
        "vpc-id": facts.vpc_id,
        "vpc-ipv4-cidr-block": facts.vpc_range,
        "vpc-ipv4-cidr-blocks": facts.vpc_range,
    }
    return {f"meta-data/network/interfaces/macs/{facts.mac}/{name}": value for name, value in fields.items()}


def _role(profile_arn: str, role: str | None, credentials: Credentials) -> dict[str, str]:
    now = datetime.now(timezone.utc)
    info = {"Code": "Success", "LastUpdated": _stamp(now), "InstanceProfileArn": profile_arn}
    found = {"meta-data/iam/info": json.dumps(info)}
    if role is not None:
        answer = {
            "Code": "Success",
            "LastUpdated": _stamp(now),
            "Type": "AWS-HMAC",
            "AccessKeyId": credentials.access_key,
            "SecretAccessKey": credentials.secret_key,
            "Token": credentials.token,
            "Expiration": _stamp(credentials.expires),
        }
        found[f"meta-data/iam/security-credentials/{role}"] = json.dumps(answer)
    return found


def _stamp(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
