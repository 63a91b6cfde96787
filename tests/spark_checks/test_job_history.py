"""job_history on generated journals: it finds what the generator put there, and what plain Python finds."""

import os
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from agent.checks.arguments import input_options
from agent.config.loading import load
from agent.model.findings import Finding, Severity
from agent.model.observations.base import Available, Observation, Tick, Unavailable
from agent.model.observations.flink import Checkpoints, FlinkJob, JobGraph, JobGraphFile, JobListing, JobManagerLeader
from agent.storage.journal.reader import read
from agent.storage.journal.writer import Journal
from spark_checks import job_history
from spark_checks.__main__ import main
from spark_checks.options import Options, Report
from tests.parameters import SEEDS
from tests.spark_checks.job_clusters import BEGIN, Cluster, Expected
from tests.spark_checks.job_histories import History, drawn
from tests.spark_checks.test_unreadable_files import damage

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
    for number, cluster in enumerate(cluster for cluster in clusters if cluster.stored):
        folder = directory / cluster.name / ("default" if number % 2 else "")
        folder.mkdir(parents=True)
        (folder / "completedCheckpoint0123456789ab").touch()
        for file in cluster.files.values():
            assert file.modified_at is not None
            (folder / file.file).write_bytes(bytes(file.size))
            os.utime(folder / file.file, ns=(file.modified_at * 1_000_000,) * 2)
    return [f"{cluster.name}={directory / cluster.name}" for cluster in clusters if cluster.stored]


def options(journal: Path, since: int | None = None, until: int | None = None, **own: Any) -> Options:
    """Options as the command line makes them."""
    mine = {"journal": str(journal), "flink": (), "storages": (), "cluster_ids": (), "baseline": "14d"}
    return Options(since=since, until=until, own=mine | own)


def check(spark: SparkSession, wanted: Options) -> Report:
    """The check's report; its options are right."""
    assert job_history.mistakes(wanted) == []
    return job_history.run(spark, wanted, lambda _: None)


def expected(finding: Finding) -> Expected:
    """Return the finding in the form of the generator's expectations."""
    subject = finding.subject
    return Expected(
        subject["cluster"], subject.get("file") or subject["job"], finding.severity.value, frozenset(finding.labels)
    )


@pytest.fixture(scope="module", params=SEEDS)
def history(request: pytest.FixtureRequest) -> History:
    """A history per seed."""
    return drawn(request.param)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, history: History) -> Options:
    """Its journal and storage."""
    directory = tmp_path_factory.mktemp("flink")
    write(directory / "journal", history.observations)
    return options(directory / "journal", storages=tuple(store(directory / "storage", history.clusters)))


@pytest.fixture(scope="module")
def report(spark: SparkSession, wanted: Options) -> Report:
    """Return the findings of the check."""
    return check(spark, wanted)


def test_findings_are_exactly_what_happened(report: Report, history: History) -> None:
    found = sorted(map(expected, report.findings), key=repr)
    assert found == sorted(history.expected, key=repr)
    assert len({finding.key for finding in report.findings}) == len(found)
    assert {finding.subject["job_name"] for finding in report.findings if "job" in finding.subject} == {"orders"}


class Known(NamedTuple):
    """The oracle's memory of a job. checkpoints: the last one's id, and when the execution that it is of started."""

    states: list[FlinkJob]
    checkpoints: list[tuple[int, int]]
    graphs: list[JobGraph]


