"""Requests of a large job's nodes to the job store, and the time until all nodes have joined.

    python benchmarks/nodes.py [--nodes 2 20 100 300] [--seconds 30] [--each 125] [--patience 300]

A node runs the agent's own code for joining, heartbeats and checks of the store, on threads, but no benchmark. The coordinator
has its own process. The workers share processes, `--each` workers per process. The store is versitygw over a folder on this
machine (see s3.py). The machine and versitygw limit the times, but the number of requests does not depend on the machine.
If the machine is too slow for a number of nodes, the row has the figures up to that time, a message gives the reason, and no larger
jobs are tried. Needs `pip install .[bench]` and Go.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3
from goals import print_figure
from s3 import KEYS, server

from bai_agent.errors import BaiError
from bai_agent.job.attempt import AttemptRecord, StopOrder
from bai_agent.job.outcome import Outcome
from bai_agent.job.peers import Peer
from bai_agent.job.record import JobRecord
from bai_agent.job.store import StoredObject
from bai_agent.job.store.s3 import S3Store
from bai_agent.nodes.join import Meeting
from bai_agent.peers.peer_monitor import PeerMonitor
from bai_agent.runtime.stop import RunEndedError, StopReason

JOIN = timedelta(minutes=10)
START_SECONDS = 60.0
"""Longest wait for a node process to start, or to answer after its time is over (seconds). A request can hang until the store's
timeout."""
STACK_BYTES = 512 << 10
"""Stack size of a thread (bytes). Each node has two threads."""
PRICES = {"PUT": 5.0, "LIST": 5.0, "GET": 0.4}
"""USD for a million requests, S3 Standard in us-east-1: https://aws.amazon.com/s3/pricing/"""
PAGE = 1000
"""Keys in one answer to a LIST."""
PAGE_BYTES, ENTRY_BYTES = 350, 320
"""Approximate size of an answer to a LIST, and of one of its keys:
https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html"""
COLUMNS = (
    "nodes",
    "join, s",
    "requests of a worker a minute",
    "of the coordinator",
    "KiB of a worker a minute",
    "of the coordinator",
    "USD, join",
    "USD an hour, all",
)


class CountingStore(S3Store):
    """Store that counts requests and bytes. The bytes of bodies are exact, and the bytes of lists are estimates."""

    requests: Counter[str]

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        self.requests["PUT"] += 1
        self.requests["bytes"] += len(content)
        return super().put(key, content, if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, limit: int | None = None) -> bytes:
        content = super().get(key, start=start, limit=limit)
        self.requests["GET"] += 1
        self.requests["bytes"] += len(content)
        return content

    def find(self, prefix: str) -> list[StoredObject]:
        found = super().find(prefix)
        pages = 1 + len(found) // PAGE
        self.requests["LIST"] += pages
        self.requests["bytes"] += pages * PAGE_BYTES + len(found) * ENTRY_BYTES
        return found


class TooSlowError(Exception):
    """This machine is too slow for a number of nodes. Has the reason, and the row with the figures up to that time."""

    def __init__(self, why: str, row: str) -> None:
        super().__init__(why)
        self.row = row


@dataclass(frozen=True, kw_only=True)
class Met:
    """Result of the join of one process's nodes."""

    met: int
    """Number of the process's nodes that met all other nodes."""
    at: float
    """Time at which the process's last node had joined (monotonic clock, which all processes share)."""
    requests: Counter[str]
    trouble: str
    """Why one of the process's nodes did not join; "" if all nodes joined."""


