"""What nodes tell each other about generations, with the rights of an instance: executor/backends/ec2/iam/instance.json allows it, and no request to scale."""

from __future__ import annotations

import pytest
from moto_aws import REGION, MotoAws
from sandbox.fake_aws.control_plane.access import environment as environment_of

from bai_agent.errors import StoreError
from bai_agent.job.attempt import AttemptRecord
from bai_agent.job.generation_records import (
    DecisionKind,
    GenerationEnd,
    Leaving,
    NextGeneration,
    ScaleRequest,
    Sign,
)
from bai_agent.job.peers import Members, Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store import open_store

PEERS = (Peer(rank=0, address="10.0.0.1"),)


@pytest.fixture
def attempt(moto_aws: MotoAws, monkeypatch: pytest.MonkeyPatch) -> AttemptRecord:
    """Return a job's attempt as one of its machines reads and writes it."""
    moto_aws.policies.attach("instance")
    theirs = environment_of(moto_aws.identities.of("instance"), endpoint=moto_aws.endpoint)
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{moto_aws.bucket}/jobs", region=REGION, endpoint=moto_aws.endpoint)
    return AttemptRecord(JobRecord(store, "job"))


def test_an_instance_may_do_all_that_generations_need(attempt: AttemptRecord, moto_aws: MotoAws) -> None:
    word = NextGeneration(kind=DecisionKind.RUN, members=[0], why="start")

    attempt.join(PEERS[0], after=2, boot="b-1")
    attempt.give_sign(0, Sign(generation=1))
    attempt.give_leader_sign(0, Sign(generation=1))
    attempt.leave(Leaving(node=0, seconds=110.0))
    attempt.end_generation(0, GenerationEnd(rank=0, outcome="failed"))
    settled = attempt.settle_generation(1, word)
    again = attempt.settle_generation(1, NextGeneration(kind=DecisionKind.END, outcome="failed"))
    begun = attempt.begin_generation(1, Members(peers=PEERS), checkpoint="g000000-0")
    attempt.launch_generation(1)

    assert settled == again == word
    assert begun.checkpoint == "g000000-0"
    control, signs = attempt.control(), attempt.signs_seen()
    assert [set(each) for each in (control.generations, control.begun, control.launches)] == [{1}] * 3
    assert (set(control.leaders), set(signs.nodes), set(signs.leaving)) == ({0}, {0}, {0})
    assert attempt.joined_node(0).after == 2
    assert attempt.generation_ended(0) == {0}
    assert attempt.scale_requests() == {}
    assert attempt.launched_machines() is None


def test_an_instance_may_not_scale_the_job(attempt: AttemptRecord, moto_aws: MotoAws) -> None:
    with pytest.raises(StoreError):
        attempt.request_scale(ScaleRequest(desired=4))

    moto_aws.policies.take_refused()
