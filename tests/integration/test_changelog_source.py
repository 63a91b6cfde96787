"""The changelog source on real brokers and Kafka Streams: it reports exactly the values that decreased."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from agent.model.declared_stores import DeclaredStore
from agent.model.observations.base import Available, Observation, Unavailable
from agent.model.observations.streams import ChangelogDecreases
from agent.sources.streams.changelog_source import ChangelogSource
from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp, reset_application
from testbed.streams.faults import VARIANTS, instances, lose_state
from testbed.streams.topics import (
    NUMBERS,
    Decrease,
    Record,
    Trickle,
    feed,
    find_decreases,
    last_values,
    log_ends,
    records,
    wait_until_processed,
)
from testbed.waiting import wait_until
from tests.integration.seen import Seen

pytestmark = pytest.mark.integration

MEMORY = 100_000_000


@pytest.fixture
def store(request: pytest.FixtureRequest) -> DeclaredStore:
    """A store with the test's name."""
    name = "".join(character if character.isalnum() else "-" for character in str(request.node.name)).strip("-")
    return DeclaredStore(application=name, store="counts")


@contextmanager
def _open_source(broker: Cluster, seen: Seen, *stores: DeclaredStore) -> Iterator[ChangelogSource]:
    source = ChangelogSource(
        "main", broker.bootstrap_servers, lambda: {"log_level": "0"}, stores, seen, memory=MEMORY, interval=1_000
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
    """Write values of keys; in a transaction if it is named, which may be aborted."""
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
    """Poll until all partitions have been read to their current ends."""
    ends = log_ends(broker.bootstrap_servers, store.changelog)
    read = {record.partition: record.offset + 1 for record in records(broker.bootstrap_servers, store.changelog)}

    def is_read() -> bool:
        source.poll()
        partitions = dict(source._changelogs[store.changelog].partitions)
        return partitions.keys() == ends.keys() and all(
            partition.live and (partition.next_offset or 0) >= read.get(number, 0)
            for number, partition in partitions.items()
        )

    wait_until(is_read, f"{store.changelog} to be read", 120)


def _wait_until_described(source: ChangelogSource) -> None:
    before = source.read_at or 0

    def is_described() -> bool:
        source.poll()
        return (source.read_at or 0) > before

    wait_until(is_described, "another description", 30)


def test_decreases_are_reported_but_not_those_of_the_past(broker: Cluster, store: DeclaredStore) -> None:
    """The episode grows with each decrease; the deepest comes first."""
    seen = Seen()
    broker.create_topic(store.changelog, 2)
    _write(broker, store.changelog, [("a", 9), ("a", 1), ("b", 40), ("c", 40)])
    with _open_source(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        begin = time.time_ns() // 1_000_000
        _write(broker, store.changelog, [("a", 2), ("b", 1), ("new", 1)])
        first = seen.wait_for(source, ChangelogDecreases)
        _write(broker, store.changelog, [("b", 2), ("c", 38), ("b", 1)])
        second = seen.wait_for(
            source, ChangelogDecreases, lambda decreases: decreases.keys == 2 and decreases.total == 42
        )
        seen.mark()
        _write(broker, store.changelog, [("b", 2), ("c", 39)])
        _wait_until_read(source, broker, store)
    assert seen.all(ChangelogDecreases) == []
    assert (first.cluster, first.application, first.store) == ("main", store.application, "counts")
    assert (first.partition, first.keys, first.total, first.first_offset) == (0, 1, 39, 5)
    assert [(worst.key, worst.before, worst.after, worst.offset) for worst in first.worst] == [("b", 40, 1, 5)]
    assert first.since is not None
    assert begin - 1_000 < first.since <= first.began_at == first.at
    assert (second.began_at, second.first_offset) == (first.began_at, 5)
    assert [(worst.key, worst.before, worst.after) for worst in second.worst] == [("b", 40, 1), ("c", 40, 38)]
    groups = broker.admin.list_consumer_groups(request_timeout=30).result().valid
    assert "backflow-changelogs" not in [group.group_id for group in groups]


def test_kraft_brokers_report_decreases_though_nothing_else_changes(kafka_4_1: Cluster, store: DeclaredStore) -> None:
    """What they say of topics is the same each time, and is not sent again by the client."""
    seen = Seen()
    kafka_4_1.create_topic(store.changelog, 1)
    _write(kafka_4_1, store.changelog, [("a", 70), ("b", 50)])
    with _open_source(kafka_4_1, seen, store) as source:
        _wait_until_read(source, kafka_4_1, store)
        for _ in range(3):
            _wait_until_described(source)
        _write(kafka_4_1, store.changelog, [("a", 20)])
        first = seen.wait_for(source, ChangelogDecreases)
        _write(kafka_4_1, store.changelog, [("b", 10)])
        second = seen.wait_for(source, ChangelogDecreases, lambda decreases: decreases.keys == 2)
    assert (first.keys, first.total) == (1, 50)
    assert (second.keys, second.total) == (2, 90)


def test_key_starts_again_after_a_tombstone(broker: Cluster, store: DeclaredStore) -> None:
    """In the log's past as well as live."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [("a", 40), ("b", 40), ("a", None)])
    with _open_source(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 1), ("b", None), ("b", 1), ("c", 3), ("c", 2)])
        decreases = seen.wait_for(source, ChangelogDecreases)
    assert [worst.key for worst in decreases.worst] == ["c"]
    assert decreases.keys == 1


def test_uncommitted_values_are_not_compared(broker: Cluster, store: DeclaredStore) -> None:
    """An aborted transaction is ignored; a committed one is not."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [("a", 40), ("b", 40)], transaction="committed")
    with _open_source(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 1), ("b", 99)], transaction="aborted", abort=True)
        _write(broker, store.changelog, [("a", 41), ("b", 41)], transaction="committed")
        _wait_until_read(source, broker, store)
        assert seen.all(ChangelogDecreases) == []
        _write(broker, store.changelog, [("a", 2)], transaction="committed")
        decreases = seen.wait_for(source, ChangelogDecreases)
    assert [(worst.key, worst.before, worst.after) for worst in decreases.worst] == [("a", 41, 2)]


