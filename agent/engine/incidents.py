"""The incidents' life: identity, merging, recovery, closing. Pure: changes of findings in, changed incidents out."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import product

from agent.engine.check_requests import CheckRequest, asks
from agent.engine.correlation import Chain, Correlation, FindingCluster, follow, horizon, together
from agent.engine.evaluator import Changes
from agent.engine.facts import LONG_AFTER, LONG_AGO, SETTLED_MS
from agent.engine.impact import radius, title, worst_first
from agent.model.config_types import ConfigModel, PositiveDuration
from agent.model.findings import Finding, FindingKey, Incident, Severity, Status
from agent.model.observations import Unavailable


class Lifetimes(ConfigModel):
    """[incidents]: how long incidents stay."""

    close_after: PositiveDuration = 3_600_000
    """How long after recovery an incident is closed; until then new findings may reopen it."""
    forget_after: PositiveDuration = 7 * 86_400_000
    """How long an incident may stay open without news before it is closed unrecovered."""


LIFETIMES = Lifetimes()
"""As shipped."""

_WITNESSES = frozenset({"logs", "streams_metrics"})
"""Sources that tell what happened, and of nothing whether it is over; their tables may be called like a cluster."""


class Incidents:
    """All incidents that may still change."""

    def __init__(
        self,
        correlations: Mapping[str, Correlation],
        titles: Mapping[str, str],
        lifetimes: Lifetimes = LIFETIMES,
        checked: Collection[str] = (),
    ) -> None:
        """correlations: by name; titles: the title's format by rule name; checked: the rules that judge checks."""
        self._asks: list[CheckRequest] = []
        self._checked = frozenset(checked)
        self._correlations = correlations
        self._titles = titles
        self._lifetimes = lifetimes
        self.horizon = horizon(correlations, checked)
        self._recent: dict[FindingKey, Finding] = {}
        self._member: dict[FindingKey, str] = {}
        self._content: dict[str, FindingCluster] = {}
        self._live: set[str] = set()
        self._incidents: dict[str, Incident] = {}
        self._blind: tuple[Unavailable, ...] = ()
        self._next_check = LONG_AGO

    def resume(self, incidents: Iterable[Incident], now: int) -> None:
        """Carry on with incidents of an earlier run, as things stood at that moment."""
        for one in incidents:
            if not (one.causes or one.findings):
                continue
            self._incidents[one.id] = one
            self._content[one.id] = FindingCluster(one.correlation, one.causes, one.findings)
            self._live.add(one.id)
            for finding in one.causes + one.findings:
                self._member[finding.key] = one.id
                self._recent[finding.key] = finding
        self._follow()
        self._settle(now)

    @property
    def asks(self) -> list[CheckRequest]:
        """Which checks the findings known ask for, those that were answered long ago among them."""
        return self._asks

    def holder(self, finding: FindingKey) -> str | None:
        """The id of the incident that holds the finding; None where none that may still change does."""
        return self._member.get(finding)

    @property
    def next_due(self) -> int:
        """When time alone changes something, ms: an incident closes. LONG_AFTER where there is none."""
        return self._next_check if self._content else LONG_AFTER

    def apply(self, changes: Changes, blind: Sequence[Unavailable], now: int) -> list[Incident]:
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

    def _follow(self) -> list[Chain]:
        """The chains of all recent findings; what they ask is kept."""
        chains = follow(self._recent.values(), self._correlations, self._checked)
        self._asks = asks(chains, self._correlations, self._checked)
        return chains

    def _recompose(self) -> list[Incident]:
        """Join all recent findings anew, give each cluster its identity; returns the incidents merged or withdrawn."""
        clusters = together(self._recent.values(), self._correlations, self._follow())
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

    def _owners(self, clusters: list[FindingCluster]) -> list[list[str]]:
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

    def _made(self, owner: str, content: FindingCluster, now: int) -> Incident:
        findings = content.findings
        updated_at = max(max(one.at, one.recovered_at or 0) for one in findings)
        ends = [one.recovered_at for one in findings if one.recovered_at is not None]
        recovered_at = max(ends) if len(ends) == len(findings) else None
        status = Status.OPEN if recovered_at is None else Status.RECOVERED
        if now >= self._closes(content, recovered_at):
            status = Status.CLOSED
        correlation = self._correlations.get(content.correlation or "")
        gravest = max((one.severity for one in findings), key=lambda one: one.rank)
        worst = worst_first(content.effects)[0]
        hidden = [one for one in findings if one.recovered_at is None and one.rule not in self._checked]
        unseen = () if status is Status.CLOSED else _unseen(hidden, self._blind)
        return Incident(
            id=owner,
            status=status,
            sighted=not unseen,
            unseen=unseen,
            severity=correlation.severity if correlation is not None and correlation.severity else gravest,
            title=title(content, correlation, self._titles),
            correlation=content.correlation,
            cluster=worst.subject.get("cluster"),
            opened_at=min(one.at for one in findings),
            updated_at=updated_at,
            recovered_at=recovered_at,
            records=radius(findings),
            causes=content.causes,
            findings=content.effects,
        )

    def _closes(self, content: FindingCluster, recovered_at: int | None) -> int:
        """Counted from the last news: what a check finds may have happened long before it is known."""
        news = max(max(one.at, one.known_at, one.recovered_at or 0) for one in content.findings)
        return news + (self._lifetimes.forget_after if recovered_at is None else self._lifetimes.close_after)

    def _joinable_until(self, finding: Finding) -> int:
        return max(finding.at, finding.known_at) + self.horizon

    def _settle(self, now: int) -> None:
        """Leave alone what nothing can join any more, forget what is closed, and note when to look again."""
        checks = [now + self.horizon]
        for owner, content in list(self._content.items()):
            incident = self._incidents[owner]
            joinable_until = max(map(self._joinable_until, content.findings))
            final_at = max(joinable_until, incident.updated_at + SETTLED_MS)
            checks += [joinable_until, final_at, self._closes(content, incident.recovered_at)]
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


def _replaced(content: FindingCluster, finding: Finding) -> FindingCluster:
    def swap(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(finding if one.key == finding.key else one for one in findings)

    return FindingCluster(content.correlation, swap(content.causes), swap(content.effects))


def _unseen(findings: Collection[Finding], blind: Iterable[Unavailable]) -> tuple[Unavailable, ...]:
    """What is out of sight and hides one of the findings; of a source that sees nothing at all not its parts."""
    places = {place for one in findings for place in _seen_with(one)}
    without_groups = {place for one in findings if "group" not in one.subject for place in _seen_with(one)}
    hiding = [
        one
        for one in blind
        if one.source not in _WITNESSES
        # ZooKeeper knows nothing of groups.
        and (one.cluster, one.group, one.topic, one.partition)
        in (without_groups if one.source == "zookeeper" else places)
    ]
    whole = {(one.source, one.cluster) for one in hiding if _is_whole(one)}
    return tuple(one for one in hiding if _is_whole(one) or (one.source, one.cluster) not in whole)


def _is_whole(one: Unavailable) -> bool:
    return (one.group, one.topic, one.partition) == (None, None, None)


def _seen_with(finding: Finding) -> Iterator[tuple[str | None, ...]]:
    """(cluster, group, topic, partition) of what hides the finding's subject when it is out of sight; None: any."""
    if finding.kind != "source_unavailable":
        cluster, *names = (finding.subject.get(name) for name in ("cluster", "group", "topic", "partition"))
        yield from product((cluster,), *((name, None) for name in names))
