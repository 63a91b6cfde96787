"""How many records are proven missing from counts, and how a finding says so."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.rule_tests import run_rule_tests
from agent.config.loading import load
from agent.engine.facts import Facts
from agent.model.observations.kafka import Commit
from agent.model.observations.streams import ChangelogDecreases
from agent.rules.queries.restored_stores import find_missing_records

SLACK = 5_000
DECREASED_AT = 100_000


class _Round(NamedTuple):
    """Steps of the simulated application, in order: records are counted, committed, more are counted, ..."""

    counted: int
    commits: bool
    uncommitted: int
    crashes: bool
    lost: int
    passed: int
    polls: bool


_NUMBER = st.sampled_from([0, 0, 3, 7])
_ROUNDS = st.lists(
    st.builds(
        _Round,
        counted=_NUMBER,
        commits=st.booleans(),
        uncommitted=_NUMBER,
        crashes=st.sampled_from([False, False, True]),
        lost=_NUMBER,
        passed=st.sampled_from([0, 6_000]),
        polls=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def _commit(at: int, offset: int | None, since: int | None = None) -> Commit:
    return Commit(at=at, since=since, cluster="main", group="shop", topic="orders", partition=2, offset=offset)


def _decreases(
    before: int | None, after: int | None, read_at: int | None, began_at: int = DECREASED_AT
) -> ChangelogDecreases:
    return ChangelogDecreases(
        at=began_at, cluster="main", application="shop", store="counts", topic="shop-counts-changelog", partition=2,
        began_at=began_at, keys=9, total=351, first_offset=361, sum_before=before, sum_after=after, sum_at=read_at,
    )  # fmt: skip


def _missing(
    commits: list[Commit], decreases: ChangelogDecreases, input_topic: str | None = "orders"
) -> dict[str, Any]:
    facts = Facts()
    for commit in commits:
        facts.absorb(commit)
    return find_missing_records(facts, decreases, input_topic)


class _Application:
    """An application that counts, crashes and loses records, and the commits that are observed of it.

    Commits are observed as they are made, by a clock that is wrong by `skew`, or else by polls.
    """

    def __init__(self, guarantee: str, skew: int | None) -> None:
        self.time = self._polled = 50_000
        self.total, self.lost, self.observed = 40, 0, [_commit(50_000, 0)]
        self._position = self._committed = 0
        self._exactly_once, self._skew = guarantee == "exactly_once", skew

    def run(self, step: _Round) -> None:
        self._count(step.counted)
        if step.commits:
            self.total += self._position - self._committed if self._exactly_once else 0
            self._committed = self._position
            if self._skew is not None:
                self.observed.append(_commit(max(self.time + self._skew, self.observed[-1].at), self._committed))
        self._count(step.uncommitted)
        if step.crashes:
            self._position = self._committed
        self.lose(min(step.lost, self.total))
        self.time += step.passed
        if step.polls and self._skew is None:
            if self._committed != self.observed[-1].offset:
                self.observed.append(_commit(self.time, self._committed, self._polled))
            self._polled = self.time

    def lose(self, number: int) -> None:
        self.lost += number
        self.total -= number

    def _count(self, number: int) -> None:
        self._position += number
        self.total += 0 if self._exactly_once else number


@given(
    _ROUNDS,
    _ROUNDS,
    _ROUNDS,
    st.sampled_from(["exactly_once", "at_least_once"]),
    st.none() | st.integers(-SLACK, SLACK),
)
def test_no_more_is_missing_than_was_lost(
    earlier: list[_Round], meanwhile: list[_Round], later: list[_Round], guarantee: str, skew: int | None
) -> None:
    """Rounds run before the first decrease is read, until the end is reached after it, and later; with crashes."""
    shop = _Application(guarantee, skew)
    for step in earlier:
        shop.run(step._replace(lost=0))
    before, began_at = shop.total, shop.time + 900
    shop.lose(1)
    for step in meanwhile:
        shop.run(step)
    after, read_at, lost = shop.total, max(shop.time, began_at), shop.lost
    for step in later:
        shop.run(step)
    found = _missing(shop.observed, _decreases(before, after, read_at, began_at)).get("missing", 0)
    assert max(before - after, 0) <= found <= lost


def test_records_surely_committed_meanwhile_are_missing() -> None:
    """Commits count from the first decrease until everything in the sum was read, with slack for clocks."""
    commits = [
        _commit(DECREASED_AT - 1_000, 2_000),
        _commit(DECREASED_AT + SLACK + 1_000, 2_010, DECREASED_AT + SLACK - 1),
        _commit(DECREASED_AT + SLACK + 3_000, 2_020, DECREASED_AT + SLACK + 1_000),
        _commit(DECREASED_AT + 20_000, 2_140, DECREASED_AT + 19_000),
        _commit(DECREASED_AT + 25_001, 2_150, DECREASED_AT + 20_000),
    ]
    end = DECREASED_AT + 30_000
    decreased = {"input": "orders", "committed": 120, "counted": -2_680, "missing": 2_800}
    assert _missing(commits, _decreases(9_000, 6_320, end)) == decreased
    rose = {"input": "orders", "committed": 120, "counted": 20, "missing": 100}
    assert _missing(commits, _decreases(9_000, 9_020, end)) == rose
    commits.insert(1, _commit(DECREASED_AT + SLACK + 1, None))
    assert _missing(commits, _decreases(9_000, 9_020, end)) == rose
    assert _missing(commits, _decreases(9_000, 9_120, end)) == {}
    assert _missing(commits, _decreases(9_000, 9_500, end)) == {}


@pytest.mark.parametrize(
    ("why", "commits", "decreases", "input_topic"),
    [
        ("no count is declared", [_commit(1, 5)], _decreases(9, 1, DECREASED_AT), None),
        ("another topic", [_commit(1, 5)], _decreases(9, 1, DECREASED_AT), "payments"),
        ("a sum is not known", [_commit(1, 5)], _decreases(None, None, None), "orders"),
        ("the end was not reached", [_commit(1, 5)], _decreases(9, None, None), "orders"),
        ("no commit before", [_commit(DECREASED_AT + 1, 5)], _decreases(9, 1, DECREASED_AT + 2), "orders"),
        ("offset expired", [_commit(1, 5), _commit(2, None)], _decreases(9, 1, DECREASED_AT), "orders"),
        (
            "a rewind, after which counts start over",
            [_commit(1, 5), _commit(DECREASED_AT + 1, 0)],
            _decreases(9, 1, DECREASED_AT + 2),
            "orders",
        ),
    ],
)
def test_nothing_is_proven_if_a_side_is_unknown(
    why: str, commits: list[Commit], decreases: ChangelogDecreases, input_topic: str | None
) -> None:
    assert _missing(commits, decreases, input_topic) == {}, why


def test_repartition_topic_proves_only_a_decreased_sum() -> None:
    topic = "shop-by-key-repartition"
    commits = [
        Commit(at=at, cluster="main", group="shop", topic=topic, partition=2, offset=at)
        for at in range(DECREASED_AT - 1_000, DECREASED_AT + 30_000, 1_000)
    ]
    found = _missing(commits, _decreases(900, 860, DECREASED_AT + 30_000), topic)
    assert found == {"input": topic, "committed": 0, "counted": -40, "missing": 40}
    assert _missing(commits, _decreases(900, 910, DECREASED_AT + 30_000), topic) == {}


RULES = """
[rules.state]
kind = "state_not_restored"%(option)s
stores = [{ application = "shop", store = "counts", counts = "orders" }]
"""
CASES = """
defaults = { cluster = "main", group = "shop", application = "shop", store = "counts" }

