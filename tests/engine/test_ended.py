"""Jobs, job graphs and lines of logs that ended long ago are forgotten, so that a year of short jobs costs no more."""

from pathlib import Path

from msgspec.structs import replace

from agent.config.loading import load
from agent.engine.ended import GONE_JOBS, LINES_MS, find_ended
from agent.engine.evaluator import Evaluator
from agent.engine.facts import GONE_MS, Facts
from agent.engine.rule import Scope
from agent.model.observations.base import Observation
from agent.model.observations.flink import (
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Position,
)
from agent.model.observations.logs import LogFile, LogLine
from agent.rules.job_resurrected import JobResurrected
from agent.rules.orphan_job_graph import OrphanJobGraph
from tests.builders import BEGINNING, after, tick

SHIPPED = load(Path(__file__).parents[2] / "rules.toml", need_clusters=False).rules
GONE_S = GONE_MS / 1000


def listing(seconds: float, *jobs: str) -> JobListing:
    return JobListing(at=after(seconds), cluster="jobs", jobs=jobs)


def job(seconds: float, name: str, state: str = "RUNNING") -> FlinkJob:
    return FlinkJob(at=after(seconds), cluster="jobs", job=name, name="etl", state=state, started_at=BEGINNING)


def checkpoints(seconds: float, name: str) -> Checkpoints:
    return Checkpoints(at=after(seconds), cluster="jobs", job=name, completed=1, failed=0, last=1)


def position(seconds: float, name: str) -> Position:
    return Position(
        at=after(seconds), cluster="main", flink="jobs", job=name, name="etl", topic="t", partition=0, offset=5
    )


def graph(seconds: float, name: str, *, is_there: bool = True) -> JobGraph:
    return JobGraph(at=after(seconds), cluster="jobs", job=name, made_at=BEGINNING if is_there else None)


def file(seconds: float, name: str, *, is_there: bool = True) -> JobGraphFile:
    return JobGraphFile(at=after(seconds), cluster="jobs", file=name, modified_at=BEGINNING if is_there else None)


def line(seconds: float, path: str) -> LogLine:
    return LogLine(at=after(seconds), cluster="main", log=path, component="kafka", pattern="p", text="x")


def facts_of(*observations: Observation) -> Facts:
    facts = Facts()
    for observation in observations:
        facts.absorb(observation)
    return facts


def forgotten(facts: Facts, seconds: float) -> set[tuple[object, ...]]:
    facts.now = after(seconds)
    return {history.subject for histories in find_ended(facts) for history in histories}


def test_removed_graphs_and_files_are_forgotten() -> None:
    facts = facts_of(
        graph(0, "a"),
        graph(0, "b"),
        graph(5, "b", is_there=False),
        file(0, "f"),
        file(0, "g"),
        file(5, "g", is_there=False),
    )
    assert not forgotten(facts, 5 + GONE_S)
    assert forgotten(facts, 6 + GONE_S) == {("job_graph", "jobs", "b"), ("job_graph_file", "jobs", "g")}


def test_unlisted_jobs_are_forgotten_but_for_the_last() -> None:
    names = [f"{number:03}" for number in range(GONE_JOBS + 2)]
    jobs = [observation for name in names for observation in (job(1, name, "FINISHED"), checkpoints(1, name))]
    facts = facts_of(listing(0, *names, "b"), *jobs, job(1, "b"), listing(2, "b"))
    assert not forgotten(facts, 1 + GONE_S)
    expected = {(kind, "jobs", name) for kind in ("flink_job", "checkpoints") for name in names[:2]}
    assert forgotten(facts, 2 + GONE_S) == expected


def test_a_job_is_kept_while_it_is_listed_or_has_a_graph() -> None:
    jobs = [job(1, f"{number:03}", "FINISHED") for number in range(GONE_JOBS + 1)]
    assert not forgotten(facts_of(listing(0, *(state.job for state in jobs)), *jobs), 2 + GONE_S)
    assert not forgotten(facts_of(listing(0), graph(0, "000"), *jobs), 2 + GONE_S)
    assert not forgotten(facts_of(*jobs), 2 + GONE_S)


def test_positions_of_an_unlisted_job_are_forgotten() -> None:
    facts = facts_of(listing(0, "a"), job(0, "a"), job(0, "b"), position(0, "a"), position(0, "b"))
    assert forgotten(facts, 1 + GONE_S) == {("position", "main", "jobs", "b", "t", 0)}


def test_logs_that_are_not_followed_and_old_lines_are_forgotten() -> None:
    files = [LogFile(at=after(at), cluster="main", log=f"{at}.log", inode=1, read=0) for at in (0, 60)]
    facts = facts_of(*files, line(0, "0.log"), line(60, "60.log"))
    assert forgotten(facts, 60 + GONE_S) == {("log_file", "main", "0.log")}
    lines = {subject for subject in forgotten(facts, 1 + LINES_MS / 1000) if subject[0] == "log_line"}
    assert {subject[2] for subject in lines} == {"0.log"}


def test_old_lines_that_have_just_been_read_are_kept() -> None:
    read_late = replace(line(0, "a.log"), seen_at=after(10_000))
    assert not forgotten(facts_of(read_late), 10_000 + LINES_MS / 1000)
    assert forgotten(facts_of(read_late), 10_001 + LINES_MS / 1000)


def test_short_jobs_leave_nothing_behind() -> None:
    evaluator = Evaluator({name: SHIPPED[name] for name in ("orphan_job_graph", "duplicate_job", "job_resurrected")})
    leader = JobManagerLeader(at=BEGINNING, cluster="jobs", address="http://jm:8081", leader_id="u", session="0x1")
    evaluator.absorb(leader)
    counts = []
    for number in range(40):
        name, begin = f"{number:032x}", 60 * number
        evaluated = (
            *(graph(begin, name), file(begin, name), listing(begin, name), job(begin, name), position(begin, name)),
            *(job(begin + 20, name, "FINISHED"), graph(begin + 20, name, is_there=False)),
            *(file(begin + 20, name, is_there=False), listing(begin + 40), tick(begin + 50)),
        )
        for observation in evaluated:
            evaluator.absorb(observation)
            evaluator.evaluate(observation.seen)
        kinds = [history.subject[0] for history in evaluator.facts.open_histories()]
        counts.append([kinds.count(kind) for kind in ("job_graph", "job_graph_file", "position")])
    assert max(map(max, counts)) < 20


def test_only_graphs_that_matter_are_looked_at_with_each_listing() -> None:
    facts = facts_of(graph(0, "a"), graph(0, "b"), graph(5, "b", is_there=False), listing(1_000, "a"))
    facts.now = after(1_000)
    for rule in (JobResurrected(), OrphanJobGraph()):
        assert list(rule.scopes(listing(1_000, "a"), facts)) == [Scope("jobs", job="a")]
