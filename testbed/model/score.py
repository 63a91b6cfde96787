"""Runs Backflow on what the sources saw and compares its incidents with the truth."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from agent.engine.engine import Engine
from agent.model.findings import Finding, FindingKey, Incident, Severity
from agent.model.observations.base import Observation
from testbed.model.evidence import Evidence, Sight
from testbed.model.truth import Effect, Event, Truth, matches

_SLACK_MS = 240_000
"""How far a report may be dated from the effect: clocks that differ, polls, commit intervals, a source's gap."""


class Shortfall(Struct):
    """One way in which a scenario's incidents fall short. kind: missed, false, retracted, split, cause, label, count.

    rules: the rule kinds concerned. event: the name of the true event, or what ordinary life did to the subject.
    """

    seed: int
    kind: str
    rules: tuple[str, ...]
    event: str
    detail: str


class Seen(Struct):
    """What a rule kind achieved: effects wanted and found, labels and counts right and wrong, delays in ms."""

    wanted: int = 0
    found: int = 0
    labels: int = 0
    labels_wrong: int = 0
    counts: int = 0
    counts_wrong: int = 0
    error: float = 0.0
    delays: list[int] = []


class Result(Struct):
    """The score of a scenario. events: loud ones that could be seen; single: those that made one incident."""

    seed: int
    watched_ms: int
    by_kind: dict[str, Seen] = {}
    events: int = 0
    events_found: int = 0
    single: int = 0
    with_cause: int = 0
    right_cause: int = 0
    loud: int = 0
    shortfalls: list[Shortfall] = []
    seconds: float = 0.0
    observations: int = 0


class Run(NamedTuple):
    """The incidents at the end, when each finding was first reported, and what was reported at any time by id."""

    incidents: list[Incident]
    reported_at: dict[FindingKey, int]
    reported: dict[str, Incident]


def run(engine: Engine, batches: Iterable[Sequence[Observation]]) -> Run:
    """Feed the batches to an engine and return what came of it."""
    incidents: dict[str, Incident] = {}
    reported_at: dict[FindingKey, int] = {}
    reported: dict[str, Incident] = {}

    def note(changed: Iterable[Incident]) -> None:
        for incident in changed:
            incidents[incident.id] = incident
            if is_loud(incident):
                reported[incident.id] = incident
                for finding in (*incident.causes, *incident.findings):
                    reported_at.setdefault(finding.key, engine.now)

    for batch in batches:
        note(engine.take(batch))
    note(engine.catch_up())
    kept = [incident for incident in incidents.values() if incident.merged_into is None and incident.findings]
    return Run(sorted(kept, key=lambda incident: (incident.opened_at, incident.id)), reported_at, reported)


def is_loud(incident: Incident) -> bool:
    """Return whether the incident is reported to an operator."""
    return incident.merged_into is None and bool(incident.findings) and incident.severity is not Severity.INFO


def is_report_of(finding: Finding, effect: Effect) -> bool:
    """Return whether the finding is a correct report of the effect, by kind, subject and time."""
    if finding.kind not in effect.kinds or not matches(effect.subject, finding.subject):
        return False
    if effect.after is not None and effect.until is None:
        return finding.start - _SLACK_MS <= effect.at <= finding.at + _SLACK_MS or (
            finding.at <= effect.at and (finding.recovered_at or effect.at) >= effect.at
        )
    until = effect.until
    return finding.at >= effect.at - _SLACK_MS and (until is None or finding.start <= until + _SLACK_MS)


