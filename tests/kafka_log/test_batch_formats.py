"""Reading many batches as columns gives what reading them one by one gives."""

import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.kafka_log import Batch, scan, window
from agent.kafka_log.batch_formats import MAX_ROWS, BatchColumns, concatenate, to_columns
from agent.kafka_log.faults import Fault
from tests.kafka_log import writer
from tests.kafka_log.test_corruption import BASE, damaged, segments

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def read(raw: bytes, next_base: int | None) -> list[Batch | Fault]:
    """Return all batches and faults of a segment."""
    return list(scan.scan(io.BytesIO(raw), len(raw), base_offset=BASE, next_base=next_base, active=next_base is None))


@settings(max_examples=500, deadline=None, suppress_health_check=SLOW)
@given(batches=segments(), sealed=st.booleans(), choices=st.data())
def test_columns_hold_what_is_read_one_by_one(batches: list[bytes], *, sealed: bool, choices: st.DataObject) -> None:
    """Healthy or damaged, whatever the size of the window: the same batches and faults in the same order."""
    raw = choices.draw(damaged(batches, choices.draw(st.integers(0, 3))))
    next_base = BASE + 2_000 if sealed else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "read_columns", lambda *_: None)
        one_by_one = read(raw, next_base)
    for chunk in (window.CHUNK, 200):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(window, "CHUNK", chunk)
            assert read(raw, next_base) == one_by_one


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_healthy_batches_are_read_as_columns(magic: int) -> None:
    """Including compressed batches of format 2, whose header is enough."""
    codec = "zstd" if magic == 2 else "none"
    raw = b"".join(writer.entry(magic, codec, BASE + number, 1) for number in range(100))
    items = list(scan.scan_columns(io.BytesIO(raw), len(raw), base_offset=BASE, next_base=None, active=True))
    assert [item.row_count if isinstance(item, BatchColumns) else item for item in items] == [100]


def test_columns_have_a_bounded_number_of_rows() -> None:
    """Read as columns, and one by one after a fault."""
    raw = b"".join(writer.message(BASE + number, None, magic=0) for number in range(MAX_ROWS + 10))
    for file in (raw, b"\1" * 30 + raw):
        items = list(scan.scan_columns(io.BytesIO(file), len(file), base_offset=BASE, next_base=None, active=True))
        counts = [item.row_count for item in items if isinstance(item, BatchColumns)]
        assert sum(counts) == MAX_ROWS + 10
        assert max(counts) <= MAX_ROWS


@given(raw_batches=segments())
def test_batches_survive_conversion_to_columns(raw_batches: list[bytes]) -> None:
    batches = [item for item in read(b"".join(raw_batches), None) if isinstance(item, Batch)]
    assert list(to_columns(batches).to_batches()) == batches
    joined = concatenate([to_columns(batches), to_columns(batches[:1])])
    assert list(joined.to_batches()) == [*batches, batches[0]]
