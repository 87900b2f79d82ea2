"""`bai-agent`: runs one job, as its job descriptor says, on this machine."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bai_agent import __version__
from bai_agent.errors import BaiError, DescriptorError
from bai_agent.files.utf8 import speak_utf8
from bai_agent.job.agent_start import AgentStartError, say_ready, say_refused, start_agent
from bai_agent.job.outcome import ExitCode, Outcome
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import FULL, RunDir, locked, make_folder, read_json, write_atomic
from bai_agent.machine.host_facts import Look, look
from bai_agent.machine.readiness import Node

if TYPE_CHECKING:
    from bai_agent.aws.s3_client import RetryPolicy
    from bai_agent.job.attempt import AttemptRecord
    from bai_agent.job.descriptor import Job
    from bai_agent.job.record import JobRecord
    from bai_agent.peers.elastic_monitor import ElasticMonitor
    from bai_agent.peers.peer_monitor import PeerMonitor
    from bai_agent.run.spot import SpotNotice
    from bai_agent.runtime.event_log import EventLog
    from bai_agent.sinks.job_store.node_store import NodeStore

log = logging.getLogger(__name__)


class _Parser(argparse.ArgumentParser):
    """A parser that does not query the terminal's width, because the query imports shutil, which loads all
    compression libraries."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, formatter_class=partial(argparse.HelpFormatter, width=78))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `bai-agent`. The exit code tells how the run ended (see `bai_agent.job.outcome`)."""
    if arguments is None:
        speak_utf8()
        # The loaded modules consist of very many objects that are never freed, so frequent garbage collection
        # is useless.
        gc.set_threshold(20_000)
    parser = _Parser(prog="bai-agent", description=__doc__)
    parser.add_argument("--version", action="version", version=f"bai-agent {__version__}")
    commands = parser.add_subparsers(prog="bai-agent", dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "run", help="run a job, or resume one, to its end", description=run_job.__doc__
    )
    command.add_argument("descriptor", type=Path, metavar="JOB.toml", help="the job descriptor")
    command.add_argument(
        "--dir", type=Path, help="the run directory (default: the job's place in its [store], else ./JOB-ID)"
    )
    command.add_argument(
        "--detach", action="store_true", help="return as soon as the agent runs, in its own session"
    )
    command.add_argument(
        "--quiet", action="store_true", help="do not show the benchmark's output and the agent's log"
    )
    command.add_argument(
        "--rank", type=_rank, default=0, metavar="N", help="number of this machine in the job (default: 0)"
    )
    command.add_argument(
        "--instance-id",
        metavar="ID",
        help="id of this EC2 instance; the run waits for the instance's GPUs and disks",
    )
    command.add_argument(
        "--launch",
        type=_rank,
        default=0,
        metavar="K",
        help="number of the launch that started this machine, if that is not the job's first launch",
    )
    command.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    command = commands.add_parser("shell", help="open a shell in a run directory of this machine")
    command.add_argument("directory", type=Path, metavar="DIR", help="the run directory")
    command.add_argument("--rank", type=_rank, default=0, metavar="N", help="number of the node (default: 0)")
    options = parser.parse_args(arguments)
    redactor = Redactor()

    def refuse(error: BaiError, code: ExitCode) -> ExitCode:
        return _refuse(redactor.redact(str(error)), code, ready=getattr(options, "ready_fd", None))

    try:
        if options.command == "shell":
            from bai_agent.nodes.inspection_shell import open_shell

            open_shell(options.directory, rank=options.rank)
        code = run_job(
            options.descriptor,
            directory=options.dir,
            detach=options.detach,
            quiet=options.quiet,
            node=Node(rank=options.rank, instance_id=options.instance_id, launch=options.launch),
            ready=options.ready_fd,
            redactor=redactor,
        )
    except DescriptorError as error:
        code = refuse(error, ExitCode.USAGE)
    except AgentStartError as error:
        code = refuse(error, error.code)
    except BaiError as error:
        code = refuse(error, ExitCode.OURS)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        # A defect of bai, a panic of a library, or a run directory that disappeared must not look like a
        # failure of the benchmark (code 1).
        log.exception("internal error of the agent")
        kind = type(error).__name__
        code = refuse(BaiError(f"internal error: {kind}: {error}"), ExitCode.OURS)
    _leave(code)


