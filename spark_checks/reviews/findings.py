"""The findings of a review: groups that nearly lost unread records to retention."""

from agent.model.findings import Finding, Records, Severity
from agent.model.text import count, day_of, instant
from spark_checks.reviews.facts import Facts
from spark_checks.reviews.lags import Margin
from spark_checks.reviews.words import distance, percent, where

NAME = "review"


def findings_of(facts: Facts) -> list[Finding]:
    """Return a finding for each near miss of this week, oldest first; info, as the live rules have the alarms."""
    first_day = day_of(facts.periods.since)
    found = [
        Finding(
            rule=NAME,
            kind=NAME,
            severity=Severity.INFO,
            at=margin.at,
            subject={
                "cluster": facts.cluster,
                "group": margin.group,
                "topic": margin.topic,
                "partition": margin.partition,
            },
            labels=("overrun" if margin.margin < 0 else "near_miss",),
            current={"offset": margin.offset, "log_start": margin.log_start},
            records=Records(lost=max(0, -margin.margin)),
            detail=_detail(margin, first_day),
            known_at=margin.at,
        )
        for margin in facts.near_misses
    ]
    return sorted(found, key=lambda finding: (finding.at, finding.key))


def _detail(margin: Margin, first_day: str) -> str:
    """Return a near miss, or a loss, as a sentence."""
    place, at = where(margin.topic, margin.partition), instant(margin.at, first_day)
    if margin.margin < 0:
        lost = count(-margin.margin, "unread record")
        return f"retention had deleted {lost} of {margin.group} on {place} by {at} UTC"
    share = percent(margin.share)
    return f"{margin.group} on {place} was {distance(margin)} ({share} of the log) at {at} UTC, with unread records"
