"""Events as the benchmark service publishes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

_NOTHING: Mapping[str, Any] = {}

CONTENTS: dict[str, Any] = {
    "spec_version": "0.1.0",
    "info": {"description": "d", "execution_engine": "aws.ec2", "labels": {"task_name": "t"}},
    "hardware": {"instance_type": "t3.small", "strategy": "single_node"},
    "env": {"docker_image": "ami-0deb1200000000001"},
    "ml": {"benchmark_code": "echo"},
    "output": {"metrics": [{"name": "a", "units": "u", "pattern": r"a=(\d+)"}]},
}
"""A descriptor that the emulated account can launch."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
"""Whatever somebody may write."""

ACTION = "ffea52eb-c24b-4dd0-b32e-61230db34ad5"
CLIENT = "97e7eb322342626974fb171fc5793514b0aea789"
DATASET: dict[str, Any] = {
    "src": "http://h/x.gz",
    "path": "/data/x.gz",
    "id": None,
    "md5": None,
    "dst": "s3://data-pull-ab12/data_sets/0f/x.gz",
    "type": "FILE",
    "status": "DONE",
    "message": None,
    "size_info": {"total_size": 10, "file_count": 1, "max_size": 10},
}


def fetcher_event(
    changes: Mapping[str, Any] = _NOTHING,
    *,
    action_id: str = ACTION,
    client_id: str = CLIENT,
    parent: str | None = None,
    payload: Mapping[str, Any] = _NOTHING,
    **envelope: Any,
) -> dict[str, Any]:
    """Return a fetcher event. changes: dotted keys of its descriptor and their values. payload: keys of the payload."""
    contents = copy.deepcopy(CONTENTS)
    for key, value in changes.items():
        put(contents, key, value)
    return {
        "action_id": action_id,
        "parent_action_id": parent,
        "message_id": "ea6bf9ef-3369-411b-8948-7b23c6eceb14",
        "client_id": client_id,
        "client_version": "0.6.2",
        "client_username": "bellgav",
        "authenticated": False,
        "tstamp": 1795182614516,
        "visited": [
            {"svc": "anubis-client", "tstamp": 1572441443000, "version": "0.6.2", "node": None},
            {"svc": "bai-bff", "tstamp": 1572441443123, "version": "0.6.2", "node": "bai-bff-045"},
        ],
        "type": "BAI_APP_FETCHER",
        "payload": {
            "toml": {
                "contents": contents,
                "doc": "var = val",
                "sha1": "",
                "descriptor_filename": "d.toml",
                "verified": True,
            },
            "datasets": [],
            "models": [],
            "scripts": [],
            **payload,
        },
        **envelope,
    }


def cancel_event(
    args: Any, *, action_id: str = "cancel-1", client_id: str = CLIENT, command: Any = "cancel"
) -> dict[str, Any]:
    """Return a command event."""
    event = fetcher_event(action_id=action_id, client_id=client_id)
    return {**event, "type": "CMD_SUBMIT", "payload": {"command": command, "args": args}}


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key`."""
    *above, last = key.split(".")
    # "aws.ec2" is one value of a key, and two tables.
    for each in above:
        table = table.setdefault(each, {})
    table[last] = value


def encoded(event: Any) -> bytes:
    return json.dumps(event).encode()
