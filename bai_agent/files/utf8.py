"""Names of files are bytes, and UTF-8 wherever we write them down: in descriptors, JSON and addresses."""

from __future__ import annotations

import locale
import os
import sys

_TERMINAL = "bai_terminal"
"""An option of ours for -X, which names the encoding that the terminal has all the same."""


def speak_utf8() -> None:
    """Start this program again in Python's UTF-8 mode where a locale such as de_DE.ISO-8859-1 would give names another encoding.

    A name that is not UTF-8 is kept by its bytes, as lone surrogates (PEP 383). The environment stays as it is: it is the
    benchmark's as well.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    options = ["-X", "utf8", "-X", f"{_TERMINAL}={locale.nl_langinfo(locale.CODESET)}"]
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


def terminal_encoding() -> str | None:
    """Return the encoding of the locale where `speak_utf8` started us again; else None."""
    found = sys._xoptions.get(_TERMINAL)
    return found if isinstance(found, str) else None
