"""The changelogs source against real brokers and real Kafka Streams: falls for exactly what fell, silence otherwise."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from agent.model.declared_stores import DeclaredStore
from agent.model.observations import Available, ChangelogDecreases, Observation, Unavailable
from agent.sources.streams.changelog_source import ChangelogSource
from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp
from testbed.streams.changelog import NUMBERS, Fall, Record, falls, last_values, log_ends, records
from testbed.streams.faults import VARIANTS, instances, lose_state
from testbed.streams.input import Trickle, feed, wait_until_processed
from testbed.streams.resetter import reset
from testbed.waiting import wait_until
from tests.integration.seen import Seen

pytestmark = pytest.mark.integration

MEMORY = 100_000_000


@pytest.fixture
def store(request: pytest.FixtureRequest) -> DeclaredStore:
    """A store of the test's own."""
    name = "".join(sign if sign.isalnum() else "-" for sign in str(request.node.name)).strip("-")
    return DeclaredStore(application=name, store="counts")


@contextmanager
def _watching(broker: Cluster, seen: Seen, *stores: DeclaredStore) -> Iterator[ChangelogSource]:
    source = ChangelogSource(
        "main", broker.bootstrap_servers, {"log_level": "0"}, stores, seen, memory=MEMORY, interval=1_000
    )
    try:
        yield source
    finally:
        source.close()


def _write(
    broker: Cluster,
    topic: str,
    values: Sequence[tuple[str, int | bytes | None]],
    *,
    partition: int = 0,
    transaction: str | None = None,
    abort: bool = False,
) -> None:
    """Write values of keys; as a transaction where it is named, which may be aborted."""
    own = {} if transaction is None else {"transactional.id": transaction}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **own})
    if own:
        producer.init_transactions(60)
        producer.begin_transaction()
    for key, value in values:
        raw = value.to_bytes(8, "big", signed=True) if isinstance(value, int) else value
        producer.produce(topic, key=key, value=raw, partition=partition)
    assert producer.flush(60) == 0
    if own and abort:
        producer.abort_transaction(60)
    elif own:
        producer.commit_transaction(60)


def _wait_until_read(source: ChangelogSource, broker: Cluster, store: DeclaredStore) -> None:
    """Until all partitions have been read to their ends as of now, the topic's last answer included."""
    ends = log_ends(broker.bootstrap_servers, store.changelog)
    read = {one.partition: one.offset + 1 for one in records(broker.bootstrap_servers, store.changelog)}

    def through() -> bool:
        source.poll()
        partitions = dict(source._changelogs[store.changelog].partitions)
        return partitions.keys() == ends.keys() and all(
            one.live and (one.next or 0) >= read.get(number, 0) for number, one in partitions.items()
        )

    wait_until(through, f"{store.changelog} to be read", 120)


def test_what_falls_is_told_and_the_past_is_not(broker: Cluster, store: DeclaredStore) -> None:
    """Falls in the log's history are silent; of later ones the stretch grows, the deepest first."""
    seen = Seen()
    broker.create_topic(store.changelog, 2)
    _write(broker, store.changelog, [("a", 9), ("a", 1), ("b", 40), ("c", 40)])
    with _watching(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        begin = time.time_ns() // 1_000_000
        _write(broker, store.changelog, [("a", 2), ("b", 1), ("new", 1)])
        first = seen.wait_for(source, ChangelogDecreases)
        _write(broker, store.changelog, [("b", 2), ("c", 38), ("b", 1)])
        second = seen.wait_for(source, ChangelogDecreases, lambda one: one.keys == 2 and one.total == 42)
        seen.mark()
        _write(broker, store.changelog, [("b", 2), ("c", 39)])
        _wait_until_read(source, broker, store)
    assert seen.all(ChangelogDecreases) == []
    assert (first.cluster, first.application, first.store) == ("main", store.application, "counts")
    assert (first.partition, first.keys, first.total, first.first_offset) == (0, 1, 39, 5)
    assert [(one.key, one.before, one.after, one.offset) for one in first.worst] == [("b", 40, 1, 5)]
    assert first.since is not None
    assert begin - 1_000 < first.since <= first.began_at == first.at
    assert (second.began_at, second.first_offset) == (first.began_at, 5)
    assert [(one.key, one.before, one.after) for one in second.worst] == [("b", 40, 1), ("c", 40, 38)]
    groups = broker.admin.list_consumer_groups(request_timeout=30).result().valid
    assert "backflow-changelogs" not in [one.group_id for one in groups]


def test_a_tombstone_lets_a_key_begin_anew(broker: Cluster, store: DeclaredStore) -> None:
    """In the log's history as well as live."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [("a", 40), ("b", 40), ("a", None)])
    with _watching(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 1), ("b", None), ("b", 1), ("c", 3), ("c", 2)])
        told = seen.wait_for(source, ChangelogDecreases)
    assert [one.key for one in told.worst] == ["c"]
    assert told.keys == 1


def test_what_was_never_committed_has_not_fallen(broker: Cluster, store: DeclaredStore) -> None:
    """An aborted transaction neither falls, nor is held against what comes later; a committed one does."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [("a", 40), ("b", 40)], transaction="committed")
    with _watching(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 1), ("b", 99)], transaction="aborted", abort=True)
        _write(broker, store.changelog, [("a", 41), ("b", 41)], transaction="committed")
        _wait_until_read(source, broker, store)
        assert seen.all(ChangelogDecreases) == []
        _write(broker, store.changelog, [("a", 2)], transaction="committed")
        told = seen.wait_for(source, ChangelogDecreases)
    assert [(one.key, one.before, one.after) for one in told.worst] == [("a", 41, 2)]


