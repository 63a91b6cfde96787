"""Findings about rewinds, jumps and gaps: severity, labels, text, and whether the live rules detected them."""

import sqlite3
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import msgspec

from agent.model.findings import Finding, Incident, Records, Severity
from agent.model.text import count, day_of, instant, span
from agent.model.times import clock
from agent.rules.queries.partitions import CLOCK_SLACK_MS, leader_of
from agent.storage.database import StorageError
from spark_checks.journal.files import JournalWindow
from spark_checks.offsets.commits import Baseline, CommitFilter, Series, baseline, read_commits
from spark_checks.offsets.coverage import Clock, Gap
from spark_checks.offsets.diagnosis import BEFORE_MS, Diagnosis, Event
from spark_checks.offsets.keys import Key

NAME = "offset_history"

LiveFindings: TypeAlias = Mapping[Key, Sequence[Finding]]
"""What the live rules found, by key."""

_HOUR_MS = 3_600_000
_WITH_BASELINE = 200
"""How many of the worst are compared with a baseline: an hour of commits each."""

_SOON_MS = 10_000
"""A shorter interval is reported by its end alone."""

_CAUSES = ("after_session_loss", "after_leader_move", "after_truncation")
"""Labels of what happened shortly before a move and may have caused it."""

_LIVE_KINDS = ("offset_rewind", "offset_jump", "retention_overrun", "hidden_reset")


def read_series(window: JournalWindow, wanted: CommitFilter, diagnoses: Sequence[Diagnosis]) -> dict[Key, Series]:
    """Return the commits of the worst diagnoses' keys from an hour before to ten minutes after each."""
    intervals: dict[Key, list[tuple[int, int]]] = {}
    for diagnosis in sorted(diagnoses, key=lambda diagnosis: diagnosis.badness)[-_WITH_BASELINE:]:
        event = diagnosis.event
        intervals.setdefault(event.key, []).append((event.at - _HOUR_MS, event.at + BEFORE_MS))
    if not intervals:
        return {}
    first = min(begin for of_key in intervals.values() for begin, _ in of_key)
    # The plot shows what followed, also after the window, by the agent's own clock.
    wanted = wanted._replace(until=wanted.until + BEFORE_MS, clock=Clock())
    pieces = window.pieces("commit", max(first, window.since), wanted.until)
    return read_commits(window.spark, pieces, wanted, intervals)


def read_live_findings(path: Path, cluster: str) -> LiveFindings:
    """Return the live findings about committed offsets in the agent's state file. Raises StorageError."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            bodies = [str(body) for (body,) in database.execute("SELECT body FROM incidents")]
    except sqlite3.Error as error:
        msg = f"{path}: cannot read the agent's state: {error}"
        raise StorageError(msg) from error
    found: dict[Key, list[Finding]] = {}
    for incident in (msgspec.json.decode(body, type=Incident) for body in bodies):
        for finding in (*incident.causes, *incident.findings):
            subject = finding.subject
            # A Flink subtask's position has no group, so it has no committed offset to compare with.
            if finding.kind in _LIVE_KINDS and "group" in subject and subject["cluster"] == cluster:
                key = Key(subject["group"], subject["topic"], subject["partition"])
                found.setdefault(key, []).append(finding)
    return found


def find_live(live: LiveFindings, key: Key, begin: int, end: int) -> list[Finding]:
    """Return what the live rules found about the key in [begin, end], ms."""
    return [
        finding
        for finding in live.get(key, ())
        if finding.start - CLOCK_SLACK_MS <= end and begin <= finding.at + CLOCK_SLACK_MS
    ]


class FindingBuilder:
    """Findings of diagnoses, each compared with the rewinds of its key before it."""

    def __init__(
        self,
        diagnoses: Sequence[Diagnosis],
        series: Mapping[Key, Series],
        cluster: str,
        live: LiveFindings | None,
        begin: int,
        *,
        left_out: Mapping[Key, int] = {},
        live_since: int = 0,
    ) -> None:
        """Take all diagnoses of the part of the journal that was read, oldest first. begin: when it begins, ms.

        left_out: the number of rewinds before them that were not examined, by key. live_since: since when all live
        findings are known, ms.
        """
        self._rewinds: dict[Key, list[int]] = {}
        for diagnosis in diagnoses:
            if diagnosis.event.is_rewind:
                self._rewinds.setdefault(diagnosis.event.key, []).append(diagnosis.event.at)
        self._series, self._cluster, self._live, self._begin = series, cluster, live, begin
        self._left_out, self._live_since = left_out, live_since

    def finding(self, diagnosis: Diagnosis) -> Finding:
        """Return the finding: info if live rules reported it or if only the agent's clock may have been set back."""
        event = diagnosis.event
        known = [] if self._live is None else find_live(self._live, event.key, event.began, event.at)
        is_compared = self._live is not None and (known or event.at >= self._live_since)
        live = ("seen_live" if known else "unseen_live",) if is_compared else ()
        labels = diagnosis.labels
        # The live rules knew the group's members: what they call an operator's reset needs no other cause.
        by_operator = any("operator_reset" in finding.labels for finding in known)
        if by_operator:
            labels = (*(label for label in labels if label not in _CAUSES), "operator_reset")
        uncertain = "clock_set_back" in diagnosis.labels
        return Finding(
            rule=NAME,
            kind=NAME,
            severity=Severity.INFO if known or uncertain else Severity.WARNING,
            at=event.at,
            since=event.began if event.move.since is not None or diagnosis.gaps else None,
            subject={"cluster": self._cluster, **event.key._asdict()},
            labels=(*labels, *live),
            previous={"offset": event.move.before_offset},
            current={"offset": event.move.offset},
            records=diagnosis.records,
            detail=self._describe(diagnosis, by_operator=by_operator),
            known_at=event.at,
        )

    def _describe(self, diagnosis: Diagnosis, *, by_operator: bool) -> str:
        event = diagnosis.event
        parts = [_describe_move(diagnosis)]
        if event.is_rewind:
            parts.append(self._describe_past(event))
        series = self._series.get(event.key)
        usual = None if series is None else baseline(series, event.at - _HOUR_MS, event.at)
        if usual is not None and usual.step > 0:
            parts.append(_describe_baseline(usual))
        if diagnosis.gaps:
            parts.append(f"exact time unknown: {_describe_gap(diagnosis.gaps[0], day_of(event.at))}")
        if "clock_set_back" in diagnosis.labels:
            parts.append("time uncertain: the agent's clock was set back meanwhile")
        causes = ["an operator reset the group"] if by_operator else _describe_context(diagnosis)
        return "; ".join([*parts, *causes])

    def _describe_past(self, event: Event) -> str:
        rewinds = self._rewinds.get(event.key, [])
        before = rewinds[: bisect_left(rewinds, event.at)]
        covered = f"{span(event.at - self._begin)} of journal"
        if not before:
            return f"only rewind in {covered}"
        earlier = len(before) + self._left_out.get(event.key, 0)
        return f"{count(earlier, 'earlier rewind')} in {covered}, the last {span(event.at - before[-1])} before"


