"""Recorded observations make the incidents they would have made live: sorted, without history."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.cli.replay import RecordingError, read, replay
from agent.config.loading import load
from agent.engine.engine import Engine
from agent.engine.history import LATENESS_MS
from agent.engine.recorded import batches, moments
from agent.model.batches import CommitBatch, LogOffsetsBatch
from agent.model.encoding import to_json
from agent.model.findings import Incident, Severity
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import BrokerRegistration, Commit
from agent.model.times import rfc3339
from agent.storage.journal.reader import chunks
from agent.storage.journal.writer import Journal
from tests import builders
from tests.builders import BEGINNING

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)


def replayed(*observations: Observation) -> list[Incident]:
    return replay(moments(observations), Engine(SHIPPED.rules, SHIPPED.correlations))


def commit(at: int, offset: int, group: str = "g", cluster: str = "main") -> Commit:
    return Commit(at=BEGINNING + at, cluster=cluster, group=group, topic="t", partition=0, offset=offset)


def broker(at: int, session: str | None) -> BrokerRegistration:
    epoch = None if session is None else 1
    return BrokerRegistration(at=BEGINNING + at, cluster="main", broker=1, session=session, epoch=epoch)


def test_blank_lines_are_ignored(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f"{to_json(commit(0, 9_000))}\n\n{to_json(commit(1_000, 0))}\n", encoding="utf-8")
    made = list(batches(read(str(lines), SHIPPED.journal)))
    assert made == [[commit(0, 9_000)], [commit(1_000, 0)]]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"rewind","at":"2026-11-20T09:35:01.711Z"}',
        '{"kind":"tick","at":"2026-11-20T09:35:01.711Z","colour":"red"}',
        '{"kind":"tick","at":"yesterday"}',
        '{"kind":"tick"',
        "[]",
        pytest.param("[" * 70_000, id="nested"),
        to_json(commit(0, 2**60)).replace(str(2**60), str(2**63)),
        to_json(builders.partition_state(0, leader=1, isr=(1, 2**60))).replace(str(2**60), str(-(2**63) - 1)),
    ],
)
def test_all_invalid_lines_are_reported_with_their_numbers(tmp_path: Path, line: str) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f"{to_json(commit(0, 1))}\n{line}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(RecordingError) as raised:
        list(read(str(lines), SHIPPED.journal))
    assert [problem.split(" ")[0] for problem in raised.value.problems] == [f"{lines}:2:", f"{lines}:4:"]


def test_journal_replays_like_its_lines(tmp_path: Path) -> None:
    observations = [commit(0, 9_000), commit(1_000, 0), Tick(at=BEGINNING + 2_000)]
    journal = Journal(tmp_path)
    journal.append(observations)
    journal.flush()
    journal.close()
    replayed_journal = replay(
        batches(read(str(tmp_path), SHIPPED.journal)), Engine(SHIPPED.rules, SHIPPED.correlations)
    )
    assert replayed_journal == replayed(*observations) != []


def test_any_cluster_name_is_accepted() -> None:
    (incident,) = replayed(commit(0, 9_000, cluster="Wien-3"), commit(1_000, 0, cluster="Wien-3"))
    assert incident.cluster == "Wien-3"


def test_lines_up_to_a_minute_late_are_sorted() -> None:
    early, late = commit(LATENESS_MS, 1), commit(0, 1, group="h")
    assert list(moments([early, late])) == [[late], [early]]


def test_facts_of_one_moment_are_sorted_by_subject() -> None:
    first, second, other = commit(0, 1), commit(0, 2), commit(0, 1, group="f")
    assert list(moments([first, second, other])) == list(moments([other, first, second])) == [[other, first, second]]


def test_batch_contains_the_facts_of_one_moment() -> None:
    made = list(moments([commit(1, 5), commit(0, 1, group="h"), broker(1, "0x1")]))
    assert [len(batch) for batch in made] == [1, 2]


def test_line_older_than_the_last_of_its_subject_is_ignored() -> None:
    lines = [commit(10_000, 9_000), commit(5_000, 100), commit(11_000, 9_100)]
    assert list(moments(lines)) == [[lines[0]], [lines[2]]]
    assert replayed(*lines) == []


def test_absence_is_detected_without_recorded_ticks() -> None:
    (gone,) = [
        finding
        for incident in replayed(broker(0, "0x1"), broker(10_000, None), broker(370_000, "0x2"))
        for finding in incident.findings
        if finding.kind == "broker_down"
    ]
    assert (gone.at, gone.known_at, gone.recovered_at) == (BEGINNING + 10_000, BEGINNING + 310_000, BEGINNING + 370_000)


def test_incidents_have_their_state_at_the_last_line() -> None:
    lines = [commit(0, 9_000), commit(1_000, 0), commit(2_000, 9_000)]
    assert [incident.status for incident in replayed(*lines)] == ["recovered"]
    assert [incident.status for incident in replayed(*lines, Tick(at=BEGINNING + 86_400_000))] == ["closed"]


def test_incidents_are_in_the_order_of_opening() -> None:
    made = replayed(
        *(
            commit(at, offset, group)
            for at, group in ((0, "h"), (600_000, "g"))
            for at, offset in ((at, 9_000), (at + 1, 0))
        )
    )
    assert [incident.findings[0].subject["group"] for incident in made] == ["h", "g"]
    assert [rfc3339(incident.opened_at) for incident in made] == sorted(
        rfc3339(incident.opened_at) for incident in made
    )


@pytest.mark.parametrize("lead", [-20_000, 0, 20_000])
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_replay_names_incidents_as_the_daemon_did(size: int, lead: int) -> None:
    """ZooKeeper's clock is ahead or behind, and batches are cut anywhere."""
    commits = [
        *(commit(1_000 * second, 10_000 + 100 * second) for second in range(100)),
        *(commit(1_000 * second, 100 * second - 10_000) for second in range(100, 130)),
    ]
    sessions = [
        replace(broker(at, session), at=BEGINNING + at + lead, since=BEGINNING + at + lead, seen_at=BEGINNING + at + 40)
        for at, session in ((0, "0xa"), (94_000, None), (101_000, "0xb"))
    ]
    states = [
        replace(
            builders.partition_state(second, leader),
            at=builders.after(second) + lead,
            seen_at=builders.after(second) + 50,
        )
        for second, leader in ((0, 1), (95, 2))
    ]
    observations: list[Observation] = [*commits, *sessions, *states]
    arrived = sorted(observations, key=lambda reading: reading.seen_at or reading.at)
    live, incidents = Engine(SHIPPED.rules, SHIPPED.correlations), dict[str, Incident]()
    for start in range(0, len(arrived), size):
        incidents |= {incident.id: incident for incident in live.take(arrived[start : start + size])}
    incidents |= {incident.id: incident for incident in live.catch_up()}
    (reported,) = loud(incidents.values())
    assert [cause.kind for cause in reported.causes] == ["broker_session_lost", "leader_moved"]
    for recorded in (arrived, sorted(arrived, key=lambda reading: reading.at)):
        assert loud(replayed(*recorded)) == [reported]


