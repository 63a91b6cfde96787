"""Consumer histories drawn by seed with the expected findings: rewinds, jumps, and what only looks like them.

Each scenario has topics of its own. Time runs from evening to night; once the agent is down, once its clock is set
back. Scenarios use true time.
"""

import random
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from msgspec.structs import replace

from agent.model.observations.base import Available, Observation, Tick, Unavailable
from agent.model.observations.kafka import BrokerRegistration, Commit, LogOffsets, PartitionState
from agent.model.times import millis
from agent.sources.base import HEARTBEAT_MS

MIDNIGHT = millis("2026-11-21T00:00:00.000Z")
BEGIN, END = MIDNIGHT - 5_400_000, MIDNIGHT + 5_400_000
DOWN = (MIDNIGHT - 2_400_000, MIDNIGHT - 1_740_000)
SET_BACK, SET_BACK_BY = MIDNIGHT + 2_400_000, 40_000
CLUSTER, LEAST = "main", 1_000
EVERY, STEP = 8_000, 400


class Expected(NamedTuple):
    """An expected finding. labels: all of them."""

    group: str
    topic: str
    partition: int
    old: int
    new: int
    labels: frozenset[str]


class History:
    """Observations as they arrive, and the expected findings. hidden: groups that were unavailable once."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - drawn by seed so that a run can be repeated
        self.expected: list[Expected] = []
        self.hidden: list[str] = []
        self._arrivals: list[tuple[int, int, Observation]] = []
        self._number = count()
        for at in range(BEGIN, END, 1_000):
            self.add(at, Tick(at=at))

    def add(self, at_true_time: int, observation: Observation) -> bool:
        """Add an observation at a true time, dated by the agent's clock; return False if the agent was down."""
        if DOWN[0] <= at_true_time < DOWN[1]:
            return False
        if observation.at >= SET_BACK:
            since = None if observation.since is None else observation.since - SET_BACK_BY
            observation = replace(observation, at=observation.at - SET_BACK_BY, since=since)
        self._arrivals.append((at_true_time, next(self._number), observation))
        return True

    def observations(self) -> list[Observation]:
        """Return the observations in order of arrival."""
        return [observation for _, _, observation in sorted(self._arrivals, key=lambda arrival: arrival[:2])]

    def moment(self) -> int:
        """Return a true time with room around it, far from events that affect all scenarios."""
        while True:
            at = self.chance.randrange(BEGIN + 1_500_000, END - 1_500_000)
            if all(abs(at - event) > 900_000 for event in (*DOWN, SET_BACK)):
                return at


