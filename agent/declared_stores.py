"""Which stores of Kafka Streams applications are declared never to decrease, and how their values are read. Pure."""

from typing import Annotated

from pydantic import Field

from agent.options import Section

_VALUE = r"long|int|json:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"


class DeclaredStore(Section):
    """A store whose value for a key never falls while all is well: a count, a maximum, a sequence number.

    A sum over input that may be negative is none. In a windowed store each window of a key is a key of its own.
    """

    application: Annotated[str, Field(min_length=1)]
    """Its application.id."""
    store: Annotated[str, Field(min_length=1)]
    """Its name; its changelog is the topic application-store-changelog."""
    value: Annotated[str, Field(pattern=f"^(?:{_VALUE})$")] = "long"
    """"long" (8 bytes, big-endian), "int" (4 bytes), or "json:FIELD", a whole number in a JSON object."""

    @property
    def changelog(self) -> str:
        """The changelog topic."""
        return f"{self.application}-{self.store}-changelog"
