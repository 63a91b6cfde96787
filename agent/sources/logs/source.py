"""The `logs` source: follows log files and reports lines that match shipped patterns or those of log_pattern rules."""

import re
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from zoneinfo import ZoneInfo

import structlog

from agent.clock import now_ms
from agent.config.sources import Logs
from agent.model.log_text import compile_pattern
from agent.model.observations.base import Availability, Observation, Unavailable
from agent.model.observations.logs import LogFile, LogLine
from agent.sources.availability import SOURCE, AvailabilityTracker
from agent.sources.base import HEARTBEAT_MS, ChangeDetector, Emit
from agent.sources.logs.followed_logs import FollowedLog, FollowedLogs, describe_missing, was_refused
from agent.sources.logs.matcher import MatchedLine, Matcher
from agent.sources.logs.patterns import SHIPPED, Pattern, find_component
from agent.sources.logs.timestamps import TimeZoneCheck, parse_timestamp

BYTES_PER_POLL = 64 * 1024 * 1024
"""Bytes read in a poll at most: a backlog is read poll by poll, all files in turn."""

_MAX_TEXT = 500
_MAX_HEADER = 200
"""How many characters are reported of a line, and of the first line of its entry."""

_MAX_REASONS = 3
"""How many unavailable paths are named, besides the configured patterns."""

_AND = "; "

log = structlog.get_logger(__name__)


