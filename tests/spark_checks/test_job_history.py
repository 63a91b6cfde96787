"""job_history over generated journals: what it finds is what the generator put there, and what plain Python finds."""

import os
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from agent.checks.arguments import input_options
from agent.config.settings import load
from agent.model.findings import Finding, Severity
from agent.model.observations import (
    Available,
    Checkpoints,
    FlinkJob,
    JobGraph,
    JobGraphFile,
    JobListing,
    JobManagerLeader,
    Observation,
    Tick,
    Unavailable,
)
from agent.storage.journal import Journal, read
from spark_checks import job_history
from spark_checks.__main__ import main
from spark_checks.options import Options, Report
from tests.spark_checks.job_clusters import BEGIN, Cluster, Expected
from tests.spark_checks.job_histories import History, drawn

MINUTE, HOUR = 60_000, 3_600_000
NOW = BEGIN + HOUR
JOB = "ab" * 16


def write(directory: Path, observations: list[Observation]) -> None:
    """A journal of several segments, the last of them open when it was copied."""
    with closing(Journal(directory, segment_bytes=100_000)) as journal:
        for begin in range(0, len(observations), 2_000):
            journal.append(observations[begin : begin + 2_000])
            journal.flush()
            journal.seal(observations[begin].at)


def store(directory: Path, clusters: list[Cluster]) -> list[str]:
    """The storage directories of the clusters that have one, as options: files lie in it or below the id."""
    for number, cluster in enumerate(one for one in clusters if one.stored):
        folder = directory / cluster.name / ("default" if number % 2 else "")
        folder.mkdir(parents=True)
        (folder / "completedCheckpoint0123456789ab").touch()
        for one in cluster.files.values():
            assert one.modified_at is not None
            (folder / one.file).write_bytes(bytes(one.size))
            os.utime(folder / one.file, ns=(one.modified_at * 1_000_000,) * 2)
    return [f"{cluster.name}={directory / cluster.name}" for cluster in clusters if cluster.stored]


def options(journal: Path, since: int | None = None, until: int | None = None, **own: Any) -> Options:
    """Options as the command line makes them."""
    mine = {"journal": str(journal), "flink": (), "storages": (), "cluster_ids": (), "baseline": "14d"}
    return Options(since=since, until=until, own=mine | own)


def check(spark: SparkSession, asked: Options) -> Report:
    """The check's report; its options are right."""
    assert job_history.mistakes(asked) == []
    return job_history.run(spark, asked, lambda _: None)


def expected(finding: Finding) -> Expected:
    """The finding as the generator tells what it expects."""
    subject = finding.subject
    return Expected(
        subject["cluster"], subject.get("file") or subject["job"], finding.severity.value, frozenset(finding.labels)
    )


@pytest.fixture(scope="module", params=[1, 2, 3])
def history(request: pytest.FixtureRequest) -> History:
    """A history per seed."""
    return drawn(request.param)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, history: History) -> Options:
    """Its journal and storage."""
    directory = tmp_path_factory.mktemp("flink")
    write(directory / "journal", history.observations)
    return options(directory / "journal", storages=tuple(store(directory / "storage", history.clusters)))


@pytest.fixture(scope="module")
def report(spark: SparkSession, asked: Options) -> Report:
    """What the check says of it."""
    return check(spark, asked)


def test_what_is_found_is_what_happened(report: Report, history: History) -> None:
    """Recall and precision are 1.0, labels and severities included."""
    told = sorted(map(expected, report.findings), key=repr)
    assert told == sorted(history.expected, key=repr)
    assert len({one.key for one in report.findings}) == len(told)
    assert {one.subject["job_name"] for one in report.findings if "job" in one.subject} == {"orders"}


class Known(NamedTuple):
    """The oracle's memory of a job. checkpoints: the last one's id, and when the execution that it is of started."""

    states: list[FlinkJob]
    checkpoints: list[tuple[int, int]]
    graphs: list[JobGraph]


