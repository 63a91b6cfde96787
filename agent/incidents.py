"""The incidents' life: identity, merging, recovery, closing. Pure: changes of findings in, changed incidents out."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from agent.correlation import CLOCK_SLACK_MS, Correlation, Together, horizon, in_order, together
from agent.detection import Changes
from agent.facts import LONG_AFTER, LONG_AGO, SETTLED_MS
from agent.findings import Finding, FindingKey, Incident, Records, Severity, Status
from agent.observations import Blind
from agent.options import Section, Wait


class Lifetimes(Section):
    """[incidents]: how long incidents stay."""

    close_after: Wait = 3_600_000
    """How long after recovery an incident is closed; until then new findings may reopen it."""
    forget_after: Wait = 7 * 86_400_000
    """How long an incident may stay open without news before it is closed unrecovered."""


LIFETIMES = Lifetimes()
"""As shipped."""


class Incidents:
    """All incidents that may still change."""

    def __init__(
        self, correlations: Mapping[str, Correlation], titles: Mapping[str, str], lifetimes: Lifetimes = LIFETIMES
    ) -> None:
        """correlations: by name; titles: the title's format by rule name."""
        self._correlations = correlations
        self._titles = titles
        self._lifetimes = lifetimes
        self._horizon = horizon(correlations)
        self._recent: dict[FindingKey, Finding] = {}
        self._member: dict[FindingKey, str] = {}
        self._content: dict[str, Together] = {}
        self._live: set[str] = set()
        self._incidents: dict[str, Incident] = {}
        self._blind: tuple[Blind, ...] = ()
        self._next_check = LONG_AGO

    def resume(self, incidents: Iterable[Incident], now: int) -> None:
        """Carry on with incidents of an earlier run, as things stood at that moment."""
        for one in incidents:
            if not (one.causes or one.findings):
                continue
            self._incidents[one.id] = one
            self._content[one.id] = Together(one.correlation, one.causes, one.findings)
            self._live.add(one.id)
            for finding in one.causes + one.findings:
                self._member[finding.key] = one.id
                self._recent[finding.key] = finding
        self._settle(now)

    @property
    def next_due(self) -> int:
        """When time alone changes something, ms: an incident closes. LONG_AFTER where there is none."""
        return self._next_check if self._content else LONG_AFTER

    def apply(self, changes: Changes, blind: Sequence[Blind], now: int) -> list[Incident]:
        """Take changed findings in; returns the incidents that changed, merged and withdrawn ones included."""
        seen = tuple(blind)
        if not changes.found and not changes.withdrawn and seen == self._blind and now < self._next_check:
            return []
        self._blind = seen
        self._take(changes, now)
        changed = self._recompose() if changes.found or changes.withdrawn else []
        for owner, content in self._content.items():
            made = self._made(owner, content, now)
            if made != self._incidents.get(owner):
                self._incidents[owner] = made
                changed.append(made)
        self._settle(now)
        return changed

    def _take(self, changes: Changes, now: int) -> None:
        # A finding that late facts date anew is withdrawn under its old key and found under another: same incident.
        dated_anew: dict[tuple[str, str], str | None] = {}
        for key in changes.withdrawn:
            self._recent.pop(key, None)
            dated_anew[key[:2]] = self._member.pop(key, None)
        for finding in changes.found:
            key = finding.key
            owner = self._member.get(key) or dated_anew.get(key[:2])
            if owner in self._live or (owner is None and self._joinable_until(finding) > now):
                self._recent[key] = finding
                if owner is not None:
                    self._member[key] = owner
            elif owner is not None:
                self._content[owner] = _replaced(self._content[owner], finding)

    def _recompose(self) -> list[Incident]:
        """Join all recent findings anew, give each cluster its identity; returns the incidents merged or withdrawn."""
        clusters = together(self._recent.values(), self._correlations)
        before, self._live = self._live, set()
        gone: list[Incident] = []
        for cluster, claimed in zip(clusters, self._owners(clusters), strict=True):
            survivor = min(claimed, key=self._seniority) if claimed else self._new_id(cluster.findings)
            self._live.add(survivor)
            self._content[survivor] = cluster
            self._member.update((one.key, survivor) for one in cluster.findings)
            gone += [_emptied(self._incidents[one], survivor) for one in sorted(claimed) if one != survivor]
        taken_in = {one.id for one in gone}
        gone += [_emptied(self._incidents[one], None) for one in sorted(before - self._live - taken_in)]
        for one in gone:
            del self._content[one.id], self._incidents[one.id]
        return gone

    def _owners(self, clusters: list[Together]) -> list[list[str]]:
        """For each cluster the incidents that it carries on: each goes where the gravest and most of it went."""
        best: dict[str, tuple[tuple[int, int, int], int]] = {}
        for index, cluster in enumerate(clusters):
            gravest = max(one.severity.rank for one in cluster.findings)
            counts: dict[str, int] = {}
            for one in cluster.findings:
                owner = self._member.get(one.key)
                if owner is not None:
                    counts[owner] = counts.get(owner, 0) + 1
            for owner, count in counts.items():
                claim = ((gravest, count, -index), index)
                best[owner] = max(best.get(owner, claim), claim)
        claimed: list[list[str]] = [[] for _ in clusters]
        for owner, (_, index) in best.items():
            claimed[index].append(owner)
        return claimed

    def _seniority(self, owner: str) -> tuple[bool, int, str]:
        """Incidents already told of first, then the oldest."""
        incident = self._incidents[owner]
        return incident.severity is Severity.INFO, incident.opened_at, owner

    def _new_id(self, findings: Sequence[Finding]) -> str:
        first = min(findings, key=lambda one: (one.at, one.key))
        rule, subject, at = first.key
        for attempt in range(1 << 16):
            digest = blake2b(f"{rule} {subject} {at} {attempt}".encode(), digest_size=4).hexdigest().upper()
            if f"INC-{digest}" not in self._incidents and f"INC-{digest}" not in self._content:
                return f"INC-{digest}"
        msg = f"no free incident id for {first.key}"
        raise RuntimeError(msg)

    def _made(self, owner: str, content: Together, now: int) -> Incident:
        findings = content.findings
        updated_at = max(max(one.at, one.recovered_at or 0) for one in findings)
        ends = [one.recovered_at for one in findings if one.recovered_at is not None]
        recovered_at = max(ends) if len(ends) == len(findings) else None
        status = Status.OPEN if recovered_at is None else Status.RECOVERED
        if now >= self._closes(updated_at, recovered_at):
            status = Status.CLOSED
        correlation = self._correlations.get(content.correlation or "")
        gravest = max((one.severity for one in findings), key=lambda one: one.rank)
        worst = worst_first(content.effects)[0]
        return Incident(
            id=owner,
            status=status,
            sighted=status is Status.CLOSED
            or not any(_unseen(one, self._blind) for one in findings if one.recovered_at is None),
            severity=correlation.severity if correlation is not None and correlation.severity else gravest,
            title=_title(content, correlation, self._titles),
            correlation=content.correlation,
            cluster=worst.subject.get("cluster"),
            opened_at=min(one.at for one in findings),
            updated_at=updated_at,
            recovered_at=recovered_at,
            records=radius(findings),
            causes=content.causes,
            findings=content.effects,
        )

    def _closes(self, updated_at: int, recovered_at: int | None) -> int:
        return updated_at + (self._lifetimes.forget_after if recovered_at is None else self._lifetimes.close_after)

    def _joinable_until(self, finding: Finding) -> int:
        return max(finding.at, finding.known_at) + self._horizon

    def _settle(self, now: int) -> None:
        """Leave alone what nothing can join any more, forget what is closed, and note when to look again."""
        checks = [now + self._horizon]
        for owner, content in list(self._content.items()):
            incident = self._incidents[owner]
            joinable_until = max(map(self._joinable_until, content.findings))
            final_at = max(joinable_until, incident.updated_at + SETTLED_MS)
            checks += [joinable_until, final_at, self._closes(incident.updated_at, incident.recovered_at)]
            if joinable_until > now:
                continue
            self._live.discard(owner)
            for one in content.findings:
                self._recent.pop(one.key, None)
            if incident.status is Status.CLOSED and final_at <= now:
                del self._content[owner], self._incidents[owner]
                for one in content.findings:
                    self._member.pop(one.key, None)
        self._next_check = min(check for check in checks if check > now)


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
    """The blast radius: what is read again or skipped adds up; what several say is lost of a partition is lost once."""
    reread = skipped = 0
    lost: dict[tuple[Any, ...], int] = {}
    for one in findings:
        reread += one.records.reread
        skipped += one.records.skipped
        place = tuple(one.subject.get(key) for key in ("cluster", "topic", "partition"))
        lost[place] = max(lost.get(place, 0), one.records.lost)
    return Records(reread, sum(lost.values()), skipped)


