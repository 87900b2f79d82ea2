"""Documentation names files of this project that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_NAMED = re.compile(r"`((?:bai_agent|executor|cloud_init|tests|docs|scripts|examples|benchmarks)/[\w./-]*)`")
_PAGES = sorted(page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")) if page.name != "CHANGELOG.md")


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_a_page_names_existing_files(page: Path) -> None:
    named = {path for path in _NAMED.findall(page.read_text()) if "NAME" not in path}

    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_a_page_names_existing_tests() -> None:
    tests = "".join(each.read_text() for each in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", tests))
    wrong = {
        page.name: missing
        for page in _PAGES
        if (missing := sorted(set(re.findall(r"`(test_\w+)`", page.read_text())) - there))
    }

    assert wrong == {}


def test_a_bare_file_name_in_the_architecture_page_is_in_a_folder_named_nearby() -> None:
    wrong = []
    for paragraph in re.split(r"\n\n|\n(?=\||\d+\. )", (ROOT / "docs/architecture.md").read_text()):
        named = re.findall(r"`([\w./-]+)`", paragraph)
        paths = [ROOT / each for each in named if "/" in each]
        folders = {each if each.is_dir() else each.parent for each in paths}
        folders |= {inner for each in folders if each.is_dir() for inner in each.iterdir() if inner.is_dir()}
        wrong += [
            name
            for name in named
            if "/" not in name
            and name.endswith(".py")
            and not any((each / name).exists() for each in folders)
        ]

    assert wrong == []


_LINK = re.compile(r"\]\((?!https?:)([\w./-]*)(?:#([\w-]+))?\)")


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]), ids=lambda page: page.name
)
def test_a_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    wrong = []
    for path, heading in _LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        if not target.exists() or (heading and target.suffix == ".md" and heading not in _headings(target)):
            wrong.append(f"{path}#{heading}")

    assert wrong == []


def _headings(page: Path) -> set[str]:
    """Return the anchors of a page: explicit ones, and those that a forge makes of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    linked = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower() for title in titles]
    anchors = re.findall(r'<a id="([\w-]+)"></a>', text)
    return {*anchors, *(re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in linked)}


def test_the_map_of_the_code_shows_the_files_of_a_run() -> None:
    named = _NAMED.findall((ROOT / "docs/architecture.md").read_text())

    assert len(set(named)) > 40
    assert {"bai_agent/phases/run.py", "executor/backends/backend.py", "executor/commands/runs.py"} < set(
        named
    )


@pytest.mark.parametrize("folder", ["harness", "servers", "records", "programs"])
def test_the_index_of_shared_test_code_names_each_file(folder: str) -> None:
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"| `tests/{folder}/` |")
    table, _, _ = rest.partition("\n\n")

    named = re.findall(r"`(\w+\.\w+)`", table)

    assert sorted(named) == sorted(
        file.name for file in (ROOT / "tests" / folder).iterdir() if file.is_file()
    )
