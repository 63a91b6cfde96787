"""Which of the configured rules a missing permission affects."""

import pytest

from agent.config.loading import loads
from agent.config.settings import Settings
from agent.sources.kafka.admin.protocol import Failure
from agent.sources.kafka.state.affected_rules import AffectedRules
from agent.sources.kafka.state.permissions import Acl
from agent.sources.kafka.state.reasons import text_of

_TOML = """
[clusters.main]
bootstrap_servers = "kafka-1:9092"

[rules.rewind]
kind = "offset_rewind"
groups = { include = ["billing-*"] }

[rules.truncated]
kind = "log_truncated"
topics = { include = ["orders", "shop-*"] }

[rules.rebalancing]
kind = "rebalancing"

[rules.unclean]
kind = "unclean_election"

[rules.history]
kind = "offset_history"

[rules.down]
kind = "broker_down"

[rules.job]
kind = "job_restarting"
"""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return loads(_TOML, "rules.toml", need_clusters=True)


def test_hidden_topics_affect_what_reads_commits_logs_and_partitions(settings: Settings) -> None:
    kraft = AffectedRules(settings.rules, watch_partitions=True)
    assert kraft.names(topics=["*"]) == ["history", "rewind", "truncated", "unclean"]
    assert kraft.names(topics=["shop-eu-*"]) == ["history", "rewind", "truncated", "unclean"]
    assert kraft.names(topics=["payments"]) == ["history", "rewind", "unclean"]


def test_partitions_that_zookeeper_shows_are_not_affected(settings: Settings) -> None:
    assert AffectedRules(settings.rules, watch_partitions=False).names(topics=["payments"]) == ["history", "rewind"]


def test_hidden_groups_affect_what_reads_commits_and_states(settings: Settings) -> None:
    rules = AffectedRules(settings.rules, watch_partitions=True)
    assert rules.names(groups=["*"]) == ["history", "rebalancing", "rewind"]
    assert rules.names(groups=["audit-*"]) == ["history", "rebalancing"]
    assert rules.names() == []


def test_refused_topic_names_affected_rules_and_the_command(settings: Settings) -> None:
    acl = Acl("kafka-1:9092", "User:b", AffectedRules(settings.rules, watch_partitions=False))
    reason = text_of(Failure(29, "Topic authorization failed"), acl, topic="orders")
    assert reason.startswith(
        "Kafka does not permit User:b to describe it. Affected rules: history, rewind, truncated. Allow it: kafka-acls "
    )
    assert reason.endswith("--operation Describe --topic orders")
