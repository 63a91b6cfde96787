"""The receivers of [receivers.NAME]: one file per kind, found by its name.

A new kind is a new file with one subclass of ReceiverSettings, whose `connect` returns a Receiver.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from agent.config.receivers import ReceiverSettings


def _load_kinds() -> Mapping[str, type[ReceiverSettings]]:
    kinds: dict[str, type[ReceiverSettings]] = {}
    for file in iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        (settings,) = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, ReceiverSettings) and value.__module__ == module.__name__
        )
        settings.kind = file.name
        kinds[file.name] = settings
    return kinds


KINDS: Mapping[str, type[ReceiverSettings]] = _load_kinds()
"""The table of every receiver by its kind, the name of its file."""
