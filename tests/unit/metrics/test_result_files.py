"""Files written by a benchmark become records, and malformed ones never end the run."""

from __future__ import annotations

import csv
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from extraction_runs import extract, extract_after_any_prefix, extracted, make_run, records
from hypothesis import given, settings
from hypothesis import strategies as st

from bai_agent.errors import DescriptorError
from bai_agent.job.descriptor.metric_tables import ResultFormat, Results
from bai_agent.job.descriptor_file import parse_job, read_job
from bai_agent.job.run_directory import RunDir
from bai_agent.job.schema.json_path import read_star_path
from bai_agent.metrics.process import Extractor
from bai_agent.metrics.results import documents
from bai_agent.metrics.results.results_reader import ResultFolder, gather_results
from bai_agent.metrics.results.values_journal import FileValues, Total, read_note

RECORDED = Path(__file__).parents[2] / "recorded" / "results"
Record = dict[str, Any]


def run_with(folder: Path, *tables: dict[str, Any], **files: str | bytes) -> RunDir:
    """Make a run whose benchmark left `files` (a name with _ for the dot) in its working folder."""
    rundir = make_run(folder, [], output=b"", results=tables)
    rundir.work.mkdir()
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (rundir.work / name.replace("_", ".")).write_bytes(data)
    return rundir


def of_recorded(folder: Path, file: str, **table: Any) -> list[Record]:
    """Return the records of one recorded file, after checking that nothing was warned of."""
    rundir = run_with(folder, {"path": file, **table})
    shutil.copy(RECORDED / file, rundir.work)
    extract(rundir)
    assert extracted(rundir)["warnings"] == []
    return of_files(rundir)


def of_files(rundir: RunDir) -> list[Record]:
    return [each for each in records(rundir) if each["src"] == "file"]


def values(found: list[Record], name: str) -> list[float]:
    return [each["value"] for each in found if each["name"] == name]


def warnings_of(rundir: RunDir) -> list[str]:
    extract(rundir)
    return [str(each) for each in extracted(rundir)["warnings"]]


def test_hyperfine_results_give_statistics_and_runs_of_each_command(tmp_path: Path) -> None:
    found = of_recorded(tmp_path, "hyperfine.json", format="hyperfine")

    written = json.loads((RECORDED / "hyperfine.json").read_text())["results"]
    assert values(found, "mean") == [each["mean"] for each in written]
    assert values(found, "time") == [time for each in written for time in each["times"]]
    assert {each["units"] for each in found} == {"s"}
    first = found[0]
    assert first["labels"] == {"command": "seq 1000", "size": "1000"}
    assert [each["step"] for each in found if each["name"] == "time"] == [0, 1, 2, 3, 4] * 2


def test_google_benchmark_results_give_times_counters_and_aggregates(tmp_path: Path) -> None:
    rundir = run_with(tmp_path, {"path": "*.json", "format": "google-benchmark"})
    shutil.copy(RECORDED / "google-benchmark.json", rundir.work)
    extract(rundir)
    found = of_files(rundir)

    small = [each for each in found if each["labels"]["benchmark"] == "BM_copy/64/min_time:0.020"]
    assert len(values(small, "cpu_time")) == 3
    assert [each["step"] for each in small if each["name"] == "cpu_time"] == [0, 1, 2]
    assert {each["units"] for each in small if each["name"] == "real_time"} == {"ns"}
    assert {each["units"] for each in small if each["name"] == "bytes_per_second"} == {"B/s"}
    assert values(small, "words") == [8, 8, 8]
    assert values(small, "words_mean") == [8]
    (variation,) = (each for each in small if each["name"] == "real_time_cv")
    assert variation["units"] == ""
    assert not [each for each in found if each["labels"]["benchmark"] == "BM_fails"]
    assert any("BM_fails: no device" in each for each in extracted(rundir)["warnings"])


def test_pytest_benchmark_results_give_statistics_and_rounds(tmp_path: Path) -> None:
    found = of_recorded(tmp_path, "pytest-benchmark.json", format="pytest-benchmark")

    written = json.loads((RECORDED / "pytest-benchmark.json").read_text())["benchmarks"]
    assert values(found, "median") == [each["stats"]["median"] for each in written]
    assert values(found, "time") == [time for each in written for time in each["stats"]["data"]]
    assert {each["units"] for each in found if each["name"] == "ops"} == {"1/s"}
    assert found[0]["labels"] == {"benchmark": "test_sum.py::test_sum[10]", "group": "sum"}


