"""Writes documents as self-contained HTML files that make no requests.

All text from other programs (names, log lines, labels) is escaped. The page's content security policy allows
only the page's own styles and scripts, by their checksums. Whatever a benchmark printed, the page can neither
send requests or forms nor run other scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bai_agent import __version__
from executor.documents.document import Block
from executor.documents.text import as_utf8, plain_text
from executor.quantities import clock
from executor.report.contents import Report
from executor.report.job_document import job_body, job_head
from executor.report.plots import plot_data

_ROOM = files("executor.report")
_STYLES = ("vendor/uplot/uPlot.min.css", "page/page.css")
_SCRIPTS = ("vendor/uplot/uPlot.iife.min.js", "page/page.js")
_ROWS = 64
"""Maximum number of series in the table of a metric. JSON and CSV contain all series."""
_LICENCE = "vendor/uplot/LICENSE"


def html_page(title: str, blocks: Iterable[Block]) -> str:
    """Return a document as a page without scripts."""
    return _page("page.html", title=title, blocks=blocks, styles=[_file("page/page.css")])


def html_report(report: Report) -> str:
    """Return the page of a report."""
    plots = plot_data(report)
    return _page(
        "report.html",
        title=report.job.job.name or report.job.job.id,
        head=job_head(report),
        blocks=job_body(report, plots),
        created=clock(report.created),
        styles=[_file(name) for name in _STYLES],
        scripts=[_file(name) for name in _SCRIPTS],
        data=script_json(plots.table),
        licence=_file(_LICENCE),
    )


def script_json(value: object) -> str:
    """Return a value as JSON for a <script> element. No part of the JSON can end the element or open a
    comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return as_utf8(text)


def _page(template: str, *, styles: Sequence[str], scripts: Sequence[str] = (), **values: Any) -> str:
    # Browsers hash exactly the text between the tags of a <style> or <script>.
    allowed = (
        "default-src 'none'",
        f"style-src {' '.join(map(_source, styles))}",
        "script-src " + (" ".join(map(_source, scripts)) or "'none'"),
        "base-uri 'none'",
        "form-action 'none'",
    )
    return (
        _environment()
        .get_template(template)
        .render(policy="; ".join(allowed), styles=styles, scripts=scripts, version=__version__, **values)
    )


@cache
def _environment() -> Environment:
    """Return the environment of the HTML templates. The environment converts each value to plain text, and
    escapes that text unless the value is markup made by this module."""
    environment = Environment(
        loader=PackageLoader("executor.report", "page"),
        autoescape=True,
        finalize=lambda value: _plain(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"newline": Markup("\n"), "limit": _ROWS}
    return environment


def _plain(text: str) -> str:
    """Return `text` of any content as one line, without characters that hide text or change its direction."""
    return as_utf8(plain_text(text))


def _source(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (_ROOM / name).read_text(encoding="utf-8")
