"""Reads the words of a PDF with their places, and the places of a colour, by poppler's programs."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_XHTML = "{http://www.w3.org/1999/xhtml}"
_PICTURE = re.compile(rb"P6\n(\d+) (\d+)\n255\n")


@dataclass(frozen=True)
class Word:
    """A word with its place in points, from the left edge of the page."""

    text: str
    left: float
    right: float


@dataclass(frozen=True)
class PrintedPage:
    width: float
    """Points."""
    height: float
    words: list[Word]
    """Words in the order in which they are drawn."""


def printed_pages(pdf: Path) -> list[PrintedPage]:
    found = ElementTree.fromstring(_poppler("pdftotext", "-raw", "-bbox", pdf, "-"))
    return [
        PrintedPage(
            float(page.attrib["width"]),
            float(page.attrib["height"]),
            [
                Word(each.text or "", float(each.attrib["xMin"]), float(each.attrib["xMax"]))
                for each in page.iter(f"{_XHTML}word")
            ],
        )
        for page in found.iter(f"{_XHTML}page")
    ]


def places_of_colour(pdf: Path, colour: bytes) -> list[int]:
    """Return the distance (points) from the page's left edge of each dot of exactly this colour (RGB)."""
    content = _poppler("pdftoppm", "-r", "72", "-aaVector", "no", pdf)
    found: list[int] = []
    start = 0
    while head := _PICTURE.match(content, start):
        width, height = int(head[1]), int(head[2])
        picture = content[head.end() : head.end() + width * height * 3]
        start = head.end() + len(picture)
        found += [at // 3 % width for at in range(0, len(picture), 3) if picture[at : at + 3] == colour]
    return found


def _poppler(program: str, *arguments: str | Path) -> bytes:
    return subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE, timeout=60).stdout
