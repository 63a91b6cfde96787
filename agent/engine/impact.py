"""What an incident makes of its findings: the worst of them, what they cost, who is to blame, its title. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from agent.engine.correlation import CLOCK_SLACK_MS, Correlation, FindingCluster, in_order
from agent.model.findings import Finding, Records, reader, sight
from agent.model.log_text import first_line, together
from agent.model.text import count


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The gravest first, then those of most records, then the earliest."""
    return sorted(
        findings,
        key=lambda one: (
            -one.severity.rank,
            -(one.records.reread + one.records.lost + one.records.skipped),
            one.at,
            one.key,
        ),
    )


def radius(findings: Iterable[Finding]) -> Records:
    """The blast radius: what is read again or skipped adds up; what several say is lost of a partition is lost once.

    A Flink job's position and the offset that it commits tell of the same reading: of a partition the larger counts.
    """
    skipped = 0
    lost: dict[tuple[Any, ...], int] = {}
    reread: dict[tuple[Any, ...], dict[bool, int]] = {}
    for one in findings:
        place = tuple(one.subject.get(key) for key in ("cluster", "topic", "partition"))
        by = reread.setdefault(place, {True: 0, False: 0})
        by["job" in one.subject] += one.records.reread
        skipped += one.records.skipped
        lost[place] = max(lost.get(place, 0), one.records.lost)
    return Records(sum(max(by.values()) for by in reread.values()), sum(lost.values()), skipped)


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def title(content: FindingCluster, correlation: Correlation | None, titles: Mapping[str, str]) -> str:
    """The headline: of the correlation's last step, else of the worst finding's rule. titles: by rule name."""
    outcome = correlation.steps[-1].rules if correlation is not None else ()
    worst = worst_first([one for one in content.effects if one.rule in outcome] or content.effects)[0]
    form = (correlation.title if correlation is not None else None) or titles.get(worst.rule, worst.kind)
    records = max(worst.records.reread, worst.records.lost, worst.records.skipped)
    fields = _Fields(
        worst.subject,
        records=f"{records:,}",
        reader=reader(worst.subject),
        sight=sight(worst.subject),
        rule=worst.rule,
        line=first_line(worst),
    )
    broker = culprit(content.causes, worst)
    if broker is not None:
        fields["broker"] = broker
    fields.setdefault("broker", " and ".join(map(str, worst.subject.get("brokers", ()))) or "?")
    told = form.format_map(fields)
    lines = together(one for one in content.effects if one.rule == worst.rule)
    if lines:
        return f"{told} ({lines})"
    # Where a Flink job reads and what it commits is one reader, told twice.
    of_a_job = "job" in worst.subject
    alike = {one.key[1] for one in content.effects if one.rule == worst.rule and ("job" in one.subject) == of_a_job}
    others = len(alike) - 1
    return told + (f" (and {others:,} more)" if others else "") + _fallen(content.effects, worst.rule)


def _fallen(effects: Iterable[Finding], rule: str) -> str:
    """How many keys of Kafka Streams stores went back, as one rule has found; empty where it tells of none."""
    told = (one.current.get("keys") for one in effects if one.rule == rule)
    keys = sum(one for one in told if isinstance(one, int))
    return f", {count(keys, 'key')} went back" if keys else ""


def culprit(causes: Iterable[Finding], effect: Finding) -> int | None:
    """The broker to blame: the one that was away when the effect's partition left it; else the first cause's."""
    ordered = sorted(causes, key=lambda one: (one.at, one.key))
    losses = [one for one in ordered if one.subject.get("broker") is not None]
    best = next((one.subject["broker"] for one in losses), None)
    for move in ordered:
        here = all(move.subject.get(key) == effect.subject.get(key) for key in ("topic", "partition"))
        if move.kind != "leader_moved" or not here or not in_order(move, effect):
            continue
        for loss in losses:
            back_at = loss.recovered_at or move.at
            away = in_order(loss, move) and move.start <= back_at + CLOCK_SLACK_MS
            if away and loss.subject["broker"] == move.previous.get("leader"):
                best = loss.subject["broker"]
    return best
