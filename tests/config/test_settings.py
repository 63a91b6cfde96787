"""rules.toml is judged strictly: all mistakes at once, each with its place, in a sentence; no secret is ever shown."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.check_sections import trigger
from agent.config.problems import SettingsError
from agent.config.sections import Slack
from agent.config.settings import Settings, load, loads
from agent.model.findings import Severity
from agent.rules import CHECKS

CLUSTER = '[clusters.main]\nbootstrap_servers = "k1:9092,k2:9092"\n'
RULES = '[rules.session]\nkind = "broker_session_lost"\n[rules.rewind]\nkind = "offset_rewind"\n'


def read(text: str, *, need_clusters: bool = False, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings in a text."""
    return loads(text, "rules.toml", need_clusters=need_clusters, overrides=overrides)


def mistakes(text: str, *, need_clusters: bool = False, overrides: Mapping[str, Any] | None = None) -> list[str]:
    """What is said about a text that has mistakes."""
    with pytest.raises(SettingsError) as raised:
        read(text, need_clusters=need_clusters, overrides=overrides)
    assert str(raised.value) == "\n".join(map(str, raised.value.problems))
    return [str(problem) for problem in raised.value.problems]


def blocks() -> Iterator[tuple[str, list[str]]]:
    """Each text of mistakes.txt, with what is to be said about it."""
    text = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8")
    for block in text.split("\n\n")[1:]:
        document, *told = block.rstrip("\n").split("\n=> ")
        yield document, told


MISTAKES = list(blocks())


