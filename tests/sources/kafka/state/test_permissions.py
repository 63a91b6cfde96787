"""Permissions on the patterns of rules.toml: which names are checked, and the commands that allow what is refused."""

from agent.model.name_filter import NameFilter
from agent.sources.availability import Unit
from agent.sources.kafka.admin.protocol import UNKNOWN_TOPIC_OR_PARTITION, Failure
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.permissions import Acl, Permissions, TopicCheck, VanishedTopics

_ACL = Acl("kafka-1:9093", "User:backflow", AffectedRules({}, watch_partitions=True))
_COMMAND = (
    "kafka-acls --bootstrap-server kafka-1:9093 --command-config admin.properties --add "
    "--allow-principal User:backflow --operation Describe"
)
_REFUSED = Failure(29, "Topic authorization failed")
_NOW = 100_000


def test_commands_use_prefixes_where_acls_have_them() -> None:
    assert _ACL.command("Describe", topics=["*"], groups=["g 1"]) == f"{_COMMAND} --topic '*' --group 'g 1'"
    prefixed = f"{_COMMAND} --topic shop- --resource-pattern-type prefixed"
    assert _ACL.command("Describe", topics=["shop-*"]) == prefixed
    assert _ACL.command("Describe", topics=["shop-*", "orders"]) == f"{_COMMAND} --topic orders && {prefixed}"
    assert _ACL.command("Describe", topics=["*-orders"]) == f"{_COMMAND} --topic '*'"


def test_names_that_match_the_patterns_are_checked_once_a_minute() -> None:
    filters = NameFilter(include=["shop-*", "orders"]), NameFilter(include=["[ab]?"])
    permissions = Permissions(filters[1], filters[0], _ACL)
    topics, groups = permissions.take_due(_NOW, groups_exist=True)
    assert all(filters[0].match(topic) for topic in topics)
    assert all(filters[1].match(group) for group in groups)
    assert "orders" in topics
    assert permissions.take_due(_NOW + 59_999, groups_exist=True) == ([], [])
    assert permissions.take_due(_NOW + 60_000, groups_exist=True) == (topics, groups)


def test_groups_are_not_asked_for_in_an_empty_cluster() -> None:
    """The first request about a group makes a broker create __consumer_offsets."""
    permissions = Permissions(NameFilter(), NameFilter(), _ACL)
    topics, groups = permissions.take_due(_NOW, groups_exist=False)
    assert (len(topics), groups) == (1, [])
    assert permissions.take_due(_NOW + 1, groups_exist=True) == ([], topics)


def test_what_is_refused_is_one_unit_with_one_command() -> None:
    permissions = Permissions(NameFilter(), NameFilter(), _ACL)
    topics, groups = permissions.take_due(_NOW, groups_exist=True)
    permissions.apply_topic(topics[0], _REFUSED)
    permissions.apply_group(groups[0], Failure(30, "Group authorization failed"))
    ((unit, reason),) = permissions.unavailable.items()
    assert unit == Unit(group="*", topic="*")
    assert reason == (
        "Kafka does not permit User:backflow to describe topics * and consumer groups *: what exists there may be "
        f"hidden. Allow it: {_COMMAND} --topic '*' --group '*' (or restrict `topics` and `groups` in rules.toml to "
        "what is permitted)"
    )
    permissions.apply_topic(topics[0], Failure(-185, "timed out"))
    permissions.apply_group(groups[0], None)
    assert list(permissions.unavailable) == [Unit(topic="*")]
    permissions.apply_topic(topics[0], Failure(3, "Unknown topic"))
    assert permissions.unavailable == {}


def test_a_topic_that_is_hidden_makes_all_patterns_due() -> None:
    permissions = Permissions(NameFilter(), NameFilter(), _ACL)
    due = permissions.take_due(_NOW, groups_exist=True)
    permissions.apply_topic("orders", _REFUSED)
    assert permissions.take_due(_NOW + 1, groups_exist=True) == due
    permissions.apply_topic("orders", _REFUSED)
    assert permissions.take_due(_NOW + 2, groups_exist=True) == ([], [])


def test_checks_of_topics_that_were_deleted_are_forgotten() -> None:
    vanished = VanishedTopics()
    for number in range(50):
        topic, at = f"temporary-{number}", 100 * number
        vanished.apply_metadata({topic: [0]}, [], at)
        assert vanished.due(at) == [topic]
        vanished.apply_check(topic, TopicCheck(at + 1, Failure(UNKNOWN_TOPIC_OR_PARTITION, "?")))
        vanished.apply_metadata({}, [], at + 2)
    assert not vanished._checks
