"""The documentation names what exists, and all of it: held against the code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomli

from agent.config.check_sections import Check, Spark
from agent.config.correlation_checks import KEYS, PLACEHOLDERS
from agent.config.flink_section import Flink
from agent.config.kafka_properties import kafka_property_problem
from agent.config.log_section import Logs
from agent.config.problems import NAMED_TABLES
from agent.config.sections import (
    Agent,
    Cluster,
    Journal,
    Route,
    Slack,
    ZooKeeperAuth,
    ZooKeeperClient,
    ZooKeeperSasl,
)
from agent.config.settings import SECTIONS, loads
from agent.config.streams_section import Streams
from agent.engine.correlation import Correlation, Step
from agent.engine.incidents import Lifetimes
from agent.model.config_types import ConfigModel, NameFilter
from agent.model.declared_stores import DeclaredStore

CONFIGURATION = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")

DOCUMENTED: dict[str, tuple[type[ConfigModel], dict[str, Any]]] = {
    "[agent]": (Agent, {}),
    "[journal]": (Journal, {}),
    "[incidents]": (Lifetimes, {}),
    "[clusters.NAME]": (Cluster, {"bootstrap_servers": "k:9092"}),
    "Name patterns": (NameFilter, {}),
    "[clusters.NAME.zookeeper_client]": (ZooKeeperClient, {}),
    "auth": (ZooKeeperAuth, {"env": "A"}),
    "sasl": (ZooKeeperSasl, {"mechanism": "GSSAPI"}),
    "[flink.NAME]": (Flink, {"rest": ["http://jobmanager-1:8081"], "zookeeper": "zk:2181"}),
    "[streams.NAME]": (Streams, {"metrics": ["http://app-1:9404/metrics"]}),
    "[logs.NAME]": (Logs, {"paths": ["/var/log/kafka/*.log"]}),
    "stores": (DeclaredStore, {"application": "shop", "store": "counts"}),
    "[correlations.NAME]": (Correlation, {"steps": []}),
    "steps": (Step, {}),
    "[spark]": (Spark, {}),
    "[checks.NAME]": (Check, {}),
    "[slack]": (Slack, {"channel": "C", "token_env": "T"}),
    "[[slack.routes]]": (Route, {"channel": "C"}),
}
"""Each heading with a table of keys, the section it is about, and what the section cannot do without."""


def rows() -> dict[str, dict[str, str]]:
    """Under each heading, the keys of its table with what is said of their defaults."""
    tables = {}
    for part in re.split(r"^##+ ", CONFIGURATION, flags=re.MULTILINE)[1:]:
        heading, *lines = part.splitlines()
        keys = {match[1]: match[2] for line in lines if (match := re.match(r"\| `(\w+)` \| (.*?) \|", line))}
        if keys:
            tables[heading.strip("`")] = keys
    return tables


def test_every_section_and_key_is_documented_and_nothing_else_is() -> None:
    """Key by key, in both directions."""
    assert {heading: set(keys) for heading, keys in rows().items()} == {
        heading: set(section.model_fields) for heading, (section, _) in DOCUMENTED.items()
    }
    headings = re.findall(r"^## `\[(\w+)", CONFIGURATION, re.MULTILINE)
    assert sorted(headings) == sorted([*SECTIONS, *NAMED_TABLES])


@pytest.mark.parametrize("heading", DOCUMENTED)
def test_the_defaults_documented_are_the_defaults(heading: str) -> None:
    """A default is written as TOML; "none" and "required" say that there is none."""
    section, required = DOCUMENTED[heading]
    said = rows()[heading]
    defaults = {
        key: tomli.loads(f"default = {match[1]}")["default"]
        for key, default in said.items()
        if (match := re.fullmatch(r"`([^$].*)`", default))
    }
    bare = section.model_validate_json(json.dumps(required))
    assert section.model_validate_json(json.dumps(defaults | required)) == bare
    assert {key for key, default in said.items() if default == "required"} == {
        key for key, field in section.model_fields.items() if field.is_required()
    }
    nothing = {key for key, default in said.items() if default == "none"} - set(required)
    assert all(getattr(bare, key) is None for key in nothing)


def test_the_example_is_a_configuration_that_runs() -> None:
    """What one copies from the page works."""
    (example,) = re.findall(r"```toml\n(.*?)```", CONFIGURATION, re.DOTALL)
    settings = loads(example, "configuration.md", need_clusters=True)
    assert settings.slack is not None


def test_the_keys_of_titles_and_steps_are_those_documented() -> None:
    """Placeholders in the title, and what steps may share."""
    title = next(line for line in CONFIGURATION.splitlines() if line.startswith("| `title`"))
    assert set(re.findall(r"{(\w+)}", title)) == set(PLACEHOLDERS)
    shares = next(line for line in CONFIGURATION.splitlines() if line.startswith("| `shares`"))
    assert set(re.findall(r"`(\w+)`", shares)) == {"shares", *KEYS}


def test_secrets_are_refused_as_text_as_documented() -> None:
    """The page promises it for passwords, PEM keys and other secrets."""
    for name in ("sasl.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"):
        assert "must not stand in this file" in (kafka_property_problem(name, "x") or "")
    assert kafka_property_problem("sasl.username", {"env": "USER"}) is None
