"""When a consumer group had members on which cluster, and its moves from one cluster to another."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from spark_checks.failovers.observed import Observed

LATE_MS = 7_200_000
"""An archive is an hour behind. If it is further, its agent does not run or cannot archive: nothing is projected."""

UNSEEN_MS = 900_000
"""After so long without a state of a group its cluster is not observed: an unchanged state comes every ten minutes."""

OVERLAP_MS = 600_000
"""How long a group may run on both clusters while it moves. Longer: it runs on both on purpose."""

_WITHOUT_MEMBERS = ("Empty", "Dead")
_SOON_MS = 60_000


class GroupChange(NamedTuple):
    """A group gained or lost its members, or its state was seen again after UNSEEN_MS or more.

    has_members, had_members: now and in the state before (None: there is none). since: last sighting of the state
    before, ms. before_at: when that state was last recorded. last_at: of all states of the group on the cluster.
    cluster_at: of the first state of any group on the cluster.
    """

    cluster: str
    group: str
    at: int
    since: int | None
    has_members: bool
    had_members: bool | None
    before_at: int | None
    last_at: int
    cluster_at: int


class Tenure(NamedTuple):
    """A time in which a group had members on a cluster, ms.

    begin: when it was last seen without members; None if unknown. joined: first seen with them. left: last seen with
    them. end: first seen without; None if it still has members or its cluster was not observed any more. is_start:
    whether it had none before; else it may only have been seen again then.
    """

    cluster: str
    is_start: bool
    begin: int | None
    joined: int
    left: int
    end: int | None

    def lasts_at(self, now: int) -> bool:
        """Return whether the group still has members."""
        return self.end is None and self.left >= now - UNSEEN_MS


class Move(NamedTuple):
    """A group moved from a cluster, the origin, to another, the target; or would move there if it failed over now.

    Times in ms. Up to origin_seen, its commits on the origin are its own for certain; up to origin_end, they may be. Up
    to target_seen, commits on the target are not its own; from joined on they are; until: where this ends. absent_at:
    when it was last known not to be there. unseen: the origin was not observed when the group left it. mirrored_since:
    from when on commits on the target are a mirror's. observed_until: where the journal of the origin ends, if that is
    before the move.
    """

    group: str
    origin: str
    target: str
    origin_seen: int
    origin_end: int
    target_seen: int
    joined: int
    until: int
    absent_at: int
    unseen: bool = False
    is_projected: bool = False
    mirrored_since: int = 0
    observed_until: int | None = None


def read_changes(states: DataFrame) -> list[GroupChange]:
    """Return the changes of all groups that are known on several clusters.

    states: columns cluster, group, at, since, position, state.
    """
    shared = states.groupBy("group").agg(sf.count_distinct("cluster").alias("clusters")).where("clusters > 1")
    of_group = Window.partitionBy("cluster", "group")
    in_order = of_group.orderBy("at", "position")
    rows = (
        states.join(shared.select("group"), "group")
        .withColumn("has_members", ~sf.col("state").isin(*_WITHOUT_MEMBERS))
        .withColumn("had_members", sf.lag("has_members").over(in_order))
        .withColumn("before_at", sf.lag("at").over(in_order))
        .withColumn("last_at", sf.max("at").over(of_group))
        .join(states.groupBy("cluster").agg(sf.min("at").alias("cluster_at")), "cluster")
        .where(f"NOT has_members <=> had_members OR `at` - before_at > {UNSEEN_MS}")
        .select(*GroupChange._fields)
        .orderBy("group", "cluster", "at")
        .collect()
    )
    return [GroupChange(*row) for row in rows]


def find_moves(
    changes: Iterable[GroupChange], now: int, observed: Mapping[str, Observed] | None = None
) -> Iterator[Move]:
    """Yield the moves of each group, and those that a failover now would be.

    changes: by group, cluster and time. observed: until when each cluster was; all others until now (ms). What a
    failover would do is projected for when the journals of both clusters end.
    """
    clusters, latest = observed or {}, Observed(now, now)
    for group, of_group in groupby(changes, lambda change: change.group):
        tenures: list[Tenure] = []
        standby: dict[str, int] = {}
        for cluster, found in groupby(of_group, lambda change: change.cluster):
            own = list(found)
            tenures += _joined(_tenures(own))
            if not own[-1].has_members and own[-1].last_at >= clusters.get(cluster, latest).states - UNSEEN_MS:
                standby[cluster] = own[-1].at
        tenures.sort(key=lambda tenure: tenure.joined)
        for tenure in tenures:
            origin = _find_origin(tenure, tenures) if tenure.is_start else None
            if origin is not None:
                yield _move(group, origin, tenure, clusters.get(origin.cluster, latest).until)
        running = [tenure for tenure in tenures if tenure.lasts_at(clusters.get(tenure.cluster, latest).states)]
        if len(running) == 1:
            origin = running[0]
            for cluster, since in standby.items():
                at = min(clusters.get(name, latest).until for name in (origin.cluster, cluster))
                if at < now - LATE_MS or at < max(origin.joined, since):
                    continue
                ended = [tenure.end for tenure in tenures if tenure.cluster == cluster and tenure.end is not None]
                yield Move(
                    group,
                    origin.cluster,
                    cluster,
                    *(at, at, at, at, at, at),
                    is_projected=True,
                    mirrored_since=max(ended, default=0),
                )


def _tenures(changes: Sequence[GroupChange]) -> Iterator[Tenure]:
    """Yield the tenures of a group on a cluster. A time in which the cluster was not observed divides them."""
    began: GroupChange | None = None
    for change in changes:
        seen = change.since if change.since is not None else change.before_at
        if began is not None:
            left = change.before_at if change.has_members or seen is None else seen
            assert left is not None  # noqa: S101 - a state came before, as the group had members
            yield _tenure(began, left, None if change.has_members else change.at)
        began = change if change.has_members else None
    if began is not None:
        yield _tenure(began, began.last_at, None)


def _tenure(began: GroupChange, left: int, end: int | None) -> Tenure:
    begin = None
    if began.had_members is False:
        begin = began.since if began.since is not None else began.before_at
    # A group that is first seen with members is new, unless it is among the first that were seen on its cluster.
    is_new = began.had_members is None and began.at >= began.cluster_at + UNSEEN_MS
    is_start = is_new or began.had_members is False
    return Tenure(began.cluster, is_start, begin, began.at, max(left, began.at), end)


def _joined(tenures: Iterable[Tenure]) -> Iterator[Tenure]:
    """Yield the tenures on a cluster, those between which the group was away for a moment as one."""
    before: Tenure | None = None
    for tenure in tenures:
        if before is not None and tenure.joined - before.left <= _SOON_MS:
            before = before._replace(left=tenure.left, end=tenure.end)
            continue
        if before is not None:
            yield before
        before = tenure
    if before is not None:
        yield before


def _find_origin(target: Tenure, tenures: Sequence[Tenure]) -> Tenure | None:
    """Return the tenure on another cluster that this one continues; None if it continues none."""
    earlier = [tenure for tenure in tenures if tenure.joined < target.joined]
    origin = max(
        (tenure for tenure in earlier if tenure.cluster != target.cluster),
        key=lambda tenure: tenure.left,
        default=None,
    )
    if origin is None or origin.left > target.joined + OVERLAP_MS:
        return None
    for before in earlier:
        is_restart = before.cluster == target.cluster and before.left >= origin.left
        runs_on_both = before.cluster == target.cluster and _overlap(before, origin) > OVERLAP_MS
        if is_restart or runs_on_both:
            return None
    later = (tenure for tenure in tenures if tenure.cluster == origin.cluster and tenure.joined > origin.left)
    following = next(later, None)
    if following is not None and (following.joined <= target.joined + OVERLAP_MS or not following.is_start):
        return None  # it restarted, or it may have run there all along
    return origin


def _overlap(first: Tenure, second: Tenure) -> int:
    return min(first.left, second.left) - max(first.joined, second.joined)


def _move(group: str, origin: Tenure, target: Tenure, observed_until: int) -> Move:
    unseen = origin.end is None or origin.end - origin.left > _SOON_MS
    return Move(
        group,
        origin.cluster,
        target.cluster,
        # Without a later state of the group, whatever was committed there until the move is its own.
        origin_seen=target.joined if origin.end is None else origin.left,
        origin_end=target.joined if origin.end is None else min(origin.end, target.joined + OVERLAP_MS),
        # A group that is first seen with members joined a few polls ago, but it may have committed before.
        target_seen=target.begin or 0,
        joined=target.joined,
        until=target.left,
        absent_at=target.joined - _SOON_MS if target.begin is None else target.begin,
        unseen=unseen,
        observed_until=observed_until if origin.end is None and observed_until < target.joined else None,
    )
