"""What an incident asks of the check of changelogs, and for which clusters it can run."""

from pathlib import Path

from agent.checks.arguments import asked_options, kept_options, places
from agent.config.settings import load
from agent.engine.check_requests import LOOKBACK_MS, CheckRequest
from agent.model.declared_stores import DeclaredStore
from agent.model.observations import millis
from spark_checks.changelog_restore import declared

TOML = """
[agent]
state_directory = "state"
[clusters.main]
bootstrap_servers = "k:9092"
"""
STORES = TOML + '[rules.state]\nkind = "state_not_restored"\nstores = [{ application = "shop", store = "counts" }]\n'
CAUSE = millis("2026-11-20T23:25:00Z")


def ask(check: str, groups: tuple[str, ...] = ()) -> CheckRequest:
    """An incident whose first cause was at CAUSE."""
    return CheckRequest(
        id="7", check=check, cluster="main", finding=("r", "{}", 1), since=CAUSE - LOOKBACK_MS, until=CAUSE + 1,
        topics=("shop-counts-changelog",), groups=groups,
    )  # fmt: skip


def test_an_incident_asks_what_fell_since_its_first_cause(tmp_path: Path) -> None:
    """In the application's changelogs, to this day; the keys are kept, under the question's id."""
    since = ["--from", "2026-11-20T23:24:00.000Z"]
    assert asked_options(ask("changelog_restore", ("shop",))) == [*since, "--group", "shop"]
    assert asked_options(ask("changelog_restore")) == [*since, "--topic", "shop-counts-changelog"]
    (tmp_path / "rules.toml").write_text(TOML)
    settings = load(tmp_path / "rules.toml", need_clusters=True)
    assert kept_options(ask("changelog_restore"), settings) == ["--out", "state/changelog_restore/7.parquet"]
    assert kept_options(ask("offset_history"), settings) == []


def test_without_declared_stores_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    """Nor in a cluster that is not configured."""
    rules = tmp_path / "rules.toml"
    rules.write_text(TOML)
    assert places("changelog_restore", load(rules, need_clusters=True), "main") == []
    rules.write_text(STORES)
    assert places("changelog_restore", load(rules, need_clusters=True), "main")
    assert places("changelog_restore", load(rules, need_clusters=True), "gone") == []


def test_a_store_is_named_to_the_check_without_what_it_counts(tmp_path: Path) -> None:
    """The check compares values; it takes the store as it takes any other."""
    rules = tmp_path / "rules.toml"
    rules.write_text(STORES.replace('"counts" }', '"counts", counts = "orders" }'))
    options = places("changelog_restore", load(rules, need_clusters=True), "main")
    assert options[options.index("--store") + 1] == "shop/counts=long"
    assert declared("shop/counts=long") == DeclaredStore(application="shop", store="counts")
