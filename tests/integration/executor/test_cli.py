"""The commands of `bai` as a person or a script calls them, on records written by hand."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from handmade_job import START, HandmadeJob
from local_cli import LocalCli
from pseudo_terminal import Terminal

from executor.cli import group


@pytest.fixture
def job(cli: LocalCli) -> HandmadeJob:
    """A job that has ended well."""
    made = HandmadeJob(cli.store)
    made.event("agent_started", pid=1)
    made.phases("prepare", "pull", "join", "run")
    made.prints("loss=0.5\nloss=0.25 \x1b[1mbold\x1b[0m\nlast")
    made.measures("loss", 0.5, 0.25, units="nats")
    made.measures("bai_host_cpu_percent", 50.0, src="host")
    made.ends()
    return made


def test_the_version_and_a_short_help(cli: LocalCli) -> None:
    assert cli.bai("--version").stdout.startswith("bai 0.")
    answer = cli.bai("--help")
    assert answer.code == 0
    assert "..." not in answer.stdout.partition("Commands:")[2]
    assert len(answer.stdout.partition("Commands:")[2].split("\n  ")) == len(group().commands) + 1
    assert len(answer.stdout.splitlines()) - len(group().commands) < 15


def test_bai_help_has_the_first_sentence_of_each_command(cli: LocalCli) -> None:
    listed = re.findall(r"(?m)^  ([a-z-]+) {2,}(\S.*)$", cli.bai("--help").stdout.partition("Commands:")[2])

    own = [(name, made.get_short_help_str(1000)) for name, made in group().commands.items()]
    assert listed == own


def test_a_wrong_usage_is_answered_with_exit_code_2(cli: LocalCli) -> None:
    for wrong in (("nosuchcommand",), ("run",), ("status",), ("list", "--count", "x")):
        assert cli.bai(*wrong).code == 2


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("bai metrics last --format ", ["table", "jsonl", "csv", "bmf", "gha", "openmetrics"]),
        ("bai metrics last --format j", ["jsonl"]),
        ("bai metrics last --extract ", ["last"]),
        ("bai run --on ", ["local", "ec2"]),
        ("bai validate --on e", ["ec2"]),
        ("bai bundle --arch a", ["aarch64"]),
    ],
)
def test_a_shell_completes_choices_without_slow_imports(words: str, completed: list[str]) -> None:
    program = Path(sys.executable).with_name("bai")
    environment = {
        "_BAI_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "PYTHONPROFILEIMPORTTIME": "1",
    }

    done = subprocess.run(
        [program], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.split() == completed
    assert not re.search(r"\b(boto3|botocore|kafka|obstore|rich|executor\.descriptor)\b", done.stderr)


@pytest.mark.parametrize("command", ["status", "logs", "metrics", "cancel", "resume"])
def test_an_unknown_job_is_named_in_one_sentence(cli: LocalCli, job: HandmadeJob, command: str) -> None:
    answer = cli.bai(command, "digts-1")

    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.startswith('bai: there is no job "digts-1" in ')
    assert answer.stderr.endswith('did you mean "digits-1"?\n')
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "plan", "validate"])
@pytest.mark.parametrize("kind", ["missing", "folder", "binary", "not TOML"])
def test_a_file_that_is_not_a_descriptor_is_refused_with_an_explanation(
    cli: LocalCli, command: str, kind: str
) -> None:
    file = cli.folder / "benchmark.toml"
    if kind == "folder":
        file.mkdir()
    elif kind == "binary":
        file.write_bytes(b"\xff\xfe\x00")
    elif kind == "not TOML":
        file.write_text("a = = 1")

    answer = cli.bai(command, file)

    assert answer.code == 2
    assert "benchmark.toml" in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    assert not cli.store.exists()


def test_a_descriptor_for_ec2_says_how_to_run_it_locally(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(
        cli.bai("init").stdout.replace('execution_engine = "local"', 'execution_engine = "aws.ec2"')
    )

    answer = cli.bai("run", file, env={"BAI_CONFIG": "/dev/null"})

    assert answer.code == 2
    assert "no bucket is configured" in answer.stderr
    assert "--on local" in answer.stderr
    assert cli.bai("plan", file, "--on", "local").code == 0
    assert cli.bai("plan", file, "--on", "moon").code == 2


def test_the_template_is_valid_and_plans(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(cli.bai("init").stdout)

    assert cli.bai("validate", file).code == 0
    plan = cli.bai("plan", file, "--", "--epochs", "3")
    assert plan.code == 0
    assert '"--epochs"' in plan.stdout
    assert cli.bai("plan", file, "--json").objects[0]["job"]["name"] == "my-benchmark"
    assert not cli.store.exists()
    assert json.loads(cli.bai("schema").stdout)["title"] == "Benchmark descriptor"


def test_presets_are_listed_and_their_metrics_are_shown(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(cli.bai("init").stdout)

    listed = cli.bai("presets").stdout
    tables = cli.bai("presets", "hackbench").stdout
    unknown = cli.bai("presets", "hackbenc")
    validated = cli.bai("validate", file, "--set", 'output.preset=["hackbench", "dd"]')
    planned = cli.bai("plan", file, "--set", "output.preset=hackbench")

    assert re.search(r"\nhackbench +time\n", listed)
    assert max(map(len, listed.splitlines())) <= 120
    assert tables.startswith('[[output.metrics]]\nname = "time"\n')
    assert (unknown.code, "hackbench, hey" in unknown.stderr) == (2, True)
    assert "preset hackbench: time\n  preset dd: throughput\n" in validated.stdout
    assert "preset hackbench: time" in planned.stderr
    assert "^Time: " in planned.stdout


def test_a_preset_whose_patterns_match_nothing_causes_a_warning(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(
        'spec_version = "0.1.0"\n[info]\ndescription = "d"\n[hardware]\ninstance_type = "local"\n'
        '[ml]\nbenchmark_code = "echo"\n[output]\npreset = "hackbench"\n'
    )
    named = 'The preset "hackbench" found nothing in the output'

    silent = cli.bai("run", file, "--", "Zeit: 1.0")
    found = cli.bai("run", file, "--", "Time: 1.0")
    failed = cli.bai("run", file, "--set", "ml.benchmark_code=false")

    assert (silent.code, found.code, failed.code) == (0, 0, 1)
    assert named in silent.stdout + silent.stderr
    assert "found nothing" not in found.stdout + found.stderr + failed.stdout + failed.stderr


def test_validate_json_lists_findings_for_each_file(cli: LocalCli) -> None:
    good, bad = cli.folder / "good.toml", cli.folder / "bad.toml"
    good.write_text(cli.bai("init").stdout)
    bad.write_text(good.read_text().replace("strategy =", "strateg ="))

    answer = cli.bai("validate", "--json", good, bad)

    assert answer.code == 2
    assert [each["valid"] for each in answer.objects] == [True, False]
    assert any(each["path"] == ["hardware", "strateg"] for each in answer.objects[1]["findings"])


def test_errors_are_printed_as_json_with_their_exit_code(
    cli: LocalCli, tmp_path: Path, job: HandmadeJob
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('spec_version = "0.1.0"\n[hardware]\ninstance_type = "local"\n[ml]\nargz = ""\n')
    answer = cli.bai("run", wrong, "--json")
    error = json.loads(answer.stdout)
    assert (answer.code, error["type"], error["exit_code"]) == (2, "error", 2)
    assert ["ml", "argz"] in [finding["path"] for finding in error["findings"]]

    answer = cli.bai("status", "nosuchjob", "--json")
    error = json.loads(answer.stdout)
    assert (answer.code, error["exit_code"], "findings" in error) == (2, 2, False)
    assert error["message"] in answer.stderr


def test_a_program_that_is_not_on_path_causes_a_warning(cli: LocalCli, tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    text = 'spec_version = "0.1.0"\n[info]\ndescription = "d"\n[hardware]\ninstance_type = "local"\n[ml]\nbenchmark_code = "{} 1"\n'
    file.write_text(text.format("nosuchprogram"))
    for command in ("validate", "plan"):
        answer = cli.bai(command, file)
        assert answer.code == 0
        assert "no program nosuchprogram is on PATH here" in answer.stdout + answer.stderr
    for known in ("sleep", sys.executable, "./made.sh", "$(BAI_SCRIPTS_PATH)/x"):
        file.write_text(text.format(known))
        assert "on PATH" not in cli.bai("plan", file).stderr


def test_list_refuses_an_unknown_status(cli: LocalCli, job: HandmadeJob) -> None:
    answer = cli.bai("list", "--status", "fail")
    assert (answer.code, answer.stdout) == (2, "")
    assert '--status: "fail" is not a status or outcome; did you mean "failed"?' in answer.stderr
    assert job.record.job_id in cli.bai("list", "--status", "Succeeded").stdout


@pytest.mark.parametrize(
    ("plain", "with_options"),
    [
        (("list",), ("list", "--count", "30")),
        (("list", "--json"), ("list", "--json", "--all")),
        (("status", "last"), ("status", "--", "last")),
        (("status", "nothing"), ("status", "--", "nothing")),
        (("status", "nothing", "--json"), ("status", "--json", "--", "nothing")),
    ],
)
def test_a_command_line_without_options_has_the_same_answer(
    cli: LocalCli, job: HandmadeJob, plain: tuple[str, ...], with_options: tuple[str, ...]
) -> None:
    answers = [cli.bai(*words) for words in (plain, with_options)]

    assert len({(each.code, each.stdout, each.stderr) for each in answers}) == 1


@pytest.mark.parametrize("wrong", [("list", "last"), ("status",), ("status", "a", "b"), ("list", "--jsn")])
def test_a_wrong_command_line_is_answered_with_its_usage(cli: LocalCli, wrong: tuple[str, ...]) -> None:
    answer = cli.bai(*wrong)

    assert (answer.code, answer.stdout) == (2, "")
    assert f"{wrong[0]} [OPTIONS]" in answer.stderr


_INTERRUPTED_WHILE_IT_READS = """
from executor import __main__
from executor.jobs import job_list
def listed(*given, **named):
    raise KeyboardInterrupt