def oracle(observations: list[Observation], clusters: list[Cluster]) -> set[tuple[str, str, str, int]]:
    """Return (cluster, job or file, first label, time) of what a reader without Spark finds in the journal."""
    jobs: dict[tuple[str, str], Known] = defaultdict(lambda: Known([], [], []))
    files: dict[tuple[str, str], JobGraphFile] = {
        (cluster.name, name): file for cluster in clusters if cluster.stored for name, file in cluster.files.items()
    }
    looks: dict[str, int] = defaultdict(lambda: observations[-1].at)
    in_zookeeper = set()
    found = set()
    for observation in observations:
        match observation:
            case FlinkJob(cluster=cluster, job=job):
                known = jobs[cluster, job].states
                newest = max(known, key=lambda old: old.started_at, default=None)
                ended = newest is not None and any(old.ended and old.started_at == newest.started_at for old in known)
                if (
                    newest is not None
                    and ended
                    and observation.started_at > newest.started_at
                    and observation.state != "SUSPENDED"
                ):
                    found.add((cluster, job, "came_back", observation.at))
                known.append(observation)
            case Checkpoints(cluster=cluster, job=job, last=int(last)):
                known_job = jobs[cluster, job]
                start = max(state.started_at for state in known_job.states)
                if known_job.checkpoints:
                    before, old_start = known_job.checkpoints[-1]
                    if last < before and start > old_start:
                        found.add((cluster, job, "lineage_restarted", observation.at))
                known_job.checkpoints.append((last, start))
            case JobGraph(cluster=cluster, job=job):
                jobs[cluster, job].graphs.append(observation)
                in_zookeeper.add(cluster)
            case JobManagerLeader(cluster=cluster, session=str()):
                in_zookeeper.add(cluster)
            case JobGraphFile(cluster=cluster, file=file):
                files[cluster, file] = observation
            case Unavailable(cluster=cluster):
                looks[cluster] = observation.at
            case Available(cluster=cluster):
                del looks[cluster]
    for (cluster, job), known_job in jobs.items():
        last_state, graphs = known_job.states[-1], known_job.graphs
        if last_state.ended and graphs and graphs[-1].made_at is not None:
            ended_at = last_state.ended_at or 0
            if graphs[-1].made_at <= ended_at <= looks[cluster] - MINUTE:
                found.add((cluster, job, "graph_of_ended_job", ended_at))
    for (cluster, file), lying in files.items():
        mine = {job: own_job for (where, job), own_job in jobs.items() if where == cluster and own_job.graphs}
        standing = [entry.graphs[-1].file for entry in mine.values() if entry.graphs[-1].made_at is not None]
        owners = [entry for entry in mine.values() if any(graph.file == file for graph in entry.graphs)]
        bare = any(not entry.states[-1].ended and entry.graphs[-1].made_at is None for entry in owners)
        gone_at = max((graph.at for owner in owners for graph in owner.graphs if graph.file != file), default=0)
        old = max(lying.modified_at or 0, gone_at) <= looks[cluster] - MINUTE
        stray = lying.modified_at is not None and file not in standing and None not in standing and not bare
        if stray and old and cluster in in_zookeeper:
            found.add((cluster, file, "graph_without_job", lying.modified_at or 0))
    backs = [entry for entry in found if entry[2] == "came_back"]
    return {
        entry
        for entry in found
        if entry[2] != "lineage_restarted"
        or not any(entry[:2] == back[:2] and back[3] - MINUTE <= entry[3] <= back[3] + 2 * MINUTE for back in backs)
    }


def test_plain_python_finds_the_same(report: Report, wanted: Options, history: History) -> None:
    theirs = oracle(list(read(Path(wanted.own["journal"]))), history.clusters)
    ours = {
        (
            finding.subject["cluster"],
            finding.subject.get("file") or finding.subject["job"],
            finding.labels[0],
            finding.at,
        )
        for finding in report.findings
    }
    assert ours == theirs


def test_resurrection_names_leader_successor_and_action(report: Report, history: History) -> None:
    finding = next(finding for finding in report.findings if {"old_graph", "lineage_restarted"} <= set(finding.labels))
    cluster = next(cluster for cluster in history.clusters if cluster.name == finding.subject["cluster"])
    successor = next(job for job in cluster.jobs.values() if job.name == "orders" and job.job != finding.subject["job"])
    assert f"job orders ({finding.subject['job']}) ended (" in finding.detail
    assert " after the leader changed jm-" in finding.detail
    assert "; nothing was restored; checkpoint ids decreased " in finding.detail
    assert "; its job graph was left behind, from " in finding.detail
    assert f"; running beside it: its successor orders ({successor.job}, RUNNING, last checkpoint " in finding.detail
    assert f"cancel {finding.subject['job']} and delete its job graph" in finding.detail
    assert successor.job in finding.current["beside"]
    assert finding.since is not None
    assert finding.since < finding.at


