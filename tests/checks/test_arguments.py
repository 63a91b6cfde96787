"""Options of the changelog check, and the clusters it can run for."""

from pathlib import Path

from agent.checks.arguments import input_options, requested_options, result_options
from agent.config.settings import load
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


def test_store_is_passed_without_its_counts(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(STORES.replace('"counts" }', '"counts", counts = "orders" }'))
    options = input_options("changelog_restore", load(rules, need_clusters=True), "main")
    assert options[options.index("--store") + 1] == "shop/counts=long"
    assert parse_store("shop/counts=long") == DeclaredStore(application="shop", store="counts")
