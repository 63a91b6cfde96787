"""Reading many entries, or many messages of a wrapper, at once gives what reading them one by one gives."""

import io

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.kafka_log import Batch, Fault, messages, scan, window
from agent.kafka_log.codecs import UndecodableError
from agent.kafka_log.messages import Inner
from agent.kafka_log.runs import MOST, Run, joined, run_of
from tests.kafka_log import writer
from tests.kafka_log.test_corruption import BASE, damaged, segments

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def read(raw: bytes, next_base: int | None) -> list[Batch | Fault]:
    """All that is told of a segment."""
    return list(scan.scan(io.BytesIO(raw), len(raw), base_offset=BASE, next_base=next_base, active=next_base is None))


def inner(raw: bytes) -> Inner | str:
    """What is told of a wrapper's messages."""
    try:
        return messages.walk(raw)
    except UndecodableError as error:
        return str(error)


@settings(max_examples=500, deadline=None, suppress_health_check=SLOW)
@given(entries=segments(), sealed=st.booleans(), choices=st.data())
def test_entries_read_at_once_are_those_read_one_by_one(
    entries: list[bytes], *, sealed: bool, choices: st.DataObject
) -> None:
    """Healthy or damaged, however much of the file is held: the same entries, the same faults, in the same order."""
    raw = choices.draw(damaged(entries, choices.draw(st.integers(0, 3))))
    next_base = BASE + 2_000 if sealed else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "run", lambda *_: None)
        one_by_one = read(raw, next_base)
    for chunk in (window.CHUNK, 200):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window, "CHUNK", chunk)
            assert read(raw, next_base) == one_by_one


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_healthy_entries_are_read_at_once(magic: int) -> None:
    """All that are held; a compressed batch of format 2 counts too, for its header says all."""
    codec = "zstd" if magic == 2 else "none"
    raw = b"".join(writer.entry(magic, codec, BASE + number, 1) for number in range(100))
    told = list(scan.scan_runs(io.BytesIO(raw), len(raw), base_offset=BASE, next_base=None, active=True))
    assert [one.entries if isinstance(one, Run) else one for one in told] == [100]


def test_a_run_has_a_bounded_number_of_entries() -> None:
    """So has what is read one by one, after a fault."""
    raw = b"".join(writer.message(BASE + number, None, magic=0) for number in range(MOST + 10))
    for file in (raw, b"\1" * 30 + raw):
        told = list(scan.scan_runs(io.BytesIO(file), len(file), base_offset=BASE, next_base=None, active=True))
        runs = [one for one in told if isinstance(one, Run)]
        assert sum(one.entries for one in runs) == MOST + 10
        assert max(one.entries for one in runs) <= MOST


@given(entries=segments())
def test_batches_as_columns_are_the_same_batches(entries: list[bytes]) -> None:
    """There and back, in one piece or in two."""
    batches = [one for one in read(b"".join(entries), None) if isinstance(one, Batch)]
    assert list(run_of(batches).batches()) == batches
    assert list(joined([run_of(batches), run_of(batches[:1])]).batches()) == [*batches, batches[0]]


@settings(max_examples=500, deadline=None)
@given(
    magic=st.sampled_from([0, 1]),
    value=st.binary(max_size=40),
    offsets=st.lists(st.integers(0, 200), min_size=14, max_size=40, unique=True).map(sorted),
    accidents=st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), max_size=2),
    cut=st.integers(0, 3),
)
@example(magic=0, value=bytes(9), offsets=list(range(20)), accidents=[], cut=0)
def test_messages_walked_at_once_are_those_walked_one_by_one(
    magic: int, value: bytes, offsets: list[int], accidents: list[tuple[int, int]], cut: int
) -> None:
    """All of one size, as machines write them, healthy or with some bytes changed or cut off."""
    raw = bytearray(b"".join(writer.message(offset, value, magic=magic) for offset in offsets))
    for position, byte in accidents:
        raw[position % len(raw)] = byte
    raw = raw[: len(raw) - cut]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "_alike", lambda _: None)
        one_by_one = inner(bytes(raw))
    assert inner(bytes(raw)) == one_by_one


def test_messages_of_one_size_are_walked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that end with zero bytes included."""
    monkeypatch.setattr(messages, "_one_by_one", lambda _: pytest.fail("walked one by one"))
    raw = b"".join(writer.message(offset, b"v\0\0", magic=1) for offset in range(3, 203, 2))
    assert inner(raw) == Inner(3, 201, 100, (), None)
