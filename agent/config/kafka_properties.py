"""Client properties that rules.toml passes on to librdkafka, and what is wrong with them."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BeforeValidator, Discriminator, Tag

from agent.config.credentials import SOURCES, Credential

_SECRET = re.compile(r"password|passphrase|secret|key\.pem", re.IGNORECASE)


def _plain(value: Any) -> str | int | bool:
    if isinstance(value, Mapping):
        msg = 'put a property name with dots in quotes: "security.protocol" = "SASL_SSL"'
        raise ValueError(msg)
    if not isinstance(value, str | int):
        msg = f"expected text in quotes, a whole number, true or false; for a secret {SOURCES}"
        raise ValueError(msg)
    return value


def _tag(value: Any) -> str:
    """Distinguish the source of a secret, even with a mistyped key, from a plain value."""
    sources = list(Credential.model_fields)
    is_source = isinstance(value, Mapping) and any(get_close_matches(str(key), sources) for key in value)
    return "<secret>" if is_source or isinstance(value, Credential) else "<plain>"


KafkaValue: TypeAlias = Annotated[
    Annotated[Credential, Tag("<secret>")] | Annotated[str | int | bool, BeforeValidator(_plain), Tag("<plain>")],
    Discriminator(_tag),
]
"""The value of a property, or the source of a secret."""


def kafka_property_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a Kafka client property according to librdkafka, or None.

    No client is started: an unknown property is added at the end, and only an error about another property counts.
    Files that properties name are not opened.
    """
    is_secret = _tag(value) == "<secret>"
    if not is_secret and not isinstance(value, str | int):
        return None
    if name in {"bootstrap.servers", "metadata.broker.list"}:
        return "remove it; `bootstrap_servers` of the cluster sets this property"
    if not is_secret and _SECRET.search(name):
        return f"a secret must not be written in this file; use {SOURCES}"
    end = "backflow.end.of.properties"
    try:
        AdminClient({name: "x" if is_secret else value, end: ""})
    except (KafkaException, AttributeError, TypeError, ValueError) as error:
        message = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if end not in message and (not is_secret or "No such" in message):
            return f"rejected by the Kafka client: {message.strip()}"
    return None