class LogSource:
    """The files of one [logs.NAME] table.

    LogFile and Unavailable are emitted for the cluster NAME, so that a missing file makes nothing else unavailable;
    lines are emitted for the Kafka or Flink cluster they are about. A line is emitted in one batch with the position up
    to which its file has been read, so that it is neither lost nor repeated.
    """

    name = "logs"
    problem = None

    def __init__(
        self, name: str, settings: Logs, patterns: Iterable[str], emit: Emit, known: Iterable[Observation] = ()
    ) -> None:
        """Create the source of [logs.`name`].

        patterns: the regexes of log_pattern rules. known: the last observation of each subject before this run. Raises
        ValueError if a pattern is no regex.
        """
        self.cluster = name
        self.interval = settings.poll_interval
        self.read_at: int | None = None
        self._settings = settings
        self._zone = ZoneInfo(settings.time_zone)
        self._zone_check, self._zone_mismatch_logged = TimeZoneCheck(name, self._zone), False
        self._emit = emit
        configured = [Pattern(pattern, None, compile_pattern(pattern)) for pattern in dict.fromkeys(patterns)]
        self._matcher = Matcher(SHIPPED, configured)
        own = [fact for fact in known if isinstance(fact, LogFile | Availability) and fact.cluster == name]
        availability = [fact for fact in own if isinstance(fact, Availability) and fact.source == self.name]
        files = [fact for fact in own if isinstance(fact, LogFile)]
        self._availability, self._changes = (
            AvailabilityTracker(self.name, name, availability),
            ChangeDetector(availability),
        )
        self._emitted = {file.log: file for file in files}
        reasons = [fact.reason for fact in availability if isinstance(fact, Unavailable)]
        unavailable = " ".join(reasons)
        missing = {text for reason in reasons for text in reason.split(_AND)}
        self._logs = FollowedLogs(
            settings.paths,
            settings.encoding,
            files,
            is_first_run=not (files or availability),
            is_refused=lambda path: was_refused(path, unavailable),
            is_missing=lambda pattern: describe_missing(pattern) in missing,
        )
        self._turn = 0
        self._undecodable: set[str] = set()
        self._polling = threading.Lock()
        self._closed = False

    def poll(self) -> None:
        """Read what was written since the last poll, and emit the lines that match."""
        with self._polling:
            if self._closed:
                return
            unavailable = self._logs.refresh()
            self._forget_unfollowed()
            paths = self._settings.paths
            configured = [unavailable[path] for path in paths if path in unavailable]
            others = [reason for place, reason in unavailable.items() if place not in paths]
            more = [f"{len(others) - _MAX_REASONS} more"] if others[_MAX_REASONS:] else []
            reasons = [*configured, *self._check_time_zone(), *others[:_MAX_REASONS], *more]
            reason = _AND.join(reasons)
            changes = self._changes.changes(self._availability.update(now_ms(), {SOURCE: reason} if reasons else {}))
            if changes:
                self._emit(changes)
            self._emit_due_positions()  # which file a log consists of comes before its lines
            self._read()
            self._emit_due_positions()
            self._logs.close_idle(now_ms())
            if not reasons:
                self.read_at = now_ms()

    def close(self) -> None:
        """Stop a running poll, emit the last positions and close the files."""
        self._closed = True
        with self._polling:
            now = now_ms()
            changed = [self._record_position(followed, now) for followed in self._logs if self._has_moved(followed)]
            if changed:
                self._emit(changed)
            self._logs.close()

    def _read(self) -> None:
        """Read a block of each log in turn until all are read to their end or the poll's limit is reached."""
        waiting = deque(self._logs)
        drained = {followed.path: followed.file for followed in waiting if followed.is_drained}
        new_headers: dict[str, str] = {}
        waiting.rotate(-self._turn)
        self._turn += 1
        budget = BYTES_PER_POLL
        while waiting and budget > 0 and not self._closed:
            followed = waiting.popleft()
            read = followed.read_block()
            if read is None:
                continue
            waiting.append(followed)
            file, block = read
            budget -= block.size
            if block.lines:
                lines, file.header = self._matcher.find_lines(block.lines, block.encoding, file.header)
                self._emit_lines(followed, lines)
                if drained.get(followed.path) is file:
                    new_headers[followed.path] = file.header
            if block.undecodable:
                self._warn_undecodable(followed.path, block.undecodable)

        for path, header in new_headers.items():
            self._zone_check.add_line(path, header, now_ms())

    def _forget_unfollowed(self) -> None:
        """Forget the logs that are no longer followed."""
        paths = {followed.path for followed in self._logs}
        self._zone_check.retain(paths)
        self._undecodable &= paths
        for path in self._emitted.keys() - paths:
            del self._emitted[path]

    def _check_time_zone(self) -> list[str]:
        """Return why lines cannot be dated, if so, and log it once."""
        reason = self._zone_check.describe_mismatch(now_ms())
        if reason is not None and not self._zone_mismatch_logged:
            log.warning("time_zone_mismatch", logs=self.cluster, reason=reason)
        self._zone_mismatch_logged = reason is not None
        return [] if reason is None else [reason]

    def _emit_lines(self, followed: FollowedLog, lines: Sequence[MatchedLine]) -> None:
        if lines:
            now = now_ms()
            observations = [self._to_observation(followed.path, line, now) for line in lines]
            self._emit([*observations, self._record_position(followed, now)])
            undecodable = sum(line.text.count("\ufffd") for line in lines)
            if undecodable:
                self._warn_undecodable(followed.path, undecodable)

    def _to_observation(self, path: str, line: MatchedLine, now: int) -> LogLine:
        """Return the line as a fact, dated at its timestamp but never later than it was read."""
        settings, pattern = self._settings, line.pattern
        values = {name: value for name, value in line.match.groupdict().items() if value is not None}
        clusters = (settings.flink, settings.cluster) if pattern.is_about_flink else (settings.cluster, settings.flink)
        at = parse_timestamp(line.header, self._zone, now)
        text = line.text if line.header in ("", line.text) else f"{line.header[:_MAX_HEADER]}\n{line.text}"
        component = settings.component or pattern.component or find_component(line.text) or find_component(line.header)
        return LogLine(
            at=now if at is None else min(at, now),
            seen_at=now,
            cluster=next((cluster for cluster in clusters if cluster is not None), self.cluster),
            log=path,
            component=component,
            pattern=pattern.name,
            topic=values.get("topic"),
            partition=_parse_number(values.get("partition")),
            broker=_parse_number(values.get("broker")),
            job=values.get("job"),
            host=settings.host,
            values=values,
            text=text[:_MAX_TEXT],
        )

    def _emit_due_positions(self) -> None:
        now = now_ms()
        due = [self._record_position(followed, now) for followed in self._logs if self._is_due(followed, now)]
        if due:
            self._emit(due)

    def _record_position(self, followed: FollowedLog, now: int) -> LogFile:
        """Return how far the log has been read, and remember it as emitted."""
        file = followed.resumed_from
        position = LogFile(
            at=now,
            cluster=self.cluster,
            log=followed.path,
            inode=file.inode,
            read=file.position,
            head=file.head,
            head_bytes=file.head_bytes,
        )
        self._emitted[followed.path] = position
        return position

    def _is_due(self, followed: FollowedLog, now: int) -> bool:
        """Return whether the position must be emitted: of a new or truncated file, or as a heartbeat."""
        emitted = self._emitted.get(followed.path)
        if emitted is None or emitted.inode != followed.resumed_from.inode:
            return True
        return followed.resumed_from.position < emitted.read or now - emitted.at >= HEARTBEAT_MS

    def _has_moved(self, followed: FollowedLog) -> bool:
        emitted, file = self._emitted.get(followed.path), followed.resumed_from
        return emitted is None or (emitted.inode, emitted.read) != (file.inode, file.position)

    def _warn_undecodable(self, path: str, count: int) -> None:
        """Log once per file that it is not in the configured encoding."""
        if path not in self._undecodable:
            self._undecodable.add(path)
            log.warning("undecodable_bytes", log=path, encoding=self._settings.encoding, count=count)


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
