"""`environment.json`: the facts about a node's machine and software, so that runs can be compared much later.

Slow queries (of the metadata service, drivers, the benchmark's Python) run on threads while data and scripts
are pulled. If answers to queries are missing when everything else is ready, the run waits for at most
`WAIT_SECONDS`. Answers that are still missing after this wait are left out, and never fail the run.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bai_agent import __version__
from bai_agent.benchmark.environment import (
    DEFAULT_PATH,
    find_user,
    scripts_folder,
    working_folder,
    workspaces,
)
from bai_agent.errors import NoAnswerError
from bai_agent.files.user_rights import user_rights
from bai_agent.job.descriptor import Job
from bai_agent.job.descriptor.source_tables import SourceKind
from bai_agent.job.run_directory import RunDir, now_ms
from bai_agent.machine import host_facts, software
from bai_agent.machine.gpu import describe_gpus, heat_slowdowns
from bai_agent.machine.host_facts import Facts, Look, look, present, short
from bai_agent.machine.readiness import Node, count_gpus
from bai_agent.machine.throttling import counters
from bai_agent.runtime.user_cache import AnswerCache

log = logging.getLogger(__name__)

VERSION = 1

WAIT_SECONDS = 2.5
"""Longest wait for answers after everything else is ready for the benchmark (seconds). Some child processes
are started only then, so the wait is longer than the time limit of these child processes."""
_LOOK_SECONDS = 1.0
"""Seconds between two readings of the processor time of all processes during a pull."""
_SHORTEST_LOOK_S = 0.05
"""Shortest time between two compared readings of processor time (seconds). The kernel counts processor time
in hundredths of a second. A busy core adds five hundredths in 0.05 s."""
_TICK_S = 0.05
OWN_LEVELS = 2
"""Number of nested levels of tables in environment.json that have fixed keys. Keys in deeper tables are names
of packages."""

METADATA = {
    "image_id": "ami-id",
    "type": "instance-type",
    "availability_zone": "placement/availability-zone",
    "market": "instance-life-cycle",
}
"""Name of a value in environment.json → path of the value in the metadata service."""


_ROOT = Path("/")


class EnvironmentProbe:
    """Collects facts about this machine in the background. Only `finish` waits for answers.

    first_look: an early reading of the processor time of all processes. The last reading comes after the
    agent's imports and phases.
    """

    def __init__(self, job: Job, rundir: RunDir, *, node: Node, first_look: Look) -> None:
        # If arms have their own folders, only the Pythons are queried for every arm.
        self._homes = workspaces(job, rundir)
        self._job, self._rundir = self._homes[0]
        self._scripts = scripts_folder(self._job, self._rundir)
        self._node = node
        self._tasks: dict[str, _Task] = {}
        self._looks = deque([first_look], maxlen=2)
        self._over = threading.Event()
        self._load_before = host_facts.load_average(_ROOT)

    def begin(self) -> None:
        """Start the queries whose answers do not change until the benchmark starts."""
        threading.Thread(target=self._look_again, name="processes", daemon=True).start()
        self._ask("instance", self._instance)
        # Also opens NVML, which takes seconds if the driver has to start.
        self._ask("gpu_heat", heat_slowdowns)
        self._ask("software", lambda: software.libraries(_ROOT))
        self._ask("open_mpi", self._open_mpi)
        self._ask("cloud_init", self._cloud_init)
        self._ask_pythons(installed=False)

    def finish(self, *, stopping: Callable[[], bool]) -> Facts:
        """Return the answers that arrive within `WAIT_SECONDS`. Stop waiting as soon as `stopping()` returns
        True."""
        began = time.monotonic()
        self._over.set()
        self._ask("host", self._host)
        self._ask("gpus", self._gpus)
        self._ask_pythons(installed=True)  # the Python's packages may just have been installed
        self._wait(began + WAIT_SECONDS, stopping)
        facts = self._facts()
        own = host_facts.host_warnings(
            facts, load_before=self._load_before, runnable_now=host_facts.runnable(_ROOT)
        )
        warnings = [
            *own,
            *gpu_warnings(facts.get("gpus") or {}),
            *instance_warnings(facts.get("instance") or {}),
        ]
        missing = {name: task.trouble for name, task in self._tasks.items() if task.trouble}
        return {
            "version": VERSION,
            "time": now_ms(),
            "rank": self._node.rank,
            **present(facts),
            "missing": missing,
            "warnings": warnings,
            "minor": [sentence for sentence, is_minor in own.items() if is_minor],
            # The counters are read last, because throttling is counted from this point on.
            "counters": counters(_ROOT, gpus=self._tasks["gpu_heat"].facts),
            "waited_seconds": round(time.monotonic() - began, 3),
        }

    def _wait(self, deadline: float, stopping: Callable[[], bool]) -> None:
        while (left := deadline - time.monotonic()) > 0 and not stopping():
            waiting = [task for task in self._tasks.values() if task.is_alive()]
            if not waiting:
                break
            waiting[0].join(min(_TICK_S, left))

    def _facts(self) -> Facts:
        """Return the answers as the tables of `environment.json`."""
        known = {name: task.facts or {} for name, task in self._tasks.items()}
        facts = {
            **known["host"],
            "agent": {"version": __version__},
            "container": {"image": short(host_facts.read_text(self._rundir.image))},
            "gpus": known["gpus"],
            "python": known["python"],
            "load": self._load(),
        }
        if self._node.instance_id is not None:
            facts["instance"] = {"id": self._node.instance_id, **known["instance"]}
        facts["system"] = {**facts.get("system", {}), **known["cloud_init"]}
        facts["software"] = {**known["software"], "open_mpi": known["open_mpi"]}
        if self._homes[1:]:
            facts["arms"] = {
                rundir.arm: {"python": known[_python_task(index, rundir)]}
                for index, (_, rundir) in enumerate(self._homes)
            }
        return {name: present(each) if isinstance(each, dict) else each for name, each in facts.items()}

    def _ask(self, name: str, question: Callable[[], Facts]) -> None:
        if name not in self._tasks:
            self._tasks[name] = _Task(name, question)
            self._tasks[name].start()

    def _host(self) -> Facts:
        found = {name: read(_ROOT) for name, read in host_facts.READERS.items()}
        return {**found, "mounts": self._mounts()}

    def _mounts(self) -> Facts:
        """Return the file systems of the run directory and of the data, or one file system if both are the
        same."""
        own = host_facts.mount_of(self._rundir.path, _ROOT)
        mounts = {"run_directory": own}
        start = working_folder(self._job, self._rundir, scripts=self._scripts)
        for source in self._job.sources:
            if source.kind is SourceKind.DATA and "data" not in mounts:
                with user_rights(find_user(self._job.benchmark.user)):
                    there = host_facts.mount_of(start / source.path, _ROOT)
                if there.get("point") != own.get("point"):
                    mounts["data"] = there
        return present(mounts)

    def _instance(self) -> Facts:
        if self._node.instance_id is None:
            return {}
        # Imported here, because the module's HTTP client loads as many modules as everything else.
        from bai_agent.aws.imds import read_if_there

        found = {name: read_if_there(place, environment=os.environ) for name, place in METADATA.items()}
        return present({name: short(value or "") for name, value in found.items()})

    def _ask_pythons(self, *, installed: bool) -> None:
        """Query the benchmark's Python, and the Pythons of the other arms of a comparison.

        installed: whether requirements are installed. If the requirements are not installed yet, only Pythons
        without requirements are queried.
        """
        for index, (job, rundir) in enumerate(self._homes):
            if installed or job.benchmark.requirements is None:
                self._ask(_python_task(index, rundir), partial(self._python, job, rundir))

    def _python(self, job: Job, rundir: RunDir) -> Facts:
        scripts = scripts_folder(job, rundir)
        env, user = software.benchmark_environment(job, rundir, scripts=scripts)
        cwd = working_folder(job, rundir, scripts=scripts)
        python = software.find_python(job, env=env, cwd=cwd)
        if python is None:
            return {}
        # Answers of a Python that belongs to this run or runs on an instance are not cached, because no later
        # run queries this Python.
        kept = self._node.instance_id is None and not Path(python).is_relative_to(self._rundir.path)
        cache = AnswerCache.of_user(os.environ) if kept else None
        return software.python_facts(python, env=env, user=user, cache=cache)

    def _gpus(self) -> Facts:
        found = describe_gpus()
        if not found.get("devices") and (count := count_gpus(_ROOT)):
            raise NoAnswerError(
                f"NVIDIA GPUs on the PCI bus ({count}) cannot be read: install nvidia-ml-py for the agent's Python, or NVIDIA's driver"
            )
        return found

    def _open_mpi(self) -> Facts:
        env, user = software.benchmark_environment(self._job, self._rundir, scripts=self._scripts)
        return software.open_mpi(env=env, user=user, root=_ROOT)

    def _cloud_init(self) -> Facts:
        return present({"cloud_init": software.cloud_init_version(env={"PATH": DEFAULT_PATH})})

    def _look_again(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._looks.append(look())

    def _load(self) -> Facts:
        then = [each for each in list(self._looks) if time.monotonic() - each[0] >= _SHORTEST_LOOK_S]
        at, before = then[-1] if then else self._looks[0]
        time.sleep(max(0.0, at + _SHORTEST_LOOK_S - time.monotonic()))
        now, processes = look()
        busiest = host_facts.busiest(before, processes, elapsed_s=now - at, ours=os.getpid(), root=_ROOT)
        return {"average": host_facts.load_average(_ROOT), "busiest": busiest}


class _Task(threading.Thread):
    """Thread that answers one question."""

    def __init__(self, name: str, question: Callable[[], Facts]) -> None:
        super().__init__(name=f"environment-{name}", daemon=True)
        self._question = question
        self._facts: Facts | None = None
        self._trouble: str | None = None

    @property
    def facts(self) -> Facts | None:
        return self._facts

    @property
    def trouble(self) -> str | None:
        """Reason why the question has no answer. None if the question has an answer."""
        if self._facts is not None:
            return None
        return self._trouble or "did not answer in time"

    def run(self) -> None:
        try:
            self._facts = self._question()
        except Exception as error:
            # The run does not depend on this answer, so errors of libraries are recorded instead of raised.
            self._trouble = short(str(error)) or type(error).__name__
            log.info("environment.json: no answer for %s: %s", self.name, self._trouble)


def _python_task(index: int, rundir: RunDir) -> str:
    return f"python of {rundir.arm}" if index else "python"


def counters_now() -> Facts:
    """Return the current `counters` of environment.json."""
    asking = _Task("gpu_heat", heat_slowdowns)
    asking.start()
    # A driver may hang.
    asking.join(WAIT_SECONDS)
    return counters(_ROOT, gpus=asking.facts)


_BURSTABLE = re.compile(r"t\d[a-z]*\.")
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-performance-instances.html"""


def instance_warnings(instance: Facts) -> list[str]:
    """Return a warning if the machine's instance type cannot sustain its full speed."""
    kind = str(instance.get("type", ""))
    if not _BURSTABLE.match(kind):
        return []
    return [
        f"The instance type {kind} runs on CPU credits. After the credits are spent, the machine slows down, or costs more in unlimited mode."
    ]


def gpu_warnings(gpus: Facts) -> list[str]:
    """Return a warning for each GPU setting that certainly distorts a measurement."""
    warnings = []
    devices = list(enumerate(gpus.get("devices", ())))
    if off := [str(index) for index, device in devices if device.get("persistence") is False]:
        warnings.append(
            f"Persistence mode is off on GPU {', '.join(off)}, so its driver starts anew with each process."
        )
    if busy := [_in_use(index, device) for index, device in devices if device.get("processes")]:
        warnings.append(f"Other processes used GPU {', '.join(busy)} just before the benchmark.")
    return warnings


def _in_use(index: int, device: Facts) -> str:
    used = device.get("memory_used_bytes")
    return f"{index} ({used / 2**30:.1f} GiB of memory)" if used else str(index)
