"""rules.toml is validated strictly: all mistakes at once, each with its line; no secret is ever shown."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.loading import LARGEST_FILE, load, loads
from agent.config.problems import SettingsError
from agent.config.schedules import trigger
from agent.config.sections import Slack
from agent.config.settings import Settings
from agent.model.findings import Incident, Severity
from agent.rules import CHECKS
from tests import samples

CLUSTER = '[clusters.main]\nbootstrap_servers = "k1:9092,k2:9092"\n'
RULES = '[rules.session]\nkind = "broker_session_lost"\n[rules.rewind]\nkind = "offset_rewind"\n'


def read(text: str, *, need_clusters: bool = False, overrides: Mapping[str, Any] | None = None) -> Settings:
    return loads(text, "rules.toml", need_clusters=need_clusters, overrides=overrides)


def mistakes(text: str, *, need_clusters: bool = False, overrides: Mapping[str, Any] | None = None) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        read(text, need_clusters=need_clusters, overrides=overrides)
    assert str(raised.value) == "\n".join(map(str, raised.value.problems))
    return [str(problem) for problem in raised.value.problems]


def blocks() -> Iterator[tuple[str, list[str]]]:
    text = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")
    for block in text.split("\n\n")[1:]:
        document, *expected = block.rstrip("\n").split("\n=> ")
        yield document, expected


MISTAKES = list(blocks())


def test_all_sections_are_read() -> None:
    settings = read(
        """
        agent.state_directory = "/var/lib/backflow"
        journal = { retention = "12h" }
        [clusters.main]
        bootstrap_servers = "SASL_SSL://k1:9093, [::1]:9092"
        zookeeper = "zk-1:2181,zk-2:2181/kafka"
        poll_interval = "500ms"
        log_directories = { 2005 = "/a", 2011 = ["/b", "hdfs://c/d"] }
        groups = { exclude = ["console-consumer-*"] }
        [clusters.main.kafka]
        "security.protocol" = "SASL_SSL"
        "sasl.mechanism" = "PLAIN"
        "enable.ssl.certificate.verification" = false
        "socket.timeout.ms" = 3000
        "sasl.username" = "backflow"
        "sasl.password" = { env = "KAFKA_PASSWORD" }
        [clusters.main.zookeeper_client]
        use_ssl = true
        ca = "/etc/ca.pem"
        auth = [{ env = "ZK_AUTH" }]
        sasl = { mechanism = "DIGEST-MD5", username = "agent", password = { env = "ZK_PASSWORD" } }
        [rules.session]
        kind = "broker_session_lost"
        [rules.rewind]
        kind = "offset_rewind"
        min_records = 5
        [correlations.c]
        steps = [{ rule = "session" }, { any = ["rewind"], shares = ["cluster"] }]
        within = "10m"
        severity = "critical"
        title = "{group} rewound {records} records {{sic}}"
        [spark]
        memory_limit = "1536m"
        conf = { "spark.ui.enabled" = true, "spark.a" = 1.5 }
        [checks.offset_history]
        schedule = "0 3 * * mon-fri"
        time_limit = "5m"
        [slack]
        channel = "C1"
        token_env = "SLACK_TOKEN"
        [[slack.routes]]
        channel = "C2"
        severities = ["critical"]
        clusters = { include = ["main"] }
        """,
        need_clusters=True,
    )
    cluster = settings.clusters["main"]
    secrets = {"KAFKA_PASSWORD": "a", "ZK_AUTH": "u:b", "ZK_PASSWORD": "c", "SLACK_TOKEN": "d"}
    assert settings.agent.state_directory == Path("/var/lib/backflow")
    assert (settings.journal.retention, settings.incidents.close_after) == (12 * 3_600_000, 3_600_000)
    assert (cluster.poll_interval, cluster.timeout) == (500, 5_000)
    assert cluster.zookeeper == "zk-1:2181,zk-2:2181/kafka"
    assert cluster.groups.match("g")
    assert not cluster.groups.match("console-consumer-1")
    assert cluster.kafka_properties(secrets) == {
        "bootstrap.servers": "SASL_SSL://k1:9093,[::1]:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "enable.ssl.certificate.verification": False,
        "socket.timeout.ms": 3000,
        "sasl.username": "backflow",
        "sasl.password": "a",
    }
    assert cluster.zookeeper_client.options(secrets) == {
        "timeout": 10.0,
        "auth_data": [("digest", "u:b")],
        "sasl_options": {"mechanism": "DIGEST-MD5", "username": "agent", "password": "c"},
        "ca": "/etc/ca.pem",
        "verify_certs": True,
        "use_ssl": True,
        "check_hostname": False,
    }
    assert cluster.log_directories == {2005: ("/a",), 2011: ("/b", "hdfs://c/d")}
    assert settings.spark.memory_limit == 1536 << 20
    assert settings.spark.conf == {"spark.ui.enabled": "true", "spark.a": "1.5"}
    assert settings.checks["offset_history"].time_limit == 300_000
    assert settings.checks["log_segments"].enabled
    assert settings.checks.keys() == CHECKS.keys()
    assert list(settings.rules) == ["session", "rewind"]
    assert settings.rules["rewind"].kind == "offset_rewind"
    assert settings.correlations["c"].within == 600_000
    assert settings.slack is not None
    assert settings.slack.read_secret(secrets).get_secret_value() == "d"
    assert not settings.slack.is_webhook


def test_empty_configuration_suffices_for_replay_but_not_run() -> None:
    assert read("").clusters == {}
    assert mistakes("# nothing\n", need_clusters=True) == [
        "rules.toml:1: [clusters]: no cluster to monitor; add [clusters.main] with `bootstrap_servers`"
    ]


def test_streams_application_defaults_to_the_only_cluster() -> None:
    text = CLUSTER + '[streams.shop]\nmetrics = ["http://app-1:9404/metrics?name[]=a", " https://app-2/ "]\n'
    shop = read(text, need_clusters=True).streams["shop"]
    assert (shop.cluster, shop.application) == (None, None)
    assert shop.metrics == ("http://app-1:9404/metrics?name[]=a", "https://app-2/")
    assert read(text + 'cluster = "main"\n').streams["shop"].cluster == "main"


def test_declared_stores_are_on_the_cluster_that_they_name() -> None:
    stores = """
