"""Downloads or copies a job's data and scripts to this machine."""

from bai_agent.errors import NoSpaceError, PullStopped
from bai_agent.pull.progress import PullProgress
from bai_agent.pull.sources import pull

__all__ = ["NoSpaceError", "PullProgress", "PullStopped", "pull"]
