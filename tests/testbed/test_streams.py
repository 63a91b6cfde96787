"""The Streams testbed does what it says: the real KAFKA-7672 loses state on 2.1.0, and what is legal does not."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.kafka import Cluster
from testbed.streams.app import StreamsApp
from testbed.streams.changelog import NUMBERS, Decrease, Record, falls, last_values, records
from testbed.streams.faults import VARIANTS, Outcome, forge_state, instances, lose_state
from testbed.streams.input import KEYS, Trickle, feed, wait_until_processed
from testbed.streams.resetter import reset
from testbed.waiting import wait_until

_LONG = NUMBERS["long"]


Pair: TypeAlias = Callable[..., tuple[StreamsApp, StreamsApp]]


@pytest.fixture
def pair(request: pytest.FixtureRequest, broker: Cluster, tmp_path: Path) -> Iterator[Pair]:
    """Makes the two instances of a new application: (variant, version, properties) -> neither of them started."""
    name = "".join(sign if sign.isalnum() else "-" for sign in str(request.node.name)).strip("-")
    with ExitStack() as closing:

        def make(variant: str, version: str, suffix: str = "", **properties: str) -> tuple[StreamsApp, StreamsApp]:
            application, topic = name + suffix, f"{name}{suffix}-in"
            broker.create_topic(topic, 4)
            both = instances(
                variant, version, broker.bootstrap_servers, application, tmp_path, input_topic=topic, **properties
            )
            for one in both:
                closing.callback(one.kill)
            return both

        yield make


def _keys(read: Sequence[Record], partitions: set[int]) -> set[bytes]:
    return {one.key for one in read if one.partition in partitions}


def _lost(app: StreamsApp, outcome: Outcome, partitions: set[int]) -> None:
    """Every key of these partitions fell, and no other."""
    assert partitions
    read = records(app.bootstrap_servers, outcome.changelog)
    assert {fall.key for fall in outcome.falls} == _keys(read, partitions)
    assert {fall.partition for fall in outcome.falls} == partitions
    by_place = {(one.partition, one.offset): one for one in read}
    for fall in outcome.falls:
        before, after = by_place[fall.partition, fall.before_offset], by_place[fall.partition, fall.after_offset]
        assert before.key == after.key == fall.key
    assert all(outcome.begin <= move.at <= outcome.end for move in outcome.moves)


# --- pure


def test_a_fall_is_told_with_both_offsets() -> None:
    """The record before is the key's own, in its own partition."""
    read = [_record(0, 7, b"a", 40), _record(1, 8, b"a", 3), _record(0, 9, b"b", 1), _record(0, 10, b"a", 1)]
    assert falls(read, _LONG) == [Decrease(0, b"a", 40, 7, 1, 10, 0)]


def test_a_tombstone_lets_a_key_begin_anew() -> None:
    """What is lower after a tombstone has not fallen; what is lower after that has."""
    read = [_record(0, 0, b"a", 5), _record(0, 1, b"a", None), _record(0, 2, b"a", 1), _record(0, 3, b"a", 0)]
    assert falls(read, _LONG) == [Decrease(0, b"a", 1, 2, 0, 3, 0)]
    assert last_values(read[:2], _LONG) == {}


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.integers(-(2**63), 2**63 - 1))))
def test_what_never_falls_has_no_falls(written: list[tuple[bytes, int]]) -> None:
    """Whatever the numbers are: once sorted they have no falls, reversed they have one for each step down."""
    rising = [_record(0, offset, key, number) for offset, (key, number) in enumerate(sorted(written))]
    assert falls(rising, _LONG) == []
    steps = sum(len({number for key, number in written if key == one}) - 1 for one in {key for key, _ in written})
    assert len(falls(rising[::-1], _LONG)) == steps


def _record(partition: int, offset: int, key: bytes, number: int | None) -> Record:
    return Record(partition, offset, 0, key, None if number is None else number.to_bytes(8, "big", signed=True))


