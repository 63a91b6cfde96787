"""Hypothesis strategies: lives of a simulated cluster, arbitrary observations, and the order in which they arrive."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import msgspec
from hypothesis import strategies as st

from agent.engine.history import LATENESS_MS
from agent.model.observations.base import Available, Observation, Subject, Tick, Unavailable
from agent.model.observations.checks import CheckFinding, CheckRun
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.model.observations.kafka import (
    BrokerRegistration,
    Commit,
    Controller,
    GroupState,
    LogOffsets,
    Member,
    PartitionState,
)
from agent.model.observations.logs import LogLine
from agent.model.observations.streams import ChangelogDecreases, Decrease, TaskRestore
from agent.model.times import millis
from tests.builders import BEGINNING, CLUSTER, check_finding
from tests.simulated_flink import FLINK
from tests.simulated_kafka import FAULTS, Fault, simulate


def ticks(observations: Sequence[Observation], every: int) -> list[Observation]:
    """Return ticks, `every` ms apart, from the observations' first moment or last tick on, until all have arrived.

    What arrives after the last tick would come from an agent that is suspended.
    """
    if not observations:
        return []
    begin = max(
        (observation.at + every for observation in observations if isinstance(observation, Tick)),
        default=min(observation.at for observation in observations),
    )
    end = max(observation.seen for observation in observations) + LATENESS_MS
    return [Tick(at=at) for at in range(begin, end + every, every)]


def delay(observations: Sequence[Observation], delays: Sequence[int], wobble: int) -> list[Observation]:
    """Return the observations in order of arrival.

    Each subject is delayed by one of `delays`, ms, and each observation by up to `wobble` more, in all at most by the
    allowed lateness. Each subject's own order is kept. Ticks are the agent's own: late ones would show a suspension.
    """
    delay_of: dict[Subject, int] = {}
    latest: dict[Subject, int] = {}
    keyed = []
    for number, observation in enumerate(observations):
        subject = observation.subject
        subject_delay = delay_of.setdefault(subject, delays[len(delay_of) % len(delays)])
        is_tick = isinstance(observation, Tick)
        late = 0 if is_tick else min(subject_delay + (number * 7_919 % wobble if wobble else 0), LATENESS_MS)
        arrival = max(observation.at + late, observation.seen)
        latest[subject] = max(arrival, latest.get(subject, arrival))
        keyed.append((latest[subject], subject_delay, number))
    return [observations[number] for *_, number in sorted(keyed)]


def split(observations: Sequence[Observation], sizes: Sequence[int]) -> Iterator[Sequence[Observation]]:
    """Yield the observations in batches of these sizes, repeated as needed."""
    begin = 0
    for size in cycle(sizes):
        if begin >= len(observations):
            return
        yield observations[begin : begin + size]
        begin += size


faults = st.lists(
    st.builds(
        Fault, st.sampled_from(FAULTS), st.integers(20, 200), st.integers(0, 6), st.integers(0, 40), st.integers(0, 5)
    ),
    min_size=1,
    max_size=5,
)
scenarios = st.builds(
    simulate,
    faults,
    polled=st.sampled_from([0, 5_000, 1_000_000]),
    lag=st.sampled_from([0, 0, 900, 20_000]),
    sessions=st.sampled_from([True, True, False]),
)
delays = st.lists(st.integers(0, LATENESS_MS) | st.sampled_from([0, LATENESS_MS]), min_size=8, max_size=24)
wobbles = st.sampled_from([0, 0, 5_000, 40_000])
sizes = st.lists(st.integers(1, 400), min_size=1, max_size=4) | st.sampled_from([[1], [1_000_000]])

_offsets = (
    st.none() | st.integers(0, 30).map(lambda number: number * 700) | st.sampled_from([-1, -1001, 2**62, -(2**62)])
)
_known_offsets = st.integers(0, 30).map(lambda number: number * 700) | st.sampled_from([-1, 2**62, -(2**62)])
_brokers = st.sampled_from([1, 2, 3])
_partition = {"topic": st.sampled_from(["t", "u"]), "partition": st.sampled_from([0, 1])}
_ids = st.lists(_brokers, max_size=3).map(tuple)
_members = st.lists(
    st.builds(
        Member,
        id=st.sampled_from(["m", "n"]),
        partitions=st.sampled_from([(), (("t", 0),), (("t", 1), ("u", 0))]),
        client_id=st.sampled_from([None, "m-consumer"]),
    ),
    max_size=2,
).map(tuple)


_times = {
    "at": st.just(0),
    "seen_at": st.sampled_from([None, None, None, -5_000, 30_000]),
    "since": st.sampled_from([None, None, 0, -4_000, -200_000, 9_000]),
    "cluster": st.just(CLUSTER),
}
_availability = {
    **_times,
    "source": st.sampled_from(["kafka", "zookeeper"]),
    "group": st.sampled_from([None, "g"]),
    "topic": st.sampled_from([None, "t"]),
    "partition": st.sampled_from([None, 0]),
}
_group = st.sampled_from(["g", "h"])
_checks = st.sampled_from(["log_segments", "replica_divergence", "offset_history"])
_jobs = {**_times, "cluster": st.just(FLINK), "job": st.sampled_from(["j", "k"])}
_count = st.sampled_from([0, 1, 4, 9])
_past_times = st.sampled_from([None, 0, BEGINNING, BEGINNING + 4_000, BEGINNING + 90_000])
_session = st.sampled_from([None, "0x1", "0x2"])
_files = st.sampled_from(["submittedJobGraph0", "submittedExecutionPlan1"])
_flink: list[st.SearchStrategy[Observation]] = [
    st.builds(
        FlinkJob, **_jobs, name=st.just("n"), started_at=st.sampled_from([0, BEGINNING, BEGINNING + 50_000]),
        state=st.sampled_from(["RUNNING", "RUNNING", "RESTARTING", "CREATED", "CANCELED", "SUSPENDED", "?"]),
        restarting_at=_past_times, tasks=_count, tasks_running=_count,
    ),
    st.builds(
        JobListing, **(_times | {"cluster": st.just(FLINK)}), jobs=st.sampled_from([(), ("j",), ("j", "k"), ("k",)])
    ),
    st.builds(
        Checkpoints, **_jobs, completed=_count, failed=_count, restored=_count, last=st.none() | _count,
        restored_id=st.none() | _count, restored_at=_past_times,
    ),
    st.builds(
        JobManagerLeader, **(_times | {"cluster": st.just(FLINK)}), address=st.sampled_from([None, "a", "b"]),
        leader_id=st.sampled_from([None, "x", "y"]), session=_session,
    ),
    st.builds(
        JobGraph, **_jobs, made_at=_past_times, locks=st.sampled_from([(), ("0x1",), ("0x1", "0x2")]),
        file=st.none() | _files, checkpoints=st.none() | _count,
    ),
    st.builds(JobGraphFile, **(_times | {"cluster": st.just(FLINK)}), file=_files, modified_at=_past_times),
    st.builds(
        Position, **_times, **_partition, flink=st.just(FLINK), job=st.sampled_from(["j", "k"]), name=st.just("n"),
        offset=_known_offsets, committed=_offsets,
    ),
    st.builds(
        LogLine, **_times, topic=st.sampled_from([None, "t"]), partition=st.sampled_from([None, 0]), log=st.just("l"),
        component=st.just("consumer"), text=st.just(""), job=st.sampled_from([None, "j"]),
        pattern=st.sampled_from(["fetch_offset_out_of_range", "truncation_detected", "offset_reset", "other"]),
        values=st.sampled_from([{}, {"offset": "7"}, {"offset": "INVALID"}, {"to": "0"}, {"to": "9" * 30}]),
    ),
]  # fmt: skip
_streams: list[st.SearchStrategy[Observation]] = [
    st.builds(
        ChangelogDecreases, **_times, topic=st.sampled_from(["t", "g-s-changelog"]), partition=st.just(0),
        application=_group, store=st.just("s"),
        began_at=st.sampled_from([0, BEGINNING, BEGINNING + 20_000]), keys=_count, total=_count, first_offset=_count,
        worst=st.sampled_from([(), (Decrease("k", 9, 1, 7),)]),
        sum_before=st.none() | _known_offsets, sum_after=st.none() | _known_offsets,
        sum_at=st.sampled_from([None, BEGINNING, BEGINNING + 40_000]),
    ),
    st.builds(
        LogLine, **_times, topic=st.sampled_from([None, "g-s-changelog"]), partition=st.sampled_from([None, 0]),
        log=st.just("l"), component=st.just("streams"), text=st.sampled_from(["", "stream-thread [m] it"]),
        pattern=st.sampled_from(["store_without_checkpoint", "store_restored"]),
        values=st.sampled_from([
            {}, {"store": "s"}, {"store": "s", "task": "0_0"}, {"store": "g-s-changelog-0", "task": "0_0"},
            {"store": "s", "records": "0"}, {"store": "s", "records": "9" * 30},
        ]),
    ),
    st.builds(
        TaskRestore, **_times, application=st.just("g"), endpoint=st.sampled_from(["a", "b"]), task=st.just("0_0"),
        thread=st.sampled_from([None, "m", "n"]), stores=st.sampled_from([(), ("s",), ("s", "t")]),
        restored_total=st.sampled_from([None, 0, 7]),
    ),
    st.builds(
        LogOffsets, **_times, topic=st.just("g-s-changelog"), partition=st.just(0), log_start=_known_offsets,
        log_end=_known_offsets,
    ),
]  # fmt: skip
_any_observation: st.SearchStrategy[Observation] = st.one_of(
    st.builds(Commit, **_times, **_partition, group=_group, offset=_offsets, leader_epoch=st.sampled_from([None, 3])),
    st.builds(LogOffsets, **_times, **_partition, log_start=_known_offsets, log_end=_known_offsets),
    st.builds(
        PartitionState, **_times, **_partition, leader=st.sampled_from([None, -1, 1, 2, 3]), replicas=_ids, isr=_ids,
        leader_epoch=st.sampled_from([None, 0, 4]), topic_id=st.sampled_from([None, "x", "y"]),
    ),
    st.builds(
        BrokerRegistration, **_times, broker=_brokers, session=st.sampled_from([None, "0x1", "0x2"]),
        epoch=st.sampled_from([None, -1, 5]),
    ),
    st.builds(Controller, **_times, broker=st.sampled_from([None, 1, 2])),
    st.builds(
        GroupState, **_times, group=_group, members=_members,
        state=st.sampled_from(["Empty", "Stable", "Dead", "PreparingRebalance", "CompletingRebalance"]),
        simple=st.sampled_from([None, True, False]),
    ),
    st.builds(
        CheckFinding, **_times, **_partition, check=_checks, broker=st.sampled_from([None, 1]),
        finding=st.sampled_from([
            "", "{}", check_finding("log_segments", 0, BEGINNING, {"topic": "t", "partition": 0, "broker": 1}).finding,
        ]),
    ),
    st.builds(
        CheckRun, **_times, check=_checks, started_at=st.just(0), complete=st.booleans(),
        outcome=st.sampled_from(["clean", "found", "failed"]),
    ),
    *_flink,
    *_streams,
    st.builds(Unavailable, **_availability, reason=st.just("no answer")),
    st.builds(Available, **_availability),
    st.builds(Tick, at=st.just(0)),
)  # fmt: skip
_FIRST, _LAST = millis("0001-01-01T00:10:00Z"), millis("9999-12-31T23:00:00Z")
_beginnings = st.sampled_from([BEGINNING, BEGINNING, 0, _FIRST, _LAST])
_steps = st.sampled_from([0, 0, 1, 900, 2_000, 5_000, 20_000, -3_000, -70_000, 400_000])
_steps_and_observations = st.lists(st.tuples(_steps, _any_observation), max_size=60)


@st.composite
def arbitrary(draw: st.DrawFn) -> list[Observation]:
    """Draw any observations: few keys, any values, times equal, decreasing or far apart, `since` after `at`."""
    at = draw(_beginnings)
    drawn: list[Observation] = []
    for step, observation in draw(_steps_and_observations):
        at = min(max(at + step, _FIRST), _LAST)
        seen_at, since = (
            None if time is None else min(at + time, _LAST) for time in (observation.seen_at, observation.since)
        )
        drawn.append(msgspec.structs.replace(observation, at=at, seen_at=seen_at, since=since))
    return drawn
