"""Ids of topics: UUIDs, or before Kafka 2.8 `czxid:N` of their znodes; null where they are unknown."""


def is_other_incarnation(old: str | None, new: str | None) -> bool:
    """Return whether two topic ids prove two incarnations.

    Both must be known and of one type, czxid or UUID: an upgrade to Kafka 2.8 replaces the one with the other.
    """
    return bool(old and new and old != new) and is_czxid(old) == is_czxid(new)


def is_czxid(topic_id: str | None) -> bool:
    """Return whether the id is that of a znode."""
    return (topic_id or "").startswith("czxid:")
