"""How fast numbers come out of a log: our extractor, a plain loop over lines and patterns, mtail and ripgrep, in one run.

    python benchmarks/extraction.py [--lines 3000000] [--rounds 3] [--patterns 10 100 1000] [--dense-patterns 10 1000]

Lines are of 86 bytes. In the sparse log one in twenty matches three of the patterns, in the dense one each does. The bare
loop goes line by line with the same automaton, makes the same checks and writes the same records; it keeps nothing for a
restart. ripgrep (`rg -ob`) only prints what matches, with its offset: a limit, not a peer. Each runs as a process of its
own, in turns, on one core. A rate is lines per second of its CPU time, start included: on a machine that does other things
as well, the clock on the wall would measure those. The table shows each way's best round: neighbours make a round slower,
never faster. The slow ones get fewer lines, so that they take seconds, not hours. On their lines the records of extractor
and bare loop are compared with the plain loop's one by one, and mtail's last values with them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

LINE = 86
MATCHING = ("train_loss", "accuracy", "throughput")
WORDS = (
    "step",
    "epoch",
    "worker",
    "batch",
    "data",
    "queue",
    "time",
    "loader",
    "node",
    "rank",
    "gpu",
    "cache",
    "flush",
)
SLOW_LINES = 5_000_000
"""Lines times patterns of the ways that search each line with each pattern."""
SPARSE = 0.05
"""The share of lines that match, in the sparse log."""
DENSE_PART = 3
"""The dense log has so many times fewer lines, and still more records."""
BLOCK = 128 * 1024
GUARDED = 256
"""Lines that are searched before the timer is set anew that bounds a search."""
ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Case:
    """One log and one set of patterns, in a folder."""

    folder: Path
    lines: int
    names: Sequence[str]

    @property
    def log(self) -> Path:
        return self.folder / "output.log"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patterns", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--dense-patterns", type=int, nargs="*", default=[10, 1000])
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, folder = arguments.child
        {"plain": run_plain, "bare": run_bare, "count": run_count}[way](Path(folder))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        print(
            "| log | patterns | way | lines | lines/s of CPU | × plain loop | × mtail |\n"
            "|---|---:|---|---:|---:|---:|---:|"
        )
        for kind, share, counts in (
            ("sparse", SPARSE, arguments.patterns),
            ("dense", 1.0, arguments.dense_patterns),
        ):
            log = Path(folder) / kind
            write_log(
                log, arguments.lines if kind == "sparse" else arguments.lines // DENSE_PART, share=share
            )
            cases = {
                count: compare(Path(folder) / f"{kind}-{count}", log, kind, count, rounds=arguments.rounds)
                for count in counts
            }
            compare_counts(kind, cases, rounds=arguments.rounds)
            for case in cases.values():
                shutil.rmtree(case.folder.parent)


def compare_counts(kind: str, cases: Mapping[int, Case], *, rounds: int) -> None:
    """Print at which part of the rate with the fewest patterns the extractor goes with more of them; these too in turns."""
    seconds: dict[int, list[float]] = {count: [] for count in cases}
    for _ in range(2 * rounds):
        for count, case in cases.items():
            clear(case)
            seconds[count].append(timed(extractor_command(case), case.folder / "answer"))
    first, *others = map(min, seconds.values())
    for count, best in zip(list(cases)[1:], others, strict=True):
        print(
            f"| {kind} | {count} | extractor, beside {next(iter(cases))} patterns | | {first / best:.2f} × | | |",
            flush=True,
        )


def compare(folder: Path, log: Path, kind: str, count: int, *, rounds: int) -> Case:
    """Print the table's rows for so many patterns; return the case of the whole log."""
    with log.open("rb") as file:
        lines = sum(1 for _ in file)
    names = [*MATCHING, *(f"metric_{number:04d}" for number in range(count - len(MATCHING)))]
    whole = make_case(folder / "whole", log, lines, names)
    part = make_case(folder / "part", log, min(lines, SLOW_LINES // count), names)
    ways = {
        "extractor": (whole, extractor_command(whole)),
        "plain loop": (part, [sys.executable, __file__, "--child", "plain", str(part.folder)]),
        "bare loop": (whole, [sys.executable, __file__, "--child", "bare", str(whole.folder)]),
        "count only, writes nothing": (
            whole,
            [sys.executable, __file__, "--child", "count", str(whole.folder)],
        ),
    }
    if shutil.which("mtail"):
        (part.folder / "metrics.mtail").write_text(mtail_program(names))
        ways["mtail"] = (part, mtail_command(part))
    if shutil.which("rg"):
        (whole.folder / "patterns").write_text("".join(pattern_of(name) + "\n" for name in names))
        arguments = ["--text", "--no-line-number", "--threads", "1", "-f", str(whole.folder / "patterns")]
        ways["rg -ob, writes no records"] = (whole, ["rg", "-ob", *arguments, str(whole.log)])
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (case, command) in ways.items():
            clear(case)
            seconds[way].append(timed(command, case.folder / "answer"))
    check_records(part)
    if "mtail" in ways:
        check_mtail(part)
    rates = {way: ways[way][0].lines / min(times) for way, times in seconds.items()}
    for way in sorted(rates, key=list(ways).index):
        ratio = f"{rates[way] / rates['mtail']:.1f}" if "mtail" in rates else "mtail is not installed"
        print(
            f"| {kind} | {count} | {way} | {ways[way][0].lines:,} | {rates[way]:,.0f} "
            f"| {rates[way] / rates['plain loop']:.1f} | {ratio} |",
            flush=True,
        )
    if "rg -ob, writes no records" not in rates:
        print(f"| {kind} | {count} | rg -ob | | ripgrep is not installed | | |", flush=True)
    return whole


def extractor_command(case: Case) -> list[str]:
    return [sys.executable, "-m", "bai_agent.run.extractor", str(case.folder)]


def write_log(path: Path, lines: int, *, share: float) -> None:
    """Write the log: always the same for the same number of lines."""
    chance = random.Random(1)
    block = []
    for number in range(min(lines, 100_000)):
        if chance.random() < share:
            text = " ".join(f"{name}={chance.random():.4f}" for name in MATCHING)
            text = f"epoch {number} {text}"
        else:
            text = " ".join(f"{chance.choice(WORDS)} {chance.randrange(1000)}" for _ in range(12))
        block.append(text[: LINE - 1].ljust(LINE - 1, "."))
    with path.open("w") as file:
        for start in range(0, lines, len(block)):
            file.write("\n".join(block[: lines - start]) + "\n")


def pattern_of(name: str) -> str:
    return rf"{name}=([-+]?\d*\.\d+|\d+)"


def make_case(folder: Path, log: Path, lines: int, names: Sequence[str]) -> Case:
    folder.mkdir(parents=True)
    case = Case(folder, lines, names)
    with log.open("rb") as source, case.log.open("wb") as target:
        target.writelines(islice(source, lines))
    tables = "".join(f"[[metrics]]\nname = '{name}'\npattern = '{pattern_of(name)}'\n" for name in names)
    (folder / "job.toml").write_text(
        'version = 1\n[job]\nid = "benchmark"\n[benchmark]\nargv = ["true"]\n'
        f"[host_metrics]\nenabled = false\n{tables}"
    )
    (folder / "exit.json").write_text("{}")
    return case


def clear(case: Case) -> None:
    for name in ("metrics.jsonl", "extractor.offset", "extracted.json", "bare.jsonl"):
        (case.folder / name).unlink(missing_ok=True)


def timed(command: Sequence[str], answer: Path) -> float:
    """Run `command`; return the CPU seconds that it took."""
    with answer.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL, env=one_core_environment())
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def one_core_environment() -> dict[str, str]:
    package = str(Path(__file__).resolve().parent.parent)
    return {**os.environ, "GOMAXPROCS": "1", "PYTHONPATH": package}


def run_plain(folder: Path) -> None:
    """Search each line with each pattern, and write the records that the extractor writes."""
    case = read_case(folder)
    patterns = [(name, re.compile(pattern_of(name).encode()).finditer) for name in case.names]
    seq = offset = 0
    with case.log.open("rb") as log, (folder / "plain.jsonl").open("w") as records:
        for ended in log:
            line = ended.rstrip(b"\n")
            if b"\x1b" in line:
                line = ANSI.sub(b"", line)
            for i, (name, search) in enumerate(patterns):
                for k, match in enumerate(search(line)):
                    record = {
                        "seq": seq,
                        "src": "log",
                        "off": offset,
                        "i": i,
                        "k": k,
                        "name": name,
                        "value": float(match[1]),
                        "units": "",
                        "timestamp": time.time_ns() // 1_000_000,
                    }
                    records.write(json.dumps(record) + "\n")
                    seq += 1
            offset += len(ended)


def run_bare(folder: Path) -> None:
    """Do line by line what the extractor does, with its automaton and its checks: nothing is kept for a restart."""
    import ahocorasick_rs

    from bai_agent.metrics.number import fast_number

    case = read_case(folder)
    patterns = [re.compile(pattern_of(name), re.ASCII).finditer for name in case.names]
    texts = [f"{name}=".encode() for name in case.names]
    scan = ahocorasick_rs.BytesAhoCorasick(texts).find_matches_as_indexes
    scan_blank = ahocorasick_rs.BytesAhoCorasick([b"\n\n"]).find_matches_as_indexes
    number = re.compile(fast_number("", open_end=True, with_units=False, decodes=False)).match
    counts = [0] * len(patterns)
    seq = offset = line_count = 0
    rest = b""
    with case.log.open("rb") as log, (folder / "bare.jsonl").open("w") as records:
        while block := log.read(BLOCK):
            data, newline, rest = (rest + block).rpartition(b"\n")
            data += newline
            if b"\r" in data or b"\x1b" in data or b"\x08" in data:
                raise SystemExit("the bare loop removes no escape sequences")
            now = time.time_ns() // 1_000_000
            lines: dict[int, set[int]] = {}
            for i, start, _ in scan(data, overlapping=True):
                lines.setdefault(data.rfind(b"\n", 0, start) + 1, set()).add(i)
            out = []
            for done, (start, found) in enumerate(lines.items()):
                if done % GUARDED == 0:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 1)
                line = data[start : data.find(b"\n", start)].decode("latin-1")
                for i in sorted(found):
                    for k, match in enumerate(patterns[i](line)):
                        begin, end = match.span(1)
                        value = number(line, begin)
                        if not value or value.end() != end:
                            raise SystemExit(f"the bare loop reads no such number: {line}")
                        out.append(
                            f'{{"seq":{seq},"src":"log","off":{offset + start},"i":{i},"k":{k},"name":"{case.names[i]}",'
                            f'"value":{value[0]},"units":"","timestamp":{now}}}\n'
                        )
                        seq += 1
                        counts[i] += 1
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            records.write("".join(out))
            offset += len(data)
            line_count += data.count(b"\n") - data.startswith(b"\n") - len(scan_blank(data, overlapping=True))
    print(line_count, counts)


