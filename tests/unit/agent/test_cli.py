from __future__ import annotations

import subprocess
import sys

import pytest

FAILING = """
import sys
from bai_agent import cli

class Panic(BaseException):
    pass

def run_job(*_, **__):
    raise {error}("something broke")

cli.run_job = run_job
cli.main(["run", "job.toml"])
"""


@pytest.mark.parametrize("error", ["ValueError", "Panic"])
def test_an_internal_error_of_the_agent_has_its_own_exit_code(error: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FAILING.format(error=error)], capture_output=True, text=True, timeout=60
    )

    assert child.returncode == 5
    assert child.stderr.endswith(f"bai-agent: internal error: {error}: something broke\n")
