"""Contents of log files as Kafka's own `DumpLogSegments` prints them: an oracle without our code."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from testbed.artifacts import KAFKA, class_path, java
from testbed.servers import FAST_START

_PAIR = re.compile(r"(\w+): (\S+)")
_TIMESTAMPS = ("CreateTime", "LogAppendTime", "NoTimestampType")
_INVALID_TAIL = re.compile(r"Found (\d+) invalid bytes at the end of ")


class DumpedBatch(NamedTuple):
    """A batch. first_offset, records: None if this Kafka version does not print them.

    offsets, record_crcs: of its records in file order, from the deep iteration; empty without it, and checksums only in
    formats 0 and 1. epoch: -1 below format 2.
    """

    position: int
    size: int
    magic: int
    codec: str
    first_offset: int | None
    last_offset: int
    records: int | None
    epoch: int
    crc: int
    timestamp: int
    valid: bool
    transactional: bool
    control: bool | None
    offsets: tuple[int, ...] = ()
    record_crcs: tuple[int, ...] = ()


class Dump(NamedTuple):
    """The contents of one file.

    A log has batches and invalid_tail, the bytes at its end that are no whole batch. An index has entries: (offset,
    position). error: the exception that ended the dump, or None.
    """

    batches: tuple[DumpedBatch, ...]
    invalid_tail: int
    entries: tuple[tuple[int, int], ...]
    error: str | None

    @property
    def readable_bytes(self) -> int:
        """The position where the last whole batch ends."""
        return self.batches[-1].position + self.batches[-1].size if self.batches else 0


def dump(version: str, files: Iterable[Path], *, deep: bool = False) -> Mapping[Path, Dump]:
    """Dump log and index files with the tool of that Kafka version; their brokers may run.

    deep: read records too (--deep-iteration), which decompresses.
    """
    wanted = list(files)
    plain, errors = _read(version, wanted, deep=False)
    records, deep_errors = _read(version, wanted, deep=True) if deep else ({}, {})
    return {
        file: _parse(plain.get(file, []), records.get(file, []), errors.get(file) or deep_errors.get(file))
        for file in wanted
    }


def _read(version: str, files: list[Path], *, deep: bool) -> tuple[dict[Path, list[str]], dict[Path, str]]:
    """Return the lines about each file, and the exceptions of the files at which the tool ended."""
    sections: dict[Path, list[str]] = {}
    errors = {}
    remaining = files
    while remaining:
        printed, error = _run(version, remaining, deep=deep)
        sections |= (read := _sections(printed))
        if error is None:
            break
        failed = list(read)[-1]
        errors[failed] = error
        remaining = remaining[remaining.index(failed) + 1 :]
    return sections, errors


def _run(version: str, files: list[Path], *, deep: bool) -> tuple[list[str], str | None]:
    """Return the printed lines, and the exception that ended the tool, if any."""
    arguments = ["kafka.tools.DumpLogSegments", *(["--deep-iteration"] if deep else [])]
    arguments += ["--files", ",".join(map(str, files))]
    command = [java(), "-Xmx256m", *FAST_START, "-cp", class_path(KAFKA[version]), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failures = [line for line in done.stderr.splitlines() if line.startswith("Exception in thread")]
    if done.returncode != 0 and not failures:
        msg = f"DumpLogSegments of Kafka {version} ended with {done.returncode}: {done.stderr}"
        raise RuntimeError(msg)
    return done.stdout.splitlines(), failures[0] if failures else None


def _sections(lines: list[str]) -> dict[Path, list[str]]:
    """Return the lines about each file.

    The summaries after the last file ("Mismatches in :FILE") are left out.
    """
    sections: dict[Path, list[str]] = {}
    for line in lines:
        if line.startswith("Dumping "):
            current = sections[Path(line.removeprefix("Dumping "))] = []
        elif line.startswith(("Mismatches in", "Non-consecutive offsets in", "Found timestamp mismatch")):
            break
        elif sections:
            current.append(line)
    return sections


def _parse(plain: list[str], deep: list[str], error: str | None) -> Dump:
    records: dict[int, list[tuple[int, int | None]]] = {}
    position = 0
    for line in deep:
        fields = dict(_PAIR.findall(line))
        if "position" in fields:
            position = int(fields["position"])
        # 0.11 repeats the batch's position in each record's line; since 1.1 records follow their batch, after a bar.
        if "offset" in fields and ("position" in fields or line.startswith("|")):
            crc = fields.get("crc")
            records.setdefault(position, []).append((int(fields["offset"]), None if crc is None else int(crc)))
    batches, entries, invalid = [], [], 0
    for line in plain:
        fields = dict(_PAIR.findall(line))
        tail = _INVALID_TAIL.match(line)
        if tail is not None:
            invalid = int(tail[1])
        elif "magic" in fields:
            batches.append(_batch(fields, records.get(int(fields["position"]), [])))
        elif "position" in fields:
            entries.append((int(fields["offset"]), int(fields["position"])))
    return Dump(tuple(batches), invalid, tuple(entries), error)


def _batch(fields: Mapping[str, str], records: list[tuple[int, int | None]]) -> DumpedBatch:
    first, count, control = fields.get("baseOffset"), fields.get("count"), fields.get("isControl")
    return DumpedBatch(
        position=int(fields["position"]),
        size=int(fields["size"]),
        magic=int(fields["magic"]),
        codec=fields["compresscodec"].lower(),
        first_offset=None if first is None else int(first),
        last_offset=int(fields["lastOffset"] if first is not None else fields["offset"]),
        records=None if count is None else int(count),
        epoch=int(fields.get("partitionLeaderEpoch", -1)),
        crc=int(fields["crc"]),
        timestamp=int(next(fields[name] for name in _TIMESTAMPS if name in fields)),
        valid=fields["isvalid"] == "true",
        transactional=fields.get("isTransactional") == "true",
        control=None if control is None else control == "true",
        offsets=tuple(offset for offset, _ in records),
        record_crcs=tuple(crc for _, crc in records if crc is not None),
    )
