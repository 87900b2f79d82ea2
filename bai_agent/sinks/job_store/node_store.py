"""A node's part of a remote job store, and how a machine claims that part."""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from bai_agent.backoff import Backoff
from bai_agent.decode import parse_json
from bai_agent.errors import ClaimedError, MissingObjectError, StoreError, StoreRefusedError
from bai_agent.job.launches import launch_key, read_launched
from bai_agent.job.record import JobRecord
from bai_agent.light_dataclass import dataclass

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
LAUNCH_SECONDS = 60.0
"""Longest wait until the program that launched the job names this machine in the store (seconds). The program
needs EC2's answer first, and possibly has to repeat the request."""


@dataclass(frozen=True, kw_only=True)
class NodeStore:
    """The objects below `<job>/attempts/<attempt>/nodes/<rank>/` of a store. The methods raise StoreError."""

    record: JobRecord
    rank: int
    attempt: int
    launch: int = 0
    """Number of the launch of this machine. 0 if the machine was launched at the job's start."""

    def key(self, name: str) -> str:
        return self.record.node(self.rank, attempt=self.attempt).key(name)

    def put(self, name: str, content: bytes) -> None:
        self.record.store.put(self.key(name), content)

    def put_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.put(name, json.dumps(value).encode() + b"\n")

    def put_result(self, content: bytes, job: bytes | None) -> None:
        """Write this node's result. job: the job's result, if this node decides the result. The job's result is written
        unless the store already has a result of the job."""
        self.put("result.json", content)
        if job is not None and not self.record.settle(self.record.key("result.json"), job):
            log.info("the job store holds a result of this job already")

    def claim(
        self,
        identity: Mapping[str, Any],
        *,
        descriptor: bytes,
        until: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> bool:
        """Claim this node's rank for this machine by creating `ready.json`, and return True. The machine that
        holds the claim can repeat the call.

        If EC2 launched machines for the job twice, only machines that `launched.json` names can claim the
        rank. If `launched.json` is not written within LAUNCH_SECONDS, the first machine claims the rank. A
        machine of a later launch waits for `launched.json` until `until()`. Requests to an unreachable store are also
        retried until `until()`. The descriptor is written to the store unless it exists there. Raises ClaimedError
        if another machine has or gets the rank. Raises StoreError if the store refuses a request or stays unreachable.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        undecided_until = clock() + LAUNCH_SECONDS if not self.launch else math.inf
        while True:
            try:
                if self._is_meant(identity) or clock() >= undecided_until:
                    self._claim(identity, descriptor)
                    return True
                log.info("the launch of %s is not decided yet; asking again", self.record.job_id)
                if self.launch and until():
                    raise ClaimedError(
                        f"{identity.get('instance_id')} is not recorded as a machine of launch {self.launch} of the job "
                        f"{self.record.job_id}, and ends without a run."
                    )
            except StoreRefusedError:
                raise
            except StoreError as error:
                if until():
                    raise
                log.warning("%s; asking again", error)
            sleep(backoff.next() * random.uniform(0.5, 1.0))  # noqa: S311 - so that many nodes do not ask at once

    def _is_meant(self, identity: Mapping[str, Any]) -> bool:
        """Return whether this machine is allowed to claim the rank. The result is False while the store does
        not say yet which machine is to claim the rank. Raises ClaimedError if another machine is to claim the
        rank. Raises ClaimedError, StoreError."""
        instance = identity.get("instance_id")
        if instance is None:
            return True
        store = self.record.store
        names = [
            launch_key(self.record, self.attempt, self.launch, f"{name}.json")
            for name in ("launch", "launched")
        ]
        try:
            # The object usually exists, so it is read without listing first.
            launched = parse_json(store.get(names[1]), where=f"{store.url}/{names[1]}")
        except (MissingObjectError, StoreRefusedError):
            # S3 possibly denies access to a missing key, but a listing shows whether the key exists. If there
            # is no launch file at all, the machine was started by hand.
            found = {each.key for each in store.find(names[0].removesuffix(".json"))}
            return not self.launch and not found.intersection(names)
        chosen = self._chosen(launched)
        if instance in chosen:
            return True
        raise ClaimedError(
            f"The job {self.record.job_id} was launched more than once: {instance} is not among the machines that launched.json "
            f"names ({', '.join(map(str, chosen)) or 'none'}), and ends without a run."
        )

    def _chosen(self, launched: object) -> list[object]:
        """Return the machines that are allowed to claim the rank according to `launched.json`. For a later
        launch, only the machine that was launched for this node is allowed. Raises RecordError."""
        named = launched.get("instances") if isinstance(launched, dict) else None
        if not isinstance(launched, dict) or not isinstance(named, list):
            return []
        if not self.launch:
            return named
        mine = read_launched(launched, where="launched.json").by_node.get(self.rank)
        return [mine] if mine is not None else []

    def _claim(self, identity: Mapping[str, Any], descriptor: bytes) -> None:
        store = self.record.store
        content = json.dumps(identity).encode() + b"\n"
        if not store.put(self.key("ready.json"), content, if_absent=True):
            # The existing claim is possibly this machine's own: the store accepted it, but the answer was
            # lost.
            holder = self.record.read_object(self.key("ready.json")) or {}
            if _machine(holder) != _machine(identity):
                raise ClaimedError(
                    f"Rank {self.rank} of the job {self.record.job_id} is taken by {_machine(holder)}: two machines were "
                    "started for this rank, and this machine ends."
                )
        store.put(self.record.key("job.toml"), descriptor, if_absent=True)


def _machine(identity: Mapping[str, Any]) -> str:
    return str(identity.get("instance_id") or identity.get("host") or "a machine without a known name")