def test_jmh_results_give_scores_iterations_and_profilers(tmp_path: Path) -> None:
    found = of_recorded(tmp_path, "jmh.json", format="jmh")

    written = json.loads((RECORDED / "jmh.json").read_text())
    assert values(found, "score") == [each["primaryMetric"]["score"] for each in written]
    assert values(found, "iteration")[:3] == written[0]["primaryMetric"]["rawData"][0]
    assert values(found, "score_p99.9")[0] == written[0]["primaryMetric"]["scorePercentiles"]["99.9"]
    assert len(values(found, "gc.alloc.rate")) == 4
    assert found[0]["labels"] == {"benchmark": "t.Copy.copy", "mode": "thrpt", "size": "64"}
    assert found[0]["units"] == "ops/us"


def test_bencher_metric_format_results_give_measures_with_bounds(tmp_path: Path) -> None:
    found = of_recorded(tmp_path, "bmf.json", format="bmf")

    shown = {(each["labels"]["benchmark"], each["name"]): each["value"] for each in found}
    assert shown[("benchmark_name", "latency")] == 88
    assert shown[("benchmark_name", "latency_upper_value")] == 88.88
    assert shown[("my_binary", "file-size")] == 42
    assert len(found) == 8


def test_mllog_lines_give_values_with_steps_and_times(tmp_path: Path) -> None:
    found = of_recorded(tmp_path, "mllog.log", format="mllog")

    assert values(found, "train_loss") == pytest.approx([2.5, 1.25, 2.5 / 3])
    assert [each["step"] for each in found if each["name"] == "train_loss"] == [100, 200, 300]
    assert [each["step"] for each in found if each["name"] == "eval_accuracy"] == [1, 2, 3]
    assert values(found, "global_batch_size") == [256]
    written = (RECORDED / "mllog.log").read_text().splitlines()[1]
    assert found[0]["timestamp"] == json.loads(written.partition(" ")[2])["time_ms"]


def test_csv_files_give_values_of_the_named_columns(tmp_path: Path) -> None:
    served = of_recorded(
        tmp_path / "ab",
        "ab.csv",
        format="csv",
        values=["Time in ms"],
        name="latency",
        units="ms",
        step="Percentage served",
    )
    with (RECORDED / "ab.csv").open() as file:
        written = list(csv.DictReader(file))
    assert values(served, "latency") == [float(each["Time in ms"]) for each in written]
    assert [each["step"] for each in served] == [int(each["Percentage served"]) for each in written]
    assert {each["units"] for each in served} == {"ms"}

    answers = of_recorded(
        tmp_path / "hey",
        "hey.csv",
        format="csv",
        values=["response-time", "DNS"],
        labels={"status": "status-code"},
    )
    assert len(values(answers, "response-time")) == len(values(answers, "DNS")) == 20
    assert answers[0]["labels"] == {"status": "200"}


def test_csv_files_may_have_metric_names_in_cells_or_no_header(tmp_path: Path) -> None:
    rundir = run_with(
        tmp_path,
        {"path": "named.csv", "format": "csv", "values": ["v"], "name_from": "what", "units_from": "unit"},
        {
            "path": "bare.csv",
            "format": "csv",
            "values": ["2"],
            "name": "bw",
            "header": False,
            "delimiter": ";",
        },
        named_csv="what, unit, v\nloss, nats, 0.5\n\nrate, 1/s, 2e3\n",
        bare_csv="1; 10\n2; 20\n",
    )
    extract(rundir)

    shown = [(each["name"], each["value"], each["units"]) for each in of_files(rundir)]
    assert shown == [("loss", 0.5, "nats"), ("rate", 2000, "1/s"), ("bw", 10, ""), ("bw", 20, "")]


def test_json_files_give_values_with_labels_and_steps_by_path(tmp_path: Path) -> None:
    jobs = of_recorded(
        tmp_path / "fio",
        "fio.json",
        format="json",
        values=["jobs[*].read.iops", 'jobs[*].read.clat_ns.percentile."99.000000"'],
        labels={"job": "jobs[*].jobname", "version": '"fio version"'},
    )
    assert [each["name"] for each in jobs] == ["iops", "99.000000"]
    assert jobs[0]["labels"] == {"job": "read", "version": "fio-3.33"}

    seconds = of_recorded(
        tmp_path / "iperf3",
        "iperf3.json",
        format="json",
        values=["intervals[*].sum.bits_per_second"],
        step="intervals[*].sum.start",
        units="bit/s",
    )
    written = json.loads((RECORDED / "iperf3.json").read_text())["intervals"]
    assert values(seconds, "bits_per_second") == [each["sum"]["bits_per_second"] for each in written]
    assert [each["step"] for each in seconds] == [each["sum"]["start"] for each in written]


