"""Reads from the benchmark's output which networks NCCL and Open MPI chose.

NCCL prints its network with NCCL_DEBUG=INFO, and Open MPI with `pml_base_verbose`, `mtl_base_verbose` or
`btl_base_verbose`. Only the beginning of the output is searched, because both libraries choose a network
before the benchmark computes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from bai_agent.job.record_types import TransportEvent
from bai_agent.light_dataclass import dataclass
from bai_agent.run.run_context import RunContext
from bai_agent.strategy.process_ends import open_regular, process_logs

HEAD_BYTES = 4 << 20
"""Number of bytes at the beginning of each file that are searched for transports."""
_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 4096
"""Longest line that is searched for the name of a network (bytes). Longer lines are skipped."""
_PAUSE_SECONDS = 2.0
_PROCESSES = 8
"""Number of processes whose logs are searched, if each process of a node has its own log. All processes of a
node use the same network."""

_MOST_WORDS = 32
"""Largest number of networks per library that are recorded. The number is limited, because the benchmark can
print any text that looks like such a name."""

_WORD = rb"[A-Za-z0-9_.;+-]"
_NAME = rb"(" + _WORD + rb"(?:[ A-Za-z0-9_.;+-]{0,38}" + _WORD + rb")?)"
"""Regular expression that matches the name of a network transport. NCCL's plugins have names like "AWS
Libfabric"."""


@dataclass(frozen=True)
class _Phrase:
    """A pattern of lines in which a library prints the network that it uses, and the name under which bai
    records the network."""

    library: str
    literal: bytes
    """Text that a line must contain before the line is searched with the pattern."""
    pattern: bytes
    """Regular expression of the line. The expression is compiled only after a line contains the text
    `literal`, because few jobs print such lines."""
    form: str


_PHRASES = (
    # NCCL INFO Using network Socket
    _Phrase("NCCL", b"Using network ", rb"NCCL INFO Using network " + _NAME, "NET/{}"),
    # NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
    _Phrase(
        "NCCL",
        b"NET/OFI Selected ",
        rb"NET/OFI Selected [Pp]rovider is (" + _WORD + rb"{1,40})",
        "NET/OFI provider {}",
    ),
    # NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA
    _Phrase("NCCL", b" via NET/", rb"NCCL INFO .* via NET/" + _NAME + rb"/[0-9]", "NET/{}"),
    _Phrase("NCCL", b" via P2P", rb"NCCL INFO .* via (P2P)", "{}"),
    _Phrase("NCCL", b" via SHM", rb"NCCL INFO .* via (SHM)", "{}"),
    # [HOST:PID] select: component cm selected
    _Phrase(
        "Open MPI",
        b"select: component ",
        rb"\] select: component (cm|ob1|ucx) selected",
        "pml/{}",
    ),
    # [HOST:PID] mtl_ofi_component.c:362: mtl:ofi:provider: rdmap0s31-rdm
    _Phrase(
        "Open MPI",
        b"mtl:ofi:provider: ",
        rb"mtl:ofi:provider: (?!none)(" + _WORD + rb"{1,40})",
        "mtl/ofi provider {}",
    ),
    # [HOST:PID] mca: bml: Using tcp btl for send to [[26333,1],0] on node NAME
    _Phrase("Open MPI", b"mca: bml: Using ", rb"mca: bml: Using (\w{1,40}) btl for send to", "btl/{}"),
)
_SOCKETS = r"NET/Socket|btl/tcp|(?:NET|mtl)/(?:OFI|ofi) provider (?:tcp|udp|sockets|net)\b.*"


class TransportScan:
    """Reads the beginnings of growing files, each byte once, and collects the networks that they name."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}
        self._found: dict[str, dict[str, None]] = {}

    def read(self, paths: Iterable[Path], *, ended: bool = False) -> dict[str, list[str]]:
        """Read the new content of the files, and return all networks found so far, by library. ended: whether
        the files are complete."""
        for path in paths:
            self._read_file(path, ended=ended)
        return {library: list(words) for library, words in self._found.items()}

    def _read_file(self, path: Path, *, ended: bool) -> None:
        start = self._read.get(path, 0)
        while start < HEAD_BYTES:
            content = _piece(path, start, min(_CHUNK_BYTES, HEAD_BYTES - start))
            end = content.rfind(b"\n") + 1
            if ended or (not end and len(content) > _LONGEST_LINE):
                end = len(content)
            if not end:
                return
            self._search(content[:end])
            start = HEAD_BYTES if start + len(content) >= HEAD_BYTES else start + end
            self._read[path] = start

    def _search(self, content: bytes) -> None:
        for phrase in _PHRASES:
            at = content.find(phrase.literal)
            while at >= 0:
                first = content.rfind(b"\n", max(0, at - _LONGEST_LINE), at) + 1
                last = content.find(b"\n", at, at + _LONGEST_LINE)
                line = content[first : last if last >= 0 else at + _LONGEST_LINE]
                if (match := re.search(phrase.pattern, line)) is not None:
                    words = phrase.form.format(match[1].decode("ascii"))
                    found = self._found.setdefault(phrase.library, {})
                    if len(found) < _MOST_WORDS:
                        found[words] = None
                at = content.find(phrase.literal, max(last, at + len(phrase.literal)))


def _piece(path: Path, start: int, size: int) -> bytes:
    """Return a piece of a file. Return no bytes if the path is not a regular file, because the benchmark can
    replace the file by anything."""
    with suppress(OSError), os.fdopen(open_regular(path), "rb", buffering=0) as file:
        file.seek(start)
        return file.read(size)
    return b""


class TransportLook:
    """Adds an event for each network that is found, and warns if the libraries use sockets although EFA was
    requested."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self._scan = TransportScan()
        self._next = 0.0

    def __call__(self, *, ended: bool = False) -> None:
        """Search the new output for networks, but not more often than every two seconds. ended: whether the
        benchmark has ended."""
        now = self._ctx.clock.monotonic()
        if now < self._next and not ended:
            return
        self._next = now + _PAUSE_SECONDS
        known = transports_in(self._ctx)
        for library, words in self._scan.read(self._logs(), ended=ended).items():
            if set(words) <= set(known.get(library, ())):
                continue
            self._ctx.events.add(TransportEvent(library=library, uses=words))
            self._warn(library, words)

    def _logs(self) -> list[Path]:
        """Return the files in which the libraries can name their networks: the benchmark's output, and the
        logs of the first processes that mpirun started on this node."""
        rundir = self._ctx.rundir
        logs = process_logs(rundir.processes)[:_PROCESSES]
        return [rundir.kept_output, *(each.path for each in logs)]

    def _warn(self, library: str, words: list[str]) -> None:
        strategy = self._ctx.job.strategy
        sockets = [each for each in words if re.fullmatch(_SOCKETS, each)]
        if not strategy.efa or strategy.nodes == 1 or not sockets:
            return
        message = (
            f"EFA was requested, but {library} uses sockets ({', '.join(sockets)}), which are many times slower: "
            "the machine image lacks EFA's software or the library's EFA plugin; see EFA in docs/many-nodes.md."
        )
        self._ctx.warn_once(message)


def transports_in(ctx: RunContext) -> Mapping[str, list[str]]:
    """Return the networks in the run's events, by library. If a library has several events, its last event is
    used."""
    return {each.library: each.uses for each in ctx.events.of(TransportEvent)}