def run_job(
    descriptor: Path,
    *,
    directory: Path | None,
    detach: bool,
    quiet: bool,
    node: Node,
    ready: int | None = None,
    redactor: Redactor,
) -> ExitCode:
    """Run a job, or resume one, to its end. The exit code says how the job ended: 0 succeeded, 1 the benchmark failed, 2
    wrong usage or descriptor, 3 out of time, 4 cancelled, 5 failure of bai, a machine or AWS, 6 killed from outside."""
    if sys.platform != "linux":
        raise BaiError(f"bai-agent runs on Linux, not on {sys.platform}")
    # The load of other processes is the difference between two measurements. The first is made here, so early
    # that the second requires no wait.
    first_look = look()
    from bai_agent.job.descriptor_file import read_job

    job = read_job(descriptor)
    record = _record_of(job)
    if node.rank >= job.strategy.nodes and not job.is_elastic:
        raise DescriptorError(f"--rank {node.rank}: too large for {job.strategy.nodes} nodes, counted from 0")
    rundir = RunDir(_directory(job, record, directory, rank=node.rank))
    _make(rundir, record)
    if detach:
        where = [] if node.instance_id is None else [f"--instance-id={node.instance_id}"]
        where += [f"--launch={node.launch}"] if node.launch else []
        start_agent(descriptor, rundir, [f"--rank={node.rank}", *where])
        return ExitCode.SUCCEEDED
    # bai's private files are protected by their own permissions. The files that the benchmark's user reads
    # (data, packages) must not depend on the caller's umask.
    umask = os.umask(0o022)
    with locked(rundir.agent_lock, wait_s=2):
        _claim(rundir, record, descriptor)
        with _logging(rundir, redactor, quiet=quiet):
            if ready is not None:
                say_ready(ready)
            return _run(
                job, rundir, record, redactor, node=node, quiet=quiet, umask=umask, first_look=first_look
            ).exit_code


def _run(
    job: Job,
    rundir: RunDir,
    record: JobRecord | None,
    redactor: Redactor,
    *,
    node: Node,
    quiet: bool,
    umask: int,
    first_look: Look,
) -> Outcome:
    job = job.of_node(node.rank)
    # Everything is imported here, so that wrong usage is reported before any large module is loaded.
    from bai_agent.benchmark.prepared_shim import PreparedShim
    from bai_agent.benchmark.state import State, state

    node_store = None
    if record is not None and record.store.folder is None:
        from bai_agent.sinks.job_store.node_store import NodeStore

        node_store = NodeStore(record=record, rank=node.rank, attempt=job.job.attempt, launch=node.launch)
    if (result := read_json(rundir.result)) is not None:
        from bai_agent.phases.run import finish_publishing

        log.info("this run has already ended: %s", result["sentence"])
        outcome = Outcome(result["outcome"])
        finish_publishing(job, rundir, record, node_store, rank=node.rank, outcome=outcome)
        return outcome
    rundir = rundir.newest_generation()
    # The shim is started first, because the shim imports its modules during the following steps.
    prepared_shim = PreparedShim(rundir) if state(rundir) is State.NOT_STARTED else None
    from bai_agent.machine.probe import EnvironmentProbe
    from bai_agent.phases.run import run
    from bai_agent.run.background import heartbeat, shown
    from bai_agent.run.extractor import ExtractorProcess
    from bai_agent.run.run_context import RunContext
    from bai_agent.run.stop_sources import DiskFull, Signals, stop_sources
    from bai_agent.runtime.event_log import EventLog
    from bai_agent.runtime.stop import StopMonitor

    events = EventLog(rundir.events, redactor=redactor)
    signals, disk = Signals(), DiskFull(rundir)
    signals.listen()
    elastic = _elastic_monitor(job, record, node) if job.is_elastic else None
    monitor = _monitor(job, record, node) if elastic is None else None
    sources = stop_sources(
        job,
        rundir,
        signals=signals,
        disk=disk,
        cancelled=_cancelled(record, node_store),
        spot=_spot(node, events),
        peers=monitor or elastic,
        elastic=elastic,
    )
    extractor = ExtractorProcess(rundir, node=node.rank)
    ctx = RunContext(
        job=job,
        rundir=rundir,
        events=events,
        watch=StopMonitor(sources),
        signals=signals,
        disk=disk,
        redactor=redactor,
        record=record,
        extractor=extractor,
        node=node,
        node_store=node_store,
        monitor=monitor,
        elastic=elastic,
        umask=umask,
        probe=EnvironmentProbe(job, rundir, node=node, first_look=first_look),
        prepared_shim=prepared_shim,
    )
    with heartbeat(ctx), shown(rundir.kept_output, enabled=not quiet):
        try:
            return run(ctx)
        finally:
            extractor.stop()
            if prepared_shim is not None:
                prepared_shim.close()
            if ctx.others is not None:
                ctx.others.end()


def _cancelled(record: JobRecord | None, node_store: NodeStore | None) -> Callable[[], bool]:
    if record is None:
        return lambda: False
    if node_store is None:
        return record.cancelled
    # Imported here, because only a job with a store in a bucket needs the thread.
    from bai_agent.run.stop_sources import CancelLook

    look = CancelLook(record)
    look.start()
    return look.cancelled


