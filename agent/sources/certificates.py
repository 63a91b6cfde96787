"""What is wrong with a server's TLS certificate: the reason, and whose it is and until when. Opens connections."""

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agent.model.text import visible
from agent.model.times import minute

_SECONDS = 3.0
_MAX_CHARACTERS = 120
"""How much of a name is quoted: a server that is not trusted has sent it."""

_ABBREVIATIONS = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"}


def find_certificate_problem(host: str, port: int, context: ssl.SSLContext) -> str | None:
    """Return why a server's certificate is refused, as a clause; None if it is accepted or cannot be reached.

    context: how the client verifies it.
    """
    try:
        with (
            socket.create_connection((host, port), _SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return explain_refusal(error, host, port)
    except OSError:
        return None


def explain_refusal(error: ssl.SSLCertVerificationError, host: str, port: int, seconds: float = _SECONDS) -> str:
    """Return why the certificate was refused, with its subject, issuer and validity if it is sent once more.

    certificate has expired (subject CN=kafka-1, issuer CN=ca, valid until 2026-11-21 08:00 UTC)
    """
    reason = error.verify_message.rstrip(".")
    fields = _read_certificate(host, port, seconds)
    if fields is None:
        return reason
    names = [f"{kind}:{name}" for kind, name in fields.get("subjectAltName", ())]
    parts = [
        f"subject {_name(fields['subject'])}",
        *([f"valid for {_shorten(', '.join(names))}"] if names and "mismatch" in reason else []),
        f"issuer {_name(fields['issuer'])}",
        f"valid until {minute(ssl.cert_time_to_seconds(fields['notAfter']) * 1000)} UTC",
    ]
    return f"{reason} ({', '.join(parts)})"


def _read_certificate(host: str, port: int, seconds: float) -> Mapping[str, Any] | None:
    """Return the fields of the server's certificate without verifying it, as SSLSocket.getpeercert does; None if lost.

    Nothing is sent but the handshake, which may fail once the certificate is here: TLS 1.2 asks for one of ours then.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), seconds) as connection,
            context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False) as tls,
        ):
            with suppress(ssl.SSLError):
                tls.do_handshake()
            # Python decodes a certificate that it has not verified only here (3.11 to 3.14).
            chain = tls._sslobj.get_unverified_chain()  # type: ignore[attr-defined]  # noqa: SLF001
            return chain[0].get_info() if chain else None
    except OSError:
        return None


def _name(name: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """Return the distinguished name as OpenSSL writes it: CN=kafka-1, O=Example."""
    parts = [f"{_ABBREVIATIONS.get(key, key)}={value}" for pairs in reversed(name) for key, value in pairs]
    return _shorten(", ".join(parts)) or "without a name"


def _shorten(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."
