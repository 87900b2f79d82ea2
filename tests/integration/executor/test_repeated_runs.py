"""`bai` with a repeated job: while it runs, at its end, and in later commands."""

from __future__ import annotations

import json
import re

from local_cli import LocalCli

PROGRAM = """
import os
run = int(os.environ["BAI_REPEAT"])
print(f"loss={100 + run}", end="")
"""
REPEAT = """
[repeat]
runs = 3
prepare = "echo loss=7"
"""


def test_several_runs_are_shown_separately_and_together(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor(PROGRAM, more=REPEAT), "--job-id", "three")

    assert answer.code == 0, answer.stderr
    screen = answer.stdout + answer.stderr
    assert "The benchmark finished successfully 3 times" in screen
    # Mean 101, standard deviation 1, Student's t of 2 degrees of freedom.
    assert re.search(r"loss +3 +101 nats +(±|\+-)2\.48\d* nats \(2\.5%\)", screen), screen
    assert cli.bai("logs", "three", "--repeat", "1").stdout == "loss=101"
    assert cli.bai("logs", "three", "--repeat", "0", "--json").objects == [{"line": "loss=100"}]
    records = cli.bai("metrics", "three", "--format", "jsonl").objects
    assert [(each["repeat"], each["value"]) for each in records if each["name"] == "loss"] == [
        (0, 100),
        (1, 101),
        (2, 102),
    ]
    events = cli.rundir("three").events.read_bytes().splitlines()
    assert any(each.get("name", "").endswith("of 3") for each in map(json.loads, events))

    again = cli.bai("extract", "three")
    assert again.code == 0, again.stderr
    records = cli.bai("metrics", "three", "--extract", "last", "--format", "jsonl").objects
    assert [(each["repeat"], each["value"]) for each in records if each["name"] == "loss"] == [
        (0, 100),
        (1, 101),
        (2, 102),
    ]

    answer = cli.bai("logs", "three", "--repeat", "3")
    assert (answer.code, answer.stdout) == (2, "")
    assert "three has no run 3; its runs are 0 to 2" in answer.stderr
    both = cli.bai("logs", "three", "--repeat", "3", "--follow")
    assert both.code == 2
    assert "--follow" in both.stderr


OF_RUN = """
[[output.metrics]]
name = "took"
of_run = "wall_time"
better = "lower"
[[output.metrics]]
name = "worked"
of_run = "cpu_time"
[[output.metrics]]
name = "memory"
of_run = "peak_memory"
"""


def test_resources_of_each_run_are_ordinary_metrics(cli: LocalCli) -> None:
    file = cli.descriptor(PROGRAM, more=f"{OF_RUN}[repeat]\nruns = 3\n")

    answer = cli.bai("run", file, "--job-id", "took")

    assert answer.code == 0, answer.stderr
    runs = cli.result("took")["repeats"]
    records = [
        each for each in cli.bai("metrics", "took", "--format", "jsonl").objects if each["src"] == "exit"
    ]
    taken = {
        name: [each["value"] for each in records if each["name"] == name]
        for name in ("took", "worked", "memory")
    }
    assert taken == {
        "took": [each["wall_seconds"] for each in runs],
        "worked": [round(each["user_seconds"] + each["system_seconds"], 6) for each in runs],
        "memory": [each["peak_memory_bytes"] for each in runs],
    }
    assert [each["repeat"] for each in records if each["name"] == "took"] == [0, 1, 2]
    assert {each["name"]: each["units"] for each in records} == {
        "took": "s",
        "worked": "s",
        "memory": "bytes",
    }
    (listed,) = cli.bai("list", "--json").objects
    assert listed["headlines"]["took"]["value"] == sorted(taken["took"])[1]
    again = cli.bai(
        "run", file, "--job-id", "took-2", "--set", "repeat.until=900%", "--set", "repeat.metric=took"
    )
    assert again.code == 0, again.stderr
    compared = cli.bai("compare", "took", "took-2", "--json", "--fail-if", "took > 100000%").objects[0][
        "metrics"
    ]
    names = [each["name"] for each in compared]
    assert "took" in names
    assert "wall time" not in names


