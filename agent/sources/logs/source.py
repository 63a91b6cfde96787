"""Follows log files and tells of the lines that match: the patterns shipped, and those of `log_pattern` rules."""

import re
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from zoneinfo import ZoneInfo

import structlog

from agent.config.sources import Logs
from agent.model.observations import Availability, LogFile, LogLine, Observation
from agent.sources.availability import SOURCE, AvailabilityTracker, now_ms
from agent.sources.base import HEARTBEAT_MS, ChangeDetector, Emit
from agent.sources.logs.lines import component_of, time_of
from agent.sources.logs.matcher import Line, Sieve
from agent.sources.logs.paths import Log, LogPaths
from agent.sources.logs.patterns import SHIPPED, Pattern
from agent.sources.logs.timestamps import LogClock

BYTES_A_POLL = 64 * 1024 * 1024
"""How much a poll reads at most: a backlog is read poll by poll, each file getting its turn."""

_TEXT = 500
_HEADER = 200
"""How much of a line is told, and how much of the first line of its entry before it; characters."""

_REASONS = 3
"""How many of the paths out of sight are named."""

log = structlog.get_logger(__name__)


class LogSource:
    """The files of one [logs.NAME]. What it emits of itself (LogFile, Unavailable) is about the cluster NAME, so that a file
    missing there hides nothing else; lines are about the Kafka or the Flink cluster that they tell of.

    A line is told in one batch with how far its file has been read then, and so neither twice nor never.
    """

    name = "logs"

    def __init__(
        self, name: str, settings: Logs, patterns: Iterable[str], emit: Emit, known: Iterable[Observation] = ()
    ) -> None:
        """patterns: the regexes of the log_pattern rules. known: the last observation of each subject before this run.

        Raises ValueError where a pattern is no regex.
        """
        self.cluster = name
        self.interval = settings.poll_interval
        self._settings = settings
        self._zone = ZoneInfo(settings.time_zone)
        self._clock, self._told_misdated = LogClock(name, self._zone), False
        self._emit = emit
        configured = [Pattern(one, None, re.compile(one)) for one in dict.fromkeys(patterns)]
        self._sieve = Sieve(SHIPPED, configured)
        known = [one for one in known if isinstance(one, LogFile | Availability) and one.cluster == name]
        sights = [one for one in known if isinstance(one, Availability) and one.source == self.name]
        files = [one for one in known if isinstance(one, LogFile)]
        self._sights, self._polled = AvailabilityTracker(self.name, name, sights), ChangeDetector(sights)
        self._told = {one.log: one for one in files}
        self._paths = LogPaths(settings.paths, settings.encoding, files, first=not (files or sights))
        self._turn = 0
        self._garbled: set[str] = set()
        self._polling = threading.Lock()
        self._closed = False

    def poll(self) -> None:
        """Read what was written since, and emit the lines that match."""
        with self._polling:
            if self._closed:
                return
            unseen = [*self._paths.look().values(), *self._misdated()]
            reason = "; ".join([*unseen[:_REASONS], *([f"{len(unseen) - _REASONS} more"] if unseen[_REASONS:] else [])])
            sights = self._polled.changes(self._sights.update(now_ms(), {SOURCE: reason} if unseen else {}))
            if sights:
                self._emit(sights)
            self._tell_how_far()  # whose file is whose, before a line of it is told
            self._read()
            self._tell_how_far()
            self._paths.rest(now_ms())

    def close(self) -> None:
        """Let go of the files, and end a poll that is under way. What was read last is told."""
        self._closed = True
        with self._polling:
            now = now_ms()
            changed = [self._far(one, now) for one in self._paths if self._has_moved(one)]
            if changed:
                self._emit(changed)
            self._paths.close()

    def _read(self) -> None:
        """A block of each file in turn, until all are at their end or it is enough for this poll."""
        waiting = deque(self._paths)
        live = {one.path: one.part for one in waiting if one.drained}
        headers: dict[str, str] = {}
        waiting.rotate(-self._turn)
        self._turn += 1
        enough = BYTES_A_POLL
        while waiting and enough > 0 and not self._closed:
            one = waiting.popleft()
            read = one.next_block()
            if read is None:
                continue
            waiting.append(one)
            part, block = read
            enough -= len(block.lines)
            if block.lines:
                found, part.header = self._sieve.lines(block.lines, block.encoding, part.header)
                self._tell(one, found)
                if live.get(one.path) is part:
                    headers[one.path] = part.header
            if block.broken:
                self._complain(one.path, block.broken)

        for path, header in headers.items():
            self._clock.take(path, header, now_ms())

    def _misdated(self) -> list[str]:
        """Why lines cannot be dated, if so; logged once."""
        self._clock.keep({one.path for one in self._paths})
        reason = self._clock.reason(now_ms())
        if reason is not None and not self._told_misdated:
            log.warning("a log is not in its time zone", logs=self.cluster, reason=reason)
        self._told_misdated = reason is not None
        return [] if reason is None else [reason]

    def _tell(self, one: Log, found: Sequence[Line]) -> None:
        if found:
            now = now_ms()
            self._emit([*(self._observed(one.path, line, now) for line in found), self._far(one, now)])
            garbled = sum(line.text.count("\ufffd") for line in found)
            if garbled:
                self._complain(one.path, garbled)

    def _observed(self, path: str, line: Line, now: int) -> LogLine:
        """The line as a fact. No line was written after it was read, whatever its clock says."""
        settings, pattern = self._settings, line.pattern
        values = {name: value for name, value in line.match.groupdict().items() if value is not None}
        clusters = (settings.flink, settings.cluster) if pattern.about_flink else (settings.cluster, settings.flink)
        at = time_of(line.header, self._zone, now)
        text = line.text if line.header in ("", line.text) else f"{line.header[:_HEADER]}\n{line.text}"
        return LogLine(
            at=now if at is None else min(at, now),
            seen_at=now,
            cluster=next((one for one in clusters if one is not None), self.cluster),
            log=path,
            component=settings.component or pattern.component or component_of(line.text) or component_of(line.header),
            pattern=pattern.name,
            topic=values.get("topic"),
            partition=_number(values.get("partition")),
            broker=_number(values.get("broker")),
            job=values.get("job"),
            host=settings.host,
            values=values,
            text=text[:_TEXT],
        )

    def _tell_how_far(self) -> None:
        now = now_ms()
        due = [self._far(one, now) for one in self._paths if self._is_due(one, now)]
        if due:
            self._emit(due)

    def _far(self, one: Log, now: int) -> LogFile:
        """How far the log has been read, which is told with this."""
        part = one.part
        far = LogFile(
            at=now,
            cluster=self.cluster,
            log=one.path,
            inode=part.inode,
            read=part.read,
            head=part.head,
            head_bytes=part.head_bytes,
        )
        self._told[one.path] = far
        return far

    def _is_due(self, one: Log, now: int) -> bool:
        """Whether it must be told how far the log has been read: a file not told of yet, or long ago."""
        told = self._told.get(one.path)
        return (
            told is None or told.inode != one.part.inode or one.part.read < told.read or now - told.at >= HEARTBEAT_MS
        )

    def _has_moved(self, one: Log) -> bool:
        told = self._told.get(one.path)
        return told is None or (told.inode, told.read) != (one.part.inode, one.part.read)

    def _complain(self, path: str, count: int) -> None:
        """Say once of a file that it is not in the encoding configured."""
        if path not in self._garbled:
            self._garbled.add(path)
            log.warning("a log is not in its encoding", log=path, encoding=self._settings.encoding, undecodable=count)


def _number(text: str | None) -> int | None:
    """The number that a group named; None where it is none."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