MIXED = {
    "jobs": [
        {"jobname": "a", "read": {"iops": 1, "bw": 10}, "write": {"iops": 2, "bw": 20}},
        {"jobname": "b", "read": {"iops": 3, "bw": 30}, "write": {"iops": 4, "bw": 40}},
    ],
    "times": [0.5, 0.25],
}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["jobs[0].*.iops"], [("iops", 1, "read"), ("iops", 2, "write")]),
        (["jobs[0].read.iops", "jobs[0].write.iops"], [("iops", 1, "read"), ("iops", 2, "write")]),
        (["jobs[0].read.*"], [("read", 1, "iops"), ("read", 10, "bw")]),
        (
            ["jobs[0].read.iops", "jobs[1].read.iops", "jobs[0].read.bw"],
            [("iops", 1, "0"), ("iops", 3, "1"), ("bw", 10, None)],
        ),
        (["jobs[0].read.iops", "jobs[0].write.bw"], [("iops", 1, None), ("bw", 20, None)]),
        (["times[*]"], [("times", 0.5, None), ("times", 0.25, None)]),
    ],
)
def test_values_of_one_json_path_are_distinguished_by_a_member_label(
    tmp_path: Path, paths: list[str], expected: list[tuple[str, float, str | None]]
) -> None:
    table = {"path": "a.json", "format": "json", "values": paths}
    rundir = run_with(tmp_path, table, a_json=json.dumps(MIXED))

    extract(rundir)

    shown = [(each["name"], each["value"], each.get("labels", {}).get("member")) for each in of_files(rundir)]
    assert shown == expected


def test_a_label_of_the_table_is_added_to_the_member(tmp_path: Path) -> None:
    table: dict[str, Any] = {"path": "a.json", "format": "json", "values": ["jobs[*].*.iops"]}
    rundir = run_with(tmp_path, {**table, "labels": {"job": "jobs[*].jobname"}}, a_json=json.dumps(MIXED))

    extract(rundir)

    assert [each["labels"] for each in of_files(rundir)] == [
        {"member": member, "job": job} for job in ("a", "b") for member in ("read", "write")
    ]


def test_only_the_metrics_named_in_a_results_table_are_recorded(tmp_path: Path) -> None:
    found = of_recorded(tmp_path, "hyperfine.json", format="hyperfine", metrics=["median"])

    assert {each["name"] for each in found} == {"median"}
    job = read_job(RunDir(tmp_path).job)
    assert [each.name for each in job.named_metrics()] == ["median"]


def test_malformed_result_files_are_named_and_others_are_read(tmp_path: Path) -> None:
    rundir = run_with(
        tmp_path,
        {"path": "*.json", "format": "bmf"},
        {"path": "*.csv", "format": "csv", "values": ["v"]},
        {"path": "*.log", "format": "mllog"},
        {"path": "nothing/*", "format": "jmh"},
        cut_json=b'{"a": {"m": {"value": 1',
        deep_json=b"[" * 100_000,
        good_json='{"a": {"m": {"value": 1}, "n": {"value": NaN}, "o": {"value": "x"}}}',
        list_json="[]",
        binary_csv=bytes(range(256)),
        other_csv="a,b\n1,2\n",
        short_csv="a,v\n1,2\n3\n",
        broken_log=':::MLLOG {"key"\n:::MLLOG {"key": "k", "value": 3}\n',
    )
    (rundir.work / "gone.json").symlink_to("/etc/hostname")
    os.mkfifo(rundir.work / "pipe.json")

    warned = "\n".join(warnings_of(rundir))

    assert [(each["name"], each["value"]) for each in of_files(rundir)] == [("m", 1), ("v", 2), ("k", 3)]
    for name in ("cut.json", "deep.json", "list.json", "binary.csv", "other.csv", "short.csv", "broken.log"):
        assert f"{name} (output.results" in warned
    assert 'good.json (output.results "*.json") has 1 values of "n" that are not finite numbers' in warned
    assert 'has no column "v"; its columns are: a, b' in warned
    assert 'No file matched output.results "nothing/*"' in warned
    assert "hostname" not in warned
    assert "gone.json" not in warned
    assert extracted(rundir)["results_missing"] == ["nothing/*"]


