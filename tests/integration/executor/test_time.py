"""`bai time`: commands timed in shuffled blocks, as one job that other commands know."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from local_cli import LocalCli

PAGE = Path(__file__).parents[3] / "docs/time.md"


def test_bai_time_runs_two_commands_in_shuffled_blocks_of_one_job(cli: LocalCli) -> None:
    # The difference is larger than the time for which a busy machine holds up single runs.
    answer = cli.bai(
        *(
            "time",
            "sleep 0.01",
            "sleep 0.4",
            "--runs",
            "6",
            "--warmup",
            "1",
            "--seed",
            "3",
            "--job-id",
            "two",
        ),
        *("--export-json", "all.json", "--export-csv", "all.csv", "--export-markdown", "all.md"),
    )

    assert answer.code == 0, answer.stderr
    assert re.search(r"sleep 0.4 takes [\d.]+ times as long as sleep 0.01 \(95 % interval", answer.stdout)
    result = cli.result("two")
    arms = [each["arm"] for each in result["repeats"]]
    assert len(arms) == 12
    assert all({arms[i], arms[i + 1]} == {"sleep-0.01", "sleep-0.4"} for i in range(0, 12, 2))
    walls = [each["wall_seconds"] for each in result["repeats"] if each["arm"] == "sleep-0.4"]
    assert min(walls) >= 0.4
    exported = json.loads((cli.folder / "all.json").read_text())
    assert exported["job_id"] == "two"
    assert [each["command"] for each in exported["results"]] == ["sleep 0.01", "sleep 0.4"]
    assert exported["results"][1]["times"] == walls
    assert exported["results"][1]["exit_codes"] == [0] * 6
    rows = list(csv.DictReader((cli.folder / "all.csv").open()))
    assert float(rows[1]["mean"]) == exported["results"][1]["mean"]
    assert (
        (cli.folder / "all.md")
        .read_text()
        .startswith("| Command | Mean [ms] | Min [ms] | Max [ms] | Relative |\n")
    )
    compared = cli.bai("compare", "two", "--json").objects[0]["metrics"]
    wall = next(each for each in compared if each["name"] == "wall_time")
    assert (wall["verdict"], wall["b"]["runs"]) == ("worse", walls)
    assert cli.bai("report", "two", "-o", "two.html").code == 0


def test_bai_time_json_prints_the_times_recorded_in_the_job(cli: LocalCli) -> None:
    answer = cli.bai("time", "sleep 0.01", "--runs", "3", "--job-id", "one", "--json")

    assert answer.code == 0, answer.stderr
    (times,) = (each for each in answer.objects if each["type"] == "times")
    (command,) = times["commands"]
    assert command["times"] == [each["wall_seconds"] for each in cli.result("one")["repeats"]]
    assert command["command"] == "sleep 0.01"


def test_the_emitted_descriptor_is_the_job_that_runs(cli: LocalCli) -> None:
    words = [
        "time",
        "-L",
        "x",
        "1,2",
        "echo $x {x}",
        "--shell",
        "sh",
        "--runs",
        "2",
        "--seed",
        "5",
        "--keep-output",
    ]
    emitted = cli.bai(*words, "--emit-toml")
    (cli.folder / "emitted.toml").write_text(emitted.stdout)

    run = cli.bai("run", "emitted.toml", "--job-id", "emitted")
    timed = cli.bai(*words, "--job-id", "timed")

    assert (emitted.code, run.code, timed.code) == (0, 0, 0), run.stderr + timed.stderr
    described = [cli.record(name).job() for name in ("emitted", "timed")]
    assert described[0].repeat == described[1].repeat
    assert described[0].metrics == described[1].metrics
    assert sorted(cli.bai("logs", "timed").stdout.split()) == ["1", "1", "2", "2"] or "1" in cli.output(
        "timed"
    )
    again = cli.bai("run", "--like", "timed", "--job-id", "again")
    assert again.code == 0, again.stderr


def test_commands_around_the_runs_run_as_often_as_configured(cli: LocalCli) -> None:
    answer = cli.bai(
        *(
            "time",
            "--shell",
            "sh",
            "--runs",
            "2",
            "--warmup",
            "1",
            "echo a{x} >> order",
            "echo b{x} >> order",
            "-L",
            "x=1",
        ),
        *(
            "--prepare",
            "echo before-a >> order",
            "--prepare",
            "echo before-b >> order",
            "--conclude",
            "echo after >> order",
        ),
        *("--setup", "echo setup{x} >> order", "--cleanup", "echo cleanup >> order"),
    )

    assert answer.code == 0, answer.stderr
    said = (cli.folder / "order").read_text().split()
    assert (said[0], said[-1]) == ("setup1", "cleanup")
    inner = said[1:-1]
    runs = [tuple(inner[i : i + 3]) for i in range(0, len(inner), 3)]
    assert sorted(runs) == [("before-a", "a1", "after")] * 3 + [("before-b", "b1", "after")] * 3


def test_runs_continue_until_the_times_are_precise_enough(cli: LocalCli) -> None:
    answer = cli.bai(
        "time", "sleep 0.01", "sleep 0.02", "--until", "400%", "--max-runs", "30", "--job-id", "until"
    )

    assert answer.code == 0, answer.stderr
    assert 10 <= len(cli.result("until")["repeats"]) < 60


def test_bai_time_runs_a_command_at_least_ten_times_by_default(cli: LocalCli) -> None:
    answer = cli.bai("time", "sleep 0.5", "--job-id", "slow")

    assert answer.code == 0, answer.stderr
    assert len(cli.result("slow")["repeats"]) == 10


def test_a_command_that_fails_is_named_with_its_exit_code(cli: LocalCli) -> None:
    words = [
        "time",
        "--shell",
        "sh",
        "exit 0",
        "echo oh no >&2; exit 7",
        "-n",
        "good",
        "-n",
        "bad",
        "--runs",
        "2",
    ]

    answer = cli.bai(*words)
    ignored = cli.bai(*words, "--ignore-failure", "--job-id", "ignored")

    assert answer.code == 1
    assert "(bad): The benchmark failed" in answer.stdout
    assert "exited with code 7" in answer.stdout
    assert "oh no" in answer.stdout
    assert "; --ignore-failure counts runs with an exit code other than 0" in answer.stdout
    assert ignored.code == 0, ignored.stderr
    assert "bad: 2 of 2 runs exited with code 7" in ignored.stdout
    assert cli.result("ignored")["outcome"] == "succeeded"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no-such-program"], 'there is no program "no-such-program" on PATH'),
        (["./nothing"], "there is no file ./nothing in "),
        (["echo a | cat"], "add --shell sh"),
        (["echo 'a"], "a quote is never closed"),
        ([""], "a command is empty"),
        (["true", "--runs", "2", "--until", "2%"], "--runs excludes --until"),
        (["true", "--until", "little"], "must be a text with a percentage"),
        (["true", "-L", "x", "1,2"], "no command has {x} in it"),
        (["true", "-n", "a", "-n", "b"], "name each command, or none"),
        (["true", "--prepare", "a", "--prepare", "b"], "one for all, or one for each"),
        (["true", "--export-json", "no/such/folder.json"], "there is no folder"),
        (["true", "--setup", "false"], "exited with code 1; nothing was timed"),
        (["true", "--shell", "no-such-shell"], 'there is no program "no-such-shell"'),
        (["true", "-N", "--shell", "sh"], "exclude each other"),
    ],
)
def test_a_mistake_in_bai_time_gives_a_sentence_and_starts_no_job(
    cli: LocalCli, words: list[str], says: str
) -> None:
    answer = cli.bai("time", *words)

    assert answer.code == 2, answer.stdout
    assert says in " ".join(answer.stderr.split())
    assert "Traceback" not in answer.stderr
    assert not list(cli.store.glob("*/job.toml"))


def examples() -> list[str]:
    """Return the blocks of commands of the page."""
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_page_of_bai_time_has_at_least_eight_examples() -> None:
    assert len(examples()) >= 8


@pytest.mark.parametrize("block", examples())
def test_each_example_on_the_page_of_bai_time_works(cli: LocalCli, block: str) -> None:
    (cli.folder / "words.txt").write_text("b\na\n" * 1000)

    for line in block.splitlines():
        answer = cli.bai(*shlex.split(line, comments=True)[1:])

        # A comparison may find that equal commands differ, which it is to do seldom, or that the machine drifts meanwhile.
        judged = " compare " in line and "wall_time" in answer.stdout
        assert answer.code == 0 or (judged and answer.code in (1, 2)), (line, answer)
        assert "warning" not in answer.stderr
