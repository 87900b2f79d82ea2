"""The user's side: what to run and where; plan, launch, watch, cancel, report."""

import bai_agent  # noqa: F401 - before anything else: ends with a sentence on a system that is not supported
