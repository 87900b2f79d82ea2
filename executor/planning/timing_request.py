"""Makes a benchmark descriptor from the options of `bai time`. Each timed command becomes an arm of one job,
whose runs are made in shuffled blocks."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from bai_agent.light_dataclass import dataclass
from executor.descriptor.toml_text import toml_value
from executor.errors import UsageError

WALL, CPU, USER, SYSTEM, MEMORY = "wall_time", "cpu_time", "user_time", "system_time", "peak_memory"
MOST_COMMANDS = 256
_MOST_RUNS = 1000
_SECONDS_EACH = 3
"""Total time for each command's runs if the number of runs is not given (seconds). Each timed command runs at
least `_LEAST_RUNS` times."""
_LEAST_RUNS = 10
_NAME = 40
LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OPERATORS = "|&;<>()$`"
_DEFAULT_SHELL = "/bin/sh"


@dataclass(frozen=True, kw_only=True)
class Around:
    """Commands that run before and after the timed commands: either one for all timed commands, or one per
    timed command. The value of a parameter x also replaces `{x}` in these commands."""

    prepare: Sequence[str] = ()
    """Commands that run before each run."""
    conclude: Sequence[str] = ()
    """Commands that run after each run."""
    setup: Sequence[str] = ()
    """Commands that run once, before all runs."""
    cleanup: Sequence[str] = ()
    """Commands that run once, after all runs."""


@dataclass(frozen=True, kw_only=True)
class TimedCommand:
    """A command to be timed."""

    name: str
    """Name of the command's arm."""
    text: str
    """Command as the user wrote it, with the parameters' values."""
    code: str
    """Command as written in the descriptor, including the shell if the command runs in a shell."""
    parameters: Mapping[str, str]
    prepare: str | None = None
    conclude: str | None = None
    setup: tuple[str, ...] = ()
    cleanup: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunCount:
    """Number of runs of each timed command. If the user sets nothing, a command runs for about three seconds,
    but at least ten times."""

    runs: int | None = None
    until: str | None = None
    least: int | None = None
    most: int | None = None
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.runs is not None and (self.until or self.least is not None or self.most is not None):
            raise UsageError("--runs excludes --until, --min-runs and --max-runs; write one of them")
        if self.until is not None and self.least is not None:
            raise UsageError("--until excludes --min-runs; write one of them")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise UsageError(f"--min-runs {self.least} is more than --max-runs {self.most}")