def test_a_whole_configuration_is_read() -> None:
    """Every section, in the ways in which TOML lets one write it."""
    settings = read(
        """
        agent.state_directory = "/var/lib/backflow"
        journal = { retention = "12h" }
        [clusters.main]
        bootstrap_servers = "SSL://k1:9093, [::1]:9092"
        zookeeper = "zk-1:2181,zk-2:2181/kafka"
        poll_interval = "500ms"
        log_directories = { 2005 = "/a", 2011 = ["/b", "hdfs://c/d"] }
        groups = { exclude = ["console-consumer-*"] }
        [clusters.main.kafka]
        "security.protocol" = "SASL_SSL"
        "enable.ssl.certificate.verification" = false
        "socket.timeout.ms" = 3000
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
        title = "{group} went back {records} records {{sic}}"
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
        "bootstrap.servers": "SSL://k1:9093,[::1]:9092",
        "security.protocol": "SASL_SSL",
        "enable.ssl.certificate.verification": False,
        "socket.timeout.ms": 3000,
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
    token = settings.slack.token(secrets)
    assert token is not None
    assert token.get_secret_value() == "d"
    assert settings.slack.webhook(secrets) is None


def test_an_empty_configuration_is_one_for_replay_and_none_for_run() -> None:
    """Replay takes any cluster that the lines name; a daemon without a cluster has nothing to do."""
    assert read("").clusters == {}
    assert mistakes("# nothing\n", need_clusters=True) == [
        "rules.toml:1: [clusters]: no cluster to watch; [clusters.main] with its bootstrap_servers makes one"
    ]


def test_a_streams_application_runs_on_the_only_cluster_unless_told() -> None:
    """Its name is the table's unless told; an address may have a query."""
    text = CLUSTER + '[streams.shop]\nmetrics = ["http://app-1:9404/metrics?name[]=a", " https://app-2/ "]\n'
    shop = read(text, need_clusters=True).streams["shop"]
    assert (shop.cluster, shop.application) == (None, None)
    assert shop.metrics == ("http://app-1:9404/metrics?name[]=a", "https://app-2/")
    assert read(text + 'cluster = "main"\n').streams["shop"].cluster == "main"


def test_twenty_and_more_mistakes_are_all_told_each_with_its_line() -> None:
    """Whatever the mistakes are, and however deep they stand."""
    told = mistakes(
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
  # one that is right, and one that is not
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
    assert [line.removeprefix("rules.toml:").split(": ", 2)[:2] for line in told] == [
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
    assert "hunter2" not in "\n".join(told)


@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=[told[0] for _, told in MISTAKES])
def test_a_mistake_is_told_in_a_sentence_with_its_place(text: str, told: list[str]) -> None:
    """The place is the key's, or that of the table that lacks it; nothing else is said, and no secret."""
    assert mistakes(text) == [f"rules.toml:{one}" for one in told]
    assert "hunter2" not in "".join(told)


def test_a_file_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    """Missing, a directory, not UTF-8."""
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"[agent]\n# caf\xe9\n")
    for path, told in (
        (tmp_path / "rules.toml", f"{tmp_path}/rules.toml: cannot be read: No such file or directory"),
        (tmp_path, f"{tmp_path}: is a directory; name the file in it, such as rules.toml"),
        (latin, f"{latin}:2: not UTF-8 text; save the file as UTF-8"),
    ):
        with pytest.raises(SettingsError) as raised:
            load(path, need_clusters=False)
        assert str(raised.value) == told


def test_what_stands_too_deep_is_told_in_a_sentence() -> None:
    """No recursion of ours or of a library's ends in a traceback."""
    for depth in (300, 5_000):
        assert "stand too deep in one another" in mistakes("agent.x = " + "[" * depth + "]" * depth)[0]


def test_a_byte_order_mark_and_windows_line_ends_are_no_mistakes(tmp_path: Path) -> None:
    """Editors write them; lines still count from 1."""
    path = tmp_path / "rules.toml"
    path.write_bytes(b"\xef\xbb\xbf[agent]\r\nlog_format = 'json'\r\nx = 1\r\n")
    with pytest.raises(SettingsError, match=r"rules\.toml:3: \[agent\] x: unknown key"):
        load(path, need_clusters=False)


@given(
    st.sampled_from(["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"]), st.data()
)
def test_a_secret_in_the_file_is_refused_and_never_shown(name: str, data: st.DataObject) -> None:
    """Wherever it stands, and of whatever type: as a literal, under a mistyped key, in a list."""
    secret = data.draw(st.sampled_from(["hunter2", 8675309, True, ["hunter2"], 1.8675309]))
    written = str(secret).lower() if isinstance(secret, bool) else repr(secret)
    place = data.draw(
        st.sampled_from(
            ["kafka.'{}' = {}", "kafka.'{}' = {{ file = {} }}", "kafka.'{}' = {{ envi = {} }}", "'{}' = {}"]
        )
    )
    told = (
        "\n".join(mistakes(CLUSTER + place.format(name, written))) if secret != "hunter2" or "file" not in place else ""
    )
    assert "hunter2" not in told
    assert "8675309" not in told
    assert not told or "rules.toml:3" in told


def test_settings_hold_the_places_of_secrets_not_the_secrets() -> None:
    """So that a settings object can be logged."""
    settings = read(CLUSTER + "kafka.'sasl.password' = { env = 'KAFKA_PASSWORD' }\n")
    assert settings.clusters["main"].kafka_properties({"KAFKA_PASSWORD": "hunter2"})["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(settings)


def test_overrides_are_laid_over_the_file_key_by_key() -> None:
    """The demo runs the file shipped and moves only the addresses; None takes a key away."""
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


def test_a_mistake_in_an_override_is_not_blamed_on_the_file() -> None:
    """It has no line there; what the file lacks has one."""
    overrides = {"clusters": {"main": {"poll_interval": 5}, "new": {"timeout": "1s"}}, "agent": {"x": 1}}
    assert [
        one.split(": ")[:2] for one in mistakes("[clusters.main]\npoll_interval = '1s'\n", overrides=overrides)
    ] == [
        ["overrides", "[agent] x"],
        ["overrides", "[clusters.main] poll_interval"],
        ["overrides", "[clusters.new] bootstrap_servers"],
        ["rules.toml:1", "[clusters.main] bootstrap_servers"],
    ]


def test_the_state_directory_is_systemds_where_it_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """$STATE_DIRECTORY, the first where there are several; else one below the working directory."""
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert read("").agent.state_directory == Path("backflow-state")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/backflow:/var/lib/other")
    assert read("").agent.state_directory == Path("/var/lib/backflow")


def test_the_first_route_that_takes_an_incident_names_its_channel() -> None:
    """By severity and cluster; what no route takes goes to the channel of the section."""
    slack = read(
        """
        slack = { channel = "C0", token_env = "T", routes = [
            { channel = "C1", severities = ["critical"], clusters = { include = ["prod-*"] } },
            { channel = "C2", clusters = { include = ["prod-*"] } },
        ] }
        """
    ).slack
    assert isinstance(slack, Slack)
    assert slack.channel_for(Severity.CRITICAL, "prod-1") == "C1"
    assert slack.channel_for(Severity.WARNING, "prod-1") == "C2"
    assert slack.channel_for(Severity.CRITICAL, "test") == "C0"
    assert slack.channel_for(Severity.CRITICAL, None) == "C0"


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://m:7077", "spark://m-1:7077,m-2:7077", "spark://[::1]:7077", "k8s://https://h:6443"),
    ],
)
def test_every_kind_of_master_that_spark_knows_is_taken(master: str) -> None:
    """What it does not know is told with its line: mistakes.txt."""
    assert loads(f'[spark]\nmaster = "{master}"', "rules.toml", need_clusters=False).spark.master == master


def test_a_schedule_is_an_interval_or_a_line_of_cron_in_utc() -> None:
    """Days of the week by name: libraries and crons number them differently."""
    friday = datetime(2026, 11, 20, 23, 0, tzinfo=UTC)
    assert str(trigger("24h").get_next_fire_time(friday, friday)) == "2026-11-21 23:00:00+00:00"
    assert str(trigger("0 3 * * mon-fri").get_next_fire_time(None, friday)) == "2026-11-23 03:00:00+00:00"
    assert str(trigger("*/15 * * * *").get_next_fire_time(None, friday)) == "2026-11-20 23:00:00+00:00"


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
    *("slack", "routes", "channel"),
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
def test_no_configuration_whatever_makes_anything_but_settings_or_problems(overrides: dict[str, Any]) -> None:
    """Values of any type in any place: a sentence, never a traceback."""
    with suppress(SettingsError):
        read(CLUSTER + RULES, overrides=overrides)
