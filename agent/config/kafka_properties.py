"""Client properties that pass from rules.toml to librdkafka: what may stand there. Who gets them: sections."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BeforeValidator, Discriminator, Tag

from agent.config.credentials import Credential

_SECRET = re.compile(r"password|passphrase|secret|key\.pem", re.IGNORECASE)


def _plain(value: Any) -> str | int | bool:
    if isinstance(value, Mapping):
        msg = 'a property whose name has dots stands in quotes: "security.protocol" = "SASL_SSL"'
        raise ValueError(msg)
    if not isinstance(value, str | int):
        msg = 'expected text in quotes, a whole number, true or false; for a secret { file = "..." } or its like'
        raise ValueError(msg)
    return value


def _tag(value: Any) -> str:
    """Whether a value is meant as the place of a secret, mistyped keys and all, or as the property's value."""
    places = list(Credential.model_fields)
    meant = isinstance(value, Mapping) and any(get_close_matches(str(key), places) for key in value)
    return "<place>" if meant or isinstance(value, Credential) else "<plain>"


KafkaValue: TypeAlias = Annotated[
    Annotated[Credential, Tag("<place>")] | Annotated[str | int | bool, BeforeValidator(_plain), Tag("<plain>")],
    Discriminator(_tag),
]
"""A property's value, or the place of it where it is a secret."""


def kafka_property_problem(name: str, value: Any) -> str | None:
    """What is wrong with a Kafka client property, as librdkafka itself sees it; None where it is fine.

    No client is started for it: the property that comes last is always refused, and only a complaint about another one
    counts. The files that properties name are not looked at.
    """
    place = _tag(value) == "<place>"
    if not place and not isinstance(value, str | int):
        return None
    if name in {"bootstrap.servers", "metadata.broker.list"}:
        return "is set by the cluster's `bootstrap_servers`"
    if not place and _SECRET.search(name):
        return 'a secret must not stand in this file; write { file = "..." }, { env = "..." } or { credential = "..." }'
    end = "backflow.end.of.properties"
    try:
        AdminClient({name: "x" if place else value, end: ""})
    except (KafkaException, AttributeError, TypeError, ValueError) as error:
        complaint = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if end not in complaint and (not place or "No such" in complaint):
            return f"refused by the Kafka client: {complaint.strip()}"
    return None
