from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from bai_agent.machine.job_sockets import ThisJob, Use


@pytest.fixture
def machine() -> str:
    return f"test-{uuid.uuid4()}"


def job(job_id: str, machine: str, *, place: str = "/jobs") -> ThisJob:
    return ThisJob.of(job_id, place=place, environment={"BAI_MACHINE": machine})


def test_jobs_see_each_other_and_not_themselves(machine: str) -> None:
    one, other = job("one", machine), job("other", machine)
    with one.announce(Use.RUNS), other.announce(Use.RUNS):  # type: ignore[union-attr]
        assert [each.job_id for each in one.others()] == ["other"]
        assert [each.job_id for each in other.others()] == ["one"]
    assert one.others() == []


def test_two_nodes_of_the_same_job_do_not_count_as_colocated_jobs(machine: str) -> None:
    node = job("one", machine)
    with node.announce(Use.RUNS):  # type: ignore[union-attr]
        assert job("one", machine).others() == []


def test_jobs_with_the_same_id_in_two_stores_count_as_colocated(machine: str) -> None:
    with job("one", machine, place="/here").announce(Use.RUNS):  # type: ignore[union-attr]
        assert len(job("one", machine, place="/there").others()) == 1


def test_a_long_id_is_shortened_to_its_beginning(machine: str) -> None:
    with job("j" * 128, machine).announce(Use.RUNS):  # type: ignore[union-attr]
        assert [each.job_id for each in job("other", machine).others()] == ["j" * 60]


def test_socket_names_of_other_programs_are_not_taken_for_jobs(tmp_path: Path, machine: str) -> None:
    # A job of its own id: the kernel lists those of other tests too.
    me, there = job("one", machine), f"two-{uuid.uuid4()}"
    names = tmp_path / "unix"
    with job(there, machine).announce(Use.RUNS):  # type: ignore[union-attr]
        (line,) = [
            each for each in Path("/proc/net/unix").read_text().splitlines() if each.endswith(f"/{there}")
        ]
        start = line.removesuffix(there)
        forged = [start + "\x1b[2J", start + "a b", line + "/x", line.replace("runs", "flies")]
        forged += ["@bai-", line.replace(" 0001 ", " 0002 "), start + "gone"]
        names.write_text("\n".join([*forged, line, ""]))
        assert [each.job_id for each in me.others(names)] == [there]


def test_a_killed_job_is_no_longer_seen(machine: str) -> None:
    holds = (
        "import sys, time; from bai_agent.machine.job_sockets import ThisJob, Use; "
        f"held = ThisJob.of('killed', place='/jobs', environment={{'BAI_MACHINE': {machine!r}}}).announce(Use.RUNS); "
        "print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        there = job("one", machine).others()
        child.kill()
    assert [each.job_id for each in there] == ["killed"]
    assert job("one", machine).others() == []


def test_the_user_of_a_job_is_found_after_hundreds_of_connections(machine: str) -> None:
    with job("busy", machine).announce(Use.RUNS):  # type: ignore[union-attr]
        seen = [job("one", machine).others()[0].job_id for _ in range(500)]
    assert set(seen) == {"busy"}