def oracle(observations: list[Observation], clusters: list[Cluster]) -> set[tuple[str, str, str, int]]:
    """(cluster, job or file, first label, when): what a reader of the journal without Spark makes of it."""
    jobs: dict[tuple[str, str], Known] = defaultdict(lambda: Known([], [], []))
    files: dict[tuple[str, str], JobGraphFile] = {
        (cluster.name, name): one for cluster in clusters if cluster.stored for name, one in cluster.files.items()
    }
    looks: dict[str, int] = defaultdict(lambda: observations[-1].at)
    in_zookeeper = set()
    found = set()
    for one in observations:
        match one:
            case FlinkJob(cluster=cluster, job=job):
                known = jobs[cluster, job].states
                newest = max(known, key=lambda old: old.started_at, default=None)
                ended = newest is not None and any(old.ended and old.started_at == newest.started_at for old in known)
                if newest is not None and ended and one.started_at > newest.started_at and one.state != "SUSPENDED":
                    found.add((cluster, job, "came_back", one.at))
                known.append(one)
            case Checkpoints(cluster=cluster, job=job, last=int(last)):
                known_job = jobs[cluster, job]
                start = max(state.started_at for state in known_job.states)
                if known_job.checkpoints:
                    before, old_start = known_job.checkpoints[-1]
                    if last < before and start > old_start:
                        found.add((cluster, job, "lineage_restarted", one.at))
                known_job.checkpoints.append((last, start))
            case JobGraph(cluster=cluster, job=job):
                jobs[cluster, job].graphs.append(one)
                in_zookeeper.add(cluster)
            case JobManagerLeader(cluster=cluster, session=str()):
                in_zookeeper.add(cluster)
            case JobGraphFile(cluster=cluster, file=file):
                files[cluster, file] = one
            case Unavailable(cluster=cluster):
                looks[cluster] = one.at
            case Available(cluster=cluster):
                del looks[cluster]
    for (cluster, job), known_job in jobs.items():
        last_state, graphs = known_job.states[-1], known_job.graphs
        if last_state.ended and graphs and graphs[-1].made_at is not None:
            ended_at = last_state.ended_at or 0
            if graphs[-1].made_at <= ended_at <= looks[cluster] - MINUTE:
                found.add((cluster, job, "graph_of_ended_job", ended_at))
    for (cluster, file), lying in files.items():
        mine = {job: one for (where, job), one in jobs.items() if where == cluster and one.graphs}
        standing = [one.graphs[-1].file for one in mine.values() if one.graphs[-1].made_at is not None]
        owners = [one for one in mine.values() if any(graph.file == file for graph in one.graphs)]
        bare = any(not one.states[-1].ended and one.graphs[-1].made_at is None for one in owners)
        gone_at = max((one.at for owner in owners for one in owner.graphs if one.file != file), default=0)
        old = max(lying.modified_at or 0, gone_at) <= looks[cluster] - MINUTE
        stray = lying.modified_at is not None and file not in standing and None not in standing and not bare
        if stray and old and cluster in in_zookeeper:
            found.add((cluster, file, "graph_without_job", lying.modified_at or 0))
    backs = [one for one in found if one[2] == "came_back"]
    return {
        one
        for one in found
        if one[2] != "lineage_restarted"
        or not any(one[:2] == back[:2] and back[3] - MINUTE <= one[3] <= back[3] + 2 * MINUTE for back in backs)
    }


def test_plain_python_finds_the_same(report: Report, asked: Options, history: History) -> None:
    """At the same moments."""
    theirs = oracle(list(read(Path(asked.own["journal"]))), history.clusters)
    ours = {
        (one.subject["cluster"], one.subject.get("file") or one.subject["job"], one.labels[0], one.at)
        for one in report.findings
    }
    assert ours == theirs


def test_a_job_that_came_back_is_told_with_leader_successor_and_what_to_do(report: Report, history: History) -> None:
    """As an operator needs it at night."""
    one = next(one for one in report.findings if {"old_graph", "lineage_restarted"} <= set(one.labels))
    cluster = next(cluster for cluster in history.clusters if cluster.name == one.subject["cluster"])
    successor = next(job for job in cluster.jobs.values() if job.name == "orders" and job.job != one.subject["job"])
    assert f"job orders ({one.subject['job']}), which had ended (" in one.detail
    assert " after the leader changed jm-" in one.detail
    assert "; nothing was restored; its checkpoint ids went " in one.detail
    assert "; its job graph had outlived it since " in one.detail
    assert f"; beside it there was its successor orders ({successor.job}, RUNNING, last checkpoint " in one.detail
    assert f"cancel {one.subject['job']} and delete its job graph" in one.detail
    assert successor.job in one.current["beside"]
    assert one.since is not None
    assert one.since < one.at


def test_a_graph_without_job_is_told_with_place_size_and_owner(report: Report, history: History) -> None:
    """Where it lies, how large it is, and whose it was where somebody saw that."""
    for one in (one for one in report.findings if one.subject["cluster"].startswith("file_stays")):
        cluster = next(cluster for cluster in history.clusters if cluster.name == one.subject["cluster"])
        file = cluster.files[one.subject["file"]]
        assert (one.at, one.current["size"], one.current["job_name"]) == (file.modified_at, file.size, "orders")
        assert f"({file.size:,} bytes, of 2026-11-2" in one.detail
        assert ("/storage/" if cluster.stored else "in the HA storage directory") in one.detail
        assert f"it was the graph of job orders ({one.current['job']}), last seen " in one.detail


