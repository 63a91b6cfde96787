"""Properties for Java's Kafka client, from librdkafka's names (as in rules.toml) or Java's own.

Certificates are read from their files, so that executors on other machines need none. Only what is needed to connect
is taken over: tuning differs between the two clients.
"""

import re
from collections.abc import Callable, Mapping

_TAKEN = re.compile(r"(?:security|sasl|ssl)\.|client\.(?:id|rack|dns\.lookup)$|(?:request|default\.api)\.timeout\.ms$")
# Names that only librdkafka has; the functions below translate them.
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

ReadFile = Callable[[str], str]
"""Returns the content of a file."""


class ClientError(Exception):
    """A property has no equivalent in Java's client."""


def java_properties(given: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    """Return the properties for Java's client. Raises ClientError, and whatever `read` raises."""
    translated = {name: value for name, value in given.items() if _TAKEN.match(name) and not _LIBRDKAFKAS.match(name)}
    if "security.protocol" in translated:
        translated["security.protocol"] = translated["security.protocol"].upper()
    if translated.get("ssl.endpoint.identification.algorithm") == "none":
        translated["ssl.endpoint.identification.algorithm"] = ""
    if given.get("enable.ssl.certificate.verification", "true").lower() in ("false", "f", "0"):
        msg = "enable.ssl.certificate.verification: Spark's Kafka client always verifies; set the CA in ssl.ca.location"
        raise ClientError(msg)
    return translated | _sasl(given) | _truststore(given, read) | _keystore(given, read)


def _sasl(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanisms", given.get("sasl.mechanism"))
    if mechanism is None:
        return {}
    properties = {"sasl.mechanism": mechanism}
    if "sasl.jaas.config" in given:
        return properties
    if "sasl.username" in given:
        module = _SCRAM if mechanism.startswith("SCRAM") else _PLAIN
        options = {"username": given["sasl.username"], "password": given.get("sasl.password", "")}
    elif mechanism == "GSSAPI":
        module = _KERBEROS
        keytab = given.get("sasl.kerberos.keytab", "")
        principal = given.get("sasl.kerberos.principal", "")
        if keytab:
            options = {"useKeyTab": "true", "storeKey": "true", "useTicketCache": "false"}
            options |= {"keyTab": keytab, "principal": principal}
        else:
            options = {"useTicketCache": "true"}
    elif mechanism == "OAUTHBEARER":
        msg = "sasl.mechanism OAUTHBEARER: set sasl.jaas.config for Spark's Kafka client in --kafka-file"
        raise ClientError(msg)
    else:
        return properties
    return {**properties, "sasl.jaas.config": f"{module} required {' '.join(map(_jaas_option, options.items()))};"}


def _jaas_option(option: tuple[str, str]) -> str:
    name, value = option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _pem(given: Mapping[str, str], name: str, read: ReadFile) -> str | None:
    return given.get(f"{name}.pem") or (read(given[f"{name}.location"]) if f"{name}.location" in given else None)


def _truststore(given: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    pem = _pem(given, "ssl.ca", read)
    return {} if pem is None else {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}


def _keystore(given: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    # librdkafka's ssl.keystore.location is a PKCS#12 file, which Java can read too.
    if "ssl.keystore.location" in given:
        return {} if "ssl.keystore.type" in given else {"ssl.keystore.type": "PKCS12"}
    chain, key = _pem(given, "ssl.certificate", read), _pem(given, "ssl.key", read)
    if chain is None or key is None:
        return {}
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def read_properties(text: str) -> dict[str, str]:
    """Return the properties in a file of Kafka's tools. Raises ValueError with the number of a wrong line."""
    found = {}
    for number, line in enumerate(_CONTINUED.sub("", text).splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            msg = f"line {number} is not KEY=VALUE"
            raise ValueError(msg)
        found[name.strip()] = _ESCAPED.sub(lambda match: _ESCAPES.get(match[1], match[1]), value.strip())
    return found
