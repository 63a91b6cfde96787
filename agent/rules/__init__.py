"""The rules: one file per kind, found by its name. A new kind is a new file with one subclass of Rule, no edit here."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Rule


def _kinds() -> Mapping[str, type[Rule]]:
    kinds: dict[str, type[Rule]] = {}
    for module in iter_modules(__path__):
        if module.ispkg:
            continue
        loaded = import_module(f"{__name__}.{module.name}")
        (rule,) = (
            one
            for one in vars(loaded).values()
            if isinstance(one, type) and issubclass(one, Rule) and one.__module__ == loaded.__name__
        )
        rule.kind = module.name
        kinds[module.name] = rule
    return kinds


KINDS: Mapping[str, type[Rule]] = _kinds()
"""Every rule by its kind, the name of its file."""

CHECKS: Mapping[str, str] = {kind: rule.reads for kind, rule in KINDS.items() if issubclass(rule, CheckRule)}
"""Every Spark check by its name, and in one line what it reads and finds."""
