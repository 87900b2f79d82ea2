"""A test runs wherever the suite does, unless it needs root or a GPU; all else is a package of scripts/test-packages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from source_tree import SOURCE

_ALLOWED = re.compile(r"needs (root|an NVIDIA GPU)\b")
_SKIPS = {"skip", "skipif", "importorskip", "xfail"}


def other_skips(source: str) -> list[str]:
    """Return the reasons for which the tests of a module may be skipped, but for those that are allowed."""
    return [
        reason
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _SKIPS
        and re.match(r"pytest\b", ast.unparse(call.func))
        and not _ALLOWED.match(reason := _reason(call))
    ]


def _reason(call: ast.Call) -> str:
    given = [*call.args, *(each.value for each in call.keywords)]
    texts = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return texts[-1] if texts else ast.unparse(call)


def test_tests_are_skipped_without_root_or_a_gpu_only() -> None:
    found = {
        str(path.relative_to(SOURCE)): reasons
        for path in sorted((SOURCE / "tests").rglob("*.py"))
        if path != Path(__file__)
        and any(word in (text := path.read_text()) for word in _SKIPS)
        and (reasons := other_skips(text))
    }

    assert found == {}


@pytest.mark.parametrize(
    ("source", "reasons"),
    [
        ('pytest.skip("needs root: it mounts a disk")', []),
        ('@pytest.mark.skipif(x, reason="needs an NVIDIA GPU")\ndef test(): ...', []),
        ('pytest.skip("needs Chromium")', ["needs Chromium"]),
        ('pytest.mark.skipif(x, reason="no IPv6 here")', ["no IPv6 here"]),
        ('pytest.importorskip("torch")', ["torch"]),
    ],
)
def test_any_other_reason_is_found(source: str, reasons: list[str]) -> None:
    assert other_skips(source) == reasons