@dataclass(frozen=True, kw_only=True)
class Later:
    """Requests and errors of the nodes of one process after these nodes have joined."""

    requests: Counter[str]
    trouble: str
    """Why one node regarded another node as lost; "" if no node did."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 20, 100, 300, 1000])
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the nodes run after the join")
    parser.add_argument("--each", type=int, default=125, help="workers in one process")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for all to meet")
    options = parser.parse_args()
    joined: float | None = None
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---:" * len(COLUMNS) + "|")
    with tempfile.TemporaryDirectory(prefix="nodes-") as name, server(Path(name)) as endpoint:
        os.environ.update(
            KEYS, S3_ENDPOINT=endpoint, AWS_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true"
        )
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="benchmark")
        for nodes in options.nodes:
            try:
                found, took = row(
                    nodes, endpoint, seconds=options.seconds, each=options.each, patience=options.patience
                )
            except TooSlowError as error:
                print(error.row, flush=True)
                print(f"nodes.py: this machine is too slow for {nodes:,} nodes: {error}", file=sys.stderr)
                return 1
            joined = took if nodes == 1000 else joined
            print(found, flush=True)
    if joined is not None:
        print_figure("join", joined)
    return 0


def row(nodes: int, endpoint: str, *, seconds: float, each: int, patience: float) -> tuple[str, float]:
    """Let `nodes` nodes join and run for `seconds`. Return the row of the table, and the seconds until all nodes had joined.
    Raises TooSlowError."""
    groups = [range(1), *(range(first, min(first + each, nodes)) for first in range(1, nodes, each))]
    context = multiprocessing.get_context("spawn")
    processes, ends = [], []
    try:
        for ranks in groups:
            here, there = context.Pipe()
            process = context.Process(target=live, args=(there, ranks, nodes, endpoint, seconds, patience))
            process.start()
            # With theirs closed here, the end of a process is the end of what it says.
            there.close()
            processes.append(process)
            ends.append(here)
        if len(gather(ends, START_SECONDS + len(groups))) < len(groups):
            raise TooSlowError("not all node processes have started", cells(f"{nodes:,}"))
        begun = time.monotonic()
        tell(ends)
        met: list[Met] = gather(ends, patience + START_SECONDS)
        spent = sum(price(group.requests) for group in met)
        if (count := sum(group.met for group in met)) < nodes:
            why = next((group.trouble for group in met if group.trouble), "a node process does not answer")
            asked = sum(calls(group.requests) for group in met)
            raise TooSlowError(
                f"{count:,} nodes had met all other nodes after {time.monotonic() - begun:.0f} s and {asked:,} requests; {why}",
                cells(f"{nodes:,}", f"> {time.monotonic() - begun:.0f}", "", "", "", "", f"{spent:.4f}"),
            )
        joined = max(group.at for group in met) - begun
        tell(ends)
        later: list[Later] = gather(ends, seconds + START_SECONDS)
        tell(ends)
        trouble = next((group.trouble for group in later if group.trouble), "")
        if len(later) < len(groups):
            trouble = "a node process does not answer any more"
        if trouble:
            partial = cells(f"{nodes:,}", f"{joined:.1f}", "", "", "", "", f"{spent:.4f}")
            raise TooSlowError(f"all nodes had joined after {joined:.1f} s; then: {trouble}", partial)
        for process in processes:
            process.join(START_SECONDS)
    finally:
        for process in processes:
            process.kill()
    a_minute = 60 / seconds
    coordinator = later[0].requests
    workers = sum((group.requests for group in later[1:]), Counter[str]())
    count = max(1, nodes - 1)
    found = cells(
        f"{nodes:,}",
        f"{joined:.1f}",
        f"{calls(workers) * a_minute / count:.0f}",
        f"{calls(coordinator) * a_minute:.0f}",
        f"{workers['bytes'] * a_minute / count / 1024:.0f}",
        f"{coordinator['bytes'] * a_minute / 1024:,.0f}",
        f"{spent:.4f}",
        f"{sum(price(group.requests) for group in later) * a_minute * 60:.3f}",
    )
    return found, joined


def cells(*texts: str) -> str:
    """Return a row of the table. Unknown cells are empty."""
    return f"| {' | '.join([*texts, *[''] * (len(COLUMNS) - len(texts))])} |"


def live(
    parent: Connection, ranks: Sequence[int], nodes: int, endpoint: str, seconds: float, patience: float
) -> None:
    """Run the nodes `ranks` in this process. Each step waits for a message of the parent process."""
    threading.stack_size(STACK_BYTES)
    monitors = [monitor(rank, nodes, endpoint) for rank in ranks]
    wait(parent, None)
    deadline = time.monotonic() + patience
    for each in monitors:
        each.start()
    with ThreadPoolExecutor(len(monitors)) as pool:
        troubles = list(
            pool.map(lambda own, rank: join(own, rank, nodes, deadline=deadline), monitors, ranks)
        )
    before = total(monitors)
    wait(
        parent,
        Met(
            met=troubles.count(""),
            at=time.monotonic(),
            requests=before,
            trouble=next(filter(None, troubles), ""),
        ),
    )
    time.sleep(seconds)
    requests = total(monitors) - before
    lost = next((reason.message for each in monitors if (reason := each.reason(None)) is not None), "")
    wait(parent, Later(requests=requests, trouble=lost))
    for each in monitors:
        if each.is_coordinator:
            each.stop_others(StopOrder(finished=True))
        each.end()
    for each in monitors:
        each.join()


def wait(parent: Connection, answer: Any) -> None:
    """Send `answer` to the parent process, and wait for its next message. If the parent gives up, the parent ends this
    process."""
    parent.send(answer)
    parent.recv()


def tell(ends: Sequence[Connection]) -> None:
    for each in ends:
        each.send(None)


def gather(ends: Sequence[Connection], seconds: float) -> list[Any]:
    """Return the answers of the processes that answer within `seconds`."""
    deadline = time.monotonic() + seconds
    answers = []
    for each in ends:
        if each.poll(max(0.0, deadline - time.monotonic())):
            with suppress(EOFError):
                answers.append(each.recv())
    return answers


def monitor(rank: int, nodes: int, endpoint: str) -> PeerMonitor:
    store = CountingStore("benchmark", f"jobs-{nodes}", endpoint=endpoint)
    store.requests = Counter()
    return PeerMonitor(AttemptRecord(JobRecord(store, "job")), rank=rank, nodes=nodes)


def join(own: PeerMonitor, rank: int, nodes: int, *, deadline: float) -> str:
    """Join the other nodes. Return why this node did not join by `deadline` (of `time.monotonic()`), or ""."""
    me = Peer(rank=rank, address=f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}", port=29500)

    def stop() -> StopReason | None:
        if time.monotonic() > deadline:
            return StopReason(Outcome.JOIN_FAILED, f"node {rank} did not join within --patience")
        return own.reason(None)

    try:
        peers = Meeting(own, me, nodes=nodes, limit=JOIN, stop=stop).members().peers
    except (RunEndedError, BaiError) as error:
        return str(error)
    own.met(peers)
    return "" if len(peers) == nodes else f"node {rank} met {len(peers)} nodes"


def total(monitors: Sequence[PeerMonitor]) -> Counter[str]:
    """Return the number of requests and bytes so far, over the stores of all `monitors`."""
    stores = [each.attempt.job.store for each in monitors]
    return sum((Counter(each.requests) for each in stores if isinstance(each, CountingStore)), Counter())


def calls(requests: Counter[str]) -> int:
    return sum(requests[kind] for kind in PRICES)


def price(requests: Counter[str]) -> float:
    """Return what these requests cost on AWS, in USD."""
    return sum(requests[kind] * usd for kind, usd in PRICES.items()) / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