def loud(incidents: Iterable[Incident]) -> list[Incident]:
    return [incident for incident in incidents if incident.severity is not Severity.INFO and incident.findings]


@pytest.mark.parametrize("behind", [0, 30_000])
def test_a_dense_journal_replays_like_its_moments(tmp_path: Path, behind: int) -> None:
    """Commits and log offsets of a second are taken together; a coordinator's clock may be behind by so many ms."""
    observations: list[Observation] = []
    for second in range(180):
        observations += [
            replace(builders.log_offsets(second, 50_000 + 200 * second), partition=partition) for partition in range(40)
        ]
        made = [builders.commit(second + partition / 100, 10_000 + 150 * second, partition) for partition in range(40)]
        if second >= 100:
            made[7] = replace(made[7], offset=150 * (second - 100))
        observations += [replace(commit, at=commit.at - behind, seen_at=commit.at) for commit in made]
    journal = Journal(tmp_path)
    journal.append(observations)
    journal.flush()
    journal.close()
    taken = list(batches(read(str(tmp_path), SHIPPED.journal)))
    assert {type(batch) for batch in taken} == {LogOffsetsBatch, CommitBatch}
    incidents = replay(taken, Engine(SHIPPED.rules, SHIPPED.correlations))
    (rewind,) = [finding for incident in incidents for finding in incident.findings]
    assert (rewind.kind, rewind.subject["partition"]) == ("offset_rewind", 7)
    assert [incident.findings for incident in replayed(*observations)] == [(rewind,)]


@pytest.mark.parametrize("ahead", [3_000, 3_600_000, 86_400_000])
def test_a_clock_that_was_ahead_hides_nothing_in_a_replay(tmp_path: Path, ahead: int) -> None:
    """For a minute; then it is set back. A rewind follows before the time that it showed."""
    observations: list[Observation] = []
    for second in range(900):
        shift = ahead if 300 <= second < 360 else 0
        committed = builders.commit(second, 100 * second if second < 600 else 100 * second - 50_000)
        tick = builders.tick(second)
        observations += [replace(seen, at=seen.at + shift) for seen in (tick, committed)]
    journal = Journal(tmp_path)
    for start in range(0, len(observations), 100):
        journal.append(observations[start : start + 100])
        journal.flush()
    journal.close()
    incidents = replay(batches(read(str(tmp_path), SHIPPED.journal)), Engine(SHIPPED.rules, SHIPPED.correlations))
    (rewind,) = [finding for incident in incidents for finding in incident.findings]
    assert (rewind.kind, rewind.at, rewind.records.reread) == ("offset_rewind", builders.after(600), 49_900)


def test_agents_are_read_together_in_the_order_in_which_they_saw(tmp_path: Path) -> None:
    for agent, seconds in (("a", range(0, 400, 2)), ("b", range(101, 301, 2))):
        journal = Journal(tmp_path / agent)
        journal.append([builders.commit(second, second, group=agent) for second in seconds])
        journal.flush()
        journal.close()
    seen = [
        observation.seen for batch in batches(map(chunks, (tmp_path / "a", tmp_path / "b"))) for observation in batch
    ]
    assert seen == sorted(seen)
    assert len(seen) == 300
