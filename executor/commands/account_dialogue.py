"""The options of `bai setup`, and its dialogue with the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bai_agent.light_dataclass import dataclass, replace
from executor.commands.ec2 import print_health
from executor.commands.options import OptionTable, ProfileOption, choices
from executor.commands.printing import print_result, say
from executor.errors import UsageError
from executor.program import command

# Modules that only one command needs are imported in that command's functions.
if TYPE_CHECKING:
    from executor.backends.ec2.setup.account_setup import AccountSetup, Choices, Network, WatcherChoices
    from executor.backends.ec2.setup.stacks import StackChange
    from executor.backends.ec2.watcher.archive import WatcherArchive

_COST = (
    "These resources themselves cost nothing. In most regions, each stored GB costs about 0.025 USD a month in the bucket, "
    "and 0.30 to 0.36 USD in a file system."
)
_WATCHER_COST = "The watcher costs about half a USD a month."
NAME = "bai"
"""Default prefix of the names of all AWS resources that `bai setup` creates."""
PRINTED = ("data", "account", "watcher", "policy", "watcher-policy")


@dataclass(frozen=True, kw_only=True)
class SetupOptions(OptionTable):
    """The options of a call of `bai setup`. An option is None if it was not given."""

    region: Annotated[
        str | None,
        typer.Option(
            "--region",
            metavar="NAME",
            help="The AWS region of the bucket and the instances [default: the configured one].",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Prefix of the names of all resources [default: bai]."),
    ] = None
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", metavar="NAME", help="The bucket's name [default: NAME-ACCOUNT-REGION]."),
    ] = None
    data_bucket: Annotated[
        list[str] | None,
        typer.Option(
            "--data-bucket",
            metavar="NAME",
            help='Another bucket that instances may read; can be repeated. The given buckets replace those of an earlier setup; "" means none.',
        ),
    ] = None
    job_days: Annotated[
        int | None,
        typer.Option(
            "--delete-jobs-after", metavar="DAYS", min=0, help="Days after which jobs are deleted; 0: never."
        ),
    ] = None
    endpoint: Annotated[
        bool | None,
        typer.Option(
            "--endpoint/--no-endpoint",
            help="Create a gateway endpoint for S3 in the VPC [default: only if instances need the endpoint].",
            show_default=False,
        ),
    ] = None
    placement_group: Annotated[
        bool | None,
        typer.Option(
            "--placement-group/--no-placement-group",
            help="Create a cluster placement group [default: no].",
            show_default=False,
        ),
    ] = None
    file_system: Annotated[
        bool, typer.Option("--file-system", help="Create a file system (EFS), which --remove keeps.")
    ] = False
    spot: Annotated[
        bool | None,
        typer.Option(
            "--spot/--no-spot",
            help="Create the account's role for spot instances, which --remove does not delete [default: no].",
            show_default=False,
        ),
    ] = None
    watcher: Annotated[
        bool | None,
        typer.Option(
            "--watcher/--no-watcher",
            help="Create the watcher, a Lambda function that checks all jobs every minute [default: no].",
            show_default=False,
        ),
    ] = None
    watcher_types: Annotated[
        str | None,
        typer.Option(
            "--watcher-types",
            metavar="NAMES",
            help='Instance types that the watcher may launch, such as "c7i.*,t3.small" [default: all].',
        ),
    ] = None
    watcher_owners: Annotated[
        str | None,
        typer.Option(
            "--watcher-owners",
            metavar="NAMES",
            help="Owners of images that the watcher may launch, as account numbers [default: amazon and this account].",
        ),
    ] = None
    watcher_dollars: Annotated[
        float | None,
        typer.Option(
            "--watcher-usd-a-day",
            metavar="USD",
            min=0,
            help="Maximum cost of the machines that the watcher launches in a day, in USD [default: 50].",
        ),
    ] = None
    profile: ProfileOption = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions, and use the defaults.")] = False
    print_: Annotated[
        str | None,
        typer.Option(
            "--print",
            metavar="WHAT",
            help='Only print a template ("data", "account", "watcher"), or the policy that the user of bai setup needs ("policy", "watcher-policy").',
            autocompletion=choices(*PRINTED),
        ),
    ] = None
    remove: Annotated[bool, typer.Option("--remove", help="Remove all but the stored data.")] = False
    delete_data: Annotated[
        bool, typer.Option("--delete-data", help="With --remove: also delete bucket and file system.")
    ] = False

    @property
    def data_buckets(self) -> tuple[str, ...] | None:
        """Names of the other buckets that instances are allowed to read."""
        return None if self.data_bucket is None else tuple(each for each in self.data_bucket if each)

    def ask(self, question: str, given: bool | None, default: bool) -> bool:
        """Return the answer to a yes-or-no question: the value of the option, the default with --yes, or what
        the user answers."""
        if given is not None or self.yes:
            return default if given is None else given
        _need_terminal()
        answer: bool = typer.confirm(question, default=default, err=True)
        return answer

    def ask_text(self, question: str, given: str | None, default: str | None) -> str:
        """Return a text: the value of the option, the default with --yes, or what the user enters."""
        if given is not None or (self.yes and default is not None):
            return given or default or ""
        if self.yes:
            raise UsageError(f"no {question.lower()} is known; name it with --{question.lower()}")
        _need_terminal()
        answer: str = typer.prompt(question, default=default, err=True)
        return answer


def _need_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("bai setup has questions, but there is no terminal; add --yes to take the defaults")


@dataclass(frozen=True)
class SetupDialogue:
    """Carries out one call of `bai setup`."""

    given: SetupOptions
    json_: bool

    def run(self) -> None:
        setup = self._account()
        before = setup.present()
        network = setup.network()
        wanted = self._choices(setup, before, network)
        spot = self.given.ask("Make the account's role for spot instances?", self.given.spot, default=False)
        changes = setup.propose(wanted)
        archive = self._archive(wanted)
        if not changes and archive is not None:
            # If the other stacks do not exist yet, the watcher's change is shown only after they have been
            # created.
            changes = [*filter(None, [setup.propose_watcher(wanted, network, archive)])]
        if not changes:
            say(f"no change: the stacks {' and '.join(setup.stack_names)} are as they should be")
        elif not self._agreed(setup, changes, wanted):
            say("nothing was changed")
            return
        self._carry_out(setup, changes, wanted, network, archive)
        if wanted.watcher is None and before is not None and before.watcher is not None:
            setup.remove_watcher()
            say("the watcher is removed")
        if spot:
            missing = setup.make_spot_role()
            say(f"the account's role for spot instances {'was made' if missing else 'is there'}")
        made = setup.outputs()
        if network.vpc or setup.settings.subnets:
            setup.wait_for_profile(made["InstanceProfile"])
        else:
            say(f"there is no default VPC in {setup.aws.region}; configure `subnets`, and try again")
        self._tell(made, setup.aws.region)
        values: dict[str, Any] = {
            "bucket": made["BucketName"],
            "region": setup.aws.region,
            "instance_profile": made["InstanceProfile"],
        }
        if network.closed and "SecurityGroup" in made and not setup.settings.security_groups:
            values["security_groups"] = [made["SecurityGroup"]]
        self._configure(values)
        self._examine()

    def _archive(self, wanted: Choices) -> WatcherArchive | None:
        """Build and return the archive with the watcher's code; None if the user wants no watcher."""
        from executor.backends.ec2.watcher.archive import build_watcher
        from executor.owned_folders import cache_folder

        return None if wanted.watcher is None else build_watcher(cache=cache_folder(os.environ))

    def _carry_out(
        self,
        setup: AccountSetup,
        changes: Sequence[StackChange],
        wanted: Choices,
        network: Network,
        archive: WatcherArchive | None,
    ) -> None:
        """Execute the changes of the stacks. The watcher's stack is changed last."""
        watcher = setup.stack("watcher")
        for change in changes:
            if change.stack != watcher:
                setup.stacks.carry_out(change)
        if archive is None:
            return
        last = [each for each in changes if each.stack == watcher]
        for change in last or filter(None, [setup.propose_watcher(wanted, network, archive)]):
            if not last:
                self._show_change(change)
            setup.upload_archive(wanted, archive)
            setup.stacks.carry_out(change)
        setup.check_code(archive)

    def _show_change(self, change: StackChange) -> None:
        lines = "\n".join([f"{change.stack}:", *(f"  {line}" for line in change.lines)])
        self._show({"stack": change.stack, "changes": list(change.lines)}, lines)

    def _agreed(self, setup: AccountSetup, changes: Sequence[StackChange], wanted: Choices) -> bool:
        """Show the changes and their cost, and ask for confirmation. Return the answer. After "no" or Ctrl-C,
        the changes are discarded."""
        for change in changes:
            self._show_change(change)
        say(_COST if wanted.watcher is None else f"{_COST} {_WATCHER_COST}")
        present = setup.settings.bucket
        if present not in (None, wanted.bucket):
            jobs = command("list", "--bucket", str(present))
            say(
                f"the configuration's bucket {present} will be replaced by {wanted.bucket}; `{jobs}` shows the old bucket's jobs"
            )
        agreed = False
        try:
            question = f"Make these changes in {setup.aws.region} of account {setup.account}?"
            agreed = self.given.ask(question, True if self.given.yes else None, default=True)
        finally:
            for change in () if agreed else changes:
                setup.stacks.forget(change)
        return agreed

    def _tell(self, made: Mapping[str, str], region: str) -> None:
        """Print how jobs and users can use the new resources."""
        from executor.backends.ec2.setup.templates import file_system_server
        from executor.descriptor.toml_text import toml_value

        if "PlacementGroup" in made:
            group = toml_value({"GroupName": made["PlacementGroup"]})
            say(f"for a job: [aws.ec2.run_instances] Placement = {group}")
        if "FileSystem" in made:
            source = toml_value(f"{file_system_server(made['FileSystem'], region)}:/")
            say(f'for a job: [[mounts]] type = "nfs", src = {source}, target = "/shared"')
        say(f"people who run bai need the policy {made['UserPolicy']}; see docs/iam.md")

    def remove(self) -> None:
        from executor.backends.ec2.setup.account_removal import check_machines, clear, end_watcher, remove

        delete_data = self.given.delete_data
        setup = self._account()
        before, made = setup.present(), setup.outputs()
        if before is None:
            say(f"nothing of {setup.name} is set up in {setup.settings.region}")
            clear(setup)
            return
        data = f"the bucket {before.bucket}{' and the file system' if before.file_vpc else ''}"
        where = f"from {setup.settings.region} of account {setup.account}"
        question = f"Remove {setup.name} {where}, and {data} with all that is in it?"
        if not delete_data:
            question = f"Remove {setup.name} {where}? ({data} stays)"
        if not self.given.ask(question, True if self.given.yes else None, default=False):
            say("nothing was removed")
            return
        check_machines(setup)
        end_watcher(setup)
        # The configuration is changed before the stacks are removed, because the names of the resources are
        # read from the stacks.
        self._unconfigure(
            {
                "instance_profile": made.get("InstanceProfile"),
                "security_groups": [made.get("SecurityGroup")],
                "bucket": before.bucket if delete_data else None,
            }
        )
        remove(setup, delete_data=delete_data)

    def _account(self) -> AccountSetup:
        from executor.backends.ec2.setup.account_setup import account_setup
        from executor.configuration.config import read_settings

        settings = read_settings({"profile": self.given.profile, "region": self.given.region})
        region = self.given.ask_text("Region", self.given.region, settings.region)
        name = self.given.ask_text("Name", self.given.name, NAME)
        return account_setup(replace(settings, region=region), name, say)

    def _choices(self, setup: AccountSetup, before: Choices | None, network: Network) -> Choices:
        """Return what the user wants: the values of options and the answers to questions. A value that the
        user did not give is the existing value or the default."""
        from executor.backends.ec2.setup.account_setup import Choices

        given = self.given
        if before is None:
            bucket = given.ask_text("Bucket", given.bucket, setup.first_bucket())
            before = Choices(name=setup.name, bucket=bucket, vpc=network.vpc)
        elif given.bucket not in (None, before.bucket):
            raise UsageError(
                f"{setup.name} has the bucket {before.bucket}, which cannot be changed; for another bucket, give another --name"
            )
        # An earlier choice about the network's endpoint is kept: after the endpoint was created, the network
        # no longer seems to need one.
        vpc, tables = before.vpc or network.vpc, before.route_tables
        if given.endpoint is False:
            tables = ()
        elif not tables and network.route_tables and vpc == network.vpc:
            question = f"Make a gateway endpoint for S3 in {vpc}?"
            tables = (
                network.route_tables if given.ask(question, given.endpoint, network.needs_endpoint) else ()
            )
        if given.file_system and not before.file_vpc:
            if not network.vpc:
                raise UsageError("--file-system needs a default VPC, or configured `subnets` of one VPC")
            before = replace(
                before,
                file_vpc=network.vpc,
                file_cidr=network.cidr,
                file_subnets=network.subnets,
            )
        return replace(
            before,
            vpc=vpc,
            route_tables=tables,
            data_buckets=before.data_buckets if given.data_buckets is None else given.data_buckets,
            job_days=before.job_days if given.job_days is None else str(given.job_days or ""),
            placement_group=given.ask(
                "Make a cluster placement group?", given.placement_group, before.placement_group
            ),
            watcher=self._watcher(setup, before.watcher),
        )

    def _watcher(self, setup: AccountSetup, before: WatcherChoices | None) -> WatcherChoices | None:
        from executor.backends.ec2.setup.account_setup import WatcherChoices

        given = self.given
        limits = (given.watcher_types, given.watcher_owners, given.watcher_dollars)
        question = "Make a watcher, which checks all jobs each minute?"
        wants = given.ask(question, given.watcher, before is not None)
        if not wants:
            if any(each is not None for each in limits):
                raise UsageError(
                    "--watcher-types, --watcher-owners and --watcher-usd-a-day belong to --watcher"
                )
            return None
        there = before or WatcherChoices(owners=f"amazon,{setup.account}")
        # The watcher's own reservation of concurrency is not counted again.
        why = None if before is not None and before.reserved else setup.why_unreserved()
        if why is not None:
            say(why)
        return WatcherChoices(
            types=given.watcher_types or there.types,
            owners=given.watcher_owners or there.owners,
            dollars_a_day=there.dollars_a_day
            if given.watcher_dollars is None
            else f"{given.watcher_dollars:g}",
            reserved=why is None,
        )

    def _configure(self, values: Mapping[str, Any]) -> None:
        from executor.backends.ec2.setup.config_edit import edit_config
        from executor.configuration.config import config_file

        edit = edit_config(config_file(os.environ), values)
        if edit.diff:
            self._show({"file": str(edit.path), "diff": edit.diff}, "\n".join(edit.diff))
            edit.write()

    def _unconfigure(self, values: Mapping[str, Any]) -> None:
        """Remove from the configuration each key that has the given value."""
        from executor.backends.ec2.setup.config_edit import configured
        from executor.configuration.config import config_file

        present = configured(config_file(os.environ))
        ours = [key for key, value in values.items() if key in present and present[key] == value]
        self._configure(dict.fromkeys(ours))

    def _examine(self) -> None:
        from executor.configuration.config import read_settings

        failed = print_health(read_settings({"profile": self.given.profile}), None, json_=self.json_)
        if failed is not None:
            raise typer.Exit(failed)

    def _show(self, table: Mapping[str, Any], text: str) -> None:
        print_result(table, text, json_=self.json_)
