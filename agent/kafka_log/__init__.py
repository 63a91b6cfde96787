"""Kafka's on-disk log format: batches, faults, indexes, log directories and digests of them.

Message formats 0, 1 and 2 ("magic"), as in org.apache.kafka.common.record. This package reads log files and writes
only digests; it does not use Spark, incidents or the network.
"""

from typing import NamedTuple

MAX_OFFSET = (1 << 63) - 1
"""A larger offset can only come from garbage that no checksum covers; it is clamped to this."""


class Batch(NamedTuple):
    """A record batch (format 2), or a wrapper message or plain message (formats 0 and 1).

    As in org.apache.kafka.common.record.RecordBatch, whatever a broker appends as one unit is a batch. position, size:
    bytes in the file, header included. first_offset, last_offset: of its records; the first offset of a wrapper is
    known only after decompression. records: their number (in format 2 as the header says). leader_epoch: -1 below
    format 2. crc: as stored, unsigned. timestamp: the largest one, ms; -1 if the format or the writer gives none.
    """

    position: int
    size: int
    magic: int
    codec: str
    first_offset: int
    last_offset: int
    records: int
    leader_epoch: int
    crc: int
    timestamp: int
    transactional: bool = False
    control: bool = False
