"""What EventBridge says about EC2's instances, as AWS's pages show it."""

from __future__ import annotations

from typing import Any

REGION, ACCOUNT, INSTANCE = "eu-central-1", "123456789012", "i-0abcd1111abcd1111"


def state_change(
    instance_id: str = INSTANCE, state: str = "terminated", *, region: str = REGION
) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html"""
    return {
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": "EC2 Instance State-change Notification",
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": "2026-11-11T21:29:54Z",
        "region": region,
        "resources": [f"arn:aws:ec2:{region}:{ACCOUNT}:instance/{instance_id}"],
        "detail": {"instance-id": instance_id, "state": state},
    }


def interruption(instance_id: str = INSTANCE, *, region: str = REGION) -> dict[str, Any]:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html"""
    return {
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": ACCOUNT,
        "time": "2026-11-11T21:29:54Z",
        "region": region,
        "resources": [f"arn:aws:ec2:{region}a:instance/{instance_id}"],
        "detail": {"instance-id": instance_id, "instance-action": "terminate"},
    }


def scheduled(*, region: str = REGION) -> dict[str, Any]:
    """https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-run-lambda-schedule.html"""
    return {
        "version": "0",
        "id": "53dc4d37-cffa-4f76-80c9-8b7d4a4d2eaa",
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT,
        "time": "2026-11-11T16:53:06Z",
        "region": region,
        "resources": [f"arn:aws:events:{region}:{ACCOUNT}:rule/bai-each-minute"],
        "detail": {},
    }
