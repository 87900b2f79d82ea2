"""The extractor in a job with `[repeat]`: each line gets its run, even if the extractor is killed anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import tomli_w
from extraction_runs import (
    EXITED,
    entries,
    extract,
    extract_after_any_prefix,
    extract_until_killed,
    make_run,
    records,
)
from hypothesis import given
from hypothesis import strategies as st

from bai_agent.job.run_directory import RunDir, boot_id
from bai_agent.metrics import follow

PATTERN = r"v=(\d+)"


@dataclass(frozen=True)
class Run:
    """What a run prints and emits, and what is printed between its end and the next one."""

    printed: bytes
    emitted: bytes = b""
    after: bytes = b"\n[bai] v=999\n"
    warmup: bool = False


def write_runs(
    rundir: RunDir, runs: Sequence[Run], *, ended: int | None = None, before: bytes = b"v=998\n"
) -> None:
    """Write the files of a series; of the runs, the first `ended` have ended (None: all)."""
    output, emitted, lines = before, b"", []
    repeat = 0
    for number, run in enumerate(runs):
        place: dict[str, Any] = {"run": number, "repeat": None if run.warmup else repeat}
        repeat += not run.warmup
        began = {"event": "began", **place, "output_bytes": len(output), "emit_bytes": len(emitted)}
        lines.append({**began, "pid": 2**22 + 1, "start": 1, "boot_id": boot_id(), "time": 5})
        output += run.printed
        emitted += run.emitted
        ends = {"output_bytes": len(output), "emit_bytes": len(emitted), "time": 6}
        if ended is None or number < ended:
            lines.append({"event": "ended", **place, **EXITED, **ends})
            output += run.after
    rundir.output.write_bytes(output)
    rundir.emit.write_bytes(emitted)
    rundir.repeats.write_text("".join(json.dumps(each) + "\n" for each in lines))


def series(
    folder: Path,
    runs: Sequence[Run] = (),
    *,
    repaint: str = "all",
    sections: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> RunDir:
    """Make the run directory of a job with `[repeat]`."""
    rundir = make_run(folder, [("v", PATTERN)], exited=False, repaint=repaint, **sections)
    rundir.job.write_text(rundir.job.read_text() + tomli_w.dumps({"repeat": {"runs": 100}}))
    write_runs(rundir, runs, **more)
    return rundir


def found(rundir: RunDir, *, src: str = "log") -> list[tuple[int, float]]:
    return [(each["repeat"], each["value"]) for each in records(rundir) if each["src"] == src]


def test_only_output_of_runs_is_recorded_with_the_number_of_the_run(tmp_path: Path) -> None:
    runs = [
        Run(b"v=1\n", warmup=True, emitted=b'{"e": 9}\n'),
        Run(b"v=10\nv=11", emitted=b'{"e": 1}'),
        Run(b""),
        Run(b"v=20\n", emitted=b'{"e": 2}\n', after=b""),
    ]
    rundir = series(tmp_path, runs)
    rundir.exit.write_text(json.dumps(EXITED))

    extract(rundir)

    assert found(rundir) == [(0, 10), (0, 11), (2, 20)]
    assert found(rundir, src="emit") == [(0, 1), (2, 2)]
    facts = [each for each in records(rundir) if each["name"] == "bai_run_wall_seconds"]
    assert [(each["repeat"], each["value"]) for each in facts] == [(0, 2.5), (1, 2.5), (2, 2.5)]


def test_an_open_section_is_closed_at_the_end_of_a_run(tmp_path: Path) -> None:
    printed = [b"v=1\nbegin\nv=2\n", b"v=3\nbegin\nv=4\nend\nv=5\n", b"v=6\nbegin\nv=7"]
    runs = [Run(each, warmup=number == 0) for number, each in enumerate([b"begin\n", *printed])]
    rundir = series(tmp_path, runs, ended=2, sections={"after": "begin", "until": "end"})
    extract_until_killed(rundir, rounds=3)
    write_runs(rundir, runs)
    rundir.exit.write_text(json.dumps(EXITED))

    extract(rundir)

    assert found(rundir) == [(0, 2), (1, 4), (2, 7)]


def test_a_run_without_a_recorded_end_keeps_all_later_output(tmp_path: Path) -> None:
    rundir = series(tmp_path, [Run(b"v=1\n"), Run(b"v=2\nv=3")], ended=1)
    rundir.exit.write_text(json.dumps({"lost": True}))

    extract(rundir)

    assert found(rundir) == [(0, 1), (1, 2), (1, 3)]
    assert {each["repeat"] for each in records(rundir) if each["src"] == "run"} == {0}


def test_a_dead_runs_output_is_not_read_before_its_end_is_known(tmp_path: Path) -> None:
    """What stands there may have been printed by processes that it left behind."""
    rundir = series(tmp_path, [Run(b"v=1\n"), Run(b"v=2\n")], ended=1)

    extract_until_killed(rundir, rounds=3)
    assert found(rundir) == [(0, 1)]

    write_runs(rundir, [Run(b"v=1\n"), Run(b"v=2\n", after=b"v=66\n")])
    rundir.exit.write_text(json.dumps(EXITED))
    extract(rundir)
    assert found(rundir) == [(0, 1), (1, 2)]


def test_resource_records_of_a_run_follow_its_other_records(tmp_path: Path) -> None:
    rundir = series(tmp_path, [Run(b"v=1\nv=2", emitted=b'{"e": 1}'), Run(b"v=3\n", emitted=b'{"e": 2}')])
    rundir.exit.write_text(json.dumps(EXITED))

    extract(rundir)

    every = records(rundir)
    for run in (0, 1):
        first = next(i for i, each in enumerate(every) if each["src"] == "run" and each["repeat"] == run)
        assert all(each["repeat"] > run or each["src"] == "run" for each in every[first:])


def test_a_truncated_output_stays_with_its_run(tmp_path: Path) -> None:
    rundir = series(tmp_path, [Run(b"v=1\n" * 50), Run(b"v=2\n" * 50)])
    extract_until_killed(rundir, rounds=4)

    # The third run truncates the file that the first two have written to.
    lines = rundir.repeats.read_text()
    begins = rundir.output.stat().st_size
    rundir.output.write_bytes(b"v=3\nv=4\n[bai] v=999\n")
    began = {"event": "began", "run": 2, "repeat": 2, "output_bytes": begins, "emit_bytes": 0}
    began |= {"pid": 2**22 + 1, "start": 1, "boot_id": boot_id(), "time": 5}
    ended = {"event": "ended", "run": 2, "repeat": 2, **EXITED, "output_bytes": 8, "emit_bytes": 0, "time": 6}
    rundir.repeats.write_text(f"{lines}{json.dumps(began)}\n{json.dumps(ended)}\n")
    rundir.exit.write_text(json.dumps(EXITED))
    extract(rundir)

    assert found(rundir)[-2:] == [(2, 3), (2, 4)]
    assert len(found(rundir)) == 102


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_an_extractor_killed_between_any_two_bytes_changes_no_record(
    tmp_path: Path, *, with_checkpoint: bool
) -> None:
    runs = [Run(b"v=%d\nv=%d" % (n, n + 100), emitted=b'{"e": %d}' % n) for n in range(4)]
    rundir = series(tmp_path, runs)
    rundir.exit.write_text(json.dumps(EXITED))
    extract(rundir)
    expected, whole = entries(rundir), [found(rundir), found(rundir, src="emit")]

    for _ in extract_after_any_prefix(rundir, with_checkpoint=with_checkpoint, step=61):
        assert entries(rundir) == expected
        assert [found(rundir), found(rundir, src="emit")] == whole


_PIECES = st.lists(st.sampled_from([b"v=1", b"v=23", b"\n", b"\r", b"x", b" "]), max_size=12).map(b"".join)


@given(
    printed=st.lists(st.tuples(_PIECES, st.booleans()), min_size=1, max_size=6),
    after=st.sampled_from([b"", b"\n", b"v=999", b"\n[bai] v=999\n"]),
    chunk=st.integers(1, 9),
    repaint=st.sampled_from(["all", "last"]),
    kills=st.integers(0, 3),
)
def test_no_line_spans_two_runs(
    tmp_path_factory: pytest.TempPathFactory,
    printed: list[tuple[bytes, bool]],
    after: bytes,
    chunk: int,
    repaint: str,
    kills: int,
) -> None:
    runs = [Run(text, after=after, warmup=warmup) for text, warmup in printed]
    rundir = series(tmp_path_factory.mktemp("run"), runs, repaint=repaint)
    with patch.object(follow.Follower.__init__, "__kwdefaults__", {**_DEFAULTS, "chunk": chunk}):
        for _ in range(kills):
            extract_until_killed(rundir)
        rundir.exit.write_text(json.dumps(EXITED))
        extract(rundir)

    alone: list[tuple[int, float]] = []
    for number, (text, _) in enumerate(each for each in printed if not each[1]):
        one = make_run(tmp_path_factory.mktemp("one"), [("v", PATTERN)], output=text, repaint=repaint)
        extract(one)
        alone += [(number, each["value"]) for each in records(one) if each["src"] == "log"]
    assert found(rundir) == alone


_DEFAULTS = dict(follow.Follower.__init__.__kwdefaults__ or {})
