"""Makes a benchmark descriptor from a script and options: `bai run train.py --nodes 2 -- --lr 0.1`."""

from __future__ import annotations

import dataclasses
import os
import shlex
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bai_agent.light_dataclass import dataclass
from executor.descriptor.checks.file_checks import find_mode
from executor.descriptor.override_places import put_overrides
from executor.descriptor.overrides import Override
from executor.descriptor.toml_file import parse_toml
from executor.descriptor.toml_text import toml_document
from executor.errors import UsageError
from executor.planning.request import JobRequest, check_arguments

_INSTANCE_TYPE = ("hardware", "instance_type")
_NODES = ("hardware", "distributed", "num_instances")
_METRICS = ("output", "metrics")
_PRESET = ("output", "preset")
_ARGS = ("ml", "args")
_INTERPRETERS = {".py": "python3", ".sh": "sh"}
"""Interpreters by the suffix of a script's name. If the script has a `#!` line, that line takes precedence
over `sh`."""
_PROGRAM_STARTS = (b"#!", b"\x7fELF")


@dataclass(frozen=True)
class NamedScript:
    """A script that the command line names in place of a descriptor."""

    folder: Path
    """Folder that is copied for the job, as the user wrote it."""
    member: str
    """Path of the script in `folder`."""
    arguments: tuple[str, ...]


def with_script(
    job_request: JobRequest, *, metrics: Sequence[str] = (), presets: Sequence[str] = ()
) -> JobRequest:
    """If the request names a script, return the request with a descriptor that is made for this script. If
    the request names a descriptor, return it unchanged.

    metrics: texts NAME=REGEX. presets: names. Relative paths of the descriptor start at the current folder. Raises UsageError.
    """
    file = job_request.file
    script = find_script(file, job_request.arguments)
    if script is None:
        for option, given in (("--metric", metrics), ("--preset", presets)):
            if given:
                raise UsageError(
                    f"{option} is for a script, but {file} is a descriptor; write the metric or preset under [output] of the descriptor"
                )
        return job_request
    if job_request.script is not None:
        raise UsageError(
            f"--script {job_request.script} and the script {file} exclude each other; write one of them"
        )
    check_arguments(script.arguments)
    _check_folder(script)
    read = [_read_metric(text) for text in metrics]
    flags: dict[tuple[str | int, ...], str] = {
        (*_METRICS, index): f"--metric {each['name']}" for index, each in enumerate(read)
    }
    table = _descriptor(script, job_request, metrics=read, presets=presets)
    return dataclasses.replace(
        job_request,
        file=Path(Path(script.member).name),
        content=toml_document(table).encode(),
        arguments=(),
        flags={**flags, _PRESET: "--preset", _ARGS: "-- ARGS"},
    )


def find_script(file: Path, arguments: Sequence[str]) -> NamedScript | None:
    """Return the script that `file` names, or that the first of `arguments` names in the folder `file`; None
    if `file` is a descriptor.

    Raises UsageError.
    """
    mode = find_mode(file)
    if mode is not None and stat.S_ISDIR(mode):
        if not arguments or arguments[0].endswith(".toml"):
            return None
        member = _member(file, arguments[0])
        return NamedScript(file, member, tuple(arguments[1:]))
    if not _is_script(file, mode):
        return None
    if mode is None or not stat.S_ISREG(mode):
        raise UsageError(f"{file}: there is no such file; name a script, or a descriptor (.toml)")
    return NamedScript(file.parent, file.name, tuple(arguments))


def _is_script(file: Path, mode: int | None) -> bool:
    """Return whether `file` has the suffix of a script, or begins like a program."""
    if file.suffix == ".toml":
        return False
    if file.suffix in _INTERPRETERS:
        return True
    return mode is not None and stat.S_ISREG(mode) and _begins_as_program(file)