@pytest.mark.parametrize("rounds", [1, 50], ids=["shorter", "longer"])
def test_a_topic_that_is_made_again_begins_anew(rounds: int, broker: Cluster, store: DeclaredStore) -> None:
    """Whether the new log ends before or after what was read of the old one; in the new one falls are told again."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [(f"key-{number}", 40) for number in range(20)])
    with _watching(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        broker.delete_topic(store.changelog)
        broker.create_topic(store.changelog, 2)
        low = [(f"key-{number}", one) for one in range(rounds) for number in range(20)]
        _write(broker, store.changelog, low[:10] if rounds == 1 else low)
        _wait_until_read(source, broker, store)
        assert seen.all(ChangelogDecreases) == []
        _write(broker, store.changelog, [("key-1", -1)])
        told = seen.wait_for(source, ChangelogDecreases)
    assert [(one.key, one.after) for one in told.worst] == [("key-1", -1)]
    assert told.keys == 1


def test_topics_and_partitions_that_come_later_are_read(broker: Cluster, store: DeclaredStore) -> None:
    """Until there is a topic, the source says that there is none."""
    seen = Seen()
    with _watching(broker, seen, store) as source:
        blind = seen.wait_for(source, Unavailable, topic=store.changelog)
        assert blind.reason == f"there is no topic {store.changelog}, the changelog of the declared store counts"
        broker.create_topic(store.changelog)
        seen.wait_for(source, Available, topic=store.changelog)
        broker.admin.create_partitions([NewPartitions(store.changelog, 3)])[store.changelog].result(30)
        wait_until(lambda: len(log_ends(broker.bootstrap_servers, store.changelog)) == 3, "three partitions")
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 2), ("a", 1)], partition=2)
        assert seen.wait_for(source, ChangelogDecreases).partition == 2


def test_values_that_cannot_be_read_are_counted_and_passed_over(broker: Cluster, store: DeclaredStore) -> None:
    """They are told with topic, partition and number; the keys' other values are held against one another."""
    seen = Seen()
    broker.create_topic(store.changelog, 2)
    _write(broker, store.changelog, [("a", 40), ("a", b"?"), ("b", b"1234"), ("c", b"")], partition=1)
    with _watching(broker, seen, store) as source:
        blind = seen.wait_for(source, Unavailable, topic=store.changelog, partition=1)
        assert blind.reason.startswith(f"3 records of {store.changelog}-1 have no key, or a value that is no")
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 1)], partition=1)
        assert seen.wait_for(source, ChangelogDecreases).total == 39
    assert seen.all(Unavailable, partition=0) == []


