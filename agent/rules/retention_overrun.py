"""retention_overrun: records are deleted before a group has read them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, takewhile
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.history import LONG_AFTER, History
from agent.engine.ordinary import CommitProgress
from agent.engine.rule import Advice, GroupRule, Scope, ended, recovered
from agent.model.batches import UNKNOWN, Flags
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding, Records, Severity, reader
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, TopicSettings
from agent.model.text import count, day_of, instant, place, span
from agent.rules.queries.overtaken import find_overtaken, unclear_until
from agent.rules.queries.partitions import CLOCK_SLACK_MS, find_deletion, is_recreated
from agent.rules.queries.subjects import groups_of
from agent.rules.queries.unread import MARKER, RESTING_MS, end_of_markers, first_unread, read_until, remembered

_TENFOLD = 10

_MIN_CRITICAL = 1_000
"""The smallest loss, in records, that is critical when it has grown tenfold."""

_FRESH_MS = 600_000
"""Records younger than this are hardly deleted by retention together with all others of a log."""

_PURGED = " by DeleteRecords, not by retention"
_PERHAPS_PURGED = " by DeleteRecords, or by retention if retention.ms was lowered or their timestamps are older"
_UNLIMITED = "retention.ms is unlimited"


class RetentionOverrun(GroupRule):
    """The log start offset passes the committed offset of a group: records that it has not read are deleted.

    A group counts until it is abandoned: `abandoned_after` after it last had members for the partition or moved its
    offset, by its own rhythm. What is deleted while the group reads adds up; critical when that is tenfold. What is
    deleted while it has no members adds up when it returns.

    Labels:

    - `purged`: retention.ms is unlimited, also when read next (DeleteRecords).

    - `perhaps_purged`: records written more recently than retention.ms, or perhaps so; with retention.ms unknown, all
      of a log that was just written. It was DeleteRecords, or retention: retention.ms was lowered, or the timestamps of
      the records are older.

    - `while_away`: an abandoned group has returned.

    Two kinds of groups may have read on before the log start offset was read:

    - Groups whose offsets are polled: Kafka Streams deletes what it has committed. Reported 5 s later if the offset is
      still lower, or has advanced at more than thrice its pace.

    - Groups that commit in steps: reported if the next step is overdue, or leads 1.5 times further than any before.

    Not:

    - groups at the end of their log: a single offset at the log end may be a transaction marker, and up to ten of a log
      that has not grown since a minute after the group's last move

    - a re-created topic

    - a log start offset that had already passed when first seen, unless the group reads on

    Recovers when the group commits an offset within the log. Ends when the group or topic is deleted, or the group is
    abandoned.
    """

    title = "{group} lost {records} unread records on {topic}[{partition}] to retention"
    titles: ClassVar[Mapping[str, str]] = {
        "purged": "{group} lost {records} unread records on {topic}[{partition}] to DeleteRecords",
        "perhaps_purged": "{group} lost {records} unread records on {topic}[{partition}] to retention or DeleteRecords",
        "while_away": "{group} lost {records} unread records on {topic}[{partition}] while it was away",
    }
    is_delay = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "purged": Advice(
            now="Find out who deleted the records of {topic} at {start} (kafka-delete-records, Admin.deleteRecords). "
            "If {reader} needs them, restore them from the source system.",
            prevent="Delete records of {topic} only after every group has read them; restrict Delete on it by ACL.",
        ),
        "perhaps_purged": Advice(
            now="Find out what deleted the records of {topic} at {start}: if DeleteRecords or a lowered retention.ms, "
            "who; if retention as configured, raise retention.ms until {reader} has caught up. If {reader} needs them, "
            "restore them from the source system.",
            prevent="Find out why {reader} reads {topic} more slowly than it is written.",
        ),
        "while_away": Advice(
            now="If {reader} needs the deleted records, restore them from the source system.",
            prevent="Keep retention.ms and retention.bytes of {topic} longer than {reader} may be away.",
        ),
        "": Advice(
            now="Raise retention.ms and retention.bytes of {topic} until {reader} has caught up. Deleted records can "
            "only be recovered from the source system.",
            prevent="Find out why {reader} reads {topic} more slowly than it is written.",
        ),
    }
    observes = (Commit, LogOffsets)
    ignores_growth = True

    abandoned_after: PositiveDuration = 86_400_000
    """How long after it last read a group is abandoned."""

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        offset, start = finding.previous.get("offset"), finding.current.get("log_start")
        if offset is None or start is None:
            return super().timeline(finding, day)
        where = f"{reader(finding.subject)} on {place(finding.subject)}"
        lost = count(finding.records.lost, "unread record")
        return f"{where}: {lost} deleted (read to {offset:,}, log starts at {start:,})"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        match observation:
            case LogOffsets(at=at, cluster=cluster, topic=topic, partition=partition, log_start=log_start):
                last = facts.history(LogOffsets, cluster, topic, partition).changes[-2:]
                if last[0].log_start >= log_start:
                    return ()
                groups = [
                    group
                    for group in groups_of(facts, cluster, topic, partition)
                    for commits in [facts.history(Commit, cluster, group, topic, partition)]
                    if any(
                        commit.offset is not None and commit.offset < log_start
                        for commit in (*commits.before(at + 1, 2), *commits.after(at))
                    )
                ]
            case Commit(cluster=cluster, group=group, topic=topic, partition=partition, offset=int() as offset):
                reading = facts.history(LogOffsets, cluster, topic, partition).last
                if reading is None:
                    return ()
                if offset >= reading.log_start:
                    before = facts.history_of(observation).changes[-2:][0]
                    if before.offset is None or before.offset >= reading.log_start:
                        return ()
                groups = [group]
            case _:
                return ()
        return [Scope(cluster, group, topic, partition) for group in groups if self.applies_to(group, topic)]

    def ignores_progress(self, progress: CommitProgress, facts: Facts) -> Flags:
        return np.asarray(progress.offset_before >= progress.of_partition(facts.partitions.log_start))

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = facts.history(Commit, *scope.series)
        states = facts.history(GroupState, scope.cluster, scope.group or "")
        log = facts.history(LogOffsets, *scope.in_partition)
        for before, after in pairwise(log):
            commit = find_overtaken(history, states, log, before, after)
            if commit is None or commit.offset is None:
                continue
            offset = commit.offset
            if after.log_start == after.log_end <= _end_of_read(log, commit, after):
                continue
            if is_recreated(facts, scope.in_partition, min(before.at, commit.at), after.at):
                continue
            read = read_until(facts, scope, after.at)
            if read is None or after.at > read + self.abandoned_after:
                continue
            polled_ms = CLOCK_SLACK_MS if after.since is not None else 0
            clear_at = unclear_until(history, commit, after)
            if clear_at is None:
                continue
            label, deletion = _explain_deletion(facts, scope, before, after)
            yield self.make_finding(
                scope,
                after,
                known_at=max(after.seen + polled_ms, commit.seen, clear_at),
                detail=f"{_describe(scope, offset, after.log_start)}{deletion}",
                labels=(label,) if label else (),
                previous={"offset": offset, "log_start": before.log_start},
                current={"log_start": after.log_start, "first_log_start": after.log_start},
                records=Records(lost=after.log_start - offset),
            )
        yield from self._returned(scope, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Return the finding with the losses until now, recovered when the group commits within the log again."""
        if "while_away" in finding.labels:
            return recovered(finding, finding.at)
        readings = facts.history(LogOffsets, *scope.in_partition)
        commits = facts.history(Commit, *scope.series).after(finding.at)
        finding = _doubt_purge(_add_what_was_fetched(finding, scope, commits), scope, facts)
        within = (
            commit.at
            for commit in commits
            for reading in [readings.as_of(commit.at)]
            if commit.offset is not None and reading is not None and commit.offset >= reading.log_start
        )
        returned = next(within, None)
        over = self._end(finding, scope, facts)
        if returned is not None and (over is None or returned <= over[0]):
            return recovered(self._grown(finding, scope, readings.as_of(returned)), returned)
        counted_until = read_until(facts, scope, readings.confirmed) or finding.at
        grown = self._grown(finding, scope, readings.as_of(max(counted_until, finding.at)))
        if over is None:
            return grown
        return ended(grown, *over) if over[0] <= facts.now else recovered(grown, over[0])

    def _returned(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        """Yield what was lost by an abandoned group, or before the group was first observed, when it returns."""
        readings = facts.history(LogOffsets, *scope.in_partition)
        for before, after in pairwise(facts.history(Commit, *scope.series)):
            reading = readings.as_of(after.at)
            old, new = before.offset, after.offset
            if reading is None or old is None or new is None or not old < reading.log_start <= new:
                continue
            if self._was_reported(scope, before, after, facts):
                continue
            if is_recreated(facts, scope.in_partition, before.at, after.at):
                continue
            since = max((known.at for known in remembered(readings) if known.log_start <= old), default=None)
            yield self.make_finding(
                scope,
                after,
                known_at=max(after.seen, reading.seen),
                detail=f"{_describe(scope, old, reading.log_start)} before it read on",
                labels=("while_away",),
                previous={"offset": old} | ({} if since is None else {"last_within_at": since}),
                current={"log_start": reading.log_start, "offset": new},
                records=Records(lost=reading.log_start - old),
            )

    def _was_reported(self, scope: Scope, before: Commit, after: Commit, facts: Facts) -> bool:
        """Return whether the log start offset passed `before` while the group was observed and not abandoned."""
        readings = remembered(facts.history(LogOffsets, *scope.in_partition))
        passed = next((reading for reading in readings if reading.log_start > (before.offset or 0)), None)
        if passed is None or passed is readings[0]:
            return False
        committed = facts.history(Commit, *scope.series).as_of(passed.at)
        if committed is not None and committed.at < after.at and (committed.offset or 0) >= passed.log_start:
            return False  # it moved back below the log start offset later
        read = read_until(facts, scope, passed.at)
        return passed.at > after.at or (read is not None and passed.at <= read + self.abandoned_after)

    def _grown(self, finding: Finding, scope: Scope, reading: LogOffsets | None) -> Finding:
        """Return the finding with what had been deleted by that reading, critical if that is tenfold."""
        offset, first = int(finding.previous["offset"]), int(finding.current["first_log_start"])
        start = max(first, _log_start(reading))
        if reading is None or start <= int(finding.current["log_start"]):
            return finding
        lost = start - offset
        is_tenfold = lost >= max(_TENFOLD * (first - offset), _MIN_CRITICAL)
        day = day_of(finding.at)
        window = f"between {instant(finding.start, day)} and {instant(reading.at, day)} UTC"
        return replace(
            finding,
            severity=(is_tenfold and self.effective_severity(Severity.CRITICAL)) or finding.severity,
            detail=f"{_describe(scope, offset, start)} {window}",
            current={"log_start": start, "first_log_start": first, "grown_at": reading.at},
            records=Records(lost=lost),
        )

    def _end(self, finding: Finding, scope: Scope, facts: Facts) -> tuple[int, str] | None:
        """Return when and why nothing more can be lost to the group, perhaps in the future."""
        cluster, group, *_ = scope.series
        states = facts.history(GroupState, cluster, group).after(finding.at)
        commits = facts.history(Commit, *scope.series)
        reasons = {
            "the topic was deleted": find_deletion(facts, scope.in_partition, finding.at),
            "the group was deleted": next((state.at for state in states if state.is_gone), None),
            "its committed offset was deleted": commits.when(finding.at, "offset", lambda offset: offset == UNKNOWN),
        }
        state = facts.history(GroupState, cluster, group).last
        if state is None or not state.has_consumers:
            read = read_until(facts, scope, LONG_AFTER)
            if read is not None:
                away = f"{group} has not read for {span(self.abandoned_after)} and counts as abandoned"
                reasons[away] = max(read, finding.at) + self.abandoned_after
        return min(((at, reason) for reason, at in reasons.items() if at is not None), default=None)


def _add_what_was_fetched(finding: Finding, scope: Scope, commits: Iterable[Commit]) -> Finding:
    """Return the finding without the records that the group had fetched before they were deleted, and read after."""
    old = int(finding.previous["offset"])
    first, start = int(finding.current["first_log_start"]), int(finding.current["log_start"])
    offsets = (commit.offset for commit in commits if commit.offset is not None)
    read = max((old, *takewhile(lambda offset: offset < first, offsets)))
    if read == old:
        return finding
    return replace(
        finding,
        detail=finding.detail.replace(_describe(scope, old, start), _describe(scope, read, start)),
        previous={**finding.previous, "offset": read},
        records=Records(lost=start - read),
    )


def _end_of_read(log: History[LogOffsets], commit: Commit, after: LogOffsets) -> int:
    """Return up to which offset there may be only transaction markers after the group's last commit."""
    if after.at < commit.at + RESTING_MS:
        return (commit.offset or 0) + MARKER  # it may not have read on yet
    return end_of_markers([reading for reading in remembered(log) if reading.at <= after.at], commit)


def _log_start(reading: LogOffsets | None) -> int:
    return 0 if reading is None else reading.log_start


def _describe(scope: Scope, offset: int, start: int) -> str:
    return (
        f"{scope.group} had read {scope.topic}[{scope.partition}] up to {offset:,} when the log start offset rose to "
        f"{start:,}: {count(start - offset, 'unread record')} deleted"
    )


def _explain_deletion(facts: Facts, scope: Scope, before: LogOffsets, after: LogOffsets) -> tuple[str, str]:
    """Return the label that says whether it was retention, and the reason as the end of a sentence.

    Both are empty if it was. Retention deletes what is older than retention.ms by its timestamps, or what exceeds
    retention.bytes. An operator may lower retention.ms for a while, between two readings of it.
    """
    written = first_unread(remembered(facts.history(LogOffsets, *scope.in_partition)), after.log_start - 1)
    history = facts.history(TopicSettings, scope.cluster, scope.topic)
    first = history.as_of(after.start)
    settings = [*([] if first is None else [first]), *history.between(after.start, after.at)]
    if written is None or any(known.retention_bytes >= 0 for known in settings):
        return "", ""
    most, least = None if written[0] is None else after.at - written[0], after.at - written[1]
    age = "" if most is None else f"the youngest was written at most {span(max(most, 1_000))} before; "
    if not settings:
        is_fresh = most is not None and after.log_start >= before.log_end and most <= _FRESH_MS
        return ("perhaps_purged", f"{_PERHAPS_PURGED} ({age}none was left)") if is_fresh else ("", "")
    limits = [known.retention_ms for known in settings if known.retention_ms >= 0]
    if not limits:
        return "purged", f"{_PURGED} ({age}{_UNLIMITED})"
    limit = min(limits)
    if most is not None:
        is_young = most < limit
        return ("perhaps_purged", f"{_PERHAPS_PURGED} ({age}retention.ms is {span(limit)})") if is_young else ("", "")
    if least >= limit:
        return "", ""
    return (
        "perhaps_purged",
        f" by retention or DeleteRecords (unknown: whether they were older than retention.ms, {span(limit)})",
    )


def _doubt_purge(finding: Finding, scope: Scope, facts: Facts) -> Finding:
    """Return the finding as not certain if retention was limited when read next: it may have been lowered before."""
    if "purged" not in finding.labels:
        return finding
    following = next(iter(facts.history(TopicSettings, scope.cluster, scope.topic).after(finding.at)), None)
    if following is None or following.start > finding.at:
        return finding
    if following.retention_ms >= 0:
        known = f"retention.ms was unlimited before, {span(following.retention_ms)} when read next"
    elif following.retention_bytes >= 0:
        known = f"retention.bytes was unlimited before, {following.retention_bytes:,} when read next"
    else:
        return finding
    detail = finding.detail.replace(_PURGED, _PERHAPS_PURGED).replace(_UNLIMITED, known)
    return replace(finding, labels=("perhaps_purged",), detail=detail)
