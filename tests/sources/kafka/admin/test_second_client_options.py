"""librdkafka's properties as options of kafka-python."""

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.sources.kafka.admin.second_client_options import UntranslatableError, translate

_BROKERS = {"bootstrap.servers": "a:1,b:2"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate and its encrypted key."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:secret", "-subj", "/CN=backflow",
         "-keyout", str(paths[1]), "-out", str(paths[0])],
        check=True, capture_output=True,
    )  # fmt: skip
    return paths


def _context(**properties: Any) -> ssl.SSLContext:
    names = {name.replace("__", "."): value for name, value in properties.items()}
    context = translate({**_BROKERS, "security.protocol": "ssl", **names})["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    return context


def test_performance_properties_are_left_out() -> None:
    options = translate({**_BROKERS, "socket.keepalive.enable": "true", "log_level": 0})
    assert options == {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "PLAINTEXT"}


def test_sasl_user_and_password_are_translated() -> None:
    options = translate(
        {**_BROKERS, "security.protocol": "sasl_plaintext", "sasl.mechanisms": "SCRAM-SHA-512",
         "sasl.username": "u", "sasl.password": "p"}
    )  # fmt: skip
    assert options == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "GSSAPI"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "k.p12"}, "ssl.keystore.location"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"}, "No such file"),
    ],
    ids=["oauth", "kerberos", "pkcs12", "missing-file"],
)
def test_what_kafka_python_cannot_is_named(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(UntranslatableError, match=reason):
        translate({**_BROKERS, **properties})


def test_certificates_are_read_from_files_or_properties(certificate: tuple[Path, Path]) -> None:
    path, key = certificate
    context = _context(
        ssl__ca__location=path, ssl__certificate__location=path, ssl__key__location=key, ssl__key__password="secret"
    )
    assert len(context.get_ca_certs()) == 1
    pem = {"ssl__certificate__pem": path.read_text(), "ssl__key__pem": key.read_text(), "ssl__key__password": "secret"}
    assert len(_context(ssl__ca__pem=path.read_text(), **pem).get_ca_certs()) == 1
    with pytest.raises(UntranslatableError, match="TLS properties"):
        _context(ssl__certificate__location=path, ssl__key__location=key, ssl__key__password="wrong")


def test_verification_is_on_unless_switched_off(certificate: tuple[Path, Path]) -> None:
    context = _context(ssl__ca__location=certificate[0].parent)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = _context(ssl__endpoint__identification__algorithm="none")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    context = _context(enable__ssl__certificate__verification="false")
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
