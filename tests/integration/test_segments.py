"""Segments written by real brokers are read as Kafka's own DumpLogSegments prints them, byte for byte."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.kafka_log import Batch
from agent.kafka_log.faults import Fault
from agent.kafka_log.log_directory import Segment, list_partitions
from agent.kafka_log.scan import scan
from agent.kafka_log.segments import LocatedFault, read_rows
from testbed import corpus
from testbed.corpus import STATES, Specimen
from testbed.dump_log import Dump, DumpedBatch, dump

pytestmark = pytest.mark.integration


class Corpus(NamedTuple):
    """All segments on the brokers' disks in one state, with the vendor tool's dump of each."""

    version: str
    segments: Sequence[Segment]
    dumps: Sequence[Dump]


def _corpus(version: str, wanted: Sequence[corpus.Recipe]) -> Iterator[dict[str, Corpus]]:
    """Yield the segments that brokers of a version wrote, by the state of the log."""
    directory = Path(tempfile.mkdtemp(prefix=f"backflow-corpus-{version}-"))
    try:
        specimens = corpus.make(directory, version, wanted)
        yield {state: _dump([specimen for specimen in specimens if specimen.state == state]) for state in STATES}
    finally:
        shutil.rmtree(directory)


def _dump(specimens: Sequence[Specimen]) -> Corpus:
    disks = sorted({(specimen.broker, specimen.directory.parent) for specimen in specimens})
    segments = [
        segment
        for broker, disk in disks
        for partition in list_partitions(broker, str(disk))
        for segment in partition.segments
    ]
    files = [Path(segment.directory, segment.file) for segment in segments]
    assert sorted(files) == sorted(log for specimen in specimens for log in specimen.logs)
    dumps = dump(specimens[0].version, files, deep=True)
    return Corpus(specimens[0].version, segments, [dumps[file] for file in files])


@pytest.fixture(scope="module", params=["0.11.0.0"])
def few(request: pytest.FixtureRequest) -> Iterator[dict[str, Corpus]]:
    """Return each format with each codec, as Kafka 0.11.0.0 writes them."""
    codecs = {f"magic-{magic}-{codec}" for magic in corpus.FORMATS.values() for codec in corpus.CODECS}
    yield from _corpus(request.param, [recipe for recipe in corpus.recipes(request.param) if recipe.topic in codecs])


@pytest.fixture(scope="module", params=["0.11.0.0", "3.9.1", "4.1.1"])
def whole(request: pytest.FixtureRequest) -> Iterator[dict[str, Corpus]]:
    """Return everything that a version can write."""
    yield from _corpus(request.param, corpus.recipes(request.param))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_every_format_and_codec_is_read_as_kafka_reads_it(few: dict[str, Corpus], state: str) -> None:
    """Positions, sizes, offsets, counts and checksums of every batch; only lost power leaves faults."""
    _assert_same(few[state], state)
    kinds = {(batch.magic, batch.codec) for log in few[state].dumps for batch in log.batches}
    assert kinds >= {(magic, codec) for magic in corpus.FORMATS.values() for codec in corpus.CODECS}


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", STATES)
def test_everything_brokers_write_is_read_as_kafka_reads_it(whole: dict[str, Corpus], state: str) -> None:
    """Including transactions, compaction, preallocation, format upgrades and librdkafka's compression."""
    _assert_same(whole[state], state)


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_corpus_holds_the_cases_it_is_made_for(whole: dict[str, Corpus]) -> None:
    """Transactions, gaps left by the cleaner, preallocated tails, indexes with entries."""
    version = whole["killed"].version
    batches = [batch for log in whole["stopped"].dumps for batch in log.batches]
    assert any(batch.transactional for batch in batches)
    gaps = [batch for batch in batches if batch.offsets and len(batch.offsets) <= batch.last_offset - batch.offsets[0]]
    assert gaps or version == "4.1.1"
    if version == "0.11.0.0":
        assert {batch.magic for batch in gaps} == set(corpus.FORMATS.values())
        assert {(batch.magic, batch.codec) for batch in batches} == set(product(corpus.FORMATS.values(), corpus.CODECS))
    else:
        assert {batch.codec for batch in batches} == {*corpus.CODECS, "zstd"}
    killed = zip(whole["killed"].dumps, whole["killed"].segments, strict=True)
    assert any(log.error and log.readable_bytes < segment.size for log, segment in killed)
    indexes = [Path(segment.directory, segment.file).with_suffix(".index") for segment in whole["killed"].segments]
    assert sum(len(index.entries) for index in dump(version, indexes).values()) > len(indexes)


def _assert_same(read: Corpus, state: str) -> None:
    torn = 0
    for segment, dumped in zip(read.segments, read.dumps, strict=True):
        faults: list[Fault] = []
        batches: list[Batch] = []
        for deep in (True, False):
            with Path(segment.directory, segment.file).open("rb") as log:
                items = list(
                    scan(
                        log,
                        segment.size,
                        base_offset=segment.base_offset,
                        next_base=segment.next_base,
                        active=segment.active,
                        deep=deep,
                    )
                )
            faults = [item for item in items if isinstance(item, Fault)]
            batches = [item for item in items if isinstance(item, Batch)]
            expected = [_to_batch(theirs, ours) for theirs, ours in zip(dumped.batches, batches, strict=True)]
            assert batches == expected, segment
            assert all(batch.valid for batch in dumped.batches)
        # The vendor's tool stops at a preallocated tail, which is not a fault.
        tails = [("torn_tail", dumped.readable_bytes, dumped.invalid_tail)] if dumped.invalid_tail else []
        assert [(fault.label, fault.position, fault.size) for fault in faults] == tails, segment
        torn += len(tails)
        all_faults: list[LocatedFault] = []
        for _ in read_rows(segment, all_faults.append):
            pass
        assert [located.fault.label for located in all_faults] == [label for label, _, _ in tails], (
            segment,
            all_faults,
        )
    assert (torn > 0) == (state == "torn")


def _to_batch(dumped: DumpedBatch, ours: Batch) -> Batch:
    """Return a batch of the vendor tool's dump as a Batch.

    Format 2 batches that were compacted keep their first and last offsets; 0.11 prints neither their record counts,
    which are then taken from the records, nor whether they are control batches.
    """
    first = dumped.offsets[0] if dumped.first_offset is None else dumped.first_offset
    return Batch(
        position=dumped.position,
        size=dumped.size,
        magic=dumped.magic,
        codec=dumped.codec,
        first_offset=first,
        last_offset=dumped.last_offset,
        records=len(dumped.offsets),
        leader_epoch=dumped.epoch,
        crc=dumped.crc,
        timestamp=dumped.timestamp,
        transactional=dumped.transactional,
        control=ours.control if dumped.control is None else dumped.control,
    )
