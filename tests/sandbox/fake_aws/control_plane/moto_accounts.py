"""Accounts of moto that leave no memory behind."""

from __future__ import annotations

from typing import Any

from moto.core.base_backend import BackendDict
from moto.core.common_models import BaseModel
from moto.s3.models import s3_backends


def untrack_models() -> None:
    """Have moto's classes keep no list of their objects, which would grow as long as this process lives.

    moto shows these lists on a page of its server, and closes all objects of S3 in them when one account is reset, also other accounts'.
    """
    BaseModel.__new__ = _new  # type: ignore[method-assign]


def _new(cls: type[BaseModel], *_: Any, **__: Any) -> BaseModel:
    return object.__new__(cls)


def forget_account(account: str) -> None:
    """Remove all that moto knows of an account: its bundle alone has 27 MiB."""
    if account in s3_backends:
        # Closes the temporary files of its objects.
        s3_backends[account].reset()
    for backends in list(BackendDict._instances):  # type: ignore[misc]
        backends.pop(account, None)
