"""Speed of the extraction of numbers from a log: `bai`'s extractor, a plain loop over lines and patterns, mtail and ripgrep.

    python benchmarks/extraction.py [--rounds 3] [--only WORD…]

Lines are of 86 bytes. In the sparse log, one line in twenty matches three of the patterns. In the dense log, each line matches
three of the patterns. The logs of Hugging Face and Keras have eight values in each line. The plain loop searches each line with
each pattern. The bare loop processes one line at a time with the extractor's automaton. The bare loop makes the extractor's
checks and writes the extractor's records, but saves nothing for a restart. ripgrep (`rg -ob`) only prints matches and their
offsets, so ripgrep shows a limit and is not a peer. mtail writes no records. Each program runs as a separate process, in turns,
on one core. A rate is lines per second of the program's CPU time, including its start, because wall time would include other
programs on the machine. A figure is the ratio of two rates of the same round: the median over the rounds, with the least and the
greatest ratio. If the plain loop or mtail would take minutes, the plain loop and mtail get fewer lines. On these lines, the
records of the extractor and of the bare loop are compared one by one with the plain loop's records. The last values of mtail are
compared with the plain loop's last records. Some logs are smaller, and some are larger, than two limits in the code. The first
limit is the number of values that memory keeps for medians (`MOST_KEPT` of bai_agent/metrics/headlines.py). The second limit
concerns records that another process made, which are read at the end.
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
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from goals import print_figure

LINE = 86
MATCHING = ("train_loss", "accuracy", "throughput")
HUGGING_FACE = (
    *("loss", "grad_norm", "learning_rate", "rewards/chosen", "rewards/rejected", "rewards/accuracies"),
    *("rewards/margins", "epoch"),
)
KERAS = (
    *("accuracy", "loss", "precision", "recall"),
    *("val_accuracy", "val_loss", "val_precision", "val_recall"),
)
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
"""Maximum number of lines times patterns for the programs that search each line with each pattern."""
SPARSE = 0.05
"""The share of lines that match, in the sparse log."""
BLOCK = 128 * 1024
GUARDED = 256
"""Number of lines after which the timer that limits a search is set again."""
ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
PLAIN, MTAIL, BARE, COUNT, RG = "plain loop", "mtail", "bare loop", "only counting", "rg -ob"
SPARSE_GOALS = {PLAIN: "sparse-plain", MTAIL: "sparse-mtail"}
DENSE_GOALS = {PLAIN: "dense-plain"}
EIGHT_GOALS = {PLAIN: "wide-plain", MTAIL: "wide-mtail"}


@dataclass(frozen=True)
class Row:
    """A row of the table: a log, its patterns, and the goals."""

    log: str
    lines: int
    patterns: int = 10
    goals: Mapping[str, str] = field(default_factory=dict)
    """Goal for the ratio of the extractor's rate to another program's rate, by the other program."""
    headline: str = "last"
    restarted: bool = False
    """Whether another process made the first of the records."""
    limits: bool = False
    """Whether the programs that show limits (bare loop, counting, ripgrep) also run."""

    @property
    def names(self) -> Sequence[str]:
        if self.log in ("sparse", "dense"):
            others = (f"metric_{number:04d}" for number in range(self.patterns - len(MATCHING)))
            return [*MATCHING, *others]
        return HUGGING_FACE if self.log == "Hugging Face" else KERAS

    @property
    def title(self) -> str:
        more = f", {self.headline}s" if self.headline != "last" else ", restarted" if self.restarted else ""
        return f"{self.log}{more} | {self.lines:,} | {self.patterns:,}"


ROWS = (
    Row("sparse", 1_500_000, goals=SPARSE_GOALS),
    Row("sparse", 3_000_000, goals=SPARSE_GOALS, limits=True),
    Row("sparse", 3_000_000, goals=SPARSE_GOALS, restarted=True),
    Row("sparse", 3_000_000, 100),
    Row("sparse", 3_000_000, 1000),
    Row("dense", 80_000, goals=DENSE_GOALS),
    Row("dense", 300_000, goals=DENSE_GOALS),
    Row("dense", 1_000_000, goals=DENSE_GOALS, limits=True),
    Row("dense", 300_000, restarted=True),
    Row("dense", 600_000, goals=DENSE_GOALS, headline="median"),
    Row("dense", 1_400_000, goals=DENSE_GOALS, headline="median"),
    Row("dense", 3_400_000, goals=DENSE_GOALS, headline="median"),
    Row("dense", 1_000_000, 1000),
    Row("Hugging Face", 100_000, 8, goals=EIGHT_GOALS),
    Row("Hugging Face", 400_000, 8, goals=EIGHT_GOALS),
    Row("Keras", 100_000, 8, goals=EIGHT_GOALS),
    Row("Keras", 400_000, 8, goals=EIGHT_GOALS),
)


@dataclass(frozen=True)
class Case:
    """A folder with one log and one set of patterns."""

    folder: Path
    lines: int
    row: Row

    @property
    def log(self) -> Path:
        return self.folder / "output.log"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", metavar="WORD", help="rows with all of these words")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        way, folder = arguments.child
        {"plain": run_plain, "bare": run_bare, "count": run_count}[way](Path(folder))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"load {os.getloadavg()[0]:.1f}; {arguments.rounds} rounds")
    print("| log | lines | patterns | lines/s | figure | value |\n|---|---:|---:|---:|---|---|")
    found = []
    for row in ROWS:
        if all(word in row.title for word in arguments.only or ()):
            with tempfile.TemporaryDirectory() as folder:
                found.append((row, compare(Path(folder), row, rounds=arguments.rounds)))
    for row, ratios in found:
        case = row.title.replace(" | ", ", ") + " patterns"
        for way, goal in row.goals.items():
            if way in ratios:
                print_figure(goal, ratios[way], case=case)


def compare(folder: Path, row: Row, *, rounds: int) -> dict[str, list[float]]:
    """Print the table's lines for one row. Return the ratios of the extractor's rate to the rate of each other program."""
    whole = make_case(folder / "whole", row, row.lines)
    part = make_case(folder / "part", row, min(row.lines, SLOW_LINES // row.patterns))
    ways = {
        "extractor": (whole, extractor_command(whole)),
        PLAIN: (part, [sys.executable, __file__, "--child", "plain", str(part.folder)]),
    }
    if shutil.which("mtail"):
        (part.folder / "metrics.mtail").write_text(mtail_program(row))
        ways[MTAIL] = (part, mtail_command(part))
    if row.limits:
        ways |= {
            BARE: (whole, [sys.executable, __file__, "--child", "bare", str(whole.folder)]),
            COUNT: (whole, [sys.executable, __file__, "--child", "count", str(whole.folder)]),
        }
        if shutil.which("rg"):
            patterns = (pattern_of(row, name) + "\n" for name in row.names)
            (whole.folder / "patterns").write_text("".join(patterns))
            options = ["--text", "--no-line-number", "--threads", "1", "-f", str(whole.folder / "patterns")]
            ways[RG] = (whole, ["rg", "-ob", *options, str(whole.log)])
    if row.restarted:
        for case in (whole, part):
            keep_first_record(case)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, (case, command) in ways.items():
            clear(case)
            rates[way].append(case.lines / timed(command, case.folder / "answer"))
            if way == "extractor":
                check_headlines(case)
    check_records(part, bare=row.limits)
    if MTAIL in ways:
        check_mtail(part)
    ratios = {
        way: [ours / theirs for ours, theirs in zip(rates["extractor"], rates[way], strict=True)]
        for way in list(ways)[1:]
    }
    for way in [*ratios, *(way for way in row.goals if way not in ratios)]:
        every = ratios.get(way, [])
        value = f"{median(every):.2f} ({min(every):.2f} to {max(every):.2f})" if every else "not installed"
        print(f"| {row.title} | {median(rates['extractor']):,.0f} | × {way} | {value} |", flush=True)
    return ratios


def extractor_command(case: Case) -> list[str]:
    return [sys.executable, "-m", "bai_agent.run.extractor", str(case.folder)]


def write_log(path: Path, row: Row, lines: int) -> None:
    """Write the log: always the same for the same number of lines."""
    chance = random.Random(1)
    block = [line_of(row, number, chance) for number in range(min(lines, 100_000))]
    with path.open("w") as file:
        for start in range(0, lines, len(block)):
            file.write("\n".join(block[: lines - start]) + "\n")


def line_of(row: Row, number: int, chance: random.Random) -> str:
    if row.log == "Hugging Face":
        values = [chance.uniform(0.01, 9) for _ in row.names]
        values[2] /= 1e5
        return str({name: float(f"{value:.4g}") for name, value in zip(row.names, values, strict=True)})
    if row.log == "Keras":
        values = [chance.uniform(0.01, 1) for _ in row.names]
        means = " - ".join(f"{name}: {value:.4f}" for name, value in zip(row.names, values, strict=True))
        return f"1875/1875 - {chance.randint(2, 9)}s - {chance.randint(1, 5)}ms/step - {means}"
    if chance.random() < (SPARSE if row.log == "sparse" else 1):
        text = " ".join(f"{name}={chance.random():.4f}" for name in MATCHING)
        text = f"epoch {number} {text}"
    else:
        text = " ".join(f"{chance.choice(WORDS)} {chance.randrange(1000)}" for _ in range(12))
    return text[: LINE - 1].ljust(LINE - 1, ".")


def pattern_of(row: Row, name: str) -> str:
    if row.log == "Hugging Face":
        return rf"'{name}': ([-+\d.e]+)"
    return rf" - {name}: ([\d.]+)" if row.log == "Keras" else rf"{name}=([-+]?\d*\.\d+|\d+)"


def make_case(folder: Path, row: Row, lines: int) -> Case:
    folder.mkdir(parents=True)
    case = Case(folder, lines, row)
    write_log(case.log, row, lines)
    tables = "".join(
        f"[[metrics]]\nname = {json.dumps(name)}\npattern = {json.dumps(pattern_of(row, name))}\n"
        f"headline = '{row.headline}'\n"
        for name in row.names
    )
    (folder / "job.toml").write_text(
        'version = 1\n[job]\nid = "benchmark"\n[benchmark]\nargv = ["true"]\n'
        f"[host_metrics]\nenabled = false\n{tables}"
    )
    (folder / "patterns.json").write_text(json.dumps([(name, pattern_of(row, name)) for name in row.names]))
    (folder / "exit.json").write_text("{}")
    return case


def clear(case: Case) -> None:
    for name in ("metrics.jsonl", "extractor.offset", "extracted.json", "bare.jsonl"):
        (case.folder / name).unlink(missing_ok=True)
    if (first := case.folder / "first.jsonl").exists():
        shutil.copy(first, case.folder / "metrics.jsonl")


def keep_first_record(case: Case) -> None:
    """Save the first record, so that each later extractor finds a record of another process."""
    timed(extractor_command(case), case.folder / "answer")
    with (case.folder / "metrics.jsonl").open() as records:
        (case.folder / "first.jsonl").write_text(records.readline())


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
    # An agent that is installed has compiled modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "GOMAXPROCS": "1", "PYTHONPATH": package}


def run_plain(folder: Path) -> None:
    """Search each line with each pattern, and write the records that the extractor writes."""
    patterns = [(name, re.compile(pattern.encode()).finditer) for name, pattern in read_patterns(folder)]
    seq = offset = 0
    with (folder / "output.log").open("rb") as log, (folder / "plain.jsonl").open("w") as records:
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
    """Extract line by line, with the extractor's automaton and checks, but save nothing for a restart."""
    import ahocorasick_rs

    from bai_agent.metrics.search.number import fast_number

    names = [name for name, _ in read_patterns(folder)]
    patterns = [re.compile(pattern, re.ASCII).finditer for _, pattern in read_patterns(folder)]
    texts = [f"{name}=".encode() for name in names]
    scan = ahocorasick_rs.BytesAhoCorasick(texts).find_matches_as_indexes
    scan_blank = ahocorasick_rs.BytesAhoCorasick([b"\n\n"]).find_matches_as_indexes
    number = re.compile(fast_number("", open_end=True, with_units=False, decodes=False)).match
    counts = [0] * len(patterns)
    seq = offset = line_count = 0
    rest = b""
    with (folder / "output.log").open("rb") as log, (folder / "bare.jsonl").open("w") as records:
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
                            raise SystemExit(f"the bare loop cannot read a number of this line: {line}")
                        out.append(
                            f'{{"seq":{seq},"src":"log","off":{offset + start},"i":{i},"k":{k},"name":"{names[i]}",'
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
    from bai_agent.metrics.follow import Follower
    from bai_agent.metrics.search.extract import Extraction
    from bai_agent.metrics.search.patterns import compile_patterns

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


def read_patterns(folder: Path) -> list[tuple[str, str]]:
    """Return the metrics' names and patterns."""
    return [(name, pattern) for name, pattern in json.loads((folder / "patterns.json").read_text())]


def mtail_program(row: Row) -> str:
    names = {name: re.sub(r"\W", "_", name) for name in row.names}
    rules = (
        f"/{pattern_of(row, name).replace('/', chr(92) + '/')}/ {{\n  {spelled} = float($1)\n}}\n"
        for name, spelled in names.items()
    )
    return "".join(f"gauge {spelled}\n" for spelled in names.values()) + "".join(rules)


def mtail_command(case: Case) -> list[str]:
    program = case.folder / "metrics.mtail"
    return ["mtail", "--one_shot", "--one_shot_format=json", "--progs", str(program), "--logs", str(case.log)]


def check_headlines(case: Case) -> None:
    """Raise SystemExit if a metric that was found has no headline."""
    extracted = json.loads((case.folder / "extracted.json").read_text())
    found = {name for name, count in extracted["per_metric"].items() if count}
    if not found or extracted["headlines"].keys() != found:
        raise SystemExit(f"headlines are missing: {found - extracted['headlines'].keys()}")


def check_records(case: Case, *, bare: bool) -> None:
    """Compare the records of the extractor, and with `bare` of the bare loop, with the plain loop's records, one by one."""
    clear(case)
    timed(extractor_command(case), case.folder / "answer.extractor")
    if bare:
        timed([sys.executable, __file__, "--child", "bare", str(case.folder)], case.folder / "answer.bare")
    keys = ("seq", "src", "off", "i", "k", "name", "value", "units")
    for name in ("metrics.jsonl", "bare.jsonl") if bare else ("metrics.jsonl",):
        with (case.folder / name).open() as records, (case.folder / "plain.jsonl").open() as plain:
            for one, other in zip(records, plain, strict=True):
                left, right = json.loads(one), json.loads(other)
                if any(left[key] != right[key] for key in keys):
                    raise SystemExit(f"{name}: the records differ:\n{one}{other}")


def check_mtail(case: Case) -> None:
    """Compare mtail's last value of each metric with the plain loop's last record of the metric."""
    last = {}
    with (case.folder / "plain.jsonl").open() as records:
        for line in records:
            record = json.loads(line)
            last[record["name"]] = record["value"]
    answer = json.loads((case.folder / "answer").read_text())
    for name, value in last.items():
        theirs = answer[re.sub(r"\W", "_", name)][0]["LabelValues"][0]["Value"]["Value"]
        if float(theirs) != value:
            raise SystemExit(f"mtail's last {name} is {theirs}, ours {value}")


if __name__ == "__main__":
    main()
