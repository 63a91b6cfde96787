"""Client properties that rules.toml passes on to librdkafka, and what is wrong with them."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BeforeValidator, Discriminator, Tag

from agent.config.credentials import SOURCES, Credential
from agent.config.problems import did_you_mean
from agent.config.toml_places import KeyPath
from agent.model.text import join_names

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_SECRET = re.compile(r"password|passphrase|secret|key\.pem", re.IGNORECASE)


def _plain(value: Any) -> str | int | bool:
    if isinstance(value, Mapping):
        msg = f'put a property name with dots in quotes: "security.protocol" = "SASL_SSL"; a secret is {SOURCES}'
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


MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
"""SASL mechanisms that the Kafka client supports as it is built here."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Values of security.protocol."""

_KERBEROS = "GSSAPI"
_WITH_LOGIN = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
_LOGIN = ("sasl.username", "sasl.password")


def kafka_problems(properties: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and the message of each mistake in a cluster's client properties.

    The path is empty if a property is missing. Values of a wrong type are ignored here; the model reports them.
    """
    for name, value in properties.items():
        if problem := kafka_property_problem(name, value):
            yield (name,), problem
    uses_sasl = _protocol(properties).startswith("SASL_")
    mechanism = ""
    given = {name: properties[name] for name in ("sasl.mechanism", "sasl.mechanisms") if name in properties}
    if not given and uses_sasl:
        yield (), _kerberos_problem(", librdkafka's default,")
    for name, value in given.items():
        mechanism = value.strip() if isinstance(value, str) else MECHANISMS[0]
        if mechanism == _KERBEROS and uses_sasl:
            yield (name,), _kerberos_problem("")
        elif mechanism not in (*MECHANISMS, _KERBEROS):
            yield (name,), f'unknown mechanism "{mechanism}"{did_you_mean(mechanism.upper(), MECHANISMS)}'
    missing = [f'"{name}"' for name in _LOGIN if name not in properties]
    if missing and uses_sasl and mechanism in _WITH_LOGIN:
        yield (), f"SASL mechanism {mechanism} needs {join_names(missing)}"


def ineffective_properties(properties: Mapping[str, KafkaValue]) -> Iterator[tuple[str, str]]:
    """Yield the first property of SASL and of TLS, and why they have no effect, if the security protocol is without."""
    protocol = _protocol(properties)
    for family in ("sasl", "ssl"):
        names = [name for name in properties if family in name.split(".")]
        using = [known for known in PROTOCOLS if family.upper() in known.split("_")]
        if names and protocol in PROTOCOLS and protocol not in using:
            yield names[0], f"{family}.* has no effect: security.protocol is {protocol}; set it to {' or '.join(using)}"


def _protocol(properties: Mapping[str, Any]) -> str:
    """Return the security protocol; an empty string if it is given by its source or has a wrong type."""
    protocol = properties.get("security.protocol", "PLAINTEXT")
    return protocol.strip().upper() if isinstance(protocol, str) else ""


def _kerberos_problem(which: str) -> str:
    return (
        f"SASL mechanism GSSAPI (Kerberos){which} is not supported: the client's packages are built without it. "
        f'Set "sasl.mechanism" to one that the brokers offer: {join_names(MECHANISMS, "or")}'
    )


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
    if name.endswith(".ms") and isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        return f'expected a number of milliseconds, got "{value}"'  # librdkafka reads "10s" as 10 ms
    end = "backflow.end.of.properties"
    try:
        AdminClient({name: "x" if is_secret else value, end: ""})
    except (KafkaException, AttributeError, TypeError, ValueError) as error:
        message = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        if end not in message and (not is_secret or "No such" in message):
            return f"rejected by the Kafka client: {message.strip()}"
    return None