@pytest.mark.parametrize("rounds", [1, 50], ids=["shorter", "longer"])
def test_recreated_topic_starts_again(rounds: int, broker: Cluster, store: DeclaredStore) -> None:
    """The new log may end before or after the offset that was read in the old one."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [(f"key-{number}", 40) for number in range(20)])
    with _open_source(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        broker.delete_topic(store.changelog)
        broker.create_topic(store.changelog, 2)
        low = [(f"key-{number}", value) for value in range(rounds) for number in range(20)]
        _write(broker, store.changelog, low[:10] if rounds == 1 else low)
        _wait_until_read(source, broker, store)
        assert seen.all(ChangelogDecreases) == []
        _write(broker, store.changelog, [("key-1", -1)])
        decreases = seen.wait_for(source, ChangelogDecreases)
    assert [(worst.key, worst.after) for worst in decreases.worst] == [("key-1", -1)]
    assert decreases.keys == 1


def test_topics_and_partitions_that_come_later_are_read(broker: Cluster, store: DeclaredStore) -> None:
    """A missing topic is unavailable."""
    seen = Seen()
    with _open_source(broker, seen, store) as source:
        unavailable = seen.wait_for(source, Unavailable, topic=store.changelog)
        expected = f"topic {store.changelog}, the changelog of the declared store counts, does not exist"
        assert unavailable.reason == expected
        broker.create_topic(store.changelog)
        seen.wait_for(source, Available, topic=store.changelog)
        broker.admin.create_partitions([NewPartitions(store.changelog, 3)])[store.changelog].result(30)
        wait_until(lambda: len(log_ends(broker.bootstrap_servers, store.changelog)) == 3, "three partitions")
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 2), ("a", 1)], partition=2)
        assert seen.wait_for(source, ChangelogDecreases).partition == 2


def test_unreadable_values_are_counted_and_skipped(broker: Cluster, store: DeclaredStore) -> None:
    """They are reported with topic, partition and number; the keys' other values are compared."""
    seen = Seen()
    broker.create_topic(store.changelog, 2)
    _write(broker, store.changelog, [("a", 40), ("a", b"?"), ("b", b"1234"), ("c", b"")], partition=1)
    with _open_source(broker, seen, store) as source:
        unavailable = seen.wait_for(source, Unavailable, topic=store.changelog, partition=1)
        assert unavailable.reason.startswith(
            f"skipped 3 records of {store.changelog}-1: no key, or a value that is not"
        )
        _wait_until_read(source, broker, store)
        _write(broker, store.changelog, [("a", 1)], partition=1)
        assert seen.wait_for(source, ChangelogDecreases).total == 39
    assert seen.all(Unavailable, partition=0) == []


