from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import bai_agent
from bai_agent.benchmark import environment
from bai_agent.benchmark.environment import (
    STARTUP,
    command,
    expand,
    find_user,
    prepare_environment,
    working_folder,
)
from bai_agent.errors import SetupError
from bai_agent.files.user_rights import User
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Buffering, Identity
from bai_agent.job.run_directory import RunDir

NAMES = st.text("ABC_19", min_size=1, max_size=4)


def _job(**benchmark: Any) -> Job:
    return Job(job=Identity(id="j1"), benchmark=Benchmark(**{"argv": ("true",), **benchmark}))


def _env(
    tmp_path: Path, job: Job, *, base: dict[str, str] | None = None, scripts: Path | None = None, **more: Any
) -> dict[str, str]:
    return prepare_environment(
        job, RunDir(tmp_path), scripts=scripts, secrets=more.pop("secrets", {}), base=base or {}, **more
    )


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(BAI_SCRIPTS_PATH)/src/entrypoint.sh", "/bai/scripts/src/entrypoint.sh"),
        ("--lr=$(LR) $(LR)", "--lr=0.1 0.1"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(LR)", "$(LR)"),
        ("$$$(LR)", "$0.1"),
        ("$$$$(LR)", "$$(LR)"),
        ("$LR ${LR} `LR` $(LR", "$LR ${LR} `LR` $(LR"),
        ("$(NESTED)", "$(LR)"),
        ("$()", "$()"),
        ("100$", "100$"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    env = {"BAI_SCRIPTS_PATH": "/bai/scripts", "LR": "0.1", "NESTED": "$(LR)"}

    assert expand(text, env) == expanded


@given(st.text("$(AB)x"), st.dictionaries(st.sampled_from(["A", "B", "AB"]), st.text()))
def test_expansion_equals_that_of_a_simple_left_to_right_reader(text: str, env: dict[str, str]) -> None:
    assert expand(text, env) == _read_left_to_right(text, env)


@given(st.text())
def test_any_text_with_doubled_dollars_expands_to_itself(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"A": "other"}) == text


def _read_left_to_right(text: str, env: dict[str, str]) -> str:
    """The rule as Kubernetes states it, a character at a time."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            out, at = out + env.get(text[at + 2 : end], text[at : end + 1]), end + 1
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


def test_the_environment_has_the_documented_bai_variables(tmp_path: Path) -> None:
    env = _env(tmp_path, _job(env={"BENCHMARK_AI": "stdout", "MINE": "1"}), scripts=tmp_path / "scripts")

    assert env["BENCHMARK_AI"] == "fifo"
    assert env["BENCHMARK_AI_FIFO_FILEPATH"] == str(tmp_path / "fifo")
    assert env["BENCHMARK_AI_FIFO_MAX_WAIT_TIME"] == "60"
    assert env["BAI_SCRIPTS_PATH"] == str(tmp_path / "scripts")
    assert (env["BAI_JOB_ID"], env["MINE"]) == ("j1", "1")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$(BAI_SCRIPTS_PATH)/lib", "/scripts/lib"),
        ("$(BAI_JOB_ID)/$(BAI_NODE_RANK)", "j1/3"),
        ("/mine:$(PATH)", "/mine:/theirs"),
        ("$(EARLIER)", "$(LATER)"),
        ("$(LATER)", "$(LATER)"),
        ("$(TOKEN)@host", "secret@host"),
        ("$$(PATH)", "$(PATH)"),
        ("$$ $PATH ${PATH} $(", "$$ $PATH ${PATH} $("),
    ],
)
def test_a_variable_may_refer_to_others(tmp_path: Path, text: str, value: str) -> None:
    variables = {"EARLIER": "$$(LATER)", "PATH" if "PATH)" in text else "MINE": text, "LATER": "1"}
    job = _job(inherit_env=True, env=variables)

    env = _env(
        tmp_path,
        job,
        base={"PATH": "/theirs"},
        scripts=Path("/scripts"),
        secrets={"TOKEN": "secret"},
        node={"BAI_NODE_RANK": "3"},
    )

    assert env["PATH" if "PATH)" in text else "MINE"] == value


@given(st.text(st.characters(exclude_characters="\0")))
@example("a$(b")
@example("$$(A) $(A $(A)")
def test_any_value_of_a_variable_can_be_written_literally(text: str) -> None:
    job = _job(env={"MINE": text.replace("$(", "$$(")}, buffering=Buffering.OWN)

    env = prepare_environment(job, RunDir(Path("/none")), scripts=None, secrets={}, base={"A": "other"})

    assert env["MINE"] == text


def test_home_and_path_are_always_set(tmp_path: Path) -> None:
    for inherit in (True, False):
        env = _env(tmp_path, _job(inherit_env=inherit))
        assert env["HOME"]
        assert "/usr/bin" in env["PATH"].split(":")
        assert "BAI_SCRIPTS_PATH" not in env


def test_a_job_started_within_another_jobs_run_does_not_inherit_its_repeat_and_arm(tmp_path: Path) -> None:
    base = {"BAI_REPEAT": "3", "BAI_ARM": "old", "THEIRS": "1"}

    env = _env(tmp_path, _job(inherit_env=True), base=base)

    assert env["THEIRS"] == "1"
    assert not {"BAI_REPEAT", "BAI_ARM"} & env.keys()


def test_the_callers_environment_is_passed_on_only_if_asked(tmp_path: Path) -> None:
    base = {"HOME": "/home/me", "PATH": "/mine", "THEIRS": "1"}

    inherited = _env(tmp_path, _job(inherit_env=True), base=base)
    fixed = _env(tmp_path, _job(inherit_env=False), base=base)

    assert (inherited["HOME"], inherited["PATH"], inherited["THEIRS"]) == ("/home/me", "/mine", "1")
    assert "THEIRS" not in fixed
    assert fixed["PATH"] != "/mine"


def test_secrets_override_variables_of_the_job_which_override_the_callers(tmp_path: Path) -> None:
    job = _job(inherit_env=True, env={"A": "job", "B": "job"})

    env = _env(tmp_path, job, base={"A": "base", "B": "base", "C": "base"}, secrets={"A": "secret"})

    assert (env["A"], env["B"], env["C"]) == ("secret", "job", "base")


def test_the_agents_folder_is_removed_from_the_benchmarks_pythonpath(tmp_path: Path) -> None:
    ours = Path(bai_agent.__file__).parents[1]
    job = _job(inherit_env=True, buffering=Buffering.OWN)

    assert "PYTHONPATH" not in _env(tmp_path, job, base={"PYTHONPATH": str(ours)})
    assert _env(tmp_path, job, base={"PYTHONPATH": f"/a:{ours}:/b"})["PYTHONPATH"] == "/a:/b"


@pytest.mark.parametrize("buffering", Buffering)
def test_buffering_sets_the_variables_of_the_benchmark(tmp_path: Path, buffering: Buffering) -> None:
    env = _env(tmp_path, _job(inherit_env=True, buffering=buffering), base={"PYTHONPATH": "/theirs"})

    own = buffering is Buffering.OWN
    assert env["PYTHONPATH"] == ("/theirs" if own else f"{STARTUP}:/theirs")
    assert env.get("PYTHONUNBUFFERED") == ("1" if buffering is Buffering.LINE else None)
    assert env.get("_STDBUF_O") == ("L" if buffering is Buffering.LINE else None)


def test_an_ld_preload_of_the_job_is_kept(tmp_path: Path) -> None:
    env = _env(tmp_path, _job(env={"LD_PRELOAD": "/lib/libjemalloc.so"}))

    assert env["LD_PRELOAD"] == "/lib/libjemalloc.so"
    assert "_STDBUF_O" not in env


def test_without_stdbuf_only_python_is_unbuffered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_STDBUF_FOLDERS", ("/nowhere",))

    env = _env(tmp_path, _job())

    assert "LD_PRELOAD" not in env
    assert env["PYTHONUNBUFFERED"] == "1"


def test_the_callers_unbuffered_python_is_kept_unless_the_job_says_timed(tmp_path: Path) -> None:
    base = {"PYTHONUNBUFFERED": "1"}

    kept = _env(tmp_path, _job(inherit_env=True, buffering=Buffering.OWN), base=base)
    dropped = _env(tmp_path, _job(inherit_env=True, buffering=Buffering.TIMED), base=base)

    assert kept["PYTHONUNBUFFERED"] == "1"
    assert "PYTHONUNBUFFERED" not in dropped


def test_the_configured_python_is_first_on_path(tmp_path: Path) -> None:
    (tmp_path / "torch" / "bin").mkdir(parents=True)
    (tmp_path / "torch" / "pyvenv.cfg").touch()
    python = str(tmp_path / "torch" / "bin" / "python")

    env = _env(tmp_path, _job(python=python, env={"PATH": "/mine"}))
    plain = _env(
        tmp_path, _job(inherit_env=True, python="/usr/bin/python3"), base={"VIRTUAL_ENV": "/x", "PATH": "/p"}
    )

    assert (env["PATH"], env["VIRTUAL_ENV"]) == (f"{tmp_path}/torch/bin:/mine", f"{tmp_path}/torch")
    assert plain["PATH"] == "/usr/bin:/p"
    assert "VIRTUAL_ENV" not in plain


def test_the_jobs_own_packages_come_before_the_chosen_python(tmp_path: Path) -> None:
    env = _env(
        tmp_path, _job(python="/usr/bin/python3", requirements="requirements.txt", env={"PATH": "/mine"})
    )

    assert env["PATH"] == f"{tmp_path}/venv/bin:/usr/bin:/mine"


def test_the_only_python_of_an_image_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pythons = (tmp_path / "pytorch" / "bin" / "python", tmp_path / "tensorflow" / "bin" / "python")
    monkeypatch.setattr(environment, "IMAGE_PYTHONS", pythons)
    for python in pythons:
        python.parent.mkdir(parents=True)
    pythons[0].touch()

    assert _env(tmp_path, _job())["PATH"].startswith(f"{pythons[0].parent}:")
    assert not _env(tmp_path, _job(inherit_env=True))["PATH"].startswith(str(tmp_path))
    pythons[1].touch()
    assert not _env(tmp_path, _job())["PATH"].startswith(str(tmp_path))


def test_home_is_that_of_the_configured_user(tmp_path: Path) -> None:
    user = User(name="me", uid=1, gid=1, groups=(), home="/home/me")

    env = _env(tmp_path, _job(inherit_env=True), base={"HOME": "/root", "USER": "root"}, user=user)

    assert (env["HOME"], env["USER"], env["LOGNAME"]) == ("/home/me", "me", "me")


def test_an_unknown_user_is_named() -> None:
    with pytest.raises(SetupError, match='user "nobody-here" does not exist on this machine; create it'):
        find_user("nobody-here")


def test_configuring_the_agents_own_user_changes_nothing() -> None:
    import os
    import pwd

    assert find_user(pwd.getpwuid(os.geteuid()).pw_name) is None
    assert find_user(None) is None


@pytest.mark.parametrize(
    ("script", "interpreter"),
    [("#!/usr/bin/env python3\nprint(1)\n", ()), ("echo a\necho b\n", ("/bin/sh",))],
)
def test_a_script_in_the_descriptor_is_written_to_an_executable_file(
    tmp_path: Path, script: str, interpreter: tuple[str, ...]
) -> None:
    job = _job(argv=("--n", "$(N)"), script=script)
    rundir = RunDir(tmp_path)

    argv = command(job, rundir.script, env={"N": "3"})

    assert argv == (*interpreter, str(rundir.script), "--n", "3")
    assert rundir.script.read_text() == script
    assert rundir.script.stat().st_mode & 0o777 == 0o700


def test_the_working_directory_is_the_scripts_folder_or_the_configured_cwd(tmp_path: Path) -> None:
    rundir, scripts = RunDir(tmp_path), tmp_path / "scripts"
    job = _job()

    def within(cwd: str) -> Job:
        return replace(job, benchmark=replace(job.benchmark, cwd=cwd))

    assert working_folder(job, rundir, scripts=None) == tmp_path / "work"
    assert working_folder(job, rundir, scripts=scripts) == scripts
    assert working_folder(within("/data"), rundir, scripts=scripts) == Path("/data")
    assert working_folder(within("sub"), rundir, scripts=scripts) == tmp_path / "work" / "sub"
