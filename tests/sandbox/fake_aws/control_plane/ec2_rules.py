"""What EC2's API does and moto does not, as far as it shows in request and answer."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable
from datetime import datetime, timezone

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

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if call.service != "ec2":
            return ask()
        if call.action == "GetConsoleOutput":
            return self._console_output(call)
        if call.action == "RunInstances":
            return self._run_instances(call, ask)
        if call.parameters.get("DryRun") == "true":
            return _dry_run()
        return ask()

    def _run_instances(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        refused = refusal(self._fleet.backend, call.parameters)
        if refused is not None:
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
        answer = ask()
        if answer.code == 200:
            ids = re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", answer.body.decode())
            call.resource = ",".join(ids)
            self._fleet.launch(ids, call.parameters)
        return answer

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
