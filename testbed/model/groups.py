"""Consumer groups and their readers: positions, commits, rebalances, resets, all noted in the truth."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.model.observations.kafka import Member
from testbed.model.clock import SECOND
from testbed.model.truth import Effect, Event, Subject

if TYPE_CHECKING:
    from testbed.model.kafka import Cluster, Log

_DIVERGENCE_BROKERS, _DIVERGENCE_CLIENTS = (2, 1), (2, 3)
"""The first versions with which a consumer detects a truncation (KIP-320)."""


_SAME_OVERRUN_MS = 1_800_000
_INDISTINCT = 1_000
"""Within how many records of the log start a position may as well be a reset to it."""


class Reader:
    """A group's reading of one partition.

    position: of the next record. committed: the committed offset; None if Kafka has none. known: the last it had.
    pace: records/s at most. is_stuck: whether its fetches fail. divergence: where the log was truncated below its
    position, until it has found out.
    """

    def __init__(self, group: "Group", log: "Log", position: int, pace: float) -> None:
        self.group, self.log = group, log
        self.pace = self.best_pace = pace
        self.position = float(position)
        self._committed: int | None = position
        self.known: int | None = position
        self.at = group.cluster.clock.now
        self._overrun: Effect | None = None
        self.is_stuck = False
        self.divergence: int | None = None
        log.readers.append(self)

    @property
    def committed(self) -> int | None:
        return self._committed

    @committed.setter
    def committed(self, offset: int | None) -> None:
        if offset != self._committed:
            self._committed = offset
            self.group.has_new_commits = True

    @property
    def subject(self) -> Subject:
        topic, partition = self.log.place
        return {"cluster": self.group.cluster.name, "group": self.group.name, "topic": topic, "partition": partition}

    def catch_up(self, at: int) -> None:
        """Read until that moment."""
        elapsed, self.at = at - self.at, at
        log, group = self.log, self.group
        if elapsed <= 0 or not group.reading or not log.open or self.is_stuck or self.position < log.start:
            return
        budget = self.pace * elapsed / SECOND
        if self.position < log.clean_until:
            sparse = min(budget / log.density, log.clean_until - self.position)
            self.position += sparse
            budget -= sparse * log.density
        visible = log.visible(at, committed_only=group.reads_committed)
        if visible > self.position:
            self.position = min(self.position + budget, float(visible))

    def commit(self) -> None:
        """Commit the position; librdkafka's auto-commit never commits below the last committed offset.

        Brokers reject commits on a topic that does not exist (UNKNOWN_TOPIC_OR_PARTITION).
        """
        if not self.log.topic.exists:
            return
        position = int(self.position)
        if self.committed is None or not self.group.hides_resets or position > self.committed:
            self.committed = self.known = position

    # ---- what goes wrong --------------------------------------------------------------------------------------------

    def lose_unread(self) -> None:
        """Note the records deleted before they were read."""
        group, log = self.group, self.log
        position = self.position if group.running else self.committed
        if position is None or position >= log.start:
            return
        position = int(position)
        now = group.cluster.clock.now
        if self._overrun is None:
            event = group.overrun_event(now)
            self._overrun = Effect(
                kinds=("retention_overrun",), subject=self.subject, at=now, measure="lost", before=position,
                kept=self.committed, must=not group.is_abandoned,
            )  # fmt: skip
            self._overrun_event = event
            event.effects.append(self._overrun)
        self._overrun_event.extend(now)
        self._overrun.records = log.start - position
        self._overrun.after = log.start

    _overrun_event: Event

    def note_truncation(self, to: int) -> None:
        """Note that the log was truncated: what the reader read above that is of an older leader epoch."""
        if self.position > to:
            self.divergence = to if self.divergence is None else min(to, self.divergence)

    def check_range(self) -> None:
        """Find out, with the next fetch, whether the position is still within the log."""
        if self.group.running and self.pace and not self.is_stuck and self._trouble() is not None:
            self.group.cluster.clock.after(self.group.cluster.rng.uniform(20, 700), self._recover_range)

    def _trouble(self) -> str | None:
        log, now = self.log, self.group.cluster.clock.now
        if not log.open:
            return None
        if self.divergence is not None and self.position > self.divergence:
            if self.group.detects_truncation and self.group.policy != "none":
                return "divergence"
            return "range" if self.position > log.end(now) else "unnoticed"
        return "range" if not log.start <= self.position <= log.end(now) else None

    def _recover_range(self) -> None:
        trouble, log = self._trouble(), self.log
        if not self.group.running or trouble is None or self.is_stuck:
            return
        now = self.group.cluster.clock.now
        cut, log_cause = self.divergence, log.cause
        if self._overrun is not None and (log_cause is None or self.position < log.start):
            log_cause = self._overrun_event
        if trouble == "unnoticed":  # the log had grown over the position again: it reads on, past what was new
            self.divergence = None
        elif trouble == "divergence" and cut is not None:
            self.move(cut, "divergence", log_cause)
        else:
            self._overrun = None
            self.move(log.start if self.group.policy == "earliest" else log.end(now), "range", log_cause)

    def move(self, to: int, how: str, event: Event | None, *, wanted: bool = True) -> Effect | None:
        """Set the position and note the move. how: divergence, range, seek, offset (none was committed)."""
        group, log = self.group, self.log
        now = group.cluster.clock.now
        self.catch_up(now)
        before = int(self.position) if how != "offset" else (self.known or 0)
        self.position = float(to)
        cut = self.divergence
        if how in ("divergence", "range") or (cut is not None and to <= cut):
            self.divergence = None
        if abs(to - before) < 1:
            return None
        event = event or group.cluster.truth.begin(f"{group.name}: {how}", now, now, group.cluster.name, wanted="loud")
        event.extend(now)
        if to < before:
            top = before if cut is None or how not in ("divergence", "range") else min(before, cut)
            effect = Effect(
                kinds=("offset_rewind", "hidden_reset"), subject=self.subject, at=now, measure="reread",
                records=max(top - to, 0), before=before, after=to, kept=self.committed,
                must=wanted and how != "divergence" and top > to,
                labels_forbidden=_wrong_labels(how, to, log, cut),
            )  # fmt: skip
            if how == "offset":
                effect.kept = self.known
        else:
            skipped = to - max(before, log.start)
            effect = Effect(
                kinds=("offset_jump", "retention_overrun"), subject=self.subject, at=now, measure="skipped",
                records=max(skipped, 0), before=before, after=to, kept=self.committed,
                must=wanted and before >= log.start, labels_forbidden=("operator_reset",),
            )  # fmt: skip
        event.effects.append(effect)
        return effect


def _wrong_labels(how: str, to: int, log: "Log", divergence: int | None) -> tuple[str, ...]:
    wrong = ["operator_reset", "checkpoint_restore"]
    if to > log.start + _INDISTINCT:
        wrong.append("to_earliest")
    if how != "divergence" and divergence is None:
        wrong.append("to_divergence")
    return tuple(wrong)


class Group:
    """A consumer group.

    policy: auto.offset.reset. interval: between commits, ms. assigns: it uses assign(), so has no members.
    hides_resets: librdkafka's auto-commit. detects_truncation: see KIP-320. running: its process runs; reading: and
    fetches now. version: of its state. size: number of members. has_new_commits: since a view last read them.
    """

    def __init__(
        self, cluster: "Cluster", name: str, *, policy: str, interval: int, members: int = 1, assigns: bool = False
    ) -> None:
        self.cluster, self.name = cluster, name
        self.policy, self.interval = policy, interval
        self.assigns, self.simple = assigns, assigns
        self.reads_committed = self.hides_resets = self.is_abandoned = False
        self.detects_truncation = cluster.version >= _DIVERGENCE_BROKERS and cluster.rng.random() < 0.7
        self.type: str | None = None
        self.assignor = "range"
        self.readers: list[Reader] = []
        self.running = self.reading = self.has_new_commits = True
        self.exists = True
        self.state = "Empty" if assigns else "Stable"
        self.version = 0
        self.coordinator: Log | None = None
        self._starts = 0
        self.members = [] if assigns else [self._new_member(number) for number in range(members)]
        self.size = max(members, 1)
        self._last_commit = cluster.clock.now - cluster.rng.randrange(interval)
        self.disturbed_until = 0
        self.overrun: Event | None = None
        self._found: list[Callable[[], object]] = []
        cluster.groups[name] = self

    def read(self, log: "Log", position: int, pace: float) -> Reader:
        reader = Reader(self, log, position, pace)
        self.readers.append(reader)
        return reader

    def overrun_event(self, now: int) -> Event:
        """Return the event of retention overrunning the group, which goes on if it did so lately."""
        if self.overrun is None or now - self.overrun.until > _SAME_OVERRUN_MS:
            name, wanted = f"retention overran {self.name}", "either" if self.is_abandoned else "loud"
            self.overrun = self.cluster.truth.begin(name, now, now, self.cluster.name, wanted=wanted)
        return self.overrun

    def sync(self, at: int) -> None:
        """Make the commits that were due until that moment."""
        due = at - (at - self._last_commit) % self.interval
        if due <= self._last_commit:
            return
        self._last_commit = due
        if self.reading and (self.coordinator is None or self.coordinator.open):
            for reader in self.readers:
                reader.catch_up(due)
                reader.commit()

    @property
    def last_commit(self) -> int:
        return self._last_commit

    @property
    def next_commit(self) -> int:
        return self._last_commit + self.interval

    # ---- members ----------------------------------------------------------------------------------------------------

    def _new_member(self, number: int) -> tuple[str, str, str]:
        rng, client = self.cluster.rng, f"{self.name}-{number}"
        return f"{client}-{rng.randrange(1 << 48):012x}", f"/10.{rng.randrange(9)}.{rng.randrange(99)}.{number}", client

    def view(self) -> tuple[Member, ...]:
        """Return the members as DescribeGroups shows them: with their partitions if the group is stable."""
        count = len(self.members)
        return tuple(
            Member(
                id=name, host=host, client_id=client,
                partitions=tuple(sorted(reader.log.place for reader in self.readers[number::count]))
                if self.state == "Stable" else (),
            )
            for number, (name, host, client) in enumerate(self.members)
        )  # fmt: skip

    def of_member(self, number: int) -> list[Reader]:
        """Return what one member reads, or one subtask of a group without members."""
        count = len(self.members) or self.size
        return self.readers[number % count :: count]

    def set_state(self, state: str) -> None:
        self.state = state
        self.version += 1

    def rebalance(self, ms: float, *, replaces: int | None = None, found: Callable[[], object] | None = None) -> None:
        """Rebalance for so long. replaces: the member that leaves and is replaced by another.

        found: lets the group read a new partition, as soon as that is assigned. Members that rebalance cooperatively
        (KIP-429) read on meanwhile.
        """
        if found is not None:
            self._found.append(found)
        if self.assigns or not self.running:
            return
        if self.assignor != "cooperative-sticky":
            self._halt(self.cluster.clock.now, commits=True)
        if replaces is not None:
            number = replaces % len(self.members)
            self.members[number] = self._new_member(number)
        self.set_state("PreparingRebalance")
        starts = self._starts

        def done() -> None:
            if self.running and self._starts == starts and self.state != "Stable":
                self._assign()
                if not self.reading:
                    self._resume()

        self.cluster.clock.after(ms, done)

    def _assign(self) -> None:
        """Assign all partitions, new ones too."""
        found, self._found = self._found, []
        for begin in found:
            begin()
        self.set_state("Stable")

    def _halt(self, now: int, *, commits: bool) -> None:
        for reader in self.readers:
            reader.catch_up(now)
            if self.reading and commits and reader.log.open:
                reader.commit()
        self.reading = False

    def _resume(self) -> None:
        now = self.cluster.clock.now
        for reader in self.readers:
            reader.at = now
        self.reading = True
        self._last_commit = now
        for reader in self.readers:
            reader.check_range()

    def stop(self, *, crashes: bool = False) -> None:
        """Stop all members; a crash commits nothing, and the members are missed only when their sessions time out."""
        if not self.running:
            return
        now = self.cluster.clock.now
        self.sync(now)
        self._halt(now, commits=not crashes)
        self.running = False
        self._starts += 1
        starts = self._starts

        def leave() -> None:
            if self._starts == starts and not self.assigns:
                self.members = []
                self.set_state("Empty")

        self.cluster.clock.after(self.cluster.rng.uniform(10, 45) * SECOND if crashes else 50, leave)

    def start(self, event: Event | None = None, *, quick: bool = False) -> None:
        """Start from the committed offsets. event: what is to answer for those that Kafka has forgotten."""
        if self.running:
            return
        self.running = True
        self._starts += 1
        starts, rng = self._starts, self.cluster.rng
        if not self.assigns:
            self.members = [self._new_member(number) for number in range(self.size)]
            self.set_state("PreparingRebalance")

        def join() -> None:
            if self._starts != starts:
                return
            now = self.cluster.clock.now
            if not self.assigns:
                self._assign()
            for reader in self.readers:
                reader.at = now
                if reader.committed is not None:
                    reader.position = float(reader.committed)
                    if reader.divergence is not None and reader.position <= reader.divergence:
                        reader.divergence = None
                    continue
                to = reader.log.start if self.policy == "earliest" else reader.log.end(now)
                if reader.known is None:
                    reader.position = float(to)
                else:
                    reader.position = float(reader.known)
                    reader.move(to, "offset", event)
            self._resume()

        self.cluster.clock.after(rng.uniform(200, 900) if quick else rng.uniform(3_000, 6_000), join)

    def forget(self, readers: list[Reader] | None = None) -> None:
        """Let Kafka forget offsets: expired, or deleted."""
        for reader in self.readers if readers is None else readers:
            reader.committed = None
        self.version += 1

    def set_pace(self, factor: float) -> None:
        """Let every reader read at this share of its best pace; 0: the sink is down."""
        now = self.cluster.clock.now
        self.sync(now)
        for reader in self.readers:
            reader.catch_up(now)
            reader.pace = factor * reader.best_pace
            reader.check_range()

    def delete(self) -> None:
        """Let Kafka forget the group with its offsets."""
        self.forget()
        self.exists = False
        self.set_state("Dead")