# --- KAFKA-7672 itself


@pytest.mark.integration
def test_an_application_counts(pair: Pair) -> None:
    """What it has counted is in its changelog, and it tells which tasks its threads have."""
    app, _ = pair("empty", "2.1.0")
    app.start()
    app.wait_until_running(4)
    assert app.tasks() == {"a-StreamThread-1": ("0_0", "0_1", "0_2", "0_3")}
    feed(app.bootstrap_servers, app.input_topic, 3)
    wait_until_processed(app)
    counts = last_values(records(app.bootstrap_servers, app.changelog), _LONG)
    assert {key.decode(): count for (_, key), count in counts.items()} == dict.fromkeys(KEYS, 3)
    app.stop()
    assert app.exit_status == 143  # of SIGTERM: it had its say
    assert app.tasks() == {}


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_tasks_that_come_back_find_their_stores_empty(pair: Pair) -> None:
    """KAFKA-7672 between two instances: all keys of the tasks that came back begin again at 1, no others."""
    first, second = pair("empty", "2.1.0")
    outcome = lose_state(first, second, "empty")
    assert {(move.old, move.new) for move in outcome.moves} == {("b-StreamThread-1", "a-StreamThread-1")}
    _lost(first, outcome, {move.partition for move in outcome.moves})
    assert {(fall.before, fall.after) for fall in outcome.falls} == {(40, 1)}


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("values", ["int", "json"])
def test_state_is_lost_whatever_the_values_look_like(values: str, pair: Pair) -> None:
    """A maximum as int or JSON falls, too, when the store is empty and lower numbers come."""
    first, second = pair("empty", "2.1.0", topology="max", values=values)
    outcome = lose_state(first, second, "empty")
    _lost(first, outcome, {move.partition for move in outcome.moves})
    assert {(fall.before, fall.after) for fall in outcome.falls} == {(20, 1)}


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_tasks_that_come_back_find_their_stores_as_they_left_them(guarantee: str, pair: Pair) -> None:
    """With the checkpoint kept a part is lost: what was counted elsewhere, but for what the first poll restored."""
    first, second = pair("partial", "2.1.0", guarantee=guarantee)
    outcome = lose_state(first, second, "partial")
    _lost(first, outcome, {move.partition for move in outcome.moves})
    assert all(fall.before == 3000 and 1500 < fall.after < 3000 for fall in outcome.falls)


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_a_cache_hides_that_values_began_at_1(pair: Pair) -> None:
    """With a cache the first value written after the loss is what a commit interval has counted."""
    first, second = pair("cached", "2.1.0")
    outcome = lose_state(first, second, "cached")
    _lost(first, outcome, {move.partition for move in outcome.moves})
    assert all(fall.before == 40 and 1 <= fall.after <= 5 for fall in outcome.falls)
    assert any(fall.after > 1 for fall in outcome.falls)


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_a_task_that_comes_back_to_its_thread_finds_its_store_empty(pair: Pair) -> None:
    """KAFKA-7672 between two threads of one instance: only what went from one to the other and back is lost."""
    first, second = pair("threads", "2.1.0")
    outcome = lose_state(first, second, "threads")
    stayed = {move.partition for move in outcome.moves} - {
        move.partition for move in outcome.moves if move.old.startswith("b-") or move.new.startswith("b-")
    }
    _lost(first, outcome, stayed)
    assert {(fall.before, fall.after) for fall in outcome.falls} == {(20, 1)}


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_forged_checkpoint_loses_state_on_a_current_version(guarantee: str, pair: Pair) -> None:
    """The stand-in: all keys of the tasks that the second instance took back begin again at 1."""
    first, second = pair("empty", "3.9.1", guarantee=guarantee)
    outcome = forge_state(first, second)
    assert {(move.old, move.new) for move in outcome.moves} == {("a-StreamThread-1", "b-StreamThread-1")}
    _lost(first, outcome, {move.partition for move in outcome.moves})
    assert {(fall.before, fall.after) for fall in outcome.falls} == {(40, 1)}


