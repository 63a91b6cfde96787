"""Kafka's log as it lies on a broker's disk, decoded: batches, faults, indexes, log directories, digests.

Formats: Kafka's message formats 0, 1 and 2 ("magic"), as in org.apache.kafka.common.record. Reads files, writes none
but digests; knows nothing of Spark, incidents or the network.
"""

from typing import NamedTuple


class Batch(NamedTuple):
    """One entry of a log: a record batch (format 2), a wrapper message or a plain message (formats 0 and 1).

    position, size: bytes in the file, header included. first_offset, last_offset: of its records; a wrapper's first is
    known only when it is decompressed. records: how many it holds (in format 2 as its header says). leader_epoch: -1
    below format 2. crc: as stored, unsigned. timestamp: its largest, ms; -1 where the format or the writer gives none.
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


class Fault(NamedTuple):
    """Something wrong in a file of the log.

    label: one of LABELS. position: the byte at which it begins; size: how many bytes it concerns, as far as known.
    previous, current: what was expected and what stands there, by name ({"offset": 7999} -> {"offset": 7852}).
    timestamp: of the records concerned (else of those before), ms; -1 where unknown. kafka: what a broker does then.
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
    "offsets_went_back": "an offset is not above the one before it, in the file or inside a compressed batch",
    "crc_mismatch": "the stored checksum is not that of the bytes",
    "undecodable": "the checksum is right and yet the records cannot be read",
    "garbage": "bytes that are no batch, with batches or the end of a sealed segment behind them",
    "torn_tail": "the last batch of a log is cut short, as a crash leaves it: a broker cuts it off at its next start",
    "zeros": "zero bytes where batches should be, other than a preallocated tail",
    "outside_segment": "offsets below the segment's base offset, or in the range of the next segment",
    "index_wrong": "an index entry points at a byte where no batch with such an offset begins, or entries do not rise",
}
"""Every label of a fault, with what it means."""
