"""The rules: one file per kind, found by its name. A new kind is a new file with one subclass of Rule."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Rule


def _load_kinds() -> Mapping[str, type[Rule]]:
    kinds: dict[str, type[Rule]] = {}
    for file in iter_modules(__path__):
        if file.ispkg:
            continue
        module = import_module(f"{__name__}.{file.name}")
        (rule,) = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
        )
        rule.kind = file.name
        kinds[file.name] = rule
    return kinds


KINDS: Mapping[str, type[Rule]] = _load_kinds()
"""Every rule by its kind, the name of its file."""

CHECK_RULES: Mapping[str, type[CheckRule]] = {kind: rule for kind, rule in KINDS.items() if issubclass(rule, CheckRule)}
"""The rule of every Spark check, by the check's name."""

CHECKS: Mapping[str, str] = {kind: rule.summary for kind, rule in CHECK_RULES.items()}
"""Every Spark check by its name, and in one line what it reads and finds."""
