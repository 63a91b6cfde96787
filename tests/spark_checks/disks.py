"""Brokers' log directories written byte by byte."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.kafka_log import writer

STARTED = 1_605_873_600_000
"""The time of the record at offset 0, ms; each offset is a millisecond later. Segments are written for a day."""


def entry(magic: int, codec: str, first: int, count: int, text: str = "") -> bytes:
    """Return entries of a log at consecutive offsets; another text makes other records."""
    return writer.entry(
        magic, codec, first, count, timestamp=STARTED + first, value=b"%d of %b" % (first, text.encode())
    )


def log(magic: int, codec: str, end: int, *, start: int = 0, size: int = 10, text: str = "") -> list[bytes]:
    """Return the entries of a log from start to below end, `size` records each."""
    return [entry(magic, codec, first, min(size, end - first), text) for first in range(start, end, size)]


def write(
    broker: Path,
    topic: str,
    number: int,
    segments: Mapping[int, bytes],
    *,
    high_watermark: int | None = None,
    log_start: int | None = None,
    cleaned: int | None = None,
) -> Path:
    """Write a partition with these segments, by base offset, and add it to the broker's checkpoints."""
    folder = broker / f"{topic}-{number}"
    folder.mkdir(parents=True)
    for base, raw in segments.items():
        path = folder / f"{base:020d}.log"
        path.write_bytes(raw)
        os.utime(path, (STARTED / 1_000 + 86_400,) * 2)
    for name, offset in (
        ("replication-offset-checkpoint", high_watermark),
        ("log-start-offset-checkpoint", log_start),
        ("cleaner-offset-checkpoint", cleaned),
    ):
        if offset is not None:
            path = broker / name
            lines = [*(path.read_text().splitlines()[2:] if path.exists() else ()), f"{topic} {number} {offset}"]
            path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
    return folder
