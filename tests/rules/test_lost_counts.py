"""The second proof that counts were lost: what it finds is never more than what was lost, and it is told."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.rule_tests import run_rule_tests
from agent.config.settings import load
from agent.engine.facts import Facts
from agent.model.observations import ChangelogDecreases, Commit
from agent.rules.queries.lost_counts import missing

SLACK = 5_000
FALL = 100_000


class _Round(NamedTuple):
    """What happens one after the other: records are counted, committed, more are counted, ..."""

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


def _falls(before: int | None, after: int | None, read: int | None, began_at: int = FALL) -> ChangelogDecreases:
    return ChangelogDecreases(
        at=began_at, cluster="main", application="shop", store="counts", topic="shop-counts-changelog", partition=2,
        began_at=began_at, keys=9, total=351, first_offset=361, sum_before=before, sum_after=after, sum_at=read,
    )  # fmt: skip


def _missing(commits: list[Commit], falls: ChangelogDecreases, counts: str | None = "orders") -> dict[str, Any]:
    facts = Facts()
    for one in commits:
        facts.absorb(one)
    return missing(facts, falls, counts)


class _Application:
    """Counts, crashes, loses; and what is told of its commits: as they are made, by a clock that goes wrong by `skew`,
    or as they are polled.
    """

    def __init__(self, guarantee: str, skew: int | None) -> None:
        self.time = self._polled = 50_000
        self.total, self.lost, self.told = 40, 0, [_commit(50_000, 0)]
        self._position = self._committed = 0
        self._exactly_once, self._skew = guarantee == "exactly_once", skew

    def live(self, one: _Round) -> None:
        self._count(one.counted)
        if one.commits:
            self.total += self._position - self._committed if self._exactly_once else 0
            self._committed = self._position
            if self._skew is not None:
                self.told.append(_commit(max(self.time + self._skew, self.told[-1].at), self._committed))
        self._count(one.uncommitted)
        if one.crashes:
            self._position = self._committed
        self.lose(min(one.lost, self.total))
        self.time += one.passed
        if one.polls and self._skew is None:
            if self._committed != self.told[-1].offset:
                self.told.append(_commit(self.time, self._committed, self._polled))
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
    """Whatever is counted and committed, before the first fall is read, until the end is reached after it, and later;
    after crashes too.
    """
    shop = _Application(guarantee, skew)
    for one in earlier:
        shop.live(one._replace(lost=0))
    before, began_at = shop.total, shop.time + 900
    shop.lose(1)
    for one in meanwhile:
        shop.live(one)
    after, read_at, lost = shop.total, max(shop.time, began_at), shop.lost
    for one in later:
        shop.live(one)
    found = _missing(shop.told, _falls(before, after, read_at, began_at)).get("missing", 0)
    assert max(before - after, 0) <= found <= lost


def test_what_was_surely_committed_meanwhile_is_missing_too() -> None:
    """Of the commits made after the first fall, and before all that the sum holds was read, clocks considered."""
    commits = [
        _commit(FALL - 1_000, 2_000),
        _commit(FALL + SLACK + 1_000, 2_010, FALL + SLACK - 1),
        _commit(FALL + SLACK + 3_000, 2_020, FALL + SLACK + 1_000),
        _commit(FALL + 20_000, 2_140, FALL + 19_000),
        _commit(FALL + 25_001, 2_150, FALL + 20_000),
    ]
    sank = {"input": "orders", "committed": 120, "counted": -2_680, "missing": 2_800}
    assert _missing(commits, _falls(9_000, 6_320, FALL + 30_000)) == sank
    rose = {"input": "orders", "committed": 120, "counted": 20, "missing": 100}
    assert _missing(commits, _falls(9_000, 9_020, FALL + 30_000)) == rose
    commits.insert(1, _commit(FALL + SLACK + 1, None))
    assert _missing(commits, _falls(9_000, 9_020, FALL + 30_000)) == rose
    assert _missing(commits, _falls(9_000, 9_120, FALL + 30_000)) == {}
    assert _missing(commits, _falls(9_000, 9_500, FALL + 30_000)) == {}


@pytest.mark.parametrize(
    ("why", "commits", "falls", "counts"),
    [
        ("no count is declared", [_commit(1, 5)], _falls(9, 1, FALL), None),
        ("another topic", [_commit(1, 5)], _falls(9, 1, FALL), "payments"),
        ("a sum is not known", [_commit(1, 5)], _falls(None, None, None), "orders"),
        ("the end was not reached", [_commit(1, 5)], _falls(9, None, None), "orders"),
        ("nothing was committed before", [_commit(FALL + 1, 5)], _falls(9, 1, FALL + 2), "orders"),
        ("forgotten", [_commit(1, 5), _commit(2, None)], _falls(9, 1, FALL), "orders"),
        ("read again", [_commit(1, 5), _commit(FALL + 1, 0)], _falls(9, 1, FALL + 2), "orders"),
    ],
)
def test_where_a_side_is_not_known_nothing_is_proven(
    why: str, commits: list[Commit], falls: ChangelogDecreases, counts: str | None
) -> None:
    """Nor where the group went back in its input: counts that begin again do so by right."""
    assert _missing(commits, falls, counts) == {}, why


def test_offsets_of_a_repartition_topic_may_be_markers() -> None:
    """Only that the sum sank counts there."""
    topic = "shop-by-key-repartition"
    commits = [
        Commit(at=at, cluster="main", group="shop", topic=topic, partition=2, offset=at)
        for at in range(FALL - 1_000, FALL + 30_000, 1_000)
    ]
    found = _missing(commits, _falls(900, 860, FALL + 30_000), topic)
    assert found == {"input": topic, "committed": 0, "counted": -40, "missing": 40}
    assert _missing(commits, _falls(900, 910, FALL + 30_000), topic) == {}


RULES = """
[rules.state]
kind = "state_not_restored"
stores = [{ application = "shop", store = "counts", counts = "orders" }]
"""
CASES = """
defaults = { cluster = "main", group = "shop", application = "shop", store = "counts" }

[[cases]]
name = "sums and commits, as they come"
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
store counts of shop went back: since 00:00:10.0 UTC 9 \
keys of shop-counts-changelog[2] fell by 2,700 in all (from offset 361 on), and nothing is known of who holds its task\
%(proof)s" }]
"""


@pytest.mark.parametrize(
    ("after", "current", "proof"),
    [
        (
            5_320,
            '{ input = "orders", committed = 120, counted = -2680, missing = 2800 }',
            "the counts sank by 2,680: at least 2,800 records are not in them",
        ),
        (
            8_020,
            '{ input = "orders", committed = 120, counted = 20, missing = 100 }',
            "the counts rose by 20: at least 100 records are not in them",
        ),
        (8_160, "{ keys = 9 }", ""),
    ],
    ids=["sank", "fell behind", "kept up"],
)
def test_the_proof_is_in_the_finding(after: int, current: str, proof: str, tmp_path: Path) -> None:
    """In figures and in a sentence, and it makes it critical; nothing is said where nothing is proven."""
    severity = "critical" if proof else "warning"
    if proof:
        since = "since 00:00:10.0 UTC shop has committed at least 120 more records of orders[2]"
        proof = f"; second proof: {since} while {proof}"
    config, cases = tmp_path / "rules.toml", tmp_path / "cases.toml"
    config.write_text(RULES, encoding="utf-8")
    cases.write_text(
        CASES % {"after": after, "current": current, "proof": proof, "severity": severity}, encoding="utf-8"
    )
    ((_, wrong),) = run_rule_tests(cases, load(config, need_clusters=False))
    assert wrong == []
