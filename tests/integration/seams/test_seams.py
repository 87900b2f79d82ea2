"""A new thing of each kind is a file of its own and the lines that name it: a job then runs with it.

docs/architecture.md, "Seams", says which files that are; each test changes these alone.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from agent_runs import events_of, write_job
from cli_harness import CliResult
from local_cli import LocalCli, local_cli
from source_tree import SourceTree, copied_tree

_SECONDS = 120
"""Far beyond what any run here takes."""


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    return copied_tree(tmp_path / "tree")


@pytest.fixture
def cli(tree: SourceTree, tmp_path: Path) -> LocalCli:
    """Return a harness for the copy's programs."""
    folder = tmp_path / "cli"
    folder.mkdir()
    return replace(
        local_cli(folder, PYTHONPATH=tree.environment["PYTHONPATH"]),
        bai_program=tree.program("executor.cli"),
        agent_program=tree.program("bai_agent.cli"),
    )


def run_job(cli: LocalCli, file: Path, *, code: int = 0) -> None:
    """Run `file` with the copy's `bai` as the job "one", which must end with the exit code `code`."""
    done = cli.bai("run", file, "--job-id", "one")
    assert done.code == code, done.stdout + done.stderr


def test_a_new_strategy_needs_only_its_file_and_its_registration(tree: SourceTree, cli: LocalCli) -> None:
    tree.write(
        "bai_agent/strategy/twice.py",
        '''\
"""The benchmark's command, and once it has ended well the same again."""

from __future__ import annotations

from collections.abc import Sequence

from bai_agent.job.descriptor import Job
from bai_agent.job.peers import Peer
from bai_agent.strategy.launch import Launch


class Twice:
    def check(self, job: Job) -> None:
        return

    def launch(self, job: Job, command: Sequence[str], me: Peer, peers: Sequence[Peer]) -> Launch:
        return Launch(argv=("/bin/sh", "-c", '"$@" && "$@"', "twice", *command), env={"ROUNDS": "2"})
''',
    )
    registry = "bai_agent/strategy/__init__.py"
    tree.insert(registry, '    "twice": "twice:Twice",\n', before='    "single_node": ')
    tree.replace(
        "executor/descriptor/model.py", 'Literal["single_node", ', 'Literal["single_node", "twice", '
    )

    code = "import os; print('loss=0.5 of', os.environ['ROUNDS'])"
    run_job(cli, cli.descriptor(code, strategy="twice"))

    assert cli.output("one") == "loss=0.5 of 2\n" * 2
    assert cli.result("one")["outcome"] == "succeeded"
    assert tree.changed() == {
        "bai_agent/strategy/twice.py",
        "bai_agent/strategy/__init__.py",
        "executor/descriptor/model.py",
    }


SINK = '''\
"""Records as lines of a file."""

from __future__ import annotations

import json
from pathlib import Path

from bai_agent.job.descriptor import Job
from bai_agent.job.redaction import Redactor
from bai_agent.job.run_directory import RunDir
from bai_agent.sinks.sink import Delivery


class JsonLinesFile:
    name = "the file"
    error = None

    def __init__(self, job: Job, rundir: RunDir, *, rank: int, redactor: Redactor) -> None:
        self._path, self._rundir = Path(job.json_lines.path), rundir

    def start(self) -> None:
        self._path.touch()

    def flush_soon(self) -> None:
        return

    def finish(self, deadline: float) -> Delivery:
        records = [json.loads(line) for line in self._rundir.kept_metrics.read_text().splitlines()]
        told = [json.dumps({each["name"]: each["value"]}) for each in records if each["src"] == "log"]
        self._path.write_text("".join(f"{line}\\n" for line in told))
        return Delivery(delivered=len(told), undelivered=0, error=None)
'''


