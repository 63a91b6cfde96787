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
    """A store whose value for a key never falls while all is well: a count, a maximum, a sequence number.

    A sum over input that may be negative is none. In a windowed store each window of a key is a key of its own.
    """

    application: Annotated[str, AfterValidator(_application)]
    """Its application.id."""
    store: Annotated[str, AfterValidator(_store)]
    """Its name; its changelog is the topic application-store-changelog."""
    value: Annotated[str, AfterValidator(_value)] = "long"
    """"long" (8 bytes, big-endian), "int" (4 bytes), or "json:FIELD", a whole number in a JSON object."""
    counts: Annotated[str, AfterValidator(_topic)] | None = None
    """Of a plain count, the topic of which it counts each record once: its repartition topic where it has one. What is
    committed there is held against the sum of its values.
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