# --- controls


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_fixed_versions_restore_what_comes_back(version: str, variant: str, pair: Pair) -> None:
    """The very steps that lose state on 2.1.0 are a normal rebalance: tasks move, and nothing falls."""
    first, second = pair(variant, version)
    outcome = lose_state(first, second, variant)
    assert outcome.moves
    assert outcome.falls == ()


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_an_instance_killed_at_work_loses_nothing(version: str, guarantee: str, pair: Pair) -> None:
    """Kill -9 amid a stream of records: what is committed to the changelog never falls."""
    first, second = pair("empty", version, guarantee=guarantee)
    with Trickle(first.bootstrap_servers, first.input_topic) as trickle:
        outcome = lose_state(first, second, "empty", leave=StreamsApp.kill)
        assert trickle.rounds
    assert outcome.moves
    assert outcome.falls == ()


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_an_instance_that_freezes_and_goes_on_loses_nothing(version: str, pair: Pair) -> None:
    """Frozen for longer than its session, it finds itself fenced, joins again and restores its tasks."""
    first, second = pair("empty", version)
    outcome = lose_state(first, second, "empty", leave=StreamsApp.freeze)
    assert outcome.moves
    before = len(second.assignments())
    second.thaw()
    wait_until(lambda: len(second.assignments()) > before, f"{second.name} to be given tasks again")
    second.wait_until_running()
    feed(first.bootstrap_servers, first.input_topic, 5)
    wait_until_processed(first)
    assert falls(records(first.bootstrap_servers, first.changelog), _LONG) == []


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.2.0", "3.9.1"])
def test_windows_begin_under_keys_of_their_own(version: str, pair: Pair) -> None:
    """A windowed count over several windows and a rebalance: no key, with its window and sequence, ever falls."""
    first, second = pair("empty", version, topology="windowed-count")
    with Trickle(first.bootstrap_servers, first.input_topic, every=0.2):
        outcome = lose_state(first, second, "empty")
    assert outcome.moves
    assert outcome.falls == ()
    read = records(first.bootstrap_servers, first.changelog)
    assert {one.key[:-12].decode() for one in read} == set(KEYS)
    assert len({one.key[-12:-4] for one in read}) > 1
    assert falls(read, _LONG) == []


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", "3.9.1"])
def test_some_stores_fall_as_they_should(version: str, pair: Pair) -> None:
    """A sum falls with a negative number; a count that was deleted begins again after a tombstone."""
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
    assert {(fall.before, fall.after) for fall in falls(read, _LONG)} == {(6, 3)}
    assert {fall.key.decode() for fall in falls(read, _LONG)} == set(KEYS)
    read = records(counts.bootstrap_servers, counts.changelog)
    assert {one.key.decode() for one in read if one.value is None} == set(KEYS)
    assert set(last_values(read, _LONG).values()) == {2}
    assert falls(read, _LONG) == []


@pytest.mark.integration
@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2.1.0", "3.9.1"])
def test_a_reset_application_begins_anew_in_a_new_changelog(version: str, pair: Pair) -> None:
    """StreamsResetter deletes the changelog; the new one of the same name begins at 1 and never falls."""
    app, _ = pair("empty", version)
    app.start()
    app.wait_until_running(4)
    feed(app.bootstrap_servers, app.input_topic, 3)
    wait_until_processed(app)
    app.stop()
    reset(app)
    app.start()
    app.wait_until_running(4)
    feed(app.bootstrap_servers, app.input_topic, 1)
    wait_until_processed(app)
    read = records(app.bootstrap_servers, app.changelog)
    assert set(last_values(read, _LONG).values()) == {4}
    assert falls(read, _LONG) == []
    assert {_LONG(one.value or b"") for one in read} == {1, 2, 3, 4}
