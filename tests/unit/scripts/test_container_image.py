"""Dockerfile.test can be built: each layer has the files of the product that it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_dockerfile_test_copies_the_files_needed_to_find_wheels(tmp_path: Path) -> None:
    instructions = (ROOT / "Dockerfile.test").read_text()
    before, _, command = instructions.partition("RUN /opt/tests/bin/python -c '")
    imports = re.search(r"from executor\S+ import find_wheels", command)
    assert imports
    for package in ("bai_agent", "cloud_init", "executor"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for copied in re.findall(r"^COPY (.*)$", before, re.MULTILINE):
        *files, folder = copied.split()
        for file in files:
            target = tmp_path / folder / Path(file).name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, target)

    # -S: the environment's own packages include this project, editable.
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {imports.group()}; print(sys.modules['executor'].__file__)"
    ran = subprocess.run(
        (sys.executable, "-S", "-c", program),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )

    assert ran.stderr == ""
    assert ran.stdout.strip() == str(tmp_path / "executor/__init__.py")
