from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import tomli_w

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.limit_tables import End
from bai_agent.job.descriptor.metric_tables import Better
from bai_agent.job.descriptor.restart_tables import Checkpoint
from bai_agent.job.descriptor.source_tables import Unpack
from bai_agent.job.descriptor_file import job_table, parse_job, read_job
from bai_agent.job.schema.tables import read_table

RANGE = "[strategy]\nname = 'torchrun'\nnodes = 4\nmin_nodes = 2\n"
MINIMAL = 'version = 1\n[job]\nid = "job-1"\n[benchmark]\nargv = ["true"]\n'


def parse(more: str) -> None:
    parse_job((MINIMAL + more).encode(), where="job.toml")


def test_a_minimal_job_has_defaults_for_the_rest() -> None:
    job = parse_job(MINIMAL.encode(), where="job.toml")

    assert job.limits.grace == timedelta(seconds=30)
    assert job.limits.max_runtime is None
    assert job.kafka is None
    assert job_table(job) == {"version": 1, "job": {"id": "job-1"}, "benchmark": {"argv": ["true"]}}


def test_every_kind_of_value_is_read() -> None:
    more = """
[limits]
max_runtime = "1h30m"
[[sources]]
src = "s3://b/k"
path = "/data/k"
unpack = "in_place"
[[metrics]]
name = "loss"
pattern = 'loss=(\\d+)'
better = "lower"
required = true
"""
    job = parse_job((MINIMAL + more).encode(), where="job.toml")

    assert job.limits.max_runtime == timedelta(minutes=90)
    assert job.sources[0].unpack is Unpack.IN_PLACE
    assert job.metrics[0].better is Better.LOWER


def test_min_nodes_makes_a_job_elastic() -> None:
    fixed = parse_job((MINIMAL + "[strategy]\nname = 'torchrun'\nnodes = 4").encode(), where="job.toml")
    elastic = parse_job((MINIMAL + RANGE + "[elastic]\nnodes = 3").encode(), where="job.toml")

    assert (fixed.is_elastic, fixed.has_generations, fixed.desired_nodes) == (False, False, 4)
    assert (elastic.is_elastic, elastic.has_generations, elastic.desired_nodes) == (True, True, 3)
    assert (elastic.elastic.wait, elastic.elastic.pause) == (timedelta(minutes=10), timedelta(minutes=1))


@pytest.mark.parametrize(
    ("limits", "silence"),
    [("", 20), ("[limits]\npeer_silence = '60s'", 60), ("[limits]\npeer_silence = '25s'", 25)],
)
def test_the_default_peer_silence_of_an_elastic_job_is_shorter(limits: str, silence: int) -> None:
    job = parse_job((MINIMAL + RANGE + limits).encode(), where="job.toml")
    again = parse_job(tomli_w.dumps(job_table(job)).encode(), where="job.toml")

    assert job.limits.peer_silence == timedelta(seconds=silence)
    assert again == job


@pytest.mark.parametrize(
    ("end", "success", "failure"),
    [
        (End(), 0, 0),
        (End(keep_on_failure=timedelta(minutes=30)), 0, 30),
        (End(keep_after=timedelta(minutes=10)), 10, 10),
        (End(keep_on_failure=timedelta(minutes=30), keep_after=timedelta(minutes=10)), 10, 30),
        (End(keep_on_failure=timedelta(minutes=10), keep_after=timedelta(minutes=30)), 30, 30),
    ],
)
def test_the_keep_time_of_a_machine_depends_on_the_exit_code(end: End, success: int, failure: int) -> None:
    kept = {code: end.keep_time(code) for code in (0, 1, 3, 4, 5, 6, None, "x")}

    assert kept == {
        0: timedelta(minutes=success),
        4: timedelta(),
        **dict.fromkeys((1, 3, 5, 6, None, "x"), timedelta(minutes=failure)),
    }