def test_reading_continues_after_a_broker_was_down(broker: Cluster, store: DeclaredStore) -> None:
    """Nothing is read twice or forgotten: later values are compared with those known before."""
    seen = Seen()
    broker.create_topic(store.changelog)
    _write(broker, store.changelog, [("a", 40)])
    with _open_source(broker, seen, store) as source:
        _wait_until_read(source, broker, store)
        broker.stop(2005)
        seen.wait_for(source, Unavailable, topic=None)
        broker.start(2005)
        seen.wait_for(source, Available, topic=None)
        _write(broker, store.changelog, [("a", 3)])
        assert seen.wait_for(source, ChangelogDecreases).total == 37


def test_close_ends_the_thread_and_the_reports(broker: Cluster, store: DeclaredStore) -> None:
    """Also while it waits for a topic."""
    seen = Seen()
    with _open_source(broker, seen, store) as source:
        seen.wait_for(source, Unavailable, topic=store.changelog)
    seen.mark()
    source.poll()
    assert seen.all(Observation) == []
    assert not source._reader._thread.is_alive()


# --- Kafka Streams

Pair: TypeAlias = Callable[..., tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def pair(store: DeclaredStore, broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Make two instances of the store's application, not started: (variant, version, properties)."""
    with ExitStack() as closing:

        def make(variant: str, version: str, **properties: str) -> tuple[StreamsApp, StreamsApp]:
            topic = f"{store.application}-in"
            broker.create_topic(topic, 4)
            both = instances(
                variant, version, broker.bootstrap_servers, store.application, tmp_path, input_topic=topic, **properties
            )
            for app in both:
                closing.callback(app.kill)
            return both

        yield make


def _summarize(falls: Sequence[Decrease]) -> dict[int, tuple[int, int, int]]:
    """Return the true keys, total and first offset by partition."""
    partitions = {fall.partition for fall in falls}
    by_partition = {number: [fall for fall in falls if fall.partition == number] for number in sorted(partitions)}
    return {
        partition: (
            len(decreases),
            sum(fall.before - fall.after for fall in decreases),
            min(fall.after_offset for fall in decreases),
        )
        for partition, decreases in by_partition.items()
    }


def _reported(seen: Seen) -> dict[int, tuple[int, int, int]]:
    return {
        decreases.partition: (decreases.keys, decreases.total, decreases.first_offset)
        for decreases in seen.all(ChangelogDecreases)
    }


def _last_by_partition(seen: Seen) -> dict[int, ChangelogDecreases]:
    return {decreases.partition: decreases for decreases in seen.all(ChangelogDecreases)}


def _check_worst(seen: Seen, falls: Sequence[Decrease]) -> None:
    """Check the five deepest decreases of each partition, with values and offsets."""
    for partition, decreases in _last_by_partition(seen).items():
        truth = {
            (fall.key.decode(), fall.before, fall.after, fall.after_offset)
            for fall in falls
            if fall.partition == partition
        }
        worst = [(fall.key, fall.before, fall.after, fall.offset) for fall in decreases.worst]
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
def test_unrestored_state_is_reported_key_by_key(
    variant: str, properties: dict[str, str], broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """KAFKA-7672 on 2.1.0: keys, partitions, totals and offsets are those of the log itself, no more and no less."""
    first, second = pair(variant, "2.1.0", **properties)
    value = {"int": "int", "json": "json:value"}.get(properties.get("values", ""), "long")
    declared = store.model_copy(update={"value": value})
    seen = Seen()
    with _open_source(broker, seen, declared) as source:
        outcome = lose_state(first, second, variant, progress=lambda _: _wait_until_read(source, broker, declared))
        assert outcome.decreases
        truth = _summarize(outcome.decreases)
        seen.wait_for(source, ChangelogDecreases, lambda _: _reported(seen) == truth)
        _wait_until_read(source, broker, declared)
    assert _reported(seen) == truth
    _check_worst(seen, outcome.decreases)
    assert seen.all(Unavailable, partition=None, topic=None) == []


def _sums(log: Sequence[Record], begin: int, end: int) -> set[int]:
    """Return the sums of a partition's last values up to `begin`, to each record that follows, and to `end`."""
    ends = [record.offset for record in log if begin <= record.offset < end] + [end]
    return {
        sum(last_values((record for record in log if record.offset < before), NUMBERS["long"]).values())
        for before in ends
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ["empty", pytest.param("partial", marks=pytest.mark.acceptance)])
def test_sums_of_a_count_that_lost_state_match_its_log(
    variant: str, broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """KAFKA-7672 on 2.1.0: before the first decrease, and after the last one.

    In a partition without decreases, the sum is the number of input records; otherwise it is lower.
    """
    first, second = pair(variant, "2.1.0")
    declared = store.model_copy(update={"counts": first.input_topic})
    seen = Seen()
    with _open_source(broker, seen, declared) as source:
        outcome = lose_state(first, second, variant, progress=lambda _: _wait_until_read(source, broker, declared))
        truth = _summarize(outcome.decreases)

        def is_summed(_: ChangelogDecreases) -> bool:
            last = _last_by_partition(seen).values()
            return _reported(seen) == truth and all(decreases.sum_after is not None for decreases in last)

        seen.wait_for(source, ChangelogDecreases, is_summed)
        _wait_until_read(source, broker, declared)
        sums = {number: partition.sum for number, partition in source._changelogs[store.changelog].partitions.items()}
    log = records(broker.bootstrap_servers, store.changelog)
    logs = {number: [record for record in log if record.partition == number] for number in sums}
    ends = log_ends(broker.bootstrap_servers, store.changelog)
    assert {number: {sum_} for number, sum_ in sums.items()} == {
        number: _sums(logs[number], ends[number], ends[number]) for number in sums
    }
    input_ends = log_ends(broker.bootstrap_servers, first.input_topic)
    assert {number for number, sum_ in sums.items() if sum_ != input_ends[number]} == truth.keys()
    for number, decreases in _last_by_partition(seen).items():
        last_fall = max(fall.after_offset for fall in find_decreases(logs[number], NUMBERS["long"]))
        assert {decreases.sum_before} == _sums(logs[number], decreases.first_offset, decreases.first_offset)
        assert decreases.sum_after in _sums(logs[number], last_fall + 1, ends[number])
        assert (decreases.sum_after or 0) < (decreases.sum_before or 0)
        assert (sums[number] or 0) < input_ends[number]


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_restored_state_is_not_reported(
    version: str, variant: str, broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """The same steps on versions without the bug."""
    first, second = pair(variant, version)
    seen = Seen()
    with _open_source(broker, seen, store) as source:
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
def test_killed_instance_is_not_reported(
    version: str, properties: dict[str, str], broker: Cluster, store: DeclaredStore, pair: Pair
) -> None:
    """Kill -9 amid a stream of records: uncommitted records are never read; windows are keys of their own."""
    first, second = pair("empty", version, **properties)
    seen = Seen()
    with (
        _open_source(broker, seen, store) as source,
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
def test_reset_application_is_not_reported(version: str, broker: Cluster, store: DeclaredStore, pair: Pair) -> None:
    """StreamsResetter deletes the changelog; a deleted key starts again after its tombstone."""
    app, _ = pair("empty", version, topology="deletable-count")
    seen = Seen()
    with _open_source(broker, seen, store) as source:
        app.start()
        app.wait_until_running(4)
        feed(app.bootstrap_servers, app.input_topic, 3)
        feed(app.bootstrap_servers, app.input_topic, 1, value="delete")
        feed(app.bootstrap_servers, app.input_topic, 2)
        wait_until_processed(app)
        _wait_until_read(source, broker, store)
        app.stop()
        reset_application(app)
        app.start()
        app.wait_until_running(4)
        feed(app.bootstrap_servers, app.input_topic, 1)
        wait_until_processed(app)
        _wait_until_read(source, broker, store)
    assert seen.all(ChangelogDecreases) == []
