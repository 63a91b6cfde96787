"""The pages in docs/reference are what the code generates, complete, and true to the code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import tomli

from agent.cli.main import main
from agent.config.checks import Check, Spark
from agent.config.correlation_checks import PLACEHOLDERS, SHARED_KEYS
from agent.config.credentials import Credential
from agent.config.http_client import HttpClient
from agent.config.journal import S3, Journal
from agent.config.kafka_properties import kafka_property_problem
from agent.config.loading import loads
from agent.config.problems import NAMED_TABLES
from agent.config.receivers import ReceiverSettings
from agent.config.sections import Agent, Notifications, QuietHours, Route, Slack
from agent.config.self_report import Heartbeat, Http
from agent.config.settings import LISTED_MODELS, SECTIONS
from agent.config.silences import ConfiguredSilence
from agent.config.sources import Cluster, Flink, Logs, Streams
from agent.config.zookeeper import ZooKeeperAuth, ZooKeeperClient, ZooKeeperSasl
from agent.engine.correlation import Correlation, Step
from agent.engine.incidents import Lifetimes
from agent.model.config_types import ConfigModel
from agent.model.declared_stores import DeclaredStore
from agent.model.findings import Finding, Incident
from agent.model.name_filter import NameFilter
from agent.model.observations import KINDS as OBSERVATIONS
from agent.model.observations.base import Observation
from agent.notify.receivers import KINDS as RECEIVERS
from agent.rules import KINDS as RULES
from scripts.reference.pages import PAGES

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"
WRITTEN = {name: (DIRECTORY / name).read_text(encoding="utf-8") for name in PAGES}

TABLES: dict[str, tuple[type[ConfigModel], dict[str, Any]]] = {
    "[agent]": (Agent, {}),
    "[journal]": (Journal, {}),
    "[journal.s3]": (S3, {}),
    "[incidents]": (Lifetimes, {}),
    "[notifications]": (Notifications, {}),
    "[[notifications.quiet_hours]]": (QuietHours, {"schedule": "0 20 * * *", "lasts": "11h"}),
    "[clusters.NAME]": (Cluster, {"bootstrap_servers": "k:9092"}),
    "Name filters": (NameFilter, {}),
    "Secrets": (Credential, {"env": "A"}),
    "[clusters.NAME.zookeeper_client]": (ZooKeeperClient, {}),
    "[[clusters.NAME.zookeeper_client.auth]]": (ZooKeeperAuth, {"env": "A"}),
    "[clusters.NAME.zookeeper_client.sasl]": (ZooKeeperSasl, {"mechanism": "GSSAPI"}),
    "[flink.NAME]": (Flink, {"rest": ["http://jobmanager-1:8081"], "zookeeper": "zk:2181"}),
    "[flink.NAME.http_client]": (HttpClient, {}),
    "[streams.NAME]": (Streams, {"metrics": ["http://app-1:9404/metrics"]}),
    "[logs.NAME]": (Logs, {"paths": ["/var/log/kafka/*.log"]}),
    "[[rules.NAME.stores]]": (DeclaredStore, {"application": "shop", "store": "counts"}),
    "[correlations.NAME]": (Correlation, {"steps": []}),
    "[[correlations.NAME.steps]]": (Step, {}),
    "[http]": (Http, {}),
    "[heartbeat]": (Heartbeat, {"url": "https://hc-ping.com/1"}),
    "[spark]": (Spark, {}),
    "[checks.NAME]": (Check, {}),
    "[slack]": (Slack, {"channel": "C", "token_env": "T"}),
    "[[slack.routes]]": (Route, {"channel": "C"}),
    "[receivers.NAME]": (ReceiverSettings, {}),
    "Receivers of kind alertmanager": (RECEIVERS["alertmanager"], {"urls": ["http://alertmanager:9093"]}),
    "Receivers of kind email": (RECEIVERS["email"], {"host": "h", "sender": "a@b", "recipients": ["a@b"]}),
    "Receivers of kind pagerduty": (RECEIVERS["pagerduty"], {"routing_key": {"env": "A"}}),
    "Receivers of kind webhook": (RECEIVERS["webhook"], {"url": "https://h/"}),
    "[[silences]]": (
        ConfiguredSilence,
        {"comment": "c", "severities": ["warning"], "until": "2026-12-01T06:00:00Z"},
    ),
}
"""Each heading with a table of keys, its model, and the keys that the model requires."""


def sections(page: str) -> dict[str, str]:
    parts = re.split(r"^##+ (.*)\n", WRITTEN[page], flags=re.MULTILINE)
    return {heading.strip("`"): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of a Markdown table by the key in the first one."""
    lines = (line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| `"))
    return {cells[0].strip("`"): cells[1:] for cells in lines}


@pytest.mark.parametrize("page", PAGES)
def test_page_is_what_the_code_generates(page: str) -> None:
    assert PAGES[page]() == WRITTEN[page], "run `make reference`"


def test_all_tables_and_keys_are_documented() -> None:
    documented = {heading: set(rows(text)) for heading, text in sections("configuration.md").items() if rows(text)}
    assert documented == {heading: set(model.model_fields) for heading, (model, _) in TABLES.items()}
    names = re.findall(r"^## `\[\[?(\w+)", WRITTEN["configuration.md"], re.MULTILINE)
    assert sorted(names) == sorted([*SECTIONS, *NAMED_TABLES, *LISTED_MODELS])


@pytest.mark.parametrize("heading", TABLES)
def test_documented_defaults_are_the_defaults(heading: str) -> None:
    model, required = TABLES[heading]
    documented = {key: cells[1] for key, cells in rows(sections("configuration.md")[heading]).items()}
    defaults = {
        key: tomli.loads(f"default = {match[1]}")["default"]
        for key, default in documented.items()
        if (match := re.fullmatch(r"`([^$`]*)`", default))
    }
    bare = model.model_validate_json(json.dumps(required))
    assert model.model_validate_json(json.dumps(defaults | required)) == bare
    assert {key for key, default in documented.items() if default == "required"} == {
        key for key, field in model.model_fields.items() if field.is_required()
    }
    absent = {key for key, default in documented.items() if default == "none"} - set(required)
    assert all(getattr(bare, key) is None for key in absent)


@pytest.mark.parametrize("page", ["configuration.md", "rules.md"])
def test_all_keys_are_explained(page: str) -> None:
    for heading, text in sections(page).items():
        for key, cells in rows(text).items():
            assert len(cells) == 3, (heading, key)
            assert all(cells), (heading, key)


def test_all_options_of_rules_are_documented() -> None:
    documented = {kind: set(rows(text)) for kind, text in sections("rules.md").items()}
    assert documented == {kind: set(rule.model_fields) for kind, rule in RULES.items()}


def test_example_is_a_valid_configuration() -> None:
    example = WRITTEN["configuration.md"].split("```toml\n")[1].split("```")[0]
    settings = loads(example, "configuration.md", need_clusters=True)
    assert settings.slack is not None


def test_placeholders_and_shared_keys_are_documented() -> None:
    text = sections("configuration.md")
    title = rows(text["[correlations.NAME]"])["title"][2]
    assert set(re.findall(r"{(\w+)}", title)) == set(PLACEHOLDERS)
    shares = rows(text["[[correlations.NAME.steps]]"])["shares"][2]
    assert set(re.findall(r"`([a-z]+)`", shares)) == set(SHARED_KEYS)


def test_secrets_are_rejected_as_text() -> None:
    for name in ("sasl.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"):
        assert "must not be written in this file" in (kafka_property_problem(name, "x") or "")
    assert kafka_property_problem("sasl.username", {"env": "USER"}) is None


def test_all_commands_are_documented() -> None:
    assert set(sections("cli.md")) == {"backflow", *commands(main, "backflow")}


def commands(group: click.Group, name: str) -> Iterator[str]:
    for below, command in group.commands.items():
        yield f"{name} {below}"
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {below}")


def test_all_observations_and_their_fields_are_documented() -> None:
    common = set(Observation.__struct_fields__)
    documented = sections("observations.md")
    for kind, struct in OBSERVATIONS.items():
        assert set(rows(documented[kind])) == set(struct.__struct_fields__) - common


def test_incident_json_is_documented() -> None:
    documented = sections("incidents.md")
    assert set(rows(documented["Incident"])) == set(Incident.__struct_fields__)
    assert set(rows(documented["Finding"])) == set(Finding.__struct_fields__) - {"known_at", "undisturbed_since"}