def _monitor(job: Job, record: JobRecord | None, node: Node) -> PeerMonitor | None:
    if job.strategy.nodes == 1:
        return None
    from bai_agent.peers.peer_monitor import PeerMonitor

    return PeerMonitor(
        _attempt(job, record),
        rank=node.rank,
        nodes=job.strategy.nodes,
        limits=job.limits,
        restart=job.restart_policy,
    )


def _elastic_monitor(job: Job, record: JobRecord | None, node: Node) -> ElasticMonitor:
    from bai_agent.nodes.membership import new_monitor

    return new_monitor(job, _attempt(job, record), node=node.rank)


def _attempt(job: Job, record: JobRecord | None) -> AttemptRecord:
    if record is None:
        raise DescriptorError(
            "[store] is missing: nodes find each other through the job store; name one in [store] url"
        )
    from bai_agent.job.attempt import AttemptRecord
    from bai_agent.peers.node_monitor import SIGN_PATIENCE

    return AttemptRecord(_record_of(job, patience=SIGN_PATIENCE) or record, job.job.attempt)


def _spot(node: Node, events: EventLog) -> SpotNotice | None:
    if node.instance_id is None:
        return None
    # Imported here, because only an instance needs this module and its HTTP client.
    from bai_agent.job.record_types import WarningEvent
    from bai_agent.run.spot import SpotNotice

    notice = SpotNotice(os.environ, warn=lambda message: events.add(WarningEvent(message=message)))
    notice.start()
    return notice


def _record_of(job: Job, *, patience: RetryPolicy | None = None) -> JobRecord | None:
    if job.store is None:
        return None
    from bai_agent.job.record import JobRecord
    from bai_agent.job.store import open_store

    store = open_store(job.store.url, region=job.store.region, endpoint=job.store.endpoint, patience=patience)
    return JobRecord(store, job.job.id)


def _directory(job: Job, record: JobRecord | None, wanted: Path | None, *, rank: int) -> Path:
    """Return the run directory. If the job store is a folder, the run directory is in the job store, so that
    nothing is copied."""
    if record is None or record.store.folder is None:
        return (wanted or Path(job.job.id)).absolute()
    place = record.store.folder / record.node(rank, attempt=job.job.attempt).place
    if wanted is not None and wanted.absolute() != place and wanted.resolve() != place.resolve():
        raise DescriptorError(
            f"--dir {wanted}: [store] url says that this job's run directory is {place}; leave --dir out"
        )
    return place


def _make(rundir: RunDir, record: JobRecord | None) -> None:
    probe = rundir.path / f".probe.{os.getpid()}"
    try:
        store = record.store.folder if record is not None else None
        make_folder(rundir.path, private=store or rundir.path)
        rundir.agent_log.touch(mode=0o600)
        try:
            probe.write_bytes(b"x")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in FULL and rundir.job.exists():
            return  # the run reserved space for its last records when it began
        raise BaiError(f"the run directory {rundir.path} cannot be written: {error.strerror}") from error


def _claim(rundir: RunDir, record: JobRecord | None, descriptor: Path) -> None:
    """Make this directory the run directory of this descriptor, or check that the directory already belongs
    to this descriptor. If the store is a folder, the job is recorded in the store, so that listings of the
    store find the job."""
    content = descriptor.read_bytes()
    if not rundir.job.exists():
        if record is not None and record.store.folder is not None and record.exists():
            there = record.store.get(record.key("job.toml"))
            if there != content:
                raise DescriptorError(
                    f'{record.store.folder} has another job "{record.job_id}"; give this job another [job] id'
                )
        write_atomic(rundir.job, content)
    elif rundir.job.read_bytes() != content:
        raise DescriptorError(f"{rundir.path} holds the run of another job descriptor; give another --dir")
    if record is not None and record.store.folder is not None and not record.exists():
        record.store.put(record.key("job.toml"), content, if_absent=True)


@contextmanager
def _logging(rundir: RunDir, redactor: Redactor, *, quiet: bool) -> Iterator[None]:
    """Log to `agent.log`, and to stderr unless `quiet`; times are UTC."""
    handlers: list[logging.Handler] = [
        logging.FileHandler(rundir.agent_log, encoding="utf-8", errors="backslashreplace")
    ]
    if not quiet:
        handlers.append(logging.StreamHandler(sys.stderr))
    logging.raiseExceptions = False  # an error message about the log could not be written either
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in handlers:
        redactor.prepare(handler)
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _refuse(sentence: str, code: ExitCode, *, ready: int | None) -> ExitCode:
    if ready is not None:
        say_refused(ready, code, sentence)
    print(f"bai-agent: {sentence}", file=sys.stderr)
    return code


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f'must be an integer ≥ 0, not "{text}"')
    return int(text)


def _leave(code: ExitCode) -> NoReturn:
    """End with `code`, even if the last messages cannot be written, or a thread waits for an unreachable network."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    logging.shutdown()
    os._exit(int(code))
