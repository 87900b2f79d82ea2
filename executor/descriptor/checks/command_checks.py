"""Checks that `[ml] benchmark_code` and `args` can be run without a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from executor.descriptor.checks.secret_values import known_secret
from executor.descriptor.raw_table import (
    Raw,
    RawFinding,
    Where,
    at,
    error,
    text_at,
    warning,
    written_engine,
    written_strategy,
)

_CODE = ("ml", "benchmark_code")
OUR_ENGINES = ("default", "local", "aws.ec2")
_REFERENCE = re.compile(r"(?<!\$)\$\(([^()]*)\)")
_PROVIDED = re.compile(r"BENCHMARK_AI\w*|BAI_\w+|HOME|PATH|USER|LOGNAME|SHELL|LANG|TMPDIR|PWD|HOSTNAME")
_PROVIDED_BY_SERVER = re.compile(rf"{_PROVIDED.pattern}|INFERENCE_SERVER_(?:HOST|PORT(?:_[1-9][0-9]*)?)")
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)=(\S*)\s+\S", re.ASCII)
_AS_SCRIPT = "write a script of several lines between three quotes ''', which /bin/sh runs"
_SHELL_SYNTAX = (
    (re.compile(r"(?:^|\s)(&&|\|\|?|;)(?=\s|$)"), "{}", _AS_SCRIPT),
    (re.compile(r"\S(;)(?=\s|$)"), "{}", _AS_SCRIPT),
    (re.compile(r"(&)\s*$"), "{} at its end", "remove the &, because bai waits for the benchmark"),
    (re.compile(r"(?:^|\s)(\d?>>?(?:&\d)?|&>>?|<)"), "{}", _AS_SCRIPT),
    (re.compile(r"(`)"), "a command between backquotes", _AS_SCRIPT),
    (re.compile(r"(?:^|[\s=:])(~)(?=/|\s|$)"), "{}", "write $(HOME) in its place"),
    (re.compile(r"(\$\{?([A-Za-z_]\w*)\}?)", re.ASCII), "{}", "write $({}) in its place"),
)
"""Shell syntax outside of quotes and of $(NAME). Each item has a pattern, a name for messages, and advice."""


_COMMANDS = (
    (("ml",), "benchmark_code", "args"),
    (("server", "env"), "start_command", "start_command_args"),
)
"""The tables that contain commands, with the keys of the command."""


def is_script(code: str) -> bool:
    """Return whether `benchmark_code` is the text of a script instead of a command."""
    return "\n" in code.strip() or code.strip().startswith("#!")


def command_given(table: Raw) -> Iterator[RawFinding]:
    """Check that there is a command, if the engine needs one."""
    ml = at(table, "ml")
    # The model reports values of a wrong type.
    if text_at(ml, "benchmark_code").strip() or not isinstance(ml.get("benchmark_code", ""), str):
        return
    if written_engine(table) in OUR_ENGINES:
        problem = "is empty" if "benchmark_code" in ml else "is missing, so there is nothing to run"
        fix = 'write [ml] benchmark_code = "python3 train.py", the command of the benchmark'
        yield error(_CODE, problem, fix)


def command_words(table: Raw) -> Iterator[RawFinding]:
    """Check that command and arguments can be split into words."""
    for where, code, args in _COMMANDS:
        for key in (code, args):
            text = text_at(at(table, *where), key)
            try:
                shlex.split("" if key == code and is_script(text) else text)
            except ValueError as mistake:
                quote = "quotation" in str(mistake)
                odd = "a quote is never closed" if quote else "the text ends with a single backslash"
                fix = "close it, or write \\' or \\\" for a quote that is meant as text (in TOML's single or triple quotes)"
                yield error((*where, key), f"cannot be split into arguments: {odd}", fix)


def plain_secrets(table: Raw) -> Iterator[RawFinding]:
    """Check that the command contains no secret."""
    for where, key in ((where, key) for where, *keys in _COMMANDS for key in keys):
        if kind := known_secret(text_at(at(table, *where), key)):
            fix = 'put it into [env.secrets], for example TOKEN = "env:TOKEN", and write $(TOKEN) here'
            yield error((*where, key), f"contains something that looks like {kind}", fix)


def shell_syntax(table: Raw) -> Iterator[RawFinding]:
    """Check for shell syntax, because no shell runs a one-line command."""
    for where, code_key, args_key in _COMMANDS:
        code, args = (text_at(at(table, *where), key) for key in (code_key, args_key))
        if not is_script(code):
            if assignment := _ASSIGNMENT.match(code):
                name, value = assignment.groups()
                problem = f"starts with {name}=…, which sets a variable only in a shell"
                variables = "env.vars" if where == ("ml",) else "server.env.vars"
                fix = f'write {name} = "{value}" under [{variables}], or write `env` before the variable'
                yield error((*where, code_key), problem, fix)
            yield from _shell_syntax_in((*where, code_key), code)
        yield from _shell_syntax_in((*where, args_key), args)


def _shell_syntax_in(where: Where, text: str) -> Iterator[RawFinding]:
    plain = _QUOTED.sub("Q", _REFERENCE.sub("R", text))
    for pattern, called, fix in _SHELL_SYNTAX:
        if found := pattern.search(plain):
            problem = (
                f"uses shell syntax, {called.format(f'`{found[1]}`')}, but no shell runs a one-line command"
            )
            yield warning(where, problem, fix.format(*found.groups()[1:]))
            return


def variable_references(table: Raw) -> Iterator[RawFinding]:
    """Check that each `$(NAME)` in `[env.vars]` has a value at the time when that variable is set."""
    known = {*at(table, "env", "secrets")}
    for variable, text in at(table, "env", "vars").items():
        for name in _REFERENCE.findall(text) if isinstance(text, str) else ():
            # A variable may extend the inherited variable of the same name.
            if name not in known and name != variable and not _PROVIDED.fullmatch(name):
                problem = f"$({name}) is not set above this line"
                fix = f"set {name} under [env.vars] before {variable}, or in the environment of the run"
                yield warning(("env", "vars", variable), problem, fix)
        known.add(variable)


def references(table: Raw) -> Iterator[RawFinding]:
    """Check that each `$(NAME)` has a value where the benchmark runs."""
    known = {*at(table, "env", "vars"), *at(table, "env", "secrets")}
    has_server = written_strategy(table) == "inference"
    provided = _PROVIDED_BY_SERVER if has_server else _PROVIDED
    for key in ("benchmark_code", "args"):
        text = text_at(at(table, "ml"), key)
        for name in dict.fromkeys(_REFERENCE.findall("" if is_script(text) else text)):
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or (name.islower() and name not in known):
                problem = f"$({name}) is the value of an environment variable, not the output of a command"
                fix = f"{_AS_SCRIPT}, or set a variable of this name under [env.vars]"
                yield warning(("ml", key), problem, fix)
            elif name not in known and not provided.fullmatch(name):
                fix = f"set {name} under [env.vars], or in the environment of the run"
                yield warning(("ml", key), f"$({name}) is not set in this file", fix)