def run_count(folder: Path) -> None:
    """Find the numbers as the extractor does, and only count them."""
    from bai_agent.job.descriptor_file import read_job
    from bai_agent.metrics.extract import Extraction
    from bai_agent.metrics.follow import Follower
    from bai_agent.metrics.patterns import compile_patterns

    job = read_job(folder / "job.toml")
    nobody = Nobody()
    extraction = Extraction(compile_patterns(job.metrics, fast=True), findings=nobody, guard=nobody)
    follower = Follower((folder / "output.log",))
    count = 0
    while True:
        new, blocks = follower.read()
        if not new:
            break
        for block in blocks:
            count += sum(map(len, extraction.find(block.data, block.offset)))
    print(count)


class Nobody:
    """Neither guards nor listens."""

    careful = False

    def lines(self) -> None: ...
    def search(self, index: int, offset: int) -> None: ...
    def rest(self) -> None: ...
    def resume(self) -> None: ...
    def not_a_number(self, index: int, text: str) -> None: ...
    def doubtful(self, *about: object) -> None: ...


def read_case(folder: Path) -> Case:
    names = re.findall(r"^name = '(.*)'$", (folder / "job.toml").read_text(), re.MULTILINE)
    return Case(folder, 0, names)


def mtail_program(names: Sequence[str]) -> str:
    rules = (f"/{name}=([-+]?\\d*\\.\\d+|\\d+)/ {{\n  {name} = float($1)\n}}\n" for name in names)
    return "".join(f"gauge {name}\n" for name in names) + "".join(rules)


