"""Thread that reads `__consumer_offsets`, without joining a group: committed records only.

It begins where an earlier run stopped, else at the end. Where reading has stood is kept when the client is replaced.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from agent.clock import now_ms
from agent.config.credentials import CredentialError
from agent.model.batches import CommitBatch
from agent.model.observations.base import Observation
from agent.model.observations.kafka import OFFSETS_TOPIC, Commit, OffsetsPosition, OffsetsUnread
from agent.sources.base import Emit
from agent.sources.kafka.log_consumer import make_log_consumer
from agent.sources.kafka.tail.broker_clock import BrokerClock
from agent.sources.kafka.tail.commit_table import CommitTable
from agent.sources.kafka.tail.positions import Positions
from agent.sources.kafka.tail.progress import BEHIND_MS, CATCH_UP_MS, Poll, Progress, Reading, read_statistics
from agent.sources.kafka.tail.records import Records
from agent.sources.kafka.tail.resumption import PositionJournal, Resumption

_MAX_RECORDS = 10_000
_POLL_S = 0.5
"""How long a record is waited for; one that comes is read at once. Each turn costs 0.2 ms of CPU."""
_LINGER_S = 0.01
_BUSY = 32
"""After so many records at a time, more are waited for: a few at a time would cost many times as much each."""
_RETRY_S = 5.0
_CLOSE_S = 3
_WATERMARKS_S = 5
_SILENT_MS = 10_000
_FLUSH_MS = 1_000
_EMITTED_AT_ONCE = 32_768
"""Commits: what is made of them takes several times their memory."""
_STATISTICS_MS = 1_000
_REFUSED_MS = 60_000
"""How long after brokers refused to let us read the topic it is tried again."""
_STALE_MS = 30_000
"""How long nothing may have been read before the client is replaced if its secrets have changed."""

_FETCHED_KIB = 16_384
"""What is queued at most, and so fetched from a broker at once."""
_LEAST_KIB, _MOST_KIB = 128, 1_024
"""Of one partition: a batch of commits should fit in, and librdkafka's default."""


class TakenOver(NamedTuple):
    """What polls need to know of what was read in the log.

    followed: the groups that are followed. commits: see `CommitTable.take_changes`. stirred: the partitions in which a
    followed group has committed after a rest. touched: groups that are new or whose members may have changed.
    """

    followed: frozenset[str]
    commits: list[Commit]
    stirred: set[tuple[str, int]]
    touched: set[str]


