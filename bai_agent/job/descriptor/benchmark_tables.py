"""The job's identity, its command, and the files that are kept of it: `[job]`, `[git]`, `[benchmark]` and `[output]`."""

from __future__ import annotations

from enum import Enum

from bai_agent.job.schema.field_types import ID_RULE, ImageName, VariableName, is_glob_below, is_job_id
from bai_agent.light_dataclass import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of the job: the `[job]` table."""

    id: str
    name: str = ""
    action_id: str | None = None
    """The service's id of the request. Unset: the job id."""
    parent_action_id: str | None = None
    client_id: str = "local"
    """The client of the job: the Kafka messages' key and their label `client-id`."""
    username: str | None = None
    """The user who requested the job, as the service knows them."""
    created_by: str | None = None
    """The program that took the request from the service."""
    attempt: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of every metric message."""

    def __post_init__(self) -> None:
        if not is_job_id(self.id):
            raise ValueError(f'id "{self.id}" {ID_RULE}')


@dataclass(frozen=True, kw_only=True)
class Git:
    """The commit that the descriptor's folder stood at: the `[git]` table."""

    commit: str
    branch: str = ""
    dirty: bool = False


class Buffering(str, Enum):
    """How the benchmark's output is buffered on its way into the file."""

    LINE = "line"
    TIMED = "timed"
    OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """The command and its environment: the `[benchmark]` table. Either `argv` or `script` is set."""

    argv: tuple[str, ...] = ()
    """The command and its arguments; no shell sees it. `$(NAME)` is expanded from the environment."""
    script: str | None = None
    """The text of a script; without a first line `#!` it is run by /bin/sh. The words of `argv` are then
    the script's arguments."""
    cwd: str | None = None
    """The folder in which the command starts: absolute, or relative to the work folder. Unset: the scripts'
    folder if there is one, else the work folder."""
    env: dict[VariableName, str] = field(default_factory=dict)
    secrets: dict[VariableName, str] = field(default_factory=dict)
    """Environment variables by reference: name → "env:NAME", "secretsmanager:…" or "ssm:…", resolved where
    the benchmark runs."""
    inherit_env: bool = False
    """Whether the agent's own environment is passed on (locally it is the caller's)."""
    python: str | None = None
    """Absolute path of the Python whose folder comes first on PATH."""
    requirements: str | None = None
    """A requirements file, relative to the scripts' folder, installed into a venv of the job."""
    user: str | None = None
    container: ImageName | None = None
    """Image of the container, by podman, in which the command runs."""
    buffering: Buffering = Buffering.LINE
    exclusive: bool = False
    """Whether the run begins only when no other job runs on this machine, and makes other exclusive jobs
    wait."""

    def __post_init__(self) -> None:
        if not self.argv and self.script is None:
            raise ValueError("is empty: write argv or script")
        if self.container is not None and (self.python is not None or self.requirements is not None):
            raise ValueError(
                "container excludes python and requirements: the image has its own Python and packages"
            )


@dataclass(frozen=True, kw_only=True)
class Output:
    """The `[output]` table."""

    artifacts: tuple[str, ...] = ()
    """Globs relative to the benchmark's working folder, kept in the store at the end."""
    discard_stdout: bool = False
    """Whether the benchmark's standard output is /dev/null; its standard error is in the log all the same."""

    def __post_init__(self) -> None:
        # Detected only at the end, it would cost a whole run its result.
        for pattern in self.artifacts:
            if not is_glob_below(pattern):
                raise ValueError(
                    f'artifacts "{pattern}" is not a glob below the working folder; write for example "runs/**" or "*.csv"'
                )