def test_a_broker_that_is_away_is_told_and_then_read_on(broker: Cluster, store: DeclaredStore) -> None:
    """Nothing is read twice or forgotten: what falls afterwards is held against what was known before."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [("a", 40)])
    with _watching(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        broker.stop(2005)
        seen.wait_for(source, Unavailable, topic=None)
        broker.start(2005)
        seen.wait_for(source, Available, topic=None)
        _write(broker, store.changelog, [("a", 3)])
        assert seen.wait_for(source, ChangelogDecreases).total == 37


def test_closing_ends_the_thread_and_nothing_is_told_afterwards(broker: Cluster, store: DeclaredStore) -> None:
    """Even while it waits for a topic."""
    seen = Seen()
    with _watching(broker, seen, store) as source:
        seen.wait_for(source, Unavailable, topic=store.changelog)
    seen.mark()
    source.poll()
    assert seen.all(Observation) == []
    assert not source._reader._thread.is_alive()


# --- Kafka Streams

Pair: TypeAlias = Callable[..., tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def pair(store: DeclaredStore, broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Makes the two instances of the store's application: (variant, version, properties) -> neither of them started."""
    with ExitStack() as closing:

        def make(variant: str, version: str, **properties: str) -> tuple[StreamsApp, StreamsApp]:
            topic = f"{store.application}-in"
            broker.create_topic(topic, 4)
            both = instances(
                variant, version, broker.bootstrap_servers, store.application, tmp_path, input_topic=topic, **properties
            )
            for one in both:
                closing.callback(one.kill)
            return both

        yield make


def _as_told(falls: Sequence[Fall]) -> dict[int, tuple[int, int, int]]:
    """The truth as the facts have it: keys, total and first offset by partition."""
    of = {one.partition: [fall for fall in falls if fall.partition == one.partition] for one in falls}
    return {
        partition: (len(some), sum(one.before - one.after for one in some), min(one.after_offset for one in some))
        for partition, some in of.items()
    }


def _told(seen: Seen) -> dict[int, tuple[int, int, int]]:
    return {one.partition: (one.keys, one.total, one.first_offset) for one in seen.all(ChangelogDecreases)}


def _check_worst(seen: Seen, falls: Sequence[Fall]) -> None:
    """The five that fell deepest, of each partition, with values and offsets."""
    last = {one.partition: one for one in seen.all(ChangelogDecreases)}
    for partition, one in last.items():
        truth = {
            (fall.key.decode(), fall.before, fall.after, fall.after_offset)
            for fall in falls
            if fall.partition == partition
        }
        worst = [(fall.key, fall.before, fall.after, fall.offset) for fall in one.worst]
        assert set(worst) <= truth
        assert len(worst) == min(5, len(truth))
        depths = sorted((before - after for _, before, after, _ in truth), reverse=True)
        assert [before - after for _, before, after, _ in worst] == depths[: len(worst)]


_CASES = [
    pytest.param("empty", {}),
    pytest.param("partial", {"guarantee": "at_least_once"}, marks=pytest.mark.acceptance),
    pytest.param("partial", {}, marks=pytest.mark.acceptance),
    pytest.param("cached", {}, marks=pytest.mark.acceptance),
    pytest.param("threads", {}, marks=pytest.mark.acceptance),
    pytest.param("empty", {"topology": "max", "values": "int"}, marks=pytest.mark.acceptance),
    pytest.param("empty", {"topology": "max", "values": "json"}, marks=pytest.mark.acceptance),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("variant", "properties"), _CASES)
def test_state_that_was_not_restored_is_told_key_by_key(
    variant: str, properties: dict[str, str], broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """KAFKA-7672 on 2.1.0: keys, partitions, totals and offsets are those of the log itself, no more and no less."""
    first, second = pair(variant, "2.1.0", **properties)
    value = {"int": "int", "json": "json:value"}.get(properties.get("values", ""), "long")
    declared = store.model_copy(update={"value": value})
    seen = Seen()
    with _watching(broker, seen, declared) as source:
        outcome = lose_state(first, second, variant, progress=lambda _: _wait_until_read(source, broker, declared))
        assert outcome.falls
        truth = _as_told(outcome.falls)
        seen.wait_for(source, ChangelogDecreases, lambda _: _told(seen) == truth)
        _wait_until_read(source, broker, declared)
    assert _told(seen) == truth
    _check_worst(seen, outcome.falls)
    assert seen.all(Unavailable, partition=None, topic=None) == []


def _sums(log: Sequence[Record], begin: int, end: int) -> set[int]:
    """The sums of the last values of a partition's keys up to `begin`, to each record that follows, and to `end`."""
    ends = [one.offset for one in log if begin <= one.offset < end] + [end]
    return {sum(last_values((one for one in log if one.offset < before), NUMBERS["long"]).values()) for before in ends}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ["empty", pytest.param("partial", marks=pytest.mark.acceptance)])
