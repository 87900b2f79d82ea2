"""The exporter's example configuration matches the names and tags that jobs and their machines have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bai_agent.job.descriptor.sink_tables import CloudWatch
from executor.backends.ec2.tags import ATTEMPT_TAG, CLIENT_TAG, JOB_TAG

FOLDER = Path(__file__).parents[3] / "examples" / "service"
YACE: dict[str, Any] = yaml.safe_load((FOLDER / "yace.yml").read_text())
PROMETHEUS: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
EC2_METRICS = {
    "CPUUtilization", "CPUCreditBalance", "CPUCreditUsage", "NetworkIn", "NetworkOut", "NetworkPacketsIn", "NetworkPacketsOut",
    "EBSReadBytes", "EBSWriteBytes", "EBSReadOps", "EBSWriteOps", "EBSIOBalance%", "EBSByteBalance%",
    "StatusCheckFailed", "StatusCheckFailed_Instance", "StatusCheckFailed_System",
}  # fmt: skip
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_metrics_with_cloudwatch.html"""


def test_machines_are_found_by_the_tags_that_launches_give_them() -> None:
    tags = {JOB_TAG, ATTEMPT_TAG, CLIENT_TAG}
    (job,) = YACE["discovery"]["jobs"]

    assert set(YACE["discovery"]["exportedTagsOnMetrics"][job["type"]]) == tags
    assert [each["key"] for each in job["searchTags"]] == [JOB_TAG]
    assert {each["name"] for each in job["metrics"]} <= EC2_METRICS


def test_the_custom_namespace_is_the_sinks_default() -> None:
    (job,) = YACE["customNamespace"]

    assert job["namespace"] == CloudWatch(log_group="g").namespace


def test_each_minute_is_asked_for_as_monitoring_is_detailed() -> None:
    for job in (*YACE["discovery"]["jobs"], *YACE["customNamespace"]):
        assert job["period"] == 60
        assert job["length"] >= job["period"]


def test_the_pushgateways_labels_are_kept() -> None:
    (pushed,) = (each for each in PROMETHEUS["scrape_configs"] if each["job_name"] == "pushgateway")

    assert pushed["honor_labels"] is True
