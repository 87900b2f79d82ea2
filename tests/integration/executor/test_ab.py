"""`bai ab`: two descriptors take turns in one job, and are compared."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest
from local_cli import LocalCli

from bai_agent.job.run_directory import RunDir

PROGRAM = """
import os, sys
print(f"loss={int(sys.argv[1]) + int(os.environ['BAI_REPEAT']) % 3 + int(os.environ.get('MORE', 0))}")
"""


def arm(cli: LocalCli, name: str, base: int, more: str = "") -> Path:
    text = cli.descriptor(PROGRAM, more=more).read_text().replace("[[output", f'args = "{base}"\n[[output', 1)
    file = cli.folder / f"{name}.toml"
    file.write_text(text)
    return file


def test_bai_ab_alternates_two_arms_and_compares_them(cli: LocalCli) -> None:
    old, new = arm(cli, "old", 1000), arm(cli, "new", 1000, "[env.vars]\nMORE = 500\n")

    answer = cli.bai("ab", old, new, "--runs", "4", "--seed", "5", "--job-id", "two", "--json")

    assert answer.code == 1, answer.stderr  # lower is better
    result = cli.result("two")
    assert result["outcome"] == "succeeded"
    arms = [each["arm"] for each in result["repeats"]]
    assert all({arms[i], arms[i + 1]} == {"old", "new"} for i in range(0, 8, 2))
    assert "seed = 5" in (cli.store / "two" / "job.toml").read_text()
    metrics = json.loads(answer.stdout.splitlines()[-1])["metrics"]
    loss = next(each for each in metrics if each["name"] == "loss")
    assert loss["verdict"] == "worse"


def test_bai_ab_compares_each_of_three_arms_with_the_first(cli: LocalCli) -> None:
    files = [arm(cli, "one", 1000), arm(cli, "two", 2000), arm(cli, "three", 3000)]

    answer = cli.bai("ab", *files, "--runs", "3", "--job-id", "three", "--json")

    assert answer.code == 1, answer.stderr
    arms = [each["arm"] for each in cli.result("three")["repeats"]]
    assert len(arms) == 9
    assert all({*arms[i : i + 3]} == {"one", "two", "three"} for i in (0, 3, 6))
    pairs = [
        json.loads(line) for line in answer.stdout.splitlines() if '"metrics":[' in line.replace(" ", "")
    ]
    assert [(each["a"]["name"], each["b"]["name"]) for each in pairs] == [
        ("three one", "three two"),
        ("three one", "three three"),
    ]


def test_a_failed_arm_is_named_in_the_result(cli: LocalCli) -> None:
    files = [arm(cli, "good", 1), arm(cli, "bad", 1, '[env.vars]\nMORE = "x"\n'), arm(cli, "other", 1)]

    answer = cli.bai("ab", *files, "--runs", "2", "--job-id", "fails")

    assert answer.code == 1, answer.stderr
    assert "(bad)" in cli.result("fails")["sentence"]
    assert "(bad)" in answer.stderr + answer.stdout


def test_arms_that_differ_in_the_user_are_refused_with_key_and_file(cli: LocalCli) -> None:
    one = arm(cli, "one", 1)
    other = arm(cli, "other", 2, "[env]\nuser = 'nobody'\n")

    answer = cli.bai("ab", one, other)

    assert answer.code == 2
    assert "env.user" in answer.stderr
    assert str(other) in answer.stderr
    assert not list(cli.store.glob("*/job.toml"))


TRAIN = """
import json, os
from pathlib import Path
import tiny
words = Path("words.txt").read_text()
print(f"loss={len(words) * 1000 + int(os.environ['BAI_REPEAT'])}")
print(f"here={Path.cwd()} {os.environ['BAI_SCRIPTS_PATH']}")
Path("result.json").write_text(json.dumps({"version": SLOW}))
print("tiny", tiny.version)
"""


def version(folder: Path, *, slow: int, words: str) -> Path:
    """Write a version of a benchmark with its own script, data, requirements, in its own folder; return its descriptor."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN.replace("SLOW", str(slow)))
    (folder / "some words.txt").write_text(words)
    wheel = f"tiny-{slow}.0-py3-none-any.whl"
    with zipfile.ZipFile(folder / wheel, "w") as file:
        about = f"tiny-{slow}.0.dist-info"
        file.writestr("tiny.py", f"version = {slow}\n")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {slow}.0\n")
        file.writestr(
            f"{about}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(f"{about}/RECORD", "")
    (folder / "requirements.txt").write_text(f"./{wheel}\n")
    (folder / "around.sh").write_text(f"echo prepared {slow} in $PWD\n")
    (folder / "bench.toml").write_text(
        f"""
spec_version = "0.1.0"
[info]
description = "version {slow}"
execution_engine = "local"
[hardware]
instance_type = "local"
[host_metrics]
enabled = false
[env]
python = "{sys.executable}"
[ml]
benchmark_code = "python $(BAI_SCRIPTS_PATH)/train.py"
[ml.script]
path = "."
requirements = "requirements.txt"
[[data.sources]]
src = "some words.txt"
path = "words.txt"
[[data.sources]]
src = "{folder.parent}/common.txt"
path = "{folder.parent}/landed/common.txt"
[output]
artifacts = ["result.json"]
[[output.metrics]]
name = "loss"
pattern = 'loss=([0-9]+)'
better = "lower"
[[output.results]]
path = "result.json"
format = "json"
values = ["version"]
[repeat]
runs = 3
prepare = 'sh $(BAI_SCRIPTS_PATH)/around.sh'
"""
    )
    return folder / "bench.toml"


def test_two_versions_of_a_script_run_in_separate_folders(cli: LocalCli) -> None:
    (cli.folder / "common.txt").write_text("for both")
    old = version(cli.folder / "old", slow=1, words="12")
    new = version(cli.folder / "new", slow=2, words="1234")

    answer = cli.bai("ab", old, new, "--job-id", "two", "--json")

    assert answer.code == 1, answer.stderr  # more words, a greater loss
    assert cli.result("two")["outcome"] == "succeeded"
    compared = json.loads(answer.stdout.splitlines()[-1])
    loss = next(each for each in compared["metrics"] if each["name"] == "loss")
    # Files of one name are called as their folders are.
    assert (compared["a"]["name"], compared["b"]["name"], loss["verdict"]) == ("two old", "two new", "worse")
    differs = {each["what"]: (each["a"], each["b"]) for each in compared["differences"]}
    assert differs["package tiny"] == ("1.0", "2.0")
    assert "scripts" in differs
    # What each arm found where it looked, and how it was prepared.
    rundir, output = cli.rundir("two"), cli.output("two")
    for arm, slow in (("old", 1), ("new", 2)):
        own = rundir.of_arm(arm)
        assert output.count(f"here={own.scripts} {own.scripts}\n") == 3
        assert output.count(f"prepared {slow} in {own.scripts}\n") == 3
        assert output.count(f"tiny {slow}\n") == 3
        assert not own.venv.exists()  # as after any run that succeeded
        kept = cli.store / "two" / "artifacts" / arm / "result.json"
        assert json.loads(kept.read_text()) == {"version": slow}
    assert {each["value"] for each in records(rundir) if each["name"] == "version"} == {1, 2}
    # The record has what each arm was made of.
    pulled = json.loads(rundir.pulled.read_text())["sources"].values()
    sums = {each["path"]: each["sha256"] for each in pulled if each["path"].endswith("words.txt")}
    assert set(sums) == {str(rundir.of_arm(arm).scripts / "words.txt") for arm in ("old", "new")}
    assert sum(each["path"].endswith("/landed/common.txt") for each in pulled) == 1
    job = cli.record("two").job()
    assert job.repeat is not None
    assert len({each.scripts_sha256 for each in job.repeat.arms}) == 2
    assert None not in {each.scripts_sha256 for each in job.repeat.arms}
    report = cli.bai("report", "two", "--format", "md").stdout
    for each in job.repeat.arms:
        assert f"scripts of {each.name}: SHA-256 {each.scripts_sha256}" in report
    assert f"`bai ab A.toml B.toml --runs 3 --seed {job.repeat.seed}`" in report


def test_the_descriptor_of_an_arm_also_runs_as_an_ordinary_job(cli: LocalCli) -> None:
    (cli.folder / "common.txt").write_text("for both")
    alone = version(cli.folder / "old", slow=1, words="12")

    answer = cli.bai("run", alone, "--job-id", "alone", "--json")

    assert answer.code == 0, answer.stderr
    scripts = cli.rundir("alone").scripts
    assert cli.output("alone").count(f"here={scripts} {scripts}\n") == 3


def test_arms_with_the_same_files_share_their_folders(cli: LocalCli) -> None:
    (cli.folder / "common.txt").write_text("for both")
    one = version(cli.folder / "old", slow=1, words="12")
    other = one.with_name("other.toml")
    other.write_text(one.read_text().replace('train.py"', 'train.py --fast"'))

    answer = cli.bai("ab", one, other, "--job-id", "shared", "--json")

    assert answer.code == 0, answer.stderr
    rundir = cli.rundir("shared")
    assert cli.output("shared").count(f"here={rundir.scripts} {rundir.scripts}\n") == 6
    assert not (rundir.path / "arms").exists()


def test_arms_with_different_data_for_the_same_path_are_refused(cli: LocalCli) -> None:
    (cli.folder / "common.txt").write_text("for both")
    old = version(cli.folder / "old", slow=1, words="12")
    new = version(cli.folder / "new", slow=2, words="1234")
    new.write_text(new.read_text().replace('/common.txt"\npath', '/other.txt"\npath'))
    (cli.folder / "other.txt").write_text("another")

    answer = cli.bai("ab", old, new)

    assert answer.code == 2
    assert f"{cli.folder}/landed/common.txt" in answer.stderr
    assert "write relative paths" in answer.stderr
    assert not list(cli.store.glob("*/job.toml"))


def test_an_arm_with_unavailable_data_ends_the_job_before_the_first_run(cli: LocalCli) -> None:
    (cli.folder / "common.txt").write_text("for both")
    old = version(cli.folder / "old", slow=1, words="12")
    new = version(cli.folder / "new", slow=2, words="1234")
    wrong = hashlib.sha256(b"something else").hexdigest()
    new.write_text(new.read_text().replace('path = "words.txt"', f'path = "words.txt"\nsha256 = "{wrong}"'))

    answer = cli.bai("ab", old, new, "--job-id", "wrong", "--json")

    assert answer.code != 0
    result = cli.result("wrong")
    assert result["outcome"] == "pull_failed"
    assert "words.txt" in result["sentence"]
    assert not cli.rundir("wrong").repeats.exists()


@pytest.mark.parametrize("until", ["50%", "0.0001%"])
def test_runs_continue_until_the_difference_is_precise_enough(cli: LocalCli, until: str) -> None:
    # The difference is known to half of it with the least number of runs, and never to a millionth.
    one, other = arm(cli, "one", 1000), arm(cli, "other", 3000)
    most = "\n[repeat]\nruns = 14\n"
    for file in (one, other):
        file.write_text(file.read_text() + most)

    answer = cli.bai("ab", one, other, "--until", until, "--job-id", "until", "--json")

    assert answer.code == 1, answer.stderr
    result = cli.result("until")
    assert result["outcome"] == "succeeded"
    arms = [each["arm"] for each in result["repeats"]]
    enough = until == "50%"
    assert len(arms) == (20 if enough else 28)
    assert arms.count("one") == arms.count("other") == len(arms) // 2
    assert any("[repeat] until asks for" in each for each in result["warnings"]) is not enough


def records(rundir: RunDir) -> list[dict[str, object]]:
    return [json.loads(line) for line in rundir.metrics.read_text().splitlines()]
