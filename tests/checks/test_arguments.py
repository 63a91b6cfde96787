"""Options of the checks of changelogs and of the review, and the clusters they can run for."""

from pathlib import Path

from agent.checks.arguments import input_options, page_options, requested_options, result_options, scheduled_options
from agent.config.loading import load
from agent.engine.check_requests import LOOKBACK_MS, CheckRequest
from agent.model.declared_stores import DeclaredStore
from agent.model.times import millis
from spark_checks.changelog_restore import parse_store

TOML = """
[agent]
state_directory = "state"
[clusters.main]
bootstrap_servers = "k:9092"
"""
STORES = TOML + '[rules.state]\nkind = "state_not_restored"\nstores = [{ application = "shop", store = "counts" }]\n'
CAUSE = millis("2026-11-20T23:25:00Z")


def request(check: str, groups: tuple[str, ...] = ()) -> CheckRequest:
    return CheckRequest(
        id="7", check=check, cluster="main", finding=("r", "{}", 1), since=CAUSE - LOOKBACK_MS, until=CAUSE + 1,
        topics=("shop-counts-changelog",), groups=groups,
    )  # fmt: skip


def test_request_for_changelogs_starts_at_the_first_cause(tmp_path: Path) -> None:
    since = ["--from", "2026-11-20T23:24:00.000Z"]
    assert requested_options(request("changelog_restore", ("shop",))) == [*since, "--group", "shop"]
    assert requested_options(request("changelog_restore")) == [*since, "--topic", "shop-counts-changelog"]
    (tmp_path / "rules.toml").write_text(TOML)
    settings = load(tmp_path / "rules.toml", need_clusters=True)
    assert result_options(request("changelog_restore"), settings) == ["--out", "state/changelog_restore/7.parquet"]
    assert result_options(request("offset_history"), settings) == []


def test_no_input_without_declared_stores(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(TOML)
    assert input_options("changelog_restore", load(rules, need_clusters=True), "main") == []
    rules.write_text(STORES)
    assert input_options("changelog_restore", load(rules, need_clusters=True), "main")
    assert input_options("changelog_restore", load(rules, need_clusters=True), "gone") == []


def test_a_store_is_checked_on_its_own_cluster_only(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    other = '[clusters.other]\nbootstrap_servers = "o:9092"\n'
    rules.write_text(STORES.replace('"counts" }', '"counts", cluster = "main" }') + other)
    settings = load(rules, need_clusters=True)
    assert input_options("changelog_restore", settings, "main")
    assert input_options("changelog_restore", settings, "other") == []


def test_store_is_passed_without_its_counts(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(STORES.replace('"counts" }', '"counts", counts = "orders" }'))
    options = input_options("changelog_restore", load(rules, need_clusters=True), "main")
    assert options[options.index("--store") + 1] == "shop/counts=long"
    assert parse_store("shop/counts=long") == DeclaredStore(application="shop", store="counts")


def test_review_gets_journal_window_rules_and_flink_clusters(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    more = '[clusters."a/b"]\nbootstrap_servers = "k:9092"\n[checks.review]\nwindow = "7d"\n'
    flink = '[flink.jobs]\nrest = ["http://f:8081"]\nkafka = "main"\n'
    rules.write_text(STORES + more + flink)
    settings = load(rules, need_clusters=True)
    journal = ["--journal", "state/journal"]
    for cluster in ("main", "a/b"):  # the check takes the Flink clusters of each Kafka cluster
        assert input_options("review", settings, cluster) == [*journal, "--flink", "jobs=main", "--rule", "state"]
    now = millis("2026-11-23T06:00:00.123Z")
    window = ["--from", "2026-11-16T00:00:00.000Z", "--to", "2026-11-23T00:00:00.000Z"]
    assert scheduled_options("review", settings, now) == window
    assert page_options("review", "a/b", settings, now) == ["--out", "state/review/a%2Fb-2026-11-23.html"]
    assert page_options("offset_history", "main", settings, now) == []


def test_clusters_are_compared_only_if_there_are_several(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(TOML)
    assert input_options("cluster_failover", load(rules, need_clusters=True), "main") == []
    rules.write_text(TOML + '[clusters.backup]\nbootstrap_servers = "b:9092"\n')
    settings = load(rules, need_clusters=True)
    assert input_options("cluster_failover", settings, "main") == ["--journal", "state/journal"]
    asked = request("cluster_failover", ("g",))
    assert requested_options(asked)[-4:] == ["--topic", "shop-counts-changelog", "--group", "g"]
