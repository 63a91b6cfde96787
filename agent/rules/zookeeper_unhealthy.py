"""zookeeper_unhealthy: a ZooKeeper server is out, or the ensemble is slow or loses sessions."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from agent.engine.condition_rule import find_series, intervals_where
from agent.engine.facts import Facts
from agent.engine.history import FLOOR, History
from agent.engine.rule import Advice, Rule, Scope, ended, recovered
from agent.model.config_types import PositiveDuration
from agent.model.findings import Finding
from agent.model.observations.base import Observation
from agent.model.observations.zookeeper import ZooKeeperHealth
from agent.model.text import span
from agent.model.times import clock

_SERVER, _LATENCY, _SESSION = "server", "latency", "session"


class ZooKeeperUnhealthy(Rule):
    """The ensemble works, but not all of it, slowly, or not reliably. Brokers lose their sessions next.

    Labels: `server` (one does not serve, for `after`, while others do), `latency` (requests of Backflow's session have
    taken `max_latency` or more, for `after`), `session` (Backflow's own session expired `expiries` times within
    `within`).
    Not: a server that Backflow has never reached, or that refuses `srvr`; an ensemble that does not answer at all,
    which is reported as an unavailable source.
    Recovers when the server serves or is no longer observed, when requests are fast again, or when no session has
    expired for `within`.
    """

    title = "ZooKeeper of {cluster} is unhealthy"
    titles: ClassVar[Mapping[str, str]] = {
        _SERVER: "ZooKeeper server {server} of {cluster} does not serve",
        _LATENCY: "ZooKeeper of {cluster} is slow",
        _SESSION: "sessions expire in ZooKeeper of {cluster}",
    }
    is_ongoing = True
    advice: ClassVar[Mapping[str, Advice]] = {
        _SERVER: Advice(
            now="Restart {server}, or check its log and its connection to the other servers: further failures cost "
            "the quorum, and with it all leader elections of {cluster}.",
            only_while_open=True,
        ),
        _LATENCY: Advice(
            now="Check fsync times, disk and GC pauses of the ZooKeeper leader of {cluster}, and the load of this "
            "host.",
            prevent="Give ZooKeeper's transaction log a disk of its own (dataLogDir).",
            only_while_open=True,
        ),
        _SESSION: Advice(
            now="Check ZooKeeper's GC pauses, and the network between it and this host; brokers are affected alike.",
            only_while_open=True,
        ),
    }
    observes = (ZooKeeperHealth,)
    scope_keys = ("server", "symptom")

    after: PositiveDuration = 300_000
    """How long a server may be out, or requests slow."""

    max_latency: PositiveDuration = 2_000
    """How long a request may take."""

    expiries: int = Field(3, ge=2, le=FLOOR // 2)
    """Fewest expiries of Backflow's session that are reported."""

    within: PositiveDuration = 3_600_000
    """How close together they are."""

    def scopes(self, observation: Observation, facts: Facts) -> Iterable[Scope]:
        if not isinstance(observation, ZooKeeperHealth):
            return
        for server in (*observation.not_serving, *observation.unreachable):
            yield Scope(observation.cluster, others=(("server", server),))
        if self._is_slow(observation):
            yield Scope(observation.cluster, others=(("symptom", _LATENCY),))
        if len(_find_expiries(facts.history(ZooKeeperHealth, observation.cluster))) >= self.expiries:
            yield Scope(observation.cluster, others=(("symptom", _SESSION),))

    def detect(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        history, subject = facts.history(ZooKeeperHealth, scope.cluster), dict(scope.others)
        if "server" in subject:
            yield from self._find_outages(scope, str(subject["server"]), facts)
        elif subject.get("symptom") == _LATENCY:
            yield from self._find_slowness(scope, facts)
        else:
            yield from self._find_repeated_expiries(scope, history)

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        history, server = facts.history(ZooKeeperHealth, scope.cluster), finding.subject.get("server")
        later = history.after(finding.at)
        if _SESSION in finding.labels:
            times = [finding.at, *(health.at for health in _find_expiries(history) if health.at > finding.at)]
            quiet = (before for before, after in pairwise(times) if after - before > self.within)
            return recovered(finding, next(quiet, times[-1]) + self.within)
        if _SERVER in finding.labels:
            return _followed_server(finding, str(server), later)
        fast = (health.at for health in later if health.latency_ms is not None and not self._is_slow(health))
        return recovered(finding, next(fast, None))

    def _is_slow(self, health: ZooKeeperHealth) -> bool:
        return health.latency_ms is not None and health.latency_ms >= self.max_latency

    def _find_outages(self, scope: Scope, server: str, facts: Facts) -> Iterator[Finding]:
        history = facts.history(ZooKeeperHealth, scope.cluster)

        def is_out(health: ZooKeeperHealth) -> bool:
            return bool(health.serving) and server in (*health.not_serving, *health.unreachable)

        for interval in intervals_where(history, is_out):
            begin: ZooKeeperHealth = interval.begin
            has_served = any(server in health.serving for health in history if health.at < begin.at)
            if not interval.lasted(self.after, facts) or not (has_served or server in begin.not_serving):
                continue
            what = "has seen no quorum" if server in begin.not_serving else "has not answered"
            servers = len(begin.serving) + len(begin.not_serving) + len(begin.unreachable)
            yield self.make_finding(
                scope,
                begin,
                known_at=interval.known_at(self.after, facts),
                labels=(_SERVER,),
                detail=f"ZooKeeper server {server} {what} since {clock(begin.at)} UTC; "
                f"{len(begin.serving)} of {servers} servers serve",
                current={"serving": list(begin.serving)},
            )

    def _find_slowness(self, scope: Scope, facts: Facts) -> Iterator[Finding]:
        for interval in intervals_where(facts.history(ZooKeeperHealth, scope.cluster), self._is_slow):
            if interval.lasted(self.after, facts):
                begin: ZooKeeperHealth = interval.begin
                yield self.make_finding(
                    scope,
                    begin,
                    known_at=interval.known_at(self.after, facts),
                    labels=(_LATENCY,),
                    detail=f"a request to ZooKeeper took {span(self.max_latency)} or more in each minute since "
                    f"{clock(begin.at)} UTC",
                    current={"latency_ms": begin.latency_ms},
                )

    def _find_repeated_expiries(self, scope: Scope, history: History[ZooKeeperHealth]) -> Iterator[Finding]:
        expiries = _find_expiries(history)
        for index in find_series([health.at for health in expiries], self.expiries, self.within):
            first, health = expiries[index + 1 - self.expiries], expiries[index]
            yield self.make_finding(
                scope,
                health,
                labels=(_SESSION,),
                detail=f"Backflow's own ZooKeeper session expired {self.expiries} times within "
                f"{span(health.at - first.start)}, by {clock(health.at)} UTC",
                current={"expiries": self.expiries},
            )


def _followed_server(finding: Finding, server: str, later: Iterable[ZooKeeperHealth]) -> Finding:
    """Return the finding as recovered when the server served, or as over when it was not among those that are asked."""
    for health in later:
        if server in health.serving:
            return recovered(finding, health.at)
        if server not in (*health.not_serving, *health.unreachable):
            return ended(finding, health.at, "the server is no longer observed")
    return finding


def _find_expiries(history: History[ZooKeeperHealth]) -> list[ZooKeeperHealth]:
    """Return the observations that show expired sessions, once for each; a restart of Backflow counts from 0."""
    return [after for before, after in pairwise(history) for _ in range(before.expiries, after.expiries)]
