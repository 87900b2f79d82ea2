"""What a Python says of itself is asked once, and again as soon as it may be different."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bai_agent.machine.software import python_facts
from bai_agent.runtime import user_cache
from bai_agent.runtime.user_cache import AnswerCache


class Venv:
    """A virtual environment that notes each of its starts."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
        (self.packages,) = folder.glob("lib/python*/site-packages")
        self.python = folder / "bin/python"
        self._starts = folder / "starts"
        # Not sitecustomize.py: Debian has one of its own, which is found first.
        note = f"open({str(self._starts)!r}, 'a').write('x')"
        # A path file is read twice where a folder is added twice.
        once = f"import sys; 'noted' in sys.modules or (sys.modules.update(noted=sys), {note})\n"
        (self.packages / "starts.pth").write_text(once)

    @property
    def starts(self) -> int:
        return len(self._starts.read_text()) if self._starts.exists() else 0

    def install(self, name: str) -> None:
        """Add a package, as pip does: name, version and little else."""
        (self.packages / f"{name}.dist-info").mkdir()

    def facts(self, cache: AnswerCache | None, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
        return python_facts(str(self.python), env=env, user=None, cache=cache)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "venv")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnswerCache:
    """A cache that also keeps answers about files that were just made."""
    monkeypatch.setattr(user_cache, "_SETTLED_S", 0.0)
    return AnswerCache(tmp_path / "answers")


def test_the_facts_of_a_python_are_cached(venv: Venv, cache: AnswerCache) -> None:
    venv.install("numpy-2.1.0")

    first = venv.facts(cache)
    again = venv.facts(cache)

    assert venv.starts == 1
    assert again == first == venv.facts(None)
    assert first["packages"] == {"numpy": "2.1.0"}


def test_installing_or_removing_a_package_invalidates_the_cached_facts(
    venv: Venv, cache: AnswerCache
) -> None:
    venv.facts(cache)

    venv.install("torch-2.5.1")
    assert venv.facts(cache)["packages"] == {"torch": "2.5.1"}

    (venv.packages / "torch-2.5.1.dist-info").rmdir()
    assert "packages" not in venv.facts(cache)


def test_a_changed_pth_file_is_detected(venv: Venv, cache: AnswerCache, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    (one / "numpy-1.0.dist-info").mkdir(parents=True)
    (other / "numpy-2.0.dist-info").mkdir(parents=True)
    path = venv.packages / "more.pth"
    path.write_text(f"{one}\n")
    assert venv.facts(cache)["packages"] == {"numpy": "1.0"}

    path.write_text(f"{other}\n")

    assert venv.facts(cache)["packages"] == {"numpy": "2.0"}


def test_a_changed_version_is_detected(venv: Venv, cache: AnswerCache) -> None:
    information = venv.packages / "scipy.egg-info/PKG-INFO"
    information.parent.mkdir()
    information.write_text("Name: scipy\nVersion: 1.0\n")
    assert venv.facts(cache)["packages"] == {"scipy": "1.0"}

    information.write_text("Name: scipy\nVersion: 1.1\n")

    assert venv.facts(cache)["packages"] == {"scipy": "1.1"}


def test_a_different_pythonpath_is_cached_separately(venv: Venv, cache: AnswerCache, tmp_path: Path) -> None:
    (tmp_path / "extra/jax-0.4.dist-info").mkdir(parents=True)
    venv.facts(cache)

    found = venv.facts(cache, {**os.environ, "PYTHONPATH": str(tmp_path / "extra")})

    assert found["packages"] == {"jax": "0.4"}


def test_facts_about_files_changed_a_moment_ago_are_not_cached(
    venv: Venv, cache: AnswerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_cache, "_SETTLED_S", 60.0)

    venv.facts(cache)
    venv.facts(cache)

    assert venv.starts == 2


def test_facts_are_not_cached_for_a_script_that_chooses_a_python(
    venv: Venv, cache: AnswerCache, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {venv.python} "$@"\n')
    script.chmod(0o755)

    for _ in range(2):
        python_facts(str(script), env=os.environ, user=None, cache=cache)

    assert venv.starts == 2


@pytest.mark.parametrize("kind", ["script", "program"])
def test_facts_are_not_cached_for_launchers_such_as_asdf_and_mise(
    venv: Venv, cache: AnswerCache, tmp_path: Path, kind: str
) -> None:
    """asdf's are scripts in a folder of the same name as pyenv's; mise's are links to a program."""
    launcher = tmp_path / "shims/python3"
    launcher.parent.mkdir()
    start = f'#!/bin/sh\nexec {venv.python} "$@"\n'
    if kind == "script":
        launcher.write_text(start)
        launcher.chmod(0o755)
    else:
        source = tmp_path / "launcher.c"
        source.write_text(
            "#include <unistd.h>\n"
            f'int main(int n, char **v) {{ (void)n; v[0] = "{venv.python}"; return execv(v[0], v); }}\n'
        )
        subprocess.run(["gcc", "-o", launcher, source], check=True, timeout=60)

    for _ in range(2):
        python_facts(str(launcher), env=os.environ, user=None, cache=cache)

    assert venv.starts == 2


@pytest.mark.root
def test_root_creates_nothing_in_another_users_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 12345)

    AnswerCache(home / ".cache/bai/answers").keep({"a": 1}, {"b": 2}, sources=["/"], asked_at=float("inf"))

    assert list(home.iterdir()) == []


def test_facts_for_pyenv_are_cached_until_its_version_changes(
    venv: Venv, cache: AnswerCache, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text("3.12\n")
    script = tmp_path / "shims/python"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexport PYENV_ROOT=/\n: pyenv exec\nexec {venv.python} "$@"\n')
    script.chmod(0o755)

    def ask() -> None:
        python_facts(str(script), env=os.environ, user=None, cache=cache)

    ask()
    ask()
    assert venv.starts == 1

    (tmp_path / "version").write_text("3.13\n")
    ask()
    assert venv.starts == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"stamps": {}}', '{"stamps": {"/": 1}, "answer": {}}'])
def test_a_damaged_cache_entry_is_ignored(cache: AnswerCache, tmp_path: Path, content: str) -> None:
    cache.keep({"a": 1}, {"b": 2}, sources=["/"], asked_at=float("inf"))
    assert cache.find({"a": 1}) == {"b": 2}
    (kept,) = (tmp_path / "answers").iterdir()

    kept.write_text(content)

    assert cache.find({"a": 1}) is None


def test_a_cache_that_others_can_write_is_not_used(cache: AnswerCache, tmp_path: Path) -> None:
    cache.keep({"a": 1}, {"b": 2}, sources=["/"], asked_at=float("inf"))

    (tmp_path / "answers").chmod(0o777)

    assert cache.find({"a": 1}) is None


def test_the_oldest_cache_entries_are_deleted(
    cache: AnswerCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_cache, "_MOST_ANSWERS", 2)
    for number in range(3):
        cache.keep({"a": number}, {}, sources=["/"], asked_at=float("inf"))
        for each in (tmp_path / "answers").iterdir():
            os.utime(each, (number, number))

    assert len(list((tmp_path / "answers").iterdir())) == 2
    assert cache.find({"a": 2}) == {}
