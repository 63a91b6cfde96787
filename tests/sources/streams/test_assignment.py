"""The tasks in assignments that real versions of Kafka Streams wrote, and in what nobody wrote.

The samples are of one application with two subtopologies, three partitions, standby tasks, two instances of two threads
(`testbed.streams.app`, topology repartitioned-count), on a 3.9.1 broker: `tasks` is what the thread's own log told.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.streams.assignment import Assignment, UndecodableAssignmentError, decode

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "samples" / "streams-assignments.jsonl").read_text("utf-8").splitlines()
]
_MAX = 2**31 - 1


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{one['streams']}-{one['thread']}" for one in SAMPLES])
def test_the_tasks_are_those_in_the_threads_own_log(sample: dict[str, Any]) -> None:
    """Each goes with the partition of its number, in the topic of its subtopology."""
    partitions, tasks = decode(bytes.fromhex(sample["assignment"]))
    assert [list(one) for one in partitions] == sample["partitions"]
    assert sorted(tasks) == sorted(sample["tasks"])
    for (topic, partition), task in zip(partitions, tasks, strict=True):
        assert task == f"{int(topic.endswith('-repartition'))}_{partition}"


def test_a_member_without_an_assignment_has_no_tasks() -> None:
    """As in a rebalance."""
    assert decode(b"") == Assignment()


@pytest.mark.parametrize("version", range(1, 12))
def test_all_versions_are_read(version: int) -> None:
    """Whatever follows the active tasks; version 2 and older do not say what all members understand."""
    user = _int(version) + (_int(11) if version > 2 else b"") + _tasks([(3, 7)], named=version > 9) + b"whatever"
    assert decode(_assignment([("t", [7])], user)) == Assignment((("t", 7),), ("3_7",))


def test_a_named_topology_stands_before_its_tasks() -> None:
    """As Streams' logs show it."""
    user = _int(11) + _int(11) + _int(1) + _int(0) + _int(2) + _int(3) + "día".encode("utf-16-be")
    assert decode(_assignment([("t", [2])], user)).tasks == ("día__0_2",)


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ((12).to_bytes(4, "big"), "version 12 is not known"),
        (b"", "nothing"),
        (None, "nothing"),
        ((4).to_bytes(4, "big"), "ends at byte 4"),
    ],
    ids=["later", "empty", "none", "cut"],
)
def test_what_cannot_be_read_is_told_and_why(user: bytes | None, why: str) -> None:
    """A version of later, another assignor's, one cut short."""
    with pytest.raises(UndecodableAssignmentError, match=why):
        decode(_assignment([("t", [0])], user))


def test_tasks_that_do_not_go_with_the_partitions_are_not_guessed() -> None:
    """Which reads what would be unknown."""
    user = _int(4) + _int(4) + _tasks([(0, 0), (0, 1)], named=False)
    with pytest.raises(UndecodableAssignmentError, match="2 active tasks for 1 partitions"):
        decode(_assignment([("t", [0])], user))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(encoded: bytes) -> None:
    """Nothing else is raised, and no memory is taken for what is only counted."""
    _read_or_refuse(encoded)


@given(st.sampled_from(SAMPLES), st.data())
def test_real_assignments_with_a_fault_are_read_or_refused(sample: dict[str, Any], data: st.DataObject) -> None:
    """Bytes changed, cut or put in."""
    encoded = bytearray.fromhex(sample["assignment"])
    begin = data.draw(st.integers(0, len(encoded)))
    encoded[begin : begin + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    _read_or_refuse(bytes(encoded))


@given(st.lists(st.tuples(st.integers(0, _MAX), st.integers(0, _MAX)), max_size=20, unique=True))
def test_what_is_written_is_read(tasks: list[tuple[int, int]]) -> None:
    """Task by task, in the order of the sorted partitions."""
    partitions = sorted((f"t{subtopology}", partition) for subtopology, partition in tasks)
    written = [(int(topic[1:]), partition) for topic, partition in partitions]
    user = _int(11) + _int(11) + _tasks(written, named=True)
    read = decode(_assignment([(topic, [partition]) for topic, partition in reversed(partitions)], user))
    assert read == Assignment(tuple(partitions), tuple(f"{one}_{other}" for one, other in written))


def _read_or_refuse(encoded: bytes) -> None:
    with suppress(UndecodableAssignmentError):
        partitions, tasks = decode(encoded)
        assert len(partitions) == len(tasks)


def _assignment(topics: Sequence[tuple[str, list[int]]], user: bytes | None) -> bytes:
    """As Kafka's consumer writes it."""
    encoded = b"\x00\x00" + _int(len(topics))
    for topic, partitions in topics:
        encoded += len(topic).to_bytes(2, "big") + topic.encode() + b"".join(map(_int, [len(partitions), *partitions]))
    return encoded + (_int(-1) if user is None else _int(len(user)) + user)


def _tasks(tasks: Sequence[tuple[int, int]], *, named: bool) -> bytes:
    return _int(len(tasks)) + b"".join(_int(one) + _int(other) + (_int(0) if named else b"") for one, other in tasks)


def _int(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
