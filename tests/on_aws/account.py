"""The account in which a proof is made: `bai` as child processes in its name, boto3, and the evidence of both."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from on_aws.evidence import Redactor
from on_aws.proof import DiffersError, UnansweredError

NAME = "bai-prove"
"""Of the stacks, and the owner (`bai:client-id`) of all machines and of all else that a proof makes: leftovers are found by it."""
OWNER_TAG = "bai:client-id"
_BAI = (sys.executable, "-c", "from executor.cli import main; main()")
_OWN = (
    "BAI_BUCKET",
    "BAI_CLIENT_ID",
    "BAI_CONFIG",
    "BAI_INSTANCE_PROFILE",
    "BAI_SECURITY_GROUPS",
    "BAI_STORE",
)
"""Variables of the person that would lead jobs elsewhere."""
_NOT_ALLOWED = (
    "InsufficientInstanceCapacity",
    "MaxSpotInstanceCountExceeded",
    "PendingVerification",
    "UnreservedConcurrentExecution",
    "VcpuLimitExceeded",
    "not eligible for free tier",
)
"""What AWS, or `bai` of a quota, says of an account or a zone, not of what was asked for."""
_ENDING_S = 20.0
Found = TypeVar("Found")


@dataclass(frozen=True)
class Said:
    """What a command printed."""

    code: int
    out: str
    err: str

    @property
    def both(self) -> str:
        return f"{self.out}\n{self.err}".strip()

    @property
    def last_line(self) -> str:
        return (self.both.splitlines() or [""])[-1]


@dataclass
class Running:
    """A command that runs; `said` is there once it has ended."""

    child: subprocess.Popen[bytes]
    command: str
    said: Said = field(init=False)


class _Slots:
    """Machines that may live at the same time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._count = count
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, count: int, stop: threading.Event) -> Iterator[None]:
        wanted = min(count, self._count)
        with self._changed:
            while not stop.is_set() and self._free < wanted:
                self._changed.wait(1)
            if stop.is_set():
                raise UnansweredError("interrupted before it began")
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


