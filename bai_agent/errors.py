"""The tree of errors that a person reads. Every message says what is wrong, where, and what to do."""

from __future__ import annotations


class BaiError(Exception):
    """Something that we foresee and can say in a sentence; its text is for the user as it stands."""


class DescriptorError(BaiError):
    """A descriptor is wrong: the message names file, table and key."""


class BusyError(BaiError):
    """Another live process of ours holds this run directory."""


class StoreError(BaiError):
    """The job store cannot be read or written."""


class PullError(BaiError):
    """A source cannot be pulled: the message names the source."""
