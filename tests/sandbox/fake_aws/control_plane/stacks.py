"""What CloudFormation does and moto does not: types of resources, a caller's rights, and a failure that is rolled back.

moto's own models make buckets, roles, profiles, policies, groups and endpoints. Of a bucket it leaves out lifecycle and public access.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.cloudformation import parsing
from moto.cloudformation.models import Change, ChangeSet, CloudFormationBackend, Event, Stack
from moto.core.common_models import CloudFormationModel
from moto.ec2.models import ec2_backends
from moto.ec2.models.vpcs import VPCEndPoint
from moto.iam.models import ManagedPolicy, Role, iam_backends
from moto.s3.models import s3_backends
from moto.utilities.utils import get_partition

from sandbox.fake_aws.answers import Answer, error
from sandbox.fake_aws.calls import Call

Allows = Callable[[str, str, str, dict[str, Any]], str | None]
"""Stack, type of a resource, "create" or "delete", its properties → why the caller may not, in IAM's words."""

PLACEMENT_GROUPS: dict[str, dict[str, str]] = defaultdict(dict)
"""Account → name of a placement group that a stack has made → its strategy."""
BUCKET_POLICIES: dict[str, dict[str, Any]] = defaultdict(dict)
"""Account → a bucket → its policy, which is not in force: nothing here speaks TLS."""
FAILURES: dict[str, str] = {}
"""Logical id of a resource → why AWS does not make it; until a test takes it out."""
_caller = threading.local()


class Stacks:
    """Has what a stack makes be allowed to who changes it, and a change with a token made once, as a rule of the control plane."""

    def __init__(self, allows_for: Callable[[str], Allows]) -> None:
        self._allows_for = allows_for
        """Identity → what it may."""
        self._tokens: dict[tuple[str, str], Answer] = {}

    def __call__(self, call: Call, ask: Callable[[], Answer]) -> Answer:
        if call.service != "cloudformation":
            return ask()
        token = call.parameters.get("ClientToken") or call.parameters.get("ClientRequestToken") or ""
        if token and (call.action, token) in self._tokens:
            return self._tokens[call.action, token]
        _caller.allows = self._allows_for(call.identity)
        try:
            answer = ask()
        finally:
            del _caller.allows
        if token:
            self._tokens[call.action, token] = answer
        return answer


def service_linked_roles(call: Call, ask: Callable[[], Answer]) -> Answer:
    """Refuse a service's role that is there in IAM's words, as a rule of the control plane."""
    answer = ask()
    if call.action != "CreateServiceLinkedRole" or answer.error != "EntityAlreadyExists":
        return answer
    message = "Service role name AWSServiceRoleForEC2Spot has been taken in this account, please try a different suffix."
    return error("iam", 400, "InvalidInput", message)


class _BucketPolicy(CloudFormationModel):
    def __init__(self, bucket: str) -> None:
        self.physical_resource_id = bucket

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Bucket"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::S3::BucketPolicy"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> _BucketPolicy:
        BUCKET_POLICIES[account_id][resource_name] = cloudformation_json["Properties"]["PolicyDocument"]
        return cls(resource_name)

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: Any,
        new_resource_name: str,
        cloudformation_json: Any,
        account_id: str,
        region_name: str,
    ) -> _BucketPolicy:
        return cls.create_from_cloudformation_json(
            new_resource_name, cloudformation_json, account_id, region_name
        )

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        del BUCKET_POLICIES[account_id][resource_name]


class _QueuePolicy(CloudFormationModel):
    """Not in force: what sends to a queue here is a test."""

    def __init__(self, name: str) -> None:
        self.physical_resource_id = name

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::SQS::QueuePolicy"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> _QueuePolicy:
        return cls(resource_name)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        return


