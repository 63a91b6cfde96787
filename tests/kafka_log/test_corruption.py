"""Whatever happens to a segment's bytes, reading it never fails: the damage is found, or provably does no harm."""

import io
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kafka_log import LABELS, Batch, Fault, window
from agent.kafka_log.scan import scan
from tests.kafka_log import writer

BASE = 7_000
FORMATS = [
    (magic, codec) for magic in (0, 1, 2) for codec in writer.CODECS if magic == 2 or codec in ("none", *writer.LEGACY)
]

ACCIDENTS = ("flip", "cut", "swap", "repeat", "drop", "zero", "insert", "overwrite", "preallocate")


class Cut(io.BytesIO):
    """A file that is cut to a size when it has been read some times."""

    def __init__(self, raw: bytes, size: int, reads: int) -> None:
        super().__init__(raw)
        self._size = size
        self._reads = reads

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as BytesIO does."""
        if not self._reads:
            self.truncate(self._size)
        self._reads -= 1
        return super().read(size)


def read(
    raw: bytes, *, next_base: int | None, deep: bool = False, chunk: int = window.CHUNK, file: io.BytesIO | None = None
) -> tuple[list[Batch], list[Fault]]:
    """The batches and the faults of a segment, read so many bytes at once."""
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
    return [one for one in found if isinstance(one, Batch)], [one for one in found if isinstance(one, Fault)]


def is_part(part: Sequence[object], whole: Iterable[object]) -> bool:
    """Whether all of one sequence stands in another, in the same order."""
    rest = iter(whole)
    return all(one in rest for one in part)


@st.composite
def segments(draw: st.DrawFn) -> list[bytes]:
    """The entries of a healthy segment: any formats and codecs, gaps between them, no two with the same content."""
    offset, entries = BASE, []
    for number, (magic, codec) in enumerate(draw(st.lists(st.sampled_from(FORMATS), min_size=1, max_size=12))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 50]))
        count = 1 if codec == "none" and magic < 2 else draw(st.integers(1, 6))
        value = draw(st.binary(max_size=60)) + number.to_bytes(2)
        entries.append(writer.entry(magic, codec, offset, count, timestamp=1_000 + number, value=value))
        offset += count
    return entries


@st.composite
def damaged(draw: st.DrawFn, entries: list[bytes], accidents: int) -> bytes:
    """The segment after some accidents."""
    for _ in range(accidents):
        raw = bytearray(b"".join(entries))
        place = st.integers(0, max(len(entries) - 1, 0))
        position = draw(st.integers(0, max(len(raw) - 1, 0)))
        match draw(st.sampled_from(ACCIDENTS)):
            case "swap" if len(entries) > 1:
                one, other = draw(place), draw(place)
                entries = list(entries)
                entries[one], entries[other] = entries[other], entries[one]
                continue
            case "repeat" if entries:
                entries = [*entries[: (at := draw(place)) + 1], *entries[at:]]
                continue
            case "drop" if entries:
                entries = [*entries[: (at := draw(place))], *entries[at + 1 :]]
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
        entries = [bytes(raw)]
    return b"".join(entries)


@settings(max_examples=1_500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(entries=segments(), sealed=st.booleans(), deep=st.booleans(), choices=st.data())
def test_damage_is_found_or_does_no_harm(
    entries: list[bytes], *, sealed: bool, deep: bool, choices: st.DataObject
) -> None:
    """No accident makes reading fail, and none goes by unseen but those that leave a log as Kafka may write it."""
    next_base = BASE + 2_000 if sealed else None
    before, none = read(b"".join(entries), next_base=next_base, deep=deep)
    assert not none
    assert len(before) == len(entries)
    accidents = choices.draw(st.integers(1, 3))
    raw = choices.draw(damaged(entries, accidents))
    chunk = choices.draw(st.sampled_from([window.CHUNK, 61, 200]))
    after, faults = read(raw, next_base=next_base, deep=deep, chunk=chunk)
    if not faults:
        # Dropped or cut off at a boundary: gaps are legal, and so is a shorter log. Offsets of batches are covered by
        # no checksum; one that is changed and still rises can be told by comparison with another replica only, and so
        # can, with a second accident, a batch that stands twice or in another place.
        crcs = [[one.crc for one in each] for each in (after, before)]
        assert is_part(*crcs) if accidents == 1 else set(crcs[0]) <= set(crcs[1])
        offsets = [offset for one in after for offset in (one.first_offset, one.last_offset)]
        assert all(one <= two for one, two in pairwise(offsets))
        assert all(one.last_offset < two.first_offset for one, two in pairwise(after))
        assert not offsets or (offsets[0] >= BASE and offsets[-1] < (next_base or BASE + 2**31))
        rest = raw[sum(one.size for one in after) :]
        assert not rest or (not sealed and not rest.strip(b"\0"))
    for fault in faults:
        assert fault.label in LABELS
        assert 0 <= fault.position < len(raw)
        assert fault.size > 0
        assert fault.position + fault.size <= len(raw)
        assert fault.kafka
        assert fault.detail


@settings(max_examples=300, deadline=None)
@given(entries=segments(), garbage=st.binary(min_size=1, max_size=300), place=st.data())
def test_what_stands_behind_garbage_is_found_again(entries: list[bytes], garbage: bytes, place: st.DataObject) -> None:
    """Bytes put between two entries cost none of the entries."""
    at = place.draw(st.integers(0, len(entries)))
    before, _ = read(b"".join(entries), next_base=BASE + 2_000)
    raw = b"".join([*entries[:at], garbage, *entries[at:]])
    after, faults = read(raw, next_base=BASE + 2_000)
    assert [one.crc for one in after] == [one.crc for one in before]
    assert [(one.label, one.position, one.size) for one in faults] == [
        ("garbage" if garbage.strip(b"\0") else "zeros", len(b"".join(entries[:at])), len(garbage))
    ]


@settings(max_examples=300, deadline=None)
@given(entries=segments(), cut=st.data())
def test_a_cut_tail_is_torn_where_the_log_ends_and_garbage_where_it_goes_on(
    entries: list[bytes], cut: st.DataObject
) -> None:
    """The last entry cut short is what a crash leaves in an active segment, and corruption in a sealed one."""
    whole = b"".join(entries)
    begin = len(whole) - len(entries[-1])
    end = cut.draw(st.integers(begin + 8, len(whole) - 1))
    for next_base, label in ((None, "torn_tail"), (BASE + 2_000, "garbage")):
        after, (fault,) = read(whole[:end], next_base=next_base)
        assert len(after) == len(entries) - 1
        assert (fault.label, fault.position, fault.size) == (label, begin, end - begin)


@settings(max_examples=500, deadline=None)
@given(entries=segments(), sealed=st.booleans(), choices=st.data())
def test_a_file_that_is_cut_while_it_is_read_ends_there(
    entries: list[bytes], *, sealed: bool, choices: st.DataObject
) -> None:
    """A follower truncates, at any moment; what had been read by then is given."""
    raw = choices.draw(damaged(entries, choices.draw(st.integers(0, 2))))
    file = Cut(raw, choices.draw(st.integers(0, len(raw))), choices.draw(st.integers(0, 20)))
    whole, _ = read(raw, next_base=BASE + 2_000 if sealed else None)
    after, faults = read(raw, next_base=BASE + 2_000 if sealed else None, chunk=61, file=file)
    assert {one.crc for one in after} <= {one.crc for one in whole}
    assert all(one.size > 0 for one in faults)
