"""Checks of `[ml] benchmark_code` and `args`: whether they can be run, without a shell, as what they look like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from executor.descriptor.raw_table import ERROR, WARNING, Raw, RawFinding, at, text_of
from executor.descriptor.secret_values import known_secret

_CODE = ("ml", "benchmark_code")
_REFERENCE = re.compile(r"(?<!\$)\$\(([^()]*)\)")
_PROVIDED = re.compile(r"BENCHMARK_AI\w*|BAI_\w+|HOME|PATH|USER|LOGNAME|SHELL|LANG|TMPDIR|PWD|HOSTNAME")
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)=(\S*)\s+\S", re.ASCII)
_AS_SCRIPT = "write it in several lines, between three quotes ''', to have /bin/sh run it"
_SHELL_SYNTAX = (
    (re.compile(r"(?:^|\s)(&&|\|\|?|;)(?=\s|$)"), "{}", _AS_SCRIPT),
    (re.compile(r"\S(;)(?=\s|$)"), "{}", _AS_SCRIPT),
    (re.compile(r"(&)\s*$"), "{} at its end", "remove it: the benchmark is the process that is waited for"),
    (re.compile(r"(?:^|\s)(\d?>>?(?:&\d)?|&>>?|<)"), "{}", _AS_SCRIPT),
    (re.compile(r"(`)"), "a command between backquotes", _AS_SCRIPT),
    (re.compile(r"(?:^|[\s=:])(~)(?=/|\s|$)"), "{}", "write $(HOME) in its place"),
    (re.compile(r"(\$\{?([A-Za-z_]\w*)\}?)", re.ASCII), "{}", "write $({}) in its place"),
)
"""What, how it is called, what to do. Looked for outside of quotes and of $(NAME)."""


def is_script(code: str) -> bool:
    """Whether `benchmark_code` is the text of a script rather than a command."""
    return "\n" in code.strip() or code.strip().startswith("#!")


def command(table: Raw) -> Iterator[RawFinding]:
    """Check that there is a command, that it can be split, and that it holds no secret."""
    ml = at(table, "ml")
    code, args = text_of(ml, "benchmark_code"), text_of(ml, "args")
    engine = text_of(at(table, "info"), "execution_engine") or "default"
    if not code.strip() and not isinstance(ml.get("benchmark_code"), (bool, int, float, list, dict)):
        if text_of(at(table, "hardware"), "strategy") != "inference" and engine in (
            "default",
            "local",
            "aws.ec2",
        ):
            what = "is empty" if "benchmark_code" in ml else "is missing: nothing says what to run"
            yield (
                _CODE,
                what,
                'write [ml] benchmark_code = "python3 train.py", the command of the benchmark',
                ERROR,
            )
        return
    for key, text in (("args", args),) if is_script(code) else (("benchmark_code", code), ("args", args)):
        try:
            shlex.split(text)
        except ValueError as error:
            odd = (
                "a quote is never closed" if "quotation" in str(error) else "it ends with a single backslash"
            )
            fix = "close it, or write \\' or \\\" for a quote that is meant as text (in TOML's single or triple quotes)"
            yield ("ml", key), f"cannot be split into arguments: {odd}", fix, ERROR
    for key, text in (("benchmark_code", code), ("args", args)):
        kind = known_secret(text)
        if kind:
            fix = 'put it into [env.secrets], for example TOKEN = "env:TOKEN", and write $(TOKEN) here'
            yield ("ml", key), f"holds what looks like {kind}", fix, ERROR


def shell_syntax(table: Raw) -> Iterator[RawFinding]:
    """Check for what only a shell would understand: no shell runs a command of one line."""
    ml = at(table, "ml")
    code, args = text_of(ml, "benchmark_code"), text_of(ml, "args")
    if not is_script(code):
        assignment = _ASSIGNMENT.match(code)
        if assignment:
            name, value = assignment.groups()
            yield (
                _CODE,
                f"starts with {name}=…, which only a shell takes for a variable",
                f'write {name} = "{value}" under [env.vars], or put `env` before it',
                ERROR,
            )
        yield from _shell_syntax_in("benchmark_code", code)
    yield from _shell_syntax_in("args", args)


def _shell_syntax_in(key: str, text: str) -> Iterator[RawFinding]:
    plain = _QUOTED.sub("Q", _REFERENCE.sub("R", text))
    for pattern, called, fix in _SHELL_SYNTAX:
        if found := pattern.search(plain):
            what = called.format(f"`{found[1]}`")
            yield (
                ("ml", key),
                f"uses shell syntax, {what}, but no shell runs a one-line command",
                fix.format(*found.groups()[1:]),
                WARNING,
            )
            return


def references(table: Raw) -> Iterator[RawFinding]:
    """Check that each `$(NAME)` has a value where the benchmark runs."""
    if text_of(at(table, "hardware"), "strategy") == "inference":
        return
    known = {*at(table, "env", "vars"), *at(table, "env", "secrets")}
    for key in ("benchmark_code", "args"):
        text = text_of(at(table, "ml"), key)
        for name in dict.fromkeys(_REFERENCE.findall("" if is_script(text) else text)):
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or (name.islower() and name not in known):
                problem = f"$({name}) runs no command: it is the value of an environment variable"
                fix = f"{_AS_SCRIPT}; a variable of this name is set under [env.vars]"
                yield ("ml", key), problem, fix, WARNING
            elif name not in known and not _PROVIDED.fullmatch(name):
                fix = f"set {name} under [env.vars]; otherwise it must be in the environment where it runs"
                yield ("ml", key), f"$({name}) is set by nothing in this file", fix, WARNING