def test_stray_file_has_directory_size_and_owner(report: Report, history: History) -> None:
    for finding in (finding for finding in report.findings if finding.subject["cluster"].startswith("file_stays")):
        cluster = next(cluster for cluster in history.clusters if cluster.name == finding.subject["cluster"])
        file = cluster.files[finding.subject["file"]]
        assert (finding.at, finding.current["size"], finding.current["job_name"]) == (
            file.modified_at,
            file.size,
            "orders",
        )
        assert f"({file.size:,} bytes, written 2026-11-2" in finding.detail
        assert ("/storage/" if cluster.stored else "in the HA storage directory") in finding.detail
        assert f"it was the graph of job orders ({finding.current['job']}), last seen " in finding.detail


def test_summary_counts_and_names_what_was_not_checked(report: Report, history: History) -> None:
    back = sum("came_back" in expected_finding.labels for expected_finding in history.expected)
    assert f": {back} returns, " in report.summary
    assert "graph files not checked on without-zookeeper: " in report.summary


def test_window_includes_jobs_that_ended_before_it(spark: SparkSession, tmp_path: Path) -> None:
    state = FlinkJob(at=NOW, cluster="f", job=JOB, name="j", state="FINISHED", started_at=NOW - 9, ended_at=NOW)
    again = replace(state, at=NOW + HOUR, state="RUNNING", started_at=NOW + HOUR - 5, ended_at=None)
    write(tmp_path, [state, again, replace(again, at=NOW + 2 * HOUR)])
    (back,) = check(spark, options(tmp_path, since=again.at, until=again.at + 1)).findings
    assert (back.at, back.labels, back.previous["state"]) == (again.at, ("came_back",), "FINISHED")
    for window in ({"until": again.at}, {"since": again.at + 1}, {"since": again.at, "baseline": "1s"}):
        assert check(spark, options(tmp_path, **window)).findings == []


def test_only_the_named_flink_cluster_is_searched(spark: SparkSession, tmp_path: Path) -> None:
    ended = FlinkJob(at=NOW, cluster="f", job=JOB, name="j", state="FINISHED", started_at=NOW - 9, ended_at=NOW)
    again = replace(ended, at=NOW + HOUR, state="RUNNING", started_at=NOW + HOUR - 5, ended_at=None)
    write(tmp_path, [ended, replace(ended, cluster="g"), again])
    assert [finding.labels for finding in check(spark, options(tmp_path, flink=("f",))).findings] == [("came_back",)]
    assert check(spark, options(tmp_path, flink=("g",))).findings == []


def test_empty_journal_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "journal", [Tick(at=NOW)])
    report = check(spark, options(tmp_path / "journal"))
    assert report.findings == []
    assert "the journal has no Flink observations in this window" in report.summary


def test_without_the_graphs_of_a_damaged_file_no_stray_file_is_claimed(spark: SparkSession, tmp_path: Path) -> None:
    write(
        tmp_path / "journal",
        [
            JobManagerLeader(at=NOW, cluster="f", address="a", leader_id="1", session="0x1"),
            JobGraph(at=NOW, cluster="f", job=JOB, made_at=NOW - 5, locks=("0x1",), file="submittedJobGraph0"),
            FlinkJob(at=NOW, cluster="f", job=JOB, name="j", state="RUNNING", started_at=NOW - 9),
            Tick(at=NOW + 2 * MINUTE),
        ],
    )
    (tmp_path / "storage").mkdir()
    file = tmp_path / "storage" / "submittedJobGraph0"
    file.touch()
    os.utime(file, ns=((NOW - HOUR) * 1_000_000,) * 2)
    checked = options(tmp_path / "journal", storages=(f"f={tmp_path / 'storage'}",))
    assert "damaged" not in check(spark, checked).summary
    (graphs,) = tmp_path.glob("journal/job_graph/*/*.parquet")
    damage(graphs)
    report = check(spark, checked)
    assert report.findings == []
    assert "graph files not checked on f" in report.summary
    assert "1 damaged journal file skipped" in report.summary


def test_leftover_graph_is_the_same_finding_in_every_run(spark: SparkSession, tmp_path: Path) -> None:
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
    write(tmp_path / "base", base)
    write(tmp_path / "longer", [*base, *more])
    (first,), (second,) = (check(spark, options(tmp_path / name)).findings for name in ("base", "longer"))
    assert first.key == second.key
    assert (first.labels, second.labels) == (("graph_of_ended_job",), ("graph_of_ended_job", "foreign_lock"))
    assert "locked by session 0x1, but the leader's session is 0x2" in second.detail
    assert f"delete jobgraphs/{job} in ZooKeeper and the file submittedJobGraph0" in second.detail
    assert first.severity is Severity.WARNING


