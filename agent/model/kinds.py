"""Kinds that are found by their file: one class per file of a package, whose name is the kind."""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, Protocol, TypeVar


class HasKind(Protocol):
    """A class whose kind is the name of its file."""

    kind: ClassVar[str]


T = TypeVar("T", bound=HasKind)


def load_kinds(package: str, path: Iterable[str], base: type[T]) -> dict[str, type[T]]:
    """Return the subclass of `base` in each file of the package, by the file's name, and set its `kind`.

    path: the package's `__path__`. Packages in it are left out. Raises ValueError if a file does not have exactly one.
    """
    kinds: dict[str, type[T]] = {}
    for file in iter_modules(path):
        if file.ispkg:
            continue
        module = import_module(f"{package}.{file.name}")
        (found,) = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
        )
        found.kind = file.name
        kinds[file.name] = found
    return kinds