class Scorer:
    """Compares the incidents of one scenario with its truth."""

    def __init__(self, truth: Truth, evidence: Evidence, outcome: Run) -> None:
        self._truth, self._evidence, self._run = truth, evidence, outcome
        self._result = Result(seed=truth.seed, watched_ms=truth.ended_at - truth.began_at)
        self._loud = [incident for incident in outcome.incidents if is_loud(incident)]
        self._result.loud = len(self._loud)

    def score(self) -> Result:
        """Return the score."""
        for event in self._truth.events:
            if event.wanted == "loud":
                self._score_event(event)
        self._find_false_alarms()
        return self._result

    def _score_event(self, event: Event) -> None:
        sights = {number: self._evidence.of(effect) for number, effect in enumerate(event.effects)}
        wanted = [
            (effect, sights[number])
            for number, effect in enumerate(event.effects)
            if effect.must and sights[number].is_visible and effect.at < self._truth.ended_at - 300_000
        ]
        if not wanted:
            return
        incidents = [incident for incident in self._loud if self._is_about(incident, event)]
        result, missed = self._result, []
        result.events += 1
        for effect, sight in wanted:
            seen = result.by_kind.setdefault(effect.kinds[0], Seen())
            seen.wanted += 1
            findings = [f for incident in incidents for f in _parts(incident) if is_report_of(f, effect)]
            if not findings:
                missed.append(effect)
                continue
            seen.found += 1
            # A reader that is reset again has one incident: what lasts since the last time is no report of this one.
            soonest = min(_distance(finding, effect) for finding in findings)
            near = [finding for finding in findings if _distance(finding, effect) == soonest]
            best = max(near, key=lambda finding: _records(finding).get(effect.measure, 0))
            self._score_finding(event, effect, sight, best, seen)
        if missed:
            kinds = tuple(sorted({effect.kinds[0] for effect in missed}))
            what = "; ".join(f"{effect.kinds[0]} {dict(effect.subject)} {effect.records:,}" for effect in missed[:3])
            self._fall_short("missed", kinds, event, f"{len(missed)} of {len(wanted)}: {what}")
        if len(missed) < len(wanted):
            result.events_found += 1
            self._score_incidents(event, [effect for effect, _ in wanted], incidents)

    def _is_about(self, incident: Incident, event: Event) -> bool:
        """Return whether the incident reports an effect of the event, or what only this event explains."""
        findings = _loud_findings(incident)
        if any(is_report_of(f, effect) for f in (*incident.causes, *findings) for effect in event.effects):
            return True
        others = [other for other in self._truth.events if other is not event]
        return any(_explains(event, f) and not any(_explains(other, f) for other in others) for f in findings)

    def _score_incidents(self, event: Event, effects: list[Effect], incidents: list[Incident]) -> None:
        if len(incidents) == 1:
            self._result.single += 1
        else:
            kinds = tuple(sorted({_gravest(incident).kind for incident in incidents}))
            self._fall_short("split", kinds, event, f"{len(incidents)} incidents: {_titles(incidents)}")
        kinds_said = {f.kind for incident in incidents for f in _parts(incident)}
        causes = {f.kind for incident in incidents for f in incident.causes}
        if event.causes and any(self._evidence.shows_cause(effect) for effect in effects):
            self._result.with_cause += 1
            if kinds_said & set(event.causes):
                self._result.right_cause += 1
            else:
                self._fall_short("cause", (effects[0].kinds[0],), event, f"said {sorted(causes)}; {_titles(incidents)}")
        elif event.causes_forbidden:
            self._result.with_cause += 1
            has_causes = any(other.causes for other in self._joined_events(event, incidents))
            if causes & set(event.causes_forbidden) and not has_causes:
                wrong = f"wrongly {sorted(causes & set(event.causes_forbidden))}; {_titles(incidents)}"
                self._fall_short("cause", (effects[0].kinds[0],), event, wrong)
            else:
                self._result.right_cause += 1

    def _joined_events(self, event: Event, incidents: Iterable[Incident]) -> Iterator[Event]:
        """Yield the other events that an incident is about as well, as it should if they hit the same reader."""
        findings = [finding for incident in incidents for finding in incident.findings]
        for other in self._truth.events:
            if other is not event and any(is_report_of(f, effect) for f in findings for effect in other.effects):
                yield other

    def _score_finding(self, event: Event, effect: Effect, sight: Sight, finding: Finding, seen: Seen) -> None:
        reported_at = self._run.reported_at.get(finding.key)
        if reported_at is not None:
            seen.delays.append(reported_at - effect.at)
        labels = set(finding.labels)
        seen.labels += 1
        wrong = labels & set(effect.labels_forbidden)
        if wrong or (effect.labels and not labels & set(effect.labels)):
            seen.labels_wrong += 1
            self._fall_short("label", (finding.kind,), event, f"labels {sorted(labels)}: {finding.detail}")
        reported = _records(finding)
        if effect.measure not in reported or (effect.measure == "skipped" and finding.kind != "offset_jump"):
            return
        alike = [e for e in event.effects if e.subject == effect.subject and e.measure == effect.measure]
        high = None if sight.high is None else sight.high + sum(e.records for e in alike if e is not effect)
        records = reported[effect.measure]
        if finding.kind in ("beyond_end", "unclean_election") and records == 0:
            return
        seen.counts += 1
        seen.error += min(abs(records - effect.records) / max(effect.records, 1), 1.0)
        if records < sight.low * 0.999 - 1 or (high is not None and records > high * 1.001 + 1):
            seen.counts_wrong += 1
            bounds = f"{sight.low:,} to {high if high is None else format(high, ',')}"
            self._fall_short(
                "count", (finding.kind,), event,
                f"{records:,} {effect.measure}, true {effect.records:,} (can know {bounds}): {finding.detail}",
            )  # fmt: skip

    def _find_false_alarms(self) -> None:
        for incident in self._loud:
            findings = _loud_findings(incident)
            unjustified = [finding for finding in findings if not self._is_justified(finding)]
            if unjustified:
                kind = "false" if len(unjustified) == len(findings) else "false part"
                kinds = tuple(sorted({finding.kind for finding in unjustified}))
                finding = unjustified[0]
                self._fall_short(
                    kind, kinds, self._coincidence(finding),
                    f"{incident.id} {incident.severity.value} {finding.kind}[{','.join(finding.labels)}] "
                    f"{len(unjustified)}x: {finding.detail}",
                )  # fmt: skip
        current = {incident.id for incident in self._loud}
        for number, incident in self._run.reported.items():
            last = next((i for i in self._run.incidents if i.id == number), None)
            finding = _gravest(incident)
            if number in current or any(self._is_justified(f) for f in _loud_findings(incident)):
                continue
            became = "withdrawn or merged" if last is None else last.severity.value
            self._fall_short(
                "retracted", (finding.kind,), self._coincidence(finding),
                f"{number} was {incident.severity.value}, became {became}: {finding.detail}",
            )  # fmt: skip

    def _is_justified(self, finding: Finding) -> bool:
        return any(_justifies(event, finding) for event in self._truth.events) or self._was_unseen(finding)

    def _was_unseen(self, finding: Finding) -> bool:
        """Return whether an operator's reset may look like anything else, as Backflow was suspended around it."""
        asleep = [event for event in self._truth.events if event.name == "Backflow was suspended"]
        quiet = [event for event in self._truth.events if any(is_report_of(finding, e) for e in event.effects)]
        return any(
            away.at - 300_000 <= event.until and event.at <= away.until + 300_000 for away in asleep for event in quiet
        )

    def _coincidence(self, finding: Finding) -> str:
        """Return what happened then to whom the finding is about, by name of subject or else by time alone."""
        names = {str(value) for key, value in finding.subject.items() if key in ("group", "topic", "broker", "job")}
        near = [
            event
            for event in self._truth.events
            if event.at - 60_000 <= finding.at
            and finding.start <= event.until + 120_000
            and event.until - event.at < 7_200_000
        ]
        own = [event.name for event in near if any(name in event.name for name in names if len(name) > 2)]
        return " / ".join(own or [event.name for event in near][:3]) or "nothing"

    def _fall_short(self, kind: str, rules: tuple[str, ...], event: Event | str, detail: str) -> None:
        name = event if isinstance(event, str) else event.name
        self._result.shortfalls.append(
            Shortfall(seed=self._truth.seed, kind=kind, rules=rules, event=name, detail=detail)
        )


def _distance(finding: Finding, effect: Effect) -> int:
    """Return how far the report's interval is from the effect, ms."""
    return max(finding.start - effect.at, effect.at - finding.at, 0)


def _loud_findings(incident: Incident) -> list[Finding]:
    return [finding for finding in incident.findings if finding.severity is not Severity.INFO] or list(
        incident.findings
    )


def _records(finding: Finding) -> dict[str, int]:
    return {"reread": finding.records.reread, "lost": finding.records.lost, "skipped": finding.records.skipped}


def _parts(incident: Incident) -> tuple[Finding, ...]:
    return (*incident.findings, *incident.causes)


def _gravest(incident: Incident) -> Finding:
    return max(incident.findings, key=lambda finding: finding.severity.rank)


def _explains(event: Event, finding: Finding) -> bool:
    return any(is_report_of(finding, effect) for effect in (*event.effects, *event.also))


def _justifies(event: Event, finding: Finding) -> bool:
    effects = event.also if event.wanted == "quiet" else (*event.effects, *event.also)
    return any(is_report_of(finding, effect) for effect in effects)


def _titles(incidents: Iterable[Incident]) -> str:
    return " | ".join(f"{incident.id} {incident.severity.value} {incident.title}" for incident in list(incidents)[:4])
