"""The commit of a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bai_agent.job.descriptor import Git

_TIMEOUT_S = 5.0
"""Longest time for one question (seconds). A repository on a slow network file system must not delay a run."""


def git_state(folder: Path) -> Git | None:
    """Return the commit, branch and dirty flag of the repository around `folder`; None if there is no git or no commit."""
    commit = _ask(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    branch = _ask(folder, "symbolic-ref", "--quiet", "--short", "HEAD") or ""
    changes = _ask(folder, "status", "--porcelain", "--untracked-files=normal", "--", ".")
    return Git(commit=commit, branch=branch, dirty=changes is None or changes != "")


def _ask(folder: Path, *question: str) -> str | None:
    try:
        answer = subprocess.run(
            ("git", "-C", folder, *question),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            # Reading must not take the index lock from a user who works in the repository.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.decode(errors="replace").strip() if answer.returncode == 0 else None