def test_the_summary_counts_and_says_what_was_not_judged(report: Report, history: History) -> None:
    """A sentence."""
    back = sum("came_back" in one.labels for one in history.expected)
    assert f": {back} returns, " in report.summary
    assert "no graph files judged of without-zookeeper, whose ZooKeeper" in report.summary


def test_a_window_tells_what_happened_in_it_with_what_was_before(spark: SparkSession, tmp_path: Path) -> None:
    """A job may have ended before the window begins, unless the past is not to be read."""
    state = FlinkJob(at=NOW, cluster="f", job=JOB, name="j", state="FINISHED", started_at=NOW - 9, ended_at=NOW)
    again = replace(state, at=NOW + HOUR, state="RUNNING", started_at=NOW + HOUR - 5, ended_at=None)
    write(tmp_path, [state, again, replace(again, at=NOW + 2 * HOUR)])
    (back,) = check(spark, options(tmp_path, since=again.at, until=again.at + 1)).findings
    assert (back.at, back.labels, back.previous["state"]) == (again.at, ("came_back",), "FINISHED")
    for window in ({"until": again.at}, {"since": again.at + 1}, {"since": again.at, "baseline": "1s"}):
        assert check(spark, options(tmp_path, **window)).findings == []


def test_only_the_named_flink_cluster_is_searched(spark: SparkSession, tmp_path: Path) -> None:
    """What came back in another one is not told."""
    ended = FlinkJob(at=NOW, cluster="f", job=JOB, name="j", state="FINISHED", started_at=NOW - 9, ended_at=NOW)
    again = replace(ended, at=NOW + HOUR, state="RUNNING", started_at=NOW + HOUR - 5, ended_at=None)
    write(tmp_path, [ended, replace(ended, cluster="g"), again])
    assert [one.labels for one in check(spark, options(tmp_path, flink=("f",))).findings] == [("came_back",)]
    assert check(spark, options(tmp_path, flink=("g",))).findings == []


def test_an_empty_journal_is_clean(spark: SparkSession, tmp_path: Path) -> None:
    """And that nothing is in it is said."""
    write(tmp_path / "journal", [Tick(at=NOW)])
    report = check(spark, options(tmp_path / "journal"))
    assert report.findings == []
    assert "Flink clusters none: the journal holds nothing of Flink of that time" in report.summary


