"""A report as one HTML file that needs nothing else and lets nothing out.

All that others wrote (names, log lines, labels) is escaped, and the page's policy allows the styles and scripts of this very file by
their sums and nothing else: no request, no further script, no form leaves it, whatever a benchmark printed.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from executor.report.contents import Report
from executor.report.markup import escaped
from executor.report.plots import plot_data
from executor.report.sections import page_body

_ROOM = files("executor.report")
_STYLES = ("vendor/uplot/uPlot.min.css", "page/page.css")
_SCRIPTS = ("vendor/uplot/uPlot.iife.min.js", "page/page.js")
_LICENCE = "vendor/uplot/LICENSE"


def html_report(report: Report) -> str:
    """Return the whole page."""
    styles = [_file(name) for name in _STYLES]
    scripts = [_file(name) for name in _SCRIPTS]
    plots = plot_data(report)
    title = escaped(report.job.job.name or report.job.job.id)
    # A <style> or <script> is hashed as it stands between its tags.
    head = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(styles, scripts)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f'<meta name="generator" content="bai {escaped(report.version)}">',
        f"<title>{title} – benchmark report</title>",
        *(f"<style>{each}</style>" for each in styles),
        "</head>",
        "<body>",
    ]
    tail = [
        f'<script type="application/json" id="data">{script_json(plots.table)}</script>',
        f"<!-- uPlot:\n{_file(_LICENCE).strip()}\n-->",
        *(f"<script>{each}</script>" for each in scripts),
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join([*head, *page_body(report, plots), *tail])


def script_json(value: object) -> str:
    """Return a value as JSON that may stand in a <script>: nothing in it ends the element or opens a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode(errors="replace").decode()


def _policy(styles: list[str], scripts: list[str]) -> str:
    allowed = (
        "default-src 'none'",
        f"style-src {' '.join(map(_source, styles))}",
        f"script-src {' '.join(map(_source, scripts))}",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return "; ".join(allowed)


def _source(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (_ROOM / name).read_text(encoding="utf-8")