def test_a_new_sink_needs_only_its_file_and_its_registration(tree: SourceTree, cli: LocalCli) -> None:
    # Given a sink that the job descriptor knows
    tree.write("bai_agent/sinks/json_lines.py", SINK)
    registry = "bai_agent/sinks/__init__.py"
    tree.insert(registry, '    "json_lines": "json_lines:JsonLinesFile",\n', before='    "kafka": ')
    table = '@dataclass(frozen=True, kw_only=True)\nclass JsonLines(SinkTable):\n    """JSON."""\n\n    path: str\n    """The file."""\n\n\n'
    tables = "bai_agent/job/descriptor/sink_tables.py"
    kafka = "@dataclass(frozen=True, kw_only=True)\nclass Kafka("
    tree.replace(tables, kafka, f"{table}{kafka}")
    job_table = "bai_agent/job/descriptor/__init__.py"
    tree.replace(job_table, "import CloudWatch, Kafka,", "import CloudWatch, JsonLines, Kafka,")
    tree.insert(job_table, "    json_lines: JsonLines | None = None\n", before="    kafka: ")
    there = {registry, "bai_agent/sinks/json_lines.py", tables, job_table}
    assert tree.changed() == there

    # When an agent runs a job that has its table
    file = cli.folder / "records.jsonl"
    job = write_job(
        cli.folder,
        [sys.executable, "-c", "print('loss=0.5')"],
        metrics=[{"name": "loss", "pattern": r"loss=(\S+)"}],
        json_lines={"path": str(file)},
    )
    rundir = cli.folder / "run"
    done = cli.agent("run", job, "--dir", rundir)

    # Then the records are there, and said to be
    assert done.code == 0, done.stderr
    assert file.read_text() == '{"loss": 0.5}\n'
    assert _delivered(rundir) == 1

    # And when the benchmark descriptor knows that table too, `bai run` hands it on
    model = "executor/descriptor/model.py"
    known = "from bai_agent.job.descriptor.sink_tables import JsonLines\n"
    tree.insert(model, known, before="from bai_agent.job.schema.field_types import")
    tree.insert(model, "    json_lines: JsonLines | None = None\n", before="    kafka: ")
    code = "print('loss=0.25 loss=0.125')"
    run_job(cli, cli.descriptor(code, more=f'[json_lines]\npath = "{file}"'))
    assert file.read_text() == '{"loss": 0.25}\n{"loss": 0.125}\n'
    assert _delivered(cli.rundir("one").path) == 2
    assert tree.changed() == {*there, model}


def _delivered(rundir: Path) -> int:
    (told,) = (
        each for each in events_of(rundir) if each["type"] == "delivery" and each["sink"] == "the file"
    )
    return int(told["delivered"])


def test_a_new_source_scheme_needs_only_its_file_and_its_registration(
    tree: SourceTree, cli: LocalCli
) -> None:
    tree.write(
        "bai_agent/pull/zeros.py",
        '''\
"""zeros://BYTES/name: a file of so many zeros."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from bai_agent.job.descriptor.source_tables import Source
from bai_agent.pull.draft import PartialFile
from bai_agent.pull.landing import Landing
from bai_agent.pull.progress import PullWatch
from bai_agent.pull.remote import Remote, RemoteListing


class ZerosOrigin:
    def __init__(self, source: Source, watch: PullWatch) -> None:
        parts = urlsplit(source.src)
        self._file = Remote(name=parts.path[1:], key=source.src, size=int(parts.netloc), tag=parts.netloc)

    def survey(self) -> RemoteListing:
        return RemoteListing((self._file,), folder=False)

    def fetch(
        self, remotes: Sequence[Remote], landing: Landing, *, keep: Callable[[PartialFile, Remote], None]
    ) -> None:
        for remote in remotes:
            with landing.small(remote.name) as draft:
                draft.append(bytes(remote.size))
                landing.tally.bytes += remote.size
                keep(draft, remote)
''',
    )
    tree.insert(
        "bai_agent/job/schema/source_schemes.py",
        '    "zeros": Scheme(origin="zeros:ZerosOrigin", forms="`zeros://BYTES/name`"),\n',
        before='    "s3": ',
    )

    source = '[[data.sources]]\nsrc = "{}"\npath = "data/"\n'
    code = "import os; print('loss=' + str(os.stat('data/train.bin').st_size))"
    incomplete = cli.bai(
        "validate",
        cli.descriptor(code, more=source.format("zeros:///train.bin")),
    )
    run_job(cli, cli.descriptor(code, more=source.format("zeros://4096/train.bin")))

    assert incomplete.code == 2
    assert "zeros://host/file" in incomplete.stdout + incomplete.stderr
    assert cli.output("one") == "loss=4096\n"
    (pulled,) = (
        each for each in events_of(cli.rundir("one").path) if each["type"] == "pull" and each["done"]
    )
    assert (pulled["src"], pulled["bytes"]) == ("zeros://4096/train.bin", 4096)
    assert tree.changed() == {"bai_agent/pull/zeros.py", "bai_agent/job/schema/source_schemes.py"}


def test_a_new_reason_to_stop_needs_only_its_file_and_its_registration(
    tree: SourceTree, cli: LocalCli
) -> None:
    tree.write(
        "bai_agent/run/enough.py",
        '''\
"""The benchmark says by a file that it is enough."""

from __future__ import annotations

from bai_agent.job.outcome import Outcome
from bai_agent.job.run_directory import RunDir
from bai_agent.runtime.stop import StopReason


class Enough:
    def __init__(self, rundir: RunDir) -> None:
        self._file = rundir.work / "enough"

    def reason(self, running_s: float | None) -> StopReason | None:
        return StopReason(Outcome.CANCELLED, "It was enough.") if self._file.exists() else None
''',
    )
    sources = "bai_agent/run/stop_sources.py"
    tree.insert(sources, "from bai_agent.run.enough import Enough\n", before="log = ")
    tree.insert(sources, "        Enough(rundir),\n", before="        MaxRuntime(")

    code = "import time; open('enough', 'w').close(); print('loss=1', flush=True); time.sleep(100)"
    run_job(cli, cli.descriptor(code), code=4)

    result = cli.result("one")
    assert (result["outcome"], result["sentence"]) == ("cancelled", "It was enough.")
    assert result["benchmark"]["stop"] == "cancelled"
    assert tree.changed() == {"bai_agent/run/enough.py", sources}