@pytest.mark.parametrize(
    ("every", "read"),
    [("", timedelta(minutes=10)), ("every = '1m'", timedelta(minutes=1)), ("every = 'off'", None)],
)
def test_checkpoints_are_kept_periodically_or_only_at_the_end(every: str, read: timedelta | None) -> None:
    text = f"{MINIMAL}[checkpoint]\npath = 'out'\n{every}"
    job = parse_job(text.encode(), where="job.toml")

    assert job.checkpoint == Checkpoint(path="out", every=read)
    assert parse_job(tomli_w.dumps(job_table(job)).encode(), where="job.toml") == job


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "[[mounts]]\ntype = 'nfs'\nsrc = 'a:/'\ntarget = '/x'\n[[mounts]]\ntype = 'nfs'\nsrc = 'b:/'\ntarget = '/x/y'",
            r"\[\[mounts\]\] target /x/y and /x overlap",
        ),
        (
            "[[mounts]]\ntype = 'nfs'\nsrc = 'a:/'\ntarget = '/etc'",
            r'target: "/etc" is a folder of the system',
        ),
        (
            "[limits]\nmax_runtimes = '1h'",
            r'job\.toml: \[limits\] has no key "max_runtimes"; did you mean "max_runtime"\?',
        ),
        ("[limits]\nmax_runtime = 5", r"job\.toml: \[limits\] max_runtime: expected a duration"),
        ("[limits]\nmax_runtime = 'soon'", r'job\.toml: \[limits\] max_runtime: "soon" is not a duration'),
        ("[kafka]\ntopic = 'x'", r'job\.toml: \[kafka\] lacks the key "brokers"'),
        ("[kafka]\nbrokers = 'x:9'", r"job\.toml: \[kafka\] brokers: expected a list"),
        ("[[metrics]]\nname = 'x'\npattern = '('", r'\[\[metrics\]\] 0 "x": the pattern does not compile'),
        (
            "[[metrics]]\nname = 'x'\npattern = 'x'\nbetter = 'bigger'",
            r'metrics\[0\]\] better: expected one of "lower", "higher"',
        ),
        (
            "[[metrics]]\nname = 'x'\npattern = 'x'\ntolerance = -0.1",
            r"metrics\[0\]\] tolerance: is not a finite number",
        ),
        (
            "[[metrics]]\nname = 'x'\npattern = 'x'\ntolerance = inf",
            r"metrics\[0\]\] tolerance: is not a finite number",
        ),
        (
            "[[metrics]]\nname = 'x'\npattern = 'x'\nwarmup_values = -1",
            r"metrics\[0\]\]: warmup_values must be",
        ),
        (
            "[[metrics]]\nname = 'x'\npattern = 'x'\nwarmup = '1s'\nwarmup_values = 1",
            r"metrics\[0\]\]: warmup and warmup_values exclude each other",
        ),
        ("[[metrics]]\nname = 'x'", r'0 "x": write pattern, json or of_run'),
        ("[[metrics]]\nname = 'x'\npattern = 'x'\njson = 'x'", r'0 "x": pattern and json exclude'),
        (
            "[[metrics]]\nname = 'x'\npattern = 'x'\njson_step = 'x'",
            r'0 "x": json_step and json_labels need json',
        ),
        (
            "[[metrics]]\nname = 'x'\njson = 'a..b'",
            r'metrics\[0\]\] json: "a\.\.b" is not a path to a value: character 3',
        ),
        (
            "[[metrics]]\nname = 'x'\njson = 'a'\njson_labels = ['b', 'c.rank']",
            r'json_labels\[1\]: "rank" is the',
        ),
        ("[[metrics]]\nname = 'x'\npattern = 'x'\nafter = '('", r'0 "x": after does not compile'),
        ("[[metrics]]\nname = 'x'\njson = 'x'\nuntil = '^\\s*$'", r'0 "x": until matches an empty text'),
        (
            "[[sources]]\nsrc = 'x'\npath = 'y'\nmd5 = 'abc'",
            r"sources\[0\]\] md5: must be 32 hexadecimal digits",
        ),
        ("[nowhere]\nx = 1", r'has no key "nowhere"'),
        ("[output]\nartifacts = ['/tmp/*']", r'\[output\]: artifacts "/tmp/\*" is not a glob'),
        ("[output]\nartifacts = ['']", r'artifacts "" is not a glob'),
        ("[output]\nartifacts = ['//tmp/*']", r'artifacts "//tmp/\*" is not a glob'),
        ('[output]\nartifacts = ["a\\u0000*"]', r"artifacts\[0\]: holds a NUL character"),
        ("[output]\nartifacts = ['runs**']", r'artifacts "runs\*\*" is not a glob'),
        ("[[metrics]]\nname = 'x'\npattern = '(?a)(?u)x'", r'\[\[metrics\]\] 0 "x": .* incompatible'),
        ("[[metrics]]\nname = 'x'\npattern = 'x{%s}'" % ("9" * 5000), r'\[\[metrics\]\] 0 "x": the pattern'),
        ("[[sources]]\nsrc = 's3://b/k'\npath = \"a\\u0000b\"", r"sources\[0\]\] path: holds a NUL"),
        ("[[sources]]\nsrc = 's3://b/k'\npath = 'x'\nunpack = ['into']", r"unpack: expected one of"),
        (f"[limits]\nno_output = '{'9' * 5000}s'", r"no_output: .*longer than any run"),
        (
            "[strategy]\nnodes = 4\nmin_nodes = 0",
            r"\[strategy\]: min_nodes must be an integer from 1 to the value of nodes",
        ),
        (
            "[strategy]\nnodes = 2\nmin_nodes = 4",
            r"min_nodes must be an integer from 1 to the value of nodes, 2",
        ),
        ("[elastic]\nnodes = 3", r"\[elastic\] is for jobs with \[strategy\] min_nodes"),
        (f"{RANGE}[elastic]\nnodes = 5", r"\[elastic\] nodes must be from 2 to 4, not 5"),
        (f"{RANGE}[elastic]\nnodes = 1", r"\[elastic\] nodes must be from 2 to 4, not 1"),
        (f"{RANGE}[repeat]\nruns = 2", r"\[strategy\] min_nodes cannot be combined with \[repeat\]"),
        (
            "[checkpoint]\npath = 'out'\n[repeat]\nruns = 2",
            r"\[checkpoint\] cannot be combined with \[repeat\]",
        ),
        ("[checkpoint]\npath = '..'", r'\[checkpoint\] path: "\.\." leads out of its folder'),
        ("[checkpoint]\npath = '.'", r'\[checkpoint\] path: "\." is the working folder itself'),
        ("[checkpoint]\npath = 'out'\nshared = true", r'\[checkpoint\] path: "out" is relative'),
        ("[checkpoint]\npath = '/efs/a:b'\nshared = true", r'\[checkpoint\] path: "/efs/a:b" has a ":"'),
        ("[checkpoint]\npath = 'out'\nevery = 'never'", r'\[checkpoint\] every: "never" is not a duration'),
        ("[checkpoint]\npath = 'out'\nevery = '1ms'", r"\[checkpoint\] every: must be at least 1s"),
        ("[strategy]\nnodes = 0", r"\[strategy\] nodes: must be at least 1, not the number 0"),
        (
            "[strategy]\nname = 'mpi'\ncpus_per_process = 0",
            r"\[strategy\] cpus_per_process: must be at least 1, not the number 0",
        ),
        (
            "[repeat]\nruns = 2\n[[repeat.arms]]\nname = 'a b'",
            r'\[repeat\.arms\[0\]\] name: "a b" must be 1 to 128 of',
        ),
        (
            "[repeat]\nruns = 2\n[[repeat.arms]]\nname = 'a'\nenv = {'A=B' = 'x'}",
            r'\[repeat\.arms\[0\]\] env\.A=B: "A=B" is not a name of an environment variable',
        ),
        (
            "[server]\nports = [80]\nargv = ['s']\nenv = {'A=B' = 'x'}",
            r'\[server\] env\.A=B: "A=B" is not a name of an environment variable',
        ),
        (
            '[repeat]\nruns = 2\nprepare = ["a\\u0000"]',
            r"\[repeat\] prepare\[0\]: holds a NUL character",
        ),
        (
            "[checkpoint]\npath = 'out'\n[checkpoint.origin]\njob = '../x'\nname = 'n'\nsha256 = 's'",
            r'\[checkpoint\.origin\] job: "\.\./x" must be 1 to 128 of',
        ),
    ],
)
def test_an_error_names_file_table_and_key(more: str, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        parse(more)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", 'lacks "version = 1"'),
        (b"version = 2\n", "version 2 of the job descriptor; this agent reads version 1"),
        (b"version = true\n", 'lacks "version = 1"'),
        (b"version = \n", "not valid TOML"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"x=" + b"[" * 100_000, "not valid TOML"),
        (b"version = " + b"9" * 5000, "thousands of digits"),
        (b"version = 0x" + b"f" * 5000, "does not fit into 64 bits"),
        (b"version = 9223372036854775808", "does not fit into 64 bits"),
        (b"x = " + b"[" * 100 + b"]" * 100, "nested too deep"),
        (b"x = " + b"{a=" * 100 + b"1" + b"}" * 100, "nested too deep"),
        (b'version = 1\njob = 1\n[benchmark]\nargv = ["true"]', "expected a table"),
        (b'version = 1\n[job]\nid = "../up"\n[benchmark]\nargv = ["true"]', "must be 1 to 128"),
        (b'version = 1\n[job]\nid = "a"\n[benchmark]\n', "write argv or script"),
        (b'version = 1\n[job]\nid = "a"\n[benchmark]\nargv = ["a\\u0000"]', "NUL"),
        (
            b'version = 1\n[job]\nid = "a"\n[benchmark]\nargv = ["a"]\nenv = {"A=B" = "x"}',
            "not a name of an environment variable",
        ),
    ],
)
def test_a_broken_file_is_refused_in_a_sentence(content: bytes, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        parse_job(content, where="job.toml")


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(17 * 2**20)

    for path, message in (
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "directory"),
        (huge, "larger than 16 MiB"),
    ):
        with pytest.raises(DescriptorError, match=message):
            read_job(path)


def test_a_wrong_type_in_a_nested_table_is_located() -> None:
    from bai_agent.job.descriptor.benchmark_tables import Benchmark

    with pytest.raises(DescriptorError, match=r"argv\[1\]: expected a text, got 5"):
        read_table(Benchmark, {"argv": ["a", 5]}, where="x: [benchmark]")


@pytest.mark.parametrize(
    ("labels", "group", "message"),
    [
        ("", "rank", r'the group "rank" has the name of a label that bai adds to records'),
        ("task_name = 't'", "task_name", r'the group "task_name" has the name of a label of \[job\] labels'),
    ],
)
def test_a_pattern_group_with_the_name_of_a_label_is_refused(labels: str, group: str, message: str) -> None:
    table = f"[job.labels]\n{labels}\n[[metrics]]\nname = 'x'\npattern = '(?P<{group}>a) (\\d+)'\n"

    with pytest.raises(DescriptorError, match=rf'\[\[metrics\]\] 0 "x": {message}'):
        parse(table)


def test_the_start_of_the_agent_does_not_import_difflib() -> None:
    program = "import sys, bai_agent.cli, bai_agent.job.descriptor_file, bai_agent.phases.run; print('difflib' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == "False\n"
