"""The options and the signal by which the agent controls the extractor's process."""

from __future__ import annotations

import signal

CAREFUL = "--careful"
BLAME = "--blame"
SECRETS = "--secrets"
NO_QUOTES = "--no-quotes"
LEAVE_REST = signal.SIGUSR1
"""Not SIGTERM, which a machine that shuts down sends to everybody: the benchmark may still print then."""