def mtail_command(case: Case) -> list[str]:
    program = case.folder / "metrics.mtail"
    return ["mtail", "--one_shot", "--one_shot_format=json", "--progs", str(program), "--logs", str(case.log)]


def check_records(case: Case) -> None:
    """Compare the records that extractor and bare loop write of the part with the plain loop's, one by one."""
    clear(case)
    timed(extractor_command(case), case.folder / "answer.extractor")
    timed([sys.executable, __file__, "--child", "bare", str(case.folder)], case.folder / "answer.bare")
    keys = ("seq", "src", "off", "i", "k", "name", "value", "units")
    for name in ("metrics.jsonl", "bare.jsonl"):
        with (case.folder / name).open() as records, (case.folder / "plain.jsonl").open() as plain:
            for one, other in zip(records, plain, strict=True):
                left, right = json.loads(one), json.loads(other)
                if any(left[key] != right[key] for key in keys):
                    raise SystemExit(f"{name}: the records differ:\n{one}{other}")


def check_mtail(case: Case) -> None:
    """Compare the last values that mtail has found with the plain loop's."""
    last = {}
    with (case.folder / "plain.jsonl").open() as records:
        for line in records:
            record = json.loads(line)
            last[record["name"]] = record["value"]
    answer = json.loads((case.folder / "answer").read_text())
    for name, value in last.items():
        theirs = answer[name][0]["LabelValues"][0]["Value"]["Value"]
        if float(theirs) != value:
            raise SystemExit(f"mtail's last {name} is {theirs}, ours {value}")


if __name__ == "__main__":
    main()