job_list.listed = listed
__main__.main()
"""


@pytest.mark.parametrize("words", [("list",), ("list", "--all")])
def test_ctrl_c_ends_a_list_quietly(cli: LocalCli, words: tuple[str, ...]) -> None:
    ended = subprocess.run(
        (sys.executable, "-c", _INTERRUPTED_WHILE_IT_READS, *words),
        env=cli.environment,
        cwd=cli.folder,
        capture_output=True,
        timeout=120,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


_STARTS_AND_SAYS_SO = """
from executor import __main__, signals
begin = signals.end_quietly_until_a_command_begins
def end_quietly_until_a_command_begins():
    begin()
    print("started", flush=True)
__main__.end_quietly_until_a_command_begins = end_quietly_until_a_command_begins
__main__.main()
"""


def test_ctrl_c_at_any_moment_of_the_start_leaves_no_process_and_no_job(cli: LocalCli) -> None:
    """Ctrl-C at moments that are spread over the start, as a person would press it."""
    program = (sys.executable, "-c", _STARTS_AND_SAYS_SO)
    file = cli.folder / "sleeps.toml"
    file.write_text(
        'spec_version = "0.1.0"\n[info]\ndescription = "d"\n[hardware]\ninstance_type = "local"\n[ml]\nbenchmark_code = "sleep 600"\n'
    )
    said = set()
    for moment in range(12):
        started = subprocess.Popen(
            (*program, "run", file),
            env=cli.environment,
            cwd=cli.folder,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert started.stdout is not None
        assert started.stdout.readline() == "started\n"
        time.sleep(0.02 + moment * 0.08)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
        assert "Traceback" not in err
        assert started.returncode in (130, 4), (moment, out, err)
        if started.returncode == 130:
            said.add(err.splitlines()[-1].split("; ")[0].split(" while ")[0])
    assert said <= {"bai: interrupted"}
    for each in cli.bai("list", "--json").objects:
        assert cli.bai("status", each["job_id"], "--wait").code == 4


def test_every_command_with_output_accepts_json() -> None:
    commands = group().commands
    without = {name for name in commands if all("--json" not in each.opts for each in commands[name].params)}
    assert without == {"init", "schema", "serve", "shell"}


def test_a_report_with_an_unknown_file_extension_is_refused(
    cli: LocalCli, job: HandmadeJob, tmp_path: Path
) -> None:
    assert json.loads(cli.bai("report", "last", "--json").stdout)["job_id"]
    answer = cli.bai("report", "last", "-o", tmp_path / "x.pdf")
    assert (answer.code, (tmp_path / "x.pdf").exists()) == (2, False)
    assert "html, md, json or csv" in answer.stderr


def test_an_output_that_cannot_be_written_is_refused_first(
    cli: LocalCli, job: HandmadeJob, tmp_path: Path
) -> None:
    other = HandmadeJob(cli.store, "other")
    other.measures("loss", 0.5)
    other.ends()
    jobs = (job.record.job_id, other.record.job_id)
    for command in (("report", "last"), ("compare", *jobs)):
        answer = cli.bai(*command, "-o", tmp_path / "none" / "x.html")
        assert (answer.code, answer.stdout) == (2, "")
        assert f"the folder {tmp_path / 'none'} does not exist" in answer.stderr
    answer = cli.bai("compare", *jobs, "-o", tmp_path / "x.json")
    assert (answer.code, (tmp_path / "x.json").exists()) == (2, False)
    assert "a page is written, not .json" in answer.stderr


@pytest.mark.parametrize(
    ("engine", "on", "where"),
    [
        ("default", None, "on this machine"),
        ("default", "ec2", "on m5.large at ec2"),
        ("aws.ec2", None, "on m5.large at aws.ec2"),
        ("aws.ec2", "local", "on this machine"),
    ],
)
def test_validate_names_the_backend_on_which_the_job_would_run(
    cli: LocalCli, engine: str, on: str | None, where: str
) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(
        f'spec_version = "0.1.0"\n[info]\ndescription = "x"\nexecution_engine = "{engine}"\n[hardware]\ninstance_type = "m5.large"\n'
        '[ml]\nbenchmark_code = "true"\n[aws.ec2]\nimage = "ami-0123456789abcdef0"\n'
    )

    answer = cli.bai("validate", file, *(["--on", on] if on else []))

    assert answer.code == 0, answer.stdout
    assert answer.stdout.splitlines()[-1].endswith(f"runs `true` {where}")


def test_validate_and_plan_say_what_a_mount_needs(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    mount = '[[mounts]]\ntype = "efs"\nsrc = "fs-0123456789abcdef0:/"\ntarget = "/efs"\n'
    file.write_text(f"{cli.bai('init').stdout}\n{mount}")

    here = cli.bai("validate", file)
    there = cli.bai("plan", file, "--on", "ec2", "--instance-type", "m5.large")

    assert here.code == 0
    assert "mounts[0]" in here.stdout
    assert ("there is no mount.efs here" if os.geteuid() == 0 else "only root may mount") in here.stdout
    assert "with 2 metrics and 1 mount\n" in here.stdout
    assert there.code == 0
    assert "mounts: fs-0123456789abcdef0:/ at /efs; the image needs amazon-efs-utils" in there.stderr


def test_validate_names_secrets_that_are_not_set_here(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    kafka = """
[kafka]
brokers = ["broker:9092"]
security_protocol = "SASL_SSL"
sasl_mechanism = "PLAIN"
sasl_username = "me"
sasl_password = "env:BAI_TEST_PASSWORD"
"""
    file.write_text(f'{cli.bai("init").stdout}\n[env.secrets]\nTOKEN = "env:BAI_TEST_UNSET"\n{kafka}')

    answer = cli.bai("validate", file)

    assert answer.code == 0
    assert "env.secrets.TOKEN" in answer.stdout
    assert "the environment variable BAI_TEST_UNSET is not set here" in answer.stdout
    assert "BAI_TEST_PASSWORD is not set here" in answer.stdout
    findings = cli.bai("validate", "--json", "--on", "local", file).objects[0]["findings"]
    assert [(each["key"], each["severity"]) for each in findings] == [
        ("env.secrets.TOKEN", "warning"),
        ("kafka.sasl_password", "warning"),
    ]
    there = {"BAI_TEST_UNSET": "", "BAI_TEST_PASSWORD": "x"}
    assert "not set" not in cli.bai("validate", file, env=there).stdout
    file.write_text(file.read_text().replace('execution_engine = "local"', 'execution_engine = "aws.ec2"'))
    assert "not set here" not in cli.bai("validate", file).stdout


def test_list_shows_jobs_in_the_order_of_their_start(cli: LocalCli, job: HandmadeJob) -> None:
    HandmadeJob(cli.store, "other-1", name="other", started=START - 1000).ends("failed", 1)
    HandmadeJob(cli.store, "dead-1", name="dead", started=START + 1000).event("agent_started", pid=1)

    lines = cli.bai("list").stdout.splitlines()

    assert lines[0].split() == ["job", "name", "status", "outcome", "parameters", "age", "duration"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["other-1", "other", "FAILED"],
        ["digits-1", "digits", "SUCCEEDED"],
        ["dead-1", "dead", "AGENT"],
    ]
    objects = cli.bai("list", "--json").objects
    assert [each["job_id"] for each in objects] == ["other-1", "digits-1", "dead-1"]
    assert objects[1]["name"] == "digits"
    assert objects[1]["exit_code"] == 0
    assert [line.split()[0] for line in cli.bai("list", "-n", "1").stdout.splitlines()[1:]] == ["dead-1"]


def test_an_empty_list_says_where_it_looked(cli: LocalCli) -> None:
    answer = cli.bai("list")

    assert (answer.code, answer.stdout) == (0, "")
    assert str(cli.store) in answer.stderr


def test_the_status_of_a_dead_agent_suggests_a_command(cli: LocalCli) -> None:
    made = HandmadeJob(cli.store)
    made.event("agent_started", pid=1)
    made.phases("prepare", until="run")
    made.measures("loss", 0.5, 0.25, units="nats")
    (made.node / "agent.log").write_text(
        "2026-11-20T21:31:50.123Z INFO bai_agent.phases.run it begins\n"
        "2026-11-20T21:31:51.123Z ERROR bai_agent.cli internal error of the agent\n"
        "Traceback (most recent call last):\nOSError: \x1b[2Jno room\n\n"
    )

    answer = cli.bai("status", "digits-1", "--wait")

    assert answer.code == 5
    assert 'its log ends with "OSError: no room"' in answer.stdout
    assert "benchmark does not run" in answer.stdout
    assert "AGENT DIED" in answer.stdout
    assert "bai resume digits-1" in answer.stdout
    assert "0.2500" in answer.stdout
    assert "RUNNING" not in answer.stdout

    # And where its log ends with a message, that is told without its time
    with (made.node / "agent.log").open("a") as log:
        log.write("2026-11-20T21:31:52.123Z WARNING bai_agent.machine.host_usage no GPU\n")
    (told,) = cli.bai("status", "digits-1", "--json").objects
    assert (told["last_words"], told["benchmark_alive"]) == ("no GPU", False)


def test_waiting_for_a_job_gives_its_exit_code(cli: LocalCli) -> None:
    made = HandmadeJob(cli.store)
    made.ends("max_runtime", 3, sentence="The benchmark ran too long.")

    assert cli.bai("status", "last").code == 0
    answer = cli.bai("status", "last", "--wait", "--json")
    assert answer.code == 3
    assert answer.objects[0]["result"]["outcome"] == "max_runtime"
    assert answer.objects[0]["status"] == "FAILED"


def test_logs_print_the_benchmarks_output_unchanged(cli: LocalCli, job: HandmadeJob) -> None:
    assert cli.bai("logs", "digits-1").stdout == "loss=0.5\nloss=0.25 \x1b[1mbold\x1b[0m\nlast"
    assert cli.bai("logs", "digits-1", "-f").stdout == "loss=0.5\nloss=0.25 \x1b[1mbold\x1b[0m\nlast"
    assert cli.bai("logs", "digits-1", "-n", "1").stdout == "last"
    assert next(each["line"] for each in cli.bai("logs", "dig", "--json").objects) == "loss=0.5"


def test_a_closed_output_pipe_causes_no_error(cli: LocalCli) -> None:
    job = HandmadeJob(cli.store)
    job.prints("some line of output\n" * 500_000)
    job.ends()

    with cli.start("logs", "digits-1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "some line of output\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


def test_metrics_are_printed_as_table_records_and_csv(cli: LocalCli, job: HandmadeJob) -> None:
    table = cli.bai("metrics", "digits-1").stdout.splitlines()
    headings = "metric units first last median stdev p95 min max mean count"
    assert table[0].split() == headings.split()
    assert table[1].split() == [
        "loss",
        "↓",
        "nats",
        "█▁",
        *("0.5000", "0.2500", "0.3750", "0.1768", "0.4875", "0.2500", "0.5000", "0.3750", "2"),
    ]

    for arguments in (("--format", "jsonl"), ("--json",)):
        assert [each["value"] for each in cli.bai("metrics", "digits-1", *arguments).objects] == [
            0.5,
            0.25,
            50.0,
        ]
    rows = list(csv.DictReader(cli.bai("metrics", "digits-1", "--format", "csv", "-f").stdout.splitlines()))
    assert [(row["name"], row["value"], row["units"], row["src"]) for row in rows] == [
        ("loss", "0.5", "nats", "log"),
        ("loss", "0.25", "nats", "log"),
        ("bai_host_cpu_percent", "50.0", "", "host"),
    ]
    assert cli.bai("metrics", "digits-1", "--format", "xml").code == 2
    assert [each["value"] for each in cli.bai("metrics", "digits-1", "--json", "--name", "loss").objects] == [
        0.5,
        0.25,
    ]
    of_loss = cli.bai("metrics", "digits-1", "--name", "loss").stdout
    assert "loss" in of_loss
    assert "accuracy" not in of_loss
    unknown = cli.bai("metrics", "digits-1", "--name", "less")
    assert unknown.code == 2
    assert 'digits-1 has no record of a metric "less"; it names ' in unknown.stderr
    headlines = cli.bai("metrics", "digits-1", "--format", "bmf", "--name", "loss")
    assert json.loads(headlines.stdout) == {"digits": {"loss": {"value": 0.25}}}
    assert cli.bai("metrics", "digits-1", "--format", "bmf", "--name", "less").code == 2


def test_cancelling_an_ended_or_dead_job_reports_that(cli: LocalCli, job: HandmadeJob) -> None:
    HandmadeJob(cli.store, "dead-1").event("agent_started", pid=1)

    assert "the job has already ended" in cli.bai("cancel", "digits-1").stdout
    assert not (cli.store / "digits-1" / "cancel.json").exists()
    # An agent that has died is started for it: nobody else would end the job.
    assert "started again to end the job" in cli.bai("cancel", "dead-1").stdout
    assert (cli.store / "dead-1" / "cancel.json").exists()
    assert cli.bai("status", "dead-1", "--wait").code == 4


def test_resuming_an_ended_job_starts_nothing(cli: LocalCli, job: HandmadeJob) -> None:
    answer = cli.bai("resume", "digits-1", "--json")

    assert answer.code == 0
    assert "the job has ended" in answer.objects[0]["message"]


def test_a_dry_run_of_prune_lists_jobs_and_deletes_none(cli: LocalCli, job: HandmadeJob) -> None:
    assert "digits-1" in cli.bai("prune", "--older-than", "1ms", "--dry-run", "--store", cli.store).stdout
    assert (cli.store / "digits-1").exists()


def test_prune_deletes_and_lists_only_jobs_above_the_age(cli: LocalCli, job: HandmadeJob) -> None:
    now = int(time.time() * 1000)
    HandmadeJob(cli.store, "new-1", started=now - 1000).ends(ended=now)

    # The handmade job ended in November 2026
    age = f"{max(1, now - START - 60_000)}ms"
    objects = cli.bai("prune", "--older-than", age, "--json").objects
    assert [(each["job_id"], each["deleted"]) for each in objects] == [("digits-1", True)]
    assert sorted(each.name for each in cli.store.iterdir()) == ["new-1"]


def test_prune_refuses_an_age_that_it_cannot_read(cli: LocalCli, job: HandmadeJob) -> None:
    assert cli.bai("prune", "--older-than", "a month").code == 2
    assert (cli.store / "digits-1").exists()


def test_prune_keeps_jobs_with_a_label(cli: LocalCli, job: HandmadeJob) -> None:
    HandmadeJob(cli.store, "base-1", labels={"keep": "yes"}).ends()

    done = cli.bai("prune", "--older-than", "1ms", "--keep", "keep=yes", "--json")

    assert [each["job_id"] for each in done.objects] == ["digits-1"]
    assert sorted(each.name for each in cli.store.iterdir()) == ["base-1"]
    assert cli.bai("prune", "--keep", "nolabel").code == 2


@pytest.mark.parametrize(("key", "left"), [(b"n\r", True), (b"y\r", False)])
def test_prune_on_a_terminal_shows_how_much_and_asks(
    cli: LocalCli, job: HandmadeJob, key: bytes, left: bool
) -> None:
    with Terminal("prune", "--older-than", "1ms", cli=cli) as terminal:
        terminal.await_text("Delete 1 job, ")
        assert (cli.store / "digits-1").exists()
        os.write(terminal.master, key)
        terminal.wait()

    assert (cli.store / "digits-1").exists() == left


def test_rm_deletes_ended_jobs_and_refuses_running_ones(cli: LocalCli, job: HandmadeJob) -> None:
    assert cli.bai("run", "-d", cli.descriptor(), "--job-id", "one", "--", cli.go_file).code == 0
    cli.await_value("one", 0.25)

    running = cli.bai("rm", "one")
    unknown = cli.bai("rm", "digits-1", "nosuchjob")

    assert (running.code, unknown.code) == (2, 2)
    assert "one runs" in running.stderr
    assert (cli.store / "digits-1").exists()
    done = cli.bai("rm", "last:digits", "--json")
    assert [each["job_id"] for each in done.objects] == ["digits-1"]
    assert not (cli.store / "digits-1").exists()


def test_a_job_name_means_its_newest_job(cli: LocalCli) -> None:
    for number, name in enumerate(("a", "b", "a", "b")):
        HandmadeJob(cli.store, f"x-{number}", name=name, started=START + number * 1000).ends()

    found = [cli.bai("status", f"last:{name}", "--json").objects[0]["job_id"] for name in "ab"]

    assert found == ["x-2", "x-3"]
    answer = cli.bai("status", "last:c")
    assert (answer.code, answer.stdout) == (2, "")
    assert 'there is no job of the name "c"' in answer.stderr


def test_an_invalid_job_id_is_refused(cli: LocalCli) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(cli.bai("init").stdout)

    for wrong in ("a/b", "", "last", "x" * 200):
        answer = cli.bai("run", file, "--job-id", wrong)
        assert answer.code == 2
        assert answer.stderr.startswith("bai: --job-id")
    assert not cli.store.exists()


METRICS = """
[[output.metrics]]
name = "loss"
pattern = 'loss=(\\S+)'
units = "nats"
[[output.metrics]]
name = "never_there"
pattern = 'gone=(\\d+)'
units = "1"
"""


@pytest.fixture
def descriptor(cli: LocalCli) -> Path:
    """A descriptor with two metrics, one of which is never found."""
    path = cli.folder / "benchmark.toml"
    path.write_text(cli.bai("init").stdout.partition("[[output.metrics]]")[0] + METRICS)
    return path


def test_metrics_test_shows_matches_and_near_misses_of_each_pattern_in_a_log(
    cli: LocalCli, descriptor: Path
) -> None:
    log = cli.folder / "run.log"
    log.write_text("loss=0.5\nloss= 0.4\nLoss: 0.3\nloss=nan loss=1.5e-05\rnever there: 5\n")

    answer = cli.bai("metrics-test", descriptor, log)
    (trial,) = cli.bai("metrics-test", descriptor, log, "--json").objects

    assert answer.code == 0
    assert (trial["lines"], trial["bytes"]) == (5, log.stat().st_size)
    loss, never = trial["metrics"]
    assert (loss["count"], loss["first"], loss["last"]) == (2, 0.5, 1.5e-05)
    assert (loss["not_numbers"], loss["not_number"]) == (1, "nan")
    assert loss["near"] == ["loss= 0.4", "Loss: 0.3"]
    assert (never["count"], never["near"]) == (0, ["never there: 5"])
    for told in (
        "│ loss= 0.4",
        "never_there: never found; these lines almost match",
        "│ never there: 5",
        '"nan"',
    ):
        assert told in answer.stdout


def test_metrics_test_shows_records_and_fails_for_a_missing_required_metric(
    cli: LocalCli, descriptor: Path
) -> None:
    descriptor.write_text(
        descriptor.read_text() + "required = true\n[[output.metrics]]\nname = 'lat'\nunits = 'ms'\n"
        r"pattern = 'threads=(?P<threads>\d+) (?P<value>[\d.]+)(?P<unit>\w+)'"
    )
    log = cli.folder / "run.log"
    log.write_text("loss=0.5\nthreads=4 1.5s\n")

    answer = cli.bai("metrics-test", descriptor, log, "--records")
    table = cli.bai("metrics-test", descriptor, log)

    assert (answer.code, table.code) == (1, 1)
    assert answer.objects == [
        {"src": "log", "off": 0, "i": 0, "k": 0, "name": "loss", "value": 0.5, "units": "nats"},
        {
            "src": "log",
            "off": 9,
            "i": 2,
            "k": 0,
            "name": "lat",
            "value": 1500,
            "units": "ms",
            "labels": {"threads": "4"},
        },
    ]
    assert "is required; a run without it fails" in table.stdout
    assert "lines/s" in table.stdout


def test_metrics_test_distinguishes_a_match_without_a_number_from_no_match(
    cli: LocalCli, descriptor: Path
) -> None:
    log = cli.folder / "run.log"
    log.write_text("loss=nan\n")

    answer = cli.bai("metrics-test", descriptor, log)

    assert 'loss: matched once, but no match was a number; the first match was "nan"' in answer.stdout
    assert "loss: never found" not in answer.stdout


def test_validate_prints_the_values_of_an_example(cli: LocalCli, descriptor: Path) -> None:
    descriptor.write_text(
        descriptor.read_text()
        + "[[output.metrics]]\nname = 'lat'\nunits = 'ms'\nexample = 'step 3: threads=4 1.5s'\n"
        r"pattern = 'step (?P<step>\d+): threads=(?P<threads>\d+) (?P<value>[\d.]+)(?P<unit>\w+)'"
    )

    assert "  lat: 1500 ms, step 3, threads=4\n" in cli.bai("validate", descriptor).stdout


def test_metrics_test_reads_a_log_from_a_pipe(cli: LocalCli, descriptor: Path) -> None:
    (trial,) = cli.bai("metrics-test", descriptor, "-", "--json", stdin="x\n" * 1000 + "loss=7").objects

    assert (trial["lines"], trial["metrics"][0]["last"]) == (1001, 7.0)


def test_a_pattern_that_never_ends_is_named(cli: LocalCli, descriptor: Path) -> None:
    descriptor.write_text(descriptor.read_text().replace("loss=(\\S+)", "loss=(([a1]+)+)b"))
    log = cli.folder / "run.log"
    log.write_text("fine\nloss=" + "a" * 60 + "c\n")

    answer = cli.bai("metrics-test", descriptor, log)

    assert answer.code == 2
    assert 'the pattern of "loss" takes more than 1 s on the line at byte 5' in answer.stderr


def test_metrics_test_refuses_a_missing_log_by_name(cli: LocalCli, descriptor: Path) -> None:
    for wrong in ("nosuch.log", cli.folder):
        answer = cli.bai("metrics-test", descriptor, wrong)
        assert answer.code == 2
        assert answer.stderr.startswith(f"bai: {wrong} ")


@pytest.mark.parametrize("scripts", ["", '[ml.script]\npath = "."\n'])
def test_a_store_that_cannot_be_created_is_named_in_the_error(cli: LocalCli, scripts: str) -> None:
    file = cli.folder / "benchmark.toml"
    file.write_text(cli.bai("init").stdout + scripts)
    (cli.folder / "occupied").touch()

    # Nobody makes folders in /proc
    for wrong in (cli.folder / "occupied" / "store", Path("/proc/store")):
        answer = cli.bai("run", file, "--store", wrong)

        assert answer.code == 5
        assert answer.stderr.startswith("bai: the job store ")
        assert str(wrong) in answer.stderr
        assert "--store" in answer.stderr
        assert answer.stderr.count("\n") == 1
