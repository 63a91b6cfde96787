"""What our credentials do not permit, and what brokers therefore hide. Makes no calls.

Brokers leave out of their lists what we may not describe, without an error. Only a request that names a topic or a
group is refused. So names are asked for: those that vanish, and unused names, one for each pattern of
rules.toml.
"""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.model.name_filter import NameFilter
from agent.sources.availability import Reasons, Unit
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.admin.protocol import TopicPartition
from agent.sources.kafka.state.affected_rules import AffectedRules

_EVERY_MS = 60_000
"""How often the permissions on the patterns of rules.toml are checked."""

_HIDDEN_EVERY_MS = 10_000
"""How often a topic that we may not describe is checked again."""

_UNUSED = "backflow-permission-check"
"""What a `*` of a pattern stands for in an unused name."""

_GLOB = re.compile(r"[*?\[]")
_CLASS = re.compile(r"\[!?(.)[^]]*\]")


class Acl(NamedTuple):
    """How our user is allowed something. principal: with its type, such as `User:backflow`. rules: who needs it."""

    bootstrap_servers: str
    principal: str
    rules: AffectedRules

    def command(self, operation: str, *, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> str:
        """Return the command that allows the operation on these patterns of names."""
        commands, patterns_by_kind = [], (("topic", list(topics)), ("group", list(groups)))
        for is_prefix in (False, True):
            resources = [
                f"--{kind} {shlex.quote(_resource(pattern))}"
                for kind, patterns in patterns_by_kind
                for pattern in patterns
                if _is_prefix(pattern) is is_prefix
            ]
            if resources:
                commands.append(
                    f"kafka-acls --bootstrap-server {self.bootstrap_servers} --command-config admin.properties --add "
                    f"--allow-principal {shlex.quote(self.principal)} --operation {operation} "
                    + " ".join(dict.fromkeys(resources))
                    + (" --resource-pattern-type prefixed" if is_prefix else "")
                )
        return " && ".join(commands)

    def refusal(self, what: str, *, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> str:
        """Return that we may not describe these patterns of names, which rules need them, and the command for it."""
        topics, groups = list(topics), list(groups)
        rules = self.rules.names(topics=topics, groups=groups)
        affected = f" Affected rules: {', '.join(rules)}." if rules else ""
        command = self.command("Describe", topics=topics, groups=groups)
        return f"Kafka does not permit {self.principal} to describe {what}.{affected} Allow it: {command}"


def _is_prefix(pattern: str) -> bool:
    return len(pattern) > 1 and pattern.endswith("*") and _GLOB.search(pattern[:-1]) is None


def _resource(pattern: str) -> str:
    """Return the name of the ACL's resource: ACLs have literal names, prefixes and `*`, but no shell patterns."""
    if _is_prefix(pattern):
        return pattern[:-1]
    return pattern if _GLOB.search(pattern) is None else "*"


class Permissions:
    """Whether we may describe the topics and groups that rules.toml selects."""

    def __init__(self, groups: NameFilter, topics: NameFilter, acl: Acl) -> None:
        self._acl = acl
        self._topics = {_example(pattern): pattern for pattern in topics.include}
        self._groups = {_example(pattern): pattern for pattern in groups.include}
        self._refused_topics: set[str] = set()
        self._refused_groups: set[str] = set()
        self._hidden: set[str] = set()
        self._topics_checked_at = self._groups_checked_at = 0

    def take_due(self, now: int, *, groups_exist: bool) -> tuple[list[str], list[str]]:
        """Return the topics and groups to check, and count them as checked.

        groups_exist: whether to check groups: the first request about a group makes a broker create __consumer_offsets.
        """
        topics: list[str] = []
        groups: list[str] = []
        if now - self._topics_checked_at >= _EVERY_MS:
            self._topics_checked_at, topics = now, list(self._topics)
        if (groups_exist or self._refused_topics) and now - self._groups_checked_at >= _EVERY_MS:
            self._groups_checked_at, groups = now, list(self._groups)
        return topics, groups

    def apply_topic(self, name: str, failure: protocol.Failure | None) -> None:
        """Update with the result of checking a topic; check all patterns now if one has just been hidden."""
        if name not in self._topics:
            if failure is not None and failure.is_unauthorized and name not in self._hidden:
                self._topics_checked_at = self._groups_checked_at = 0
                self._hidden.add(name)
            elif failure is None:
                self._hidden.discard(name)
        else:
            _update(self._refused_topics, self._topics[name], failure)

    def apply_group(self, name: str, failure: protocol.Failure | None) -> None:
        """Update with the result of checking a group."""
        if name in self._groups:
            _update(self._refused_groups, self._groups[name], failure)

    @property
    def unavailable(self) -> Reasons:
        """What may exist and be hidden, as one unit that its patterns name."""
        topics, groups = sorted(self._refused_topics), sorted(self._refused_groups)
        if not topics and not groups:
            return {}
        parts = [
            f"{noun} {', '.join(patterns)}"
            for noun, patterns in (("topics", topics), ("consumer groups", groups))
            if patterns
        ]
        keys = " and ".join(key for key, patterns in (("`topics`", topics), ("`groups`", groups)) if patterns)
        return {
            Unit(group=groups[0] if groups else None, topic=topics[0] if topics else None): self._acl.refusal(
                f"{' and '.join(parts)}: what exists there may be hidden", topics=topics, groups=groups
            )
            + f" (or restrict {keys} in rules.toml to what is permitted)"
        }


class TopicCheck(NamedTuple):
    """The result of describing a topic, requested at `sent_at` (ms). failure: None if it exists."""

    sent_at: int
    failure: protocol.Failure | None


class VanishedTopics:
    """Topics that lists no longer contain: deleted, or hidden because the permission to describe them was withdrawn."""

    def __init__(self) -> None:
        self._vanished: dict[str, tuple[int, frozenset[int]]] = {}
        self._commits: dict[str, dict[TopicPartition, int]] = {}
        self._checks: dict[str, TopicCheck] = {}

    def due(self, now: int) -> list[str]:
        """Return the topics to check."""
        return sorted(topic for topic, since in self._since() if self._is_due(topic, since, now))

    def apply_check(self, topic: str, check: TopicCheck) -> None:
        """Update with the result of describing a topic."""
        if check.failure is None or check.failure.is_from_broker:
            self._checks[topic] = check

    def apply_metadata(self, before: Mapping[str, Collection[int]], listed: Collection[str], at: int) -> None:
        """Update with the topics that the metadata of `at` (ms) list. before: partitions of those listed before."""
        for topic in before.keys() - set(listed):
            self._vanished.setdefault(topic, (at, frozenset(before[topic])))
        for topic, (since, _) in list(self._vanished.items()):
            if topic in listed or self._is_deleted(topic, since):
                del self._vanished[topic]
        in_doubt = {topic for missing in self._commits.values() for topic, _ in missing} | self._vanished.keys()
        self._checks = {topic: check for topic, check in self._checks.items() if topic in in_doubt}

    def apply_commits(
        self, group: str, missing: Collection[TopicPartition], at: int
    ) -> tuple[list[TopicPartition], dict[TopicPartition, protocol.Failure]]:
        """Update with the partitions whose commits a group's listing does not contain any more.

        Return those whose commits are deleted, and those that are hidden. Any other is neither yet: a commit is deleted
        if it is still missing after a request that was sent later has described its topic, or found it deleted.
        """
        before = self._commits.get(group, {})
        current = self._commits[group] = {partition: before.get(partition, at) for partition in missing}
        deleted, hidden = [], {}
        for partition, since in list(current.items()):
            topic = partition[0]
            check = self._checks.get(topic)
            if check is None or check.sent_at < since or partition not in before:
                continue
            if check.failure is not None and _is_hidden(check):
                hidden[partition] = check.failure
            elif check.failure is None or self._is_deleted(topic, since):
                deleted.append(partition)
                del current[partition]
        return sorted(deleted), hidden

    def is_undecided(self, group: str) -> bool:
        """Return whether it is open why commits of the group are missing."""
        return any(
            (check := self._checks.get(topic)) is None or check.sent_at < since or not _is_hidden(check)
            for (topic, _), since in self._commits.get(group, {}).items()
        )

    def forget_group(self, group: str) -> None:
        """Forget a group that no longer exists."""
        self._commits.pop(group, None)

    @property
    def hidden(self) -> dict[TopicPartition, protocol.Failure]:
        """The partitions that existed and whose topics may not be described any more."""
        return {
            (topic, partition): check.failure
            for topic, (since, partitions) in self._vanished.items()
            if (check := self._checks.get(topic)) is not None and check.failure is not None
            if check.sent_at >= since and _is_hidden(check)
            for partition in partitions
        }

    def _since(self) -> Iterator[tuple[str, int]]:
        since = {topic: at for topic, (at, _) in self._vanished.items()}
        for missing in self._commits.values():
            for (topic, _), at in missing.items():
                since[topic] = max(at, since.get(topic, 0))
        yield from since.items()

    def _is_due(self, topic: str, since: int, now: int) -> bool:
        check = self._checks.get(topic)
        return check is None or check.sent_at < since or now - check.sent_at >= _HIDDEN_EVERY_MS

    def _is_deleted(self, topic: str, since: int) -> bool:
        check = self._checks.get(topic)
        failure = None if check is None or check.sent_at < since else check.failure
        return failure is not None and failure.code == protocol.UNKNOWN_TOPIC_OR_PARTITION


def _is_hidden(check: TopicCheck) -> bool:
    return check.failure is not None and check.failure.is_unauthorized


def _example(pattern: str) -> str:
    """Return a name that matches the pattern: an unused one, unless the pattern is a name."""
    return _CLASS.sub(r"\1", pattern).replace("*", _UNUSED).replace("?", "x")


def _update(refused: set[str], pattern: str, failure: protocol.Failure | None) -> None:
    if failure is not None and failure.is_unauthorized:
        refused.add(pattern)
    elif failure is None or failure.is_from_broker:
        refused.discard(pattern)
