"""When settings are read, and what is made of them."""

from agent.model.observations.kafka import ClusterSettings, TopicSettings
from agent.sources.kafka.admin import protocol
from agent.sources.kafka.state.settings_state import SettingsState

_NOW = 10_000_000
_REFUSED = protocol.Failure(29, "Broker: Topic authorization failed")
_TIMED_OUT = protocol.Failure(-185, "timed out")
_TOO_OLD = protocol.Failure(-165, "unsupported")


def _broker(days: int, version: str | None, timeout_ms: int = 900_000) -> protocol.BrokerSettings:
    return protocol.BrokerSettings(days * 86_400_000, timeout_ms, version)


def _topic(name: str) -> TopicSettings:
    return TopicSettings(at=_NOW, cluster="main", topic=name, cleanup_policy="delete", retention_ms=-1)


def test_the_settings_of_a_cluster_are_those_that_forget_the_most() -> None:
    state = SettingsState("main")
    assert state.due_brokers([1, 2], _NOW) == [1, 2]
    state.apply_broker(1, _broker(7, "3.10-IV2"), _NOW)
    settings = state.apply_broker(2, _broker(1, "3.9-IV0", 3_600_000), _NOW)
    assert settings == [
        ClusterSettings(
            at=_NOW,
            cluster="main",
            offsets_retention_ms=86_400_000,
            transaction_max_timeout_ms=3_600_000,
            version="3.9",
        )
    ]
    assert state.due_brokers([1], _NOW + 1) == []
    assert [fact.version for fact in state.apply_broker(1, _broker(7, None), _NOW)] == ["4.0"]


def test_settings_are_read_again_after_ten_minutes() -> None:
    state = SettingsState("main")
    assert state.due_topics(["b", "a"], _NOW) == ["a", "b"]
    assert state.apply_topics({"a": _topic("a"), "b": _REFUSED}, _NOW) == [_topic("a")]
    assert state.due_topics(["a", "b", "new"], _NOW + 1) == ["new"]
    assert state.due_topics(["a", "b"], _NOW + 600_000) == ["a", "b"]


def test_settings_of_a_topic_created_again_are_read_again() -> None:
    state = SettingsState("main")
    state.apply_topics({"a": _topic("a")}, _NOW)
    assert state.due_topics([], _NOW + 1) == []
    assert state.due_topics(["a"], _NOW + 2) == ["a"]


def test_settings_are_requested_again_unless_the_failure_is_final() -> None:
    state = SettingsState("main")
    unknown = protocol.Failure(protocol.UNKNOWN_TOPIC_OR_PARTITION, "?")
    state.apply_topics({"new": unknown, "refused": _REFUSED}, _NOW)
    assert state.due_topics(["new", "refused"], _NOW + 1) == ["new"]
    for broker, failure in ((1, _TIMED_OUT), (2, _TOO_OLD), (3, _REFUSED)):
        assert state.apply_broker(broker, failure, _NOW) == []
    assert state.due_brokers([1, 2, 3], _NOW + 1) == [1]
    assert state.due_brokers([1, 2, 3], _NOW + 600_000) == [1, 2, 3]


def test_many_topics_are_read_in_several_calls() -> None:
    state, topics = SettingsState("main"), [f"t{number:03}" for number in range(150)]
    first = state.due_topics(topics, _NOW)
    state.apply_topics({name: _topic(name) for name in first}, _NOW)
    assert first + state.due_topics(topics, _NOW) == topics
