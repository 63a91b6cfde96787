"""Segments that real brokers wrote: what is read of them is what Kafka's own DumpLogSegments prints, byte for byte."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from agent.kafka_log import Batch, Fault
from agent.kafka_log.log_directory import Segment, partitions
from agent.kafka_log.rows import Found, rows
from agent.kafka_log.scan import scan
from testbed import corpus
from testbed.corpus import STATES, Specimen
from testbed.dump_log import Dump, DumpedBatch, dump

pytestmark = pytest.mark.integration


class Corpus(NamedTuple):
    """Every segment of the brokers' disks in one state, with what the vendor's tool says of it."""

    version: str
    segments: Sequence[Segment]
    dumps: Sequence[Dump]


def _corpus(version: str, wanted: Sequence[corpus.Recipe]) -> Iterator[dict[str, Corpus]]:
    """What the brokers of a version wrote, by the state in which it was left."""
    directory = Path(tempfile.mkdtemp(prefix=f"backflow-corpus-{version}-"))
    try:
        specimens = corpus.make(directory, version, wanted)
        yield {state: _examined([one for one in specimens if one.state == state]) for state in STATES}
    finally:
        shutil.rmtree(directory)


def _examined(specimens: Sequence[Specimen]) -> Corpus:
    disks = sorted({(one.broker, one.directory.parent) for one in specimens})
    segments = [
        segment
        for broker, disk in disks
        for partition in partitions(broker, str(disk))
        for segment in partition.segments
    ]
    files = [Path(one.directory, one.file) for one in segments]
    assert sorted(files) == sorted(log for one in specimens for log in one.logs)
    dumps = dump(specimens[0].version, files, deep=True)
    return Corpus(specimens[0].version, segments, [dumps[file] for file in files])


@pytest.fixture(scope="module", params=["0.11.0.0"])
def few(request: pytest.FixtureRequest) -> Iterator[dict[str, Corpus]]:
    """Each format with each codec, as Kafka 0.11.0.0 writes them."""
    codecs = {f"magic-{magic}-{codec}" for magic in corpus.FORMATS.values() for codec in corpus.CODECS}
    yield from _corpus(request.param, [one for one in corpus.recipes(request.param) if one.topic in codecs])


@pytest.fixture(scope="module", params=["0.11.0.0", "3.9.1", "4.1.1"])
def whole(request: pytest.FixtureRequest) -> Iterator[dict[str, Corpus]]:
    """All that a version can write."""
    yield from _corpus(request.param, corpus.recipes(request.param))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_every_format_and_codec_is_read_as_kafka_reads_it(few: dict[str, Corpus], state: str) -> None:
    """Positions, sizes, offsets, counts and checksums of every batch; nothing is wrong but where power was lost."""
    _agree(few[state], state)
    kinds = {(batch.magic, batch.codec) for log in few[state].dumps for batch in log.batches}
    assert kinds >= {(magic, codec) for magic in corpus.FORMATS.values() for codec in corpus.CODECS}


@pytest.mark.acceptance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("state", STATES)
def test_all_that_brokers_write_is_read_as_kafka_reads_it(whole: dict[str, Corpus], state: str) -> None:
    """Also transactions, compaction, preallocation, upgrades of the format, records as librdkafka compresses them."""
    _agree(whole[state], state)


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_the_corpus_holds_the_cases_that_it_is_for(whole: dict[str, Corpus]) -> None:
    """Transactions, gaps that the cleaner left, preallocated tails, indexes with entries; what a version can write."""
    version = whole["killed"].version
    batches = [batch for log in whole["stopped"].dumps for batch in log.batches]
    assert any(batch.transactional for batch in batches)
    gaps = [one for one in batches if one.offsets and len(one.offsets) <= one.last_offset - one.offsets[0]]
    assert gaps or version == "4.1.1"
    if version == "0.11.0.0":
        assert {one.magic for one in gaps} == set(corpus.FORMATS.values())
        assert {(one.magic, one.codec) for one in batches} == set(product(corpus.FORMATS.values(), corpus.CODECS))
    else:
        assert {one.codec for one in batches} == {*corpus.CODECS, "zstd"}
    left = zip(whole["killed"].dumps, whole["killed"].segments, strict=True)
    assert any(log.complaint and log.readable_bytes < segment.size for log, segment in left)
    indexes = [Path(one.directory, one.file).with_suffix(".index") for one in whole["killed"].segments]
    assert sum(len(one.entries) for one in dump(version, indexes).values()) > len(indexes)


def _agree(found: Corpus, state: str) -> None:
    torn = 0
    for segment, dumped in zip(found.segments, found.dumps, strict=True):
        faults: list[Fault] = []
        batches: list[Batch] = []
        for deep in (True, False):
            with Path(segment.directory, segment.file).open("rb") as log:
                told = list(
                    scan(
                        log,
                        segment.size,
                        base_offset=segment.base_offset,
                        next_base=segment.next_base,
                        active=segment.active,
                        deep=deep,
                    )
                )
            faults = [one for one in told if isinstance(one, Fault)]
            batches = [one for one in told if isinstance(one, Batch)]
            assert batches == [_as_batch(one, told) for one, told in zip(dumped.batches, batches, strict=True)], segment
            assert all(one.valid for one in dumped.batches)
        # The vendor's tool gives up at a preallocated tail, which is none of the faults.
        tails = [("torn_tail", dumped.readable_bytes, dumped.invalid_tail)] if dumped.invalid_tail else []
        assert [(one.label, one.position, one.size) for one in faults] == tails, segment
        torn += len(tails)
        of_indexes: list[Found] = []
        for _ in rows(segment, of_indexes.append):
            pass
        assert [one.fault.label for one in of_indexes] == [label for label, _, _ in tails], (segment, of_indexes)
    assert (torn > 0) == (state == "torn")


def _as_batch(dumped: DumpedBatch, told: Batch) -> Batch:
    """What the vendor's tool says, as ours would say it.

    Format 2 batches that the cleaner has thinned keep their first and last offsets; 0.11 prints neither their counts,
    which then are their records', nor whether they are markers.
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
        control=told.control if dumped.control is None else dumped.control,
    )
