"""For how long the machines of a job were on, with those that were launched while it ran."""

from __future__ import annotations

import json
import os
from pathlib import Path

from elastic_record import ElasticRecord
from handmade_job import HandmadeJob

from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import Sign
from executor.jobs.job_list import machine_seconds

BEGAN_S = 1_800_000_000


def put(store_folder: Path, record: ElasticRecord, name: str, content: object, *, at_s: float) -> None:
    """Write an object of the attempt, so many seconds after the job began."""
    key = record.job.record.key(f"attempts/0/{name}")
    record.job.record.store.put(key, json.dumps(content).encode())
    path = store_folder / key
    os.utime(path, (BEGAN_S + at_s, BEGAN_S + at_s))


def test_machine_time_runs_from_the_launch_to_the_last_sign_of_life_or_the_replacement(
    tmp_path: Path,
) -> None:
    elastic = ElasticRecord(tmp_path)
    put(tmp_path, elastic, "launch.json", {}, at_s=-60)
    put(tmp_path, elastic, "launched.json", {"instances": ["i-0", "i-1", "i-2"]}, at_s=-50)
    for number, instances, node, replaces, at_s in (
        (1, ["i-3"], 3, [1], 1000),
        (2, [], 0, [], 1200),
        (3, ["i-5"], 5, [3], 3000),
    ):
        launched = {"instances": instances, "first_node": node, "replaces": replaces}
        put(tmp_path, elastic, f"launches/{number}/launch.json", {}, at_s=at_s - 5)
        put(tmp_path, elastic, f"launches/{number}/launched.json", launched, at_s=at_s)
    attempt = AttemptRecord(elastic.job.record)
    for node, last_s in ((0, 4000), (1, 900), (2, 3999)):
        attempt.give_sign(node, Sign())
        path = tmp_path / attempt.key(f"signs/{node}")
        os.utime(path, (BEGAN_S + last_s, BEGAN_S + last_s))

    on = machine_seconds(elastic.job.record, elastic.job.job, seconds=4000, ended=(BEGAN_S + 4000) * 1000)

    # Nodes 3 and 5 never gave a sign: one was replaced, the other was on until the end.
    assert on == 4000 + 900 + 3999 + (3000 - 1000) + (4000 - 3000)


def test_all_machines_of_a_fixed_job_are_on_until_its_end(tmp_path: Path) -> None:
    fixed = HandmadeJob(tmp_path, nodes=4)

    assert machine_seconds(fixed.record, fixed.job, seconds=10.0, ended=None) == 40.0
