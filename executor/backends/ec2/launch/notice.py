"""The notice about a launch before its request: its machines, their cost, and expected problems and extra costs."""

from __future__ import annotations

from functools import cached_property

from bai_agent.light_dataclass import dataclass
from executor.backends.ec2.launch.cost import Cost, hang_warning
from executor.backends.ec2.launch.draft import LaunchPlan
from executor.backends.ec2.launch.resolve import type_names
from executor.backends.ec2.routes import ENDPOINT_ADVICE, cut_off_sentence, without_s3
from executor.backends.ec2.session import FAILURES, AwsSession
from executor.configuration.config import Settings


@dataclass(frozen=True)
class Notice:
    """The `LaunchNotice` of EC2."""

    launch: LaunchPlan
    settings: Settings
    aws: AwsSession

    def sentence(self, *, cost: bool) -> str:
        launch = self.launch
        kinds = type_names(launch.resolved.candidates)
        what = f"{launch.machines(kinds)} in {launch.resolved.region}"
        price = f": {self.all_costs.sentence()}" if cost else ""
        return f"launching {what}{price}"

    def cost(self) -> float | None:
        return self.all_costs.dollars

    def hourly(self) -> float | None:
        costs = self.all_costs
        return None if costs.hourly is None else costs.instances * (costs.hourly + costs.volumes)

    def warnings(self) -> list[str]:
        found = [hang_warning(self.all_costs)] if self.launch.may_hang else []
        bucket, machines = self.settings.region, self.launch.resolved.region
        if bucket is not None and bucket != machines:
            found.append(
                f"the machines are in {machines} and the bucket is in {bucket}: each GB between them is paid for, and an S3 "
                f"endpoint of {machines} does not lead to it; `bai doctor FILE` looks at their way to it"
            )
        if self.launch.shortened is not None:
            found.append(self.launch.shortened)
        return [*found, *self._interface_warnings()]

    def _interface_warnings(self) -> list[str]:
        """Check whether machines with several interfaces, to which EC2 gives no public address, reach S3."""
        interfaces = len(self.launch.request.get("NetworkInterfaces", ()))
        if interfaces < 2:
            return []
        ids = list(dict.fromkeys(each.subnet for each in self.launch.resolved.candidates))
        try:
            subnets = self.aws.ec2().describe_subnets(SubnetIds=ids)["Subnets"]
            cut_off = without_s3(self.aws, subnets, bucket_region=self.settings.region or self.aws.region)
        except FAILURES:
            return [
                f"a machine with {interfaces} network interfaces gets no public address, and these credentials could not look at its "
                "subnets' way to S3: they need a gateway endpoint for S3, or a NAT gateway"
            ]
        return [f"{cut_off_sentence(cut_off, interfaces=interfaces)}; {ENDPOINT_ADVICE}"] if cut_off else []

    @cached_property
    def all_costs(self) -> Cost:
        return self.launch.cost(self.settings, self.aws)
