"""The model of Kafka, Flink and Streams: deterministic, true to its own laws, and seen as the sources would see it."""

import random
from collections import defaultdict
from pathlib import Path

import pytest

from agent.engine.engine import Engine
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, PartitionState
from agent.sources.base import ChangeDetector
from testbed.model.backtest import report, run_seed
from testbed.model.clients import draw_purging_application
from testbed.model.clock import HOUR, MINUTE, SECOND, Clock
from testbed.model.cluster_faults import FAULTS, unclean_election
from testbed.model.evidence import Evidence
from testbed.model.faults import Fault, offset_forgotten, retention_overrun, seek_back
from testbed.model.groups import Group
from testbed.model.kafka import Cluster
from testbed.model.scenario import Scenario, draw
from testbed.model.score import Scorer, run
from testbed.model.truth import Effect, Truth, from_json, to_json
from testbed.model.views import KafkaView
from testbed.model.world import World
from testbed.model.zookeeper_view import ZooKeeperView

RULES = Path(__file__).parents[2] / "rules.toml"
SMALL = 1_500


def cluster(now: int = 1_000_000_000) -> Cluster:
    clock = Clock(now)
    truth = Truth(seed=0, began_at=now, ended_at=now + HOUR)
    rng = random.Random(1)  # noqa: S311 - repeatable
    return Cluster("main", clock, rng, truth, brokers=3, has_zookeeper=True, version=(2, 4))


def reading_group(kafka: Cluster, *, policy: str = "earliest") -> Group:
    topic = kafka.create_topic("orders", 2, 3, end=lambda: 50_000)
    group = Group(kafka, "billing", policy=policy, interval=5 * SECOND, members=2)
    for log in topic.logs:
        log.rate = 100.0
        group.read(log, 50_000, 1_000)
    return group


def flat(scenario: Scenario) -> list[Observation]:
    return [fact for batch in scenario.batches for fact in batch]


def test_same_seed_gives_same_scenario() -> None:
    first, second = draw(11, changes=SMALL), draw(11, changes=SMALL)
    assert first.batches == second.batches
    assert to_json(first.truth) == to_json(second.truth)
    assert draw(12, changes=SMALL).batches != first.batches


@pytest.mark.parametrize("seed", range(20, 26))
def test_observations_obey_the_laws_of_kafka(seed: int) -> None:
    scenario = draw(seed, changes=SMALL)
    last: dict[object, Observation] = {}
    for fact in flat(scenario):
        before = last.get(fact.subject)
        assert before is None or before.at <= fact.at, "facts of one subject arrive in order"
        assert fact.since is None or fact.start <= fact.at
        last[fact.subject] = fact
        match fact:
            case LogOffsets():
                assert 0 <= fact.log_start <= fact.log_end
            case PartitionState() if fact.replicas:
                assert set(fact.isr) <= set(fact.replicas)
                assert fact.leader is None or fact.leader in fact.isr
            case GroupState():
                assigned = [place for member in fact.members for place in member.partitions]
                assert len(assigned) == len(set(assigned))


@pytest.mark.parametrize("seed", range(30, 34))
def test_commits_stay_within_the_log(seed: int) -> None:
    scenario = draw(seed, faults=[], changes=SMALL)
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for fact in reversed(flat(scenario)):
        if isinstance(fact, LogOffsets):
            ends[fact.topic, fact.partition] = max(ends[fact.topic, fact.partition], fact.log_end)
    for fact in flat(scenario):
        if isinstance(fact, Commit) and fact.offset is not None and (fact.topic, fact.partition) in ends:
            assert fact.offset <= ends[fact.topic, fact.partition] or scenario.truth.ended_at - fact.at < 2 * MINUTE


@pytest.mark.parametrize("seed", range(40, 46))
def test_ordinary_life_wants_no_alarm(seed: int) -> None:
    events = draw(seed, faults=[], changes=SMALL).truth.events
    assert events
    assert all("retention overran" in event.name for event in events if event.wanted == "loud")


def test_each_fault_finds_a_target() -> None:
    acted: set[Fault] = set()

    def watched(fault: Fault) -> Fault:
        def act(world: World) -> bool:
            done = fault(world)
            if done:
                acted.add(fault)
            return done

        return act

    for seed in range(60, 84):
        draw(seed, faults=[watched(fault) for fault in set(FAULTS) - acted], changes=SMALL)
        if acted == set(FAULTS):
            break
    assert acted == set(FAULTS)


def test_reader_reads_at_its_pace_to_the_end() -> None:
    kafka = cluster()
    group = reading_group(kafka)
    group.readers[0].position = 40_000
    kafka.clock.run(kafka.clock.now + 5 * SECOND)
    for reader in group.readers:
        reader.catch_up(kafka.clock.now)
    slow, fast = group.readers
    assert (slow.position, fast.position) == (45_000, 50_500)


