"""The nodes of an attempt, as they are written down and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.errors import BaiError
from bai_agent.job.peers import Peer, peers_table, read_peers

ADDRESSES = st.lists(st.text(max_size=20), min_size=1, max_size=5)


@given(ADDRESSES, st.randoms(use_true_random=False))
def test_peers_are_read_back_in_the_order_of_their_ranks(addresses: list[str], random: Any) -> None:
    peers = [Peer(rank=rank, address=each, slots=rank + 1) for rank, each in enumerate(addresses)]
    mixed = random.sample(peers, len(peers))

    assert read_peers(json.loads(json.dumps(peers_table(mixed))), where="peers.json") == tuple(peers)


@pytest.mark.parametrize(
    "table",
    [
        None,
        [],
        {},
        "peers",
        [None],
        [{"rank": 0}],
        [{"rank": 1, "address": "a", "slots": 1}],
        [{"rank": 0, "address": "a", "slots": 0}],
        [{"rank": 0, "address": 1, "slots": 1}],
        [{"rank": True, "address": "a", "slots": 1}],
        [{"rank": 0, "address": "a", "slots": 1}, {"rank": 0, "address": "b", "slots": 1}],
    ],
)
def test_what_is_no_list_of_peers_is_refused_by_name(table: Any) -> None:
    with pytest.raises(BaiError, match=r"^peers\.json"):
        read_peers(table, where="peers.json")
