"""Commands show the resource usage of bai itself for a real job."""

from __future__ import annotations

import json
import re

from local_cli import LocalCli

_TOOK = r"bai itself took [\d.]+ s of processor time"
_EACH = r"agent [\d.]+ s, [\d.]+ MiB; extractor [\d.]+ s, [\d.]+ MiB; shim [\d.]+ s, [\d.]+ MiB"

_ROW = r"\| agent \| extractor \| shim \| share \|\n.*\n\| node 0" + r" \| [\d.]+ s, [\d.]+ MiB" * 3


def test_status_and_report_show_the_resource_usage_of_bai_itself(cli: LocalCli) -> None:
    cli.go_file.touch()
    assert cli.bai("run", cli.descriptor(), "--job-id", "one", "--", cli.go_file).code == 0

    status = cli.bai("status", "one", "-v").stdout
    markdown = cli.bai("report", "one", "--format", "md", "-o", "-").stdout
    page = cli.bai("report", "one", "--format", "html", "-o", "-").stdout

    assert re.search(f"bai +{_TOOK}", status)
    assert re.search(_EACH, status)
    assert re.search(_TOOK, markdown)
    assert re.search(_ROW, markdown)
    assert re.search(f"<caption>{_TOOK}", page)
    (node,) = json.loads(cli.bai("status", "one", "--json").stdout)["result"]["own_usage"]
    assert node["extractor"]["cpu_seconds"] > 0