class Reader:
    """A group on a partition that reads about STEP records every EVERY ms, at the log end or `lag` records behind.

    Transaction markers put the log end ahead of what it can read. late: the share of commits that come late.
    skew: how far the clock that dates the log is ahead, ms. polled: whether commits are seen by polling.
    """

    def __init__(self, history: History, topic: str, group: str = "job", **habits: Any) -> None:
        self.history, self.topic, self.group = history, topic, group
        self.lag, self.late, self.doubled = habits.get("lag", 0), habits.get("late", 0.0), habits.get("doubled", 0.0)
        self.skew, self.polled = habits.get("skew", 0), habits.get("polled", False)
        self.logged = habits.get("logged", True)
        self.partition = habits.get("partition", history.chance.randrange(8))
        self.offset = history.chance.randrange(50_000, 90_000)
        self.start, self.end = history.chance.randrange(1_000), self.offset
        self.now = BEGIN + history.chance.randrange(EVERY)
        self.seen = 0
        self.available = True
        self.known: PartitionState | None = None

    @property
    def where(self) -> dict[str, Any]:
        """Return the partition."""
        return {"cluster": CLUSTER, "topic": self.topic, "partition": self.partition}

    def until(self, at: int, *, committing: bool = True) -> None:
        """Let time pass: the log grows, the group reads and commits, or not."""
        chance = self.history.chance
        while self.now < at:
            moved = chance.randrange(STEP // 2, STEP * 3 // 2)
            self.end += moved
            if committing:
                most = self.end - self.lag - chance.randrange(2)
                self.offset = max(self.offset, min(self.offset + moved + 100, most))
            self.step(self.offset if committing else None, silent=not committing)

    def step(self, offset: int | None, *labels: str, silent: bool = False) -> None:
        """Read the log, then commit; with labels, expect a finding."""
        chance = self.history.chance
        read = self.now - 2_000
        log = LogOffsets(at=read + self.skew, log_start=self.start, log_end=self.end, **self.where)
        if self.logged:
            self.history.add(read, log)
        if self.known is not None and self.now - self.known.at >= HEARTBEAT_MS:
            self.known = replace(self.known, at=self.now)
            self.history.add(self.now, self.known)
        if not silent and self.available:
            since = self.now - 2_000 if self.polled else None
            commit = Commit(at=self.now, since=since, group=self.group, offset=offset, **self.where)
            # What comes late across a clock step looks like what the new clock dates.
            steady = not SET_BACK - 60_000 <= self.now < SET_BACK
            late = chance.randrange(1_000, 55_000) if steady and chance.random() < self.late else 0
            if self.history.add(self.now + late, commit) and offset is not None:
                if labels:
                    place = (self.group, self.topic, self.partition)
                    self.history.expected.append(Expected(*place, self.seen, offset, frozenset(labels)))
                self.seen = offset
            if steady and chance.random() < self.doubled:
                self.history.add(self.now + chance.randrange(50_000), commit)
        self.offset = self.offset if offset is None else offset
        self.now += EVERY + chance.randrange(-400, 400)

    def state(self, topic_id: str, leader: int = 1, replicas: tuple[int, ...] = (1, 2)) -> None:
        """Add a partition state: the leader and the incarnation."""
        self.known = PartitionState(
            at=self.now, leader=leader, replicas=replicas, isr=replicas, topic_id=topic_id, **self.where
        )
        self.history.add(self.now, self.known)


def steady(history: History, topic: str) -> None:
    """Rewind once by less than the limit; the log's clock is some seconds off."""
    reader = Reader(history, topic, skew=history.chance.choice([-4_000, 4_000]))
    reader.until(history.moment())
    reader.step(reader.offset - LEAST + 1)
    reader.until(END)


def rewinds(history: History, topic: str, **habits: Any) -> None:
    """Rewind one to three times; another group on the partition does not."""
    reader = Reader(history, topic, **habits)
    Reader(history, topic, "other", partition=reader.partition, logged=False).until(END)
    moments = sorted(history.moment() for _ in range(history.chance.randrange(1, 4)))
    for at in moments:
        reader.until(at)
        reader.step(reader.offset - history.chance.randrange(LEAST, 20_000), "rewind")
    reader.until(END)


def late(history: History, topic: str) -> None:
    """Let commits come late, possibly the rewind itself."""
    rewinds(history, topic, late=0.2)


def doubled(history: History, topic: str) -> None:
    """Let commits come twice."""
    rewinds(history, topic, doubled=0.3)


def polled(history: History, topic: str) -> None:
    """Observe commits by polling."""
    rewinds(history, topic, polled=True)


def at_once(history: History, topic: str) -> None:
    """Rewind with the second commit, and around midnight."""
    reader = Reader(history, topic)
    reader.until(reader.now + 1)
    reader.step(reader.offset - 5_000, "rewind")
    reader.until(MIDNIGHT)
    reader.step(reader.offset - 2_000, "rewind")
    reader.until(END)


def after_session_loss(history: History, topic: str) -> None:
    """Expire the leader's session, truncate the log, and reset the group to the log start."""
    brokers = history.chance.sample(range(100, 10_000), 2)
    reader = Reader(history, topic)
    reader.state("a", brokers[0], tuple(brokers))
    gone, session = {"session": None, "epoch": None}, history.chance.randrange(1 << 32)
    at = history.moment()
    for when, fields in ((BEGIN, {"session": hex(session), "epoch": 1}), (at - 6_000, gone)):
        history.add(when, BrokerRegistration(at=when, cluster=CLUSTER, broker=brokers[0], **fields))
    reader.until(at)
    reader.state("a", brokers[1], tuple(brokers))
    reader.end -= 300
    new = reader.start + history.chance.randrange(200)
    reader.step(new, "rewind", "to_earliest", "after_session_loss", "after_leader_move", "after_truncation")
    back = BrokerRegistration(at=reader.now, cluster=CLUSTER, broker=brokers[0], session=hex(session + 1), epoch=2)
    history.add(reader.now, back)
    reader.until(END)


def recreated(history: History, topic: str) -> None:
    """Re-create the topic, which is no rewind; rewind once in the new incarnation."""
    reader = Reader(history, topic)
    reader.state("a")
    reader.until(history.chance.choice([history.moment(), DOWN[0] + 100_000]))
    reader.state("a", -1, ())
    reader.now += 3_000
    reader.start = reader.end = reader.offset = 0
    reader.state("b")
    # If the agent was down meanwhile, the states come with its first poll.
    if DOWN[0] <= reader.now < DOWN[1]:
        reader.until(DOWN[1] + 1)
        reader.state("b")
    reader.until(reader.now + 400_000)
    reader.step(reader.offset - 3_000, "rewind")
    reader.until(END)


def expired(history: History, topic: str) -> None:
    """Expire the offset, then resume at the log start, at the log end, or where it was."""
    reader = Reader(history, topic)
    reader.until(history.moment())
    reader.until(reader.now + 200_000, committing=False)
    old = reader.offset
    reader.step(None)
    reader.until(reader.now + 100_000, committing=False)
    match history.chance.randrange(3):
        case 0:
            reader.step(reader.start, "rewind", "after_expiry", "to_earliest")
        case 1:
            reader.step(reader.end, "jump", "after_expiry", "to_latest")
        case _:
            reader.step(old)
    reader.until(END)


def surge(history: History, topic: str) -> None:
    """Set a lagging group to the log end."""
    reader = Reader(history, topic, lag=30_000)
    reader.end += 30_000
    reader.until(history.moment())
    reader.lag = 0
    reader.step(reader.end, "jump", "to_latest")
    reader.until(END)


def caught_up(history: History, topic: str) -> None:
    """Pause for a while, then read the backlog in one or two steps."""
    reader = Reader(history, topic)
    reader.until(history.moment())
    reader.until(reader.now + 400_000, committing=False)
    if history.chance.random() < 0.5:
        reader.step(reader.offset + 3_000)
    reader.step(reader.end)
    reader.until(END)


def overrun(history: History, topic: str) -> None:
    """Pause until retention deletes unread records; resume at the log start or end."""
    reader = Reader(history, topic)
    reader.until(history.moment())
    reader.until(reader.now + 40_000, committing=False)
    reader.start, reader.end = reader.offset + 25_000, reader.offset + 60_000
    reader.until(reader.now + 40_000, committing=False)
    if history.chance.random() < 0.5:
        reader.step(reader.start, "jump", "retention")
        reader.lag = reader.end - reader.offset
    else:
        reader.step(reader.end, "jump", "retention", "to_latest")
    reader.until(END)


def too_fast(history: History, topic: str) -> None:
    """Advance faster than any consumer reads."""
    reader = Reader(history, topic)
    reader.until(history.moment())
    reader.end += 30_000_000
    reader.until(reader.now + 1, committing=False)
    reader.step(reader.offset + 20_000_000, "jump")
    reader.lag = reader.end - reader.offset
    reader.until(END)


def while_down(history: History, topic: str) -> None:
    """Rewind while the agent is down."""
    reader = Reader(history, topic)
    reader.until(DOWN[0] + 300_000)
    reader.offset -= 45_000
    reader.lag = reader.end - reader.offset
    reader.until(DOWN[1])
    reader.step(reader.offset + 1, "rewind", "over_a_gap")
    reader.until(END)


def unavailable(history: History, topic: str) -> None:
    """Rewind while the group is unavailable to the agent."""
    reader = Reader(history, topic, f"hidden-{topic}")
    history.hidden.append(reader.group)
    reader.until(history.moment())
    where: dict[str, Any] = {"source": "kafka", "cluster": CLUSTER, "group": reader.group}
    history.add(reader.now, Unavailable(at=reader.now, reason="its coordinator does not answer", **where))
    reader.available = False
    reader.until(reader.now + 200_000)
    reader.available = True
    history.add(reader.now, Available(at=reader.now, **where))
    reader.step(reader.offset - 30_000, "rewind", "over_a_gap")
    reader.until(END)


def clock_set_back(history: History, topic: str) -> None:
    """Rewind just when the agent's clock is set back."""
    reader = Reader(history, topic)
    reader.until(SET_BACK)
    reader.step(reader.offset - 5_000, "rewind", "clock_set_back")
    reader.until(END)


SCENARIOS: tuple[Callable[[History, str], None], ...] = (
    steady, rewinds, late, doubled, polled, at_once, after_session_loss, recreated, expired, surge, caught_up,
    overrun, too_fast, while_down, unavailable, clock_set_back,
)  # fmt: skip


def drawn(seed: int, times: int = 2) -> History:
    """Return a history with every scenario `times` times."""
    history = History(seed)
    for number in range(times):
        for scenario in SCENARIOS:
            scenario(history, f"{scenario.__name__}-{number}")
    return history
