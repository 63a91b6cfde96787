"""Java client properties from librdkafka's, and the file that passes them from the agent to the check."""

from pathlib import Path

import pytest

from agent.checks.arguments import client_options
from agent.config.loading import load
from spark_checks.changelogs.client import ClientError, java_properties, read_properties

FILES = {"ca": "CA", "cert": "CHAIN", "key": "KEY"}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (
            {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "u",
             "sasl.password": 'p"\\', "debug": "all", "socket.timeout.ms": "5"},
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
             "sasl.jaas.config": f'{SCRAM} username="u" password="p\\"\\\\";'},
        ),
        (
            {"ssl.ca.location": "ca", "ssl.certificate.location": "cert", "ssl.key.location": "key",
             "ssl.key.password": "s", "ssl.endpoint.identification.algorithm": "none"},
            {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "CA", "ssl.keystore.type": "PEM",
             "ssl.keystore.certificate.chain": "CHAIN", "ssl.keystore.key": "KEY", "ssl.key.password": "s",
             "ssl.endpoint.identification.algorithm": ""},
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "Mine required;"},
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "Mine required;"},
        ),
        (
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "s"},
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "s", "ssl.keystore.type": "PKCS12"},
        ),
    ],
)  # fmt: skip
def test_connection_properties_are_translated(given: dict[str, str], made: dict[str, str]) -> None:
    assert java_properties(given, FILES.__getitem__) == made


@pytest.mark.parametrize("given", [{"enable.ssl.certificate.verification": "false"}, {"sasl.mechanism": "OAUTHBEARER"}])
def test_properties_without_java_equivalent_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ClientError, match=next(iter(given))):
        java_properties(given, FILES.__getitem__)


def test_file_is_read_as_by_kafkas_tools() -> None:
    text = '# mine\n\nsasl.jaas.config = a \\\n    b="\\\\";\nssl.ca.pem=x\\ny\n'
    assert read_properties(text) == {"sasl.jaas.config": 'a b="\\";', "ssl.ca.pem": "x\ny"}
    with pytest.raises(ValueError, match="line 2"):
        read_properties("a=b\nc\n")


def test_secrets_reach_the_check_in_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", 'a\\n=#"b')
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[clusters.main]\nbootstrap_servers = "k:9092"\n[clusters.main.kafka]\n"sasl.mechanism" = "PLAIN"\n'
        '"sasl.username" = "u"\n"sasl.password" = { env = "SECRET" }\n'
    )
    settings = load(rules, need_clusters=True)
    options = client_options("changelog_restore", settings, "main", tmp_path)
    path = tmp_path / "kafka.properties"
    assert options == ["--kafka-file", str(path)]
    assert path.stat().st_mode & 0o777 == 0o600
    given = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": 'a\\n=#"b'}
    assert read_properties(path.read_text()) == given
    assert client_options("log_segments", settings, "main", tmp_path) == []
