"""What the answers of a cluster's brokers say, as observations and as what cannot be seen. No call is made here."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, TypeAlias

from agent.model.config_types import NameFilter
from agent.model.observations import Commit, GroupState, LogOffsets, Observation
from agent.sources.availability import SOURCE, Sights, Unit
from agent.sources.base import ChangeDetector
from agent.sources.kafka import admin_protocol as wire
from agent.sources.kafka.admin_client import Call, CheckResult
from agent.sources.kafka.admin_protocol import Place
from agent.sources.kafka.partitions import PartitionsView
from agent.sources.streams.discovery import StreamsView

_NOT_COORDINATOR = 16
"""Kafka's protocol error code."""

_SILENT = "its leader does not answer"

Trouble: TypeAlias = dict[Unit, str]


class KafkaChanges:
    """A cluster as its brokers' answers show it: take answers, then ask for facts and for what is unseen.

    out_of_date: whether the client asks where nobody will answer any more: since `begin` a broker has left the
    metadata, or a group has got another coordinator.
    """

    def __init__(
        self,
        cluster: str,
        groups: NameFilter,
        topics: NameFilter,
        polled: ChangeDetector,
        known: Iterable[Observation],
        *,
        watch_partitions: bool,
        streams: Collection[str] = (),
    ) -> None:
        """streams: application ids that are taken for Kafka Streams applications whatever their groups say."""
        self._cluster = cluster
        self._chosen_groups = groups
        self._chosen_topics = topics
        self._polled = polled
        self._watch_partitions = watch_partitions
        self._watched = PartitionsView(cluster, known)
        self.streams = StreamsView(cluster, streams, [one for one in known if _still_watched(one, groups)])
        self._laid_out_at: int | None = None
        self.out_of_date = False
        self._heard = False
        self._failure: str | None = None
        self._facts: list[Observation] = []
        self._trouble: dict[tuple[Hashable, ...], Trouble] = {}
        self._groups: set[str] = set()
        self._committed: dict[str, set[Place]] = defaultdict(set)
        self._leaders: dict[str, dict[int, int]] = {}
        self._offsets_at: dict[Place, int] = {}
        self._brokers: set[int] = set()
        for one in known:
            match one:
                case Commit(group=group, offset=int()) if groups.match(group):
                    self._groups.add(group)
                    self._committed[group].add((one.topic, one.partition))
                case GroupState(group=group) if _still_watched(one, groups):
                    self._groups.add(group)

    @property
    def groups(self) -> list[str]:
        """The chosen groups; a dead one until its commits are gone too."""
        return sorted(self._groups)

    @property
    def groups_in_sight(self) -> list[str]:
        """The chosen groups whose state could be read when last asked for."""
        return [group for group in self.groups if ("states", group) not in self._trouble]

    @property
    def topics(self) -> list[str]:
        """The topics whose partitions are watched, those included that may be gone."""
        if not self._watch_partitions:
            return []
        return sorted({place[0] for place, _ in self._wanted()} | self._watched.topics)

    @property
    def every_topic(self) -> list[str]:
        """All topics of the cluster. May be asked from any thread."""
        return list(self._leaders)

    def by_leader(self) -> dict[int, list[Place]]:
        """The partitions whose log offsets are wanted, by leader; one without a leader is out of sight."""
        places: dict[int, list[Place]] = defaultdict(list)
        for place, leader in self._wanted():
            if leader >= 0:
                places[leader].append(place)
            else:
                self._lose(place, "it has no leader")
        return places

    def begin(self) -> None:
        """A new poll: whether the cluster is heard is to be seen."""
        self._heard = False
        self.out_of_date = False

    def take(self, answer: CheckResult) -> None:
        """Learn from an answer."""
        question = answer.call.question
        match answer.result:
            case wire.Failure() as failure:
                self._fail(failure)
                self.out_of_date = self.out_of_date or failure.code == _NOT_COORDINATOR
                self._trouble[answer.call.key] = _group_trouble(answer.call, failure.text)
                return
            case wire.Groups() as groups:
                self._take_groups(groups)
            case wire.Metadata() as metadata:
                self._take_metadata(metadata, answer.at)
            case wire.Commits(offsets) if isinstance(question, wire.ListCommits):
                self._take_commits(question.group, offsets, answer.at)
            case wire.Offsets(ranges):
                # As of when the question was put: an end is never dated later than it was read, so that no commit is
                # held against an end older than it.
                self._take_offsets(ranges, answer.call.asked)
            case wire.Group() as group if isinstance(question, wire.DescribeGroup):
                self._take_group(question.group, group, answer.at)
            case wire.Tasks(assignments, undecodable) if isinstance(question, wire.ListTasks):
                self._heard = True
                self.streams.take_tasks(question.group, assignments, answer.call.asked, decodable=undecodable is None)
            case wire.Topics(topics):
                self._heard = True
                self._facts += self._watched.take_topics(topics, answer.at)

    def give_up(self, calls: Iterable[Call]) -> None:
        """These calls will not be answered any more."""
        for call in calls:
            if isinstance(call.question, wire.ListOffsets):
                for place in self._missed(call.question, call.asked):
                    self._lose(place, _SILENT)  # until any later call is answered
            else:
                self._trouble[call.key] = self._overdue(call)

    def facts(self) -> list[Observation]:
        """What was learnt since last asked, in the order of the answers; then the Kafka Streams applications."""
        facts, self._facts = self._facts, []
        facts = [self.streams.completed(one) if isinstance(one, GroupState) else one for one in facts]
        if self._laid_out_at is not None:
            facts += self.streams.facts(self._laid_out_at, self._leaders, self._groups)
            self._laid_out_at = None
        return facts

    def unseen(self, overdue: Iterable[Call], complaint: str | None, sights: Sights) -> Trouble:
        """What cannot be seen now and why.

        overdue: the calls that a whole poll has waited for in vain. complaint: what the client tells of its
        connections, which says more than the timeouts that follow from it.
        """
        if not self._heard:
            if self._failure is None:
                return dict.fromkeys(sights.units, "")
            return {SOURCE: f"No broker of {self._cluster} answers: {complaint or self._failure}"}
        self._failure = None
        unseen: Trouble = {}
        for trouble in (*self._trouble.values(), self._watched.trouble, *map(self._overdue, overdue)):
            unseen |= trouble
        return unseen

    def _wanted(self) -> Iterator[tuple[Place, int]]:
        """Partition and leader (-1: none) of all that is chosen, committed to, or a changelog of Kafka Streams."""
        committed = set().union(*self._committed.values())
        for topic, leaders in self._leaders.items():
            every = self._chosen_topics.match(topic) or self.streams.owns(topic)
            for partition, leader in leaders.items():
                if every or (topic, partition) in committed:
                    yield (topic, partition), leader

    def _overdue(self, call: Call) -> Trouble:
        """What a call that is not answered keeps out of sight."""
        if isinstance(call.question, wire.ListOffsets):
            missed = self._missed(call.question, call.asked)
            return {
                Unit(None, *place): f"The log offsets of {_name(place)} cannot be read: {_SILENT}" for place in missed
            }
        return _group_trouble(call, "its coordinator does not answer")

    def _missed(self, question: wire.ListOffsets, asked: int) -> list[Place]:
        """The places whose offsets nothing that was asked later has told."""
        return [place for place in question.places if asked >= self._offsets_at.get(place, 0)]

    def _lose(self, place: Place, why: str) -> None:
        self._trouble["place", *place] = {
            Unit(None, *place): f"The log offsets of {_name(place)} cannot be read: {why}"
        }

    def _fail(self, failure: wire.Failure) -> None:
        """An answer that says no is still an answer."""
        if failure.told:
            self._heard = True
        elif self._failure is None:
            self._failure = failure.text

    def _take_groups(self, groups: wire.Groups) -> None:
        for failure in groups.failures:
            self._fail(failure)
        self._heard = self._heard or not groups.failures
        self._groups.update(name for name in groups.names if name and self._chosen_groups.match(name))

    def _take_metadata(self, metadata: wire.Metadata, at: int) -> None:
        if not metadata.brokers:
            return  # a broker that is just starting knows of nothing yet
        self._heard = True
        before, led = self._leaders, {}
        for topic, leaders in metadata.topics.items():
            if leaders is not None:
                led[topic] = leaders
            elif topic in before:
                led[topic] = before[topic]
        self._leaders = led
        self._laid_out_at = at
        for topic, leaders in before.items():
            for partition in leaders.keys() - self._leaders.get(topic, {}).keys():
                self._forget((topic, partition))
        here = set(metadata.brokers)
        self.out_of_date = self.out_of_date or not self._brokers <= here
        self._brokers = here
        if self._watch_partitions:
            self._facts += self._watched.take_brokers(here, at)

    def _take_commits(self, group: str, offsets: list[wire.CommittedOffset], at: int) -> None:
        self._heard = True
        before, committed, trouble = self._committed[group], set(), Trouble()
        common: dict[str, Any] = {"at": at, "cluster": self._cluster, "group": group}
        for one in offsets:
            place = (one.topic, one.partition)
            if one.failure is not None:
                trouble[Unit(group, *place)] = f"What {group} committed on {_name(place)} is untold: {one.failure.text}"
                committed |= {place} & before
            elif one.offset >= 0:
                committed.add(place)
                named: dict[str, Any] = {
                    "topic": one.topic,
                    "partition": one.partition,
                    "leader_epoch": one.leader_epoch,
                }
                self._facts.append(Commit(**common, **named, offset=one.offset))
        self._facts += [
            Commit(**common, topic=topic, partition=p, offset=None) for topic, p in sorted(before - committed)
        ]
        self._committed[group] = committed
        self._trouble["commits", group] = trouble

    def _take_offsets(self, ranges: list[wire.LogRange], asked: int) -> None:
        for one in ranges:
            place = (one.topic, one.partition)
            if asked < self._offsets_at.get(place, 0) or one.partition not in self._leaders.get(one.topic, {}):
                continue  # its leader moved on and a newer answer was had, or it was deleted meanwhile
            if one.failure is not None:
                self._fail(one.failure)
                self._lose(place, one.failure.text)
            elif min(one.start, one.end) < 0:
                self._lose(place, _SILENT)
            else:
                self._heard = True
                self._trouble.pop(("place", *place), None)
                self._offsets_at[place] = asked
                self._facts.append(
                    LogOffsets(
                        at=asked,
                        cluster=self._cluster,
                        topic=one.topic,
                        partition=one.partition,
                        log_start=one.start,
                        log_end=one.end,
                    )
                )

    def _take_group(self, group: str, told: wire.Group, at: int) -> None:
        self._heard = True
        self._trouble.pop(("states", group), None)
        state = GroupState(
            at=at,
            cluster=self._cluster,
            group=group,
            state=told.state,
            members=tuple(told.members),
            simple=told.simple,
            assignor=told.assignor,
        )
        self.streams.take_group(state)
        self._facts.append(state)
        if told.state == "Dead" and not self._committed[group]:
            self._groups.discard(group)
            for call in ("commits", "tasks"):
                self._trouble.pop((call, group), None)
            self.streams.forget(group)
            del self._committed[group]

    def _forget(self, place: Place) -> None:
        """A partition is gone: nothing of its log is known or missed any more."""
        self._offsets_at.pop(place, None)
        self._trouble.pop(("place", *place), None)
        self._polled.forget(("log_offsets", self._cluster, *place))


def _still_watched(known: Observation, groups: NameFilter) -> bool:
    """Whether what was known before this run is not of a group that was dead, or that is no longer chosen."""
    return not isinstance(known, GroupState) or (known.state != "Dead" and groups.match(known.group))


def _group_trouble(call: Call, why: str) -> Trouble:
    """What a call about a group keeps out of sight; nothing where any broker can be asked again."""
    match call.question:
        case wire.ListCommits(group):
            return {Unit(group=group): f"The committed offsets of group {group} cannot be read: {why}"}
        case wire.DescribeGroup(group):
            return {Unit(group=group): f"The state of group {group} cannot be read: {why}"}
        case _:
            return {}


def _name(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"
