"""[receivers.NAME]: all mistakes with their lines; secrets and files of TLS are read before the agent starts."""

from pathlib import Path

import pytest

from agent.config.loading import loads
from agent.config.problems import SettingsError
from agent.config.settings import Settings
from agent.model.findings import Severity
from agent.notify.receivers import KINDS
from tests import samples

KEY = "a1" * 16

ALL = """
[receivers.own]
kind = "webhook"
url = {{ file = "{directory}/url" }}
secret = {{ file = "{directory}/secret" }}
http_client = {{ token = {{ file = "{directory}/token" }}, ca = "{directory}/ca.pem" }}

[receivers.on-call]
kind = "pagerduty"
routing_key = {{ file = "{directory}/key" }}
severities = ["critical"]

[receivers.alerts]
kind = "alertmanager"
urls = ["http://alertmanager-1:9093", "http://alertmanager-2:9093/prefix"]
groups = {{ include = ["payments-*"] }}

[receivers.mail]
kind = "email"
host = "smtp.example.com"
username = "backflow"
password = {{ file = "{directory}/password" }}
sender = "backflow@example.com"
recipients = ["streams@example.com"]
"""


def read(text: str) -> Settings:
    return loads(text, "rules.toml", need_clusters=False, receivers=KINDS)


def mistakes(text: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        read(text)
    return [str(problem).removeprefix("rules.toml:") for problem in raised.value.problems]


def test_each_missing_file_is_named_by_its_key(tmp_path: Path) -> None:
    found = {
        ".".join(map(str, path)): reason
        for path, _, reason in read(ALL.format(directory=tmp_path)).unreadable_secrets()
    }
    assert list(found) == [
        "receivers.own.url",
        "receivers.own.secret",
        "receivers.own.http_client.token",
        "receivers.own.http_client.ca",
        "receivers.on-call.routing_key",
        "receivers.mail.password",
    ]
    assert all(reason.endswith("cannot be read: No such file or directory") for reason in found.values())


def test_a_file_without_certificates_is_a_mistake(tmp_path: Path) -> None:
    """An agent that has replaced its configuration could not start with it."""
    for name in ("ca.pem", "own.pem"):
        (tmp_path / name).write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "token").write_text("xoxb-1")
    settings = read(
        f"""
        [slack]
        channel = "alerts"
        token_file = "{tmp_path}/token"
        ca = "{tmp_path}/ca.pem"
        [receivers.own]
        kind = "webhook"
        url = "https://example.com"
        http_client = {{ ca = "{tmp_path}/ca.pem", certfile = "{tmp_path}/own.pem" }}
        [receivers.on-call]
        kind = "pagerduty"
        routing_key = {{ file = "{tmp_path}/absent" }}
        ca = "{tmp_path}/ca.pem"
        """
    )
    reasons = {".".join(map(str, path)): reason for path, _, reason in settings.unreadable_secrets()}
    del reasons["receivers.on-call.routing_key"]
    for key in ("slack.ca", "receivers.own.http_client.ca", "receivers.on-call.ca"):
        assert reasons.pop(key).startswith(f"file {tmp_path}/ca.pem holds no certificates of authorities: ")
    (reason,) = reasons.values()
    assert reason.startswith(f"file {tmp_path}/own.pem cannot be used as client certificate: ")


def test_a_secret_of_the_wrong_shape_is_not_shown(tmp_path: Path) -> None:
    for name in ("secret", "token", "password"):
        (tmp_path / name).write_text("hunter2")
    (tmp_path / "ca.pem").touch()
    (tmp_path / "url").write_text("ftp://hunter2")
    (tmp_path / "key").write_text("hunter2")
    reasons = [reason for *_, reason in read(ALL.format(directory=tmp_path)).unreadable_secrets()]
    assert reasons == [
        f"file {tmp_path}/url must hold an http or https URL without a user name",
        f"file {tmp_path}/ca.pem is empty",
        f"file {tmp_path}/key must hold the integration key of an Events API V2 integration, 32 letters and digits",
    ]


def test_patterns_select_incidents(tmp_path: Path) -> None:
    receivers = read(ALL.format(directory=tmp_path)).receivers
    warning = samples.incident(severity=Severity.WARNING)
    payments = samples.incident(findings=(samples.rewind(group="payments-1"),))
    for name, selects in (
        ("own", (True, True, True)),
        ("on-call", (True, False, True)),
        ("alerts", (False, False, True)),
    ):
        assert tuple(map(receivers[name].match_any, (samples.incident(), warning, payments))) == selects


def test_mistakes_are_named_with_their_lines() -> None:
    found = mistakes(f"""[receivers.a]
kind = "webhok"
[receivers.b]
url = "http://h/"
[receivers.c]
kind = "pagerduty"
routing_key = "{KEY}"
url = "https://user:pass@h/"
[receivers.d]
kind = "email"
host = "h"
sender = "backflow"
recipients = []
tls = "none"
username = "u"
[receivers.e]
kind = "alertmanager"
urls = []
rules = {{ include = ["rewnd"] }}
resend_interval = "0s"
secret = "x"
[receivers.f]
kind = "email"
host = "h"
sender = "a@b"
recipients = ["a@b\\r\\nBcc: x"]
[receivers.g]
kind = "webhook"
url = "http://user:pass@h/"
""")
    expected = """\
2: [receivers.a] kind: unknown kind "webhok"; did you mean `webhook`?
3: [receivers.b] kind: is required; known: alertmanager, email, pagerduty, webhook
7: [receivers.c] routing_key: a secret must not be written in this file; \
expected { file = "..." }, { env = "..." } or { credential = "..." }
8: [receivers.c] url: expected an http or https URL without a user name
12: [receivers.d] sender: expected an address such as "backflow@example.com", got "backflow"
13: [receivers.d] recipients: name at least one
18: [receivers.e] urls: name at least one
19: [receivers.e] rules.include[0]: "rewnd" is none of the rules
20: [receivers.e] resend_interval: expected more than 0, got "0s"
21: [receivers.e] secret: unknown key; known: clusters, groups, http_client, labels, proxy, resend_interval, rules, \
severities, topics, urls
26: [receivers.f] recipients[0]: expected an address such as "backflow@example.com", got "a@b\\r\\nBcc: x\"
29: [receivers.g] url: expected an http or https URL without a user name
"""
    assert found == expected.splitlines()


def test_a_password_is_not_sent_in_plain_text() -> None:
    table = '[receivers.m]\nkind = "email"\nhost = "h"\nsender = "a@b"\nrecipients = ["a@b"]\n'
    login = 'username = "u"\npassword = { env = "P" }\n'
    assert mistakes(table + 'username = "u"\n') == ["1: [receivers.m]: `username` and `password` belong together"]
    assert mistakes(table + login + 'tls = "none"\n') == [
        '1: [receivers.m]: `password` needs TLS: `tls` must not be "none"'
    ]
    assert read(table + login).receivers