@dataclass
class Account:
    """One account in one region. `folder` is the proof's own, and holds configuration, descriptors and evidence."""

    region: str
    profile: str | None
    folder: Path
    stamp: str
    """Time of the start, in names of jobs."""
    at_once: int = 4
    redactor: Redactor = field(default_factory=Redactor)
    stop: threading.Event = field(default_factory=threading.Event)
    """Set once no more may be begun."""

    def __post_init__(self) -> None:
        self.slots = _Slots(self.at_once)
        self._session = boto3.Session(profile_name=self.profile, region_name=self.region)
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._counter = itertools.count(1)

    @property
    def emulated(self) -> bool:
        """Whether it is not AWS that answers."""
        return bool(os.environ.get("AWS_ENDPOINT_URL"))

    @property
    def evidence(self) -> Path:
        return self.folder / "evidence"

    @property
    def bucket(self) -> str:
        """Name of this start's bucket: S3 may refuse one that was deleted a moment ago."""
        return f"{NAME}-{self.stamp}-{self.id}"

    @property
    def id(self) -> str:
        """The number of the account. Raises BotoCoreError, ClientError."""
        with self._lock:
            known = self._clients.get("id")
        if known is None:
            caller = self.client("sts").get_caller_identity()
            known = self._clients["id"] = str(caller["Account"])
            self.redactor.learn(known, "account")
            self.redactor.learn(str(caller["UserId"]), "user")
            self.redactor.learn(str(caller["Arn"]).partition("/")[2], "user")
            self.redactor.learn(str(Path.home()), "home")
        return str(known)

    def client(self, service: str) -> Any:
        """Return a boto3 client, whose calls have a deadline."""
        with self._lock:
            if service not in self._clients:
                config = Config(
                    connect_timeout=10, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 6}
                )
                self._clients[service] = self._session.client(service, config=config)
            return self._clients[service]

    def environment(self) -> dict[str, str]:
        """Return the variables of `bai`: the person's credentials, and nothing of the person's configuration of bai."""
        kept = {name: value for name, value in os.environ.items() if name not in _OWN}
        own = {
            "BAI_CONFIG": str(self.folder / "config.toml"),
            "BAI_CLIENT_ID": NAME,
            "BAI_REGION": self.region,
        }
        return {**kept, **own, **({"AWS_PROFILE": self.profile} if self.profile else {})}

    def bai(self, step: str, *arguments: str | Path, minutes: float = 10, to_the_end: bool = False) -> Said:
        """Run `bai` to its end, and keep what it printed as evidence of `step`.

        to_the_end: also if the proof is interrupted. Raises DiffersError after `minutes`, UnansweredError if interrupted.
        """
        with self.running(step, *arguments) as printed:
            self._wait(printed.child, printed.command, minutes, to_the_end=to_the_end)
        return printed.said

    @contextmanager
    def running(self, step: str, *arguments: str | Path) -> Iterator[Running]:
        """Run `bai` for as long as the context, and then keep what it printed as evidence of `step`."""
        number = next(self._counter)
        place = self.evidence / step
        place.mkdir(parents=True, exist_ok=True)
        out, err = (place / f"{number:03}-{arguments[0]}.{kind}" for kind in ("out", "err"))
        with out.open("w") as printed, err.open("w") as said:
            child = subprocess.Popen(
                [*_BAI, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=said,
                cwd=self.folder,
                env=self.environment(),
                start_new_session=True,
            )
        running = Running(child, " ".join(("bai", *map(str, arguments))))
        try:
            yield running
        finally:
            _end(child)
            running.said = Said(
                child.returncode, out.read_text(errors="replace"), err.read_text(errors="replace")
            )
            text = f"$ {running.command}\nexit code {child.returncode}\n{running.said.both}\n"
            self.keep(step, f"{number:03}-{arguments[0]}.txt", text)
            out.unlink()
            err.unlink()

    def _wait(
        self, child: subprocess.Popen[bytes], command: str, minutes: float, *, to_the_end: bool
    ) -> None:
        deadline = monotonic() + minutes * 60
        while True:
            try:
                child.wait(0.2)
            except subprocess.TimeoutExpired:
                if self.stop.is_set() and not to_the_end:
                    raise UnansweredError("interrupted") from None
                if monotonic() > deadline:
                    raise DiffersError(f"`{command}` took longer than {minutes:g} minutes") from None
            else:
                return

    def ok(self, step: str, *arguments: str | Path, minutes: float = 10) -> Said:
        """Run `bai`, which has to exit with 0. Raises DiffersError, and UnansweredError if the account's limits refuse it."""
        done = self.bai(step, *arguments, minutes=minutes)
        if refusal := next((each for each in _NOT_ALLOWED if done.code != 0 and each in done.both), None):
            raise UnansweredError(f"the account does not allow it ({refusal}): {done.last_line}")
        if done.code != 0:
            raise DiffersError(f"`bai {arguments[0]}` exited with {done.code}: {done.last_line}")
        return done

    def keep(self, step: str, name: str, content: str) -> None:
        """Keep evidence of a step."""
        place = self.evidence / step / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)

    def answer(self, step: str, service: str, call: str, **parameters: Any) -> dict[str, Any]:
        """Call AWS, keep the answer as evidence, and return it. Raises BotoCoreError, ClientError."""
        found: dict[str, Any] = getattr(self.client(service), call)(**parameters)
        self.keep(step, f"{next(self._counter):03}-{call}.json", self.redactor.answer_text(found))
        return found

    def wait_for(self, what: str, look: Callable[[], Found | None], *, minutes: float) -> Found:
        """Look until there is something. Raises DiffersError after `minutes`, UnansweredError if interrupted."""
        deadline = monotonic() + minutes * 60
        while not (found := look()):
            if monotonic() > deadline:
                raise DiffersError(f"{what}: not within {minutes:g} minutes")
            if self.stop.wait(10):
                raise UnansweredError("interrupted")
        return found

    def job(self, step: str) -> str:
        """Return the id of a step's job in this start."""
        return f"prove-{step}-{self.stamp}"

    def status(self, step: str) -> dict[str, Any]:
        """Return what `bai status` says of a step's job; like each look it does what is due."""
        done = self.bai(step, "status", self.job(step), "--json")
        try:
            found: dict[str, Any] = json.loads(done.out)
        except ValueError:
            raise DiffersError(f"`bai status` exited with {done.code}: {done.last_line}") from None
        return found

    def instances(self, step: str) -> list[dict[str, Any]]:
        """Return EC2's descriptions of the machines that a step's job launched first, in any state."""
        key = f"jobs/{self.job(step)}/attempts/0/launched.json"
        record = json.loads(self.client("s3").get_object(Bucket=self.bucket, Key=key)["Body"].read())

        def look() -> dict[str, Any] | None:
            try:
                return self.answer(step, "ec2", "describe_instances", InstanceIds=record["instances"])
            except ClientError as error:
                # A launch is known everywhere some seconds later.
                if error.response["Error"]["Code"] != "InvalidInstanceID.NotFound":
                    raise
            return None

        answer = self.wait_for("EC2 knows the machines", look, minutes=3)
        return [each for reservation in answer["Reservations"] for each in reservation["Instances"]]

    def wait_gone(self, step: str, *, minutes: float = 10) -> list[dict[str, Any]]:
        """Wait until EC2 says that these machines are terminated, and return their descriptions."""

        def look() -> list[dict[str, Any]] | None:
            found = self.instances(step)
            return found if all(each["State"]["Name"] == "terminated" for each in found) else None

        return self.wait_for("its machines are terminated", look, minutes=minutes)

    def write(self, step: str, text: str, files: Mapping[str, str] | None = None) -> Path:
        """Write a step's benchmark descriptor, with `files` beside it; return its path."""
        place = self.folder / "benchmarks" / step
        place.mkdir(parents=True, exist_ok=True)
        for name, content in (files or {}).items():
            (place / name).write_text(content)
        (place / "benchmark.toml").write_text(text)
        return place / "benchmark.toml"


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and its own children, if it still runs."""
    if child.poll() is not None:
        return
    for each in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, each)
        try:
            child.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            continue
        return


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a proof's folder; False if another proof of this machine holds it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
