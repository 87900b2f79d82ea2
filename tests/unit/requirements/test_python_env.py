"""Which requirements files say all that a venv made of them depends on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.requirements.python_env import index_requirements


def read(tmp_path: Path, text: str) -> list[str] | None:
    path = tmp_path / "requirements.txt"
    path.write_text(text)
    found = index_requirements(path)
    return None if found is None else [content for _, content in found]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n\n",
        "numpy",
        "numpy==2.1.0\ntorch >= 2, <3  # the newest\nscikit_learn~=1.5",
        "transformers[torch,sentencepiece]==4.*",
        "tomli>=2; python_version < '3.11'",
        "numpy==2.1.0 \\\n    --hash=sha256:abc \\\n    --hash=sha256:def\n",
        "--index-url https://packages.example.org/simple\n--extra-index-url=https://other.example.org\n--pre\nnumpy",
        "package (>=1.0)",
    ],
)
def test_requirements_by_name_and_version_are_cacheable(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == [text]


@pytest.mark.parametrize(
    "line",
    [
        "./package",
        "../package",
        "/opt/package",
        "package/",
        "tiny-1.0-py3-none-any.whl",
        "tiny.tar.gz",
        "tiny.zip[extra]",
        "tiny.zip ; python_version > '3'",
        "https://example.org/tiny-1.0.tar.gz",
        "tiny @ https://example.org/tiny-1.0.tar.gz",
        "tiny @ file:///tiny",
        "tiny@file:///tiny",
        "git+https://example.org/tiny.git",
        "-e .",
        "--editable=./tiny",
        "-f wheels",
        "--find-links wheels",
        "-r https://example.org/requirements.txt",
        "-r missing.txt",
        "${PACKAGE}",
        "--index-url https://${TOKEN}@example.org",
        "--unheard-of option",
        "numpy --global-option=x",
    ],
)
def test_requirements_with_paths_or_options_are_not_cacheable(tmp_path: Path, line: str) -> None:
    assert read(tmp_path, f"numpy\n{line}\n") is None


def test_included_files_belong_to_the_requirements(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("-c ../limits.txt\n-r base.txt\nnumpy")
    (tmp_path / "limits.txt").write_text("numpy<3")
    text = "--requirement more/base.txt\ntorch"

    assert read(tmp_path, text) == [text, "-c ../limits.txt\n-r base.txt\nnumpy", "numpy<3"]
    (tmp_path / "limits.txt").write_text("numpy @ file:///numpy")
    assert read(tmp_path, text) is None


@given(text=st.text(max_size=60))
def test_any_requirements_file_can_be_parsed(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    index_requirements(path)
