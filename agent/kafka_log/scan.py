"""A segment's log read from its first byte to its last: its batches, their order, and how the log ends.

Which order and which ends a broker accepts: kafka.log.LogSegment.recover, as described in `agent.kafka_log.faults`.
"""

from collections.abc import Iterator

from agent.kafka_log import Batch, faults
from agent.kafka_log.batch_formats import MAX_ROWS, BatchColumns, read_batch, read_columns, to_columns
from agent.kafka_log.faults import Fault
from agent.kafka_log.window import HEADER_BYTES, RandomAccess, Window, unpack_header

MAX_RELATIVE_OFFSET = 0x7FFFFFFF
"""How far an offset can be above its segment's base offset, because an index holds 32 bits (OffsetIndex)."""


def scan(
    file: RandomAccess,
    size: int,
    *,
    base_offset: int,
    next_base: int | None,
    active: bool,
    start: int = 0,
    deep: bool = False,
) -> Iterator[Batch | Fault]:
    """Yield a log's batches in file order together with the faults found; never raises because of its content.

    size: bytes to read. next_base: the base offset of the next segment, None if there is none. active: the log's last
    segment, whose end may be torn or preallocated. start: the byte to begin at, where a batch begins. deep: check the
    records of format 2 batches too (many times slower), although their checksum covers them; formats 0 and 1 are always
    decompressed, because only the inner messages hold a wrapper's first offset.

    A batch's faults come before it, those of a range of batches after the range. A batch with a wrong checksum yields
    only a fault. Legal, and no fault: gaps between offsets (compaction, transactions), mixed formats, empty batches
    kept by compaction, zeros up to the end of an active segment (log.preallocate).
    """
    for item in scan_columns(
        file, size, base_offset=base_offset, next_base=next_base, active=active, start=start, deep=deep
    ):
        if isinstance(item, BatchColumns):
            yield from item.to_batches()
        else:
            yield item


def scan_columns(
    file: RandomAccess,
    size: int,
    *,
    base_offset: int,
    next_base: int | None,
    active: bool,
    start: int = 0,
    deep: bool = False,
) -> Iterator[BatchColumns | Fault]:
    """Yield what scan() does in the same order, with the batches as columns of at most MAX_ROWS rows."""
    window = Window(file, size)
    limit = base_offset + MAX_RELATIVE_OFFSET if next_base is None else next_base - 1
    order = _Order(base_offset, limit)
    pending: list[Batch] = []
    position = columns_from = start
    while position < window.size:
        columns: BatchColumns | None = None
        batch: Batch | None = None
        found: list[Fault] = []
        if position >= columns_from and not deep and order.stray is None:
            columns = read_columns(window, position, order.last_offset, limit)
            # The batch that ended the columns is read by itself, and so is the rest of the window: if every other batch
            # is damaged, the remaining headers would be decoded again for each of them.
            columns_from = window.start + len(window.bytes)
        if columns is not None:
            position = columns.end
            order.skip(columns)
        else:
            batch, found, position = _read_next(window, position, order, active=active, deep=deep)
        if pending and (columns is not None or found or len(pending) == MAX_ROWS):
            yield to_columns(pending)
            pending.clear()
        yield from found
        if columns is not None:
            yield columns
        elif batch is not None:
            pending.append(batch)
    if pending:
        yield to_columns(pending)
    yield from order.take_stray_fault()


def _read_next(
    window: Window, position: int, order: "_Order", *, active: bool, deep: bool
) -> tuple[Batch | None, list[Fault], int]:
    """Return the batch at `position`, if there is one, its faults, and where to go on."""
    inner_faults: list[Fault] = []
    batch = read_batch(window, position, inner_faults, deep=deep)
    if batch is not None:
        return batch, [*order.add(batch), *inner_faults], position + batch.size
    found = order.take_stray_fault()
    position, fault = _skip_damage(window, position, order, active=active)
    # Its size is 0 if the file was truncated meanwhile.
    return None, [*found, fault] if fault is not None and fault.size > 0 else found, position


