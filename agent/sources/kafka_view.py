"""What the answers of a cluster's brokers say, as observations and as what cannot be seen. No call is made here."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Node, TopicPartitionInfo
from confluent_kafka.admin import ClusterMetadata, ConsumerGroupDescription, TopicDescription

from agent.observations import (
    BrokerRegistration,
    Commit,
    GroupState,
    LogOffsets,
    Member,
    Observation,
    PartitionState,
)
from agent.options import Names
from agent.sources import Polled
from agent.sources.calls import Answer, Call, Key, outcome
from agent.sources.sight import SOURCE, Sights, Unit

Place: TypeAlias = tuple[str, int]
"""A topic's partition."""

_STATES = {
    "UNKNOWN": "Unknown",
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
"""The client's names of states -> Kafka's."""

_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The zero UUID, for brokers before KIP-516 (2.8)."""


class KafkaView:
    """A cluster as its brokers' answers show it: take answers, ask for facts."""

    def __init__(
        self, cluster: str, chosen: Names, polled: Polled, known: Iterable[Observation], *, watch_partitions: bool
    ) -> None:
        self._cluster = cluster
        self._chosen = chosen
        self._polled = polled
        self._watch = watch_partitions
        self._facts: list[Observation] = []
        self._heard = False
        self._complaint: str | None = None
        self._client_error: str | None = None
        self._trouble: dict[Key, dict[Unit, str]] = {}
        self._groups: set[str] = set()
        self._committed: dict[str, set[Place]] = defaultdict(set)
        self._leaders: dict[str, dict[int, int]] = {}
        self._offsets_at: dict[Place, int] = {}
        self._partitions: dict[str, dict[int, PartitionState]] = defaultdict(dict)
        self._absent: set[str] = set()
        self._brokers: set[int] = set()
        self._learn: dict[str, Callable[[Answer], None]] = {
            "groups": self._take_groups,
            "layout": self._take_layout,
            "commits": self._take_commits,
            "offsets": self._take_offsets,
            "states": self._take_state,
            "topics": self._take_topics,
        }
        for one in known:
            match one:
                case Commit(group=group, offset=int()) if chosen.match(group):
                    self._groups.add(group)
                    self._committed[group].add((one.topic, one.partition))
                case GroupState(group=group, state=state) if state != "Dead" and chosen.match(group):
                    self._groups.add(group)
                case PartitionState() if one.replicas:
                    self._partitions[one.topic][one.partition] = one
                case BrokerRegistration() if not one.gone:
                    self._brokers.add(one.broker)

    @property
    def groups(self) -> list[str]:
        """The chosen groups, a dead one until its commits are gone too."""
        return sorted(self._groups)

    def topics(self, chosen: Names) -> list[str]:
        """The topics whose partitions are watched, those included that may be gone."""
        return sorted({topic for topic, _, _ in self._wanted(chosen)} | self._partitions.keys())

    def by_leader(self, chosen: Names) -> dict[int, list[Place]]:
        """The partitions whose log offsets are wanted, by leader; one without a leader is out of sight."""
        places: dict[int, list[Place]] = defaultdict(list)
        for topic, partition, leader in self._wanted(chosen):
            if leader >= 0:
                places[leader].append((topic, partition))
            else:
                self._lose_place((topic, partition), "it has no leader")
        return places

    def begin(self) -> None:
        """A new poll: whether the cluster is heard is to be seen."""
        self._heard = False

    def client_failed(self, error: KafkaError) -> None:
        """What the client tells of its connections, which says more than the timeouts that follow from it."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  librdkafka's own codes are named so
            self._client_error = error.str()

    def take(self, answer: Answer) -> None:
        """Learn from an answered call."""
        try:
            self._learn[str(answer.call.key[0])](answer)
        except KafkaException as error:
            self._note(error.args[0])
            if answer.call.key[0] in ("commits", "states"):
                self._trouble[answer.call.key] = _group_trouble(answer.call, error.args[0].str())

    def facts(self) -> list[Observation]:
        """What was learnt since last asked, in the order of the answers."""
        facts, self._facts = self._facts, []
        return facts

    def unseen(self, overdue: Iterable[Call], sights: Sights) -> dict[Unit, str]:
        """What cannot be seen now and why. overdue: the calls that a whole poll has waited for in vain."""
        if not self._heard:
            if self._complaint is None:
                return dict.fromkeys(sights.units, "")
            return {SOURCE: f"No broker of {self._cluster} answers: {self._client_error or self._complaint}"}
        self._complaint = self._client_error = None
        unseen = {unit: why for trouble in self._trouble.values() for unit, why in trouble.items()}
        for call in overdue:
            if call.key[0] in ("commits", "states"):
                unseen |= _group_trouble(call, "its coordinator does not answer")
            for place in places_of(call):
                if call.asked >= self._offsets_at.get(place, 0):
                    unseen |= _place_trouble(place, f"broker {call.key[1]}, its leader, does not answer")
        return unseen

    def _wanted(self, chosen: Names) -> Iterator[tuple[str, int, int]]:
        """Topic, partition and leader (-1: none) of all that is chosen or committed to."""
        committed = set().union(*self._committed.values())
        for topic, leaders in self._leaders.items():
            every = chosen.match(topic)
            for partition, leader in leaders.items():
                if every or (topic, partition) in committed:
                    yield topic, partition, leader

    def _note(self, error: KafkaError) -> None:
        """A call failed. An answer that says no is still an answer; the client's own errors are negative."""
        if error.code() >= 0:
            self._heard = True
        elif self._complaint is None:
            self._complaint = error.str()

    def _take_groups(self, answer: Answer) -> None:
        listed = outcome(answer.call.futures[0][""])
        for error in listed.errors:
            self._note(error)
        self._heard = self._heard or not listed.errors
        self._groups.update(one.group_id for one in listed.valid if one.group_id and self._chosen.match(one.group_id))

    def _take_layout(self, answer: Answer) -> None:
        metadata: ClusterMetadata = outcome(answer.call.futures[0][""])
        if not metadata.brokers:
            return  # a broker that is just starting knows of nothing yet
        self._heard = True
        before, self._leaders = (
            self._leaders,
            {
                topic: {partition: one.leader for partition, one in described.partitions.items()}
                for topic, described in metadata.topics.items()
                if described.error is None
            },
        )
        for topic in before:
            if topic in metadata.topics and metadata.topics[topic].error is not None:
                self._leaders[topic] = before[topic]  # it exists, but this broker cannot tell of it now
        for topic, leaders in before.items():
            for partition in leaders.keys() - self._leaders.get(topic, {}).keys():
                self._forget((topic, partition))
        if not self._watch:
            return
        here = metadata.brokers.keys()
        for broker in sorted(self._brokers | here):
            epoch = -1 if broker in here else None
            self._facts.append(
                BrokerRegistration(at=answer.at, cluster=self._cluster, broker=broker, session=None, epoch=epoch)
            )
        self._brokers = set(here)

    def _take_commits(self, answer: Answer) -> None:
        key = answer.call.key
        group = str(key[1])
        result = outcome(answer.call.futures[0][group])
        self._heard = True
        self._trouble.pop(key, None)
        before = self._committed[group]
        committed: set[Place] = set()
        common: dict[str, Any] = {"at": answer.at, "cluster": self._cluster, "group": group}
        for one in result.topic_partitions:
            place = (one.topic, one.partition)
            if one.error is not None:
                unit = Unit(group, *place)
                self._trouble.setdefault(key, {})[unit] = f"Group {group} on {_name(place)}: {one.error.str()}"
                committed |= {place} & before
            elif one.offset >= 0:
                committed.add(place)
                self._facts.append(
                    Commit(
                        **common,
                        topic=one.topic,
                        partition=one.partition,
                        offset=one.offset,
                        leader_epoch=one.leader_epoch,
                    )
                )
        self._committed[group] = committed
        self._facts += [
            Commit(**common, topic=topic, partition=p, offset=None) for topic, p in sorted(before - committed)
        ]

    def _take_offsets(self, answer: Answer) -> None:
        starts, ends = answer.call.futures
        for one, end in ends.items():
            place = (one.topic, one.partition)
            if answer.call.asked < self._offsets_at.get(place, 0) or place[1] not in self._leaders.get(place[0], {}):
                continue  # its leader moved on and a newer answer was had, or it was deleted meanwhile
            try:
                log_start, log_end = outcome(starts[one]).offset, outcome(end).offset
            except KafkaException as error:
                self._note(error.args[0])
                self._lose_place(place, error.args[0].str())
                continue
            if min(log_start, log_end) < 0:  # -1001 without an error: the leader is away (seen on 0.11 to 4.1)
                self._lose_place(place, "its leader does not answer")
                continue
            self._heard = True
            self._trouble.pop(("offsets", *place), None)
            # As of when the question was sent: an end is never dated later than it was read, so no commit is held
            # against an end that is older than it.
            at = self._offsets_at[place] = answer.call.asked
            self._facts.append(
                LogOffsets(
                    at=at,
                    cluster=self._cluster,
                    topic=place[0],
                    partition=place[1],
                    log_start=log_start,
                    log_end=log_end,
                )
            )

    def _take_state(self, answer: Answer) -> None:
        group = str(answer.call.key[1])
        try:
            described: ConsumerGroupDescription = outcome(answer.call.futures[0][group])
            state, members = _STATES.get(described.state.name, described.state.name), _members(described)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            state, members = "Dead", ()
        self._heard = True
        self._trouble.pop(answer.call.key, None)
        self._facts.append(GroupState(at=answer.at, cluster=self._cluster, group=group, state=state, members=members))
        if state == "Dead" and not self._committed[group]:
            self._groups.discard(group)
            self._trouble.pop(("commits", group), None)
            del self._committed[group]

    def _take_topics(self, answer: Answer) -> None:
        for topic, future in answer.call.futures[0].items():
            key = ("topics", topic)
            try:
                described: TopicDescription = outcome(future)
            except KafkaException as error:
                self._note(error.args[0])
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    self._miss(topic, answer.at)
                elif error.args[0].code() >= 0:
                    self._trouble[key] = {
                        Unit(topic=topic): f"Topic {topic} cannot be described: {error.args[0].str()}"
                    }
                continue
            self._heard = True
            self._trouble.pop(key, None)
            self._absent.discard(topic)
            states = {one.partition: one for one in _partition_states(described, self._cluster, answer.at)}
            self._facts += states.values()
            for partition in sorted(self._partitions[topic].keys() - states.keys()):
                self._delete(self._partitions[topic][partition], answer.at)
            self._partitions[topic] = states

    def _miss(self, topic: str, at: int) -> None:
        """A topic is unknown to the broker asked. That one's metadata may lag, so only the second time counts."""
        if topic not in self._absent:
            self._absent.add(topic)
            return
        self._absent.discard(topic)
        self._trouble.pop(("topics", topic), None)
        for last in self._partitions.pop(topic, {}).values():
            self._delete(last, at)

    def _delete(self, last: PartitionState, at: int) -> None:
        gone = PartitionState(
            at=at,
            cluster=self._cluster,
            topic=last.topic,
            partition=last.partition,
            leader=None,
            replicas=(),
            isr=(),
            topic_id=last.topic_id,
        )
        self._facts.append(gone)

    def _forget(self, place: Place) -> None:
        """A partition is gone: nothing of its log is known or missed any more."""
        self._offsets_at.pop(place, None)
        self._trouble.pop(("offsets", *place), None)
        self._polled.forget(("log_offsets", self._cluster, *place))

    def _lose_place(self, place: Place, why: str) -> None:
        self._trouble[("offsets", *place)] = _place_trouble(place, why)


def places_of(call: Call) -> list[Place]:
    """The partitions that a call for log offsets asks about; none for other calls."""
    return [(one.topic, one.partition) for one in call.futures[-1]] if call.key[0] == "offsets" else []


def _group_trouble(call: Call, why: str) -> dict[Unit, str]:
    what = "committed offsets" if call.key[0] == "commits" else "state"
    return {Unit(group=str(call.key[1])): f"The {what} of group {call.key[1]} cannot be read: {why}"}


def _place_trouble(place: Place, why: str) -> dict[Unit, str]:
    return {Unit(None, *place): f"The log offsets of {_name(place)} cannot be read: {why}"}


def _name(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"


def _members(described: ConsumerGroupDescription) -> tuple[Member, ...]:
    """The group's members by id, each with what it is assigned."""
    return tuple(
        Member(
            id=one.member_id,
            host=one.host,
            partitions=tuple(sorted((place.topic, place.partition) for place in one.assignment.topic_partitions)),
            client_id=one.client_id,
        )
        for one in sorted(described.members, key=lambda one: one.member_id)
    )


def _partition_states(described: TopicDescription, cluster: str, at: int) -> list[PartitionState]:
    """A topic's partitions as AdminClient shows them: without leader epochs."""
    topic_id = str(described.topic_id)
    return [
        PartitionState(
            at=at,
            cluster=cluster,
            topic=described.name,
            partition=one.id,
            leader=_leader(one),
            replicas=tuple(node.id for node in one.replicas),
            isr=tuple(node.id for node in one.isr),
            topic_id=None if topic_id == _NO_TOPIC_ID else topic_id,
        )
        for one in described.partitions
    ]


def _leader(partition: TopicPartitionInfo) -> int | None:
    """The leader's id. The client gives a Node without an id's meaning (-1) or none at all where nobody leads."""
    leader: Node | None = partition.leader
    return None if leader is None or leader.id < 0 else leader.id
