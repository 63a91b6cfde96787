"""The facts that sources observe and everything else reads: immutable, typed, timestamped. No I/O.

One module per system that the facts are about; a new kind of observation is one class in one of them, or in a module
of its own. JSON lines are read and written by agent.model.encoding.
"""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from agent.model.observations.base import Observation


def _register() -> Mapping[str, type[Observation]]:
    """Return the kinds by their tags; an abstract base has no tag of its own."""
    kinds: dict[str, type[Observation]] = {}
    for module in iter_modules(__path__):
        for item in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(item, type) and issubclass(item, Observation):
                tag = str(item.__struct_config__.tag)
                if tag != item.__name__:
                    kinds[tag] = item
                    item.subject_kind = item.subject_kind or tag
    return kinds


KINDS: Mapping[str, type[Observation]] = _register()
"""Every kind of observation by its name in JSON lines and in the journal."""
