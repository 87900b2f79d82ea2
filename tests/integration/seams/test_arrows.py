"""The check of imports, as CI runs it, fails on an import that goes up, and on a circle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import SourceTree, copied_tree


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    return copied_tree(tmp_path / "tree")


def broken(tree: SourceTree) -> str:
    """Check the imports of `tree`, which must not pass; return what is said."""
    done = subprocess.run(
        (Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tree.folder,
        env=tree.environment,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def test_an_upward_import_between_rooms_breaks_the_contract(tree: SourceTree) -> None:
    with (tree.folder / "executor/descriptor/checks/table_checks.py").open("a") as file:
        file.write("\nfrom executor.documents import text\n")

    said = broken(tree)

    assert "executor.descriptor.checks.table_checks -> executor.documents.text" in said
    assert "bai's rooms import downwards, and a view imports no backend BROKEN" in said


def test_a_circular_import_inside_a_function_breaks_the_contract(tree: SourceTree) -> None:
    # Given that unpack.py imports draft.py
    with (tree.folder / "bai_agent/pull/draft.py").open("a") as file:
        file.write("\n\ndef look() -> None:\n    from bai_agent.pull import unpack\n\n    unpack.__doc__\n")

    said = broken(tree)

    assert "No room imports in a circle BROKEN" in said
    assert "in bai_agent.pull." in said
    assert ".unpack -> .draft" in said or ".draft -> .unpack" in said
    assert " kept, 1 broken" in said