def test_a_result_file_that_links_out_of_the_folder_is_ignored(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"a": {"m": {"value": 1}}}')
    rundir = run_with(tmp_path / "run", {"path": "**/*.json", "format": "bmf"})
    (rundir.work / "link.json").symlink_to(secret)
    (rundir.work / "folder").symlink_to(tmp_path)

    extract(rundir)

    assert of_files(rundir) == []


def test_a_result_file_older_than_the_benchmark_is_ignored(tmp_path: Path) -> None:
    rundir = run_with(tmp_path, {"path": "*.json", "format": "bmf"}, old_json='{"a": {"m": {"value": 1}}}')
    written = (rundir.work / "old.json").stat().st_ctime_ns // 1_000_000
    rundir.started.write_text(
        json.dumps(
            {"shim_pid": 1, "shim_start": 0, "pid": 2, "start": 0, "boot_id": "b", "time": written + 1000}
        )
    )

    (warning,) = warnings_of(rundir)

    assert of_files(rundir) == []
    assert 'old.json (output.results "*.json") was there before the benchmark began' in warning


def test_a_result_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = run_with(tmp_path, {"path": "*.json", "format": "bmf"}, a_json='{"a": {"m": {"value": 1}}}')
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT", 10)

    (warning,) = warnings_of(rundir)

    assert "has 26 bytes; at most 10 are read" in warning


def test_reading_result_files_is_abandoned_after_a_time_limit(tmp_path: Path) -> None:
    # given a clock on which the time is up at once
    rundir = run_with(tmp_path, {"path": "*.json", "format": "bmf"}, a_json='{"a": {"m": {"value": 1}}}')
    times = iter([0.0])
    table = Results(path="*.json", format=ResultFormat.BMF)
    folder = ResultFolder(paths=[rundir.work], since_ms=0, until_ms=5, warn_of_nothing=True)

    gather_results(
        [table],
        folder,
        rundir.results,
        quote=str,
        stopping=lambda: False,
        seconds=1,
        clock=lambda: next(times, 2.0),
    )

    (total,) = read_note(rundir.results)
    assert isinstance(total, Total)
    assert total.unread == [0]
    assert total.warnings == ['output.results "*.json" was not read to its end: there was no time left']


def test_a_defect_in_reading_one_table_does_not_affect_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(document: object) -> Iterator[object]:
        yield from ()
        raise KeyError("nobody has foreseen it")

    monkeypatch.setitem(documents._TOOLS, ResultFormat.JMH, broken)
    rundir = run_with(
        tmp_path,
        {"path": "a.json", "format": "jmh"},
        {"path": "b.json", "format": "bmf"},
        a_json="[]",
        b_json='{"a": {"m": {"value": 1}}}',
    )

    assert warnings_of(rundir) == ['output.results "a.json" was not read to its end: agent.log tells why']
    assert values(of_files(rundir), "m") == [1]


def test_a_result_file_is_assigned_to_the_run_that_wrote_it(tmp_path: Path) -> None:
    rundir = run_with(tmp_path, {"path": "*.json", "format": "bmf"}, a_json='{"a": {"m": {"value": 1}}}')
    written = (rundir.work / "a.json").stat().st_ctime_ns // 1_000_000
    table = Results(path="*.json", format=ResultFormat.BMF)

    def repeats(*runs: tuple[int, int | None]) -> list[int | None]:
        folder = ResultFolder(paths=[rundir.work], since_ms=0, until_ms=5, warn_of_nothing=True, runs=runs)
        gather_results([table], folder, rundir.results, quote=str, stopping=lambda: False)
        *batches, total = read_note(rundir.results)
        assert isinstance(total, Total)
        assert total.warnings == []
        return [each.repeat for each in batches if isinstance(each, FileValues)]

    before, after = written - 1000, written + 1
    assert repeats() == [None]
    assert repeats((before, 0), (written, 1), (after, 2)) == [1]
    assert repeats((before, None), (after, 0)) == []


def test_secrets_in_a_result_file_are_not_in_records(tmp_path: Path) -> None:
    rundir = run_with(
        tmp_path, {"path": "*.json", "format": "bmf"}, a_json='{"run --key hunter2": {"m": {"value": 1}}}'
    )
    quote = lambda text: text.replace("hunter2", "***")  # noqa: E731
    Extractor(rundir, read_job(rundir.job), quote=quote, sleep=lambda _: None).run()

    assert of_files(rundir)[0]["labels"] == {"benchmark": "run --key ***"}