class _PlacementGroup(CloudFormationModel):
    def __init__(self, name: str) -> None:
        self.physical_resource_id = name

    @staticmethod
    def cloudformation_name_type() -> str:
        return ""

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::EC2::PlacementGroup"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str, **_: Any
    ) -> _PlacementGroup:
        PLACEMENT_GROUPS[account_id][resource_name] = cloudformation_json["Properties"]["Strategy"]
        return cls(resource_name)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
    ) -> None:
        del PLACEMENT_GROUPS[account_id][resource_name]


def _create_role(
    cls: Any, /, resource_name: str, cloudformation_json: Any, *where: Any, **options: Any
) -> Any:
    """Make a role; moto keeps its policies as Python writes them."""
    role = _role(resource_name, _without_policies(cloudformation_json), *where, **options)
    return _with_policies(role, cloudformation_json)


def _update_role(
    cls: Any, /, original_resource: Any, new_resource_name: str, cloudformation_json: Any, **where: Any
) -> Any:
    """Replace a role's policies, which moto does not."""
    for name in list(original_resource.policies):
        original_resource.delete_policy(name)
    return _with_policies(original_resource, cloudformation_json)


def _without_policies(template: Any) -> Any:
    kept = {key: value for key, value in template["Properties"].items() if key != "Policies"}
    return {**template, "Properties": kept}


def _with_policies(role: Any, template: Any) -> Any:
    for each in template["Properties"].get("Policies", ()):
        role.put_policy(each["PolicyName"], json.dumps(each["PolicyDocument"]))
    return role


def _update_policy(
    cls: Any,
    /,
    original_resource: Any,
    new_resource_name: str,
    cloudformation_json: Any,
    account_id: str,
    region_name: str,
) -> Any:
    document = json.dumps(cloudformation_json["Properties"]["PolicyDocument"])
    iam = iam_backends[account_id][get_partition(region_name)]
    iam.create_policy_version(original_resource.arn, document, True)
    return original_resource


def _delete_policy(
    cls: Any, /, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
) -> None:
    policy = iam_backends[account_id][get_partition(region_name)].managed_policies[resource_name]
    if policy.attachment_count:
        raise ValueError("Cannot delete a policy attached to entities.")
    del iam_backends[account_id][get_partition(region_name)].managed_policies[resource_name]


def _delete_endpoint(
    cls: Any, /, resource_name: str, cloudformation_json: Any, account_id: str, region_name: str
) -> None:
    ec2_backends[account_id][region_name].delete_vpc_endpoints([resource_name])


def _changes(change_set: ChangeSet) -> list[Change]:
    """Return a change set's changes as conditions have it: what becomes true is made, what is no longer true is deleted."""
    resources, after = change_set.stack.resource_map, _resources(change_set)
    before, wanted = _active(resources), _active(after)
    changed = set(resources.build_resource_diff(change_set.template_dict, change_set.parameters)["Modify"])
    changed |= _with_other_conditions(resources, after)
    found = [
        *(("Add", name) for name in wanted if name not in before),
        *(("Modify", name) for name in wanted if name in before and name in changed),
        *(("Remove", name) for name in before if name not in wanted),
    ]
    kinds = {**before, **wanted}
    return [
        Change(action=action, logical_resource_id=name, resource_type=kinds[name]) for action, name in found
    ]


def _with_other_conditions(before: Any, after: Any) -> set[str]:
    """Return the resources with an Fn::If whose condition has changed; moto compares them by their own parameters alone."""
    was, now = before.lazy_condition_map, after.lazy_condition_map
    turned = [f'{{"Fn::If": ["{each}",' for each in now if each not in was or was[each] != now[each]]
    resources: dict[str, Any] = after._resource_json_map or {}
    return {name for name, each in resources.items() if any(one in json.dumps(each) for one in turned)}


def _resources(change_set: ChangeSet) -> Any:
    """Return the resources of a change set's template, with its parameters; none is made."""
    stack = change_set.stack
    resources = parsing.ResourceMap(
        stack.stack_id,
        stack.name,
        change_set.parameters,
        {},
        region_name=stack.region_name,
        account_id=stack.account_id,
        template=change_set.template_dict,
        cross_stack_resources={},
    )
    resources.load()
    return resources


