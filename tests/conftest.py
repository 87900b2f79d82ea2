"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from kafka_brokers import Broker, new_broker, shared_broker
from listed_programs import link_listed_programs
from small_cgroups import no_memory_killer

pytest.register_assert_rewrite("store_contract")
# How long an example takes on a busy machine says nothing.
settings.register_profile("untimed", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=20)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let the garbage collector rest until all tests are collected, then look less often and pass over all that is loaded by then.

    moto and botocore are so large that it took a third of this process's time.
    """
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder() -> Iterator[None]:
    """Give the programs of this run a folder for temporary files: those that a test kills leave some.

    It is for all users, as /tmp, and its path is short enough for Ray. This process's own folder, where pytest keeps the files of
    failed tests, is the usual one.
    """
    with TemporaryDirectory(prefix="bai-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        os.environ["TMPDIR"] = folder
        yield


@pytest.fixture(scope="session", autouse=True)
def _listed_programs() -> Iterator[None]:
    """Let the tests find the programs that scripts/test installs, and no others."""
    with TemporaryDirectory(prefix="bai-programs-") as folder:
        # Benchmarks that run as another user look there too.
        Path(folder).chmod(0o755)
        # The container of Dockerfile.test has programs of its own.
        if not Path("/etc/instance").is_dir() and link_listed_programs(Path(folder)):
            os.environ["PATH"] = folder
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_machine() -> None:
    """Keep jobs of these tests and others on this machine from noticing each other."""
    os.environ["BAI_MACHINE"] = f"tests-{uuid.uuid4()}"


@pytest.fixture
def _no_memory_killer() -> Iterator[None]:
    """For tests that end a benchmark by a SIGKILL and read whose it was."""
    with no_memory_killer():
        yield


@pytest.fixture(autouse=True)
def _machine_of_test(_own_machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep jobs that earlier tests left from being noticed by those of this one."""
    monkeypatch.setenv("BAI_MACHINE", f"test-{uuid.uuid4()}")


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """Undo what a test has the service do with this process's log: later tests look at what is logged."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for program in ("executor", "bai_agent"):
        logging.getLogger(program).setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole test run: not to be stopped."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with shared_broker(root / "kafka") as broker:
        yield broker


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test, to be stopped and started at will."""
    broker = new_broker(tmp_path / "kafka")
    yield broker
    broker.stop()


@pytest.fixture
def free_topic(kafka: Broker) -> str:
    """The name of an empty topic with one partition on the shared broker."""
    topic = f"test-{uuid.uuid4()}"
    kafka.create_topic(topic, partitions=1)
    return topic


@pytest.fixture
def free_topic_name() -> str:
    """The name of a topic that does not exist."""
    return f"test-{uuid.uuid4()}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)
