"""Puts the agent into an image, whose instances accept a bare job descriptor as user data.

User data that is not a job descriptor works as with any other image. A bundle that is in the image is not
fetched again.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import tarfile
import zlib
from datetime import timedelta
from pathlib import Path

from bai_agent.errors import BaiError
from cloud_init.user_data import ROOT, STATE, boothook, fetch_agent, guardian, piece

BAKED = f"{ROOT}/baked"

_LONGEST = timedelta(days=30)
"""Deadline that applies until the job descriptor has been read. The job descriptor has its own deadline. The
boothook allows half an hour for reading the job descriptor."""

_PIECE = 1 << 20

_IS_OURS = r"""
user_data=/var/lib/cloud/instance/user-data.txt
grep -q '^version *= *[0-9]' "$user_data" && grep -q '^ *\[job\]' "$user_data" || exit 0
"""
_COPY = f"mkdir -p {STATE} && cp {BAKED}/guardian.sh {BAKED}/fetch_agent.py {STATE}/ || exit 0\n"

_CLOUD_CONFIG = f"""\
# Does nothing unless the user data is a job descriptor. cloud-init's own places for scripts do not survive `cloud-init clean`.
bootcmd:
- [sh, {BAKED}/boothook.sh]
runcmd:
- [sh, {BAKED}/start.sh]
"""


def bake(bundle: Path, *, root: Path) -> str:
    """Put the agent of the archive `bundle` into the system at `root`; return the bundle's sha256. The call may be
    repeated."""
    if not (root / "etc/cloud").is_dir():
        raise BaiError(
            f"{root} has no /etc/cloud: cloud-init is not installed there, and nothing would start the agent"
        )
    try:
        sha256 = hashlib.sha256(bundle.read_bytes()).hexdigest()
    except OSError as error:
        raise BaiError(f"{bundle}: cannot be read: {error.strerror}; `bai bundle` makes one") from error
    _unpack(bundle, _in(root, f"{ROOT}/agent") / sha256)
    files = {
        f"{BAKED}/bundle": f"{sha256}\n",
        f"{BAKED}/guardian.sh": guardian(),
        f"{BAKED}/fetch_agent.py": fetch_agent(),
        f"{BAKED}/raw_job.py": piece("raw_job.py"),
        f"{BAKED}/boothook.sh": boothook(deadman=_LONGEST, max_boots=3, before=_IS_OURS + _COPY),
        f"{BAKED}/start.sh": f"#!/bin/sh\n{_IS_OURS}sh {STATE}/guardian.sh </dev/null >/dev/null 2>&1 &\n",
        "/etc/cloud/cloud.cfg.d/90-bai.cfg": _CLOUD_CONFIG,
    }
    for name, content in files.items():
        path = _in(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for left in (STATE, f"{ROOT}/jobs", f"{ROOT}/job.toml"):
        _remove(_in(root, left))
    return sha256


def _unpack(bundle: Path, folder: Path) -> None:
    if folder.is_dir():
        return
    partial = folder.with_name(f"{folder.name}.partial")
    _remove(partial)
    try:
        # Read to the very end, because gzip's checksum is there and tarfile does not read that far.
        with gzip.open(bundle) as content:
            while content.read(_PIECE):
                continue
        with tarfile.open(bundle, "r:gz") as tar:
            # Early releases of Python 3.10 do not have the parameter; the archive is the caller's own.
            trust = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(partial, **trust)  # type: ignore[arg-type]  # noqa: S202
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise BaiError(f"{bundle}: is not a bundle of the agent: {error}; `bai bundle` makes one") from error
    if not (partial / "start_agent.py").is_file():
        shutil.rmtree(partial)
        raise BaiError(
            f"{bundle}: is not a bundle of the agent: it has no start_agent.py; `bai bundle` makes one"
        )
    partial.rename(folder)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _in(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
