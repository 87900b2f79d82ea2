"""Expands `${NAME}` in a descriptor's values, from the environment of the user who calls `bai`. Each changed
value becomes an override, so that the job's record contains the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from executor.descriptor.checks.secret_values import looks_secret, secret_fix
from executor.descriptor.findings import Finding
from executor.descriptor.override_places import Place, key_types
from executor.descriptor.overrides import Override
from executor.descriptor.schema import schema_at
from executor.descriptor.toml_text import KeyPath, key_text

Variables = Mapping[str, str]

_ITEM = "*"
"""Step of a path that matches every item of a list and every key of a table."""
_VARIABLES = (("env", "vars"), ("repeat", "arms", _ITEM, "vars"))
_ARGUMENTS = (("ml", "args"), ("repeat", "arms", _ITEM, "args"))
_PLACES = (*_VARIABLES, *_ARGUMENTS, ("data", "sources"), ("aws", "ec2"), ("hardware",))
"""Keys whose values, and all values below them, are expanded. No shell and no pattern reads these values. The keys
in `_SHELL` are excluded."""
_SHELL = (("aws", "ec2", "init_commands"),)
_REFERENCE = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<wrong>\$\{)"
)
_FORMS = "write ${NAME}, ${NAME:-default}, or $${ for a ${ that is meant as text"


class _ReferenceError(Exception):
    """A reference cannot be replaced. The exception's arguments are problem and fix."""


def expand_variables(
    table: Mapping[str, Any], variables: Variables, *, file: str, skip: Mapping[Place, Any]
) -> tuple[list[Override], list[Finding]]:
    """Return the changed values of `table`, and the mistakes in references to variables.

    file: name of the file in findings. skip: places whose values are not expanded, because options have set
    them.
    """
    changed: list[Override] = []
    findings: list[Finding] = []
    for place, text in _texts(table, ()):
        if "${" not in text or place in skip:
            continue
        try:
            value = _expanded(text, variables, place)
        except _ReferenceError as error:
            problem, fix = error.args
            findings.append(Finding(file=file, path=place, problem=problem, fix=fix))
            continue
        types = key_types(schema_at(place))
        typed = bool(types) and "string" not in types
        changed.append(Override(option="", key=key_text(place), path=place, value=value, typed=typed))
    return changed, findings


def expand_value(
    value: Any, path: KeyPath, variables: Variables, *, file: str, where: Place
) -> tuple[Any, list[Finding]]:
    """Return a value that `[matrix]` sets for the key at `path`, with its variables replaced, and the
    mistakes. file, where: the value's place in findings.
    """
    findings: list[Finding] = []

    def replaced(node: Any, place: KeyPath, where: Place) -> Any:
        if isinstance(node, Mapping):
            return {key: replaced(each, (*place, key), (*where, key)) for key, each in node.items()}
        if isinstance(node, list):
            return [replaced(each, (*place, n), (*where, n)) for n, each in enumerate(node)]
        if not isinstance(node, str) or "${" not in node or not _is_expanded(place):
            return node
        try:
            return _expanded(node, variables, place)
        except _ReferenceError as error:
            problem, fix = error.args
            findings.append(Finding(file=file, path=where, problem=problem, fix=fix))
            return node

    return replaced(value, path, where), findings


def _texts(node: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the texts that may be expanded, each with its place."""
    if isinstance(node, str):
        if _is_expanded(place):
            yield place, node
        return
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for step, value in items:
        yield from _texts(value, (*place, step))


def _is_expanded(place: KeyPath) -> bool:
    return _is_below(place, _PLACES) and not _is_below(place, _SHELL)


def _is_below(place: KeyPath, prefixes: tuple[tuple[str, ...], ...]) -> bool:
    return any(
        len(prefix) <= len(place)
        and all(want in (_ITEM, step) for want, step in zip(prefix, place, strict=False))
        for prefix in prefixes
    )


def _expanded(text: str, variables: Variables, place: KeyPath) -> str:
    """Return `text` with its references replaced. Raises _ReferenceError."""
    in_arguments, in_variables = _is_below(place, _ARGUMENTS), _is_below(place, _VARIABLES)
    found: list[str] = []
    quotes, end = _Quotes(), 0
    for reference in _REFERENCE.finditer(text):
        before = text[end : reference.start()]
        found.append(before)
        quotes.read(before)
        end = reference.end()
        if (name := reference["name"]) is None:
            if reference["wrong"]:
                raise _ReferenceError(
                    f"`{text[reference.start() :][:20]}` is not the name of a variable", _FORMS
                )
            found.append("${")
            continue
        use = f", and write $({name}) here" if in_arguments or in_variables else ""
        value = _value(name, reference["default"], variables, use=use)
        if value is None:
            found.append(reference["default"])
            continue
        if in_arguments:
            # $(NAME) would be replaced again where the benchmark starts.
            value = quotes.escape(value).replace("$", "$$")
        elif in_variables:
            value = value.replace("$(", "$$(")
        found.append(value)
    return "".join([*found, text[end:]])


def _value(name: str, default: str | None, variables: Variables, *, use: str) -> str | None:
    """Return the variable's value, or None if its default is to be used. Raises _ReferenceError.

    use: text that is appended to the advice if the value looks like a secret.
    """
    value = variables.get(name)
    uses_default = not value and default is not None
    used = default if uses_default else value
    if used is None:
        raise _ReferenceError(
            f"the environment variable {name} is not set",
            f"export {name}=… before `bai`, or write a default: ${{{name}:-…}}",
        )
    if (why := looks_secret(name, used)) is not None:
        raise _ReferenceError(
            f"the value of ${{{name}}} {why}, and would be written to disk and to user data",
            f"{secret_fix(name)}{use}",
        )
    try:
        used.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(used).decode(errors="backslashreplace")
        raise _ReferenceError(
            f'the value of ${{{name}}} is not UTF-8: "{shown}"',
            "a descriptor holds text only; change the value",
        ) from None
    return None if uses_default else used


class _Quotes:
    """Tells whether a position in the arguments is inside quotes, by the rules with which the arguments are
    split."""

    def __init__(self) -> None:
        self._quote, self._escaped = "", False

    def read(self, text: str) -> None:
        for each in text:
            if self._escaped:
                self._escaped = False
            elif each == "\\" and self._quote != "'":
                self._escaped = True
            elif self._quote:
                self._quote = "" if each == self._quote else self._quote
            elif each in "'\"":
                self._quote = each

    def escape(self, value: str) -> str:
        """Return `value`, escaped for the quotes at the current position. Outside of quotes, return `value` unchanged,
        because spaces in the value then separate arguments."""
        if self._quote == '"':
            return re.sub(r'(["\\])', r"\\\1", value)
        return value.replace("'", "'\"'\"'") if self._quote else value
