"""The rules that do not see what Kafka does not permit us to describe. Makes no calls."""

import re
from collections.abc import Collection, Mapping

from agent.engine.check_rule import CheckInput, CheckRule
from agent.engine.rule import Rule
from agent.model.name_filter import NameFilter
from agent.model.observations.base import Observation
from agent.model.observations.kafka import (
    Commit,
    GroupState,
    LastStableOffset,
    LogOffsets,
    OpenTransaction,
    PartitionState,
    TopicSettings,
)

_OF_GROUPS: tuple[type[Observation], ...] = (Commit, GroupState)
_OF_TOPICS: tuple[type[Observation], ...] = (Commit, LogOffsets, LastStableOffset, OpenTransaction, TopicSettings)
_GLOB = re.compile(r"[*?\[]")


class AffectedRules:
    """The configured rules, by what they need of Kafka."""

    def __init__(self, rules: Mapping[str, Rule], *, watch_partitions: bool) -> None:
        """rules: by name. watch_partitions: whether Kafka, not ZooKeeper, shows partitions."""
        self._rules = rules
        self._of_topics = _OF_TOPICS + ((PartitionState,) if watch_partitions else ())

    def names(self, *, topics: Collection[str] = (), groups: Collection[str] = ()) -> list[str]:
        """Return the rules that need topics or groups of these patterns, by name."""
        return sorted(
            name
            for name, rule in self._rules.items()
            if (_reads(rule, self._of_topics) and _may_select(rule, "topics", topics))
            or (_reads(rule, _OF_GROUPS) and _may_select(rule, "groups", groups))
        )


def _reads(rule: Rule, kinds: Collection[type[Observation]]) -> bool:
    """Return whether the rule, or the Spark check whose findings it reports, reads observations of these kinds."""
    if isinstance(rule, CheckRule):
        return rule.input in (CheckInput.COMMITS, CheckInput.CLUSTERS, CheckInput.CHANGELOGS)
    read = (*rule.observes, *([rule.revisits] if rule.revisits else []))
    return any(issubclass(kind, observed) for kind in kinds for observed in read)


def _may_select(rule: Rule, key: str, patterns: Collection[str]) -> bool:
    """Return whether the rule's filter may select a name of one of the patterns; False only if none can."""
    selected = getattr(rule, key, NameFilter()).include
    return any(_may_overlap(pattern, other) for pattern in patterns for other in selected)


def _may_overlap(pattern: str, other: str) -> bool:
    """Return whether the parts before the first special character allow a name that both patterns match."""
    ours, theirs = (_GLOB.split(text, maxsplit=1)[0] for text in (pattern, other))
    return ours.startswith(theirs) or theirs.startswith(ours)
