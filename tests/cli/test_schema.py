"""The JSON Schema of rules.toml: it accepts what the reader accepts, and marks mistakes in keys and values."""

import json
from typing import Any

import jsonschema
import pytest
import tomli
from click.testing import CliRunner

from agent.cli.main import main
from agent.config.shipped import shipped

KITCHEN_SINK = """
[agent]
state_directory = "state"
[clusters.main]
bootstrap_servers = "k:9092"
poll_interval = "1.5s"
changelog_memory = "1g"
groups = { include = ["a*"], exclude = ["ab"] }
log_directories = { 1 = "/a", 2 = ["/b", "/c"] }
[clusters.main.kafka]
"security.protocol" = "SASL_SSL"
"socket.timeout.ms" = 10000
"sasl.password" = { env = "PASSWORD" }
[slack]
channel = "#a"
token_env = "TOKEN"
[[slack.routes]]
channel = "#b"
severities = ["critical"]
[receivers.own]
kind = "webhook"
url = { file = "url" }
rules = { include = ["rewind"] }
[receivers.alerts]
kind = "alertmanager"
urls = ["http://alertmanager:9093"]
resend_interval = "30s"
[[silences]]
comment = "restarts"
groups = { include = ["a*"] }
schedule = "0 2 * * sun"
lasts = "2h"
[spark]
conf = { "spark.sql.shuffle.partitions" = 8 }
[checks.offset_history]
schedule = "24h"
[rules.rewind]
kind = "offset_rewind"
min_records = 5
[rules.state]
kind = "state_not_restored"
stores = [{ application = "shop", store = "counts" }]
[correlations.c]
steps = [{ rule = "rewind" }, { any = ["state"], shares = ["cluster"] }]
within = "5m"
title = "x"
"""


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft4Validator:
    schema = json.loads(CliRunner().invoke(main, ["schema"]).output)
    jsonschema.Draft4Validator.check_schema(schema)
    return jsonschema.Draft4Validator(schema)


def paths(validator: jsonschema.Draft4Validator, text: str) -> set[str]:
    """Return where the schema finds mistakes."""
    errors: Any = validator.iter_errors(tomli.loads(text))
    return {".".join(map(str, error.path)) for error in errors}


@pytest.mark.parametrize("text", [shipped().read_text(encoding="utf-8"), KITCHEN_SINK, ""])
def test_valid_configurations_are_valid(validator: jsonschema.Draft4Validator, text: str) -> None:
    assert paths(validator, text) == set()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[cluster.main]\n", ""),
        ('[clusters.main]\nzookeeper = "z"\n', "clusters.main"),
        ('[clusters.main]\nbootstrap_servers = "k:1"\npoll_interval = 5\n', "clusters.main.poll_interval"),
        ('[clusters.main]\nbootstrap_servers = "k:1"\npoll_interval = "5"\n', "clusters.main.poll_interval"),
        ('[spark]\nmemory_limit = "4"\n', "spark.memory_limit"),
        ("[spark]\nconcurrency = 0\n", "spark.concurrency"),
        ('[rules.a]\nkind = "offset_rewnd"\n', "rules.a"),
        ('[rules.a]\nkind = "offset_rewind"\nmin_recrds = 1\n', "rules.a"),
        ('[checks.nothing]\nschedule = "1h"\n', "checks"),
        (
            '[slack]\nchannel = "#a"\n[[slack.routes]]\nchannel = "#b"\nseverities = ["bad"]\n',
            "slack.routes.0.severities.0",
        ),
        ('[receivers.a]\nkind = "webhok"\nurl = "http://h/"\n', "receivers.a"),
        ('[receivers.a]\nkind = "webhook"\nurl = 5\n', "receivers.a"),
        ('[[silences]]\ncomment = "c"\nuntil = "2026-12-01T06:00:00Z"\ngroup = "a"\n', "silences.0"),
    ],
)
def test_mistakes_are_marked(validator: jsonschema.Draft4Validator, text: str, path: str) -> None:
    assert paths(validator, text) == {path}


def test_keys_have_meanings_and_defaults(validator: jsonschema.Draft4Validator) -> None:
    schema: Any = validator.schema
    interval = schema["properties"]["clusters"]["additionalProperties"]["properties"]["poll_interval"]
    assert interval["default"] == "2s"
    assert interval["description"] == "How often offsets, leaders and groups are read."