[rules.state]
kind = "state_not_restored"
stores = [
  { application = "a", store = "s" },
  { application = "b", store = "s", cluster = "main" },
  { application = "b", store = "s", cluster = "other" },
]
"""
    other = '[clusters.other]\nbootstrap_servers = "o:9092"\n'
    settings = read(CLUSTER + other + stores)
    for cluster in ("main", "other"):
        named = [(store.application, store.cluster) for store in settings.declared_stores(cluster)]
        assert named == [("a", None), ("b", cluster)]
    assert mistakes(CLUSTER + stores) == [
        "rules.toml:9: [rules.state] stores[2].cluster: there is no [clusters.other]; known: main"
    ]


def test_all_mistakes_are_reported_with_their_lines() -> None:
    expected = mistakes(
        """stray = 1
[cluster.main]
[agent]
log_format = "jsn"
state_dir = "/x"
[journal]
retention = 30
[clusters.main]
zookeeper = "zk 1;2181"
poll_interval = "0s"
groups = { include = "x", exlude = [] }
[clusters.main.kafka]
"sasl.password" = "hunter2"
"security.protocl" = "SSL"
"socket.timeout.ms" = 1.5
"ssl.key.pem" = { fil = "x" }
security.protocol = "SSL"
"debug" = "brokr"
[clusters.main.zookeeper_client]
auth = [
  # a valid one and an invalid one
  { env = "A" }, { scheme = "digest" },
]
[clusters]
second = 5
[rules.rewind]
kind = "offset_rewnd"
[rules.nokind]
[rules.other]
kind = "offset_rewind"
min_records = "many"
min_recs = 5
[correlations.c]
witin = "5m"
steps = [
  { rule = "rewnd", shares = ["cluster"] },
  { any = ["rewind", "lost", "rewind"], shares = ["partion"] },
  { rule = "other", any = ["rewind"], optional = true },
]
severity = "dire"
title = '''
{grop} {records:,}'''
[slack]
token = "xoxb-hunter2"
[[slack.routes]]
channel = ""
[[slack.routes]]
severities = ["warn"]
""",
        need_clusters=True,
    )
    assert [line.removeprefix("rules.toml:").split(": ", 2)[:2] for line in expected] == [
        ["1", "[stray]"],
        ["2", "[cluster]"],
        ["4", "[agent] log_format"],
        ["5", "[agent] state_dir"],
        ["7", "[journal] retention"],
        ["8", "[clusters.main] bootstrap_servers"],
        ["9", "[clusters.main] zookeeper"],
        ["10", "[clusters.main] poll_interval"],
        ["11", "[clusters.main] groups.exlude"],
        ["11", "[clusters.main] groups.include"],
        ["13", '[clusters.main] kafka."sasl.password"'],
        ["14", '[clusters.main] kafka."security.protocl"'],
        ["15", '[clusters.main] kafka."socket.timeout.ms"'],
        ["16", '[clusters.main] kafka."ssl.key.pem".fil'],
        ["17", "[clusters.main] kafka.security"],
        ["18", "[clusters.main] kafka.debug"],
        ["22", "[clusters.main] zookeeper_client.auth[1]"],
        ["25", "[clusters.second]"],
        ["27", "[rules.rewind] kind"],
        ["28", "[rules.nokind] kind"],
        ["31", "[rules.other] min_records"],
        ["32", "[rules.other] min_recs"],
        ["34", "[correlations.c] witin"],
        ["36", "[correlations.c] steps[0].rule"],
        ["36", "[correlations.c] steps[0].shares"],
        ["37", "[correlations.c] steps[1].any[1]"],
        ["37", "[correlations.c] steps[1].any[2]"],
        ["37", "[correlations.c] steps[1].shares[0]"],
        ["38", "[correlations.c] steps[2]"],
        ["38", "[correlations.c] steps[2]"],
        ["38", "[correlations.c] steps[2].optional"],
        ["40", "[correlations.c] severity"],
        ["41", "[correlations.c] title"],
        ["41", "[correlations.c] title"],
        ["44", "[slack] token"],
        ["46", "[slack] routes[0].channel"],
        ["47", "[slack] routes[1].channel"],
        ["48", "[slack] routes[1].severities[0]"],
    ]
    assert "hunter2" not in "\n".join(expected)


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[expected[0] for _, expected in MISTAKES])
def test_mistake_is_reported_with_its_line_and_key(text: str, expected: list[str]) -> None:
    assert mistakes(text) == [f"rules.toml:{message}" for message in expected]
    assert "hunter2" not in "".join(expected)


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"[agent]\n# caf\xe9\n")
    pipe, large = tmp_path / "pipe", tmp_path / "large.toml"
    os.mkfifo(pipe)
    large.write_bytes(b"#" * (LARGEST_FILE + 1))
    for path, expected in (
        (tmp_path / "rules.toml", f"{tmp_path}/rules.toml: cannot be read: No such file or directory"),
        (tmp_path, f"{tmp_path}: is a directory; give the path of a file such as rules.toml"),
        (pipe, f"{pipe}: is not a regular file; give the path of a file such as rules.toml"),
        (large, f"{large}: is larger than 4 MiB; give the path of a file such as rules.toml"),
        (latin, f"{latin}:2: not UTF-8 text; save the file as UTF-8"),
    ):
        with pytest.raises(SettingsError) as raised:
            load(path, need_clusters=False)
        assert str(raised.value) == expected


def test_a_number_of_too_many_digits_has_its_line() -> None:
    assert mistakes(f"[agent]\nx = {'9' * 5_000}") == ["rules.toml:2: a number has too many digits"]


def test_characters_that_do_not_show_are_escaped_in_messages() -> None:
    assert mistakes('[agent]\nlog_format = "\\u001b[31m\\u202e"')[0].endswith(r'got "\x1b[31m\u202e"')


def test_too_deep_nesting_is_reported() -> None:
    for depth in (300, 5_000):
        assert "are nested too deeply" in mistakes("agent.x = " + "[" * depth + "]" * depth)[0]


def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_bytes(b"\xef\xbb\xbf[agent]\r\nlog_format = 'json'\r\nx = 1\r\n")
    with pytest.raises(SettingsError, match=r"rules\.toml:3: \[agent\] x: unknown key"):
        load(path, need_clusters=False)


@given(
    st.sampled_from(["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"]), st.data()
)
def test_secret_in_the_file_is_rejected_and_never_shown(name: str, data: st.DataObject) -> None:
    secret = data.draw(st.sampled_from(["hunter2", 8675309, True, ["hunter2"], 1.8675309]))
    written = str(secret).lower() if isinstance(secret, bool) else repr(secret)
    place = data.draw(
        st.sampled_from(
            ["kafka.'{}' = {}", "kafka.'{}' = {{ file = {} }}", "kafka.'{}' = {{ envi = {} }}", "'{}' = {}"]
        )
    )
    expected = (
        "\n".join(mistakes(CLUSTER + place.format(name, written))) if secret != "hunter2" or "file" not in place else ""
    )
    assert "hunter2" not in expected
    assert "8675309" not in expected
    assert not expected or "rules.toml:3" in expected


def test_settings_contain_sources_of_secrets_not_the_secrets() -> None:
    settings = read(CLUSTER + "kafka.'sasl.password' = { env = 'KAFKA_PASSWORD' }\n")
    assert settings.clusters["main"].kafka_properties({"KAFKA_PASSWORD": "hunter2"})["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(settings)


def test_overrides_are_merged_key_by_key() -> None:
    text = CLUSTER + 'zookeeper = "zk:2181"\ntimeout = "9s"\n' + RULES
    overrides = {
        "clusters": {"main": {"bootstrap_servers": "127.0.0.1:1", "zookeeper": None}},
        "agent": {"state_directory": Path("/x")},
    }
    settings = read(text, overrides=overrides)
    cluster = settings.clusters["main"]
    assert (cluster.bootstrap_servers, cluster.zookeeper, cluster.timeout) == ("127.0.0.1:1", None, 9_000)
    assert settings.agent.state_directory == Path("/x")
    assert list(settings.rules) == ["session", "rewind"]


def test_mistake_in_an_override_is_not_attributed_to_the_file() -> None:
    overrides = {"clusters": {"main": {"poll_interval": 5}, "new": {"timeout": "1s"}}, "agent": {"x": 1}}
    assert [
        message.split(": ")[:2] for message in mistakes("[clusters.main]\npoll_interval = '1s'\n", overrides=overrides)
    ] == [
        ["overrides", "[agent] x"],
        ["overrides", "[clusters.main] poll_interval"],
        ["overrides", "[clusters.new] bootstrap_servers"],
        ["rules.toml:1", "[clusters.main] bootstrap_servers"],
    ]


def test_state_directory_defaults_to_that_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert read("").agent.state_directory == Path("backflow-state")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/backflow:/var/lib/other")
    assert read("").agent.state_directory == Path("/var/lib/backflow")


def test_first_matching_route_selects_the_channel() -> None:
    slack = read(
        """
        slack = { channel = "C0", token_env = "T", routes = [
            { channel = "C1", severities = ["critical"], clusters = { include = ["prod-*"] } },
            { channel = "C2", clusters = { include = ["prod-*"] } },
        ] }
        """
    ).slack
    assert isinstance(slack, Slack)
    assert slack.channel_for(routed(Severity.CRITICAL, "prod-1")) == "C1"
    assert slack.channel_for(routed(Severity.WARNING, "prod-1")) == "C2"
    assert slack.channel_for(routed(Severity.CRITICAL, "test")) == "C0"
    assert slack.channel_for(routed(Severity.CRITICAL, None)) == "C0"


def routed(severity: Severity, cluster: str | None, **subject: Any) -> Incident:
    finding = samples.rewind(subject={"cluster": cluster, **subject}, labels=("to_earliest",))
    return samples.incident(severity=severity, cluster=cluster, causes=(), findings=(finding,))


def test_routes_match_rules_groups_topics_and_labels() -> None:
    slack = read(
        """
        rules.rewind.kind = "offset_rewind"
        slack = { channel = "C0", token_env = "T", routes = [
            { channel = "C1", rules = { include = ["rewind"] }, groups = { include = ["pay*"], exclude = ["pay-x"] } },
            { channel = "C2", topics = { include = ["orders*"] }, labels = { include = ["to_earliest"] } },
            { channel = "C3", labels = { exclude = ["to_earliest"] } },
            { channel = "C4", groups = { include = ["report-job"] } },
        ] }
        """
    ).slack
    assert isinstance(slack, Slack)
    expected = {
        ("payments", "t"): "C1",
        ("pay-x", "orders-1"): "C2",
        ("pay-x", "t"): "C0",
        ("billing", "orders-1"): "C2",
    }
    for (group, topic), channel in expected.items():
        assert slack.channel_for(routed(Severity.WARNING, "main", group=group, topic=topic)) == channel
    assert slack.channel_for(routed(Severity.WARNING, "main", job="1f", job_name="report-job", topic="t")) == "C4"
    assert slack.channel_for(routed(Severity.WARNING, "main")) == "C0"


def test_an_additional_route_leaves_the_channel_as_it_is() -> None:
    slack = read(
        """
        slack = { channel = "C0", token_env = "T", routes = [
            { channel = "PAGER", severities = ["critical"], additional = true },
            { channel = "C1", clusters = { include = ["prod*"] } },
            { channel = "PAGER", topics = { include = ["money"] }, additional = true },
        ] }
        """
    ).slack
    assert isinstance(slack, Slack)
    assert slack.additional_channels == ["PAGER"]
    for incident, channel, is_copied in (
        (routed(Severity.CRITICAL, "prod"), "C1", True),
        (routed(Severity.WARNING, "prod"), "C1", False),
        (routed(Severity.WARNING, "test", topic="money"), "C0", True),
    ):
        assert (slack.channel_for(incident), slack.is_copied(incident, "PAGER")) == (channel, is_copied)


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://m:7077", "spark://m-1:7077,m-2:7077", "spark://[::1]:7077", "k8s://https://h:6443"),
    ],
)
def test_all_forms_of_spark_masters_are_accepted(master: str) -> None:
    assert loads(f'[spark]\nmaster = "{master}"', "rules.toml", need_clusters=False).spark.master == master


def test_spark_connect_server_is_an_address_in_place_of_a_master() -> None:
    text = '[spark]\nremote = "sc://spark-1:15002"'
    assert loads(text, "rules.toml", need_clusters=False).spark.remote == "sc://spark-1:15002"
    with pytest.raises(SettingsError, match="expected the address of a Spark Connect server"):
        loads('[spark]\nremote = "spark-1:15002"', "rules.toml", need_clusters=False)
    with pytest.raises(SettingsError, match="exclude each other"):
        loads(f'{text}\nmaster = "yarn"', "rules.toml", need_clusters=False)


def test_schedule_is_an_interval_or_cron_in_utc() -> None:
    friday = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
    assert str(trigger("24h").get_next_fire_time(friday, friday)) == "2026-11-21 23:00:00+00:00"
    assert str(trigger("0 3 * * mon-fri").get_next_fire_time(None, friday)) == "2026-11-23 03:00:00+00:00"
    assert str(trigger("*/15 * * * *").get_next_fire_time(None, friday)) == "2026-11-20 23:00:00+00:00"


@pytest.mark.parametrize(
    ("interval", "expected"),
    [("7d", "2026-11-26 00:00"), ("24h", "2026-11-21 00:00"), ("6h", "2026-11-21 00:00"), ("90m", "2026-11-20 22:30")],
)
def test_interval_is_the_same_whenever_the_agent_starts(interval: str, expected: str) -> None:
    for minute in range(1, 60, 7):
        started = datetime(2026, 11, 20, 21, minute, tzinfo=UTC)
        assert str(trigger(interval).get_next_fire_time(None, started)) == f"{expected}:00+00:00"


KEYS = [
    *(
        "clusters",
        "main",
        "kafka",
        "sasl.password",
        "groups",
        "include",
        "zookeeper_client",
        "auth",
        "agent",
        "rules",
        "kind",
    ),
    *("correlations", "steps", "rule", "any", "shares", "optional", "title", "severity", "run_checks"),
    *("spark", "conf", "spark.x", "packages", "checks", "offset_history", "schedule", "log_directories", "5"),
    *("slack", "routes", "channel", "silences", "until", "comment", "lasts", "time_zone"),
]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "main", "offset_rewind", "{", "{group}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["clusters", "rules", "correlations", "slack", "agent", "spark", "checks", "x"]), JUNK
    )
)
def test_any_input_gives_settings_or_problems(overrides: dict[str, Any]) -> None:
    with suppress(SettingsError):
        read(CLUSTER + RULES, overrides=overrides)
