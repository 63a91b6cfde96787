"""From events to findings: what the journal tells around them is gathered, judged, and told with its past."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from agent.model.findings import Finding, Records, Severity
from agent.model.observations import Availability, BrokerRegistration
from agent.storage.journal import entries
from spark_checks.history import curves
from spark_checks.history.clock import Clock
from spark_checks.history.context import Journal, Place
from spark_checks.history.curves import Series
from spark_checks.history.events import Spell, losses, spells
from spark_checks.history.files import read
from spark_checks.history.keys import Key
from spark_checks.history.live_findings import Live, seen
from spark_checks.history.scan import Asked
from spark_checks.history.verdicts import AFTER_MS, BASELINE_MS, BEFORE_MS, Around, Event, Verdict
from spark_checks.history.words import Past, gap, sentence

NAME = "offset_history"

_HOUR_MS = 3_600_000
_COMPARED = 200
"""How many of the worst are compared with how their groups usually move, an hour of commits each."""


def unseen(journal: Journal) -> tuple[Clock, list[Spell]]:
    """The agent's clock, and the stretches of which the journal tells nothing, oldest first."""
    ticks = [read(one, ("position", "at")) for one in journal.pieces("tick")]
    columns = [
        np.concatenate([np.empty(0, np.int64), *(one[name].to_numpy() for one in ticks)]) for name in ("position", "at")
    ]
    made = np.argsort(columns[0])
    positions, times = (column[made] for column in columns)
    clock = Clock.of(positions, times)
    sights = [
        one
        for _, one in entries(journal.directory, journal.since, journal.until, ["blind", "sighted"], journal.unreadable)
        if isinstance(one, Availability) and one.cluster == journal.cluster
    ]
    last = int(times.max()) if times.size else journal.until
    holes = [Spell(begin, end, {}, "") for begin, end in clock.holes(positions, times)]
    return clock, sorted([*holes, *spells(sights, last)], key=lambda one: one.begin)


def judged(
    journal: Journal, events: Sequence[Event], hidden: Sequence[Spell], clock: Clock, least: int
) -> list[Verdict]:
    """What the events were, oldest first; those that were nothing are left out."""
    ordered = sorted(events, key=lambda one: (one.at, one.key))
    if not ordered:
        return []
    stretches = [
        Place(number, one.key.topic, one.key.partition, one.began - BEFORE_MS - BASELINE_MS, one.at + AFTER_MS)
        for number, one in enumerate(ordered)
    ]
    since_before = [
        place._replace(begin=min(place.begin, one.before_at - BASELINE_MS))
        for place, one in zip(stretches, ordered, strict=True)
    ]
    registrations = entries(
        journal.directory, journal.since, journal.until, ["broker_registration"], journal.unreadable
    )
    told = Around(
        cluster=journal.cluster,
        log=journal.readings([place for number, one in enumerate(ordered) for place in one.places(number)]),
        states=journal.states(since_before),
        losses=losses(
            one for _, one in registrations if isinstance(one, BrokerRegistration) and one.cluster == journal.cluster
        ),
        truncations=journal.truncations(stretches),
        spells=hidden,
        clock=clock,
    )
    verdicts = (told.judge(number, one, least) for number, one in enumerate(ordered))
    return [one for one in verdicts if one is not None]


def badness(verdict: Verdict) -> tuple[bool, int]:
    """Sorts verdicts: rewinds before jumps, the more records the worse."""
    records = verdict.records
    return (verdict.event.back, records.reread + records.lost + records.skipped)


def around(journal: Journal, asked: Asked, told: Sequence[Verdict]) -> dict[Key, Series]:
    """The commits of the worst verdicts' keys in the hour before each and the ten minutes behind it."""
    wanted: dict[Key, list[tuple[int, int]]] = {}
    for one in sorted(told, key=badness)[-_COMPARED:]:
        stretch = (one.event.at - _HOUR_MS, one.event.at + BEFORE_MS)
        wanted.setdefault(one.event.key, []).append(stretch)
    if not wanted:
        return {}
    first = min(begin for ones in wanted.values() for begin, _ in ones)
    # A picture shows how it went on behind the window, by the agent's own clock.
    asked = asked._replace(until=asked.until + BEFORE_MS, clock=Clock())
    pieces = journal.pieces("commit", max(first, journal.since), asked.until)
    return curves.commits(journal.spark, pieces, asked, wanted)


class Told:
    """Verdicts as findings, each beside the rewinds of its key before it."""

    def __init__(
        self, verdicts: Sequence[Verdict], series: Mapping[Key, Series], journal: Journal, live: Live | None, begun: int
    ) -> None:
        """verdicts: all of the part of the journal that was read, oldest first. begun: when its commits begin, ms."""
        self._rewinds: dict[Key, list[int]] = {}
        for one in verdicts:
            if one.event.back:
                self._rewinds.setdefault(one.event.key, []).append(one.event.at)
        self._series = series
        self._journal = journal
        self._begun = begun
        self._live = live

    def finding(self, verdict: Verdict) -> Finding:
        """The finding. Info where live rules saw it, or where it may be the agent's clock that went back."""
        event = verdict.event
        known = None if self._live is None else seen(self._live, event.key, event.began, event.at)
        live = {None: (), True: ("seen_live",), False: ("unseen_live",)}[known]
        rewinds = self._rewinds.get(event.key, [])
        before = rewinds[: bisect_left(rewinds, event.at)]
        past = Past(len(before), before[-1] if before else None, event.at - self._begun)
        series = self._series.get(event.key)
        rhythm = None if series is None else curves.usual(series, event.at - _HOUR_MS, event.at)
        return Finding(
            rule=NAME,
            kind=NAME,
            severity=Severity.INFO if known or "clock_set_back" in verdict.labels else Severity.WARNING,
            at=event.at,
            since=event.began if event.hit.since is not None or verdict.hidden else None,
            subject={"cluster": self._journal.cluster, **event.key._asdict()},
            labels=(*verdict.labels, *live),
            previous={"offset": event.hit.before_offset},
            current={"offset": event.hit.offset},
            records=verdict.records,
            detail=sentence(verdict, past, rhythm),
            known_at=event.at,
        )


def gap_finding(spell: Spell, cluster: str) -> Finding:
    """A stretch of which the journal tells nothing."""
    return Finding(
        rule=NAME,
        kind=NAME,
        severity=Severity.INFO,
        at=spell.end,
        since=spell.begin,
        subject={"cluster": cluster, **spell.subject},
        labels=("gap",),
        records=Records(),
        detail=gap(spell),
        known_at=spell.end,
    )
