"""Findings about moves between clusters: what counts, severity, labels, text."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agent.model.findings import Finding, Records, Severity
from agent.model.text import count, day_of, instant, span
from spark_checks.failovers.measured import Effect

NAME = "cluster_failover"


class Limits(NamedTuple):
    """What is reported: moves that repeat or skip so many records; repeat records that took so long to write, ms."""

    min_records: int
    tolerance: int


def findings_of(effects: Sequence[Effect], limits: Limits) -> Iterator[Finding]:
    """Yield the findings about moves that skip or repeat enough."""
    from_earliest = {effect.compared.move for effect in effects if effect.measured.is_early}
    for effect in effects:
        move, measured = effect.compared.move, effect.measured
        # A group that begins at the log start on a partition does so on all where it has no offset.
        is_known = effect.compared.target.low is not None or move not in from_earliest
        if measured.beyond:
            yield _finding(effect, "beyond_log_end")
        elif is_known and measured.skipped >= limits.min_records:
            yield _finding(effect, "skipped")
        elif measured.repeated >= limits.min_records and measured.span >= limits.tolerance:
            yield _finding(effect, "reprocessed")


def _finding(effect: Effect, label: str) -> Finding:
    (move, left, began), measured = effect
    labels = {
        label: True,
        "projected": move.is_projected,
        "no_offset": began.low is None,
        "origin_unseen": move.unseen,
    }
    least, most = _amounts(effect, label)
    is_impact = not move.is_projected and label != "beyond_log_end"
    impact = Records(**{"skipped" if label == "skipped" else "reread": least}) if is_impact else Records()
    figures = {"at_least": least, "at_most": most, "resume_at": measured.resume_at}
    return Finding(
        rule=NAME,
        kind=NAME,
        severity=_severity(effect, label),
        at=began.at,
        subject={"cluster": move.target, "group": move.group, "topic": began.topic, "partition": began.partition},
        labels=tuple(name for name, holds in labels.items() if holds),
        previous={"cluster": move.origin, "topic": left.topic, "offset": left.high},
        current={
            "cluster": move.target,
            "offset": began.high if began.low is None else began.low,
            **{name: value for name, value in figures.items() if value is not None},
        },
        records=impact,
        detail=_describe(effect, label),
        known_at=began.at,
    )


def _severity(effect: Effect, label: str) -> Severity:
    """Return critical only for skipped records that are certain."""
    move, began = effect.compared.move, effect.compared.target
    if label == "reprocessed":
        return Severity.INFO if move.is_projected else Severity.WARNING
    is_certain = not (move.is_projected or move.unseen or began.low is None)
    return Severity.CRITICAL if is_certain else Severity.WARNING


def _describe(effect: Effect, label: str) -> str:
    (move, _, began), measured = effect
    clusters = f"from {move.origin} to {move.target}"
    day = day_of(began.at)
    when = f"when it moved {clusters} at {day} {instant(began.at, day)} UTC"
    if move.is_projected:
        day = day_of(move.joined)
        when = f"if it failed over {clusters} as things are at {day} {instant(move.joined, day)} UTC"
    match label:
        case "beyond_log_end":
            beyond = f"has an offset {count(measured.beyond, 'record')} beyond the log end on {move.target}"
            what = f"{beyond}: {when}, auto.offset.reset would decide where it begins"
        case "skipped":
            verb = "would skip" if move.is_projected else "skipped"
            what = f"{verb} {_amount(*_amounts(effect, label))} {when}"
        case _:
            verb = "would reprocess" if move.is_projected else "reprocessed"
            what = f"{verb} {_amount(*_amounts(effect, label))}, written in {span(measured.span)} or more, {when}"
    parts = [f"{move.group} on {began.topic}[{began.partition}] {what}", _positions(effect)]
    parts += _doubts(effect, label)
    if label == "skipped" and measured.resume_at is not None:
        parts.append(f"reset it to {measured.resume_at:,} on {move.target} to process them")
    return "; ".join([*parts, f"allowed for a mirror delay of {span(measured.delay)}"])


def _amounts(effect: Effect, label: str) -> tuple[int, int | None]:
    """Return the records that a finding is about, at least and at most."""
    measured = effect.measured
    match label:
        case "skipped":
            return measured.skipped, measured.most_skipped
        case "reprocessed":
            return measured.repeated, measured.most_repeated
        case _:
            return measured.beyond, None


def _amount(least: int, most: int | None) -> str:
    bound = "" if most is None or most <= least else f" (at most {most:,})"
    return f"at least {count(least, 'record')}{bound}"


def _positions(effect: Effect) -> str:
    (move, left, began), measured = effect
    day = day_of(move.joined if move.is_projected else began.at)
    where = f" ({left.topic}[{left.partition}])" if left.topic != began.topic else ""
    read = f"it had committed {left.high:,} on {move.origin}{where}, the log end at {instant(measured.read_at, day)},"
    if began.low is None:
        return f"{read} and committed {began.high:,} first on {move.target}"
    verb = "has" if move.is_projected else "continued at"
    end = "" if measured.continued_at is None else f", the log end at {instant(measured.continued_at, day)}"
    return f"{read} and {verb} {began.low:,} on {move.target}{end}"


def _doubts(effect: Effect, label: str) -> Iterator[str]:
    """Yield what the finding assumes."""
    move, began = effect.compared.move, effect.compared.target
    if move.unseen:
        unseen = f"{move.origin} was not observed when the group left it"
        if move.observed_until is not None:
            unseen = f"{unseen}, as its journal ends at {instant(move.observed_until, day_of(began.at))}"
        yield f"{unseen}: counted as if it had read on there until it moved, as fast as records were written"
    if began.low is None and label == "skipped":
        yield "it did not begin at a committed offset there: what it did not read before its first commit is skipped"
