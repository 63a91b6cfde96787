"""The life of incidents: identity, merging, recovery, closing. Pure: changed findings in, changed incidents out."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import product
from typing import Any

from agent.engine.check_requests import CheckRequest, request_checks
from agent.engine.correlation import (
    Chain,
    Correlation,
    FindingCluster,
    cluster_findings,
    find_chains,
    has_only_ended,
    horizon,
)
from agent.engine.defects import SetAside, propagate
from agent.engine.evaluator import Changes
from agent.engine.history import FINALIZATION_MS, LONG_AFTER
from agent.engine.impact_and_root_cause import title, total_impact, worst_first
from agent.engine.rule import Rule
from agent.model.config_types import ConfigModel, PositiveDuration
from agent.model.findings import Finding, FindingKey, Incident, Severity, Status
from agent.model.observations.base import Unavailable
from agent.model.observations.checks import CheckFinding
from agent.model.text import place


class Lifetimes(ConfigModel):
    """[incidents]: how long incidents stay open."""

    close_after: PositiveDuration = 3_600_000
    """How long after recovery an incident is closed; until then new findings may reopen it."""
    forget_after: PositiveDuration = 7 * 86_400_000
    """How long an incident may stay open without news before it is closed unrecovered."""


LIFETIMES = Lifetimes()
"""As shipped."""

_EVENT_SOURCES = frozenset({"logs", "streams_metrics"})
"""Sources that report what happened, never whether it is over; their tables may have the name of a cluster."""


class Incidents:
    """All incidents that may still change."""

    def __init__(
        self,
        correlations: Mapping[str, Correlation],
        rules: Mapping[str, Rule],
        lifetimes: Lifetimes = LIFETIMES,
        set_aside: SetAside = propagate,
    ) -> None:
        """correlations and rules: by their names in rules.toml."""
        self._set_aside = set_aside
        self.check_requests: list[CheckRequest] = []
        """The checks that recent findings request, including those that have a result."""
        self._correlations = correlations
        self._rules = rules
        self._check_rules = frozenset(name for name, rule in rules.items() if CheckFinding in rule.observes)
        self._lasting_rules = frozenset(name for name, rule in rules.items() if rule.is_ongoing)
        self._delay_rules = frozenset(name for name, rule in rules.items() if rule.is_delay)
        self._lifetimes = lifetimes
        self.horizon = horizon(correlations, self._check_rules)
        self._recent: dict[FindingKey, Finding] = {}
        self._owner_of: dict[FindingKey, str] = {}
        self._clusters: dict[str, FindingCluster] = {}
        self._joinable: set[str] = set()
        self._incidents: dict[str, Incident] = {}
        self._unavailable: tuple[Unavailable, ...] = ()
        self._outdated: set[str] = set()
        self._checks: list[tuple[int, str]] = []
        self._check_of: dict[str, int] = {}

    def resume(self, incidents: Iterable[Incident], now: int) -> None:
        """Continue with the incidents of an earlier run, as of that moment."""
        for incident in incidents:
            if not (incident.causes or incident.findings):
                continue
            self._incidents[incident.id] = incident
            self._clusters[incident.id] = FindingCluster(
                incident.correlation, incident.causes, incident.findings, incident.severity
            )
            self._joinable.add(incident.id)
            for finding in incident.causes + incident.findings:
                self._owner_of[finding.key] = incident.id
                self._recent[finding.key] = finding
        try:
            self._find_chains()
        except Exception as error:  # noqa: BLE001 - another version may have stored findings of another form
            self._set_aside("correlation", error)
        self._outdated.update(self._clusters)
        self._retire(list(self._clusters), now)

    def discard(self, key: FindingKey) -> None:
        """Leave a finding out of all further correlation."""
        self._recent.pop(key, None)
        self._owner_of.pop(key, None)

    @property
    def current(self) -> list[Incident]:
        """The incidents that may still change."""
        return list(self._incidents.values())

    def incident_of(self, finding: FindingKey) -> str | None:
        """Return the id of the incident that contains the finding, or None if none that may still change does."""
        return self._owner_of.get(finding)

    @property
    def next_due(self) -> int:
        """When time alone changes something, ms: an incident closes. LONG_AFTER if there is none."""
        while self._checks and self._check_of.get(self._checks[0][1]) != self._checks[0][0]:
            heappop(self._checks)  # superseded
        return self._checks[0][0] if self._checks else LONG_AFTER

    def apply(self, changes: Changes, unavailable: Sequence[Unavailable], now: int) -> list[Incident]:
        """Take changed findings in and return the incidents that changed, including merged and withdrawn ones."""
        unavailable = tuple(unavailable)
        if not changes.found and not changes.withdrawn and unavailable == self._unavailable and now < self.next_due:
            return []
        if unavailable != self._unavailable:
            self._unavailable = unavailable
            self._outdated.update(self._clusters)
        changed = self._recompose() if self._take(changes, now) else []
        while self.next_due <= now:
            self._outdated.add(heappop(self._checks)[1])
        outdated = [owner for owner in self._clusters if owner in self._outdated]
        self._outdated.clear()
        for owner in outdated:
            incident = self._incident(owner, self._clusters[owner], now)
            if incident != self._incidents.get(owner):
                self._incidents[owner] = incident
                changed.append(incident)
        self._retire(outdated, now)
        return changed

    def _take(self, changes: Changes, now: int) -> bool:
        """Take changed findings in and return whether any of them may join others than before."""
        # A finding that late facts date differently is withdrawn under its old key and found under another: the
        # incident stays the same.
        redated: dict[tuple[str, str], str | None] = {}
        for key in changes.withdrawn:
            self._recent.pop(key, None)
            redated[key[:2]] = self._owner_of.pop(key, None)
        may_join = bool(changes.withdrawn)
        for finding in changes.found:
            key = finding.key
            owner = self._owner_of.get(key) or redated.get(key[:2])
            is_recent = max(finding.at, finding.known_at) + self.horizon > now
            if owner in self._joinable or (owner is None and is_recent):
                before = self._recent.get(key)
                self._recent[key] = finding
                if owner is not None:
                    self._owner_of[key] = owner
                if before is None or owner is None or not self._is_quiet(owner) or not has_only_ended(before, finding):
                    may_join = True
                    continue
            if owner is not None:
                self._keep(owner, _replaced(self._clusters[owner], finding))
        return may_join

    def _is_quiet(self, owner: str) -> bool:
        """Return whether the incident consists of info findings that no correlation joined."""
        cluster = self._clusters[owner]
        return cluster.correlation is None and cluster.severity is Severity.INFO

    def _keep(self, owner: str, cluster: FindingCluster) -> None:
        """Keep the cluster of an incident; if it is another than before, the incident is outdated."""
        if self._clusters.get(owner) != cluster:
            self._clusters[owner] = cluster
            self._outdated.add(owner)

    def _find_chains(self) -> list[Chain]:
        """Return the chains of all recent findings, and keep the checks that they request."""
        chains = find_chains(self._recent.values(), self._correlations, self._check_rules, self._lasting_rules)
        self.check_requests = request_checks(chains, self._correlations, self._check_rules)
        return chains

    def _recompose(self) -> list[Incident]:
        """Cluster all recent findings, identify each cluster, and return the incidents merged or withdrawn."""
        chains = self._find_chains()
        clusters = cluster_findings(
            self._recent.values(), self._correlations, chains, self._check_rules, self._delay_rules
        )
        before, self._joinable = self._joinable, set()
        gone: list[Incident] = []
        for cluster, claims in zip(clusters, self._claims(clusters), strict=True):
            survivor = self._survivor(claims, cluster)
            self._joinable.add(survivor)
            self._keep(survivor, cluster)
            self._owner_of.update((finding.key, survivor) for finding in cluster.findings)
            gone += [_emptied(self._incidents[claim], survivor) for claim in sorted(claims) if claim != survivor]
        merged = {incident.id for incident in gone}
        gone += [_emptied(self._incidents[owner], None) for owner in sorted(before - self._joinable - merged)]
        for incident in gone:
            self._forget(incident.id)
        return gone

    def _claims(self, clusters: list[FindingCluster]) -> list[list[str]]:
        """For each cluster the incidents that it continues: each goes where its worst and most findings went.

        One that was never posted does not follow a single finding into a posted one while others of it stay behind.
        """
        best: dict[str, tuple[tuple[bool, int, int, int], int]] = {}
        for index, cluster in enumerate(clusters):
            severity = max(finding.severity.rank for finding in cluster.findings)
            is_info = severity == Severity.INFO.rank
            counts: dict[str, int] = {}
            for finding in cluster.findings:
                owner = self._owner_of.get(finding.key)
                if owner is not None:
                    counts[owner] = counts.get(owner, 0) + 1
            for owner, count in counts.items():
                claim = ((self._may_name(owner, is_info=is_info), severity, count, -index), index)
                best[owner] = max(best.get(owner, claim), claim)
        claims: list[list[str]] = [[] for _ in clusters]
        for owner, (_, index) in best.items():
            claims[index].append(owner)
        return claims

    def _survivor(self, claims: Collection[str], cluster: FindingCluster) -> str:
        """Return the id of the cluster's incident: that of its first finding worth a notification to become known.

        An incident of info findings was never posted: it is renamed when the first finding worth a message joins it.
        Whether a cause is known before or after its effect decides nothing then.
        """
        first = min(cluster.findings, key=_rank_as_first)
        kept = [claim for claim in claims if self._may_name(claim, is_info=first.severity is Severity.INFO)]
        return min(kept, key=self._seniority) if kept else self._id_of(first, claims)

    def _may_name(self, owner: str, *, is_info: bool) -> bool:
        """Return whether a cluster may have the id of an incident. is_info: whether all of its findings are info."""
        return is_info or self._incidents[owner].severity is not Severity.INFO

    def _seniority(self, owner: str) -> tuple[tuple[Any, ...], str]:
        return min(map(_rank_as_first, self._clusters[owner].findings)), owner

    def _id_of(self, finding: Finding, claims: Collection[str]) -> str:
        """Return an id made from the finding's key; no incident has it except one of the claims."""
        rule, subject, at = finding.key
        for attempt in range(1 << 16):
            digest = blake2b(f"{rule} {subject} {at} {attempt}".encode(), digest_size=4).hexdigest().upper()
            name = f"INC-{digest}"
            if name in claims or (name not in self._incidents and name not in self._clusters):
                return name
        msg = f"no free incident id for {finding.key}"
        raise RuntimeError(msg)

    def _incident(self, owner: str, cluster: FindingCluster, now: int) -> Incident:
        findings = cluster.findings
        ends = [finding.recovered_at for finding in findings if finding.recovered_at is not None]
        recovered_at = max(ends) if len(ends) == len(findings) else None
        status = Status.OPEN if recovered_at is None else Status.RECOVERED
        if now >= self._closes_at(cluster, recovered_at):
            status = Status.CLOSED
        correlation = self._correlations.get(cluster.correlation or "")
        unseen = () if status is Status.CLOSED else self._hidden_by(findings)
        return Incident(
            id=owner,
            status=status,
            sighted=not unseen,
            unseen=unseen,
            severity=cluster.severity,
            title=self._title(cluster, correlation),
            correlation=cluster.correlation,
            cluster=worst_first(cluster.effects)[0].subject.get("cluster"),
            opened_at=min(finding.at for finding in findings),
            updated_at=max(max(finding.at, finding.recovered_at or 0) for finding in findings),
            recovered_at=recovered_at,
            records=total_impact(findings),
            causes=cluster.causes,
            findings=cluster.effects,
        )

    def _title(self, cluster: FindingCluster, correlation: Correlation | None) -> str:
        try:
            return title(cluster, correlation, self._rules)
        except Exception as error:  # noqa: BLE001 - a defect in a sentence must not hide the incident
            worst = worst_first(cluster.effects)[0]
            self._set_aside(f"rule {worst.rule}", error)
            return f"{worst.kind}: {place(worst.subject)}"

    def _hidden_by(self, findings: Iterable[Finding]) -> tuple[Unavailable, ...]:
        """Return what is unavailable and hides an open finding; if all of a source is, not its parts."""
        hidden = [
            finding
            for finding in findings
            if finding.recovered_at is None
            and finding.rule not in self._check_rules
            and not (finding.rule in self._rules and self._rules[finding.rule].reports_agent)
        ]
        places = {place for finding in hidden for place in _places(finding)}
        # ZooKeeper knows nothing of groups.
        without_groups = {place for finding in hidden if "group" not in finding.subject for place in _places(finding)}
        hiding = [
            unavailable
            for unavailable in self._unavailable
            if unavailable.source not in _EVENT_SOURCES
            and (unavailable.cluster, unavailable.group, unavailable.topic, unavailable.partition)
            in (without_groups if unavailable.source == "zookeeper" else places)
        ]
        whole = {(unavailable.source, unavailable.cluster) for unavailable in hiding if unavailable.is_whole}
        reported = [
            unavailable
            for unavailable in hiding
            if unavailable.is_whole or (unavailable.source, unavailable.cluster) not in whole
        ]
        return tuple(sorted(reported, key=lambda report: [(part is None, part) for part in report.subject]))

    def _closes_at(self, cluster: FindingCluster, recovered_at: int | None) -> int:
        """Return when it closes, counted from the last news: a check may find what happened long before."""
        news = max(max(finding.at, finding.known_at, finding.recovered_at or 0) for finding in cluster.findings)
        return news + (self._lifetimes.forget_after if recovered_at is None else self._lifetimes.close_after)

    def _joinable_until(self, finding: Finding) -> int:
        """Return until when another finding may join it: one that lasts may be joined until its incident closes."""
        if finding.recovered_at is None and finding.severity is not Severity.INFO:
            return max(finding.at, finding.known_at) + max(self.horizon, self._lifetimes.forget_after)
        return max(finding.at, finding.known_at, finding.recovered_at or 0) + self.horizon

    def _retire(self, owners: Iterable[str], now: int) -> None:
        """Stop clustering what nothing can join any more, forget what is closed, and note when to look again."""
        for owner in owners:
            incident, cluster = self._incidents[owner], self._clusters[owner]
            joinable_until = max(map(self._joinable_until, cluster.findings))
            final_at = max(joinable_until, incident.updated_at + FINALIZATION_MS)
            if joinable_until <= now:
                self._joinable.discard(owner)
                for finding in cluster.findings:
                    self._recent.pop(finding.key, None)
                if incident.status is Status.CLOSED and final_at <= now:
                    self._forget(owner)
                    for finding in cluster.findings:
                        self._owner_of.pop(finding.key, None)
                    continue
            checks = (joinable_until, final_at, self._closes_at(cluster, incident.recovered_at))
            check = min((check for check in checks if check > now), default=now + self.horizon)
            if self._check_of.get(owner) != check:
                self._check_of[owner] = check
                heappush(self._checks, (check, owner))

    def _forget(self, owner: str) -> None:
        del self._clusters[owner], self._incidents[owner]
        self._check_of.pop(owner, None)


def _emptied(incident: Incident, merged_into: str | None) -> Incident:
    """Return the incident without its findings: another one took them in, or they were withdrawn."""
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


def _replaced(cluster: FindingCluster, finding: Finding) -> FindingCluster:
    def replace(findings: Collection[Finding]) -> tuple[Finding, ...]:
        return tuple(finding if other.key == finding.key else other for other in findings)

    return cluster._replace(causes=replace(cluster.causes), effects=replace(cluster.effects))


def _rank_as_first(finding: Finding) -> tuple[Any, ...]:
    """Return what sorts first the finding whose key names the incident."""
    return finding.severity is Severity.INFO, finding.known_at, finding.key


def _places(finding: Finding) -> Iterator[tuple[str | None, ...]]:
    """Yield the (cluster, group, topic, partition) whose unavailability hides the finding's subject; None: any."""
    cluster, *names = (finding.subject.get(name) for name in ("cluster", "group", "topic", "partition"))
    yield from product((cluster,), *((name, None) for name in names))
