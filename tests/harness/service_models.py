"""Makes all botocore sessions of a process share one description of AWS's services.

A new session reads 30 MiB of JSON into memory, which takes a third of a second, and makes a class with hundreds of methods for each client.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.client import ClientCreator
from botocore.loaders import JSONFileLoader, Loader


@cache
def share_service_models() -> None:
    """Make all sessions read each file, list the services, and make each service's client class only once."""
    load_file = JSONFileLoader.load_file
    read = cache(lambda path: load_file(JSONFileLoader(), path))
    JSONFileLoader.load_file = lambda self, file_path: read(file_path)  # type: ignore[method-assign]
    # This function looks into two thousand folders for each client of a new session.
    list_services = Loader.list_available_services
    services = list_services(Loader(), "service-2")
    Loader.list_available_services = lambda self, type_name: (  # type: ignore[method-assign]
        services if type_name == "service-2" else list_services(self, type_name)
    )
    # A client's class has a method for each of a service's hundreds of calls.
    creator: Any = ClientCreator
    make_class, classes = creator._create_client_class, {}

    def class_of(self: Any, name: str, model: Any) -> Any:
        if name not in classes:
            classes[name] = make_class(self, name, model)
        return classes[name]

    creator._create_client_class = class_of
