"""The nodes of an attempt, as they are written down and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.errors import BaiError
from bai_agent.job.peers import Peer, peers_table, read_peers

ADDRESSES = st.lists(
    st.ip_addresses().map(str) | st.from_regex(r"[a-z0-9][a-z0-9.-]{0,60}", fullmatch=True),
    min_size=1,
    max_size=5,
)
KEY = "ssh-ed25519 " + "A" * 68


@given(ADDRESSES, st.randoms(use_true_random=False))
def test_peers_are_read_back_in_the_order_of_their_ranks(addresses: list[str], random: Any) -> None:
    peers = [Peer(rank=rank, address=each, slots=rank + 1) for rank, each in enumerate(addresses)]
    mixed = random.sample(peers, len(peers))

    assert read_peers(json.loads(json.dumps(peers_table(mixed))), where="peers.json") == tuple(peers)


@given(
    st.sampled_from(["address", "public_key", "interface", "engine"]),
    st.text(max_size=20),
    st.sampled_from("\n\r\0\t\"'#*?!$%,=\\\u2028\x1b"),
    st.booleans(),
)
def test_an_entry_of_peers_json_with_more_than_one_word_is_refused(
    field: str, text: str, sign: str, whole: bool
) -> None:
    good = {
        "address": "10.0.0.1",
        "public_key": KEY,
        "interface": "ens5",
        "engine": "mpirun (Open MPI) 4.1.4",
    }
    bad = f"{good[field]}{sign}{text}" if whole else f"{text}{sign}{good[field]}"
    if field == "engine" and sign == ",":
        return

    with pytest.raises(BaiError, match=r"^peers\.json"):
        read_peers([{"rank": 0, "slots": 1, **good, field: bad}], where="peers.json")


@pytest.mark.parametrize(
    "key",
    [
        KEY + "A",
        KEY[:-1],
        "ssh-rsa " + "A" * 68,
        f"{KEY} comment",
        f'command="id" {KEY}',
        f"{KEY}\n{KEY}",
        KEY.replace(" ", "\n"),
        1,
    ],
)
def test_a_public_key_that_is_not_one_bare_ed25519_key_is_refused(key: Any) -> None:
    whole = {"rank": 0, "address": "a", "slots": 1}
    assert read_peers([{**whole, "public_key": KEY}], where="p")[0].public_key == KEY

    with pytest.raises(BaiError):
        read_peers([{**whole, "public_key": key}], where="p")


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
def test_a_malformed_list_of_peers_is_refused_by_name(table: Any) -> None:
    with pytest.raises(BaiError, match=r"^peers\.json"):
        read_peers(table, where="peers.json")