def test_all_mistakes_are_listed(tmp_path: Path) -> None:
    wanted = options(
        tmp_path / "none", storages=("x", f"f={tmp_path}", f"f={tmp_path}"), cluster_ids=("f",), baseline="soon"
    )
    mistakes = job_history.mistakes(wanted)
    assert [line.partition(":")[0] for line in mistakes] == [
        f"--journal {tmp_path / 'none'}", "--baseline", "--storage x", "--storage f=DIR", "--cluster-id f",
    ]  # fmt: skip


def test_directory_without_journal_is_wrong_use(tmp_path: Path) -> None:
    reason = f"--journal {tmp_path}: this directory is not a journal; "
    assert job_history.mistakes(options(tmp_path)) == [f"{reason}it is `journal` in the agent's state directory."]
    write(tmp_path / "journal", [Tick(at=NOW)])
    assert job_history.mistakes(options(tmp_path)) == [f"{reason}did you mean {tmp_path / 'journal'}?"]
    assert job_history.mistakes(options(tmp_path / "journal")) == []


@pytest.fixture
def of_two(tmp_path: Path) -> Path:
    """A journal that names the Flink clusters `jobs` and `dark`, never reached, and the Kafka cluster `main`."""
    journal = tmp_path / "journal"
    observations: list[Observation] = [
        JobListing(at=NOW, cluster="jobs", jobs=()),
        Unavailable(at=NOW, cluster="dark", source="flink", reason="refused"),
        Unavailable(at=NOW, cluster="main", source="kafka", reason="refused"),
    ]
    write(journal, observations)
    return journal


def test_flink_cluster_not_in_journal_is_wrong_use(of_two: Path) -> None:
    assert job_history.mistakes(options(of_two, flink=("jobs", "dark"))) == []
    assert job_history.mistakes(options(of_two, flink=("jbs", "jobs", "main"))) == [
        f"--flink {name}: not in the journal {of_two}. Flink clusters in it: dark, jobs." for name in ("jbs", "main")
    ]


def test_flink_clusters_are_found_in_open_segments(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([JobListing(at=NOW, cluster="jobs", jobs=())])
        journal.flush()
        assert job_history.mistakes(options(tmp_path, flink=("jobs",))) == []
        (mistake,) = job_history.mistakes(options(tmp_path, flink=("jbs",)))
    assert mistake.endswith("Flink clusters in it: jobs.")


def test_storage_of_unknown_flink_cluster_is_wrong_use(of_two: Path, tmp_path: Path) -> None:
    unknown = "Flink cluster jobbs is neither in the journal {} nor in --flink. Known: {}."
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


def test_unreadable_storage_directory_is_wrong_use(of_two: Path, tmp_path: Path) -> None:
    gone, file = tmp_path / "gone", tmp_path / "file"
    file.touch()
    mistakes = job_history.mistakes(options(of_two, flink=("dark",), storages=(f"jobs={gone}", f"dark={file}")))
    assert mistakes == [
        f"--storage jobs={gone}: cannot read {gone}: No such file or directory.",
        f"--storage dark={file}: cannot read {file}: Not a directory.",
    ]


def test_wrong_use_is_status_2_before_spark_starts(of_two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job_history", "--journal", str(of_two), "--flink", "jbs"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"--flink jbs: not in the journal {of_two}. Flink clusters in it: dark, jobs.\n"


def test_cluster_without_flink_option_is_wrong_use(of_two: Path) -> None:
    wanted = options(of_two)._replace(cluster="jobs")
    mistakes = ["--cluster jobs: this check searches Flink clusters; select one with --flink."]
    assert job_history.mistakes(wanted) == mistakes
    assert job_history.mistakes(wanted._replace(own={**wanted.own, "flink": ("jobs",)})) == []


def test_cluster_absent_from_rules_toml_is_passed_on(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[agent]\nstate_directory = "state"\n[clusters.main]\nbootstrap_servers = "k:9092"\n')
    settings = load(rules, need_clusters=True)
    assert input_options("job_history", settings, "jbs") == ["--journal", "state/journal", "--flink", "jbs"]
    assert input_options("job_history", settings, None) == ["--journal", "state/journal"]