def gap_finding(gap: Gap, cluster: str) -> Finding:
    """Return the finding about a gap in the journal."""
    return Finding(
        rule=NAME,
        kind=NAME,
        severity=Severity.INFO,
        at=gap.end,
        since=gap.begin,
        subject={"cluster": cluster, **gap.subject},
        labels=("gap",),
        records=Records(),
        detail=f"{'Causes may be missing' if gap.hides_only_causes else 'Not compared'}: {_describe_gap(gap, '')}",
        known_at=gap.end,
    )


def _describe_move(diagnosis: Diagnosis) -> str:
    event, labels = diagnosis.event, diagnosis.labels
    old, new = event.move.before_offset, event.move.offset
    who = f"{event.key.group} on {event.key.topic}[{event.key.partition}]"
    when = f"at {day_of(event.at)} {clock(event.at)} UTC"
    if event.began < event.at - _SOON_MS or diagnosis.gaps:
        day = day_of(event.began)
        when = f"between {day} {clock(event.began)} and {instant(event.at, day)} UTC"
    expired = ", after its offset expired or was deleted" if "after_expiry" in labels else ""
    if event.is_rewind:
        # A poll sees where the group is by then: it was further back and has reprocessed some records.
        least = "at least " if event.move.since is not None else ""
        reset = ", reset to the log start" if "to_earliest" in labels else ""
        return (
            f"{who} rewound {old:,} -> {new:,} {when}: {least}{count(old - new, 'record')} to reprocess{reset}{expired}"
        )
    reset = ", reset to the log end" if "to_latest" in labels else ""
    lost, skipped = diagnosis.records.lost, diagnosis.records.skipped
    effects = [f"{count(skipped, 'record')} skipped"] if skipped else []
    effects += [f"{count(lost, 'record')} deleted by retention before they were read"] if lost else []
    return f"{who} jumped {old:,} -> {new:,} {when}: {' and '.join(effects)}{reset}{expired}"


def _describe_baseline(usual: Baseline) -> str:
    return f"it usually advances {count(usual.step, 'record')} every {span(usual.every)}"


def _describe_context(diagnosis: Diagnosis) -> list[str]:
    event = diagnosis.event
    parts = [f"broker {loss.broker} session expired {_distance(loss.at, event)}" for loss in diagnosis.session_losses]
    changes = [
        f"{leader_of(old)} -> {leader_of(new)} {_distance(new.at, event)}" for old, new in diagnosis.leader_changes
    ]
    if changes:
        parts.append(f"{event.key.topic}[{event.key.partition}] leader changed {', '.join(changes)}")
    parts += [
        f"log truncated {truncation.old:,} -> {truncation.new:,} {_distance(truncation.at, event)}"
        for truncation in diagnosis.truncations
    ]
    return [", ".join(parts)] if parts else []


def _distance(at: int, event: Event) -> str:
    if at == event.at:
        return "at the same time"
    return f"{span(event.at - at)} before" if at < event.at else f"{span(at - event.at)} after"


def _describe_gap(gap: Gap, day: str) -> str:
    begin, end = instant(gap.begin, day), instant(gap.end, day or day_of(gap.begin))
    subject = " ".join(f"{name} {value}" for name, value in gap.subject.items() if name != "source")
    what = f"no observations of {subject}" if subject else "the journal has no observations"
    if gap.hides_only_causes:
        what = f"{gap.subject['source']} could not be read"
    why = f": {gap.reason}" if gap.reason else ""
    return f"{what} between {begin} and {end} UTC ({span(gap.end - gap.begin)}){why}"
