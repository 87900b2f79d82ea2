"""How Typer parses the command lines of `bai`: arguments and options that several commands share, and how
functions become commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from bai_agent import __version__
from bai_agent.errors import BaiError
from executor.backends import backend_names
from executor.commands.job_options import AwsOptions, JobOptions, KeyOptions, ScriptOptions
from executor.commands.printing import print_findings
from executor.documents.text import tell

# `bai --help` and each shell completion load this module, so modules that only one function needs are
# imported in it.
if TYPE_CHECKING:
    from executor.planning.request import JobRequest


def job_ids_of(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return shell completions of a job id: the jobs in the store on this machine, each with its status."""
    from executor.backends.local.folder_store import store_at
    from executor.jobs.completion import complete_job_ids

    try:
        store = store_at(ctx.params.get("store"))
    except BaiError:
        return []
    return complete_job_ids(store.folder, incomplete)


def _settable_keys(incomplete: str) -> list[str]:
    """Return shell completions of the key in `--set KEY=VALUE`."""
    from executor.descriptor.schema import settable_keys

    return [f"{each}=" for each in settable_keys() if each.startswith(incomplete)]


def choices(*values: str) -> Callable[[str], list[str]]:
    """Return a shell completion for an option whose value is one of `values`."""
    return lambda incomplete: [each for each in values if each.startswith(incomplete)]


FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A benchmark descriptor (TOML).")]
_SCRIPT_TOO = "A benchmark descriptor (TOML), a script, or a folder followed by the script in it"
RunFileArgument = Annotated[Path, typer.Argument(metavar="FILE", help=f"{_SCRIPT_TOO}.")]
FileOrNoneArgument = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help=f"{_SCRIPT_TOO}. Leave FILE out with --like or --resume."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="JOB",
        help="As --like JOB, but the new job begins from the newest checkpoint of JOB, which must have ended.",
        autocompletion=job_ids_of,
    ),
]
LikeOption = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="JOB",
        help="Run JOB again, in place of FILE, with the same descriptor, scripts, arguments and --set. Other options of this call override those of JOB.",
        autocompletion=job_ids_of,
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help='A job id, the beginning of one, or "last".', autocompletion=job_ids_of
    ),
]
RunningJobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]",
        help='A job id, the beginning of one, or "last" [default: the newest job that runs].',
        show_default=False,
        autocompletion=job_ids_of,
    ),
]
ArgumentsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", help="Arguments after -- are passed on to the benchmark."),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="STORE",
        help="The job store: a folder, or s3://bucket/jobs [default: BAI_STORE, or ~/.bai/jobs and the configured bucket].",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable: one JSON object per line.")]
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="WHERE",
        help="; ".join(f'"{name}": {words}' for name, words in backend_names().items()) + "; overrides FILE.",
        autocompletion=choices(*backend_names()),
    ),
]
JobIdOption = Annotated[
    str | None,
    typer.Option(
        "--job-id", metavar="ID", help="The job's id. Repeated submissions with one id start only one job."
    ),
]
DataRootOption = Annotated[
    Path | None, typer.Option("--data-root", metavar="DIR", help="Folder to put before absolute data paths.")
]
ScriptOption = Annotated[
    Path | None,
    typer.Option(
        "--script",
        metavar="PATH",
        help="A file or folder to use in place of [ml.script]. The job finds the copy at $(BAI_SCRIPTS_PATH)/NAME.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of FILE only for this call, e.g. ml.args='--batch 64'; can be repeated.",
        autocompletion=_settable_keys,
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        metavar="N|MIN:MAX",
        help="The number of machines, or a range (hardware.distributed.num_instances).",
    ),
]
InstanceTypeOption = Annotated[
    str | None,
    typer.Option("--instance-type", metavar="TYPE", help="The EC2 instance type (hardware.instance_type)."),
]
MaxCostOption = Annotated[
    float | None,
    typer.Option("--max-cost", metavar="USD", help="On EC2: refuse a job above this cost (limits.max_cost)."),
]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME=REGEX",
        help="For a script: a metric to take from its output, 'loss=loss: (\\S+)'; can be repeated.",
    ),
]
PresetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="For a script: metrics of a known program (`bai presets`); can be repeated.",
    ),
]
EmitTomlOption = Annotated[
    bool | None,
    typer.Option("--emit-toml", help="For a script: print its benchmark descriptor, and run nothing."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="The AWS profile [default: the configuration's]."),
]
RegionOption = Annotated[
    str | None,
    typer.Option("--region", metavar="NAME", help="The AWS region [default: the configuration's]."),
]
BucketOption = Annotated[
    str | None,
    typer.Option("--bucket", metavar="NAME", help="The staging bucket [default: the configuration's]."),
]


_AWS_OPTIONS = {"profile": ProfileOption, "region": RegionOption, "bucket": BucketOption}
_SPREAD: Mapping[type, Mapping[str, Any]] = {
    AwsOptions: _AWS_OPTIONS,
    KeyOptions: {
        "set_": SetOption,
        "nodes": NodesOption,
        "instance_type": InstanceTypeOption,
        "max_cost": MaxCostOption,
    },
    ScriptOptions: {"metric": MetricOption, "preset": PresetOption, "emit_toml": EmitTomlOption},
    JobOptions: {"store": StoreOption, **_AWS_OPTIONS},
}
"""Type of a command's parameter → the options that replace a parameter of this type for Typer."""