def test_a_graph_that_stays_is_the_same_finding_in_every_run(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever is said of it by then, so that it is told once."""
    job, cluster = JOB, "f"
    base: list[Observation] = [
        JobManagerLeader(at=NOW, cluster=cluster, address="a", leader_id="1", session="0x1"),
        JobGraph(at=NOW, cluster=cluster, job=job, made_at=NOW - 5, locks=("0x1",), file="submittedJobGraph0"),
        FlinkJob(at=NOW, cluster=cluster, job=job, name="j", state="FAILED", started_at=NOW - 9, ended_at=NOW),
        Tick(at=NOW + 2 * MINUTE),
    ]
    more: list[Observation] = [
        JobManagerLeader(at=NOW + 3 * MINUTE, cluster=cluster, address="b", leader_id="2", session="0x2"),
        Tick(at=NOW + 9 * MINUTE),
    ]
    write(tmp_path / "one", base)
    write(tmp_path / "two", [*base, *more])
    (first,), (second,) = (check(spark, options(tmp_path / name)).findings for name in ("one", "two"))
    assert first.key == second.key
    assert (first.labels, second.labels) == (("graph_of_ended_job",), ("graph_of_ended_job", "foreign_lock"))
    assert "locked by session 0x1, and the leader's is 0x2" in second.detail
    assert f"delete jobgraphs/{job} in ZooKeeper and the file submittedJobGraph0" in second.detail
    assert first.severity is Severity.WARNING


def test_mistakes_are_all_told(tmp_path: Path) -> None:
    """A sentence each, before Spark starts."""
    asked = options(
        tmp_path / "none", storages=("x", f"f={tmp_path}", f"f={tmp_path}"), cluster_ids=("f",), baseline="soon"
    )
    told = job_history.mistakes(asked)
    assert [one.partition(":")[0] for one in told] == [
        f"--journal {tmp_path / 'none'}", "--baseline", "--storage x", "--storage f=DIR", "--cluster-id f",
    ]  # fmt: skip


def test_a_directory_that_is_no_journal_is_wrong_use(tmp_path: Path) -> None:
    """An empty one too; with the one that was meant, where that is plain to see."""
    told = f"--journal {tmp_path}: this directory holds no journal; "
    assert job_history.mistakes(options(tmp_path)) == [
        f"{told}an agent's is the directory `journal` in its state directory."
    ]
    write(tmp_path / "journal", [Tick(at=NOW)])
    assert job_history.mistakes(options(tmp_path)) == [f"{told}did you mean {tmp_path / 'journal'}?"]
    assert job_history.mistakes(options(tmp_path / "journal")) == []


@pytest.fixture
def of_two(tmp_path: Path) -> Path:
    """A journal that names the Flink clusters `jobs` and `dark`, never reached, and the Kafka cluster `main`."""
    journal = tmp_path / "journal"
    told: list[Observation] = [
        JobListing(at=NOW, cluster="jobs", jobs=()),
        Unavailable(at=NOW, cluster="dark", source="flink", reason="refused"),
        Unavailable(at=NOW, cluster="main", source="kafka", reason="refused"),
    ]
    write(journal, told)
    return journal


def test_a_flink_cluster_that_the_journal_does_not_name_is_wrong_use(of_two: Path) -> None:
    """With those that it names; one that was never reached is named, a Kafka cluster is none."""
    assert job_history.mistakes(options(of_two, flink=("jobs", "dark"))) == []
    assert job_history.mistakes(options(of_two, flink=("jbs", "jobs", "main"))) == [
        f"--flink {name}: the journal {of_two} names no such Flink cluster; there are: dark, jobs."
        for name in ("jbs", "main")
    ]


def test_open_segments_name_their_flink_clusters(tmp_path: Path) -> None:
    """As those of a running agent's last minutes."""
    with closing(Journal(tmp_path)) as journal:
        journal.append([JobListing(at=NOW, cluster="jobs", jobs=())])
        journal.flush()
        assert job_history.mistakes(options(tmp_path, flink=("jobs",))) == []
        (told,) = job_history.mistakes(options(tmp_path, flink=("jbs",)))
    assert told.endswith("names no such Flink cluster; there are: jobs.")


def test_storage_of_an_unknown_flink_cluster_is_wrong_use(of_two: Path, tmp_path: Path) -> None:
    """Its cluster id too; what the journal or --flink names is known."""
    unknown = "neither the journal {} nor --flink names such a Flink cluster; there are: {}."
    given: dict[str, Any] = {"storages": (f"jobbs={tmp_path}",), "cluster_ids": ("jobbs=/x",)}
    assert job_history.mistakes(options(of_two, **given)) == [
        f"{option}: {unknown.format(of_two, 'dark, jobs')}"
        for option in (f"--storage jobbs={tmp_path}", "--cluster-id jobbs=/x")
    ]
    assert job_history.mistakes(options(of_two, storages=(f"jobs={tmp_path}",), cluster_ids=("jobs=/x",))) == []
    write(tmp_path / "new", [Tick(at=NOW)])
    assert job_history.mistakes(options(tmp_path / "new", **given)) == []  # nothing is known yet, which is no mistake
    assert job_history.mistakes(options(tmp_path / "new", flink=("jobbs",), **given)) == []
    assert job_history.mistakes(options(tmp_path / "new", flink=("jobs",), **given)) == [
        f"{option}: {unknown.format(tmp_path / 'new', 'jobs')}"
        for option in (f"--storage jobbs={tmp_path}", "--cluster-id jobbs=/x")
    ]


def test_a_storage_directory_that_cannot_be_listed_is_wrong_use(of_two: Path, tmp_path: Path) -> None:
    """Each of them, also of a cluster that --flink leaves out."""
    gone, file = tmp_path / "gone", tmp_path / "file"
    file.touch()
    told = job_history.mistakes(options(of_two, flink=("dark",), storages=(f"jobs={gone}", f"dark={file}")))
    assert told == [
        f"--storage jobs={gone}: {gone} cannot be read: No such file or directory.",
        f"--storage dark={file}: {file} cannot be read: Not a directory.",
    ]


def test_the_command_ends_with_status_2_before_spark_starts(of_two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And with nothing but the sentence."""
    assert main(["job_history", "--journal", str(of_two), "--flink", "jbs"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"--flink jbs: the journal {of_two} names no such Flink cluster; there are: dark, jobs.\n"


def test_a_cluster_that_flink_does_not_name_is_wrong_use(of_two: Path) -> None:
    """Rather than to look at all of them; the agent names the one it means by both options."""
    asked = options(of_two)._replace(cluster="jobs")
    told = ["--cluster jobs: this check is about Flink clusters; name one with --flink."]
    assert job_history.mistakes(asked) == told
    assert job_history.mistakes(asked._replace(own={**asked.own, "flink": ("jobs",)})) == []


def test_a_cluster_named_by_hand_is_looked_at_also_where_rules_toml_knows_it_not(tmp_path: Path) -> None:
    """It is not left out, which would be to look at all of them."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[agent]\nstate_directory = "state"\n[clusters.main]\nbootstrap_servers = "k:9092"\n')
    settings = load(rules, need_clusters=True)
    assert input_options("job_history", settings, "jbs") == ["--journal", "state/journal", "--flink", "jbs"]
    assert input_options("job_history", settings, None) == ["--journal", "state/journal"]