def timed_commands(
    texts: Sequence[str],
    *,
    names: Sequence[str] = (),
    parameters: Mapping[str, Sequence[str]],
    shell: str | None,
    around: Around,
) -> list[TimedCommand]:
    """Return the commands with all values of their parameters. Raises UsageError.

    shell: the words before a command's text, for example `sh -c`; None if no shell runs the command.
    """
    if names and len(names) != len(texts):
        raise UsageError(
            f"--command-name is given {len(names)} times for {len(texts)} commands; name each command, or none"
        )
    _check_parameters(texts, parameters, around)
    found: list[TimedCommand] = []
    taken: set[str] = set()
    every = [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]
    total = len(texts) * len(every)
    if total > MOST_COMMANDS:
        raise UsageError(f"{total} commands with all their parameters are more than {MOST_COMMANDS}")
    for index, (written, values) in enumerate(itertools.product(texts, every)):
        text = _filled(written, values)
        base = "-".join([names[index // len(every)], *values.values()]) if names else text
        name = _free(base, taken)
        taken.add(name)
        code = _code(text, shell)
        found.append(
            TimedCommand(
                name=name,
                text=text if not names else name,
                code=code,
                parameters=values,
                prepare=_step("--prepare", around.prepare, index // len(every), len(texts), values, shell),
                conclude=_step("--conclude", around.conclude, index // len(every), len(texts), values, shell),
                setup=tuple(_filled(each, values) for each in around.setup),
                cleanup=tuple(_filled(each, values) for each in around.cleanup),
            )
        )
    return found


def timing_descriptor(
    commands: Sequence[TimedCommand],
    count: RunCount,
    *,
    folder: Path,
    task: str,
    seed: int,
    ignore_failure: bool,
    discard_stdout: bool,
) -> str:
    """Return the benchmark descriptor (TOML) that times the commands. folder: the commands' working
    folder."""
    arms = len(commands)
    shown = ", ".join(each.text for each in commands)
    lines = [
        'spec_version = "0.1.0"',
        "",
        "[info]",
        f"description = {toml_value(_cut(f'Times {shown}'))}",
        f"task_name = {toml_value(task)}",
        'execution_engine = "local"',
        "",
        "[hardware]",
        'instance_type = "local"',
        "",
        "[ml]",
        f"benchmark_code = {toml_value(commands[0].code)}",
        f"cwd = {toml_value(str(folder))}",
        "",
        "[output]",
        'buffering = "own"  # the command runs as in a shell: bai loads no library into the command',
        *(["discard_stdout = true"] if discard_stdout else []),
        "",
    ]
    for name, better in ((WALL, True), (CPU, False), (USER, False), (SYSTEM, False), (MEMORY, False)):
        lines += ["[[output.metrics]]", f'name = "{name}"', f'of_run = "{name}"']
        lines += ['better = "lower"', ""] if better else [""]
    lines += [
        "[host_metrics]",
        "enabled = false  # bai does not sample the machine meanwhile",
        "",
        "[repeat]",
    ]
    lines += _count_lines(count, arms)
    lines += ["ignore_failure = true"] if ignore_failure else []
    if arms == 1:
        return "\n".join([*lines, *_step_lines(commands[0]), ""])
    lines += [f"seed = {seed}"]
    for each in commands:
        lines += _arm_lines(each)
    return "\n".join([*lines, ""])


def _arm_lines(command: TimedCommand) -> list[str]:
    labels = {key: value for key, value in command.parameters.items() if LABEL.fullmatch(value)}
    return [
        "",
        "[[repeat.arms]]",
        f"name = {toml_value(command.name)}",
        f"benchmark_code = {toml_value(command.code)}",
        *_step_lines(command),
        *([f"labels = {toml_value(labels)}"] if labels else []),
    ]


def check_program(command: TimedCommand, folder: Path) -> None:
    """Raise UsageError if the program of a command is missing."""
    program = shlex.split(command.code)[0].replace("$$", "$")
    if "/" in program:
        path = folder / program
        if not path.is_file():
            raise UsageError(f"{command.text}: there is no file {program} in {folder}")
        if not os.access(path, os.X_OK):
            raise UsageError(f"{command.text}: {program} may not be executed; chmod +x {program}")
    elif shutil.which(program) is None:
        raise UsageError(
            f'{command.text}: there is no program "{program}" on PATH; commands of a shell need --shell sh'
        )


def shell_words(shell: str | None) -> str | None:
    """Return the start of the command line for `--shell SHELL`, for example `sh -c`; None if no shell runs
    the command. Raises UsageError."""
    if shell is None or shell == "none":
        return None
    if shell == "default":
        shell = _DEFAULT_SHELL
    try:
        words = shlex.split(shell)
    except ValueError as error:
        raise UsageError(f"--shell {shell}: a quote is never closed") from error
    if not words:
        raise UsageError("--shell is empty; write --shell sh, or leave the option out")
    return shlex.join([*words, "-c"])


def _count_lines(count: RunCount, arms: int) -> list[str]:
    lines = [f"warmup_runs = {count.warmup * arms}"] if count.warmup else []
    if count.runs is not None:
        return [f"runs = {count.runs * arms}", *lines]
    if count.until is not None:
        most = [f"runs = {count.most * arms}"] if count.most is not None else []
        return [*most, f"until = {toml_value(count.until)}", f'metric = "{WALL}"', *lines]
    most_runs = count.most if count.most is not None else max(_MOST_RUNS, count.least or 0)
    least = count.least if count.least is not None else min(_LEAST_RUNS, most_runs)
    seconds = f'max_time = "{_SECONDS_EACH * arms}s"'
    return [f"runs = {most_runs * arms}", f"min_runs = {least * arms}", seconds, *lines]


def _step_lines(command: TimedCommand) -> list[str]:
    steps = (("prepare", command.prepare), ("cleanup", command.conclude))
    return [f"{key} = {toml_value(text)}" for key, text in steps if text is not None]


def _code(text: str, shell: str | None) -> str:
    """Return a command in the form of a descriptor. Raises UsageError."""
    if "\n" in text or "\0" in text:
        raise UsageError(
            f"{text.splitlines()[0]} …: a command is one line; put several lines into a file, and time the file"
        )
    # In a descriptor, $(NAME) is a variable, so each $ is written as $$.
    if shell is not None:
        return f"{shell} {shlex.quote(text)}".replace("$", "$$")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text}: a quote is never closed") from error
    if not words:
        raise UsageError("a command is empty; write for example: bai time 'sleep 0.1'")
    if operator := _operator(text):
        raise UsageError(
            f"{text}: the command runs without a shell, and only a shell understands {operator}; add --shell sh, or quote this character"
        )
    return shlex.join(words).replace("$", "$$")


def _operator(text: str) -> str:
    """Return the first shell operator outside of quotes; "" if there is no operator."""
    quote, escaped = "", False
    for each in text:
        if escaped:
            escaped = False
        elif each == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if each == quote else quote
        elif each in "'\"":
            quote = each
        elif each in _OPERATORS:
            return each
    return ""


def _step(
    option: str,
    given: Sequence[str],
    index: int,
    commands: int,
    values: Mapping[str, str],
    shell: str | None,
) -> str | None:
    """Return the command to run before or after a timed command: either its own command, or the command that
    all timed commands share. Raises UsageError."""
    if not given:
        return None
    if len(given) not in (1, commands):
        raise UsageError(
            f"{option} is given {len(given)} times for {commands} commands; write one for all, or one for each"
        )
    return _code(_filled(given[index if len(given) > 1 else 0], values), shell)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def _check_parameters(texts: Sequence[str], parameters: Mapping[str, Sequence[str]], around: Around) -> None:
    every = [*texts, *around.prepare, *around.conclude, *around.setup, *around.cleanup]
    for name in parameters:
        if not any("{" + name + "}" in text for text in every):
            raise UsageError(f"-L {name}: no command has {{{name}}} in it")


def _free(text: str, taken: set[str]) -> str:
    """Return an arm's name made of `text` that is not in `taken`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:_NAME].strip("-._") or "command"
    return next(
        name for i in itertools.count(1) if (name := plain if i == 1 else f"{plain}-{i}") not in taken
    )


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


_MOST_VALUES = 1000
_SEVERAL = {"-L": 1, "--parameter-list": 1, "-P": 2, "--parameter-scan": 2}
"""Option → number of values that follow the name on the command line, as in hyperfine."""


def joined_words(args: Sequence[str]) -> list[str]:
    """Return the command line in which the words of each option in `_SEVERAL` are joined into one word."""
    found: list[str] = []
    left = list(args)
    while left:
        word = left.pop(0)
        found.append(word)
        if word == "--":
            return found + left
        count = _SEVERAL.get(word, 0)
        if count and len(left) > count and "=" not in left[0]:
            name, *values = (left.pop(0) for _ in range(count + 1))
            found.append(f"{name}={','.join(values)}")
    return found


def parameter_lists(given: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each `-L NAME=1,2,4`. Raises UsageError."""
    found: dict[str, list[str]] = {}
    for text in given:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f'-L "{text}" has no values; write for example -L threads 1,2,4')
        if not LABEL.fullmatch(name):
            raise UsageError(f'-L "{name}" is not a name; write for example -L threads 1,2,4')
        if name in found:
            raise UsageError(f"-L {name} is given twice; write its values in one list")
        found[name] = [value.replace("\\,", ",") for value in re.split(r"(?<!\\),", values)]
        if not all(found[name]):
            raise UsageError(f'-L {name}: "{values}" has an empty value; write for example 1,2,4')
    return found


def parameter_scans(given: Sequence[str], step: str | None) -> dict[str, list[str]]:
    """Return the numbers of each `-P NAME=MIN,MAX[,STEP]`. Raises UsageError."""
    if step is not None and not given:
        raise UsageError("--parameter-step-size needs --parameter-scan; add it, or leave the step out")
    found = {}
    for text in given:
        name, _, limits = text.partition("=")
        try:
            low, high, by = _range([*limits.split(","), step or "1"][:3])
        except (InvalidOperation, ValueError):
            raise UsageError(f'-P "{text}" is not a range; write for example -P threads 1 8') from None
        if (high - low) / by > _MOST_VALUES:
            raise UsageError(f"-P {name}: more than {_MOST_VALUES} numbers")
        found[name] = [format(low + i * by, "f") for i in range(int((high - low) / by) + 1)]
    return found


def _range(words: Sequence[str]) -> tuple[Decimal, Decimal, Decimal]:
    """Return minimum, maximum and step. Raises InvalidOperation, ValueError."""
    low, high, by = map(Decimal, words)
    if not (low.is_finite() and high.is_finite() and by.is_finite() and by > 0 and low <= high):
        raise ValueError
    return low, high, by