def _active(resources: Any) -> dict[str, str]:
    """Return the types of resources whose condition is true, by logical id."""
    return {
        name: each["Type"]
        for name, each in (resources._resource_json_map or {}).items()
        if "Condition" not in each or resources.lazy_condition_map[each["Condition"]]
    }


def _apply_with_conditions(change_set: ChangeSet) -> None:
    resources = change_set.stack.resource_map
    before, wanted = _active(resources), _active(_resources(change_set))
    for name in [each for each in reversed(list(before)) if each not in wanted]:
        template = parsing.clean_json(resources._resource_json_map[name], resources)
        resources._delete_resource(resources._parsed_resources.pop(name), template)
    for name in wanted:
        if name not in before:
            resources._parsed_resources.pop(name, None)
    _caller.before = before
    _apply(change_set)
    for name in wanted:
        assert resources[name] is not None


def _update_if_there(
    logical_id: str, resource_json: Any, resources_map: Any, account_id: str, region_name: str
) -> Any:
    condition = resource_json.get("Condition")
    if condition and not resources_map.lazy_condition_map[condition]:
        return None
    if logical_id not in _caller.before:
        return resources_map[logical_id]
    return _update(logical_id, resource_json, resources_map, account_id, region_name)


class _NotMadeError(Exception):
    def __init__(self, resource: str, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.resource, self.kind, self.reason = resource, kind, reason


_create = parsing.parse_and_create_resource
_role = Role.create_from_cloudformation_json
_update = parsing.parse_and_update_resource
_apply = ChangeSet.apply
_execute = CloudFormationBackend.execute_change_set
_delete = CloudFormationBackend.delete_stack


def _create_if_allowed(
    logical_id: str, resource_json: Any, resources_map: Any, account_id: str, region_name: str
) -> Any:
    condition = resource_json.get("Condition")
    if condition and not resources_map.lazy_condition_map[condition]:
        return None
    kind = resource_json["Type"]
    properties = parsing.clean_json(resource_json.get("Properties", {}), resources_map)
    reason = _reason(str(resources_map["AWS::StackName"]), logical_id, kind, "create", properties)
    if reason is not None:
        raise _NotMadeError(logical_id, kind, reason)
    try:
        return _create(logical_id, resource_json, resources_map, account_id, region_name)
    except _NotMadeError:
        raise
    except Exception as problem:
        raise _NotMadeError(logical_id, kind, str(problem)) from problem


def _execute_or_roll_back(
    backend: CloudFormationBackend, change_set_name: str, stack_name: str | None = None
) -> None:
    change_set = backend.describe_change_set(change_set_name)
    assert change_set is not None
    stack = backend.stacks[change_set.stack_id]
    was = dict(stack.resource_map._parsed_resources)
    try:
        _execute(backend, change_set_name, stack_name)
    except _NotMadeError as problem:
        creates = change_set.change_set_type == "CREATE"
        verb = "CREATE" if creates else "UPDATE"
        _add_event(stack, problem.resource, problem.kind, "CREATE_FAILED", problem.reason)
        others = [each for each in change_set.template_dict["Resources"] if each != problem.resource]
        _add_event(stack, others[-1], "AWS::IAM::Role", "CREATE_FAILED", "Resource creation cancelled")
        back = "ROLLBACK" if creates else "UPDATE_ROLLBACK"
        stack._add_stack_event(
            f"{back}_IN_PROGRESS",
            resource_status_reason=f"The following resource(s) failed to {verb.lower()}: [{problem.resource}].",
        )
        for name, resource in reversed(list(stack.resource_map._parsed_resources.items())):
            if name not in was and hasattr(resource, "cf_resource_type"):
                stack.resource_map._delete_resource(
                    resource,
                    parsing.clean_json(change_set.template_dict["Resources"][name], stack.resource_map),
                )
                del stack.resource_map._parsed_resources[name]
        stack.status = f"{back}_COMPLETE"
        stack._add_stack_event(stack.status)
    else:
        # Executing a change set deletes the stack's other ones; moto also parses the new template nowhere else.
        stack.template_dict = change_set.template_dict
        stack.parameters = change_set.parameters
        stack.output_map = stack._create_output_map()
        stack.output_map._resource_map = stack.resource_map


def _delete_if_allowed(backend: CloudFormationBackend, name_or_stack_id: str) -> None:
    found = [each for each in backend.stacks.values() if name_or_stack_id in (each.name, each.stack_id)]
    if not found:
        return
    [stack] = found
    for name, template in list(stack.resource_map._resource_json_map.items()):
        if name not in stack.resource_map._parsed_resources:
            continue
        properties = parsing.clean_json(template.get("Properties", {}), stack.resource_map)
        reason = _reason(stack.name, name, template["Type"], "delete", properties)
        if reason is None and template["Type"] == "AWS::S3::Bucket":
            bucket = s3_backends[backend.account_id]["aws"].buckets[properties["BucketName"]]
            reason = "The bucket you tried to delete is not empty" if bucket.keys else None
        if reason is None and template["Type"] == "AWS::IAM::Role":
            role = stack.resource_map._parsed_resources[name]
            others = set(role.policies) - {each["PolicyName"] for each in properties["Policies"]}
            reason = "Cannot delete entity, must delete policies first." if others else None
            reason = (
                "Cannot delete entity, must detach all policies first." if role.managed_policies else reason
            )
        if reason is not None:
            stack._add_stack_event("DELETE_IN_PROGRESS", resource_status_reason="User Initiated")
            _add_event(stack, name, template["Type"], "DELETE_FAILED", reason)
            stack.status = "DELETE_FAILED"
            return
    _delete(backend, stack.stack_id)


def _parameters(stack: Stack) -> list[dict[str, str]]:
    """Return a stack's parameters as they were given; moto answers with Python's form of its lists."""
    found = stack.resource_map.resolved_parameters.items()
    return [
        {"ParameterKey": key, "ParameterValue": ",".join(value) if isinstance(value, list) else str(value)}
        for key, value in found
    ]


def _reason(stack: str, logical_id: str, kind: str, verb: str, properties: dict[str, Any]) -> str | None:
    if logical_id in FAILURES:
        return FAILURES[logical_id]
    allows: Allows | None = getattr(_caller, "allows", None)
    return allows(stack, kind, verb, properties) if allows else None


def _add_event(stack: Stack, resource: str, kind: str, status: str, reason: str) -> None:
    stack.events.append(
        Event(
            stack_id=stack.stack_id,
            stack_name=stack.name,
            logical_resource_id=resource,
            physical_resource_id="",
            resource_type=kind,
            resource_status=status,
            resource_status_reason=reason,
            resource_properties=None,
        )
    )


@contextmanager
def failing(resource: str, reason: str) -> Iterator[None]:
    """Let the resource of that logical id fail, in all stacks."""
    FAILURES[resource] = reason
    try:
        yield
    finally:
        del FAILURES[resource]


_parsing: Any = parsing
_parsing.parse_and_create_resource = _create_if_allowed
_parsing.parse_and_update_resource = _update_if_there
_backend: Any = CloudFormationBackend
_backend.execute_change_set, _backend.delete_stack = _execute_or_roll_back, _delete_if_allowed
_stack: Any = Stack
_stack.parameter_list = property(_parameters)
_change_set: Any = ChangeSet
_change_set.diff, _change_set.apply = _changes, _apply_with_conditions
_models: Any = (Role, ManagedPolicy, VPCEndPoint)
_models[0].create_from_cloudformation_json = classmethod(_create_role)
_models[0].update_from_cloudformation_json = classmethod(_update_role)
_models[1].update_from_cloudformation_json = classmethod(_update_policy)
_models[1].delete_from_cloudformation_json = classmethod(_delete_policy)
_models[2].delete_from_cloudformation_json = classmethod(_delete_endpoint)
