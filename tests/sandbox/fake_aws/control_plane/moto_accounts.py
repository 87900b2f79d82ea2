"""Moto with accounts that leave no memory behind, and requests that look for nothing that was found before."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from moto.core import responses
from moto.core.base_backend import BackendDict
from moto.core.common_models import BaseModel
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import method_names_from_class
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.s3.models import s3_backends


@cache
def prepare_moto() -> None:
    """Have moto's classes keep no list of their objects, and moto find once what it would find again for each request.

    Its lists would grow as long as this process lives. moto shows them on a page of its server, and closes all objects of S3 in them when
    one account is reset, also other accounts'. And for each request it would look at its two hundred folders and at all methods of a
    service, and for each value of an answer at all names that it may have in a class of moto.
    """
    BaseModel.__new__ = _new  # type: ignore[method-assign]
    find, found = DomainDispatcherApplication.get_backend_for_host, {}

    def find_once(self: DomainDispatcherApplication, host: str | None) -> Any:
        if host not in found:
            found[host] = find(self, host)
        return found[host]

    DomainDispatcherApplication.get_backend_for_host = find_once  # type: ignore[method-assign]
    vars(responses)["method_names_from_class"] = cache(method_names_from_class)
    names_of = XFormedAttributePicker.get_possible_keys

    def names_once(self: XFormedAttributePicker, context: AttributePickerContext) -> Iterable[str]:
        kept = vars(context.shape).setdefault("names_in_moto", {})
        which = type(context.obj), context.key
        if which not in kept:
            kept[which] = tuple(dict.fromkeys(names_of(self, context)))
        return kept[which]  # type: ignore[no-any-return]

    XFormedAttributePicker.get_possible_keys = names_once  # type: ignore[assignment,method-assign]


def _new(cls: type[BaseModel], *_: Any, **__: Any) -> BaseModel:
    return object.__new__(cls)


def forget_account(account: str) -> None:
    """Remove all that moto knows of an account."""
    if account in s3_backends:
        # Closes the temporary files of its objects.
        s3_backends[account].reset()
    for backends in list(BackendDict._instances):  # type: ignore[misc]
        backends.pop(account, None)
