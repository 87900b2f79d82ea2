"""Makes Python decode file names, which are bytes, as UTF-8, as in descriptors, JSON and addresses."""

from __future__ import annotations

import locale
import os
import sys

_TERMINAL = "bai_terminal"
"""Name of an additional option `-X` of Python, which passes the terminal's encoding to the restarted
program."""


def speak_utf8() -> None:
    """Restart this program in Python's UTF-8 mode if the locale would give file names another encoding.

    An example of such a locale is de_DE.ISO-8859-1. The bytes of a name that is not UTF-8 are preserved as
    lone surrogates (PEP 383). The environment variables stay unchanged, because the benchmark inherits them.
    """
    if sys.getfilesystemencoding() == "utf-8" or sys.flags.utf8_mode or not sys.executable:
        return
    options = ["-X", "utf8", "-X", f"{_TERMINAL}={locale.nl_langinfo(locale.CODESET)}"]
    os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted


def terminal_encoding() -> str | None:
    """Return the encoding of the locale if `speak_utf8` restarted this program, else None."""
    found = sys._xoptions.get(_TERMINAL)
    return found if isinstance(found, str) else None
