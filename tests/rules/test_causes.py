"""Causes of a moved offset are ruled out by what was observed or remain possible; why Kafka forgot an offset."""

from itertools import pairwise

import pytest

from agent.engine.facts import Facts
from agent.engine.rule import CauseCheck
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.kafka import ClusterSettings, Commit, GroupState, Member
from agent.rules.queries.causes import check_commit_causes, check_recreation, why_forgotten
from tests.builders import CLUSTER, after, commit, group_state, partition_state

HOUR, DAY = 3_600, 86_400
PARTITION = (CLUSTER, "t", 0)


def polled(offset: int | None, seconds: float, since: float) -> Commit:
    return Commit(
        at=after(seconds), since=after(since), cluster=CLUSTER, group="g", topic="t", partition=0, offset=offset
    )


def state(seconds: float, *members: str, since: float | None = None, name: str = "Stable") -> GroupState:
    """Return the state of the group with these members, each of which reads the topic."""
    return GroupState(
        at=after(seconds), since=None if since is None else after(since), cluster=CLUSTER, group="g", state=name,
        members=tuple(Member(id=member, partitions=(("t", 0),)) for member in members),
    )  # fmt: skip


def settings(days: float = 7, version: str | None = None) -> ClusterSettings:
    return ClusterSettings(at=after(0), cluster=CLUSTER, offsets_retention_ms=round(days * DAY * 1000), version=version)


def facts_of(*observations: Observation) -> Facts:
    facts = Facts()
    for observation in observations:
        facts.absorb(observation)
    return facts


def check(cause: str, *observations: Observation) -> CauseCheck:
    """Return what the observations say about a cause of the last rewind among them."""
    known = [fact for fact in observations if isinstance(fact, Commit)]
    moves = [(old, new) for old, new in pairwise(known) if (new.offset or 0) < (old.offset or 0)]
    checks = check_commit_causes(facts_of(*observations), *moves[-1], ())
    return next(made for made in checks if made.cause == cause)


REWIND = (polled(8_900, 58, 56), polled(9_000, 60, 58), polled(0, 62, 60))


@pytest.mark.parametrize(
    ("facts", "evidence"),
    [
        ((state(0, "a", "b"),), "g had 2 members from 23:01:00.0 to 23:01:02.0"),
        ((state(0, "a", "b"), state(62, "b", "c", since=60)), "g had 1 member from 23:01:00.0 to 23:01:02.0"),
        ((polled(500, 64, 62),), "g kept committing from 23:00:58.0 to 23:01:04.0"),
        ((group_state(0, "Empty"), polled(500, 64, 62)), "g kept committing from 23:00:58.0 to 23:01:04.0"),
    ],
    ids=["members", "one member stayed", "commits", "commits of an Empty group"],
)
def test_consumers_that_were_active_rule_out_an_operator(facts: tuple[Observation, ...], evidence: str) -> None:
    assert check("operator_reset", *REWIND, *facts) == CauseCheck("operator_reset", evidence=evidence)


@pytest.mark.parametrize(
    ("facts", "doubt"),
    [
        ((), "the members of g are unknown"),
        (
            (state(0, "a"), state(62, "b", since=60)),
            "all members of g left or changed between 23:01:00.0 and 23:01:02.0",
        ),
        ((group_state(0, "Empty"),), "g had no members, so who commits is unknown"),
        ((group_state(0, "Unknown"),), "the members of g cannot be read (state Unknown)"),
        ((group_state(0, "Dead"),), "the members of g cannot be read (state Dead)"),
        ((group_state(0, "Empty"), polled(9_100, 64, 62)), "g had no members, so who commits is unknown"),
        ((group_state(0, "Empty"), polled(500, 75, 73)), "g had no members, so who commits is unknown"),
    ],
    ids=["no state", "other members", "empty", "unknown", "dead", "the reset was overwritten", "slow commits"],
)
def test_an_operator_remains_possible_if_consumers_were_not_seen(facts: tuple[Observation, ...], doubt: str) -> None:
    assert check("operator_reset", *REWIND, *facts) == CauseCheck("operator_reset", doubt=doubt)


def outage(since: float, until: float, group: str | None = None, source: str = "kafka") -> tuple[Observation, ...]:
    return (
        Unavailable(at=after(since), source=source, cluster=CLUSTER, group=group, reason="no answer"),
        Available(at=after(until), source=source, cluster=CLUSTER, group=group),
    )


@pytest.mark.parametrize(
    ("facts", "evidence"),
    [
        (REWIND, "read at 23:01:00.0 and 23:01:02.0"),
        ((commit(10, 9_000), commit(90, 0)), "read at 23:00:10.0 and 23:01:30.0"),
        ((commit(10, 9_000), commit(90, 0), *outage(20, 30, "other")), "read at 23:00:10.0 and 23:01:30.0"),
        ((commit(10, 9_000), commit(90, 0), *outage(20, 30, source="zookeeper")), "read at 23:00:10.0 and 23:01:30.0"),
        (
            (settings(), polled(8_000, 5, 3), polled(9_000, 60, 58), polled(0, 2 * HOUR, 60)),
            "committed at 2026-11-20 23:01:00.0, kept for 7 d",
        ),
    ],
    ids=["consecutive readings", "each commit is seen", "another group away", "another source away", "retention"],
)
def test_an_offset_that_was_there_did_not_expire(facts: tuple[Observation, ...], evidence: str) -> None:
    assert check("after_expiry", *facts) == CauseCheck("after_expiry", evidence=evidence)


