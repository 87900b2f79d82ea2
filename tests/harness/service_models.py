"""Makes all botocore sessions of a process share one description of AWS's services.

A new session reads 30 MiB of JSON into memory, which takes a third of a second, and makes a class with hundreds of methods for each client.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.client import ClientCreator
from botocore.hooks import EventAliaser
from botocore.loaders import JSONFileLoader, Loader


@cache
def share_service_models() -> None:
    """Make all sessions read each file, list the services, and make each service's model and client class only once."""
    load_file = JSONFileLoader.load_file
    read = cache(lambda path: load_file(JSONFileLoader(), path))
    JSONFileLoader.load_file = lambda self, file_path: read(file_path)  # type: ignore[method-assign]
    # This function looks into two thousand folders, for each kind of file that a client of a new session needs.
    list_services = Loader.list_available_services
    services = cache(lambda type_name: list_services(Loader(), type_name))
    Loader.list_available_services = lambda self, type_name: services(type_name)  # type: ignore[method-assign]
    creator: Any = ClientCreator
    # A model looks at each of a service's hundreds of calls.
    load_model, models = creator._load_service_model, {}

    def model_of(self: Any, name: str, api_version: str | None = None) -> Any:
        if (name, api_version) not in models:
            models[name, api_version] = load_model(self, name, api_version)
        return models[name, api_version]

    creator._load_service_model = model_of
    # A client's class has a method for each of these calls.
    make_class, classes = creator._create_client_class, {}

    def class_of(self: Any, name: str, model: Any) -> Any:
        if name not in classes:
            classes[name] = make_class(self, name, model)
        return classes[name]

    creator._create_client_class = class_of
    # A new session and each of its clients work out the names of the same events again.
    aliaser: Any = EventAliaser
    names: dict[str, str] = {}
    begin = aliaser.__init__

    def with_known_names(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        self._alias_name_cache = names

    aliaser.__init__ = with_known_names
