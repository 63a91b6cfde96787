"""Recorded lines become the incidents they would have made: order restored, history left out, absences noticed."""

from pathlib import Path

import pytest

from agent.cli.replay import LinesError, batches, in_order, news, read, replay
from agent.config.settings import load
from agent.engine.engine import Engine
from agent.engine.facts import LATENESS_MS
from agent.model.findings import Incident
from agent.model.observations import BrokerRegistration, Commit, Observation, Tick, rfc3339, to_json
from agent.storage.journal import Journal
from tests.strategies import BEGINNING

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False)


def replayed(*observations: Observation) -> list[Incident]:
    """The incidents that these make with the rules shipped."""
    return replay(observations, Engine(SHIPPED.rules, SHIPPED.correlations))


def commit(at: int, offset: int, group: str = "g", cluster: str = "main") -> Commit:
    """A commit so many ms after the beginning."""
    return Commit(at=BEGINNING + at, cluster=cluster, group=group, topic="t", partition=0, offset=offset)


def broker(at: int, session: str | None) -> BrokerRegistration:
    """A registration of broker 1."""
    epoch = None if session is None else 1
    return BrokerRegistration(at=BEGINNING + at, cluster="main", broker=1, session=session, epoch=epoch)


def test_lines_are_read_and_blank_ones_left_out(tmp_path: Path) -> None:
    """One observation a line."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f"{to_json(commit(0, 9_000))}\n\n{to_json(commit(1_000, 0))}\n", encoding="utf-8")
    assert list(read(lines)) == [commit(0, 9_000), commit(1_000, 0)]


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"rewind","at":"2026-11-20T09:35:01.711Z"}',
        '{"kind":"tick","at":"2026-11-20T09:35:01.711Z","colour":"red"}',
        '{"kind":"tick","at":"yesterday"}',
        '{"kind":"tick"',
        "[]",
    ],
)
def test_every_bad_line_is_told_with_its_number(tmp_path: Path, line: str) -> None:
    """Unknown kinds, unknown keys, times that are none, no JSON, no object; all of them at once."""
    lines = tmp_path / "lines.jsonl"
    lines.write_text(f"{to_json(commit(0, 1))}\n{line}\n\n{line}\n", encoding="utf-8")
    with pytest.raises(LinesError) as raised:
        list(read(lines))
    assert [problem.split(" ")[0] for problem in raised.value.problems] == [f"{lines}:2:", f"{lines}:4:"]


def test_a_journal_is_replayed_like_its_lines(tmp_path: Path) -> None:
    """A directory is a journal."""
    observations = [commit(0, 9_000), commit(1_000, 0), Tick(at=BEGINNING + 2_000)]
    journal = Journal(tmp_path)
    journal.append(observations)
    journal.flush()
    journal.close()
    replayed_journal = replay(read(tmp_path), Engine(SHIPPED.rules, SHIPPED.correlations))
    assert replayed_journal == replayed(*observations) != []


def test_any_name_of_a_cluster_will_do() -> None:
    """The shipped rules name none."""
    (incident,) = replayed(commit(0, 9_000, cluster="Wien-3"), commit(1_000, 0, cluster="Wien-3"))
    assert incident.cluster == "Wien-3"


def test_lines_out_of_order_by_a_minute_are_sorted_by_when_they_happened() -> None:
    """Two subjects, one a minute late."""
    early, late = commit(LATENESS_MS, 1), commit(0, 1, group="h")
    assert list(in_order([early, late])) == [late, early]


def test_one_moments_facts_are_sorted_by_subject_and_each_subjects_own_order_is_kept() -> None:
    """So the order in which sources wrote their lines does not matter."""
    one, two, other = commit(0, 1), commit(0, 2), commit(0, 1, group="f")
    assert list(in_order([one, two, other])) == list(in_order([other, one, two])) == [other, one, two]


def test_a_batch_is_what_is_known_of_one_moment() -> None:
    """Rules see the facts of a moment together."""
    made = list(batches([commit(1, 5), commit(0, 1, group="h"), broker(1, "0x1")]))
    assert [len(batch) for batch in made] == [1, 2]


def test_a_line_older_than_the_last_of_its_subject_is_left_out() -> None:
    """It is history: sorted in, it would be a rewind that never was."""
    lines = [commit(10_000, 9_000), commit(5_000, 100), commit(11_000, 9_100)]
    assert list(news(lines)) == [lines[0], lines[2]]
    assert replayed(*lines) == []


def test_an_absence_is_noticed_though_no_line_says_that_time_passed() -> None:
    """A broker away for six minutes: told when five were over, though the next line comes later."""
    (gone,) = [
        finding
        for incident in replayed(broker(0, "0x1"), broker(10_000, None), broker(370_000, "0x2"))
        for finding in incident.findings
        if finding.kind == "broker_down"
    ]
    assert (gone.at, gone.known_at, gone.recovered_at) == (BEGINNING + 10_000, BEGINNING + 310_000, BEGINNING + 370_000)


def test_incidents_stand_as_of_the_last_line() -> None:
    """A tick a day later closes what recovered."""
    lines = [commit(0, 9_000), commit(1_000, 0), commit(2_000, 9_000)]
    assert [one.status for one in replayed(*lines)] == ["recovered"]
    assert [one.status for one in replayed(*lines, Tick(at=BEGINNING + 86_400_000))] == ["closed"]


def test_incidents_come_in_the_order_in_which_they_began() -> None:
    """The oldest first."""
    made = replayed(
        *(
            commit(at, offset, group)
            for at, group in ((0, "h"), (600_000, "g"))
            for at, offset in ((at, 9_000), (at + 1, 0))
        )
    )
    assert [one.findings[0].subject["group"] for one in made] == ["h", "g"]
    assert [rfc3339(one.opened_at) for one in made] == sorted(rfc3339(one.opened_at) for one in made)