def test_resources_of_a_single_run_are_also_metrics(cli: LocalCli) -> None:
    answer = cli.bai("run", cli.descriptor("print('loss=1')", more=OF_RUN), "--job-id", "one")

    assert answer.code == 0, answer.stderr
    (took,) = (
        each for each in cli.bai("metrics", "one", "--format", "jsonl").objects if each["name"] == "took"
    )
    assert took["value"] == cli.result("one")["benchmark"]["wall_seconds"]
    assert re.search(r"took +\S*", answer.stdout)


def test_min_runs_are_performed_even_if_max_time_is_over(cli: LocalCli) -> None:
    repeat = "[repeat]\nruns = 50\nmin_runs = 4\nmax_time = '1ms'\n"
    arms = "[[repeat.arms]]\nname = 'a'\n[[repeat.arms]]\nname = 'b'\n"

    answer = cli.bai("run", cli.descriptor(PROGRAM, more=repeat + arms), "--job-id", "least")

    assert answer.code == 0, answer.stderr
    result = cli.result("least")
    assert sorted(each["arm"] for each in result["repeats"]) == ["a", "a", "b", "b"]
    assert not any("max_time" in each for each in result["warnings"])


def test_a_started_block_of_arms_is_completed_after_max_time(cli: LocalCli) -> None:
    repeat = "[repeat]\nruns = 30\nmax_time = '1ms'\n"
    arms = "".join(f"[[repeat.arms]]\nname = '{name}'\n" for name in "abc")

    answer = cli.bai("run", cli.descriptor(PROGRAM, more=repeat + arms), "--job-id", "block")

    assert answer.code == 0, answer.stderr
    assert sorted(each["arm"] for each in cli.result("block")["repeats"]) == ["a", "b", "c"]


def test_each_arm_has_its_own_prepare_and_cleanup_commands(cli: LocalCli) -> None:
    arms = """
[repeat]
runs = 2
prepare = "sh -c 'echo all >> order'"
[[repeat.arms]]
name = "a"
prepare = "sh -c 'echo own >> order'"
cleanup = "sh -c 'echo after >> order'"
[[repeat.arms]]
name = "b"
"""

    answer = cli.bai("run", cli.descriptor(PROGRAM, more=arms), "--job-id", "steps")

    assert answer.code == 0, answer.stderr
    turns = [each["arm"] for each in cli.result("steps")["repeats"]]
    said = (cli.rundir("steps").work / "order").read_text().split()
    assert said == [word for arm in turns for word in (["own", "after"] if arm == "a" else ["all"])]


def test_with_ignore_failure_a_run_with_a_nonzero_exit_code_counts_as_succeeded(cli: LocalCli) -> None:
    file = cli.descriptor("print('loss=1')\nsys.exit(3)", more="[repeat]\nruns = 2\nignore_failure = true\n")
    file.write_text(file.read_text().replace("print('loss", "import sys\nprint('loss"))

    answer = cli.bai("run", file, "--job-id", "codes")

    assert answer.code == 0, answer.stderr
    runs = cli.result("codes")["repeats"]
    assert [(each["outcome"], each["code"], each["ignored_code"]) for each in runs] == [
        ("succeeded", 0, 3)
    ] * 2


def test_stderr_is_logged_when_stdout_is_discarded(cli: LocalCli) -> None:
    code = "import os, sys\nprint('loss=1', flush=True)\nprint(os.getcwd(), file=sys.stderr)"
    file = cli.descriptor(code, more="[output]\ndiscard_stdout = true\n")
    file.write_text(file.read_text().replace("[ml]", "[ml]\ncwd = '/usr'"))

    answer = cli.bai("run", file, "--job-id", "quiet")

    assert answer.code == 0, answer.stderr
    assert cli.bai("logs", "quiet").stdout == "/usr\n"


