"""The rules: one file per kind, found by its name. A new kind is a new file with one subclass of Rule."""

from collections.abc import Mapping

from agent.engine.check_rule import CheckRule
from agent.engine.rule import Rule
from agent.model.kinds import load_kinds

KINDS: Mapping[str, type[Rule]] = load_kinds(__name__, __path__, Rule)
"""Every rule by its kind, the name of its file."""

CHECK_RULES: Mapping[str, type[CheckRule]] = {kind: rule for kind, rule in KINDS.items() if issubclass(rule, CheckRule)}
"""The rule of every Spark check, by the check's name."""

CHECKS: Mapping[str, str] = {kind: rule.summary for kind, rule in CHECK_RULES.items()}
"""Every Spark check by its name, and in one line what it reads and finds."""
