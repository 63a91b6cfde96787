"""Client properties of librdkafka as options of kafka-python, the admin process's second client."""

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.sources import certificates

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class UntranslatableError(ValueError):
    """Properties that kafka-python has no equivalent for; the message names them."""


def translate(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a connection. Properties about performance have none. Raises UntranslatableError.

    Certificates are read here; a file that cannot be read raises UntranslatableError as well.
    """
    given = {name: str(value) for name, value in properties.items()}
    protocol = given.get("security.protocol", "plaintext").upper()
    options: dict[str, Any] = {
        "bootstrap_servers": given["bootstrap.servers"].split(","),
        "security_protocol": protocol,
    }
    if protocol.startswith("SASL_"):
        options |= _sasl(given)
    if protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(given)
    return options


def find_certificate_problem(properties: Mapping[str, Any], address: str) -> str | None:
    """Return why a broker's certificate is refused, after connecting once more; None if that cannot be found out.

    address: host and port.
    """
    host, _, port = address.rpartition(":")
    try:
        return certificates.find_certificate_problem(host.strip("[]"), int(port), translate(properties)["ssl_context"])
    except (ValueError, KeyError):  # UntranslatableError is a ValueError
        return None


def _sasl(given: Mapping[str, str]) -> dict[str, Any]:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "GSSAPI"
    if mechanism not in _MECHANISMS:
        msg = f"SASL mechanism {mechanism}"
        raise UntranslatableError(msg)
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": given.get("sasl.username"),
        "sasl_plain_password": given.get("sasl.password"),
    }


def _ssl_context(given: Mapping[str, str]) -> ssl.SSLContext:
    if "ssl.keystore.location" in given:
        msg = "ssl.keystore.location (use ssl.certificate.location and ssl.key.location)"
        raise UntranslatableError(msg)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    is_verified = given.get("enable.ssl.certificate.verification", "true").lower() == "true"
    context.check_hostname = is_verified and given.get("ssl.endpoint.identification.algorithm", "https") == "https"
    context.verify_mode = ssl.CERT_REQUIRED if is_verified else ssl.CERT_NONE
    authorities = given.get("ssl.ca.location", "")
    try:
        if "ssl.ca.pem" in given:
            context.load_verify_locations(cadata=given["ssl.ca.pem"])
        elif authorities and Path(authorities).is_dir():
            context.load_verify_locations(capath=authorities)
        elif authorities and authorities != "probe":
            context.load_verify_locations(cafile=authorities)
        else:
            context.load_default_certs()
        if "ssl.crl.location" in given:
            context.load_verify_locations(given["ssl.crl.location"])
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        with _as_file(given, "ssl.certificate") as certificate, _as_file(given, "ssl.key") as key:
            if certificate is not None:
                context.load_cert_chain(
                    certificate, key, given.get("ssl.key.password", "")
                )  # None: OpenSSL asks on the terminal
    except (OSError, ValueError) as error:  # SSLError is an OSError
        msg = f"TLS properties: {error}"
        raise UntranslatableError(msg) from error
    return context


@contextmanager
def _as_file(given: Mapping[str, str], name: str) -> Iterator[str | None]:
    """Yield the path of a certificate or key, which Python reads from files only; None if it is not given."""
    pem = given.get(f"{name}.pem")
    if pem is None:
        yield given.get(f"{name}.location")
        return
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, pem.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
