"""The real KAFKA-7672 loses state on 2.1.0; normal operations and fixed versions lose nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp, reset_application
from testbed.streams.faults import VARIANTS, Outcome, forge_state, instances, lose_state
from testbed.streams.topics import (
    KEYS,
    NUMBERS,
    Decrease,
    Record,
    Trickle,
    feed,
    find_decreases,
    last_values,
    records,
    wait_until_processed,
)
from testbed.waiting import wait_until

_LONG = NUMBERS["long"]


Pair: TypeAlias = Callable[..., tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def pair(request: pytest.FixtureRequest, broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Return a function that makes the two instances of a new application, not started."""
    name = "".join(sign if sign.isalnum() else "-" for sign in str(request.node.name)).strip("-")
    with ExitStack() as closing:

        def make(variant: str, version: str, suffix: str = "", **properties: str) -> tuple[StreamsApp, StreamsApp]:
            application, topic = name + suffix, f"{name}{suffix}-in"
            broker.create_topic(topic, 4)
            both = instances(
                variant, version, broker.bootstrap_servers, application, tmp_path, input_topic=topic, **properties
            )
            for app in both:
                closing.callback(app.kill)
            return both

        yield make


def _keys(read: Sequence[Record], partitions: set[int]) -> set[bytes]:
    return {record.key for record in read if record.partition in partitions}


def _assert_lost(app: StreamsApp, outcome: Outcome, partitions: set[int]) -> None:
    """Assert that every key of these partitions decreased, and no other."""
    assert partitions
    read = records(app.bootstrap_servers, outcome.changelog)
    assert {decrease.key for decrease in outcome.decreases} == _keys(read, partitions)
    assert {decrease.partition for decrease in outcome.decreases} == partitions
    by_place = {(record.partition, record.offset): record for record in read}
    for decrease in outcome.decreases:
        before, after = (
            by_place[decrease.partition, decrease.before_offset],
            by_place[decrease.partition, decrease.after_offset],
        )
        assert before.key == after.key == decrease.key
    assert all(outcome.begin <= move.at <= outcome.end for move in outcome.moves)


# --- pure


def test_a_decrease_has_the_keys_own_offsets() -> None:
    read = [_record(0, 7, b"a", 40), _record(1, 8, b"a", 3), _record(0, 9, b"b", 1), _record(0, 10, b"a", 1)]
    assert find_decreases(read, _LONG) == [Decrease(0, b"a", 40, 7, 1, 10, 0)]


def test_a_key_starts_again_after_a_tombstone() -> None:
    read = [_record(0, 0, b"a", 5), _record(0, 1, b"a", None), _record(0, 2, b"a", 1), _record(0, 3, b"a", 0)]
    assert find_decreases(read, _LONG) == [Decrease(0, b"a", 1, 2, 0, 3, 0)]
    assert last_values(read[:2], _LONG) == {}


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(-(2**63), 2**63 - 1))))
def test_sorted_values_have_no_decreases(written: list[tuple[bytes, int]]) -> None:
    rising = [_record(0, offset, key, number) for offset, (key, number) in enumerate(sorted(written))]
    assert find_decreases(rising, _LONG) == []
    numbers = {key: {number for other, number in written if other == key} for key, _ in written}
    steps = sum(len(distinct) - 1 for distinct in numbers.values())
    assert len(find_decreases(rising[::-1], _LONG)) == steps


def _record(partition: int, offset: int, key: bytes, number: int | None) -> Record:
    return Record(partition, offset, 0, key, None if number is None else number.to_bytes(8, "big", signed=True))


# --- KAFKA-7672 itself


@pytest.mark.integration
def test_an_application_counts(pair: Pair) -> None:
    app, _ = pair("empty", "2.1.0")
    app.start()
    app.wait_until_running(4)
    assert app.tasks() == {"a-StreamThread-1": ("0_0", "0_1", "0_2", "0_3")}
    feed(app.bootstrap_servers, app.input_topic, 3)
    wait_until_processed(app)
    counts = last_values(records(app.bootstrap_servers, app.changelog), _LONG)
    assert {key.decode(): count for (_, key), count in counts.items()} == dict.fromkeys(KEYS, 3)
    app.stop()
    assert app.exit_status == 143  # ended by SIGTERM
    assert app.tasks() == {}


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_returning_tasks_find_their_stores_empty(pair: Pair) -> None:
    """KAFKA-7672 between two instances."""
    first, second = pair("empty", "2.1.0")
    outcome = lose_state(first, second, "empty")
    assert {(move.old, move.new) for move in outcome.moves} == {("b-StreamThread-1", "a-StreamThread-1")}
    _assert_lost(first, outcome, {move.partition for move in outcome.moves})
    assert {(decrease.before, decrease.after) for decrease in outcome.decreases} == {(40, 1)}


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("values", ["int", "json"])
def test_state_is_lost_in_every_value_format(values: str, pair: Pair) -> None:
    first, second = pair("empty", "2.1.0", topology="max", values=values)
    outcome = lose_state(first, second, "empty")
    _assert_lost(first, outcome, {move.partition for move in outcome.moves})
    assert {(decrease.before, decrease.after) for decrease in outcome.decreases} == {(20, 1)}


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_returning_tasks_find_their_stores_outdated(guarantee: str, pair: Pair) -> None:
    """With the checkpoint kept, only the counts that the first poll restored remain."""
    first, second = pair("partial", "2.1.0", guarantee=guarantee)
    outcome = lose_state(first, second, "partial")
    _assert_lost(first, outcome, {move.partition for move in outcome.moves})
    assert all(decrease.before == 3000 and 1500 < decrease.after < 3000 for decrease in outcome.decreases)


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_a_cache_hides_that_values_restart_at_1(pair: Pair) -> None:
    first, second = pair("cached", "2.1.0")
    outcome = lose_state(first, second, "cached")
    _assert_lost(first, outcome, {move.partition for move in outcome.moves})
    assert all(decrease.before == 40 and 1 <= decrease.after <= 5 for decrease in outcome.decreases)
    assert any(decrease.after > 1 for decrease in outcome.decreases)


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_a_task_returning_to_its_thread_finds_an_empty_store(pair: Pair) -> None:
    """KAFKA-7672 between two threads of an instance."""
    first, second = pair("threads", "2.1.0")
    outcome = lose_state(first, second, "threads")
    stayed = {move.partition for move in outcome.moves} - {
        move.partition for move in outcome.moves if move.old.startswith("b-") or move.new.startswith("b-")
    }
    _assert_lost(first, outcome, stayed)
    assert {(decrease.before, decrease.after) for decrease in outcome.decreases} == {(20, 1)}


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_forged_checkpoint_loses_state_on_3_9(guarantee: str, pair: Pair) -> None:
    first, second = pair("empty", "3.9.1", guarantee=guarantee)
    outcome = forge_state(first, second)
    assert {(move.old, move.new) for move in outcome.moves} == {("a-StreamThread-1", "b-StreamThread-1")}
    _assert_lost(first, outcome, {move.partition for move in outcome.moves})
    assert {(decrease.before, decrease.after) for decrease in outcome.decreases} == {(40, 1)}


