"""offset_rewind: a committed offset, or the position of a Flink subtask, moves backwards."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from agent.engine.facts import Facts
from agent.engine.history import LATENESS_MS, LONG_AFTER, History
from agent.engine.rule import Advice, CauseCheck, ChosenSeverity, GroupRule, Scope, reopened
from agent.model.findings import Finding, Records, Severity, reader
from agent.model.observations.base import Observation
from agent.model.observations.flink import Position
from agent.model.observations.kafka import Commit
from agent.model.text import count, is_bounded, ordinal, place, recovery, time_range
from agent.model.times import clock
from agent.rules.queries.advice import DEDUPLICATE, DEDUPLICATE_BY_KEY, RESEND
from agent.rules.queries.causes import (
    FORGOTTEN,
    check_commit_causes,
    check_recreation,
    prevent_forgetting,
    unmoved_since,
    why_forgotten,
)
from agent.rules.queries.elections import check_election
from agent.rules.queries.late_commits import is_reordered, order_known_at
from agent.rules.queries.operators import (
    is_change_by_operator,
    is_moved_by_operator,
    is_small_step_without_members,
    operator_known_at,
)
from agent.rules.queries.partitions import Truncation, is_recreated
from agent.rules.queries.positions import log_start_of
from agent.rules.queries.restores import RestoreContext, find_restore_context, find_restores_behind, has_members
from agent.rules.queries.rewinds import (
    Move,
    Offset,
    confirmed_at,
    find_decreases,
    find_own_decreases,
    find_pace,
    find_reset_label,
    find_return,
    find_truncation,
    is_logged_as_reset,
)
from agent.rules.queries.subjects import coordinator_of, groups_of, may_end, recovered_or_ended

_HOW = {
    "operator_reset": "was reset by an operator",
    "checkpoint_restore": "was moved back by a checkpoint restore",
    "after_expiry": "rewound after its committed offset {forgotten}",
    "to_earliest": "was reset to the log start",
    "to_divergence": "was reset to the divergence point",
    "": "rewound",
}
"""What happened, by label; the first label that a finding has decides."""

_JITTER = 10
"""Rewinds of fewer records are ordinary, however small the topic is."""


class _Rewind(NamedTuple):
    """The highest reading before a rewind, the one that shows it, and the commits that moved back with a position."""

    before: Offset
    after: Offset
    committed: list[Move]

    @property
    def move(self) -> Move:
        """The move without the commits."""
        return Move(self.before, self.after)


class OffsetRewind(GroupRule):
    """A group's committed offset, or a Flink subtask's position, moves backwards by at least `min_records`.

    The records in between are reprocessed, except those that a truncation removed: they are lost, and new records reuse
    their offsets. In a small topic, a rewind over more than half of what the reader had read is enough.

    Labels:

    - `to_earliest`: to the log start offset; critical.

    - `to_divergence`: to the truncation point (KIP-320).

    - `after_expiry`: Kafka had forgotten the offset.

    - `operator_reset`: an operator moved an idle group, or reset a Kafka Streams application. Info, or what the option
      of that name says.

    - `checkpoint_restore`: a Flink job was restored from a savepoint or checkpoint; info.

    Where a reader was reset to is decided by the lines of its log, by its pace since, and by the truncation of the log.
    If they do not decide it, there is no label. Without a label, a rewind of a group without members by no more than it
    advances at a time is info: MirrorMaker's translated offsets, or the last records of a consumer by assign(). Not if
    the log was truncated, or the reader's log says that it was reset.

    With polls, the new offset is an upper bound: the consumer has moved on since. For a Kafka Streams application with
    stores it is reported 5 s later, when an operator's reset is visible.

    Not:

    - a re-created topic, a smaller rewind, an offset older than the last one seen

    - an older commit that arrives late: the next one is above both at once

    - a position that may come from a cache in Flink: it must be below what was read a minute before, or a second
      reading or a committed offset must have moved back with it

    Recovers when the old offset, or that of an earlier rewind which has not recovered, is committed or reached again.
    Ends when the topic or the committed offset is deleted, when an operator moves the group ahead, or when the Flink
    job has ended.
    """

    title = "{reader} rewound {records} records on {topic}[{partition}]"
    titles: ClassVar[Mapping[str, str]] = {
        "operator_reset": "An operator rewound {reader} by {records} records on {topic}[{partition}]"
    }
    moves_position = True
    moves_reader = True
    advice: ClassVar[Mapping[str, Advice]] = {
        "operator_reset": Advice(),
        "checkpoint_restore": Advice(),
        "after_expiry": Advice(now=DEDUPLICATE, prevent=prevent_forgetting(FORGOTTEN)),
        "to_divergence": Advice(now=RESEND),
        "to_earliest": Advice(
            now=DEDUPLICATE,
            prevent="Set auto.offset.reset=none for {reader} if it should rather stop than reprocess everything.",
        ),
        "": Advice(
            now=DEDUPLICATE,
            prevent="Find out in the log of {reader} what moved it back: auto.offset.reset, a seek() or older offsets.",
        ),
    }
    after_truncation: ClassVar[Mapping[bool, Advice]] = {
        False: Advice(now=RESEND),
        True: Advice(now=f"{DEDUPLICATE_BY_KEY} Have the producers of {{topic}} resend the lost records."),
    }
    """Advice after a truncation, by whether records are reprocessed as well; log_truncated says what prevents it."""
    observes = (Commit, Position)
    scope_keys = ("flink",)
    ignores_all_progress = True

    min_records: int = 1000
    """The smallest rewind reported, in records; of a small topic, more than half of what the reader had read."""
    operator_reset: ChosenSeverity = "info"
    """Severity of what an operator did (label `operator_reset`), whatever `severity` is."""

    @classmethod
    def title_for(cls, finding: Finding) -> str:
        is_loss = finding.records.lost and not finding.records.reread
        if is_loss:
            return "{records} records that {reader} had read on {topic}[{partition}] are lost"
        return super().title_for(finding)

    @classmethod
    def advice_for(cls, finding: Finding) -> Advice:
        if finding.records.lost and finding.severity is not Severity.INFO:
            return cls.after_truncation[finding.records.reread > 0]
        advice = super().advice_for(finding)
        is_forgotten = advice is cls.advice["after_expiry"] and "forgotten" in finding.current
        return advice._replace(prevent=prevent_forgetting(finding.current["forgotten"])) if is_forgotten else advice

    @classmethod
    def describe(cls, finding: Finding, day: str) -> str:
        if "offset" not in finding.previous or "offset" not in finding.current:
            return super().describe(finding, day)
        is_open = finding.recovered_at is None
        # The second clause of `detail` predicts when the reader has caught up.
        prediction = f"; {finding.detail.partition('; ')[2].removesuffix(' UTC')}".rstrip("; ") if is_open else ""
        words = "caught up" if finding.records.reread else "beyond the old offset again"
        return (
            f"{_who(finding)} on {_move(finding)} {time_range(finding, day)}; "
            f"{_describe_impact(finding)}{prediction}{recovery(finding, day, words)}"
        )

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        if "offset" not in finding.previous or "offset" not in finding.current:
            return super().timeline(finding, day)
        return f"{reader(finding.subject)} on {_move(finding)}"

    @classmethod
    def title_suffix(cls, findings: Iterable[Finding]) -> str:
        """Return how often one reader has rewound on one partition, if more than once."""
        rewinds: dict[tuple[Any, ...], list[int]] = {}
        for finding in findings:
            names = (reader(finding.subject), finding.subject.get("topic"), finding.subject.get("partition"))
            rewinds.setdefault(names, []).append(finding.at)
        times = max(rewinds.values(), key=len, default=[])
        if len(times) < 2:
            return ""
        return f": {ordinal(len(times))} rewind since {clock(min(times))[:5]}"

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, Commit | Position) or observation.offset is None:
            return ()
        known = [state.offset for state in facts.history_of(observation).changes[-4:] if state.offset is not None]
        # A position's rewind is confirmed by the reading after it.
        recent = known[-2 if isinstance(observation, Commit) else -3 :]
        if recent == sorted(recent):
            return ()
        name = observation.group if isinstance(observation, Commit) else observation.name
        return (_scope(observation),) if self.applies_to(name, observation.topic) else ()

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history = _offsets(scope, facts)
        for before, after in find_own_decreases(facts, history, lambda before: self._least(before, facts)):
            rewind = _Rewind(before, after, list(self._find_commits(scope, before, after, facts)))
            if is_reordered(facts, rewind.move):
                continue
            if isinstance(after, Commit):
                known_at: int | None = max(operator_known_at(facts, after), order_known_at(facts, rewind.move))
            else:
                known_at = confirmed_at(rewind.move, rewind.committed, history)
            if known_at is None or known_at <= facts.final_before:
                continue
            if not is_recreated(facts, scope.in_partition, before.at, after.at):
                yield self._finding(scope, rewind, known_at, facts)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        old = int(finding.previous["offset"])
        regained_at = _offsets(scope, facts).when(finding.at, "offset", lambda offset: offset >= old)
        is_skip = (
            regained_at is not None
            and scope.job is None
            and is_change_by_operator(facts, facts.history(Commit, *scope.series), regained_at)
        )
        return recovered_or_ended(finding, regained_at, scope, facts, "an operator moved the group ahead" * is_skip)

    def concerns(self, finding: Finding, observation: Observation) -> bool:
        old = int(finding.previous["offset"])
        return may_end(observation, lambda offset: offset >= old)

    def reconcile(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings recovered no earlier than earlier rewinds from a higher offset.

        A reader that rewinds again on its way back has not caught up before it regains the old position.
        """
        reconciled: list[Finding] = []
        for finding in sorted(findings, key=attrgetter("at")):
            behind = [
                earlier
                for earlier in reconciled
                if earlier.severity is not Severity.INFO and earlier.previous["offset"] >= finding.previous["offset"]
            ]
            last = max(behind, key=_over_at, default=finding)
            if _over_at(last) > _over_at(finding):
                reason = {"ended": last.current["ended"]} if "ended" in last.current else {}
                finding = reopened(finding)  # noqa: PLW2901
                finding = replace(finding, recovered_at=last.recovered_at, current={**finding.current, **reason})  # noqa: PLW2901
            reconciled.append(finding)
        return reconciled

    def _find_commits(self, scope: Scope, before: Offset, after: Offset, facts: Facts) -> Iterator[Move]:
        """Yield the moves backwards of offsets committed in the partition, when a position there moved back."""
        for group in groups_of(facts, *scope.in_partition) if scope.job is not None else ():
            commits = facts.history(Commit, scope.cluster, group, *scope.in_partition[1:])
            for high, low in find_decreases(commits, lambda before: self._least(before, facts)):
                if isinstance(low, Commit) and has_members(facts, low):
                    continue  # Flink commits for groups without members
                if low.start <= after.at + LATENESS_MS and before.at - LATENESS_MS <= low.at and high.at <= after.at:
                    yield Move(high, low)

    def _finding(self, scope: Scope, rewind: _Rewind, known_at: int, facts: Facts) -> Finding:
        before, after, _ = rewind
        log_start = log_start_of(after, facts)
        truncation = find_truncation(facts, rewind.move)
        restores = find_restores_behind(facts, before, after)
        labels = list(self._find_labels(rewind, log_start, truncation, restores, facts))
        severity = Severity.CRITICAL if "to_earliest" in labels else None
        is_by_operator = "operator_reset" in labels
        is_meant = is_by_operator or "checkpoint_restore" in labels
        forgotten = {}
        if isinstance(before, Commit) and isinstance(after, Commit):
            forgotten = {"forgotten": why_forgotten(facts, before, after)} if "after_expiry" in labels else {}
            is_reset = bool(labels) or truncation is not None or is_logged_as_reset(facts, rewind.move)
            is_meant = is_meant or (not is_reset and is_small_step_without_members(facts, before, after))
        if is_meant:
            severity = Severity.INFO
        coordinator = None if scope.group is None else coordinator_of(facts, scope.cluster, scope.group, known_at)
        held = {} if coordinator is None else {"coordinator": coordinator}
        start = {"log_start": log_start} if "to_earliest" in labels else {}
        context = find_restore_context(facts, scope.in_partition, before.at, after.at)
        checks = _check_causes(scope, rewind, labels, context, facts)
        finding = self.make_finding(
            scope,
            after,
            detail="",
            known_at=known_at,
            since=find_return(facts, after) if isinstance(after, Commit) and "after_expiry" in labels else None,
            severity=severity,
            labels=labels,
            previous={"offset": before.offset},
            current={
                "offset": after.offset,
                **start,
                **held,
                **forgotten,
                **({"explained_by": restores} if restores else {}),
                **(context._asdict() if context is not None else {}),
            },
            records=_count_records(rewind, truncation, is_divergence="to_divergence" in labels),
            subject=_flink_subject(after),
            checks=() if restores else (*checks, *check_election(facts, rewind.move, log_start, self.min_records)),
        )
        prediction = _predict(facts, rewind.move) if finding.records.reread else ""
        return replace(
            finding,
            severity=Severity(self.operator_reset) if is_by_operator else finding.severity,
            detail=f"{_who(finding)} on {_move(finding)}{prediction}",
            # A reader without an offset is reset when it returns: no disturbance is the cause.
            undisturbed_since=LONG_AFTER if forgotten else unmoved_since(facts, before, after),
        )

    def _find_labels(
        self,
        rewind: _Rewind,
        log_start: int | None,
        truncation: Truncation | None,
        restores: Sequence[Mapping[str, Any]],
        facts: Facts,
    ) -> Iterator[str]:
        before, after, committed = rewind
        # Each reading shows the reader at some moment after its rewind: the lowest is nearest to where it went.
        move = min((rewind.move, *committed), key=lambda move: move.after.offset or 0)
        label = find_reset_label(facts, move, self.min_records, log_start=log_start, truncation=truncation)
        if label is not None:
            yield label
        if restores:
            yield "checkpoint_restore"
        if isinstance(before, Commit) and isinstance(after, Commit):
            if why_forgotten(facts, before, after):
                yield "after_expiry"
            if is_moved_by_operator(facts, before, after):
                yield "operator_reset"

    def _least(self, before: Offset, facts: Facts) -> int:
        """Return the smallest rewind to report: more than half of what the reader had read, at most `min_records`."""
        log_start = log_start_of(before, facts)
        if log_start is None:
            return self.min_records
        return min(self.min_records, max(_JITTER, ((before.offset or 0) - log_start) // 2 + 1))


def _over_at(finding: Finding) -> int:
    return LONG_AFTER if finding.recovered_at is None else finding.recovered_at


def _count_records(rewind: _Rewind, truncation: Truncation | None, *, is_divergence: bool) -> Records:
    """Return what became of the records between the two offsets: those that a truncation removed are lost."""
    old, new = rewind.before.offset or 0, rewind.after.offset or 0
    end = old if truncation is None else truncation.after.log_end
    if is_divergence:  # the log may have grown since, and the reader has read on
        return Records(lost=old - min(end, new))
    return Records(reread=max(end - new, 0), lost=old - end)


def _check_causes(
    scope: Scope, rewind: _Rewind, labels: Iterable[str], context: RestoreContext | None, facts: Facts
) -> Iterator[CauseCheck]:
    before, after, _ = rewind
    if isinstance(before, Commit) and isinstance(after, Commit):
        yield from check_commit_causes(facts, before, after, labels)
    else:
        yield check_recreation(facts, scope.in_partition, before.at, after.at)
    if context is not None and not context.restores:
        yield CauseCheck("checkpoint_restore", evidence="no job was restored")


def _who(finding: Finding) -> str:
    """Return the reader in words, with its Flink subtask and host if they are known."""
    subject = finding.subject
    subtask = f"subtask {subject['subtask']} of " if "subtask" in subject else ""
    host = f" ({subject['host']})" if "host" in subject else ""
    return f"{subtask}{reader(subject)}{host}"


def _move(finding: Finding) -> str:
    """Return where the reader moved, how, and from which offset to which: "t[3] rewound: 5,547 -> 327 or lower"."""
    how = next(words for label, words in _HOW.items() if not label or label in finding.labels)
    is_lowest = finding.current["offset"] <= finding.current.get("log_start", 0)
    bound = " or lower" if is_bounded(finding) and not is_lowest else ""
    offsets = f"{finding.previous['offset']:,} -> {finding.current['offset']:,}"
    how = how.format(forgotten=finding.current.get("forgotten", FORGOTTEN))
    return f"{place(finding.subject)} {how}: {offsets}{bound}"


def _describe_impact(finding: Finding) -> str:
    """Return what became of the records between the two offsets, in words."""
    least = "at least " if is_bounded(finding) else ""
    reread, lost = finding.records.reread, finding.records.lost
    singular, plural = ("is being", "are being") if finding.recovered_at is None else ("was", "were")
    verb = (singular if reread == 1 else plural) + (" to be" if "ended" in finding.current else "")
    parts = [f"{least}{count(reread, 'record')} {verb} reprocessed"] if reread or not lost else []
    if lost:
        are = "is" if lost == 1 else "are"
        parts.append(f"at least {count(lost, 'record')} that it had read {are} lost and their offsets reused")
    return ", ".join(parts)


def _scope(observation: Offset) -> Scope:
    cluster, topic, partition = observation.cluster, observation.topic, observation.partition
    if isinstance(observation, Commit):
        return Scope(cluster, observation.group, topic, partition)
    others = (("flink", observation.flink),)
    return Scope(cluster, None, topic, partition, job=observation.job, others=others)


def _offsets(scope: Scope, facts: Facts) -> History[Commit] | History[Position]:
    if scope.job is None:
        return facts.history(Commit, *scope.series)
    cluster, topic, partition = scope.in_partition
    return facts.history(Position, cluster, dict(scope.others)["flink"], scope.job, topic, partition)


def _flink_subject(observation: Offset) -> dict[str, Any]:
    """Return what a position names besides its scope."""
    if isinstance(observation, Commit):
        return {}
    names = {
        "job_name": observation.name,
        "subtask": observation.subtask,
        "host": observation.host,
    }
    return {name: value for name, value in names.items() if value is not None}


def _predict(facts: Facts, move: Move) -> str:
    """Return when the reader will have caught up, as a clause; empty if unknown."""
    pace = find_pace(facts, move)
    return "" if pace is None else f"; at {pace.rate:,.0f} records/s caught up by about {clock(pace.caught_up_at)} UTC"
