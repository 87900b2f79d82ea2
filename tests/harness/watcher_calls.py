"""Calls the watcher as Lambda does: from its own archive, in its own process with the function's memory."""

from __future__ import annotations

import atexit
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from preloaded_bai import Preloaded
from sandbox.fake_aws.control_plane.images import IMAGES
from sandbox.fake_aws.iam.policies import Policies

from executor.backends.ec2.watcher.archive import HANDLER, WatcherArchive, build_watcher
from executor.owned_folders import cache_folder

MEMORY = 512 * 2**20
"""Memory of the function (bytes)."""
_PROCESS = str(Path(__file__).with_name("watcher_process.py"))


@dataclass(frozen=True)
class WatcherCall:
    """Result of a call."""

    answer: dict[str, Any] | None
    imported: list[str]
    """Modules that are loaded after the import of the handler."""
    cold_s: float
    """Processor time of that import (seconds)."""
    peak: int
    """Peak memory (bytes)."""
    log: str


def grant(
    policies: Policies, profile: str, *, subnets: list[str], types: list[str], name: str = "bai"
) -> None:
    """Give the identity "watcher" the rights of a stack with these parameters."""
    lists = {"SUBNETS": subnets, "TYPES": types, "GROUPS": ["sg-1"], "OWNERS": ["amazon"], "NAME": [name]}
    policies.around = replace(
        policies.around,
        roles={**policies.around.roles, profile: profile},
        owners={each.image_id: "amazon" for each in IMAGES},
        default_group="sg-1",
    )
    words = {word: '","'.join(each) for word, each in lists.items()}
    policies.attach("watcher", policies.documented("watcher", **words))


def own_archive() -> WatcherArchive:
    """Return the watcher's archive for this Python."""
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    return build_watcher(cache=cache_folder(os.environ), python=python, architecture=platform.machine())


@cache
def unpacked() -> Path:
    """Return the folder of the unpacked archive, which all calls of this process share.

    The first call compiles the modules.
    """
    folder = TemporaryDirectory(prefix="watcher-")
    atexit.register(folder.cleanup)
    return unpack(Path(folder.name))


def unpack(folder: Path) -> Path:
    """Unpack the archive, as Lambda does."""
    with zipfile.ZipFile(own_archive().path) as archive:
        archive.extractall(folder / "task")
    return folder / "task"


class _ForkedWatcher(Preloaded[str]):
    program = "watcher"

    def __init__(self, command: tuple[str, ...], **options: Any) -> None:
        self.command = command
        super().__init__([], **options)


def start(code: Path, event: Any, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a call of the handler of the unpacked archive. event: None to only import the handler.

    With the shared archive, the call is forked from a process that has imported the handler, as in a warm
    call of Lambda.
    """
    command = ("-I", "-S", _PROCESS, str(code), HANDLER, str(MEMORY))
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # Lambda's user has no home folder.
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", **environment}
    process: subprocess.Popen[str]
    if code == unpacked():
        process = _ForkedWatcher(command, env=env, cwd="/", text=True, **pipes)
    else:
        process = subprocess.Popen([sys.executable, *command], env=env, cwd="/", text=True, **pipes)
    assert process.stdin is not None
    process.stdin.write(json.dumps(event))
    process.stdin.close()
    process.stdin = None  # `communicate` would flush it.
    return process


def call(code: Path, event: Any, environment: Mapping[str, str]) -> WatcherCall:
    """Import the handler of the unpacked archive, and call it. event: None to only import it."""
    with start(code, event, environment) as process:
        try:
            out, err = process.communicate(timeout=120)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(err)
    return WatcherCall(**json.loads(out.splitlines()[-1]), log=err)


def state_change(instance: str, state: str, *, region: str, account: str) -> dict[str, Any]:
    """Return a message of the queue with an event of EC2: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html"""
    return _message(
        {
            "version": "0",
            "id": "7bf73129-1428-4cd3-a780-95db273d1602",
            "detail-type": "EC2 Instance State-change Notification",
            "source": "aws.ec2",
            "account": account,
            "time": "2026-11-11T21:29:54Z",
            "region": region,
            "resources": [f"arn:aws:ec2:{region}:{account}:instance/{instance}"],
            "detail": {"instance-id": instance, "state": state},
        }
    )


def scheduled() -> dict[str, Any]:
    """Return a message of the queue that the schedule sends."""
    return _message({"version": "0", "detail-type": "Scheduled Event", "source": "aws.events", "detail": {}})


def _message(event: dict[str, Any]) -> dict[str, Any]:
    body = json.dumps(event)
    record = {"messageId": "059f36b4-87a3-44ab-83d2-661975830a7d", "body": body, "eventSource": "aws:sqs"}
    return {"Records": [record]}
