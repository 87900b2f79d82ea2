"""What views show of several nodes and many processes."""

from __future__ import annotations

import io
import json

from rich.console import Console, RenderableType

from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.benchmark_tables import Benchmark, Identity
from bai_agent.job.descriptor.metric_tables import Metric, OverRanks
from executor.documents.job_view import JobView
from executor.documents.machines import host_line, node_table
from executor.documents.screen import Screen
from executor.documents.summary import show_summary
from executor.records.statistics import Measurements


def line(src: str, name: str, value: float, units: str = "", **labels: str) -> bytes:
    fields = {"src": src, "name": name, "value": value, "units": units, "timestamp": 1, "labels": labels}
    return json.dumps(fields).encode() + b"\n"


def host_samples(*nodes: int) -> bytes:
    return b"".join(
        line("host", "bai_host_cpu_percent", 10.0 * (rank + 1), "%", rank=str(rank))
        + line("host", "bai_host_network_receive_bytes_per_second", 1024.0 * 2**rank, "B/s", rank=str(rank))
        + line("host", "bai_host_network_send_bytes_per_second", 4096, "B/s", rank=str(rank))
        for rank in nodes
    )


def measured(lines: bytes) -> Measurements:
    found = Measurements()
    found.add_lines(lines)
    return found


def drawn(what: RenderableType) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=120).print(what)
    return [each.rstrip() for each in screen.getvalue().splitlines()]


def job(*, over_ranks: OverRanks = OverRanks.EACH) -> Job:
    metric = Metric(name="rate", pattern="(.)", units="it/s", over_ranks=over_ranks)
    return Job(job=Identity(id="one"), benchmark=Benchmark(argv=("true",)), metrics=(metric,))


def test_each_node_has_its_network_throughput() -> None:
    table = node_table(measured(host_samples(0, 1, 10)).host)

    assert [each.split() for each in drawn(Screen(width=120).grid(table))] == [
        ["node", "cpu", "memory", "gpu", "network", "in", "network", "out"],
        ["0", "10", "%", "-", "-", "1.0", "KiB/s", "4.0", "KiB/s"],
        ["1", "20", "%", "-", "-", "2.0", "KiB/s", "4.0", "KiB/s"],
        ["10", "110", "%", "-", "-", "1.0", "MiB/s", "4.0", "KiB/s"],
    ]


def test_no_node_table_is_shown_for_a_single_node() -> None:
    lines = json.loads(line("host", "bai_host_cpu_percent", 50, "%"))
    del lines["labels"]
    host = measured(json.dumps(lines).encode() + b"\n").host
    assert not node_table(host).rows
    assert host_line(host) == "cpu 50 %"


def test_host_metrics_of_several_nodes_are_shown_as_ranges() -> None:
    host = measured(host_samples(0, 1)).host
    assert host_line(host) == ("2 nodes · cpu 10-20 % · in 1.0 KiB/s-2.0 KiB/s · out 4.0 KiB/s-4.0 KiB/s")


def summary(lines: bytes, *, over_ranks: OverRanks = OverRanks.EACH) -> str:
    view = JobView("one", job(over_ranks=over_ranks), "/somewhere")
    view.measurements.add_lines(lines)
    screen = io.StringIO()
    show_summary(Console(file=screen, width=120), view)
    return screen.getvalue()


def test_the_summary_of_many_ranks_has_the_least_and_the_greatest() -> None:
    lines = b"".join(
        line("log/1", "rate", 10.5 + rank, "it/s", rank=str(rank // 4), process_rank=str(rank))
        for rank in range(16)
    )

    shown = summary(lines + host_samples(0, 1))

    row = next(each.split() for each in shown.splitlines() if each.split()[:1] == ["rate"])
    assert row == [
        "rate",
        "16",
        "10.500",
        "–",
        "25.500",
        "it/s",
        "10.500",
        "–",
        "25.500",
        "it/s",
        "18",
        "it/s",
        "16",
    ]
    assert "process_rank" not in shown
    assert "network in" in shown


def test_the_summary_shows_one_row_over_ranks_if_requested() -> None:
    lines = b"".join(line("log", "rate", 10, "it/s", rank=str(rank)) for rank in range(3))
    shown = summary(lines, over_ranks=OverRanks.SUM)
    assert "rate (sum of 3 ranks)" in shown
    assert "{rank=" not in shown
