"""An account's quotas, placement groups and capacity reservations, which moto has not."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from xml.sax.saxutils import escape

from sandbox.fake_aws.answers import Answer, ec2, error
from sandbox.fake_aws.calls import Call


class Quotas:
    """Answers ListServiceQuotas, and GetAccountSettings of Lambda, as a rule of the control plane."""

    def __init__(self) -> None:
        self.vcpus: dict[str, float] = {
            "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 1152.0,
            "Running On-Demand G and VT instances": 0.0,
            "Running On-Demand P instances": 192.0,
            "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests": 5.0,
        }
        """By a quota's name: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html"""
        self.executions = 1000
        """Of functions at a time, none of which is reserved: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html"""

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if (call.service, call.action) == ("lambda", "GetAccountSettings"):
            most = dict.fromkeys(("ConcurrentExecutions", "UnreservedConcurrentExecutions"), self.executions)
            return _json({"AccountLimit": most})
        if (call.service, call.action) != ("servicequotas", "ListServiceQuotas"):
            return ask()
        service = call.parameters["ServiceCode"]
        values = self.vcpus if service == "ec2" else {}
        # Two pages, as EC2 has more quotas than one holds.
        rows = [{"ServiceCode": service, "QuotaName": name, "Value": value} for name, value in values.items()]
        second = call.parameters.get("NextToken") == "second"
        page = {"Quotas": rows[1:]} if second else {"Quotas": rows[:1], "NextToken": "second"}
        return _json(page)


def _json(content: Any) -> Answer:
    body = json.dumps(content).encode()
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    return Answer(status="200 OK", headers=headers, body=body)


class PlacementGroups:
    """Answers DescribePlacementGroups, as a rule of the control plane."""

    def __init__(self) -> None:
        self.strategies: dict[str, str] = {}
        """By a group's name."""

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if (call.service, call.action) != ("ec2", "DescribePlacementGroups"):
            return ask()
        name = call.parameters.get("GroupName.1", "")
        if name not in self.strategies:
            return error(
                "ec2",
                400,
                "InvalidPlacementGroup.Unknown",
                f"The Placement Group '{name}' is unknown.",
            )
        inner = (
            f"<item><groupName>{escape(name)}</groupName><state>available</state>"
            f"<strategy>{self.strategies[name]}</strategy></item>"
        )
        return ec2(call.action, f"<placementGroupSet>{inner}</placementGroupSet>")


class CapacityBlocks:
    """Answers DescribeCapacityReservations, as a rule of the control plane."""

    def __init__(self) -> None:
        self.ends: dict[str, datetime] = {}
        """By a reservation's id."""
        self.state = "active"

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if (call.service, call.action) != ("ec2", "DescribeCapacityReservations"):
            return ask()
        wanted = call.parameters.get("CapacityReservationId.1", "")
        if wanted not in self.ends:
            return error(
                "ec2",
                400,
                "InvalidCapacityReservationId.NotFound",
                f"The capacity reservation '{wanted}' does not exist.",
            )
        inner = (
            f"<item><capacityReservationId>{escape(wanted)}</capacityReservationId><state>{self.state}</state>"
            f"<endDate>{self.ends[wanted]:%Y-%m-%dT%H:%M:%S.000Z}</endDate><endDateType>limited</endDateType>"
            "<reservationType>capacity-block</reservationType></item>"
        )
        return ec2(call.action, f"<capacityReservationSet>{inner}</capacityReservationSet>")
