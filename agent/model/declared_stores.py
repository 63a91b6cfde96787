"""Kafka Streams stores that are declared never to decrease, and how their values are read."""

import re
from collections import Counter
from typing import Annotated

from pydantic import AfterValidator

from agent.model.config_types import ConfigModel


def _check_value(value: str) -> str:
    if not re.fullmatch(r"long|int|json:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value):
        msg = f'expected "long", "int" or "json:FIELD", got "{value}"'
        raise ValueError(msg)
    return value


def _check_topic(value: str) -> str:
    return _check_name(value, "the name of a topic")


def _check_application(value: str) -> str:
    return _check_name(value, "an application.id")


def _check_store(value: str) -> str:
    if value.endswith("-changelog"):
        msg = f'expected the name of the store, not of its changelog topic, got "{value}"'
        raise ValueError(msg)
    return _check_name(value, "the name of a store")


def _check_name(value: str, what: str) -> str:
    """Return the value if it can be (part of) a topic's name, as org.apache.kafka.common.internals.Topic checks."""
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value):
        msg = f'expected {what}, got "{value}"'
        raise ValueError(msg)
    return value


class DeclaredStore(ConfigModel):
    """A store whose value for a key never decreases in normal operation: a count, a maximum, a sequence number.

    A sum over input that may be negative is not. In a windowed store each window of a key is a key of its own.
    """

    application: Annotated[str, AfterValidator(_check_application)]
    """Its application.id."""
    store: Annotated[str, AfterValidator(_check_store)]
    """Its name; its changelog is the topic application-store-changelog."""
    value: Annotated[str, AfterValidator(_check_value)] = "long"
    """"long" (8 bytes, big-endian), "int" (4 bytes), or "json:FIELD", an integer in a JSON object."""
    counts: Annotated[str, AfterValidator(_check_topic)] | None = None
    """For a plain count, the topic of which it counts each record once: its repartition topic if it has one. Committed
    offsets of that topic are compared with the sum of the store's values.
    """
    cluster: str | None = None
    """The `[clusters.NAME]` on which its application runs. By default all have the store, and one without its changelog
    is reported as unavailable.
    """

    @property
    def changelog(self) -> str:
        """The changelog topic."""
        return f"{self.application}-{self.store}-changelog"

    def is_on(self, cluster: str | None) -> bool:
        """Return whether it is on this Kafka cluster."""
        return self.cluster in (None, cluster)


def declared_once(stores: tuple[DeclaredStore, ...]) -> tuple[DeclaredStore, ...]:
    """Return the stores. Raises ValueError if one is declared twice."""
    numbers = Counter((store.changelog, store.cluster) for store in stores)
    duplicates = [changelog for (changelog, _), number in numbers.items() if number > 1]
    if duplicates:
        msg = f"the store of {duplicates[0]} is declared twice"
        raise ValueError(msg)
    return stores
