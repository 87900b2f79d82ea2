"""The arguments of `bai time` become a descriptor, word for word."""

from __future__ import annotations

import shlex
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.benchmark.environment import expand
from executor.descriptor import load
from executor.errors import UsageError
from executor.planning.timing_request import (
    Around,
    RunCount,
    joined_words,
    parameter_lists,
    parameter_scans,
    shell_words,
    timed_commands,
    timing_descriptor,
)

PRINTABLE = st.text(
    st.sampled_from(string.printable.replace("\n", "").replace("\r", "") + "é€"), min_size=1, max_size=12
)


@given(st.lists(PRINTABLE, min_size=1, max_size=5), st.sampled_from([None, "sh", "bash -e"]))
def test_a_command_is_run_word_for_word(words: list[str], shell: str | None) -> None:
    text = shlex.join(words)

    (timed,) = timed_commands([text], parameters={}, shell=shell_words(shell), around=Around())

    started = [expand(word, {"HOME": "/root"}) for word in shlex.split(timed.code)]
    assert started == (words if shell is None else [*shlex.split(shell), "-c", text])


@given(st.lists(PRINTABLE, max_size=4))
def test_names_of_arms_are_unique(texts: list[str]) -> None:
    commands = [shlex.join(["echo", each]) for each in texts] or ["true"]

    timed = timed_commands(
        commands, parameters={"x": ["1", "2"]}, shell=None, around=Around(prepare=["true {x}"])
    )

    assert len({each.name for each in timed}) == len(timed) == 2 * len(commands)


@pytest.mark.parametrize(
    "text", ["a | b", "a > b", "a; b", "a && b", "echo $HOME", "echo `a`", 'echo "x" | y']
)
def test_shell_syntax_without_a_shell_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="add --shell sh"):
        timed_commands([text], parameters={}, shell=None, around=Around())
    timed_commands([text], parameters={}, shell="sh -c", around=Around())


def test_all_values_of_parameters_are_combined() -> None:
    timed = timed_commands(
        ["echo {x}-{y}", "true {x}"],
        parameters={"x": ["1", "2"], "y": ["a", "b"]},
        shell=None,
        around=Around(prepare=["touch {x}", "touch {y}"]),
    )

    assert [(each.text, each.prepare) for each in timed] == [
        ("echo 1-a", "touch 1"),
        ("echo 1-b", "touch 1"),
        ("echo 2-a", "touch 2"),
        ("echo 2-b", "touch 2"),
        ("true 1", "touch a"),
        ("true 1", "touch b"),
        ("true 2", "touch a"),
        ("true 2", "touch b"),
    ]


@pytest.mark.parametrize(
    ("given_words", "joined"),
    [
        (["-L", "x", "1,2", "cmd"], ["-L", "x=1,2", "cmd"]),
        (["-L", "x=1,2", "cmd"], ["-L", "x=1,2", "cmd"]),
        (["-P", "x", "1", "8", "cmd"], ["-P", "x=1,8", "cmd"]),
        (["--", "-L", "x", "1,2"], ["--", "-L", "x", "1,2"]),
        (["cmd", "-L"], ["cmd", "-L"]),
    ],
)
def test_hyperfine_options_with_several_words_are_accepted(given_words: list[str], joined: list[str]) -> None:
    assert joined_words(given_words) == joined


@given(st.lists(st.text(max_size=6), max_size=8))
def test_words_that_are_not_options_are_not_changed(words: list[str]) -> None:
    assert joined_words(["--", *words]) == ["--", *words]
    plain = [each for each in words if not each.startswith("-")]
    assert joined_words(plain) == plain


def test_parameter_ranges_and_lists_are_expanded_to_values() -> None:
    assert parameter_scans(["x=0.1,0.3"], "0.1") == {"x": ["0.1", "0.2", "0.3"]}
    assert parameter_scans(["n=1,4"], None) == {"n": ["1", "2", "3", "4"]}
    assert parameter_lists(["x=a\\,b,c"]) == {"x": ["a,b", "c"]}
    for wrong in (["x"], ["x=1"], ["x=2,1"], ["x=a,b"], ["x=1,nan"], ["x=0,1e9"]):
        with pytest.raises(UsageError):
            parameter_scans(wrong, None)


@pytest.mark.parametrize(
    "count",
    [
        RunCount(),
        RunCount(runs=7),
        RunCount(until="2%", most=40, warmup=2),
        RunCount(least=2, most=5),
        RunCount(most=3),
    ],
)
@pytest.mark.parametrize("commands", [["true"], ["true", "false", "echo 'a b' \\$x"]])
def test_each_stop_rule_gives_a_valid_descriptor(
    tmp_path: Path, count: RunCount, commands: list[str]
) -> None:
    timed = timed_commands(
        commands, parameters={}, shell=None, around=Around(prepare=["true"], conclude=["true"])
    )

    text = timing_descriptor(
        timed, count, folder=tmp_path, task="t", seed=1, ignore_failure=True, discard_stdout=True
    )

    descriptor, findings = load(tmp_path / "time.toml", content=text.encode())
    assert descriptor is not None, findings
    assert not findings
    assert descriptor.repeat is not None
    assert [each.benchmark_code for each in descriptor.repeat.arms] == (
        [each.code for each in timed] if len(timed) > 1 else []
    )
