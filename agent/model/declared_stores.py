"""Which stores of Kafka Streams applications are declared never to decrease, and how their values are read. Pure."""

import re
from collections import Counter
from typing import Annotated

from pydantic import AfterValidator

from agent.model.config_types import ConfigModel


def _value(value: str) -> str:
    if not re.fullmatch(r"long|int|json:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value):
        msg = f'expected "long", "int" or "json:FIELD", got "{value}"'
        raise ValueError(msg)
    return value


def _topic(value: str) -> str:
    return _named(value, "the name of a topic")


def _application(value: str) -> str:
    return _named(value, "an application.id")


def _store(value: str) -> str:
    if value.endswith("-changelog"):
        msg = f'expected the name of the store, not of its changelog topic, got "{value}"'
        raise ValueError(msg)
    return _named(value, "the name of a store")


def _named(value: str, what: str) -> str:
    """A topic's name, or what becomes part of one (org.apache.kafka.common.internals.Topic)."""
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value):
        msg = f'expected {what}, got "{value}"'
        raise ValueError(msg)
    return value


class DeclaredStore(ConfigModel):
    """A Kafka Streams store whose values normally never decrease: counts, maxima, sequence numbers.

    A sum over input that may be negative does not qualify. In a windowed store each window of a key counts as a key.
    """

    application: Annotated[str, AfterValidator(_application)]
    """The `application.id`."""
    store: Annotated[str, AfterValidator(_store)]
    """Name of the store; its changelog is the topic `application-store-changelog`."""
    value: Annotated[str, AfterValidator(_value)] = "long"
    """Format of the values: `"long"` (8 bytes, big-endian), `"int"` (4 bytes), `"json:FIELD"` (in a JSON object)."""
    counts: Annotated[str, AfterValidator(_topic)] | None = None
    """Only for a plain count: the topic of which it counts each record once (its repartition topic if it has one).

    When values decrease, the incident then also states how many records are surely missing, by comparing the sum of
    the values with the offsets committed on that topic. Not for a store that ignores records (late ones, for example)
    or deletes keys, nor for a topic that others write to in transactions, whose markers would count as records.
    """

    @property
    def changelog(self) -> str:
        """The changelog topic."""
        return f"{self.application}-{self.store}-changelog"


def declared_once(stores: tuple[DeclaredStore, ...]) -> tuple[DeclaredStore, ...]:
    """The stores. Raises ValueError where one is declared twice."""
    twice = [changelog for changelog, times in Counter(one.changelog for one in stores).items() if times > 1]
    if twice:
        msg = f"the store of {twice[0]} is declared twice"
        raise ValueError(msg)
    return stores