def test_cooperative_members_read_on_in_a_rebalance() -> None:
    for assignor, advance in (("cooperative-sticky", 400), ("range", 0)):
        kafka = cluster()
        group = reading_group(kafka)
        group.assignor = assignor
        group.rebalance(5 * SECOND)
        kafka.clock.run(kafka.clock.now + 4 * SECOND)
        for reader in group.readers:
            reader.catch_up(kafka.clock.now)
        assert group.state == "PreparingRebalance"
        assert {reader.position for reader in group.readers} == {50_000 + advance}


def test_commits_read_from_the_log_are_dated_exactly() -> None:
    commits: dict[object, list[Commit]] = defaultdict(list)
    for fact in flat(draw(11, changes=SMALL, tails=True)):
        if isinstance(fact, Commit):
            commits[fact.subject].append(fact)
    read = [fact for history in commits.values() for fact in history if fact.seen_at is not None]
    assert len(read) > 1_000
    assert all(fact.since is None and fact.at <= fact.seen for fact in read)
    for history in commits.values():
        assert [fact.at for fact in history] == sorted(fact.at for fact in history)


def test_purging_application_loses_nothing() -> None:
    kafka = cluster()
    view = KafkaView(kafka, kafka.clock, lambda _: None, kafka.rng, interval=5 * SECOND, newer=True)
    draw_purging_application(World(kafka.clock, kafka.rng, kafka.truth, kafka, view, None))
    before = [log.start for log in kafka.logs()]
    kafka.clock.run(kafka.clock.now + 10 * MINUTE)
    assert all(log.start > start for log, start in zip(kafka.logs(), before, strict=True))
    assert not [effect for event in kafka.truth.events for effect in event.effects]


def test_crash_commits_nothing_and_stop_commits() -> None:
    for crashes in (False, True):
        kafka = cluster()
        group = reading_group(kafka)
        group.interval = HOUR
        kafka.clock.run(kafka.clock.now + 10 * SECOND)
        group.stop(crashes=crashes)
        assert (group.readers[0].committed == 50_000) is crashes


def test_truncation_resets_old_clients_and_moves_new_ones_to_the_divergence() -> None:
    for detects, to in ((False, 0), (True, 49_000)):
        kafka = cluster()
        group = reading_group(kafka)
        group.detects_truncation = detects
        kafka.elect_uncleanly(group.readers[0].log, 2, 1_000)
        kafka.clock.run(kafka.clock.now + 2 * SECOND)
        (event,) = kafka.truth.events
        (effect,) = event.effects
        assert (effect.before, effect.after) == (50_000, to)
        assert effect.records == (0 if detects else 49_000), "what no longer exists is not read again"


def test_truncation_moves_a_reader_once_though_another_is_stuck() -> None:
    kafka = cluster()
    group = reading_group(kafka)
    group.detects_truncation = True
    log = group.readers[0].log
    group.read(log, 50_000, 1_000).is_stuck = True
    kafka.elect_uncleanly(log, 2, 1_000)
    for _ in range(3):
        kafka.clock.run(kafka.clock.now + MINUTE)
        group.rebalance(SECOND)
    assert len([effect for event in kafka.truth.events for effect in event.effects]) == 1


def test_retention_answers_for_a_jump_over_what_it_deleted() -> None:
    """That the log was truncated some minutes before moved nobody who had read less than what remained."""
    kafka = cluster()
    group = reading_group(kafka)
    log, now = group.readers[0].log, kafka.clock.now
    election = log.cause = kafka.truth.begin("unclean election", now, now, "main")
    group.set_pace(0)
    kafka.clock.run(now + MINUTE)
    kafka.delete_records(log, 53_000)
    group.set_pace(1)
    kafka.clock.run(kafka.clock.now + 2 * SECOND)
    assert not election.effects
    (retention,) = (event for event in kafka.truth.events if event is not election)
    assert [effect.kinds[0] for effect in retention.effects] == ["retention_overrun", "offset_jump"]


def test_new_partition_is_read_when_it_is_assigned() -> None:
    kafka = cluster()
    group = reading_group(kafka)
    log = kafka.add_partition(group.readers[0].log.topic, 3)
    group.rebalance(3 * SECOND, found=lambda: group.read(log, 0, 1_000))
    assert all(reader.log is not log for reader in group.readers)
    kafka.clock.run(kafka.clock.now + 4 * SECOND)
    assert any(log.place in member.partitions for member in group.view())


def test_commits_on_a_deleted_topic_are_rejected() -> None:
    kafka = cluster()
    group = reading_group(kafka)
    kafka.delete_topic(group.readers[0].log.topic)
    group.forget()
    group.sync(kafka.clock.now + MINUTE)
    assert [reader.committed for reader in group.readers] == [None, None]


