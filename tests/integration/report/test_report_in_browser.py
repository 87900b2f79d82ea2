"""Reports of real runs, opened in a browser: what is drawn, what the mouse finds, and that nothing leaves the page."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, open_browser
from handmade_job import START, HandmadeJob
from local_cli import LocalCli, local_cli
from printed_pages import places_of_colour, printed_pages
from stand_in_torchrun import put_torchrun

_CODE = """
import os, time
print("warm", flush=True)
for step in range(160):
    print(f"step {step} loss {2.5 - step / 80 + (step % 7) / 40:.4f} rate {900 + step % 13} x", flush=True)
    time.sleep(0.005)
"""
_METRICS = """
[[output.metrics]]
name = "rate"
units = "rows/s"
pattern = 'step (?P<step>\\d+) .*rate (\\d+)'
better = "higher"
warmup = 20
"""
_CHARTS = "[...document.querySelectorAll('.chart')]"
_HOSTILE = "</script></style><img src=http://127.0.0.1:9/ onerror=window.hacked=1>\u202e\x1b]0;gone\x07"
_COLOURED = """(() => {
  const canvas = document.querySelector('#chart-%d canvas'), hex = getComputedStyle(document.documentElement).getPropertyValue('--s%d').trim();
  const wanted = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const copy = Object.assign(document.createElement('canvas'), {width: canvas.width, height: canvas.height}).getContext('2d', {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0;
  for (let i = 0; i < pixels.length; i += 4) {
    if (pixels[i + 3] > 200 && wanted.every((value, at) => Math.abs(pixels[i + at] - value) < 24)) found += 1;
  }
  return found;
})()"""
"""How many pixels of a plot have the colour of one of its series; of an empty canvas, none."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> LocalCli:
    return local_cli(tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def reports(cli: LocalCli) -> dict[str, Path]:
    """Reports of a run on one node, of one on two nodes, and of a job of three runs."""
    started = {
        "single": _start(cli, "single", "single_node"),
        "two": _start(cli, "two", "torchrun"),
        "repeated": _start(cli, "repeated", "single_node", more="[repeat]\nruns = 3\n"),
    }
    found = {}
    for name, process in started.items():
        assert process.wait(120) == 0
        found[name] = _report(cli, name)
    return found


def _start(cli: LocalCli, name: str, strategy: str, *, more: str = "") -> subprocess.Popen[str]:
    metrics = _METRICS + (
        "[hardware.distributed]\nnum_instances = 2\nprocesses_per_instance = '1'"
        if strategy == "torchrun"
        else ""
    )
    path = cli.descriptor(_CODE, strategy=strategy, more=metrics)
    text = (
        path.read_text()
        .replace("loss=(\\S+)", r"step (?P<step>\d+) loss (\S+)")
        .replace("enabled = false", 'interval = "200ms"')
    )
    named = path.rename(path.with_name(f"{name}.toml"))
    named.write_text(text + more)
    paths = f"{put_torchrun(cli.folder)}:" if strategy == "torchrun" else ""
    return cli.start(
        "run",
        named,
        "--job-id",
        name,
        env={"PATH": paths + cli.environment["PATH"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _report(cli: LocalCli, job_id: str) -> Path:
    path = cli.folder / f"{job_id}.html"
    answer = cli.bai("report", job_id, "-o", path)
    assert (answer.code, answer.stderr) == (0, "")
    return path


def _open(browser: Browser, path: Path, **options: int | bool) -> Page:
    page = browser.page(path, **options)  # type: ignore[arg-type]
    page.await_true("!!document.querySelector('#chart-0 canvas')")
    return page


def _centre(page: Page, number: int) -> tuple[float, float]:
    page.ask(
        f"document.getElementById('chart-{number}').scrollIntoView({{block: 'center', behavior: 'instant'}})"
    )
    page.await_true(f"!!document.querySelector('#chart-{number} .u-over')")
    x, y = page.ask(
        f"(() => {{ const r = document.querySelector('#chart-{number} .u-over').getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    return x, y


def _legend(page: Page, number: int) -> list[str]:
    found: list[str] = page.ask(
        f"[...document.querySelectorAll('#chart-{number} .u-value')].map((each) => each.textContent)"
    )
    return found


@pytest.mark.parametrize(("name", "lines"), [("single", 1), ("two", 2), ("repeated", 3)])
def test_every_series_is_drawn_without_an_error_in_the_console(
    browser: Browser, reports: dict[str, Path], name: str, lines: int
) -> None:
    page = _open(browser, reports[name])

    for index in range(lines):
        assert page.ask(_COLOURED % (0, index)) > 60
    assert page.ask(_COLOURED % (0, 6)) < 60, "the colour of a series that there is not"
    count = page.ask(f"{_CHARTS}.length")
    for number in range(count):
        if page.ask(f"!!document.getElementById('chart-{number}').closest('details')"):
            continue
        _centre(page, number)
    assert page.complaints == []
    assert page.requests == [reports[name].as_uri()]


def test_the_cursor_shows_values_of_the_same_time_in_all_plots(
    browser: Browser, reports: dict[str, Path]
) -> None:
    page = _open(browser, reports["single"], height=1600)
    host = next(i for i in range(20) if page.ask(f"!!document.getElementById('chart-{i}').closest('.host')"))
    _centre(page, host)
    page.move_mouse(*_centre(page, 0))

    page.await_true("document.querySelector('#chart-0 .u-value').textContent !== '–'")
    moment, loss = _legend(page, 0)
    assert re.fullmatch(r"[0-9.]+ s", moment)
    assert re.fullmatch(r"[0-9.]+ nats", loss)
    other = _legend(page, host)[0]
    assert abs(float(moment.split()[0]) - float(other.split()[0])) < 0.5


def test_a_part_of_a_plot_can_be_zoomed_in_and_out(browser: Browser, reports: dict[str, Path]) -> None:
    page = _open(browser, reports["single"])
    x, y = _centre(page, 0)
    before = page.ask("document.querySelector('#chart-0 canvas').toDataURL()")
    assert page.ask("document.getElementById('reset').disabled")

    page.drag((x, y), (x + 120, y))
    page.await_true("!document.getElementById('reset').disabled")
    assert page.ask("document.querySelector('#chart-0 canvas').toDataURL()") != before
    page.ask("document.getElementById('reset').click()")
    page.await_true("document.getElementById('reset').disabled")
    page.ask("document.querySelector('[data-mode=step]').click()")
    page.move_mouse(x, y - 1)
    page.await_true("document.querySelector('#chart-0 .u-label').textContent.startsWith('step')")
    assert abs(float(_legend(page, 0)[0]) - 80) < 8


def test_arrow_keys_announce_values_to_screen_readers(browser: Browser, reports: dict[str, Path]) -> None:
    page = _open(browser, reports["two"])
    page.ask("document.getElementById('chart-0').focus()")

    page.press("ArrowRight")

    page.await_true("document.getElementById('spoken').textContent !== ''")
    assert re.search(r"node [01] [0-9.]+ nats", page.ask("document.getElementById('spoken').textContent"))


def test_repeated_runs_can_be_overlaid_in_a_plot(browser: Browser, cli: LocalCli) -> None:
    job = HandmadeJob(cli.store, "in-turns")
    for repeat in range(3):
        for each in range(11):
            job.record_of("loss", repeat + each / 10, repeat=repeat, time=START + 2000 * repeat + 100 * each)
    runs = [{"repeat": each, "outcome": "succeeded", "started": START + 2000 * each} for each in range(3)]
    job.ends(repeats=[{**each, "wall_seconds": 1.0} for each in runs])
    page = _open(browser, _report(cli, "in-turns"))
    assert page.ask("document.body.innerText.includes('3 runs of the benchmark')")

    page.ask("document.querySelector('[data-mode=aligned]').click()")
    page.move_mouse(*_centre(page, 0))
    page.await_true("document.querySelector('#chart-0 .u-value').textContent !== '–'")

    # The middle of each run, and no longer of all three.
    assert _legend(page, 0) == ["0.5 s", "0.5", "1.5", "2.5"]


@pytest.mark.parametrize("name", ["single", "two", "repeated"])
@pytest.mark.parametrize("scripts", [True, False])
def test_a_narrow_screen_needs_no_sideways_scrolling(
    browser: Browser, reports: dict[str, Path], name: str, scripts: bool
) -> None:
    page = browser.page(reports[name], width=400, height=800, scripts=scripts)
    if scripts:
        _centre(page, 0)
    for each in range(2):
        page.ask(
            f"document.querySelectorAll('details').forEach((one) => {{ one.open = {'true' if each else 'false'}; }})"
        )
        assert page.ask("document.documentElement.scrollWidth") <= 400
        assert page.ask(
            "[...document.querySelectorAll('table, pre, svg, dl')].every((e) => e.getBoundingClientRect().right <= 400)"
        )


def test_statistics_are_shown_without_javascript(browser: Browser, reports: dict[str, Path]) -> None:
    page = browser.page(reports["single"], scripts=False)

    text = page.ask("document.body.innerText")
    assert "The plots need JavaScript; the figures below do not." in text
    assert "The benchmark finished successfully" in text
    assert "(20 of 160 values)" in text, "what is warm-up is said"
    assert page.ask(
        "[...document.querySelectorAll('.measured td')].some((each) => each.dataset.name === 'median' && each.textContent !== '')"
    )
    assert not page.ask("[...document.querySelectorAll('.chart')].some((each) => each.offsetParent)")


def test_dark_mode_has_its_own_colours(browser: Browser, reports: dict[str, Path]) -> None:
    light, dark = (_open(browser, reports["single"], dark=dark) for dark in (False, True))

    paper = "getComputedStyle(document.body).backgroundColor"
    assert (light.ask(paper), dark.ask(paper)) == ("rgb(255, 255, 255)", "rgb(16, 20, 24)")
    assert dark.ask(_COLOURED % (0, 0)) > 60


@pytest.mark.parametrize(
    ("name", "width", "dark", "last"), [("two", 1200, False, "d55e00"), ("repeated", 400, True, "009e73")]
)
def test_the_printed_page_has_the_same_content(
    browser: Browser, reports: dict[str, Path], tmp_path: Path, name: str, width: int, dark: bool, last: str
) -> None:
    page = browser.page(reports[name], width=width, dark=dark)
    # Figures of a longer job, which need more room than ours.
    page.ask(
        "document.querySelectorAll('td').forEach((e) => { if (/^[0-9.]+ s$/.test(e.textContent)) e.textContent = '888.88 s'; })"
    )
    _centre(page, 0)
    plot = "document.querySelector('#chart-0 canvas').clientWidth"
    on_screen = page.ask(plot)
    texts = page.ask(
        "[...document.querySelectorAll('h1, h2, h3, .outcome, dd, th, td')].filter((e) => e.checkVisibility() && !e.closest('.chart')).map((e) => e.textContent)"
    )
    heading = page.ask(
        "(() => { const range = document.createRange(); range.selectNodeContents(document.querySelector('#timeline')); return [range.toString(), range.getBoundingClientRect().width]; })()"
    )

    page.print_to(tmp_path / "report.pdf")

    pages = printed_pages(tmp_path / "report.pdf")
    assert {(round(each.width), round(each.height)) for each in pages} == {(596, 842)}
    words = [word for each in pages for word in each.words]
    left, right = 28, 596 - 28
    assert [each for each in words if each.left < left - 1 or each.right > right + 1] == []
    written = "".join(word.text for word in words)
    assert [text for text in texts if "".join(text.split()) not in written] == []
    # In its own size: where anything is wider than the paper, a browser prints all of the page smaller.
    [width_of_heading] = [each.right - each.left for each in words if each.text == heading[0]]
    assert width_of_heading == pytest.approx(heading[1] * 0.75, rel=0.05)
    # The last series of a plot has a colour that nothing else on the page has, and reaches to the plot's end.
    drawn = places_of_colour(tmp_path / "report.pdf", bytes.fromhex(last))
    assert len(drawn) > 200
    assert (left <= min(drawn), 450 < max(drawn) <= right) == (True, True)
    page.await_true(f"{plot} === {on_screen}")
    assert page.complaints == []


def test_hostile_text_stays_text_and_the_page_makes_no_request(browser: Browser, cli: LocalCli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        hostile = _HOSTILE.replace("http://127.0.0.1:9/", address)
        job = HandmadeJob(cli.store, "hostile", name=hostile, labels={"team": hostile})
        job.prints(f"{hostile}\n<svg onload=window.hacked=2>\n")
        job.record_of(hostile, 1.5, units=hostile, labels={"kind": hostile})
        job.record_of(hostile, 2.5, units=hostile, labels={"kind": "other"})
        job.record_of("loss", 2.5, units=hostile)
        job.phases("prepare", "run")
        job.ends("failed", 1, sentence=hostile, warnings=[hostile], last_lines=[hostile])
        page = _open(browser, _report(cli, "hostile"))

        assert page.ask("document.body.innerText").count("<img src=http") >= 6
        _centre(page, 1)
        assert page.ask("document.querySelector('#chart-1 .u-legend').textContent").count("<img") == 1
        assert (
            page.ask(
                "document.images.length + document.querySelectorAll('[onerror], [onload], a, iframe, link').length"
            )
            == 0
        )
        assert not any(
            each in page.ask("document.documentElement.outerHTML") for each in ("\u202e", "\x1b", "\x07")
        )
        # Even a script that got in could ask nobody.
        for attempt in (
            f"fetch('{address}').then(() => 1, () => 0)",
            f"new Promise((done) => {{ const i = new Image(); i.onload = () => done(1); i.onerror = () => done(0); i.src = '{address}'; }})",
            "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 3'; document.body.append(s); return 0; })()",
        ):
            assert page.ask(attempt) == 0
        assert page.ask("window.hacked === undefined")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
