"""What EC2's API does and moto does not, as far as it shows in request and answer."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from sandbox.fake_aws.answers import Answer, ec2, error
from sandbox.fake_aws.calls import Call
from sandbox.fake_aws.control_plane.fleet import Fleet
from sandbox.fake_aws.control_plane.launch_checks import refusal


class Ec2Rules:
    """Tokens count per availability zone."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tokens: dict[tuple[str, str], tuple[dict[str, str], Answer]] = {}
        self._launching = threading.Lock()
        self.room: int | None = None
        """How many machines a launch gets at most, if it asks for no more at least. None: all that it asks for."""
        self.operation: str | None = None
        """The code of all images' charges, which moto does not tell; None: none is told."""
        self.is_sold = False
        """Whether all images are of the Marketplace."""
        self.unreachable: dict[str, datetime] = {}
        """Machine that the instance status check does not reach → since when."""
        self._asked = threading.local()
        self._run = fleet.backend.run_instances
        # moto launches as many as are asked for at least.
        fleet.backend.run_instances = self._run_as_many_as_fit

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if call.service != "ec2":
            return ask()
        if call.action == "GetConsoleOutput":
            return self._console_output(call)
        if call.action == "RunInstances":
            return self._run_instances(call, ask)
        if call.parameters.get("DryRun") == "true":
            return _dry_run()
        if call.action == "DescribeInstanceStatus":
            return self._status(call)
        if call.action == "DescribeImages" and self.operation is not None:
            return self._with_operation(ask())
        return ask()

    def _status(self, call: Call) -> Answer:
        """Return https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html, which lists running machines alone."""
        asked = [value for name, value in call.parameters.items() if name.startswith("InstanceId.")]
        if unknown := [each for each in asked if not self._fleet.knows(each)]:
            message = f"The instance ID '{unknown[0]}' does not exist"
            return error("ec2", 400, "InvalidInstanceID.NotFound", message)
        there = {each.id for each in self._fleet.backend.all_running_instances()}
        items = [
            f"<item><instanceId>{each}</instanceId><instanceStatus>{self._check(each)}</instanceStatus></item>"
            for each in asked
            if each in there
        ]
        return ec2(call.action, f"<instanceStatusSet>{''.join(items)}</instanceStatusSet>")

    def _check(self, instance_id: str) -> str:
        since = self.unreachable.get(instance_id)
        status, check = ("ok", "passed") if since is None else ("impaired", "failed")
        moment = "" if since is None else f"<impairedSince>{since:%Y-%m-%dT%H:%M:%S.000Z}</impairedSince>"
        return (
            f"<status>{status}</status><details><item><name>reachability</name><status>{check}</status>"
            f"{moment}</item></details>"
        )

    def _with_operation(self, answer: Answer) -> Answer:
        sold = "<item><productCode>1a2b</productCode><type>marketplace</type></item>" if self.is_sold else ""
        told = (
            f"<usageOperation>{self.operation}</usageOperation><productCodes>{sold}</productCodes><imageId>"
        )
        body = answer.body.replace(b"<productCodes/>", b"").replace(b"<imageId>", told.encode())
        kept = [each for each in answer.headers if each[0].lower() != "content-length"]
        return replace(answer, body=body, headers=[*kept, ("Content-Length", str(len(body)))])

    def _run_instances(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        # The fleet is in one region.
        ours = call.region in ("", self._fleet.backend.region_name)
        if ours and (refused := refusal(self._fleet.backend, call.parameters)) is not None:
            return refused
        if call.parameters.get("DryRun") == "true":
            return _dry_run()
        token = call.parameters.get("ClientToken")
        if not token:
            return self._launch(call, ask)
        key = (token, self._fleet.zone_of(call) or "")
        with self._launching:
            if key in self._tokens:
                parameters, answer = self._tokens[key]
                if parameters == call.parameters:
                    return answer
                return error(
                    "ec2",
                    400,
                    "IdempotentParameterMismatch",
                    "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
                )
            answer = self._launch(call, ask)
            if answer.code == 200:
                self._tokens[key] = (call.parameters, answer)
            return answer

    def _launch(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        self._asked.most = int(call.parameters.get("MaxCount", "1"))
        answer = ask()
        if answer.code == 200:
            ids = re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body.decode())
            call.resource = ",".join(ids)
            self._fleet.launch(ids, call.parameters)
        return answer

    def _run_as_many_as_fit(self, image_id: str, least: int, *arguments: Any, **options: Any) -> Any:
        most = int(self._asked.most)
        return self._run(
            image_id, max(least, most if self.room is None else min(most, self.room)), *arguments, **options
        )

    def _console_output(self, call: Call) -> Answer:
        latest = call.parameters.get("Latest") == "true"
        instance_id = call.parameters.get("InstanceId", "")
        if not self._fleet.knows(instance_id):
            message = f"The instance ID '{instance_id}' does not exist"
            return error("ec2", 400, "InvalidInstanceID.NotFound", message)
        if latest and not self._fleet.is_nitro(instance_id):
            message = "This instance type does not support retrieving the latest console logs."
            return error("ec2", 400, "UnsupportedOperation", message)
        output = self._fleet.console_output(instance_id, latest=latest)
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        inner = f"<instanceId>{instance_id}</instanceId><timestamp>{now}</timestamp>"
        if output:
            inner += f"<output>{base64.b64encode(output).decode()}</output>"
        return ec2(call.action, inner)


def _dry_run() -> Answer:
    message = "Request would have succeeded, but DryRun flag is set."
    return error("ec2", 412, "DryRunOperation", message)
