from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kafka_brokers import SCRIPT

from executor.descriptor import TEMPLATE, load


def kafka(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=900, check=False
    )


def test_a_broker_keeps_its_address_and_its_data_over_a_restart(tmp_path: Path) -> None:
    folder = ["--dir", str(tmp_path / "a folder")]
    try:
        first = kafka("start", *folder)
        assert first.returncode == 0, first.stderr
        assert f'[kafka]\nbrokers = ["{first.stdout.strip()}"]\n' in first.stderr
        assert kafka("start", *folder).stdout == first.stdout, "a second start finds the first one's broker"
        assert kafka("status", *folder).stdout == first.stdout
        identity = (tmp_path / "a folder" / "data" / "meta.properties").read_text()
        pid = json.loads(kafka("status", "--json", *folder).stdout)["pid"]

        assert kafka("stop", *folder).returncode == 0
        assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()
        assert kafka("status", *folder).returncode == 1

        assert kafka("start", *folder).stdout == first.stdout
        assert (tmp_path / "a folder" / "data" / "meta.properties").read_text() == identity
    finally:
        kafka("stop", *folder)


def test_starting_a_broker_prints_the_lines_for_a_descriptor(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    try:
        started = kafka("start", "--dir", str(folder), "--tls", "--sasl", "alice:wonderland")
        assert started.returncode == 0, started.stderr
        as_json = kafka("start", "--json", "--dir", str(folder))
    finally:
        kafka("stop", "--dir", str(folder))

    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", started.stdout)
    settings = json.loads(as_json.stdout)
    assert as_json.stderr == ""
    assert "wonderland" not in started.stderr + as_json.stdout
    file = tmp_path / "benchmark.toml"
    file.write_text(f"{TEMPLATE}\n{started.stderr.partition('descriptor:')[2]}")
    descriptor, findings = load(file)
    assert descriptor is not None, findings
    table = descriptor.kafka
    assert table is not None
    assert table.brokers == (settings["listeners"]["SASL_SSL"],)
    assert (table.security_protocol, table.sasl_username) == ("SASL_SSL", "alice")
    assert (table.sasl_password, table.ssl_cafile) == ("env:KAFKA_PASSWORD", settings["cafile"])


def test_two_concurrent_starts_run_one_broker(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "start", "--json", "--dir", str(tmp_path / "kafka")]
    try:
        starts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        answers = [json.loads(start.communicate(timeout=900)[0]) for start in starts]

        assert answers[0] == answers[1]
    finally:
        kafka("stop", "--dir", str(tmp_path / "kafka"))


def test_stop_spares_a_process_that_reuses_the_brokers_pid(tmp_path: Path) -> None:
    # A pid is given away again: the broker's file names one that is now another process, this very test.
    settings = {"address": "127.0.0.1:1", "pid": os.getpid(), "started": 1}
    (tmp_path / "kafka.json").write_text(json.dumps(settings))

    assert kafka("status", "--dir", str(tmp_path)).returncode == 1
    assert kafka("stop", "--dir", str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("port", "why"), [(0, "Address already in use"), (99999, "there is no such port")], ids=["taken", "none"]
)
def test_an_unusable_port_is_refused_and_not_recorded(tmp_path: Path, port: int, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = port or taken.getsockname()[1]
        done = kafka("start", "--dir", str(tmp_path / "kafka"), "--port", str(port))

    assert done.returncode == 1
    assert f"--port {port} cannot be used: {why}; give another, or none for a free one\n" in done.stderr
    assert not (tmp_path / "kafka" / "kafka.json").exists()


def test_a_port_other_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kafka.json").write_text(json.dumps({"address": "127.0.0.1:1234", "pid": 0, "started": 1}))

    done = kafka("start", "--dir", str(tmp_path), "--port", "4321")

    assert done.returncode == 1
    assert "127.0.0.1:1234 and keeps it" in done.stderr


@pytest.mark.parametrize("command", ["start", "status", "stop"])
def test_a_folder_that_cannot_be_created_gives_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()

    done = kafka(command, "--dir", str(tmp_path / "file" / "folder"))

    assert done.returncode == 1
    assert "name another folder with --dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_in_place_of_the_brokers_folder_means_no_broker(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert kafka("status", "--dir", str(tmp_path / "file")).returncode == 1


def use_other_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `mvn` be one that brings one other jar, of one line end."""
    (tmp_path / "bin").mkdir()
    maven = tmp_path / "bin/mvn"
    maven.write_text(
        '#!/bin/sh\nfor word; do :; done\nmkdir -p "${word#*=}" && echo >"${word#*=}/other.jar"\n'
    )
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")


def test_jars_with_other_checksums_are_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "cache/bai/kafka-4.1.0"
    jars.mkdir(parents=True)
    (jars / "changed.jar").write_text("")
    use_other_maven(tmp_path, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    done = kafka("start", "--dir", str(tmp_path / "kafka"))

    assert done.returncode == 1
    assert "Maven brought other jars than those in kafka.sha256: HdrHistogram" in done.stderr
    assert "other.jar" in done.stderr
    assert not jars.exists()


def test_lock_writes_the_checksums_of_the_jars_that_maven_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_other_maven(tmp_path, monkeypatch)
    script = shutil.copy(SCRIPT, tmp_path / "kafka")

    done = subprocess.run([sys.executable, script, "lock"], capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    checksum = hashlib.sha256(b"\n").hexdigest()
    assert (tmp_path / "kafka.sha256").read_text() == f"{checksum}  other.jar\n"


def test_lock_without_write_access_gives_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_other_maven(tmp_path, monkeypatch)
    script = shutil.copy(SCRIPT, tmp_path / "kafka")
    (tmp_path / "kafka.sha256").mkdir()  # root may write to a read-only folder, but nobody into this

    done = subprocess.run(
        [sys.executable, script, "lock"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert "Is a directory; kafka.sha256 is written beside this script: lock in a checkout" in done.stderr
    assert "Traceback" not in done.stderr


_NEVER_ENDS = """
import json, pathlib, subprocess, sys
script, folder = sys.argv[1:]
started = int(pathlib.Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
settings = {"address": "127.0.0.1:1", "pid": 1, "started": started}
pathlib.Path(folder, "kafka.json").write_text(json.dumps(settings))
sys.exit(subprocess.run([sys.executable, script, "stop", "--dir", folder, "--timeout", "0.2"]).returncode)
"""
"""The first process of a namespace: no signal out of that ends it, as none ends a process that waits for a dead disk."""


@pytest.mark.root
def test_a_broker_that_cannot_be_killed_is_named(tmp_path: Path) -> None:
    first = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _NEVER_ENDS]

    done = subprocess.run([*first, SCRIPT, tmp_path], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1, done.stderr
    assert "the broker, process 1, is still there 0.2 s after it was killed" in done.stderr
