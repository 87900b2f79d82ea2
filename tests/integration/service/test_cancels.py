"""A cancel in each phase of a job, with real agents in the place of the machines' own."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from service_events import DATASET, cancel_event, fetcher_event
from service_runs import DASHBOARD, ServiceRuns

LAUNCHED = [
    ("PENDING", "Processing benchmark submission request..."),
    ("SUCCEEDED", "Benchmark successfully created..."),
    ("PENDING", "Benchmark starting"),
]
RUNNING = ("RUNNING", "Benchmark running")
CANCELLED = [
    ("SUCCEEDED", "Execution successfully cancelled..."),
    ("CANCELED", "Benchmark cancelled - watch ended"),
]


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x.gz"


def metrics(job_id: str) -> tuple[str, str]:
    address = DASHBOARD.replace("{action_id}", job_id)
    return "METRICS AVAILABLE", f"Metrics available for job {job_id} at {address}"


def test_a_cascading_cancel_ends_running_children_in_any_phase(
    service: ServiceRuns, silent_server: str
) -> None:
    # given a running job with three children: one has ended, one pulls, the machine of one has not booted
    service.start()
    slow = {**DATASET, "path": "x.gz", "dst": silent_server}
    service.publish(
        "fetcher",
        fetcher_event({"ml.benchmark_code": "sleep 600"}, action_id="parent"),
        fetcher_event(action_id="ended", parent="parent"),
        fetcher_event(action_id="pulls", parent="parent", payload={"datasets": [slow]}),
        fetcher_event(action_id="boots", parent="parent"),
    )
    service.wait_messages("executor", 4)
    with service.agent("ended") as agent:
        assert agent.wait(timeout=120) == 0
    service.wait(lambda: not service.keys("open/ended/"), "its end")
    with service.agent("parent"), service.agent("pulls"):
        service.wait(lambda: RUNNING in service.statuses("parent"), "that the parent runs")
        service.wait(lambda: ("PENDING", "Downloading data") in service.statuses("pulls"), "a pull")

        # when these commands come
        family = {"target_action_id": "parent", "cascade": True}
        service.publish(
            "cmd_submit",
            cancel_event(["ended"], action_id="c-ended"),
            cancel_event(family, action_id="c-foreign", client_id="mallory"),
            cancel_event(["unknown", True], action_id="c-unknown"),
            cancel_event(family, action_id="c-family"),
        )
        found = service.wait_messages("cmd_return", 4)
        with service.agent("boots"):
            service.wait(lambda: not service.keys("open/"), "the end of all")

    # then each is answered, and who was cancelled has ended
    answers = {each["action_id"]: each["payload"] for each in found}
    failed = "Cancel command failed: "
    assert {name: (each["return_code"], each["message"]) for name, each in answers.items()} == {
        "c-ended": (1, f"{failed}ended has ended before"),
        "c-foreign": (1, f"{failed}no job of yours was found for parent"),
        "c-unknown": (1, f"{failed}no job of yours was found for unknown"),
        "c-family": (0, "Cancel command processed successfully"),
    }
    assert {each["job_id"]: each["message"] for each in answers["c-family"]["return_value"]} == {
        "parent": "is being cancelled",
        "pulls": "is being cancelled",
        "boots": "is being cancelled",
    }
    assert service.statuses("parent") == [*LAUNCHED, RUNNING, metrics("parent"), *CANCELLED]
    assert service.statuses("pulls") == [*LAUNCHED, ("PENDING", "Downloading data"), *CANCELLED]
    assert service.statuses("boots") == [*LAUNCHED, *CANCELLED]
    assert service.statuses("ended") == [
        *LAUNCHED,
        RUNNING,
        metrics("ended"),
        ("SUCCEEDED", "Benchmark finished successfully"),
        metrics("ended"),
    ]