# --- controls


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_fixed_versions_restore_returning_tasks(version: str, variant: str, pair: Pair) -> None:
    first, second = pair(variant, version)
    outcome = lose_state(first, second, variant)
    assert outcome.moves
    assert outcome.decreases == ()


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_a_killed_instance_loses_no_state(version: str, guarantee: str, pair: Pair) -> None:
    first, second = pair("empty", version, guarantee=guarantee)
    with Trickle(first.bootstrap_servers, first.input_topic) as trickle:
        outcome = lose_state(first, second, "empty", leave=StreamsApp.kill)
        assert trickle.rounds
    assert outcome.moves
    assert outcome.decreases == ()


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_a_frozen_and_thawed_instance_loses_no_state(version: str, pair: Pair) -> None:
    first, second = pair("empty", version)
    outcome = lose_state(first, second, "empty", leave=StreamsApp.freeze)
    assert outcome.moves
    before = len(second.assignments())
    second.thaw()
    wait_until(lambda: len(second.assignments()) > before, f"{second.name} to be given tasks again")
    second.wait_until_running()
    feed(first.bootstrap_servers, first.input_topic, 5)
    wait_until_processed(first)
    assert find_decreases(records(first.bootstrap_servers, first.changelog), _LONG) == []


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_windowed_counts_never_decrease(version: str, pair: Pair) -> None:
    """Every window has its own keys."""
    first, second = pair("empty", version, topology="windowed-count")
    with Trickle(first.bootstrap_servers, first.input_topic, every=0.2):
        outcome = lose_state(first, second, "empty")
    assert outcome.moves
    assert outcome.decreases == ()
    read = records(first.bootstrap_servers, first.changelog)
    assert {record.key[:-12].decode() for record in read} == set(KEYS)
    assert len({record.key[-12:-4] for record in read}) > 1
    assert find_decreases(read, _LONG) == []


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", "3.9.1"])
def test_sums_and_deletable_counts_decrease(version: str, pair: Pair) -> None:
    """A sum decreases with a negative number; a deleted count starts again after its tombstone."""
    sums, _ = pair("empty", version, topology="sum")
    counts, _ = pair("empty", version, "-deletable", topology="deletable-count")
    for app, value in ((sums, "-3"), (counts, "delete")):
        app.start()
        app.wait_until_running(4)
        feed(app.bootstrap_servers, app.input_topic, 3)
        feed(app.bootstrap_servers, app.input_topic, 1, value=value)
        feed(app.bootstrap_servers, app.input_topic, 2)
        wait_until_processed(app)
    read = records(sums.bootstrap_servers, sums.changelog)
    assert {(decrease.before, decrease.after) for decrease in find_decreases(read, _LONG)} == {(6, 3)}
    assert {decrease.key.decode() for decrease in find_decreases(read, _LONG)} == set(KEYS)
    read = records(counts.bootstrap_servers, counts.changelog)
    assert {record.key.decode() for record in read if record.value is None} == set(KEYS)
    assert set(last_values(read, _LONG).values()) == {2}
    assert find_decreases(read, _LONG) == []


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", "3.9.1"])
def test_a_reset_application_starts_in_a_new_changelog(version: str, pair: Pair) -> None:
    app, _ = pair("empty", version)
    app.start()
    app.wait_until_running(4)
    feed(app.bootstrap_servers, app.input_topic, 3)
    wait_until_processed(app)
    app.stop()
    reset_application(app)
    app.start()
    app.wait_until_running(4)
    feed(app.bootstrap_servers, app.input_topic, 1)
    wait_until_processed(app)
    read = records(app.bootstrap_servers, app.changelog)
    assert set(last_values(read, _LONG).values()) == {4}
    assert find_decreases(read, _LONG) == []
    assert {_LONG(record.value or b"") for record in read} == {1, 2, 3, 4}