def test_a_result_file_changed_after_it_was_read_changes_no_record(tmp_path: Path) -> None:
    # given records that were cut anywhere, and a file that says something else by then
    content = json.dumps({f"b{n}": {"m": {"value": n}} for n in range(12)})
    rundir = run_with(tmp_path, {"path": "*.json", "format": "bmf"}, a_json=content)
    extract(rundir)
    whole = of_files(rundir)
    (rundir.work / "a.json").write_text('{"other": {"m": {"value": -1}}}')

    for _ in extract_after_any_prefix(rundir, with_checkpoint=False, step=97):
        assert of_files(rundir) == whole


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("path = '../x'\nformat = 'bmf'", 'path: "../x" leads out of its folder'),
        ("path = 'x'\nformat = 'csv'", "values: is missing; write the columns"),
        ("path = 'x'\nformat = 'bmf'\nvalues = ['a']", 'values: is only for "csv" and "json"'),
        ("path = 'x'\nformat = 'json'\nvalues = ['a[']", 'values: contain "a[", which is not a path'),
        ("path = 'x'\nformat = 'json'\nvalues = ['a']\nstep = 'b[*]'", "has fewer * than"),
        ("path = 'x'\nformat = 'jmh'\nbetter = 'lower'", "metrics: is missing"),
        (
            "path = 'x'\nformat = 'csv'\nvalues = ['v']\nlabels = { rank = 'r' }",
            '"rank" is the name of a label',
        ),
        ("path = 'x'\nformat = 'csv'\nvalues = ['v']\nlabels = { own = 'r' }", "a label of .job. labels"),
    ],
)
def test_a_contradictory_results_table_is_refused(table: str, message: str) -> None:
    text = f"version = 1\n[job]\nid = 'j'\nlabels = {{ own = 'x' }}\n[benchmark]\nargv = ['true']\n[[results]]\n{table}\n"

    with pytest.raises(DescriptorError, match=message.replace("[", r"\[").replace("*", r"\*")):
        parse_job(text.encode(), where="job.toml")


DOCUMENT = json.dumps({"results": [{"mean": 1, "a.b": {"c": [2, 3]}}, {"mean": 4}], "": 5})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("results[*].mean", [1, 4]),
        ("results[0].mean", [1]),
        ("*[1].mean", [4]),
        ('results[0]."a.b".c[*]', [2, 3]),
        ("results.*.mean", [1, 4]),
        ('""', [5]),
        ("results[7].mean", []),
        ("mean", []),
        ("*.*.mean", [1, 4]),
    ],
)
def test_a_path_in_a_result_file_finds_its_values(path: str, found: list[int]) -> None:
    assert [value for _, value in read_star_path(path).find(json.loads(DOCUMENT))] == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "results",
                        "benchmarks",
                        "stats",
                        "data",
                        "times",
                        "mean",
                        "value",
                        "run_name",
                        "a",
                        "",
                    ),
                    *("primaryMetric", "rawData", "scorePercentiles", "secondaryMetrics", "score", "params"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
FORMATS = [each for each in ResultFormat if each not in (ResultFormat.CSV, ResultFormat.MLLOG)]


@given(document=JSON, format_=st.sampled_from(FORMATS))
@settings(max_examples=100, deadline=None)
def test_any_json_in_a_result_file_gives_values_or_a_sentence(document: Any, format_: ResultFormat) -> None:
    read_anything(json.dumps(document).encode(), format_)


@given(
    content=st.binary(max_size=300) | st.text(alphabet=':MLOG{}"key,value1\n', max_size=200).map(str.encode),
    format_=st.sampled_from(list(ResultFormat)),
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_a_result_file_give_values_or_a_sentence(content: bytes, format_: ResultFormat) -> None:
    read_anything(content, format_)


def read_anything(content: bytes, format_: ResultFormat) -> None:
    """Read a file that holds `content`, to its end, and check that all of it is told as values or as warnings."""
    if format_ is ResultFormat.CSV:
        table = Results(path="file", format=format_, values=("1",), header=False)
    elif format_ is ResultFormat.JSON:
        table = Results(path="file", format=format_, values=("*.mean", "results[*]"))
    else:
        table = Results(path="file", format=format_)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "file")
        path.write_bytes(content)
        note = path.with_name("note")
        folder = ResultFolder(paths=[path.parent], since_ms=0, until_ms=5, warn_of_nothing=True)
        gather_results([table], folder, note, quote=str, stopping=lambda: False)
        *batches, total = read_note(note)
    assert isinstance(total, Total)
    assert total.unread == []
    assert batches or total.warnings
    assert sum(total.found) == sum(len(each.values) for each in batches if isinstance(each, FileValues))
