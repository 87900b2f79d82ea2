"""Replaces podman by a program that records its calls, and answers as a test chooses."""

from __future__ import annotations

import sys
from pathlib import Path

INSPECTED = 'print(json.dumps([{"Id": "abc", "Config": {"Env": ["PATH=/image/bin", "SAYS=a=b"]}}]))'
USUAL = f"""
if "--version" in sys.argv: print("podman version 4.9.3")
elif "exists" in sys.argv: sys.exit(1)
elif "inspect" in sys.argv: {INSPECTED}
"""
"""Answers of a podman that does not have the image, but can pull it."""

_PROGRAM = """\
#!{python}
import json, os, sys
from pathlib import Path
files = {{word: [Path(word.partition("=")[2]).read_text(), oct(Path(word.partition("=")[2]).stat().st_mode)]
         for word in sys.argv if word.startswith("--authfile=")}}
with open({calls!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ), files]) + "\\n")
{answer}
"""


def put_podman(folder: Path, answer: str = USUAL) -> Path:
    """Put a podman with an answer (Python code) into `folder`.

    Returns the file that records its calls: arguments, environment, logins.
    """
    folder.mkdir(exist_ok=True)
    calls = folder / "calls.jsonl"
    program = folder / "podman"
    program.write_text(_PROGRAM.format(python=sys.executable, calls=str(calls), answer=answer))
    program.chmod(0o755)
    return calls
