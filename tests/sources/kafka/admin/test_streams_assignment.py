"""Decoding of assignments that real versions of Kafka Streams wrote, and of damaged ones.

The samples are of one application with two subtopologies, three partitions, standby tasks, two instances of two threads
(`testbed.streams.app`, topology repartitioned-count), on a 3.9.1 broker. `tasks` is what the thread itself logged.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.kafka.admin.streams_assignment import Assignment, UndecodableAssignmentError, decode_assignment

SAMPLES = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "samples" / "streams-assignments.jsonl").read_text("utf-8").splitlines()
]
_MAX = 2**31 - 1


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{sample['streams']}-{sample['thread']}" for sample in SAMPLES])
def test_decoded_tasks_are_those_the_thread_logged(sample: dict[str, Any]) -> None:
    """Each belongs to the partition of its number, in the topic of its subtopology."""
    partitions, tasks = decode_assignment(bytes.fromhex(sample["assignment"]))
    assert [list(partition) for partition in partitions] == sample["partitions"]
    assert sorted(tasks) == sorted(sample["tasks"])
    for (topic, partition), task in zip(partitions, tasks, strict=True):
        assert task == f"{int(topic.endswith('-repartition'))}_{partition}"


def test_an_empty_assignment_has_no_tasks() -> None:
    """As in a rebalance."""
    assert decode_assignment(b"") == Assignment()


@pytest.mark.parametrize("version", range(1, 12))
def test_all_versions_are_decoded(version: int) -> None:
    """Whatever follows the active tasks; version 2 and older have no common version."""
    user = _int(version) + (_int(11) if version > 2 else b"") + _tasks([(3, 7)], named=version > 9) + b"whatever"
    assert decode_assignment(_assignment([("t", [7])], user)) == Assignment((("t", 7),), ("3_7",))


def test_a_named_topology_is_part_of_the_task_id() -> None:
    """As Streams logs it."""
    user = _int(11) + _int(11) + _int(1) + _int(0) + _int(2) + _int(3) + "día".encode("utf-16-be")
    assert decode_assignment(_assignment([("t", [2])], user)).tasks == ("día__0_2",)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ((12).to_bytes(4, "big"), "unknown version 12"),
        (b"", "no user data"),
        (None, "no user data"),
        ((4).to_bytes(4, "big"), "ends at byte 4"),
    ],
    ids=["later-version", "empty", "none", "cut"],
)
def test_undecodable_user_data_is_refused_with_its_reason(user: bytes | None, reason: str) -> None:
    with pytest.raises(UndecodableAssignmentError, match=reason):
        decode_assignment(_assignment([("t", [0])], user))


def test_tasks_that_do_not_match_the_partitions_are_refused() -> None:
    user = _int(4) + _int(4) + _tasks([(0, 0), (0, 1)], named=False)
    with pytest.raises(UndecodableAssignmentError, match="2 active tasks for 1 partitions"):
        decode_assignment(_assignment([("t", [0])], user))


@given(st.binary(max_size=400))
def test_any_bytes_are_decoded_or_refused(encoded: bytes) -> None:
    """Nothing else is raised, and no memory is allocated for a count alone."""
    _decode_or_refuse(encoded)


@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_assignments_are_decoded_or_refused(sample: dict[str, Any], data: st.DataObject) -> None:
    """Bytes changed, cut or inserted."""
    encoded = bytearray.fromhex(sample["assignment"])
    begin = data.draw(st.integers(0, len(encoded)))
    encoded[begin : begin + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    _decode_or_refuse(bytes(encoded))


@given(st.lists(st.tuples(st.integers(0, _MAX), st.integers(0, _MAX)), max_size=20, unique=True))
def test_an_encoded_assignment_is_decoded_unchanged(tasks: list[tuple[int, int]]) -> None:
    """The tasks are in the order of the sorted partitions."""
    partitions = sorted((f"t{subtopology}", partition) for subtopology, partition in tasks)
    task_ids = [(int(topic[1:]), partition) for topic, partition in partitions]
    user = _int(11) + _int(11) + _tasks(task_ids, named=True)
    decoded = decode_assignment(_assignment([(topic, [partition]) for topic, partition in reversed(partitions)], user))
    expected = tuple(f"{subtopology}_{partition}" for subtopology, partition in task_ids)
    assert decoded == Assignment(tuple(partitions), expected)


def _decode_or_refuse(encoded: bytes) -> None:
    with suppress(UndecodableAssignmentError):
        partitions, tasks = decode_assignment(encoded)
        assert len(partitions) == len(tasks)


def _assignment(topics: Sequence[tuple[str, list[int]]], user: bytes | None) -> bytes:
    """Encode an assignment as Kafka's consumer does."""
    encoded = b"\x00\x00" + _int(len(topics))
    for topic, partitions in topics:
        encoded += len(topic).to_bytes(2, "big") + topic.encode() + b"".join(map(_int, [len(partitions), *partitions]))
    return encoded + (_int(-1) if user is None else _int(len(user)) + user)


def _tasks(tasks: Sequence[tuple[int, int]], *, named: bool) -> bytes:
    topology = _int(0) if named else b""
    return _int(len(tasks)) + b"".join(
        _int(subtopology) + _int(partition) + topology for subtopology, partition in tasks
    )


def _int(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)
