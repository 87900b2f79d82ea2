"""The files of arms that have their own, if a job is made of several descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from executor.descriptor import Descriptor
from executor.planning.arms import ArmFiles, file_arms
from executor.planning.git import git_state
from executor.planning.job_sources import script_folder
from executor.planning.rerun_record import scripts_digest


def arm_files(descriptor: Descriptor, *, leave_out: Sequence[Path] = ()) -> dict[str, ArmFiles]:
    """Return the files of each arm, by its name; asks git and reads the scripts. Raises ScriptsError."""
    found = {}
    for arm in file_arms(descriptor):
        scripts = script_folder(arm.script, folder=arm.folder)
        digest = scripts_digest(scripts, leave_out) if scripts is not None else None
        found[arm.name] = ArmFiles(scripts=scripts, sha256=digest, git=git_state(arm.folder))
    return found