@pytest.mark.parametrize(
    ("facts", "doubt"),
    [
        (
            (polled(9_000, 60, 58), polled(0, 2 * HOUR, 60)),
            "the offset was not read between 2026-11-20 23:01:00.0 and 01:00:00.0",
        ),
        (
            (commit(10, 9_000), commit(90, 0), *outage(20, 30)),
            "the offset was not read between 23:00:10.0 and 23:01:30.0",
        ),
        (
            (settings(days=0.05), polled(8_000, 5, 3), polled(9_000, 60, 58), polled(0, 2 * HOUR, 60)),
            "the offset was not read between 2026-11-20 23:01:00.0 and 01:00:00.0",
        ),
    ],
    ids=["two hours without readings", "Kafka away", "retention has passed"],
)
def test_an_offset_that_was_not_read_may_have_expired(facts: tuple[Observation, ...], doubt: str) -> None:
    assert check("after_expiry", *facts) == CauseCheck("after_expiry", doubt=doubt)


@pytest.mark.parametrize(
    ("ids", "evidence", "doubt"),
    [
        (("first", "first"), "same topic id", ""),
        ((None, None), "", "topic ids are unknown"),
        ((None, "first"), "", "topic ids are unknown"),
        (("czxid:7", "first"), "", "the topic ids before and after differ"),
        ((), "", "topic ids are unknown"),
    ],
)
def test_only_one_topic_id_rules_out_re_creation(ids: tuple[str | None, ...], evidence: str, doubt: str) -> None:
    states = (partition_state(10 + 60 * number, 1, topic_id=topic_id) for number, topic_id in enumerate(ids))
    facts = facts_of(*states)
    assert check_recreation(facts, PARTITION, after(20), after(80)) == CauseCheck("topic_recreation", evidence, doubt)


def gone_at(seconds: float, since: float) -> tuple[Commit, Commit]:
    """Return the reading without the offset, and the commit after it."""
    return polled(None, seconds, since), polled(0, seconds + 600, seconds + 598)


COMMITTED = (polled(8_000, 30, 28), polled(9_000, 60, 58))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ((*COMMITTED, *gone_at(8 * DAY, 8 * DAY - 2)), "expired or was deleted"),
        ((settings(), *COMMITTED, *gone_at(75, 73)), "was deleted"),
        ((settings(), *COMMITTED, *gone_at(6 * DAY, 6 * DAY - 2)), "was deleted"),
        ((settings(), *COMMITTED, *gone_at(7 * DAY + 600, 7 * DAY + 598)), "expired"),
        ((settings(1), *COMMITTED, *gone_at(2 * DAY, 2 * DAY - 2)), "expired"),
        ((settings(), commit(60, 9_000), *gone_at(6 * DAY, 6 * DAY - 2)), "expired or was deleted"),
        ((settings(), *COMMITTED, commit(70, 9_500), *gone_at(80, 78)), "was deleted"),
        (
            (settings(), *COMMITTED, state(70, "a"), state(8 * DAY, since=8 * DAY - 2, name="Empty"),
             *gone_at(8 * DAY + 60, 8 * DAY + 58)),
            "expired or was deleted",
        ),
        (
            (settings(version="3.9"), *COMMITTED, state(70, "a"), state(8 * DAY, since=8 * DAY - 2, name="Empty"),
             *gone_at(8 * DAY + 60, 8 * DAY + 58)),
            "was deleted",
        ),
        (
            (settings(version="0.11"), *COMMITTED, state(70, "a"), *gone_at(8 * DAY, 8 * DAY - 2)),
            "expired or was deleted",
        ),
        (
            (settings(version="2.1"), *COMMITTED, state(70, "a"), state(80, since=78, name="Empty"),
             *gone_at(7 * DAY + 90, 7 * DAY + 88)),
            "expired",
        ),
        (COMMITTED, ""),
    ],
    ids=[
        "no settings", "seconds after a commit", "before retention", "after retention", "shorter retention",
        "first reading", "exact commit", "read until lately", "read until lately, KIP-211", "before KIP-211",
        "Empty for longer than retention", "not forgotten",
    ],
)  # fmt: skip
def test_retention_tells_expired_from_deleted_offsets(facts: tuple[Observation, ...], reason: str) -> None:
    known = [fact for fact in facts if isinstance(fact, Commit)]
    before, move = (known[-3], known[-1]) if reason else (known[0], known[1])
    assert why_forgotten(facts_of(*facts), before, move) == reason