def _begins_as_program(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(4).startswith(_PROGRAM_STARTS)
    except OSError:
        return False  # The error is ignored here, because the reader of descriptors reports it.


def _member(folder: Path, name: str) -> str:
    """Return the path of the script `name` relative to `folder`. `name` is relative to `folder`, or begins
    with the path of `folder`."""
    for path in (folder / name, Path(name)):
        inside = os.path.relpath(path, folder)
        mode = find_mode(path)
        if mode is not None and stat.S_ISREG(mode) and not inside.startswith(os.pardir + os.sep):
            return inside
    raise UsageError(f"{folder} has no file {name}; name the script in that folder: bai run {folder} SCRIPT")


def _check_folder(script: NamedScript) -> None:
    """Raise UsageError if the folder is "/", the home folder or the temporary folder, because none of these
    may be copied as a whole. Also raise UsageError if the folder's name cannot be part of a command."""
    folder = os.path.realpath(script.folder)
    shared = {os.path.realpath(each) for each in ("/", os.path.expanduser("~"), tempfile.gettempdir())}  # noqa: PTH111 - never fails
    if folder in shared:
        raise UsageError(
            f"{script.member}: the script's whole folder is copied, but that would be all of {folder}; "
            "move the script to a folder of its own"
        )
    if "\n" in script.member:
        raise UsageError(
            f"{script.member!r}: a command is one line, but this name has two lines; rename the script"
        )
    for name in (str(script.folder), script.member):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{os.fsencode(name)!r}: this name is not UTF-8, but a descriptor can contain only text; rename it"
            ) from None


def _read_metric(text: str) -> dict[str, str]:
    name, mark, pattern = text.partition("=")
    if not mark or not name or not pattern:
        raise UsageError(
            f"--metric \"{text}\" is not NAME=REGEX; write for example --metric 'loss=loss: (\\S+)'"
        )
    return {"name": name, "units": "", "pattern": pattern}


def _descriptor(
    script: NamedScript, job_request: JobRequest, *, metrics: list[dict[str, str]], presets: Sequence[str]
) -> dict[str, Any]:
    """Return the descriptor as a table, without the overrides. The overrides are applied later, as for a
    descriptor that is a file."""
    engine = _engine(job_request)
    hardware: dict[str, Any] = {} if engine == "aws.ec2" else {"instance_type": "local"}
    if str(_value_at(job_request.overrides, _NODES) or 1) != "1":
        hardware |= {"strategy": "torchrun", "distributed": {"processes_per_instance": "gpus"}}
    name = Path(script.member).name
    ml = {"benchmark_code": _command(script)}
    if script.arguments:
        # The user's shell has already expanded variables in the arguments, so each `${` in them is escaped as
        # `$${`.
        ml["args"] = shlex.join(script.arguments).replace("${", "$${")
    output = {key: value for key, value in (("preset", list(presets)), ("metrics", metrics)) if value}
    return {
        "spec_version": "0.1.0",
        "info": {
            "description": f"Runs {name}",
            "task_name": Path(name).stem,
            "execution_engine": engine,
        },
        "hardware": hardware,
        "ml": {**ml, "script": {"path": str(script.folder)}},
        **({"output": output} if output else {}),
    }


def _engine(job_request: JobRequest) -> str:
    """Return the backend for the descriptor: the one that `--on` names; otherwise EC2 if the user names an
    instance type."""
    if job_request.on is not None:
        return "aws.ec2" if job_request.on == "ec2" else "local"
    named = _value_at(job_request.overrides, _INSTANCE_TYPE)
    return "local" if named in (None, "local") else "aws.ec2"


def _value_at(overrides: Sequence[Override], path: tuple[str, ...]) -> Any:
    return next((each.value for each in overrides if each.path == path), None)


def _command(script: NamedScript) -> str:
    """Return the command that starts the script in the script's folder."""
    file = Path(script.member)
    interpreter = _INTERPRETERS.get(file.suffix)
    if file.suffix == ".sh" and _begins_as_program(script.folder / file):
        interpreter = None
    path = script.member if interpreter is not None and script.member[0] != "-" else f"./{script.member}"
    # In a descriptor, $(NAME) is a variable, so each $ is written as $$.
    return shlex.join([interpreter, path] if interpreter is not None else [path]).replace("$", "$$")


def emitted_toml(job_request: JobRequest) -> str:
    """Return the descriptor (TOML) of a request that `with_script` made, with the request's overrides."""
    assert job_request.content is not None
    table, _ = parse_toml(job_request.content, file=str(job_request.file))
    assert table is not None
    put_overrides(table, job_request.overrides, file=str(job_request.file))
    return toml_document(table)
