"""What to do this week, from what was measured; the most urgent first."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.model.findings import Severity
from agent.model.text import count
from spark_checks.reviews.availability import AGENT
from spark_checks.reviews.facts import MUCH_LAG, MUCH_MORE, Facts, now
from spark_checks.reviews.words import brief, distance, lasted, moment, names, percent, short, where

_LONG_MS = 3_600_000
"""An outage of a source that is worth a task."""

_TITLE = 120
"""Characters of an incident's title."""

_MANY_REBALANCES = 20
"""Rebalances in a week that are worth a task."""


class Action(NamedTuple):
    """A task. what: one line; why: what was measured; how: what to do. section: of the page that has the details."""

    weight: int
    what: str
    why: str
    how: str
    section: str


def actions(facts: Facts) -> list[Action]:
    """Return the tasks that the week leaves, the most urgent first."""
    found = [
        *_open_incidents(facts),
        *_margins(facts),
        *_elections(facts),
        *_standstills(facts),
        *_brokers(facts),
        *_outages(facts),
        *_lags(facts),
        *_rebalances(facts),
        *_rules(facts),
    ]
    return sorted(found, key=lambda action: -action.weight)


def _open_incidents(facts: Facts) -> Iterator[Action]:
    waiting = [incident for incident in facts.still_open if incident.acknowledged_by is None]
    if not waiting:
        return
    worst = waiting[0]
    critical = sum(incident.severity is Severity.CRITICAL for incident in waiting)
    severe = f", {critical} of them critical" if critical and len(waiting) > 1 else ""
    yield Action(
        100 if critical else 60,
        f"Look after {count(len(waiting), 'open incident')} that no one has acknowledged{severe}",
        f"The worst: {brief(worst.title, _TITLE)} ({worst.id}), open for {lasted(worst.lasted)}.",
        f"Read `backflow incidents show {worst.id}`, then acknowledge or close it.",
        "incidents",
    )


def _margins(facts: Facts) -> Iterator[Action]:
    for margin in facts.near_misses[:2]:
        group, topic = brief(margin.group), brief(margin.topic)
        place = where(topic, margin.partition)
        is_lost = margin.margin < 0
        yield Action(
            90 if is_lost else 80,
            f"{group} lost unread records of {place} to retention"
            if is_lost
            else f"{group} nearly lost unread records of {place} to retention",
            f"By {moment(margin.at)}: {distance(margin)}."
            if is_lost
            else f"On {moment(margin.at)} it was {distance(margin)}, {percent(margin.share)} of what the log keeps.",
            f"Raise `retention.ms` and `retention.bytes` of {topic} above the longest pause of {group}, "
            "or give it more consumers.",
            "margins",
        )


def _elections(facts: Facts) -> Iterator[Action]:
    found = now(facts.elections)
    if found:
        topics = sorted({election.topic for election in found})
        yield Action(
            85,
            f"Prevent unclean leader elections: {count(len(found), 'election')} on {names(topics)}",
            "A leader outside the ISR lacks records that consumers may have read: they are lost.",
            "Set `unclean.leader.election.enable=false` and `min.insync.replicas=2` on these topics; use `acks=all`.",
            "brokers",
        )


def _standstills(facts: Facts) -> Iterator[Action]:
    whole = [stand for stand in facts.standstills if not stand.others]
    parts = [stand for stand in facts.standstills if stand.others]
    if whole:
        first, name = whole[0], brief(whole[0].group)
        more = f" and {count(len(whole) - 1, 'more group')}" if len(whole) > 1 else ""
        yield Action(
            55,
            f"Restart or delete {name}{more}: unread records, but no commits",
            f"{name} last committed on {moment(first.since)} and has {count(first.unread, 'unread record')}.",
            "Start the consumers. If nothing needs the group: `kafka-consumer-groups --delete`.",
            "standstills",
        )
    if parts:
        first = parts[0]
        more = f", and look at {count(len(parts) - 1, 'more group')}" if len(parts) > 1 else ""
        yield Action(
            65,
            f"Find out why {brief(first.group)} stands still on {count(first.partitions, 'partition')}{more}",
            f"Its other partitions move. Nothing was committed there since {moment(first.since)}; "
            f"{count(first.unread, 'unread record')}.",
            "Look in the consumer's log for a record that it cannot process.",
            "standstills",
        )


def _brokers(facts: Facts) -> Iterator[Action]:
    for broker in now(facts.brokers):
        if facts.is_flapping(broker):
            usual = facts.usual({row.week: row.losses for row in facts.brokers if row.broker == broker.broker})
            yield Action(
                50,
                f"Find out why broker {broker.broker} dropped out of the cluster {broker.losses} times",
                _with_usual(f"It was down for {lasted(broker.down)} in all." if broker.down else "", usual),
                "Check it for restarts, long GC pauses, slow disks and network errors.",
                "brokers",
            )
            return


def _outages(facts: Facts) -> Iterator[Action]:
    for outage in now(facts.outages):
        if outage.is_whole and outage.lasted >= _LONG_MS:
            is_agent = outage.source == AGENT
            what = "The agent observed nothing" if is_agent else f"Source {outage.source} could not be read"
            yield Action(
                70,
                f"{what} for {lasted(outage.lasted)}",
                f"{count(outage.times, 'outage')}; the longest: {outage.reason.rstrip('.')}.",
                "Restore the access: what happened meanwhile may be missing in this page.",
                "outages",
            )
            return


def _lags(facts: Facts) -> Iterator[Action]:
    idle = {stand.group for stand in facts.standstills}
    for lag in now(facts.lags):
        usual = facts.usual({row.week: row.p95 for row in facts.lags if row.group == lag.group})
        if usual and lag.group not in idle and lag.last >= max(MUCH_LAG, MUCH_MORE * usual):
            yield Action(
                45,
                f"The lag of {brief(lag.group)} has grown",
                f"It ended at {short(lag.last)} records; in 95 % of the samples it usually is at most {short(usual)}.",
                "Compare its throughput with the topic's; add consumers if it cannot keep up.",
                "lags",
            )
            return


def _rebalances(facts: Facts) -> Iterator[Action]:
    for change in now(facts.rebalances):
        usual = facts.usual({row.week: row.times for row in facts.rebalances if row.group == change.group})
        if change.times >= _MANY_REBALANCES and (usual is None or change.times >= MUCH_MORE * usual):
            yield Action(
                40,
                f"Find out why {brief(change.group)} rebalanced {change.times:,} times",
                _with_usual(f"It was rebalancing for {lasted(change.lasted)} in all." if change.lasted else "", usual),
                "Look for a member that joins and leaves; check `max.poll.interval.ms` and `session.timeout.ms`.",
                "rebalances",
            )
            return


def _rules(facts: Facts) -> Iterator[Action]:
    for rule in facts.frequent_rules[:1]:
        yield Action(
            30,
            f"Make the rule {rule.rule} fire less often: {count(rule.incidents, 'incident')}",
            f"{rule.short} of them were over within 5 minutes, {rule.unacknowledged} were never acknowledged.",
            "Remove the cause, or raise its limits in rules.toml so that people read it again.",
            "rules",
        )


def _with_usual(sentence: str, usual: float | None) -> str:
    """Return the sentence after how often that happens otherwise, if that is known."""
    often = "" if usual is None else f"Usually {short(usual)} times." if usual else "Usually never."
    return " ".join(filter(None, (often, sentence)))
