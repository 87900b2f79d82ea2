"""Metrics that come with `bai`, and how they stand beside a file's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from line_extraction import Notes, extract_metrics

from bai_agent.job.descriptor.metric_tables import Headline, Metric
from bai_agent.metrics.tally import not_a_number_warning
from executor.descriptor import Descriptor, load_table
from executor.descriptor.overrides import read_overrides
from executor.descriptor.presets import preset_names, preset_uses, read_preset
from executor.planning.plan import plan_metrics


def table(output: dict[str, Any], **info: Any) -> dict[str, Any]:
    return {
        "spec_version": "0.1.0",
        "info": {"description": "d", **info},
        "hardware": {"instance_type": "local"},
        "ml": {"benchmark_code": "train"},
        "output": output,
    }


def loaded(output: dict[str, Any], *overrides: str) -> Descriptor:
    descriptor, findings = load_table(
        table(output), file="b.toml", folder=None, overrides=read_overrides(overrides)
    )
    assert (findings, descriptor is not None) == ([], True)
    assert descriptor is not None
    return descriptor


def metrics(output: dict[str, Any], *overrides: str) -> tuple[Metric, ...]:
    return plan_metrics(loaded(output, *overrides))


def problem(output: dict[str, Any], **info: Any) -> tuple[str, str]:
    descriptor, findings = load_table(table(output, **info), file="b.toml", folder=None)
    assert descriptor is None
    (finding,) = findings
    assert finding.key == "output.preset"
    return finding.problem, finding.fix


@pytest.mark.parametrize("name", preset_names())
def test_each_metric_of_a_preset_has_units_and_direction(name: str) -> None:
    preset = read_preset(name)

    assert len({each.name for each in preset.metrics}) == len(preset.metrics)
    assert all(each.units and each.better for each in preset.metrics)


def test_a_preset_becomes_metrics_of_the_job() -> None:
    found = metrics({"preset": "nccl-tests", "warmup": 2})

    assert [each.name for each in found] == [each.name for each in read_preset("nccl-tests").metrics]
    assert (found[0].headline, found[0].warmup_values) == (Headline.MAX, 2)


def test_a_metric_of_a_preset_carries_its_revision() -> None:
    own = {"name": "iops", "units": "IOPS", "pattern": r"IOPS=(\d+)"}

    found = {each.name: each for each in metrics({"preset": "fio", "metrics": [own]})}

    assert (found["iops"].revision, found["iops"].preset) == (None, None)
    assert found["bandwidth"].preset == "fio"
    assert (found["bandwidth"].revision or "").startswith("fio/")
    assert "revision" not in read_preset("fio").text


def test_a_revision_in_a_descriptors_own_metric_is_refused() -> None:
    own = {"name": "iops", "units": "IOPS", "pattern": r"IOPS=(\d+)", "revision": 3}
    descriptor, findings = load_table(table({"metrics": [own]}), file="b.toml", folder=None)

    assert descriptor is None
    assert [each.key for each in findings] == ["output.metrics[0].revision"]


def test_own_metrics_come_first_and_replace_those_of_presets() -> None:
    own = {"name": "bandwidth", "units": "GB/s", "pattern": r"BW=(\d+)", "tolerance": "1%"}
    output = {"preset": ["fio", "hackbench"], "metrics": [own]}

    found = metrics(output)

    assert [each.name for each in found] == ["bandwidth", "iops", "latency_mean", "latency_p99", "time"]
    assert (found[0].units, found[0].tolerance) == ("GB/s", 0.01)
    described = loaded(output).output
    assert [each.replaced for each in preset_uses(described.metrics, described.preset)] == [
        ("bandwidth",),
        (),
    ]


def test_an_option_sets_presets() -> None:
    assert [each.name for each in metrics({}, "output.preset=hackbench")] == ["time"]
    assert len(metrics({}, 'output.preset=["hackbench", "dd"]')) == 2


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    what, fix = problem({"preset": "hf_trainer"})

    assert what == '"hf_trainer" is not a preset'
    assert fix.startswith('did you mean "hf-trainer"?')
    assert all(name in fix for name in preset_names())


def test_metrics_of_two_presets_need_different_names() -> None:
    what, fix = problem({"preset": ["dd", "siege"]})

    assert what == '"dd" and "siege" both have a metric throughput'
    assert "define the metric in [[output.metrics]]" in fix
    own = {"name": "throughput", "units": "MB/s", "pattern": r"(\d+) MB/s"}
    assert [each.name for each in metrics({"preset": ["dd", "siege"], "metrics": [own]})] == [
        "throughput",
        "availability",
    ]


def test_a_preset_listed_twice_is_refused() -> None:
    assert problem({"preset": ["dd", "dd"]})[0] == "names a preset twice"


def test_a_label_of_the_job_that_a_presets_metric_also_has_is_refused() -> None:
    what, _ = problem({"preset": "mbw"}, labels={"method": "x"})

    assert what == 'the metric bandwidth of "mbw" sets the label method, which is also set in [info.labels]'


@pytest.mark.parametrize("value", [3, [3], [{"a": 1}], {"name": "fio"}, [["fio"]], True])
def test_an_unknown_preset_name_is_a_finding(tmp_path: Path, value: Any) -> None:
    descriptor, findings = load_table(table({"preset": value}), file="b.toml", folder=None)

    assert descriptor is None
    assert all(each.key.startswith("output.preset") for each in findings)


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        (
            "hf-trainer",
            "{'loss': 1.2e-05, 'grad_norm': 0.8, 'learning_rate': 4.2e-05, 'epoch': 0.5}",
            [("loss", "1.2e-05", ',"step":0.5')],
        ),
        ("hf-trainer", "{'loss': nan, 'learning_rate': 4.2e-05, 'epoch': 0.5}", []),
        (
            "hf-trainer",
            "{'eval_loss': 0.5, 'eval_runtime': 3.1, 'epoch': 2.0}",
            [("eval_loss", "0.5", ',"step":2.0')],
        ),
        ("tqdm", "100%|##| 8/8 [00:00<00:00, 123.70it/s]", [("throughput", "123.70", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00,  2.00s/it]", [("throughput", "0.5", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 1.50kit/s]", [("throughput", "1500", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 1.50GB/s]", [("bandwidth", "1500", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 1.50MiB/s]", [("bandwidth", "1.572864", "")]),
        # Unscaled numbers have two decimals and five places: the whole word is the unit
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 123.70kitten/s]", [("throughput", "123.70", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 12.00Mit/s]", [("throughput", "12.00", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00,  1.50key/s]", [("throughput", "1.50", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 12.00MB/s]", [("bandwidth", "12.00", "")]),
        ("tqdm", "100%|##| 8/8 [00:16<00:00, 1.50k/s]", [("throughput", "1500", "")]),
        ("redis-benchmark", "GET: rps=0.0 (overall: -nan) avg_msec=-nan (overall: -nan)", []),
        ("redis-benchmark", "98039.22 requests per second", [("throughput", "98039.22", "")]),
        (
            "redis-benchmark",
            "SET: 98039.22 requests per second",
            [("throughput", "98039.22", ',"labels":{"test": "SET"}')],
        ),
        ("iperf3", "[SUM]   0.00-2.00   sec  5.16 GBytes  2638 MBytes/sec                  receiver", []),
        (
            "iperf3",
            "[  5]   0.00-2.00   sec  900 KBytes  3.69 Kbits/sec                  receiver",
            [("bitrate", "3.69e-06", ',"labels":{"stream": "5"}')],
        ),
        ("7z", "Avr:             100   2658   2659  |            100   3170   3171", []),
        ("pgbench", "tps = 12.58 (including connections establishing)", []),
        ("pgbench", "tps = 12.58 (without initial connection time)", [("throughput", "12.58", "")]),
        (
            "wrk",
            "    Latency     1.02m   300.00ms  2.00m    85.01%",
            [("latency_mean", "61200", "")],
        ),
        ("hey", "  0% in 0.0000 secs", []),
        ("hey", "  99%% in 0.0120 secs", [("latency", "12", ',"labels":{"percentile": "99"}')]),
        ("ioping", "4 KiB <<< . (ext4 /dev/vda 252.0 GiB): request=1 time=79.7 us (warmup)", []),
        (
            "openssl-speed",
            "rsa  2048 bits 0.000252s 0.000016s 0.000017s 0.000258s   3967.3  61945.5  58000.0   3800.0",
            [
                ("sign", "3967.3", ',"labels":{"algorithm": "rsa  2048 bits"}'),
                ("verify", "61945.5", ',"labels":{"algorithm": "rsa  2048 bits"}'),
            ],
        ),
        (
            "google-benchmark",
            "Sort/64   1.2e+09 ns   1.1e+09 ns     1",
            [("time", "1.2e+09", ',"labels":{"benchmark": "Sort/64"}')],
        ),
        (
            "cyclictest",
            "T: 0 ( 6214) P: 0 I:1000 C:    100 Min:     41 Act:12345678 Avg:12345678 Max: 7387944",
            [],
        ),
        (
            "k6",
            "http_req_duration....: avg=1m2.5s min=1h0m0s med=1.5ms max=2h p(90)=1s p(95)=2m0s",
            [
                ("latency_mean", "62500", ""),
                ("latency_min", "3600000", ""),
                ("latency_median", "1.5", ""),
                ("latency_p95", "120000", ""),
            ],
        ),
        (
            "tqdm",
            " 5%| | 1/8 [00:00<00:00, 9.5img/s, loss=1e-3]",
            [("throughput", "9.5", ""), ("loss", "1e-3", "")],
        ),
        (
            "keras",
            "5/5 - 1s - 32ms/step - val_loss: 1.5e-04",
            [("val_loss", "1.5e-04", ""), ("step_time", "32", "")],
        ),
        (
            "nccl-tests",
            " 8 2 bfloat16 none 0 12.90 0.01 0.02 0 12.87 0.03 0.04 N/A",
            [
                ("busbw", "0.02", ',"step":8,"labels":{"type": "bfloat16", "redop": "none"}'),
                ("busbw_in_place", "0.04", ',"step":8,"labels":{"type": "bfloat16", "redop": "none"}'),
                ("algbw", "0.01", ',"step":8,"labels":{"type": "bfloat16", "redop": "none"}'),
                ("time", "12.90", ',"step":8,"labels":{"type": "bfloat16", "redop": "none"}'),
            ],
        ),
    ],
)
def test_presets_read_other_output_formats_of_their_programs(
    name: str, line: str, expected: list[tuple[str, str, str]]
) -> None:
    chosen = metrics({"preset": name})

    found = extract_metrics(line.encode() + b"\n", chosen)

    assert [(chosen[i].name, number, extra) for _, i, _, number, extra in found] == expected


@pytest.mark.parametrize("rate", ["1.50key/s", "12.0kkitten/s", "150kitten/s", "1.50kdoc/s", "1.20s/batch"])
def test_a_unit_that_tqdm_may_have_scaled_is_left_out_and_reported(rate: str) -> None:
    chosen = metrics({"preset": "tqdm"})
    notes = Notes()

    found = extract_metrics(f"100%|##| 8/8 [00:16<00:00, {rate}, val_loss=2]\n".encode(), chosen, notes=notes)

    assert found == []
    assert notes.not_numbers == [(0, rate)]
    assert not_a_number_warning("throughput", 1, rate, metric=chosen[0]) == (
        'metric "throughput" of preset "tqdm": 1 value was no numbers in a unit that can be converted to "it/s" and left out, '
        f'the first was "{rate}"'
    )
