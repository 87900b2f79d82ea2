"""A node's part of a remote job store, and the claim to it."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bai_agent.backoff import Backoff
from bai_agent.errors import BaiError, StoreError
from bai_agent.job.record import JobRecord
from bai_agent.job.store import MissingObjectError, StoreRefusedError

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
LAUNCH_SECONDS = 60.0
"""How long a machine waits to be named by whoever launched it: that one wants EC2's answer first, and may ask twice for it."""


class ClaimedError(BaiError):
    """Another machine has this rank of this job."""


@dataclass(frozen=True, kw_only=True)
class NodeStore:
    """`<job>/attempts/<attempt>/nodes/<rank>/` of a store. Its methods raise StoreError."""

    record: JobRecord
    rank: int
    attempt: int

    def key(self, name: str) -> str:
        return self.record.node(self.rank, attempt=self.attempt).key(name)

    def put(self, name: str, content: bytes) -> None:
        self.record.store.put(self.key(name), content)

    def put_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.put(name, json.dumps(value).encode() + b"\n")

    def put_result(self, content: bytes, job: bytes | None) -> None:
        """Write how this node ended, and where it decides for the job how that did, unless somebody has said it before."""
        self.put("result.json", content)
        if job is not None and not self.record.store.put(self.record.key("result.json"), job, if_absent=True):
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
        """Claim this node's rank by creating `ready.json`; return True. The machine that holds the claim may repeat it.

        Where two launches of the job came through, only machines that `launched.json` names may; where none is written
        within LAUNCH_SECONDS, who comes first. A store that is away is asked again while not `until()`. The descriptor is
        left there where nobody has put one.
        Raises ClaimedError; StoreError where the store refuses or stays away.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        undecided_until = clock() + LAUNCH_SECONDS
        while True:
            try:
                if self._is_meant(identity) or clock() >= undecided_until:
                    self._claim(identity, descriptor)
                    return True
                log.info("the launch of %s is not decided yet; asking again", self.record.job_id)
            except StoreRefusedError:
                raise
            except StoreError as error:
                if until():
                    raise
                log.warning("%s; asking again", error)
            sleep(backoff.next() * random.uniform(0.5, 1.0))  # noqa: S311 - so that many nodes do not ask at once

    def _is_meant(self, identity: Mapping[str, Any]) -> bool:
        """Return whether this machine may take the place; False while that is not decided. Raises ClaimedError, StoreError."""
        instance = identity.get("instance_id")
        if instance is None:
            return True
        store = self.record.store
        names = [self.record.key(f"attempts/{self.attempt}/{name}.json") for name in ("launch", "launched")]
        try:
            # As a rule it is there, so it is not looked for first.
            launched = json.loads(store.get(names[1]))
        except (MissingObjectError, StoreRefusedError):
            # S3 calls what is not there denied as well; a list tells. Without a launch file somebody launched us by hand.
            found = {each.key for each in store.find(self.record.key(f"attempts/{self.attempt}/launch"))}
            return not found.intersection(names)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{store.url}/{names[1]} is not JSON: {error}") from error
        named = launched.get("instances") if isinstance(launched, dict) else None
        chosen = named if isinstance(named, list) else []
        if instance in chosen:
            return True
        raise ClaimedError(
            f"The job {self.record.job_id} was launched more than once, and {instance} is not among the machines that "
            f"launched.json names ({', '.join(map(str, chosen)) or 'none'}): it runs nothing and ends."
        )

    def _claim(self, identity: Mapping[str, Any], descriptor: bytes) -> None:
        store = self.record.store
        content = json.dumps(identity).encode() + b"\n"
        if not store.put(self.key("ready.json"), content, if_absent=True):
            # A put whose answer was lost may be our own.
            holder = self.record.read_object(self.key("ready.json")) or {}
            if _machine(holder) != _machine(identity):
                raise ClaimedError(
                    f"Rank {self.rank} of the job {self.record.job_id} is taken by {_machine(holder)}: two machines were "
                    "started for it, and this one ends."
                )
        store.put(self.record.key("job.toml"), descriptor, if_absent=True)


def _machine(identity: Mapping[str, Any]) -> str:
    return str(identity.get("instance_id") or identity.get("host") or "a machine that did not name itself")
