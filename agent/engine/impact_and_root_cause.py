"""What an incident makes of its findings: the worst of them, their total impact, the root-cause broker, the title."""

from collections.abc import Iterable, Mapping
from typing import Any

from agent.engine.correlation import Correlation, FindingCluster
from agent.engine.precedence import CLOCK_SLACK_MS, can_precede
from agent.engine.rule import Rule
from agent.model.findings import Finding, Records, observed_part, reader
from agent.model.log_text import describe_lines, first_line
from agent.model.text import is_bounded, is_leader_change


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the most severe findings first, then those of most records, then the earliest.

    What a source cannot read comes after what is known to have happened: it is a symptom.
    """
    return sorted(
        findings,
        key=lambda finding: (
            -finding.severity.rank,
            "source" in finding.subject,
            -(finding.records.reread + finding.records.lost + finding.records.skipped),
            finding.at,
            finding.key,
        ),
    )


def total_impact(findings: Iterable[Finding]) -> Records:
    """Return the records reprocessed, lost and skipped: what several findings say of a partition counts once.

    A Flink job's position and the offset that it commits are the same reading: of a partition the larger counts.
    """
    skipped = 0
    lost: dict[tuple[Any, ...], int] = {}
    reprocessed: dict[tuple[Any, ...], dict[bool, int]] = {}
    for finding in findings:
        partition = tuple(finding.subject.get(key) for key in ("cluster", "topic", "partition"))
        by_reader = reprocessed.setdefault(partition, {True: 0, False: 0})
        by_reader["job" in finding.subject] += finding.records.reread
        skipped += finding.records.skipped
        lost[partition] = max(lost.get(partition, 0), finding.records.lost)
    return Records(sum(max(by_reader.values()) for by_reader in reprocessed.values()), sum(lost.values()), skipped)


def root_cause_broker(causes: Iterable[Finding], effect: Finding) -> int | None:
    """Return the broker that was away when the effect's partition changed leader, else the first cause's broker."""
    ordered = sorted(causes, key=lambda finding: (finding.at, finding.key))
    losses = [finding for finding in ordered if finding.subject.get("broker") is not None]
    broker: int | None = next((loss.subject["broker"] for loss in losses), None)
    for change in filter(is_leader_change, ordered):
        is_here = all(change.subject.get(key) == effect.subject.get(key) for key in ("topic", "partition"))
        if not is_here or not can_precede(change, effect):
            continue
        for loss in losses:
            back_at = loss.recovered_at or change.at
            was_away = can_precede(loss, change) and change.start <= back_at + CLOCK_SLACK_MS
            if was_away and loss.subject["broker"] == change.previous["leader"]:
                broker = loss.subject["broker"]
    return broker


def title(cluster: FindingCluster, correlation: Correlation | None, rules: Mapping[str, Rule]) -> str:
    """Return the headline: of the correlation's last step, else of the worst effect's rule. rules: by name."""
    outcome = correlation.steps[-1].rules if correlation is not None else ()
    worst = worst_first([effect for effect in cluster.effects if effect.rule in outcome] or cluster.effects)[0]
    rule = rules.get(worst.rule)
    own_title = worst.kind if rule is None else rule.title_for(worst)
    template = (correlation.title if correlation is not None else None) or own_title
    text = template.format_map(_title_fields(cluster, worst, rule))
    of_rule = [effect for effect in cluster.effects if effect.rule == worst.rule]
    lines = describe_lines(of_rule)
    if lines:
        return f"{text} ({lines})"
    # A Flink job's position and the offset that it commits are one reader.
    is_position = "job" in worst.subject
    subjects = {effect.subject_json for effect in of_rule if ("job" in effect.subject) == is_position}
    others = f" (and {len(subjects) - 1:,} more)" if len(subjects) > 1 else ""
    return text + others + ("" if rule is None else rule.title_suffix(of_rule))


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _title_fields(cluster: FindingCluster, worst: Finding, rule: Rule | None) -> _Fields:
    """Return what a title template may name; a field that the finding lacks reads "?"."""
    fields = _Fields(
        worst.subject,
        records=_describe_number(worst, rule),
        reader=reader(worst.subject),
        observed=observed_part(worst.subject),
        rule=worst.rule,
        line=first_line(worst),
    )
    broker = root_cause_broker(cluster.causes, worst)
    if broker is not None:
        fields["broker"] = broker
    fields.setdefault("broker", " and ".join(map(str, worst.subject.get("brokers", ()))) or "?")
    return fields


def _describe_number(worst: Finding, rule: Rule | None) -> str:
    """Return the number of records, with a plus sign if it is a lower bound because the finding was polled."""
    records = worst.records
    number = max(records.reread, records.lost, records.skipped)
    # A polled jump, or a loss to retention, may be smaller: the group may have read more in between.
    is_lower_bound = rule is not None and rule.moves_position and records.skipped < number
    return f"{number:,}{'+' if is_lower_bound and is_bounded(worst) else ''}"