class CommitTail:
    """Follows the commits of a cluster's groups in a thread of its own, and emits those that matter.

    Its methods are called by the thread that polls. failure: why nothing can be read; None if it can, or could.
    """

    def __init__(
        self,
        cluster: str,
        read_properties: Callable[[], Mapping[str, str]],
        is_watched: Callable[[str], bool],
        emit: Emit,
        known: Iterable[Observation] = (),
    ) -> None:
        """read_properties: returns librdkafka's properties with the current secrets; may raise CredentialError.

        known: the last observation of each subject of the cluster before this run.
        """
        self.failure: str | None = None
        self._cluster = cluster
        self._read_properties = read_properties
        self._emit = emit
        self._client_log = structlog.get_logger("librdkafka").bind(cluster=cluster)
        self._log = structlog.get_logger(__name__).bind(cluster=cluster)
        self._lock = threading.Lock()
        self._table = CommitTable(cluster, is_watched)
        self._progress = Progress()
        self._resumption = Resumption(known, is_watched)
        self._positions = Positions()
        self._position_journal = PositionJournal(cluster)
        self._clock = BrokerClock()
        self._unemitted: list[CommitBatch] = []
        self._touched: set[str] = set()
        self._statistics: str | None = None
        self._flushed_at = self._read_at = self._release_before = 0
        self._crash: BaseException | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._resume()

    def _resume(self) -> None:
        """Continue where an earlier run stopped."""
        positions, counts = self._resumption.positions, self._resumption.counts
        commits, self._resumption.commits = self._resumption.commits, {}
        self._progress.resume(positions, commits, counts)
        for group, last in commits.items():
            at = max(commit.at for commit in last)
            self._table.follow(group, last, at, at)
        self._positions.resume(positions, self._progress.count)

    def set_partitions(self, count: int, answered_at: int) -> None:
        """Read so many partitions. Call it every few seconds: it starts the thread, also after that ended.

        count: 0 if the topic cannot be seen, which changes nothing. answered_at: when brokers last answered a poll, ms.
        While none does, polling groups would not help.
        """
        with self._lock:
            if now_ms() - answered_at > _SILENT_MS:
                self._progress.wait(now_ms())
            if count and self._progress.set_count(count, now_ms()):
                self._log.warning("offsets_topic_replaced", partitions=count)
                self._positions = Positions()
            self._lose(now_ms())
        if (self._thread is None and count) or (self._thread is not None and not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name=f"commits-{self._cluster}", daemon=True)
            self._thread.start()

    def raise_crash(self) -> None:
        """Raise what ended the thread since the last call, if anything has."""
        crash, self._crash = self._crash, None
        if crash is not None:
            raise crash

    @property
    def is_current(self) -> bool:
        """Whether all partitions are read up to their ends."""
        return self._progress.is_current

    @property
    def is_late(self) -> bool:
        """Whether commits are made faster than they are read, see `Progress.is_late`."""
        with self._lock:
            return self._progress.is_late(now_ms())

    def is_followed(self, group: str) -> bool:
        """Return whether each commit of the group is observed here, so that it need not be polled."""
        return self._progress.is_followed(group)

    def add_polls(self, polls: Iterable[Poll], begun_at: int) -> None:
        """Take note of polls whose commits have been emitted, with the topics. begun_at: ms."""
        with self._lock:
            self._release_before = begun_at
            for poll in polls:
                self._progress.add_poll(poll)

    @property
    def undecodable(self) -> dict[str, int]:
        """Why records could not be decoded, and how many."""
        with self._lock:
            return dict(self._table.undecodable)

    def take_over(self, groups: Collection[str]) -> TakenOver:
        """Return what has changed since the last call. Forgets all groups but these, as they no longer exist."""
        with self._lock:
            for group in set(self._progress.groups).difference(groups):
                self._progress.forget(group)
                self._table.forget(group)
            touched, self._touched = self._touched, set()
            touched.update(self._progress.stalled_groups)
            followed = frozenset(self._progress.groups)
            return TakenOver(followed, self._table.take_changes(), self._table.take_stirred(), touched)

    def standing(self, since: int, ends: Mapping[tuple[str, int], int]) -> set[tuple[str, int]]:
        """Return the partitions in which a followed group stands still, see `CommitTable.standing`."""
        with self._lock:
            return self._table.standing(since, ends)

    def close(self) -> None:
        """End the thread within 3 s."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    # --- the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                properties: Mapping[str, str] = {}
                try:
                    properties = self._read_properties()
                    consumer = self._make_consumer(properties)
                except (CredentialError, KafkaException) as error:
                    self.failure = str(error.args[0].str() if isinstance(error, KafkaException) else error)
                    self._closing.wait(_RETRY_S)
                    continue
                try:
                    self._consume(consumer, properties)
                finally:
                    consumer.close()
        except BaseException as error:  # noqa: BLE001 - see raise_crash
            try:  # reading the same records once more would fail again
                self._leave_out(range(self._progress.count), f"the agent failed to read them: {error!r}")
            finally:
                self._crash = error

    def _make_consumer(self, properties: Mapping[str, str]) -> Consumer:
        # A full queue has librdkafka begin with the same partitions again (its issue 1854). None may fill a response,
        # else the last ones are not read for as long as there is more to read than we can take.
        of_partition = min(max(_FETCHED_KIB // max(self._progress.count, 1), _LEAST_KIB), _MOST_KIB)
        defaults = {
            "queued.max.messages.kbytes": str(_FETCHED_KIB),
            "fetch.message.max.bytes": str(of_partition << 10),
        }
        required = {"statistics.interval.ms": _STATISTICS_MS, "stats_cb": self._keep_statistics}
        return make_log_consumer("commits", properties, self._client_log, defaults=defaults, required=required)

    def _keep_statistics(self, statistics: str) -> None:
        self._statistics = statistics

    def _consume(self, consumer: Consumer, properties: Mapping[str, str]) -> None:
        """Read until closed, refused, or the client has to be replaced."""
        assigned, linger = 0, 0.0
        self._read_at = now_ms()
        self._statistics = None  # of an earlier consumer
        while not self._closing.is_set() and assigned <= self._progress.count and not self._is_outdated(properties):
            if assigned < self._progress.count:
                assigned = self._assign(consumer, range(assigned, self._progress.count))
            first = consumer.poll(_POLL_S)
            messages = [] if first is None else [first, *consumer.consume(_MAX_RECORDS - 1, linger)]
            linger = _LINGER_S if len(messages) >= _BUSY else 0
            records = [message for message in messages if message.error() is None]
            self._take(records, now_ms())
            if len(records) < len(messages) and not self._handle_errors(consumer, messages):
                self._keep_positions(consumer, range(assigned))
                self._leave_out(range(self._progress.count), f"brokers refused to let them be read: {self.failure}")
                self._closing.wait(_REFUSED_MS / 1000)
                return
            for number in self._progress.too_far_behind(now_ms()):
                self._skip(consumer, number, f"reading it took longer than {CATCH_UP_MS // 1_000} s")
        if assigned <= self._progress.count:
            self._keep_positions(consumer, range(assigned))

    def _keep_positions(self, consumer: Consumer, numbers: Iterable[int]) -> None:
        """Keep where reading these partitions stands, as far as it is known.

        The client does not know it of a partition that it began to read at its end and has read nothing of since.
        """
        reached = consumer.position([TopicPartition(OFFSETS_TOPIC, number) for number in numbers])
        with self._lock:
            self._positions.keep_ends(self._progress.ends)
            for place in reached:
                self._positions.keep(place.partition, place.offset)

    def _assign(self, consumer: Consumer, numbers: range) -> int:
        """Begin to read these partitions; return how many are read then."""
        offsets = self._positions.begin(numbers)
        self._leave_out([number for number, offset in offsets.items() if offset == OFFSET_END])
        consumer.incremental_assign([TopicPartition(OFFSETS_TOPIC, *place) for place in offsets.items()])
        return numbers.stop

    def _is_outdated(self, properties: Mapping[str, str]) -> bool:
        """Return whether nothing has been read for long, and secrets have changed."""
        now = now_ms()
        if now - self._read_at < _STALE_MS:
            return False
        self._read_at = now
        try:
            return self._read_properties() != properties
        except CredentialError:  # it is being written
            return False

    def _take(self, records: Sequence[Message], now: int) -> None:
        """Take records in, then what librdkafka's statistics, made before they were read, say; emit what follows."""
        statistics, self._statistics = self._statistics, None
        unread: list[OffsetsUnread] = []
        positions: list[OffsetsPosition] = []
        with self._lock:
            batches, self._unemitted = self._unemitted, []
            if self._table.held_since is not None:
                batches.append(self._table.release(self._release_before))
            if records:
                batches.append(self._apply(self._resumption.select_new(records), now))
            if statistics is not None:
                made_us, readings = read_statistics(statistics)
                at_end = [reading.partition for reading in readings if reading.is_at_end]
                if released := self._resumption.release(at_end):
                    batches.append(self._apply(released, now))
                batches += self._update(readings, now - (time.monotonic_ns() // 1_000 - made_us) // 1_000, now)
                unread = self._take_unread(readings)
                is_current = self._progress.is_current and now - self._progress.held_at(now) < BEHIND_MS
                self._clock.sample(now, self._table.take_newest_at(), is_current=is_current)
            if now - self._flushed_at >= _FLUSH_MS or now < self._flushed_at:
                self._flushed_at = now
                batches += [self._table.flush(now), self._table.heartbeats(self._progress.held_at(now))]
                positions = self._position_journal.take_due(
                    self._progress.ends, self._progress.count, now, self._table.held_since, self._clock.ahead
                )
        pieces = [
            batch.select(slice(begin, begin + _EMITTED_AT_ONCE))
            for batch in batches
            for begin in range(0, len(batch), _EMITTED_AT_ONCE)
        ]
        for piece in [unread, *pieces, positions]:
            if piece and not self._closing.is_set():
                self._emit(piece)

    def _apply(self, records: Sequence[Message], now: int) -> CommitBatch:
        """Take records in; return what follows."""
        taken = self._table.apply(Records.of(records), now, self._clock.behind)
        self._touched |= taken.touched
        return taken.commits

    def _update(self, readings: Sequence[Reading], at: int, now: int) -> list[CommitBatch]:
        """Follow the groups that can be followed now, no longer follow those that cannot. at: of the readings, ms."""
        at_end = [reading.partition for reading in readings if reading.is_at_end]
        if at_end:
            self.failure = None
            self._read_at = now
        # Compaction may have removed deletions of a long downtime: only a poll shows which offsets are still there.
        self._poll_groups_of([number for number in at_end if self._progress.is_outdated(number, at)])
        polls = self._progress.update(readings, at)
        batches = [self._table.follow(poll.group, poll.commits, poll.completed_at, now) for poll in polls]
        self._lose(now)
        return batches

    def _lose(self, now: int) -> None:
        """No longer follow the groups that cannot be followed."""
        before, held_back = self._progress.catching_up, self._progress.held_back
        self._unemitted += [self._table.unfollow(group, now) for group in self._progress.lose(now)]
        for number in before.keys() - self._progress.catching_up.keys():
            reason = "an open transaction held them back" if number in held_back else "their broker was away"
            self._positions.leave_out(number, before[number], reason)

    def _take_unread(self, readings: Iterable[Reading]) -> list[OffsetsUnread]:
        """Return which records were left out of the partitions that have been read up to their ends since."""
        ends = {reading.partition: reading.next_offset for reading in readings if reading.is_at_end}
        return [
            unread
            for number, left_out in self._positions.take_left_out(ends).items()
            for unread in self._unread(number, left_out.offset, ends[number] - 1, left_out.reason)
        ]

    def _handle_errors(self, consumer: Consumer, messages: Sequence[Message]) -> bool:
        """Handle the errors among the messages; return whether reading can go on."""
        for message in messages:
            error = message.error()
            if error is None:
                continue
            self._log.debug("offsets_topic_error", partition=message.partition(), reason=error.str())
            if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self.failure = error.str()
                return False
            number = message.partition()
            if error.code() == KafkaError._AUTO_OFFSET_RESET and number is not None:  # noqa: SLF001 - its public name
                self._skip(consumer, number, None)
        return True

    def _skip(self, consumer: Consumer, number: int, reason: str | None) -> None:
        """Go on where a partition can be read, and report what is not read.

        reason: why what was written before the start is left out; None if brokers refused the offset to read next.
        """
        self._keep_positions(consumer, [number])
        offset = self._positions.get(number)
        if offset is None:
            self._read_from(consumer, number, OFFSET_END)
            return
        try:
            start, end = consumer.get_watermark_offsets(TopicPartition(OFFSETS_TOPIC, number), _WATERMARKS_S)
        except KafkaException as error:
            self._log.warning("offsets_topic_unavailable", partition=number, reason=error.args[0].str())
            self._read_from(consumer, number, offset)  # is refused once more, if it was
            return
        if reason is None and offset < start:
            unread = self._unread(number, offset, start - 1, "they were removed before they were read")
            resumed_at = start
        else:
            ends = f"the log ends at {end}, and {offset} was to be read next: it was truncated or replaced"
            unread = self._unread(number, *((None, None, ends) if reason is None else (offset, end - 1, reason)))
            resumed_at = end
            self._leave_out([number])
        if unread:
            self._emit(unread)
        self._read_from(consumer, number, resumed_at)

    def _read_from(self, consumer: Consumer, number: int, offset: int) -> None:
        """Go on to read a partition from this offset; OFFSET_END: from its end, wherever that is."""
        consumer.incremental_unassign([TopicPartition(OFFSETS_TOPIC, number)])
        consumer.incremental_assign([TopicPartition(OFFSETS_TOPIC, number, offset)])
        self._statistics = None  # they are about what was read before
        self._positions.move(number, offset)

    def _unread(self, number: int, first: int | None, last: int | None, reason: str) -> list[OffsetsUnread]:
        """Return and log that a partition's records from the first to the last were not read; None: unknown."""
        if first is not None and last is not None and last < first:
            return []
        self._log.warning("offsets_topic_unread", partition=number, first=first, last=last, reason=reason)
        return [
            OffsetsUnread(
                at=now_ms(),
                cluster=self._cluster,
                partition=number,
                first_offset=first,
                last_offset=last,
                reason=reason,
            )
        ]

    def _leave_out(self, partitions: Collection[int], reason: str | None = None) -> None:
        """Take note that records of these partitions are not read: what their groups commit meanwhile is polled.

        reason: why, to report them once the partitions can be read; None if that is done, or none are missed.
        """
        with self._lock:
            self._positions.keep_ends(self._progress.ends)
            self._positions.forget(partitions, reason)
            self._position_journal.discard(partitions)
            self._resumption.release(partitions)
            self._poll_groups_of(partitions)

    def _poll_groups_of(self, partitions: Collection[int]) -> None:
        """Take polls for the truth about the groups of these partitions, and no longer follow them until then."""
        if not partitions:
            return
        self._progress.reset(partitions)
        for group in self._table.groups:
            if self._progress.partitions_of(group).intersection(partitions):
                self._unemitted.append(self._table.unfollow(group, now_ms()))
                self._table.forget(group)