class _Order:
    """How far the batches have come.

    last_offset: the last one within the segment's range. timestamp: the last one read, ms. stray: the first and the
    last of the current range of batches outside the segment's range.
    """

    def __init__(self, base_offset: int, limit: int) -> None:
        self._base_offset = base_offset
        self.limit = limit
        self.last_offset = base_offset - 1
        self.timestamp = -1
        self.stray: tuple[Batch, Batch] | None = None

    def skip(self, columns: BatchColumns) -> None:
        """Take note of batches known to be in order."""
        self.last_offset = int(columns.last_offset[-1])
        timestamps = columns.timestamp[columns.timestamp >= 0]
        if len(timestamps):
            self.timestamp = int(timestamps[-1])

    def add(self, batch: Batch) -> list[Fault]:
        """Take note of a batch; return what is wrong with its offsets, or with those of the batches before it."""
        found = self._check(batch)
        if batch.timestamp >= 0:
            self.timestamp = batch.timestamp
        return found

    def _check(self, batch: Batch) -> list[Fault]:
        if batch.first_offset > self.last_offset and batch.last_offset <= self.limit and self.stray is None:
            self.last_offset = batch.last_offset
            return []
        if batch.first_offset < self._base_offset or batch.last_offset > self.limit:
            # Reported once for a whole range, and the next batch is not compared with it: a flipped bit is one fault.
            self.stray = (self.stray[0] if self.stray else batch, batch)
            return []
        found = self.take_stray_fault()
        if batch.first_offset <= self.last_offset:
            found.append(
                Fault(
                    "offsets_went_back",
                    batch.position,
                    batch.size,
                    {"offset": self.last_offset},
                    {"offset": batch.first_offset},
                    batch.timestamp if batch.timestamp >= 0 else self.timestamp,
                    f"offset {batch.first_offset:,} follows {self.last_offset:,}",
                    faults.BATCH_DECREASE,
                )
            )
        self.last_offset = batch.last_offset
        return found

    def take_stray_fault(self) -> list[Fault]:
        """Return the fault of the range of batches outside the segment that ends here, if there is one."""
        if self.stray is None:
            return []
        first, last = self.stray
        self.stray = None
        is_below = first.first_offset < self._base_offset
        return [
            Fault(
                "outside_segment",
                first.position,
                last.position + last.size - first.position,
                {"base_offset": self._base_offset} if is_below else {"offset": self.limit},
                {"offset": first.first_offset, "last_offset": last.last_offset},
                first.timestamp if first.timestamp >= 0 else self.timestamp,
                f"offsets {first.first_offset:,} to {last.last_offset:,} in a segment of {self._base_offset:,} to"
                f" {self.limit:,}",
                faults.OUTSIDE,
            )
        ]


def _skip_damage(window: Window, position: int, order: _Order, *, active: bool) -> tuple[int, Fault | None]:
    """Return where to go on after a byte at which no batch with a correct checksum begins, and the fault there."""
    size = window.batch_size(position)
    if size is not None:
        end = position + size
        # Only this batch is damaged if its length leads to another batch, or to the end of a sealed segment.
        if window.has_batch(end) or (end == window.size and not active):
            return end, _crc_mismatch(window, position, size, order)
    if window.is_zero(position, window.size):
        return window.size, None if active else _gap("zeros", window.size, position, order, {})
    next_position = window.find_batch(position + 1, _last_inner_offset(window, position, order), order.limit)
    if next_position is None:
        label = "torn_tail" if active else "garbage"
        return window.size, _gap(label, window.size, position, order, {})
    label = "zeros" if window.is_zero(position, next_position) else "garbage"
    at = window.load(next_position, HEADER_BYTES)
    next_offset = unpack_header(window.bytes, at)[0]
    return next_position, _gap(label, next_position, position, order, {"next_offset": next_offset})


def _last_inner_offset(window: Window, position: int, order: _Order) -> int:
    """Return the offset above which a batch cannot be a message inside the damaged or torn wrapper at `position`.

    Snappy and LZ4 store what they cannot compress, so that whole messages can be found inside a wrapper.
    """
    at = window.load(position, HEADER_BYTES)
    offset, _, _, magic, attributes = unpack_header(window.bytes, at)
    is_wrapper = magic in (0, 1) and attributes & 7
    return int(offset) if is_wrapper and order.last_offset < offset <= order.limit else order.last_offset


def _crc_mismatch(window: Window, position: int, size: int, order: _Order) -> Fault:
    at = window.load(position, 21)
    offset, _, stored, magic, _ = unpack_header(window.bytes, at)
    if magic == 2:
        stored = int.from_bytes(window.bytes[at + 17 : at + 21])
    computed = window.checksum(position + (21 if magic == 2 else 16), position + size, magic)
    return Fault(
        "crc_mismatch",
        position,
        size,
        {"offset": order.last_offset, "crc": stored},
        {"offset": offset, "crc": computed},
        order.timestamp,
        f"the batch of {size} bytes has the checksum {stored:#010x}, computed is {computed:#010x}",
        faults.BATCH_CORRUPT,
    )


def _gap(label: str, end: int, position: int, order: _Order, current: dict[str, int | str]) -> Fault:
    details = {
        "zeros": f"{end - position} zero bytes",
        "garbage": f"{end - position} bytes that are no batch",
        "torn_tail": f"the last {end - position} bytes are an incomplete batch, or its checksum is wrong",
    }
    return Fault(
        label,
        position,
        end - position,
        {"offset": order.last_offset},
        current,
        order.timestamp,
        details[label],
        faults.TORN if label == "torn_tail" else faults.NOT_BATCHES,
    )
