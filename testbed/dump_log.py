"""What the vendor's own `kafka.tools.DumpLogSegments` says of log files: an oracle that shares no code with ours."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from testbed.artifacts import KAFKA, class_path, java
from testbed.zookeeper import FAST_START

_PAIR = re.compile(r"(\w+): (\S+)")
_TIMESTAMPS = ("CreateTime", "LogAppendTime", "NoTimestampType")
_INVALID_TAIL = re.compile(r"Found (\d+) invalid bytes at the end of ")


class DumpedBatch(NamedTuple):
    """One line about a batch. first_offset, records: None where this version does not print them.

    offsets, record_crcs: of its records as the deep iteration lists them, in the file's order; empty without it, and
    checksums only in formats 0 and 1. epoch: -1 below format 2.
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
    """What was said of one file.

    A log has batches and invalid_tail, the bytes at its end that are no whole batch; an
    index has entries: (offset, position). complaint: the exception that ended the dump, None where it came to its end.
    """

    batches: tuple[DumpedBatch, ...]
    invalid_tail: int
    entries: tuple[tuple[int, int], ...]
    complaint: str | None

    @property
    def readable_bytes(self) -> int:
        """Where the last whole batch ends."""
        return self.batches[-1].position + self.batches[-1].size if self.batches else 0


def dump(version: str, files: Iterable[Path], *, deep: bool = False) -> Mapping[Path, Dump]:
    """Let the tool of that Kafka read log and index files; the brokers that own them may run.

    deep: records too (--deep-iteration), which decompresses.
    """
    wanted = list(files)
    plain, complaints = _read(version, wanted, deep=False)
    records, deep_complaints = _read(version, wanted, deep=True) if deep else ({}, {})
    return {
        file: _parse(plain.get(file, []), records.get(file, []), complaints.get(file) or deep_complaints.get(file))
        for file in wanted
    }


def _read(version: str, files: list[Path], *, deep: bool) -> tuple[dict[Path, list[str]], dict[Path, str]]:
    """The lines about each file, and the exception that ended the dump of those at which the tool gave up."""
    sections: dict[Path, list[str]] = {}
    complaints = {}
    left = files
    while left:
        printed, complaint = _run(version, left, deep=deep)
        sections |= (read := _sections(printed))
        if complaint is None:
            break
        failed = list(read)[-1]
        complaints[failed] = complaint
        left = left[left.index(failed) + 1 :]
    return sections, complaints


def _run(version: str, files: list[Path], *, deep: bool) -> tuple[list[str], str | None]:
    """The lines printed, and the exception that ended it before its time."""
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
    """The lines about each file. What follows the last one's are summaries ("Mismatches in :FILE"), left out."""
    sections: dict[Path, list[str]] = {}
    for line in lines:
        if line.startswith("Dumping "):
            current = sections[Path(line.removeprefix("Dumping "))] = []
        elif line.startswith(("Mismatches in", "Non-consecutive offsets in", "Found timestamp mismatch")):
            break
        elif sections:
            current.append(line)
    return sections


def _parse(plain: list[str], deep: list[str], complaint: str | None) -> Dump:
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
    return Dump(tuple(batches), invalid, tuple(entries), complaint)


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
