"""File names are bytes; in descriptors, JSON and addresses we write them as UTF-8."""

from __future__ import annotations

import locale
import os
import sys

_TERMINAL = "bai_terminal"
"""An option of ours for -X, which names the encoding that the terminal has all the same."""


def speak_utf8() -> None:
    """Restart this program in Python's UTF-8 mode if a locale such as de_DE.ISO-8859-1 would give names
    another encoding.

    A name that is not UTF-8 is kept by its bytes, as lone surrogates (PEP 383). The environment does not
    change: the benchmark uses it too.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    options = ["-X", "utf8", "-X", f"{_TERMINAL}={locale.nl_langinfo(locale.CODESET)}"]
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


def terminal_encoding() -> str | None:
    """Return the encoding of the locale if `speak_utf8` restarted us; else None."""
    found = sys._xoptions.get(_TERMINAL)
    return found if isinstance(found, str) else None
