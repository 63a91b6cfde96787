"""Reading a segment never fails, whatever happened to its bytes: damage is found, or provably harmless."""

import io
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kafka_log import Batch, window
from agent.kafka_log.faults import LABELS, Fault
from agent.kafka_log.scan import scan
from tests.kafka_log import writer

BASE = 7_000
FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in writer.CODECS if magic == 2 or codec in ("none", *writer.LEGACY)
]

ACCIDENTS = ("flip", "cut", "swap", "repeat", "drop", "zero", "insert", "overwrite", "preallocate")


class TruncatedFile(io.BytesIO):
    """A file that is truncated to a size after some reads."""

    def __init__(self, raw: bytes, size: int, reads: int) -> None:
        super().__init__(raw)
        self._size = size
        self._reads = reads

    def read(self, size: int | None = -1, /) -> bytes:
        if not self._reads:
            self.truncate(self._size)
        self._reads -= 1
        return super().read(size)


def read(
    raw: bytes, *, next_base: int | None, deep: bool = False, chunk: int = window.CHUNK, file: io.BytesIO | None = None
) -> tuple[list[Batch], list[Fault]]:
    """Return the batches and the faults of a segment, read in chunks of some bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "CHUNK", chunk)
        found = list(
            scan(
                file or io.BytesIO(raw),
                len(raw),
                base_offset=BASE,
                next_base=next_base,
                active=next_base is None,
                deep=deep,
            )
        )
    return [item for item in found if isinstance(item, Batch)], [item for item in found if isinstance(item, Fault)]


def is_subsequence(part: Sequence[object], whole: Iterable[object]) -> bool:
    """Return whether all of one sequence is in another, in the same order."""
    rest = iter(whole)
    return all(item in rest for item in part)


@st.composite
def segments(draw: st.DrawFn) -> list[bytes]:
    """Draw the batches of a healthy segment: any formats and codecs, with gaps, no two with the same content."""
    offset, batches = BASE, []
    for number, (magic, codec) in enumerate(draw(st.lists(st.sampled_from(FORMATS), min_size=1, max_size=12))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 50]))
        count = 1 if codec == "none" and magic < 2 else draw(st.integers(1, 6))
        value = draw(st.binary(max_size=60)) + number.to_bytes(2)
        batches.append(writer.entry(magic, codec, offset, count, timestamp=1_000 + number, value=value))
        offset += count
    return batches


@st.composite
def damaged(draw: st.DrawFn, batches: list[bytes], accidents: int) -> bytes:
    """Draw the segment after some accidents."""
    for _ in range(accidents):
        raw = bytearray(b"".join(batches))
        place = st.integers(0, max(len(batches) - 1, 0))
        position = draw(st.integers(0, max(len(raw) - 1, 0)))
        match draw(st.sampled_from(ACCIDENTS)):
            case "swap" if len(batches) > 1:
                first, second = draw(place), draw(place)
                batches = list(batches)
                batches[first], batches[second] = batches[second], batches[first]
                continue
            case "repeat" if batches:
                batches = [*batches[: (at := draw(place)) + 1], *batches[at:]]
                continue
            case "drop" if batches:
                batches = [*batches[: (at := draw(place))], *batches[at + 1 :]]
                continue
            case "cut":
                del raw[position:]
            case "zero":
                end = draw(st.integers(position, len(raw)))
                raw[position:end] = bytes(end - position)
            case "insert":
                raw[position:position] = draw(st.binary(min_size=1, max_size=80))
            case "overwrite":
                garbage = draw(st.binary(min_size=1, max_size=80))
                raw[position : position + len(garbage)] = garbage
            case "preallocate":
                raw += bytes(draw(st.integers(1, 300)))
            case _ if raw:
                raw[position] ^= 1 << draw(st.integers(0, 7))
        batches = [bytes(raw)]
    return b"".join(batches)


@pytest.mark.slow
@settings(max_examples=1_500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(batches=segments(), sealed=st.booleans(), deep=st.booleans(), choices=st.data())
def test_damage_is_found_or_harmless(batches: list[bytes], *, sealed: bool, deep: bool, choices: st.DataObject) -> None:
    """Only accidents that leave a log as Kafka may write it go undetected."""
    next_base = BASE + 2_000 if sealed else None
    before, none = read(b"".join(batches), next_base=next_base, deep=deep)
    assert not none
    assert len(before) == len(batches)
    accidents = choices.draw(st.integers(1, 3))
    raw = choices.draw(damaged(batches, accidents))
    chunk = choices.draw(st.sampled_from([window.CHUNK, 61, 200]))
    after, faults = read(raw, next_base=next_base, deep=deep, chunk=chunk)
    if not faults:
        # Dropped or truncated at a boundary: gaps are legal, and so is a shorter log. No checksum covers the offsets of
        # batches; only comparison with another replica finds one that was changed and still increases, or, after a
        # second accident, a batch that was repeated or moved.
        crcs = [[batch.crc for batch in found] for found in (after, before)]
        assert is_subsequence(*crcs) if accidents == 1 else set(crcs[0]) <= set(crcs[1])
        offsets = [offset for batch in after for offset in (batch.first_offset, batch.last_offset)]
        assert all(first <= second for first, second in pairwise(offsets))
        assert all(first.last_offset < second.first_offset for first, second in pairwise(after))
        assert not offsets or (offsets[0] >= BASE and offsets[-1] < (next_base or BASE + 2**31))
        rest = raw[sum(batch.size for batch in after) :]
        assert not rest or (not sealed and not rest.strip(b"\0"))
    for fault in faults:
        assert fault.label in LABELS
        assert 0 <= fault.position < len(raw)
        assert fault.size > 0
        assert fault.position + fault.size <= len(raw)
        assert fault.kafka
        assert fault.detail


@settings(max_examples=300, deadline=None)
@given(batches=segments(), garbage=st.binary(min_size=1, max_size=300), place=st.data())
def test_batches_after_garbage_are_found(batches: list[bytes], garbage: bytes, place: st.DataObject) -> None:
    at = place.draw(st.integers(0, len(batches)))
    before, _ = read(b"".join(batches), next_base=BASE + 2_000)
    raw = b"".join([*batches[:at], garbage, *batches[at:]])
    after, faults = read(raw, next_base=BASE + 2_000)
    assert [batch.crc for batch in after] == [batch.crc for batch in before]
    assert [(fault.label, fault.position, fault.size) for fault in faults] == [
        ("garbage" if garbage.strip(b"\0") else "zeros", len(b"".join(batches[:at])), len(garbage))
    ]


@settings(max_examples=300, deadline=None)
@given(batches=segments(), cut=st.data())
def test_cut_tail_is_torn_if_active_and_garbage_if_sealed(batches: list[bytes], cut: st.DataObject) -> None:
    whole = b"".join(batches)
    begin = len(whole) - len(batches[-1])
    end = cut.draw(st.integers(begin + 8, len(whole) - 1))
    for next_base, label in ((None, "torn_tail"), (BASE + 2_000, "garbage")):
        after, (fault,) = read(whole[:end], next_base=next_base)
        assert len(after) == len(batches) - 1
        assert (fault.label, fault.position, fault.size) == (label, begin, end - begin)


@settings(max_examples=500, deadline=None)
@given(batches=segments(), sealed=st.booleans(), choices=st.data())
def test_file_truncated_while_being_read_ends_there(
    batches: list[bytes], *, sealed: bool, choices: st.DataObject
) -> None:
    raw = choices.draw(damaged(batches, choices.draw(st.integers(0, 2))))
    file = TruncatedFile(raw, choices.draw(st.integers(0, len(raw))), choices.draw(st.integers(0, 20)))
    whole, _ = read(raw, next_base=BASE + 2_000 if sealed else None)
    after, faults = read(raw, next_base=BASE + 2_000 if sealed else None, chunk=61, file=file)
    assert {batch.crc for batch in after} <= {batch.crc for batch in whole}
    assert all(fault.size > 0 for fault in faults)
