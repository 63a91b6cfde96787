"""A segment's log read from its first byte to its last: its entries, how they follow each other, and how it ends.

What order and ends a broker accepts: kafka.log.LogSegment.recover, as `agent.kafka_log.consequences` tells it.
"""

from collections.abc import Iterator

from agent.kafka_log import Batch, Fault, consequences
from agent.kafka_log.entries import entry
from agent.kafka_log.runs import MOST, Run, run, run_of
from agent.kafka_log.window import HEAD, RandomAccess, Window, head

MOST_RELATIVE = 0x7FFFFFFF
"""How far above a segment's base offset an offset can be, as its index holds 32 bits (OffsetIndex)."""


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
    """The entries of a segment's log in the order of the file, with the faults found; never raises on its content.

    size: bytes to look at. next_base: the base offset of the segment behind it, None where there is none. active: the
    log's last segment, whose end may be torn or preallocated. start: the byte to begin at, where an entry begins.
    deep: look into the records of format 2 batches too (many times slower), though their checksum covers them; formats
    0 and 1 are always looked into, for the first offset of a wrapper stands inside only.

    An entry's faults come before it, those of a run of entries behind the run. Of an entry whose checksum is wrong
    there is only the fault. Legal, and no fault: gaps between offsets (compaction, transactions), mixed formats, empty
    batches that compaction keeps, zeros up to the end of an active segment (log.preallocate).
    """
    for one in scan_runs(
        file, size, base_offset=base_offset, next_base=next_base, active=active, start=start, deep=deep
    ):
        if isinstance(one, Run):
            yield from one.batches()
        else:
            yield one


def scan_runs(
    file: RandomAccess,
    size: int,
    *,
    base_offset: int,
    next_base: int | None,
    active: bool,
    start: int = 0,
    deep: bool = False,
) -> Iterator[Run | Fault]:
    """As scan(), with the entries as columns, a bounded number at a time; the faults stand between those of scan()."""
    window = Window(file, size)
    limit = base_offset + MOST_RELATIVE if next_base is None else next_base - 1
    order = _Order(base_offset, limit)
    singles: list[Batch] = []
    position = one_by_one = start
    while position < window.size:
        several = None
        if position >= one_by_one and not deep and order.stray is None:
            several = run(window, position, order.last, limit)
            # What ends a run is looked at by itself, and so is all else that is held: where every other entry is
            # damaged, all that are behind would be decoded again for each.
            one_by_one = window.start + len(window.bytes)
        if several is not None:
            told: list[Fault] = []
            position = several.end
            order.pass_over(several)
        else:
            single, told, position = _single(window, position, order, active=active, deep=deep)
        if singles and (several is not None or told or len(singles) == MOST):
            yield run_of(singles)
            singles.clear()
        yield from told
        if several is not None:
            yield several
        elif single is not None:
            singles.append(single)
    if singles:
        yield run_of(singles)
    yield from order.outside()


def _single(
    window: Window, position: int, order: "_Order", *, active: bool, deep: bool
) -> tuple[Batch | None, list[Fault], int]:
    """What stands at a position, an entry or none, with its faults, and where to go on."""
    inside: list[Fault] = []
    batch = entry(window, position, inside, deep=deep)
    if batch is None:
        told = order.outside()
        position, lost = _lost(window, position, order, active=active)
        # None is left of it where the file was cut meanwhile.
        return None, [*told, lost] if lost is not None and lost.size > 0 else told, position
    return batch, [*order.follow(batch), *inside], position + batch.size