def test_a_new_fact_about_the_machine_needs_changes_in_two_files(tree: SourceTree, cli: LocalCli) -> None:
    table, readers = "executor/records/machine_facts.py", "bai_agent/machine/host_facts.py"
    row = '    MachineFact("system.os_type", same, "type {}", line="kernel"),\n'
    tree.insert(table, row, before='    MachineFact("system.architecture"')
    reader = '            "os_type": short(read_text(root / "proc/sys/kernel/ostype")),\n'
    tree.insert(readers, reader, before='            "architecture": ')

    run_job(cli, cli.descriptor("print('loss=0.5')"))

    assert "type Linux" in cli.bai("status", "one", "-v").stdout
    assert tree.changed() == {table, readers}


def test_a_new_key_of_metrics_that_selects_lines_needs_changes_in_two_files(
    tree: SourceTree, cli: LocalCli
) -> None:
    tables, patterns = "bai_agent/job/descriptor/metric_tables.py", "bai_agent/metrics/search/patterns.py"
    key = '    only: Annotated[FilledText | None, About.LINE, Example("epoch")] = None\n'
    tree.insert(tables, f'{key}    """A text: lines without it are not searched."""\n', before="    after: ")
    obeys = """\
    every = searcher

    def searcher(index):
        found, text = every(index), metrics[index].only
        if text is None:
            return found
        return found._replace(
            search=lambda line, *start: found.search(line, *start) if text in line else None,
            search_all=lambda line, *start: found.search_all(line, *start) if text in line else iter(()),
            many=lambda: None,
        )

"""
    tree.insert(patterns, obeys, before="    last_only = ")
    metric = """
[[output.metrics]]
name = "accuracy"
units = ""
pattern = 'acc=(\\d+)'
only = "epoch"
example = "epoch acc=7"
"""
    code = r"print('warm acc=1\nepoch acc=2\ncool acc=3')"

    run_job(cli, cli.descriptor(code, more=metric))
    tried = cli.bai("validate", cli.descriptor(code, more=metric.replace("epoch acc", "warm acc")))
    of_run = metric.replace("pattern = 'acc=(\\d+)'", 'of_run = "cpu_time"').replace('""', '"s"')
    both = cli.bai("validate", cli.descriptor(code, more=of_run))
    other = cli.descriptor(code, more=metric.replace('only = "epoch"', 'only = "acc"'))
    assert cli.bai("run", other, "--job-id", "two").code == 0

    records = map(json.loads, cli.rundir("one").metrics.read_text().splitlines())
    assert [each["value"] for each in records if each["name"] == "accuracy"] == [2]
    assert "does not match" in tried.stdout
    assert "output.metrics[1].only" in both.stdout
    assert "cannot be combined with of_run" in both.stdout
    assert "metric accuracy: only" in cli.bai("compare", "one", "two").stdout
    assert tree.changed() == {tables, patterns}


def test_a_new_target_of_export_needs_its_file_and_changes_in_one(tree: SourceTree, cli: LocalCli) -> None:
    # Given a target with an option of its own
    tree.write(
        "executor/export/plain_text.py",
        '''\
"""The last values of a job, as lines of a file."""

from __future__ import annotations

from pathlib import Path

from executor.export.facts import JobFacts


def export_to_file(facts: JobFacts, file: Path) -> None:
    every = [series for run in facts.runs for series in run.series if series.key.name == "loss"]
    file.write_text("".join(f"{each.key.name} {each.values[-1]}\\n" for each in every))
''',
    )
    numbers = "executor/commands/numbers.py"
    writer = """\
def _to_file(record: JobRecord, file: Path, *, json_: bool) -> None:
    from executor.export.facts import job_facts
    from executor.export.plain_text import export_to_file

    export_to_file(job_facts(record), file)


"""
    tree.insert(numbers, writer, before="_TARGETS: ")
    tree.insert(numbers, '    "plain-text": (_to_file, ("--file",)),\n', before='    "tensorboard": (')
    option = (
        '    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The file.")] = None,\n'
    )
    tree.insert(numbers, option, before="    folder: Annotated[")
    tree.replace(numbers, '"--dir": folder}', '"--dir": folder, "--file": file}')

    # When a job is exported to it, and to another one with its option
    run_job(cli, cli.descriptor("print('loss=0.5')"))
    file = cli.folder / "values"
    done = cli.bai("export", "one", "--to", "plain-text", "--file", file)
    wrong = cli.bai("export", "one", "--to", "tensorboard", "--dir", cli.folder / "board", "--file", file)
    own = cli.bai("export", "one", "--to", "plain-text", "--experiment", "x")

    # Then its function alone has written, and options of other targets are refused
    assert (done.code, file.read_text()) == (0, "loss 0.5\n"), done.stderr
    assert (wrong.code, own.code) == (2, 2)
    assert "--file is not for --to tensorboard" in wrong.stderr
    assert "--experiment is not for --to plain-text" in own.stderr
    assert not (cli.folder / "board").exists()
    assert "mlflow|plain-text|tensorboard" in cli.bai("export", "--help").stdout
    assert tree.changed() == {"executor/export/plain_text.py", numbers}