class OptionTable:
    """Base class of a class whose fields are options of a command, with their defaults."""


def _spread(kind: Any) -> Mapping[str, Any]:
    """Return the options that Typer gets in place of a parameter of this type. Empty if Typer gets the
    parameter unchanged."""
    if isinstance(kind, type) and issubclass(kind, OptionTable):
        return get_type_hints(kind, include_extras=True)
    return _SPREAD.get(kind, {})


def with_given(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command with single options as parameters, in place of each parameter that stands for
    several options. In the help, these options are listed before `--json`."""
    # A command that also runs without Typer imports the names in its annotations only for type checkers, so
    # these names are looked up here.
    signature = inspect.signature(function, locals=globals(), eval_str=True)
    found = {each: names for each in signature.parameters.values() if (names := _spread(each.annotation))}
    if not found:
        return function

    @functools.wraps(function)
    def spread(**options: Any) -> None:
        for given, names in found.items():
            mine = {name: options.pop(name) for name in names}
            options[given.name] = given.annotation(**mine)
        function(**options)

    own = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(given.annotation, name, None),
            annotation=kind,
        )
        for given, names in found.items()
        for name, kind in names.items()
    ]
    kept = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        if each not in found
    ]
    last = [each for each in kept if each.name == "json_"]
    parameters = [*(each for each in kept if each not in last), *own, *last]
    # Typer reads the parameters from this attribute.
    spread.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread


def requested(given: JobRequest, flags: ScriptOptions) -> JobRequest:
    """Return the user's request. If the request's file is a script, a descriptor is made for the script.
    Raises UsageError.

    With `--emit-toml`, print the descriptor and its warnings, and end the command. Raises FindingsError.
    """
    from executor.planning.request import read_request
    from executor.planning.script_request import emitted_toml

    made = flags.request(given)
    if flags.emit_toml:
        _, findings = read_request(made)
        print_findings(findings)
        tell(emitted_toml(made), end="")
        raise typer.Exit
    return made


LoadedCommand: TypeAlias = tuple[Callable[..., None], type[TyperCommand] | None]
"""A command's function, and the class that parses its command line; None for the usual class."""


def command_group(helps: Mapping[str, str], load: Callable[[str], LoadedCommand]) -> TyperGroup:
    """Return `bai` with its commands. helps: the help of each command, by its name. load: function that loads
    a command when it is used."""
    app = typer.Typer(
        name="bai",
        cls=_Group,
        help="Run a benchmark as a TOML file describes it, and trust its numbers.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_bai)
    made = typer.main.get_command(app)
    assert isinstance(made, _Group)
    made.helps = helps
    made.commands = _Commands(helps, load)  # type: ignore[assignment]  # it is only read
    return _sparing(made)  # type: ignore[no-any-return]


class _Group(TyperGroup):
    """The program `bai`. The lists of commands need only the commands' help, so that listing loads no
    command."""

    helps: Mapping[str, str]

    def format_commands(self, *arguments: Any) -> None:
        """Write the commands with their help."""
        self._listed().format_commands(*arguments)

    def shell_complete(self, *arguments: Any) -> Any:
        """Return the completions for a shell, which are commands with their help, and options."""
        return self._listed().shell_complete(*arguments)

    def _listed(self) -> TyperGroup:
        """Return a Typer group that can list the commands with their help, but cannot run a command."""
        commands = [TyperCommand(name, help=text) for name, text in self.helps.items()]
        return TyperGroup(name=self.name, commands=commands, params=self.params, rich_markup_mode=None)


class _Commands(Mapping[str, Any]):
    """The commands by name. Each command is created on demand, because creating all commands takes longer
    than a short command runs."""

    def __init__(self, names: Mapping[str, str], load: Callable[[str], LoadedCommand]) -> None:
        self._names = names
        self._made = functools.cache(functools.partial(_made, load))

    def __getitem__(self, name: str) -> Any:
        return self._made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _made(load: Callable[[str], LoadedCommand], name: str) -> Any:
    function, kind = load(name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name, cls=kind)(with_given(function))
    return _sparing(typer.main.get_command(app))


def _sparing(made: Any) -> Any:
    """Change a command so that it converts a value only if the value's type differs from the parameter's.
    Return the command.

    Typer converts values with pydantic, whose import takes as long as a short command.
    """
    get_params = made.get_params

    def spared(context: Any) -> list[Any]:
        found: list[Any] = get_params(context)
        for each in found:
            if not isinstance(each.process_value, functools.partial):
                each.process_value = functools.partial(_process, each, each.process_value)
        return found

    made.get_params = spared
    return made


def _process(parameter: Any, process: Callable[..., Any], context: Any, value: Any) -> Any:
    """Return the converted value of a parameter. This function replaces Typer's method `process_value`."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if value is None and not parameter.required:
        ready = () if parameter.multiple or parameter.nargs == -1 else None
    elif type(value) is annotation and (annotation in (str, bool) or value is parameter.default):
        ready = value
    else:
        return process(context, value)
    return ready if parameter.callback is None else parameter.callback(context, parameter, ready)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bai {__version__}")
        raise typer.Exit


def _bai(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    return