class _Order:
    """How far the entries have come. last: the last offset within the segment; timestamp: the last one seen."""

    def __init__(self, base_offset: int, limit: int) -> None:
        self._base = base_offset
        self.limit = limit
        self.last = base_offset - 1
        self.timestamp = -1
        self.stray: tuple[Batch, Batch] | None = None

    def pass_over(self, several: Run) -> None:
        """Take in entries that simply rise."""
        self.last = int(several.last_offset[-1])
        times = several.timestamp[several.timestamp >= 0]
        if len(times):
            self.timestamp = int(times[-1])

    def follow(self, batch: Batch) -> list[Fault]:
        """Take in an entry; what is wrong with its offsets, or with those of the entries before it."""
        faults = self._judged(batch)
        if batch.timestamp >= 0:
            self.timestamp = batch.timestamp
        return faults

    def _judged(self, batch: Batch) -> list[Fault]:
        if batch.first_offset > self.last and batch.last_offset <= self.limit and self.stray is None:
            self.last = batch.last_offset
            return []
        if batch.first_offset < self._base or batch.last_offset > self.limit:
            # Told once for a whole run, and what follows is not compared with it: a flipped bit is one fault, not two.
            self.stray = (self.stray[0] if self.stray else batch, batch)
            return []
        faults = self.outside()
        if batch.first_offset <= self.last:
            faults.append(
                Fault(
                    "offsets_went_back",
                    batch.position,
                    batch.size,
                    {"offset": self.last},
                    {"offset": batch.first_offset},
                    batch.timestamp if batch.timestamp >= 0 else self.timestamp,
                    f"offset {batch.first_offset:,} comes after {self.last:,}",
                    consequences.BATCH_WENT_BACK,
                )
            )
        self.last = batch.last_offset
        return faults

    def outside(self) -> list[Fault]:
        """The fault of the run of entries outside of the segment that ends here, if there is one."""
        if self.stray is None:
            return []
        first, last = self.stray
        self.stray = None
        below = first.first_offset < self._base
        return [
            Fault(
                "outside_segment",
                first.position,
                last.position + last.size - first.position,
                {"base_offset": self._base} if below else {"offset": self.limit},
                {"offset": first.first_offset, "last_offset": last.last_offset},
                first.timestamp if first.timestamp >= 0 else self.timestamp,
                f"offsets {first.first_offset:,} to {last.last_offset:,} in a segment of {self._base:,} to"
                f" {self.limit:,}",
                consequences.OUTSIDE,
            )
        ]


def _lost(window: Window, position: int, order: _Order, *, active: bool) -> tuple[int, Fault | None]:
    """Where to go on from a byte at which no entry stands whose checksum is right, and what that is called."""
    size = window.extent(position)
    if size is not None:
        end = position + size
        # The length leads to an entry: only this one is damaged. So it is too where it ends with a sealed segment.
        if window.holds_entry(end) or (end == window.size and not active):
            return end, _damaged(window, position, size, order)
    if window.is_zero(position, window.size):
        return window.size, None if active else _gap("zeros", window.size, position, order, {})
    following = window.next_entry(position + 1, _inside_ends(window, position, order), order.limit)
    if following is None:
        label = "torn_tail" if active else "garbage"
        return window.size, _gap(label, window.size, position, order, {})
    label = "zeros" if window.is_zero(position, following) else "garbage"
    at = window.cover(following, HEAD)
    return following, _gap(label, following, position, order, {"next_offset": head(window.bytes, at)[0]})


def _inside_ends(window: Window, position: int, order: _Order) -> int:
    """The offset above which an entry can be no message inside of the damaged or torn wrapper at a position.

    Snappy and LZ4 leave what they cannot compress as it is, so that whole messages stand in a wrapper to be found.
    """
    at = window.cover(position, HEAD)
    offset, _, _, magic, attributes = head(window.bytes, at)
    wrapper = magic in (0, 1) and attributes & 7
    return int(offset) if wrapper and order.last < offset <= order.limit else order.last


def _damaged(window: Window, position: int, size: int, order: _Order) -> Fault:
    at = window.cover(position, 21)
    offset, _, stored, magic, _ = head(window.bytes, at)
    if magic == 2:
        stored = int.from_bytes(window.bytes[at + 17 : at + 21])
    computed = window.checksum(position + (21 if magic == 2 else 16), position + size, magic)
    return Fault(
        "crc_mismatch",
        position,
        size,
        {"offset": order.last, "crc": stored},
        {"offset": offset, "crc": computed},
        order.timestamp,
        f"the entry of {size} bytes has the checksum {stored:#010x}, its bytes have {computed:#010x}",
        consequences.BATCH_CORRUPT,
    )


def _gap(label: str, end: int, position: int, order: _Order, current: dict[str, int | str]) -> Fault:
    what = {
        "zeros": f"{end - position} zero bytes",
        "garbage": f"{end - position} bytes that are no entry",
        "torn_tail": f"the last {end - position} bytes are no whole entry, or its checksum is wrong",
    }
    return Fault(
        label,
        position,
        end - position,
        {"offset": order.last},
        current,
        order.timestamp,
        what[label],
        consequences.TORN if label == "torn_tail" else consequences.NOT_BATCHES,
    )
