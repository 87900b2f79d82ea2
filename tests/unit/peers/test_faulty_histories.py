"""Whatever goes wrong at a request of an elastic job's node to the store, the job goes on: nothing is decided or started twice.

Each history is run in a simulated time. `EVERY_FAULT=1` tries each fault at each request instead of a sample (some minutes).
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from simulated_nodes import KINDS, PUT_KINDS, Fault, World

from bai_agent.job.descriptor.restart_tables import Checkpoint

EVERY = os.environ.get("EVERY_FAULT") == "1"
SAMPLE = 10
"""Faults that each history is tried with, in addition to those at its decisions."""
CHECKPOINT = Checkpoint(path="checkpoints")
DELAYS = (2.0, 45.0, 120.0)
"""Seconds for which an agent hangs or is away: shorter than what makes it a lost one, longer, and longer than any succession."""
ATTEMPT = "job/attempts/0/"
BROKEN = (b"{", b"\xff")


@dataclass(frozen=True)
class History:
    """What happens to three nodes."""

    event: Callable[[World], None] | None
    decisions: int = 3
    """How many are made if nothing goes wrong at the store."""
    restarts: int = 0
    late: tuple[int, ...] = ()
    from_s: float = 20.0
    """When it happens; from then on requests may go wrong."""

    def run(self, *faults: Fault, reachable: bool = True) -> World:
        events = [(self.from_s, self.event)] if self.event is not None else []
        return World(
            events=events,
            late=self.late,
            checkpoint=CHECKPOINT,
            faults=faults,
            faults_from_s=self.from_s,
            reachable=reachable,
        ).run()


def grow(world: World) -> None:
    world.start(2)
    world.scale(3)


HISTORIES = {
    "a process fails": History(lambda world: world.fail(1), restarts=1),
    "a process of the leader fails": History(lambda world: world.fail(0), restarts=1),
    "a node is lost": History(lambda world: world.lose(2)),
    "the leader is lost": History(lambda world: world.lose(0)),
    "a node joins": History(grow, late=(2,)),
    "a node is not wanted any more": History(lambda world: world.scale(2)),
    "nothing but success": History(None, decisions=2, from_s=35.0),
}


def check(world: World, history: History, *, decisions: int | None = None) -> None:
    """Fail unless the job has ended well. decisions: how many at most, all if that is not said."""
    assert world.outcome == "succeeded"
    took_part = {each.number for each in world.nodes if each.starts}
    assert took_part <= {*world.result["reported"], *world.result["lost"]}, (
        "a node's part is not in the result"
    )
    decided = world.decided()
    assert decisions is None or len(decided) <= decisions
    assert decided[-1]["ledger"]["restarts"] <= history.restarts
    settled = [key for key in world.written if "/control/" in key and "/sign-" not in key]
    assert {world.written[key] for key in [*settled, "job/result.json"]} == {1}
    for node in world.nodes:
        assert len(set(node.starts)) == len(node.starts), "a generation was started twice"
        assert all(node.number in decided[each]["members"] for each in node.starts)


def faults_of(history: History, *, seed: str) -> Iterator[Fault]:
    """Yield all kinds of faults at the puts of decisions, and a sample of those elsewhere; or all."""
    chance, others = random.Random(seed), []
    for node, calls in history.run().puts.items():
        for call, is_settled_once in calls.items():
            found = [
                Fault(node, call, kind, seconds)
                for kind in (*KINDS, *(PUT_KINDS if is_settled_once else ()))
                for seconds in (DELAYS if kind.startswith(("hang", "kill")) else DELAYS[:1])
            ]
            if EVERY:
                yield from found
            elif is_settled_once:
                yield from {each.kind: each for each in chance.sample(found, len(found))}.values()
            else:
                others += found
    yield from chance.sample(others, min(SAMPLE, len(others)))


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_one_failed_request_to_the_store_only_delays_decisions(name: str) -> None:
    history, suffered = HISTORIES[name], 0
    for fault in faults_of(history, seed=name):
        world = history.run(fault)
        suffered += len(world.suffered)
        # An agent that is there again before it counts as lost costs no generation, nor does an answer that is not true.
        is_short = fault.seconds < 20
        check(world, history, decisions=history.decisions if is_short else history.decisions + 4)
    assert suffered > 20


@pytest.mark.parametrize("name", HISTORIES)
def test_nodes_that_cannot_reach_each_other_make_the_same_decisions_later(name: str) -> None:
    history = HISTORIES[name]

    woken, apart = history.run(), history.run(reachable=False)

    for world in (woken, apart):
        check(world, history, decisions=history.decisions)
    assert [each["members"] for each in apart.decided()] == [each["members"] for each in woken.decided()]
    assert woken.now <= apart.now


def test_several_failed_requests_to_the_store_only_delay_decisions() -> None:
    chance = random.Random(20261125)
    for _ in range(4000 if EVERY else 60):
        history = chance.choice([*HISTORIES.values()])
        faults = [
            Fault(
                chance.randrange(3),
                chance.randrange(1, 70),
                chance.choice(KINDS + PUT_KINDS),
                chance.choice(DELAYS),
            )
            for _ in range(chance.choice([2, 3]))
        ]
        check(history.run(*faults), history)


def test_no_node_is_lost_while_no_node_reaches_the_store() -> None:
    def away(world: World, nodes: set[int]) -> None:
        world.away = nodes

    events = [(20.0, lambda it: away(it, {0, 1, 2})), (220.0, lambda it: away(it, set()))]

    world = World(events=events, work_s=300.0).run()

    check(world, HISTORIES["nothing but success"], decisions=2)


@pytest.mark.parametrize("node", range(3))
def test_a_node_that_alone_cannot_reach_the_store_ends_its_processes_and_joins_again(node: int) -> None:
    ran: list[int | None] = []

    def away(world: World, nodes: set[int]) -> None:
        world.away = nodes
        ran.append(world.nodes[node].runs)

    events = [(20.0, lambda it: away(it, {node})), (120.0, lambda it: away(it, set()))]

    world = World(events=events, work_s=200.0).run()

    assert ran == [0, None]
    check(world, HISTORIES["nothing but success"], decisions=4)
    assert [each["members"] for each in world.decided()[1:3]] == [
        [each for each in range(3) if each != node],
        [*(each for each in range(3) if each != node), node],
    ]


@pytest.mark.parametrize("at_s", [0.2, 20.6, 55.0])
@pytest.mark.parametrize(
    "key",
    [
        *(f"control/generation-{each:06}.json" for each in (0, 1, 2, 50, 999_999)),
        *(f"control/begin-{each:06}.json" for each in (0, 1, 2, 50)),
        *(
            f"control/{each}"
            for each in ("launch-000001.json", "sign-0", "sign-7", "stop.json", "peers.json")
        ),
        *("joined/0.json", "joined/1.json", "joined/9.json", "signs/1", "signs/leaving-1"),
        *("ended/0-0.json", "ended/1-0.json", "requests/0.json", "launched.json"),
    ],
)
def test_an_unreadable_object_neither_blocks_nor_ends_the_job(key: str, at_s: float) -> None:
    """Whether it takes the place of one that was there, or of one that is to come."""
    for content in BROKEN:
        put: Any = lambda it, content=content: it.write(ATTEMPT + key, content)  # noqa: E731
        world = World(events=[(20.0, lambda it: it.fail(1)), (at_s, put)]).run()

        assert world.outcome == "succeeded"
        for node in world.nodes:
            assert len(set(node.starts)) == len(node.starts)


def test_the_decision_that_replaces_an_unreadable_one_names_the_reason() -> None:
    key = f"{ATTEMPT}control/begin-000001.json"

    world = World(events=[(10.0, lambda it: it.write(key, b"{")), (20.0, lambda it: it.fail(1))]).run()

    again = world.decided()[2]
    assert (again["why"], again["members"], again["ledger"]["restarts"]) == ("unreadable", [0, 1, 2], 1)
    assert again["sentence"].startswith("The decision about a generation cannot be read: ")
    assert "begin-000001.json" in again["sentence"]


def test_a_node_that_survives_its_spot_notice_joins_again() -> None:
    def leave(world: World) -> None:
        world.write(f"{ATTEMPT}signs/leaving-1", json.dumps({"node": 1, "seconds": 100}).encode())

    world = World(events=[(20.0, leave)], work_s=200.0).run()

    check(world, HISTORIES["nothing but success"], decisions=4)
    assert [each["why"] for each in world.decided()] == ["start", "left", "joined", "succeeded"]


@pytest.mark.parametrize(("lost", "more_s"), [((2,), 0), ((0,), 20), ((1, 2), 0), ((0, 1), 40)])
def test_a_lost_node_is_detected_within_the_silence_limit_and_two_checks(
    lost: tuple[int, ...], more_s: int
) -> None:
    def lose(world: World) -> None:
        for node in lost:
            world.lose(node)

    world = World(events=[(21.7, lose)]).run()

    decided_s = world.objects[f"{ATTEMPT}control/generation-000001.json"][0]
    # Losses within 5 s are one.
    assert decided_s - 21.7 <= 20 + 2 * 6 + 5 + more_s
    check(world, HISTORIES["nothing but success"], decisions=3)
    assert world.decided()[1]["nodes"] == [*lost]
    assert world.decided()[1]["members"] == [node for node in range(3) if node not in lost]


def test_leaders_that_hang_and_wake_in_turn_make_each_decision_once() -> None:
    """Each of the three hangs for longer than a succession takes, as soon as it leads and puts something."""
    faults = [
        Fault(node, call, "hang", 100.0)
        for node, calls in HISTORIES["a process fails"].run().puts.items()
        for call in list(calls)[node * 7 : 60 : 25]
    ]

    world = HISTORIES["a process fails"].run(*faults)

    assert len(world.suffered) >= 3
    check(world, HISTORIES["a process fails"])


@pytest.mark.parametrize("seconds", DELAYS)
@pytest.mark.parametrize("later", [5, 8, 11, 14])
def test_a_leader_killed_after_its_report_writes_the_result_after_its_restart(
    seconds: float, later: int
) -> None:
    history = HISTORIES["nothing but success"]
    node, call = history.run().first_puts["job/attempts/0/control/stop.json"]

    world = history.run(Fault(node, call, "kill_after", seconds), Fault(node, call + later, "refuse"))

    assert len(world.suffered) == 1
    check(world, history)
