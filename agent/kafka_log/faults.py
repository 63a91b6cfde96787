"""Faults of log and index files, and what a broker and its consumers do when they meet each of them.

The behaviour was read in kafka.log.{Log,LogSegment,OffsetIndex,TimeIndex} of 0.9.0.1 and 0.11.0.0, in LogSegment and
OffsetIndex of every line from 0.10 to 2.3, and in kafka.log.LogLoader and
org.apache.kafka.storage.internals.log.LogSegment of 3.9.0.
"""

from collections.abc import Sequence
from typing import NamedTuple

from agent.kafka_log import Batch


class Fault(NamedTuple):
    """A defect in a log or index file.

    label: one of LABELS. position: the byte at which it begins; size: the bytes it affects, as far as known.
    previous, current: the expected and the actual values by name ({"offset": 7999} -> {"offset": 7852}). timestamp: of
    the affected records (else of those before), ms; -1 if unknown. kafka: how brokers and consumers react.
    """

    label: str
    position: int
    size: int
    previous: dict[str, int | str]
    current: dict[str, int | str]
    timestamp: int
    detail: str
    kafka: str


LABELS = {
    "offsets_went_back": "an offset is not above the previous one, between batches or inside a compressed batch",
    "crc_mismatch": "the stored checksum does not match the bytes",
    "undecodable": "the checksum matches, but the records cannot be decoded",
    "garbage": "bytes that are no batch, followed by batches or by the end of a sealed segment",
    "torn_tail": "the last batch of a log is incomplete after a crash; the broker truncates it at its next start",
    "zeros": "zero bytes in place of batches, other than a preallocated tail",
    "outside_segment": "offsets below the segment's base offset, or in the range of the next segment",
    "index_wrong": "an index entry points to a byte where no batch with that offset begins, or entries do not increase",
}
"""Every fault label with its meaning."""

BATCH_DECREASE = (
    "Consumers that have read up to here skip the offsets they already received. A broker that rebuilds this segment's "
    "index and adds an entry here fails with InvalidOffsetException (KAFKA-3919; up to 1.x it indexes first offsets, "
    "since 2.0 last offsets): when recovering after an unclean shutdown it empties this segment and deletes those "
    "after it, and if an index file is missing or corrupt it does not start."
)
INNER_DECREASE = (
    "No broker notices: recovery and the index use only a batch's first or last offset. Consumers that have read up to "
    "here skip the records whose offsets they already received."
)
BATCH_CORRUPT = (
    "When recovering this segment after an unclean shutdown, a broker truncates the log at this byte and deletes the "
    "segments after it (LogSegment.recover). Until then it serves the batch: consumers fail with "
    "CorruptRecordException unless check.crcs is false, and followers cannot append it."
)
INNER_CORRUPT = (
    "Brokers keep it because they check only the outer checksum; consumers fail on the inner message with "
    "CorruptRecordException unless check.crcs is false."
)
UNDECODABLE = (
    "Brokers keep and replicate it because recovery checks only the checksum, which matches; consumers and the log "
    "cleaner fail when they read its records."
)
NOT_BATCHES = (
    "Consumers that reach this byte fail or stop. When recovering this segment after an unclean shutdown, a broker "
    "truncates the log here and deletes the segments after it (LogSegment.recover), including intact batches behind "
    "this byte."
)
TORN = (
    "At its next start after an unclean shutdown the broker truncates the log here (LogSegment.recover) and, as a "
    "follower, fetches the rest from its leader again; what no other replica holds is lost. Until then none is served."
)
OUTSIDE = (
    "A fetch reads the segment with the greatest base offset not above the requested offset, so these records are not "
    "found by their offsets. An index cannot hold them: since 2.0 a broker that loads more than 2147483647 offsets "
    "above the base splits the segment (KAFKA-6264); before, it wrote wrong index entries."
)
INDEX = (
    "A broker trusts its index after a clean shutdown: a fetch that starts from this entry reads at the wrong byte and "
    "fails or misses records. Delete the index file while the broker is stopped; it is rebuilt at the next start."
)
TIME_INDEX = (
    "A broker trusts its time index after a clean shutdown: offset lookups by time and deletion by age can be wrong. "
    "Delete the index file while the broker is stopped; it is rebuilt at the next start."
)


def inner_offsets_decrease(batch: Batch, decreases: Sequence[tuple[int, int]]) -> Fault:
    """Return the fault of a batch in which offsets decrease, given each (previous, next) pair."""
    before, after = decreases[0]
    more = f", and at {len(decreases) - 1} more places" if len(decreases) > 1 else ""
    return Fault(
        "offsets_went_back",
        batch.position,
        batch.size,
        {"offset": before},
        {"offset": after},
        batch.timestamp,
        f"inside the {batch.codec} batch offset {after:,} follows {before:,}{more}",
        INNER_DECREASE,
    )


def undecodable(batch: Batch, detail: str) -> Fault:
    """Return the fault of a batch whose checksum matches but whose content cannot be decoded."""
    return Fault(
        "undecodable",
        batch.position,
        batch.size,
        {},
        {"offset": batch.last_offset, "codec": batch.codec},
        batch.timestamp,
        detail,
        UNDECODABLE,
    )
