"""Which stores of Kafka Streams applications are declared never to decrease, and how their values are read. Pure."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from agent.options import Section


def _value(value: str) -> str:
    if not re.fullmatch(r"long|int|json:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value):
        msg = f'expected "long", "int" or "json:FIELD", got "{value}"'
        raise ValueError(msg)
    return value


def _topic(value: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value):
        msg = f'expected the name of a topic, got "{value}"'
        raise ValueError(msg)
    return value


class DeclaredStore(Section):
    """A store whose value for a key never falls while all is well: a count, a maximum, a sequence number.

    A sum over input that may be negative is none. In a windowed store each window of a key is a key of its own.
    """

    application: Annotated[str, Field(min_length=1)]
    """Its application.id."""
    store: Annotated[str, Field(min_length=1)]
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
