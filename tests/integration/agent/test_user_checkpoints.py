"""Root's agent and the checkpoints of another user's benchmark: files are read, created and removed with that user's rights."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_runs import events_of, result_of
from nobodys_jobs import as_nobody, nobody, nobodys_job, node_of, run_job, what_is_in
from saved_files import save, saved

from bai_agent.benchmark.environment import find_user
from bai_agent.checkpoint.keep import Keeper
from bai_agent.checkpoint.restore import Restorer
from bai_agent.checkpoint.snapshot import take_snapshot
from bai_agent.errors import PullError
from bai_agent.generations.checkpoint_marker import CheckpointRecord
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.record import JobRecord
from bai_agent.job.store.directory import DirectoryStore

pytestmark = pytest.mark.root

_PYTHON = "/usr/bin/python3"
_COUNTS = """
import os, sys
folder = os.environ["BAI_CHECKPOINT_DIR"]
step = int(open(f"{folder}/step").read()) if os.environ["BAI_RESUMED"] else 0
open(f"{folder}/new", "w").write(str(step + 1))
os.rename(f"{folder}/new", f"{folder}/step")
sys.exit(os.environ["BAI_GENERATION"] != "2")
"""


def counting(folder: Path, program: str, path: str) -> Path:
    return nobodys_job(
        folder,
        [_PYTHON, "-c", program],
        restart={"max_restarts": 3, "backoff": "0s"},
        checkpoint={"path": path, "every": "off"},
        benchmark={"inherit_env": False},
    )


def owners(folder: Path) -> set[int]:
    return {each.lstat().st_uid for each in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_checkpoint_of_another_user_is_stored_and_its_files_keep_their_owner(
    folder: Path, is_absolute: bool
) -> None:
    node = node_of(folder)
    path = folder / "data" / "checkpoints" if is_absolute else node / "work" / "checkpoints"

    code = run_job(counting(folder, _COUNTS, str(path) if is_absolute else "checkpoints"), node)

    assert code == 0, result_of(node)
    assert saved(path) == {"step": "3"}
    assert owners(path) == {nobody().pw_uid}
    assert owners(node / "checkpoint") == {0}
    assert result_of(node)["checkpoints"]["kept"] == 3


def test_a_restore_creates_files_as_the_user_and_follows_no_link(folder: Path, outside: Path) -> None:
    user = find_user("nobody")
    record = CheckpointRecord(AttemptRecord(JobRecord(DirectoryStore(folder / "store"), "job")))
    (folder / "store").mkdir()
    origin, checkpoints = folder / "origin", folder / "checkpoints"
    for name in ("a", "deep/b"):
        save(origin / name, name)
    until = time.monotonic() + 60
    snapshot = take_snapshot(origin, user=None, place=folder / "held", until=until, over=lambda: False)
    keeper = Keeper(record=record, node=0, generation=0, patience=timedelta(seconds=30))
    marker = keeper.keep(snapshot, last=None, over=lambda: False)
    assert marker is not None
    checkpoints.mkdir()
    os.chown(checkpoints, nobody().pw_uid, nobody().pw_gid)
    as_nobody('ln -s "$1" deep; ln -s "$1" .bai-restore', outside, cwd=checkpoints)
    before = what_is_in(outside)
    restorer = Restorer(
        folder=checkpoints,
        user=user,
        record=record,
        store=None,
        manifest=folder / "pulled.json",
        deadline=until,
        stopping=lambda: False,
    )

    with pytest.raises(PullError, match="Permission denied"):
        restorer.restore(marker)
    (checkpoints / ".bai-restore").unlink()
    assert restorer.restore(marker)

    assert saved(checkpoints) == {"a": "a", "deep/b": "deep/b"}
    assert owners(checkpoints) == {nobody().pw_uid}
    assert what_is_in(outside) == before


def test_the_agent_does_not_follow_a_users_links_to_files_of_root(folder: Path, outside: Path) -> None:
    node = node_of(folder)
    program = f"""
import os, sys
folder = os.environ["BAI_CHECKPOINT_DIR"]
os.symlink({str(outside / "secret")!r}, f"{{folder}}/a")
os.symlink({str(outside)!r}, f"{{folder}}/b")
open(f"{{folder}}/step", "w").write("1")
sys.exit(os.environ["BAI_GENERATION"] != "1")
"""
    program = program.replace("os.symlink(", "os.path.lexists(f'{folder}/b') or os.symlink(")

    code = run_job(counting(folder, program, "checkpoints"), node)

    assert code == 0, result_of(node)
    kept = [each.read_text() for each in (node / "checkpoint").rglob("*") if each.is_file()]
    assert set(kept) == {"1"}
    assert (outside / "secret").read_text() == "only root may read this"
    assert any("Checkpoints do not have a, b" in each for each in result_of(node)["warnings"])


def test_a_checkpoint_folder_replaced_by_a_link_is_written_with_the_users_rights(
    folder: Path, outside: Path
) -> None:
    node = node_of(folder)
    program = f"""
import os, shutil, sys
folder = os.environ["BAI_CHECKPOINT_DIR"]
if os.environ["BAI_GENERATION"] == "0":
    open(f"{{folder}}/step", "w").write("1")
elif os.environ["BAI_GENERATION"] == "1":
    shutil.rmtree(folder)
    os.symlink({str(outside)!r}, folder)
sys.exit(1)
"""
    before = sorted(outside.iterdir())

    # The restore before generation 2 would replace what is in root's folder.
    code = run_job(counting(folder, program, "checkpoints"), node)

    assert code == 5
    assert result_of(node)["outcome"] == "pull_failed"
    assert "Permission denied" in result_of(node)["sentence"]
    assert sorted(outside.iterdir()) == before
    assert any(each["type"] == "checkpoint" for each in events_of(node))


def test_a_folder_that_the_user_cannot_create_is_refused(folder: Path) -> None:
    node = node_of(folder)
    own = folder / "own"
    own.mkdir()
    os.chown(own, nobody().pw_uid, nobody().pw_gid)
    (own / "way").mkdir(mode=0o700)
    tables: dict[str, Any] = {"checkpoint": {"path": str(own / "way" / "checkpoints")}}
    job = nobodys_job(folder, [_PYTHON, "-c", "pass"], benchmark={"inherit_env": False}, **tables)

    code = run_job(job, node)

    assert code == 5
    assert "Permission denied" in result_of(node)["sentence"]
    assert not (own / "way" / "checkpoints").exists()