def test_follower_joins_the_isr_when_a_leader_is_back() -> None:
    kafka = cluster()
    reading_group(kafka)
    log = next(iter(kafka.logs()))
    leader, follower = log.replicas[:2]
    kafka.elect(log, None, (leader,))
    kafka.add_to_isr(log, follower)
    assert follower not in log.isr
    kafka.elect(log, leader)
    kafka.clock.run(kafka.clock.now + 10 * SECOND)
    assert follower in log.isr


def test_controlled_shutdown_moves_leaders_first() -> None:
    kafka = cluster()
    group = reading_group(kafka)
    broker = kafka.brokers[group.readers[0].log.leader or 0]
    kafka.stop(broker, down_ms=20 * SECOND)
    assert all(log.leader != broker.number and log.open for log in kafka.logs())
    kafka.clock.run(kafka.clock.now + MINUTE)
    assert all(set(log.isr) == set(log.replicas) for log in kafka.logs())


def test_new_partition_is_not_placed_on_a_broker_that_is_down() -> None:
    kafka = cluster()
    topic = reading_group(kafka).readers[0].log.topic
    kafka.unregister(kafka.brokers[2])
    assert {kafka.add_partition(topic, 1).replicas for _ in range(3)} == {(1,), (3,)}


def test_topic_is_created_again_after_its_deletion_by_a_clock_that_is_behind() -> None:
    kafka, facts = cluster(), list[Observation]()
    ZooKeeperView(kafka, facts.extend, skew=-20 * SECOND, newer=True)
    topic = reading_group(kafka).readers[0].log.topic
    for action in (lambda: kafka.delete_topic(topic), lambda: kafka.create_topic("orders", 2, 3)):
        kafka.clock.run(kafka.clock.now + 5 * SECOND)
        action()
    kafka.clock.run(kafka.clock.now + 5 * SECOND)
    states = [fact for fact in facts if isinstance(fact, PartitionState) and fact.partition == 0]
    assert [bool(state.replicas) for state in states] == [True, False, True]
    assert [state.at for state in states] == sorted(state.at for state in states)


def test_absence_while_backflow_was_suspended_is_not_wanted() -> None:
    for lasts, must in ((2 * MINUTE, True), (8 * MINUTE, False)):
        kafka = cluster()
        view = KafkaView(kafka, kafka.clock, lambda _: None, kafka.rng, interval=5 * SECOND, newer=True)
        world = World(kafka.clock, kafka.rng, kafka.truth, kafka, view, None)
        world.asleep.append((world.now, world.now + lasts))
        effect = Effect(kinds=("broker_down",), subject={"broker": 1}, at=world.now)
        world.want_if_watched(effect, 10 * MINUTE)
        kafka.clock.run(kafka.clock.now + 11 * MINUTE)
        assert effect.must is must


def test_view_reduces_polls_as_the_change_detector_does() -> None:
    kafka = cluster()
    reading_group(kafka)

    class Unreduced(KafkaView):
        """The same polls with every fact in each."""

        def _read_groups(self) -> None:
            for shown in (self._commits, self._groups, self._logs):
                shown.clear()
            super()._read_groups()

        def _read_commits(self) -> None:
            for group in self._cluster.groups.values():
                group.has_new_commits = True
            super()._read_commits()

    reduced: list[Observation] = []
    polls: list[Observation] = []
    for view, emit in ((KafkaView, reduced.extend), (Unreduced, polls.extend)):
        rng = random.Random(5)  # noqa: S311 - both views poll at the same moments
        view(kafka, kafka.clock, emit, rng, interval=10 * SECOND, newer=False)
    kafka.clock.run(kafka.clock.now + 30 * MINUTE)

    def kept(facts: list[Observation]) -> list[Observation]:
        return [fact for fact in facts if isinstance(fact, Commit | GroupState | LogOffsets)]

    assert kept(reduced) == kept(ChangeDetector().changes(kept(polls)))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [seek_back, offset_forgotten, retention_overrun, unclean_election])
def test_without_rules_every_visible_incident_is_missed(fault: Fault) -> None:
    for seed in range(60, 90):
        scenario = draw(seed, faults=[fault], changes=SMALL)
        outcome = run(Engine({}, {}), scenario.batches)
        result = Scorer(scenario.truth, Evidence(scenario.truth, scenario.batches), outcome).score()
        assert result.events_found == 0
        if result.events:
            assert {shortfall.kind for shortfall in result.shortfalls} == {"missed"}
            return
    pytest.fail("no seed made the fault visible")


def test_truth_survives_json() -> None:
    truth = draw(61, faults=[seek_back], changes=SMALL).truth
    assert from_json(to_json(truth)) == truth


@pytest.mark.slow
def test_smoke_backtest_reports_recall_of_rewinds() -> None:
    results = [run_seed(seed, RULES, changes=SMALL)[0] for seed in (22, 28)]
    lines = list(report(results))
    assert any(line.startswith("recall of events") for line in lines)
    assert all(seen.found <= seen.wanted for result in results for seen in result.by_kind.values())
