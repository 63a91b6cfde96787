"""The properties of a Kafka client as Java's takes them: from librdkafka's names, as rules.toml has them, or its own.

Pure, but for the files of certificates, which are read so that executors on other machines need none. Only what is
needed to connect is taken over: how a client is tuned differs from one to the other.
"""

import re
from collections.abc import Callable, Mapping

_TAKEN = re.compile(r"(?:security|sasl|ssl)\.|client\.(?:id|rack|dns\.lookup)$|(?:request|default\.api)\.timeout\.ms$")
# What librdkafka alone has, and what is put in its place below.
_LIBRDKAFKAS = re.compile(
    r"sasl\.(?:username|password|mechanisms|oauthbearer\.\w[\w.]*|kerberos\.(?:principal|keytab|kinit\.cmd))$"
    r"|ssl\.(?:ca|crl|certificate|engine|providers|cipher\.suites|curves\.list|sigalgs\.list)(?:\.\w+)*$"
    r"|ssl\.key\.(?:location|pem)$"
)
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_CONTINUED = re.compile(r"\\\r?\n[ \t]*")
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}

Read = Callable[[str], str]
"""Gives what a file holds."""


class ClientError(Exception):
    """A property that Java's client has no like of; a sentence."""


def java_properties(given: Mapping[str, str], read: Read) -> dict[str, str]:
    """The properties for Java's client. Raises ClientError, and whatever `read` raises."""
    made = {name: value for name, value in given.items() if _TAKEN.match(name) and not _LIBRDKAFKAS.match(name)}
    if "security.protocol" in made:
        made["security.protocol"] = made["security.protocol"].upper()
    if made.get("ssl.endpoint.identification.algorithm") == "none":
        made["ssl.endpoint.identification.algorithm"] = ""
    if given.get("enable.ssl.certificate.verification", "true").lower() in ("false", "f", "0"):
        msg = (
            "enable.ssl.certificate.verification: Spark's Kafka client always verifies; name the CA in ssl.ca.location"
        )
        raise ClientError(msg)
    return made | _sasl(given) | _truststore(given, read) | _keystore(given, read)


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanisms", given.get("sasl.mechanism"))
    if mechanism is None:
        return {}
    named = {"sasl.mechanism": mechanism}
    if "sasl.jaas.config" in given:
        return named
    if "sasl.username" in given:
        module = _SCRAM if mechanism.startswith("SCRAM") else _PLAIN
        words = {"username": given["sasl.username"], "password": given.get("sasl.password", "")}
    elif mechanism == "GSSAPI":
        module = _KERBEROS
        words = {"useKeyTab": "true", "storeKey": "true", "useTicketCache": "false"}
        words |= {
            "keyTab": given.get("sasl.kerberos.keytab", ""),
            "principal": given.get("sasl.kerberos.principal", ""),
        }
        if not words["keyTab"]:
            words = {"useTicketCache": "true"}
    elif mechanism == "OAUTHBEARER":
        msg = "sasl.mechanism OAUTHBEARER: give Spark's Kafka client a sasl.jaas.config of its own with --kafka-file"
        raise ClientError(msg)
    else:
        return named
    return {**named, "sasl.jaas.config": f"{module} required {' '.join(map(_word, words.items()))};"}


def _word(word: tuple[str, str]) -> str:
    name, value = word
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _truststore(given: Mapping[str, str], read: Read) -> dict[str, str]:
    pem = given.get("ssl.ca.pem") or (read(given["ssl.ca.location"]) if "ssl.ca.location" in given else None)
    return {} if pem is None else {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}


def _keystore(given: Mapping[str, str], read: Read) -> dict[str, str]:
    """librdkafka's ssl.keystore.location is a PKCS#12 file, as Java reads it too."""
    if "ssl.keystore.location" in given:
        return {} if "ssl.keystore.type" in given else {"ssl.keystore.type": "PKCS12"}
    chain, key = (
        given.get(f"{name}.pem") or (read(given[f"{name}.location"]) if f"{name}.location" in given else None)
        for name in ("ssl.certificate", "ssl.key")
    )
    if chain is None or key is None:
        return {}
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def read_properties(text: str) -> dict[str, str]:
    """What a file of Java's properties says, as Kafka's tools take it. Raises ValueError, naming the line's number."""
    found = {}
    for number, line in enumerate(_CONTINUED.sub("", text).splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            msg = f"line {number} is not KEY=VALUE"
            raise ValueError(msg)
        found[name.strip()] = _ESCAPED.sub(lambda one: _ESCAPES.get(one[1], one[1]), value.strip())
    return found
