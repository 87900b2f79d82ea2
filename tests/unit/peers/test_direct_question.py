"""An agent's answers to other nodes, and its behaviour towards strangers."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bai_agent.job.peers import Peer
from bai_agent.nodes.held_ports import hold_agent_port
from bai_agent.peers.direct_question import AnswerPort, PeerAnswer, ask, ask_all, new_key, wake, wake_all

KEY = new_key()
ANSWER = PeerAnswer(rank=1, store_s=2.5, alone_s=1.0)


@contextmanager
def answering(
    answer: Callable[[], PeerAnswer] = lambda: ANSWER,
    *,
    rank: int = 1,
    woken: Callable[[], object] = lambda: None,
) -> Iterator[Peer]:
    held = hold_agent_port("127.0.0.1")
    assert held is not None
    port = held.getsockname()[1]
    server = AnswerPort(held, rank=rank, key=KEY, answer=answer, woken=woken)
    server.start()
    yield Peer(rank=rank, address="127.0.0.1", agent_port=port)
    server.end()
    server.join(60)


def connect(peer: Peer) -> socket.socket:
    return socket.create_connection((peer.address, peer.agent_port), timeout=60)


def until(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def asked(peer: Peer, key: bytes = KEY) -> PeerAnswer | None:
    return ask(peer, key, timeout_s=30)


def test_a_node_that_is_asked_reports_whether_it_reaches_the_store() -> None:
    with answering() as peer:
        assert asked(peer) == ANSWER


def test_an_answer_is_accepted_only_with_the_jobs_key_and_from_the_node_asked() -> None:
    with answering() as peer:
        assert asked(peer, new_key()) is None
        assert asked(Peer(rank=2, address=peer.address, agent_port=peer.agent_port)) is None
    with answering(lambda: PeerAnswer(rank=3, store_s=0.0, alone_s=0.0)) as peer:
        assert asked(peer) is None


def test_a_hanging_or_dead_agent_gives_no_answer() -> None:
    # The kernel takes it for an agent that hangs, and refuses it for one that is dead
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        peer = Peer(rank=1, address="127.0.0.1", agent_port=hangs.getsockname()[1])
        assert ask(peer, KEY, timeout_s=0.2) is None
    assert asked(peer) is None
    assert asked(Peer(rank=1, address="127.0.0.1")) is None


def test_a_replayed_answer_is_refused() -> None:
    # Given somebody who has recorded a question and its answer, and answers the next question with it
    with answering() as peer, connect(peer) as connection, socket.create_server(("127.0.0.1", 0)) as replayer:
        recorder = Peer(rank=1, address="127.0.0.1", agent_port=replayer.getsockname()[1])
        answers: list[PeerAnswer | None] = []
        asker = threading.Thread(target=lambda: answers.append(asked(recorder)), daemon=True)
        asker.start()
        taken, _ = replayer.accept()
        connection.sendall(taken.recv(1024))
        heard = connection.makefile("rb").readline()
        taken.sendall(heard)
        asker.join(60)
        assert answers == [ANSWER]

        asker = threading.Thread(target=lambda: answers.append(asked(recorder)), daemon=True)
        asker.start()
        again, _ = replayer.accept()
        again.sendall(heard)
        asker.join(60)
        taken.close()
        again.close()

    assert answers == [ANSWER, None]


@pytest.mark.parametrize(
    "sent", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"bai-question-1 a b\n", b"x" * 100_000, b"\xff \xff \xff\n"]
)
def test_a_request_without_the_jobs_key_gets_no_answer(sent: bytes) -> None:
    with answering() as peer, connect(peer) as stranger:
        try:
            stranger.sendall(sent)
            assert stranger.recv(1) == b""
        except ConnectionError:
            pass
        assert asked(peer) == ANSWER


def test_silent_connections_block_no_others_and_use_few_descriptors() -> None:
    with answering() as peer, ExitStack() as strangers:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(300):
            strangers.enter_context(connect(peer))
        assert asked(peer) == ANSWER

        # 300 of them are this test's own
        assert len(list(Path("/proc/self/fd").iterdir())) - before - 300 <= 40


def test_a_server_out_of_file_descriptors_answers_later(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with answering() as peer, socket.socket() as client:
        client.settimeout(30)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            client.connect((peer.address, peer.agent_port))
            until(lambda: "Too many open files" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        assert asked(peer) == ANSWER


def test_a_restarted_agent_answers_on_its_published_port() -> None:
    with answering() as peer:
        assert asked(peer) == ANSWER
    held = hold_agent_port(peer.address, peer.agent_port)
    assert held is not None
    again = AnswerPort(held, rank=1, key=KEY, answer=lambda: ANSWER)
    again.start()

    assert asked(peer) == ANSWER
    again.end()
    again.join(60)


def test_many_nodes_are_asked_at_the_same_time() -> None:
    together = threading.Barrier(8)

    def meet(peer: Peer) -> PeerAnswer | None:
        together.wait(timeout=60)
        return ANSWER if peer.rank == 1 else None

    answers = ask_all([Peer(rank=rank, address="10.0.0.1") for rank in range(8)], meet)

    assert answers == {rank: ANSWER if rank == 1 else None for rank in range(8)}


def test_a_wake_message_makes_an_agent_check_at_once() -> None:
    looks: list[int] = []
    with answering(woken=lambda: looks.append(1)) as peer:
        wake_all([peer, Peer(rank=2, address=peer.address)], KEY)
        until(lambda: len(looks) == 1)

        wake(peer, KEY)
        until(lambda: len(looks) == 2)
        # Waking is no question: it still answers.
        assert asked(peer) == ANSWER


def test_a_forged_or_replayed_wake_message_is_ignored() -> None:
    looks: list[int] = []
    with answering(woken=lambda: looks.append(1)) as peer, socket.create_server(("127.0.0.1", 0)) as recorder:
        wake(peer, new_key())
        wake(Peer(rank=2, address=peer.address, agent_port=peer.agent_port), KEY)
        wake(Peer(rank=1, address="127.0.0.1", agent_port=recorder.getsockname()[1]), KEY)
        taken, _ = recorder.accept()
        line = taken.makefile("rb").readline()
        taken.close()
        for _ in range(3):
            with connect(peer) as replayer:
                replayer.sendall(line)
                assert replayer.recv(1) == b""

        # A question with the proof of a wake is answered to nobody.
        with connect(peer) as replayer:
            replayer.sendall(line.replace(b"bai-wake-1", b"bai-question-1"))
            assert replayer.recv(1) == b""
        assert asked(peer) == ANSWER
    assert len(looks) == 1
