"""Wheels are downloaded by pip with its configuration, even if the environment has no pip, and only at their locked checksums."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from executor.backends.ec2.bundle import wheels
from executor.backends.ec2.bundle.wheels import find_wheels
from executor.errors import WheelError

ROOT = Path(__file__).parents[3]
WHEEL = "tiny-1.0-py3-none-any.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index with one wheel, which pip's configuration names; yields the wheel."""
    project = tmp_path / "index/simple/tiny"
    project.mkdir(parents=True)
    with zipfile.ZipFile(project / WHEEL, "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    (project / "index.html").write_text(
        f'<!DOCTYPE html><html><body><a href="{WHEEL}">{WHEEL}</a></body></html>'
    )
    handler = partial(_Quiet, directory=str(tmp_path / "index"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield project / WHEEL
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def only_tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of that wheel alone."""
    monkeypatch.setattr(wheels, "sets", lambda _architecture: {"pure": (("tiny==1.0",), [])})
    sha256 = hashlib.sha256(index.read_bytes()).hexdigest()
    monkeypatch.setattr(wheels, "locked", lambda: {f"pure/{WHEEL}": sha256})


@pytest.mark.usefixtures("index")
def test_wheels_are_downloaded_by_an_environment_without_pip(tmp_path: Path) -> None:
    venv, folder = tmp_path / "venv", tmp_path / "wheels"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    program = (
        "import sys; from pathlib import Path; from executor.backends.ec2.bundle.wheels import download; "
        "download(Path(sys.argv[1]), 'tiny==1.0\\n', [])"
    )

    done = subprocess.run(
        [venv / "bin/python", "-c", program, folder],
        env={**os.environ, "PATH": "/nowhere", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (folder / WHEEL).exists()


def test_a_python_without_any_pip_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr("sysconfig.get_config_var", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WheelError, match=r"is made with pip, which .* does not have; install pip"):
        wheels.pip()


@pytest.mark.usefixtures("only_tiny")
def test_a_wheel_with_a_checksum_other_than_the_locked_one_is_refused(tmp_path: Path, index: Path) -> None:
    with zipfile.ZipFile(index, "a") as wheel:
        wheel.writestr("more.py", "")
    with pytest.raises(WheelError, match=r"has the wrong files for tiny==1\.0: "):
        find_wheels("x86_64", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.whl"))


@pytest.mark.usefixtures("only_tiny")
def test_a_changed_wheel_in_the_cache_is_fetched_again(tmp_path: Path, index: Path) -> None:
    [wheel] = find_wheels("x86_64", cache=tmp_path / "cache")
    wheel.write_bytes(b"something else")
    with pytest.raises(WheelError, match="is not in"):
        find_wheels("x86_64", cache=tmp_path / "cache", download=False)
    assert find_wheels("x86_64", cache=tmp_path / "cache") == [wheel]
    assert wheel.read_bytes() == index.read_bytes()