def test_the_sums_of_a_count_that_lost_state_are_those_of_its_log(
    variant: str, broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """KAFKA-7672 on 2.1.0: just before the first fall, and once the end was reached after the last one. Where nothing
    fell, the sum is the number of records that came in; where it did, it falls short of it.
    """
    first, second = pair(variant, "2.1.0")
    declared = store.model_copy(update={"counts": first.input_topic})
    seen = Seen()
    with _watching(broker, seen, declared) as source:
        outcome = lose_state(first, second, variant, progress=lambda _: _wait_until_read(source, broker, declared))
        truth = _as_told(outcome.falls)

        def summed(_: ChangelogDecreases) -> bool:
            last = {one.partition: one for one in seen.all(ChangelogDecreases)}
            return _told(seen) == truth and all(one.sum_after is not None for one in last.values())

        seen.wait_for(source, ChangelogDecreases, summed)
        _wait_until_read(source, broker, declared)
        sums = {number: one.sum for number, one in source._changelogs[store.changelog].partitions.items()}
    log = records(broker.bootstrap_servers, store.changelog)
    logs = {number: [one for one in log if one.partition == number] for number in sums}
    ends = log_ends(broker.bootstrap_servers, store.changelog)
    assert {number: {sum_} for number, sum_ in sums.items()} == {
        number: _sums(logs[number], ends[number], ends[number]) for number in sums
    }
    came_in = log_ends(broker.bootstrap_servers, first.input_topic)
    assert {number for number, sum_ in sums.items() if sum_ != came_in[number]} == truth.keys()
    for number, told in {one.partition: one for one in seen.all(ChangelogDecreases)}.items():
        last_fall = max(one.after_offset for one in falls(logs[number], NUMBERS["long"]))
        assert {told.sum_before} == _sums(logs[number], told.first_offset, told.first_offset)
        assert told.sum_after in _sums(logs[number], last_fall + 1, ends[number])
        assert (told.sum_after or 0) < (told.sum_before or 0)
        assert (sums[number] or 0) < came_in[number]


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_state_that_was_restored_is_not_told(
    version: str, variant: str, broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """The same steps on versions without the bug."""
    first, second = pair(variant, version)
    seen = Seen()
    with _watching(broker, seen, store) as source:
        outcome = lose_state(first, second, variant, progress=lambda _: _wait_until_read(source, broker, store))
        _wait_until_read(source, broker, store)
    assert outcome.moves
    assert seen.all(ChangelogDecreases) == []


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
@pytest.mark.parametrize(
    "properties",
    [{"guarantee": "exactly_once"}, {"guarantee": "at_least_once"}, {"topology": "windowed-count"}],
    ids=["exactly-once", "at-least-once", "windows"],
)
def test_an_instance_killed_at_work_is_not_told(
    version: str, properties: dict[str, str], broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """Kill -9 amid a stream of records: what it had not committed is never seen; windows are keys of their own."""
    first, second = pair("empty", version, **properties)
    seen = Seen()
    with (
        _watching(broker, seen, store) as source,
        Trickle(first.bootstrap_servers, first.input_topic) as trickle,
    ):
        outcome = lose_state(first, second, "empty", leave=StreamsApp.kill, progress=lambda _: source.poll())
        assert trickle.rounds
        trickle.stop()
        wait_until_processed(first)
        _wait_until_read(source, broker, store)
    assert outcome.moves
    assert seen.all(ChangelogDecreases) == []


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", "3.9.1"])
def test_a_reset_application_is_not_told(version: str, broker: Cluster, store: DeclaredStore, pair: Pair) -> None:
    """StreamsResetter deletes the changelog; a deleted key begins anew after its tombstone."""
    app, _ = pair("empty", version, topology="deletable-count")
    seen = Seen()
    with _watching(broker, seen, store) as source:
        app.start()
        app.wait_until_running(4)
        feed(app.bootstrap_servers, app.input_topic, 3)
        feed(app.bootstrap_servers, app.input_topic, 1, value="delete")
        feed(app.bootstrap_servers, app.input_topic, 2)
        wait_until_processed(app)
        _wait_until_read(source, broker, store)
        app.stop()
        reset(app)
        app.start()
        app.wait_until_running(4)
        feed(app.bootstrap_servers, app.input_topic, 1)
        wait_until_processed(app)
        _wait_until_read(source, broker, store)
    assert seen.all(ChangelogDecreases) == []
