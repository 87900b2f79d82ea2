"""The start-up file replaces functions that AdaptDL needs and current packages lack; tested with stand-ins of the packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from bai_agent.benchmark.environment import STARTUP
from bai_agent.nodes.held_ports import hold_port

PACKAGES = {
    "numpy.py": "",
    "semver.py": "class VersionInfo:\n    @classmethod\n    def is_valid(cls, text): return text == '1.2.3'\n",
    "adaptdl.py": "import numpy, pkg_resources, semver\n",
    "adaptdl-0.2.11.dist-info/METADATA": "Metadata-Version: 2.1\nName: adaptdl\nVersion: 0.2.11\n",
}
"""numpy and semver lack what AdaptDL uses."""
SECONDS = 60


def said(folder: Path, code: str, packages: Mapping[str, str] = PACKAGES, **variables: str) -> str:
    """Return what a Python prints that has our start-up file and these packages."""
    for name, text in packages.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{STARTUP}:{folder}", **variables}
    # Without pip's packages: pkg_resources may be among them.
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sitecustomize\n{code}"],
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout + done.stderr


JOB = {"ADAPTDL_SUPERVISOR_URL": "http://127.0.0.1:1"}


def test_adaptdl_finds_functions_that_current_packages_removed(tmp_path: Path) -> None:
    code = """
import adaptdl
from adaptdl import numpy, pkg_resources, semver
print(numpy.int, pkg_resources.get_distribution("adaptdl").version)
print([semver.VersionInfo.isvalid(each) for each in ("1.2.3", "x", "", None)])
"""

    assert said(tmp_path, code, PACKAGES, **JOB) == "<class 'int'> 0.2.11\n[True, False, False, False]\n"


def test_packages_that_still_have_these_functions_are_not_changed(tmp_path: Path) -> None:
    own = {
        **PACKAGES,
        "numpy.py": "int = 'own'",
        "semver.py": "class VersionInfo:\n    isvalid = 'own'\n",
        "pkg_resources.py": "own = 'own'",
    }
    code = "import adaptdl, numpy, semver, pkg_resources\nprint(numpy.int, semver.VersionInfo.isvalid, pkg_resources.own)"

    assert said(tmp_path, code, own, **JOB) == "own own own\n"


@pytest.mark.parametrize(
    ("code", "variables"), [("import adaptdl", {}), ("import numpy", JOB)], ids=["another job", "no AdaptDL"]
)
def test_programs_without_adaptdl_import_and_change_nothing(
    tmp_path: Path, code: str, variables: Mapping[str, str]
) -> None:
    packages = {**PACKAGES, "adaptdl.py": ""}
    code = f"{code}\nimport sys, numpy\nprint(hasattr(numpy, 'int'), 'semver' in sys.modules)"

    assert said(tmp_path, code, packages, **variables) == "False False\n"


def test_a_missing_package_is_reported_by_the_import_itself(tmp_path: Path) -> None:
    packages = {name: text for name, text in PACKAGES.items() if name != "semver.py"}

    assert said(tmp_path, "import adaptdl", packages, **JOB).splitlines()[-1] in (
        "ModuleNotFoundError: No module named 'semver'",
        "ModuleNotFoundError: No module named 'pkg_resources'",
    )


def test_the_first_replica_listens_on_the_port_that_the_agent_holds(tmp_path: Path) -> None:
    code = """
import adaptdl, os, socket
with socket.socket() as listener:
    listener.bind(("0.0.0.0", int(os.environ["ADAPTDL_MASTER_PORT"])))
    listener.listen(1)
    print("listens")
"""
    other = {**PACKAGES, "adaptdl.py": ""}
    with closing(hold_port()) as held:
        port = str(held.getsockname()[1])

        assert said(tmp_path, code, PACKAGES, **JOB, ADAPTDL_MASTER_PORT=port) == "listens\n"
        assert "Address already in use" in said(tmp_path, code, other, ADAPTDL_MASTER_PORT=port)