def _emptied(incident: Incident, merged_into: str | None) -> Incident:
    """The incident without its findings: another one took them in, or they were withdrawn."""
    return Incident(
        id=incident.id,
        status=Status.CLOSED,
        merged_into=merged_into,
        severity=incident.severity,
        title=incident.title,
        cluster=incident.cluster,
        opened_at=incident.opened_at,
        updated_at=incident.updated_at,
    )


def _replaced(content: Together, finding: Finding) -> Together:
    def swap(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(finding if one.key == finding.key else one for one in findings)

    return Together(content.correlation, swap(content.causes), swap(content.effects))


def _unseen(finding: Finding, blind: Iterable[Blind]) -> bool:
    """Whether a source that cannot see hides this finding's subject; ZooKeeper knows nothing of groups."""
    return finding.kind != "blind" and any(
        one.cluster == finding.subject.get("cluster")
        and not (one.source == "zookeeper" and "group" in finding.subject)
        and all(
            named is None or named == finding.subject.get(key)
            for key, named in (("group", one.group), ("topic", one.topic), ("partition", one.partition))
        )
        for one in blind
    )


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


def _title(content: Together, correlation: Correlation | None, titles: Mapping[str, str]) -> str:
    outcome = correlation.steps[-1].rules if correlation is not None else ()
    worst = worst_first([one for one in content.effects if one.rule in outcome] or content.effects)[0]
    form = (correlation.title if correlation is not None else None) or titles.get(worst.rule, worst.kind)
    records = max(worst.records.reread, worst.records.lost, worst.records.skipped)
    fields = _Fields(worst.subject, records=f"{records:,}")
    broker = culprit(content.causes, worst)
    if broker is not None:
        fields["broker"] = broker
    others = len({one.key[1] for one in content.effects if one.rule == worst.rule}) - 1
    return form.format_map(fields) + (f" (and {others:,} more)" if others else "")


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