def test_the_default_maximum_of_runs_with_until_grows_with_the_number_of_arms(cli: LocalCli) -> None:
    arms = "".join(f"[[repeat.arms]]\nname = '{name}'\n" for name in "abc")

    answer = cli.bai("plan", cli.descriptor(PROGRAM, more=f"[repeat]\nuntil = '2%'\n{arms}"), "--json")

    assert answer.code == 0, answer.stderr
    assert answer.objects[0]["repeat"]["runs"] == 150


PEAK = """
[[output.metrics]]
name = "rss"
of_run = "peak_memory"
better = "lower"
[repeat]
runs = 3
"""


def test_peak_memory_below_that_of_the_shim_is_shown_as_an_upper_bound(cli: LocalCli) -> None:
    small, large = PROGRAM, f"{PROGRAM}\nbytearray(200 << 20)\n"
    for job_id, code in (("small", small), ("small-2", small), ("large", large), ("large-2", large)):
        answer = cli.bai("run", cli.descriptor(code, more=PEAK), "--job-id", job_id)
        assert answer.code == 0, answer.stderr
        peaks = [each["peak_memory_bytes"] for each in cli.result(job_id)["repeats"]]
        (shim,) = (each["shim"]["peak_memory_bytes"] for each in cli.result(job_id)["own_usage"])
        floor = max(10 << 20, round(1.05 * shim))
        assert all((each <= floor) == job_id.startswith("small") for each in peaks)
        words = re.escape(f"below {floor / 2**20:.1f} MiB")
        markdown, page = (cli.folder / f"{job_id}.{form}" for form in ("md", "html"))
        for file in (markdown, page):
            assert cli.bai("report", job_id, "--format", file.suffix[1:], "-o", file).code == 0
        views = {
            "run": answer.stdout + answer.stderr,
            "metrics": cli.bai("metrics", job_id).stdout,
            "status": cli.bai("status", job_id).stdout,
            "list": "\n".join(line for line in cli.bai("list").stdout.splitlines() if f"{job_id} " in line),
            "report.md": markdown.read_text(),
            "report.html": page.read_text(),
        }
        for name, text in views.items():
            assert bool(re.search(words, text)) == job_id.startswith("small"), f"{name}\n{text}"
        (status,) = cli.bai("status", job_id, "--json").objects
        (over,) = (each for each in status["over_runs"] if each["name"] == "rss")
        assert (over["mean"] is None) == ("below" in over) == job_id.startswith("small")


def test_memory_peaks_known_only_as_bounds_give_no_verdict(cli: LocalCli) -> None:
    for job_id, more in (("a", ""), ("b", ""), ("large", "\nbytearray(200 << 20)\n")):
        answer = cli.bai("run", cli.descriptor(PROGRAM + more, more=PEAK), "--job-id", job_id)
        assert answer.code == 0, answer.stderr

    def compared(*sides: str) -> tuple[int, dict[str, object], str]:
        answer = cli.bai("compare", *sides, "--json")
        (memory,) = (each for each in answer.objects[0]["metrics"] if each["name"] == "rss")
        return answer.code, memory, cli.bai("compare", *sides).stdout

    # Two programs of which only a bound is known are no reason to fail, nor is one of them "worse".
    code, memory, screen = compared("a", "b")
    assert (code, memory["verdict"], memory["change"]) == (0, "not comparable", None)
    assert re.search(r"rss.* below [0-9.]+ MiB +below [0-9.]+ MiB", screen), screen
    assert "cannot be distinguished from the peak of bai's shim" in screen
    # More than the bound may be worse by any amount: cannot be judged.
    code, memory, screen = compared("a", "large")
    assert (code, memory["verdict"]) == (2, "not comparable")
    assert cli.bai("compare", "a", "b", "--fail-if", "rss > 5%").code == 2