def test_a_new_backend_needs_only_its_files_and_its_registration(tree: SourceTree, cli: LocalCli) -> None:
    tree.write(
        "executor/backends/nice.py",
        '''\
"""This machine, where nobody else is to notice; its jobs are in a store of their own scheme, nice:///folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from bai_agent.job.record import JobRecord
from bai_agent.job.store import JobStore
from bai_agent.job.store.directory import DirectoryStore
from executor.backends.backend import BackendOptions, SubmitListener, named_store
from executor.backends.local.local_backend import LocalBackend
from executor.descriptor import Descriptor
from executor.planning.request import JobRequest, Submitted
from executor.records.job_status import JobStatus


class NiceStore:
    folder = None

    def __init__(self, folder: Path) -> None:
        self.within = DirectoryStore(folder)
        self.url = f"nice://{folder}"

    def __getattr__(self, name: str) -> object:
        return getattr(self.within, name)


def near(record: JobRecord) -> JobRecord:
    return replace(record, store=record.store.within)


class NiceBackend(LocalBackend):
    name = "nice"

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(replace(options, store=(options.store or "").removeprefix("nice://")))

    def owns(self, record: JobRecord) -> bool:
        return record.store.url.startswith("nice://")

    def open_store(self, named: str | None) -> JobStore | None:
        chosen = named_store(named) or ""
        return NiceStore(Path(chosen.removeprefix("nice://"))) if chosen.startswith("nice://") else None

    def store_option(self) -> str | None:
        return f"nice://{self._options.store}"

    def consoles(self, record: JobRecord, *, on_status: object) -> list:
        on_status("a nice machine has no console")
        return []

    def submit(
        self, job_request: JobRequest, descriptor: Descriptor, *, job_id: str | None, listener: SubmitListener
    ) -> Submitted:
        os.nice(7)
        submitted = super().submit(job_request, descriptor, job_id=job_id, listener=listener)
        store = NiceStore(submitted.record.store.folder)
        return replace(submitted, record=replace(submitted.record, store=store))

    def status(self, record: JobRecord) -> JobStatus:
        return replace(super().status(near(record)), where=self.name)

    def follow(self, record: JobRecord, *, on_status: object) -> object:
        return super().follow(near(record), on_status=on_status)

    def location(self, record: JobRecord) -> object:
        return super().location(near(record))
''',
    )
    registry = "executor/backends/__init__.py"
    entry = '_Entry("executor.backends.nice:NiceBackend", "this machine at night")'
    tree.insert(registry, f'    "nice": {entry},\n', before='    "local": _Entry')
    store = f"nice://{cli.folder}/jobs"

    def bai(*arguments: str | Path) -> CliResult:
        return cli.bai(*arguments, "--store", store)

    file = cli.descriptor("import os; print('loss=' + str(os.nice(0)))")
    started = bai("run", file, "--job-id", "one", "--on", "nice")
    status = bai("status", "one", "--json")
    listed = bai("list", "--json")
    printed = bai("logs", "one", "--follow")
    console = bai("logs", "one", "--boot")
    elsewhere = cli.bai("list", "--store", "naughty://jobs")
    unknown = cli.bai("run", file, "--on", "moon")

    assert started.code == 0, started.stdout + started.stderr
    assert json.loads(status.stdout)["where"] == json.loads(listed.stdout)["where"] == "nice"
    assert printed.stdout == f"loss={os.nice(0) + 7}\n"
    assert console.stderr == "bai: a nice machine has no console\n"
    assert '"naughty://jobs" is not a job store' in elsewhere.stderr
    assert "`--on nice` for this machine at night" in unknown.stderr
    assert tree.changed() == {"executor/backends/nice.py", registry}