[[cases]]
name = "sums and commits, as they are observed"
observations = [
  { kind = "commit", at = "0s", topic = "orders", partition = 2, offset = 8000 },
  { kind = "changelog_falls", at = "10s", began_at = "10s", topic = "shop-counts-changelog", partition = 2, keys = 1, \
total = 39, first_offset = 361, sum_before = 8000 },
  { kind = "commit", at = "16s", since = "15s", topic = "orders", partition = 2, offset = 8040 },
  { kind = "commit", at = "40s", since = "39s", topic = "orders", partition = 2, offset = 8160 },
  { kind = "changelog_falls", at = "49s", began_at = "10s", topic = "shop-counts-changelog", partition = 2, keys = 9, \
total = 2700, first_offset = 361, sum_before = 8000, sum_after = %(after)d, sum_at = "50s" },
  { kind = "tick", at = "60s" },
]
findings = [{ rule = "state", severity = "%(severity)s", current = %(current)s, detail = "\
store counts of shop: 9 keys of shop-counts-changelog[2] decreased by 2,700 since 00:00:10.0 UTC; \
owner of partition 2 unknown%(proof)s" }]
"""


@pytest.mark.parametrize(
    ("after", "current", "proof"),
    [
        (
            5_320,
            '{ input = "orders", committed = 120, counted = -2680, missing = 2800 }',
            "; at least 2,800 records of orders missing",
        ),
        (
            8_020,
            '{ input = "orders", committed = 120, counted = 20, missing = 100 }',
            "; at least 100 records of orders missing",
        ),
        (8_160, "{ keys = 9 }", ""),
    ],
    ids=["decreased", "lags behind", "kept up"],
)
def test_proof_makes_the_finding_critical_unless_configured(
    after: int, current: str, proof: str, tmp_path: Path
) -> None:
    config, cases = tmp_path / "rules.toml", tmp_path / "cases.toml"
    for option, severity in (("", "critical" if proof else "warning"), ('\nseverity = "info"', "info")):
        config.write_text(RULES % {"option": option}, encoding="utf-8")
        cases.write_text(
            CASES % {"after": after, "current": current, "proof": proof, "severity": severity}, encoding="utf-8"
        )
        ((_, wrong),) = run_rule_tests(cases, load(config, need_clusters=False))
        assert wrong == []
