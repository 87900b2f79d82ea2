"""A script and options become a descriptor, word for word; mistakes name the option."""

from __future__ import annotations

import os
import string
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bai_agent.benchmark.environment import expand
from bai_agent.job.descriptor import Job
from executor.commands.job_options import KeyOptions
from executor.descriptor import Descriptor, render_findings
from executor.errors import UsageError
from executor.planning.plan import PlanInputs, plan
from executor.planning.request import FindingsError, JobRequest, load_request, read_request
from executor.planning.script_request import emitted_toml, find_script, with_script

PRINTABLE = st.text(
    st.sampled_from(string.printable.replace("\r", "").replace("/", "") + "é€"), min_size=1, max_size=12
)
IN_A_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with scripts in a folder below it."""
    scripts = tmp_path / "src" / "deep"
    scripts.mkdir(parents=True)
    (tmp_path / "src" / "train.py").write_text("print('loss: 0.5')\n")
    (tmp_path / "src" / "run.sh").write_text("echo 1\n")
    (tmp_path / "src" / "go.sh").write_text("#!/bin/bash\necho 1\n")
    (tmp_path / "src" / "program").write_bytes(b"\x7fELF\0")
    (tmp_path / "src" / "-odd $(HOME).py").write_text("")
    (scripts / "train.py").write_text("")
    (tmp_path / "job.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request(file: str, *arguments: str, on: str | None = None, keys: KeyOptions | None = None) -> JobRequest:
    overrides = (keys or KeyOptions()).overrides()
    return JobRequest(file=Path(file), on=on, arguments=arguments, overrides=overrides)


def planned(descriptor: Descriptor, folder: Path) -> Job:
    return plan(descriptor, PlanInputs(folder=folder, job_id="j", client_id="c"))


@IN_A_FOLDER
@given(st.lists(PRINTABLE, max_size=4))
@example(["${UNSET}", "$${UNSET}", "'${UNSET:-1}'"])
def test_the_planned_command_has_each_argument_as_one_word(folder: Path, words: list[str]) -> None:
    made = with_script(replace(request("src/train.py", *words), variables={}))

    descriptor, _ = read_request(made)

    started = [expand(word, {}) for word in planned(descriptor, folder).benchmark.argv]
    assert started == ["python3", "train.py", *(expand(word, {}) for word in words)]


@IN_A_FOLDER
@given(PRINTABLE.filter(lambda name: "\n" not in name))
def test_a_script_of_any_name_is_started(folder: Path, name: str) -> None:
    file = folder / "names" / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("")

    descriptor, _ = read_request(with_script(request(f"names/{name}.py")))

    program, path = (expand(word, {"HOME": "/root"}) for word in planned(descriptor, folder).benchmark.argv)
    assert (program, Path("names", path)) == ("python3", Path("names", f"{name}.py"))


@pytest.mark.parametrize(
    ("words", "shipped", "command"),
    [
        (["src/train.py"], "src", ["python3", "train.py"]),
        (["src", "train.py"], "src", ["python3", "train.py"]),
        (["src", "src/train.py"], "src", ["python3", "train.py"]),
        (["src", "deep/train.py", "x"], "src", ["python3", "deep/train.py", "x"]),
        (["src/run.sh"], "src", ["sh", "run.sh"]),
        (["src/go.sh"], "src", ["./go.sh"]),
        (["src/program"], "src", ["./program"]),
        (["src/-odd $(HOME).py"], "src", ["python3", "./-odd $(HOME).py"]),
    ],
)
def test_the_folder_of_a_script_is_included(
    folder: Path, words: list[str], shipped: str, command: list[str]
) -> None:
    descriptor, findings = read_request(with_script(request(*words)))

    assert not findings
    assert descriptor.ml.script is not None
    assert descriptor.ml.script.path == shipped
    started = [expand(word, {"HOME": "/root"}) for word in planned(descriptor, folder).benchmark.argv]
    assert started == command


@pytest.mark.parametrize(
    ("on", "keys", "engine", "strategy"),
    [
        (None, KeyOptions(), "local", "single_node"),
        (None, KeyOptions(nodes="1"), "local", "single_node"),
        (None, KeyOptions(nodes="2"), "local", "torchrun"),
        (None, KeyOptions(nodes="1:4"), "local", "torchrun"),
        (None, KeyOptions(set_=["hardware.distributed.num_instances=2"]), "local", "torchrun"),
        (None, KeyOptions(nodes="2", set_=["hardware.strategy=each_node"]), "local", "each_node"),
        (None, KeyOptions(instance_type="g5.xlarge"), "aws.ec2", "single_node"),
        ("local", KeyOptions(instance_type="g5.xlarge"), "local", "single_node"),
        ("ec2", KeyOptions(nodes="2", instance_type="g5.xlarge"), "aws.ec2", "torchrun"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_options_choose_backend_and_strategy(
    on: str | None, keys: KeyOptions, engine: str, strategy: str
) -> None:
    more = [*(keys.set_ or []), "aws.ec2.image=ami-0"]
    if strategy == "each_node":
        more.append("hardware.distributed.processes_per_instance=1")
    keys = replace(keys, set_=more)

    descriptor, findings = read_request(with_script(request("src/train.py", on=on, keys=keys)))

    assert (descriptor.info.execution_engine, descriptor.hardware.strategy) == (engine, strategy)
    assert not findings


def test_the_emitted_descriptor_makes_the_same_job(folder: Path) -> None:
    keys = KeyOptions(nodes="2", set_=["limits.max_runtime=2h", 'output.metrics["loss"].units=nats'])
    made = with_script(
        request("src/train.py", "--lr", "0.1", "a b", keys=keys),
        metrics=[r"loss=loss: (\S+)"],
        presets=["keras", "fio"],
    )
    (folder / "emitted.toml").write_text(emitted_toml(made))

    first, findings = read_request(made)
    second, more = read_request(request("emitted.toml"))

    assert not [*findings, *more]
    assert planned(first, folder) == planned(second, folder)
    assert [each.name for each in first.output.metrics] == ["loss"]
    assert first.output.preset == ["keras", "fio"]


@pytest.mark.parametrize("words", [["job.toml"], ["none.toml"], ["src"], ["src", "job.toml"], ["none"]])
@pytest.mark.usefixtures("folder")
def test_a_descriptor_is_not_taken_for_a_script(words: list[str]) -> None:
    asked = request(*words)

    assert with_script(asked) is asked
    for options in ({"metrics": ["a=b"]}, {"presets": ["fio"]}):
        with pytest.raises(UsageError, match="is a descriptor"):
            with_script(asked, **options)


def test_a_fifo_is_not_read(folder: Path) -> None:
    os.mkfifo(folder / "fifo")

    assert find_script(Path("fifo"), ()) is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["none.py"], "none.py: there is no such file"),
        (["src", "none.py"], "src has no file none.py"),
        (["src", "../job.sh"], "src has no file"),
        (["src", "deep"], "src has no file deep"),
        (["src/train.py", "\udcff"], "not UTF-8"),
        (["a\nb.py"], "a command is one line, but this name has two lines"),
        (["src", "\udcff.py"], "not UTF-8"),
    ],
)
def test_a_script_that_cannot_be_run_is_named(folder: Path, words: list[str], problem: str) -> None:
    for name in ("job.sh", "a\nb.py", "src/\udcff.py"):
        (folder / name).write_text("")

    with pytest.raises(UsageError, match=problem):
        with_script(request(*words))


@pytest.mark.parametrize("shared", ["HOME", "TMPDIR"])
def test_a_script_directly_in_the_home_or_temporary_folder_is_refused(
    folder: Path, shared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shared, str(folder / "src"))
    monkeypatch.setattr("tempfile.tempdir", None)

    with pytest.raises(
        UsageError, match=r"that would be all of .*src; move the script to a folder of its own"
    ):
        with_script(request("src/train.py"))


@pytest.mark.parametrize("text", ["loss", "=x", "loss=", ""])
@pytest.mark.usefixtures("folder")
def test_a_metric_without_name_or_pattern_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not NAME=REGEX; write for example --metric"):
        with_script(request("src/train.py"), metrics=[text])


@pytest.mark.parametrize(
    ("made", "place", "fix"),
    [
        (
            lambda: with_script(request("src/train.py", on="ec2")),
            "train.py: hardware.instance_type",
            "on the command line: --instance-type TYPE",
        ),
        (
            lambda: with_script(request("src/train.py"), metrics=["a=1 (.)", "loss=("]),
            "--metric loss: output.metrics[1].pattern",
            "close every (",
        ),
        (
            lambda: with_script(request("src/train.py"), presets=["kera"]),
            "--preset: output.preset",
            'did you mean "keras"',
        ),
        (
            lambda: with_script(request("src/train.py", "--token", "hf_" + "a1B2" * 8)),
            "-- ARGS: ml.args",
            "put it into [env.secrets]",
        ),
        (
            lambda: with_script(request("src/train.py", keys=KeyOptions(nodes="none"))),
            "--nodes: hardware.distributed.num_instances",
            "num_instances = 2",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_mistake_names_key_and_option(made: object, place: str, fix: str) -> None:
    with pytest.raises(FindingsError) as refused:
        read_request(made())  # type: ignore[operator]

    text = " ".join(str(refused.value).split())
    assert f"error: {place}" in text
    assert fix in text


@pytest.mark.usefixtures("folder")
def test_a_warning_names_the_option_of_its_key() -> None:
    keys = KeyOptions(instance_type="g5.xlarge", set_=["env.docker_image=python:3"])

    _, findings = load_request(with_script(request("src/train.py", keys=keys)))

    assert "--set aws.ec2.image=VALUE" in render_findings(findings)


@pytest.mark.usefixtures("folder")
def test_script_option_and_script_exclude_each_other() -> None:
    with pytest.raises(UsageError, match=r"--script job.toml and the script src/train.py exclude each other"):
        with_script(replace(request("src/train.py"), script=Path("job.toml")))
