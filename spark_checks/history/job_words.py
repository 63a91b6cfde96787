"""What became of jobs and their graphs, as findings: severity, labels, and sentences that say what to do."""

from typing import Any

from agent.model.findings import Finding, Severity
from agent.model.observations import clock
from agent.model.text import count, day_of, instant, listed
from agent.rules.queries.flink import graph_znode
from spark_checks.history.job_context import Around, Beside
from spark_checks.history.job_graphs import Kept, Orphan
from spark_checks.history.jobs import Restart, Return

NAME = "job_history"

_MOST = 3
"""So many leader changes and jobs are named at most: the last, the newest."""


def came_back(one: Return, around: Around) -> Finding:
    """A job that had ended ran again. Info where it was submitted again with a savepoint: its graph is a new one."""
    lineage, labels = around.lineage, ["came_back"]
    old_graph = around.made_at is not None and around.made_at <= one.ended_at
    deliberate = lineage.restored_savepoint and not old_graph
    labels += ["after_leader_change"] if around.changes else []
    labels += ["old_graph"] if old_graph else ["new_graph"] if around.made_at is not None else []
    labels += _restored(around)
    labels += ["submitted_again"] if deliberate else []
    fallen = lineage.old is not None and lineage.new is not None and lineage.new < lineage.old
    labels += ["lineage_restarted"] if fallen and lineage.restored_id is None else []
    day = day_of(one.at)
    ending = f"{one.ending} at {instant(one.ended_at, day)}"
    parts = [
        f"{_job(one.name, one.job)}, which had ended ({ending}), ran again, {_seen(one.state, one.at)}"
        + _changed(around, day, " after the leader changed ")
    ]
    if lineage.seen:
        parts.append(_what_was_restored(around))
    if fallen:
        parts.append(f"its checkpoint ids went {lineage.old} -> {lineage.new}")
    if around.made_at is not None:
        parts.append(
            f"its job graph {'had outlived it since' if old_graph else 'is of'} {instant(around.made_at, day)}"
        )
    parts += _beside(around, one.name, one.noticed_at)
    if not deliberate:
        parts.append(f"unless it was submitted again on purpose, cancel {one.job} and delete its job graph")
    return _finding(
        Severity.INFO if deliberate else Severity.CRITICAL,
        at=one.at,
        since=one.since,
        subject={"cluster": one.cluster, "job": one.job, "job_name": one.name},
        labels=labels,
        previous={"state": one.ending, "checkpoint": lineage.old},
        current={
            "state": one.state,
            "checkpoint": lineage.new,
            "restored": lineage.restored_id,
            "beside": [other.job for other in around.beside],
        },
        parts=parts,
    )


def lineage_restarted(one: Restart, around: Around) -> Finding:
    """A job's checkpoint ids fell. Info where a restore explains it."""
    day = day_of(one.at)
    parts = [
        f"{_job(one.name, one.job)} numbers its checkpoints anew, {_seen(f'{one.old} -> {one.new}', one.at)}"
        + _changed(around, day, " after the leader changed ")
    ]
    parts.append(_what_was_restored(around))
    if one.restored_id is None:
        parts += _beside(around, one.name, one.since)
        parts.append(
            f"it runs without the state it had: if that is missed, restore it from checkpoint {one.old} or a savepoint"
        )
    return _finding(
        Severity.WARNING if one.restored_id is None else Severity.INFO,
        at=one.at,
        since=one.since,
        subject={"cluster": one.cluster, "job": one.job, **({} if one.name is None else {"job_name": one.name})},
        labels=["lineage_restarted", *(["after_leader_change"] if around.changes else []), *_restored(around)],
        previous={"checkpoint": one.old},
        current={"checkpoint": one.new, "restored": one.restored_id},
        parts=parts,
    )


def graph_of_ended_job(one: Kept, around: Around) -> Finding:
    """A job has ended, and its graph still stands in ZooKeeper."""
    day = day_of(one.ended_at)
    parts = [
        f"{_job(one.name, one.job)} ended ({_seen(one.ending, one.ended_at)}), but its job graph of "
        f"{instant(one.made_at, day)} still stands in ZooKeeper"
        + _changed(around, day, "; since it was made the leader changed ")
    ]
    foreign = [lock for lock in one.locks if lock != one.session]
    if foreign and one.session is not None:
        parts.append(f"it is locked by {_sessions(foreign)}, and the leader's is {one.session}")
    elif one.locks:
        parts.append(f"it is locked by {_sessions(one.locks)}")
    parts += _beside(around, one.name, one.ended_at)
    file = f" and the file {one.file}" if one.file else ""
    parts.append(
        f"a JobManager that takes the lead may run it again: delete {graph_znode(one.job, one.file)} in ZooKeeper{file}"
    )
    return _finding(
        Severity.WARNING,
        at=one.ended_at,
        subject={"cluster": one.cluster, "job": one.job, "job_name": one.name},
        labels=["graph_of_ended_job", *(["foreign_lock"] if foreign and one.session is not None else [])],
        current={"state": one.ending, "locks": list(one.locks), "file": one.file},
        parts=parts,
    )


def graph_without_job(one: Orphan, directory: str | None, around: Around) -> Finding:
    """A graph file to which no job graph points. directory: where it lies, None where only the journal tells of it."""
    day = day_of(one.modified_at)
    where = f"in {directory}" if directory is not None else "in the HA storage directory"
    parts = [
        f"the job graph file {one.file} {where} ({count(one.size, 'byte')}, of {day} {clock(one.modified_at)} UTC) "
        "belongs to no job: no job graph in ZooKeeper points to it"
        + _changed(around, day, "; since it was written the leader changed ")
    ]
    if one.job is not None:
        state = f", last seen {one.state}" if one.state is not None else ""
        gone = f"; that graph went by {instant(one.gone_at, day)}" if one.gone_at is not None else ""
        parts.append(f"it was the graph of {_job(one.name, one.job)}{state}{gone}")
    parts.append("delete it when no JobManager is starting and no job is being submitted")
    return _finding(
        Severity.WARNING,
        at=one.modified_at,
        subject={"cluster": one.cluster, "file": one.file},
        labels=["graph_without_job"],
        current={"size": one.size, "job": one.job, "job_name": one.name, "state": one.state},
        parts=parts,
    )


def _finding(severity: Severity, *, at: int, labels: list[str], parts: list[str], **fields: Any) -> Finding:
    return Finding(
        rule=NAME,
        kind=NAME,
        severity=severity,
        at=at,
        labels=tuple(labels),
        detail="; ".join(parts),
        known_at=at,
        **fields,
    )


def _job(name: str | None, job: str) -> str:
    return f"job {job}" if name is None else f"job {name} ({job})"


def _seen(what: str, at: int) -> str:
    return f"{what} at {day_of(at)} {clock(at)} UTC"


def _changed(around: Around, day: str, words: str) -> str:
    told = [
        f"{one.old} -> {one.new} at {instant(one.at, day)}"
        if one.old != one.new
        else f"to {one.new} again at {instant(one.at, day)}"
        for one in around.changes[-_MOST:]
    ]
    return f"{words}{listed(told)}" if told else ""


def _restored(around: Around) -> list[str]:
    lineage = around.lineage
    if not lineage.seen:
        return []
    if lineage.restored_id is None:
        return ["not_restored"]
    return ["savepoint_restore" if lineage.restored_savepoint else "checkpoint_restore"]


def _what_was_restored(around: Around) -> str:
    lineage = around.lineage
    if lineage.restored_id is None:
        return "nothing was restored"
    kind = "savepoint" if lineage.restored_savepoint else "checkpoint"
    path = f" ({lineage.restored_path})" if lineage.restored_path else ""
    return f"it was restored from {kind} {lineage.restored_id}{path}"


def _beside(around: Around, name: str | None, after: int) -> list[str]:
    """The jobs beside it, its successors first: those of its name, and those first seen after it had ended."""
    if not around.beside:
        return []

    def words(one: Beside) -> str:
        last = f"last checkpoint {one.last}" if one.last is not None else "no checkpoint yet"
        return f"{one.name} ({one.job}, {one.state}, {last})"

    succeeding = [one for one in around.beside if one.name == name or one.first_at > after]
    others = [one for one in around.beside if one not in succeeding]
    told = [f"{'its successor ' if one in succeeding else ''}{words(one)}" for one in (*succeeding, *others)[:_MOST]]
    more = len(around.beside) - len(told)
    return [f"beside it there was {listed([*told, *([count(more, 'more job')] if more else [])])}"]


def _sessions(sessions: Any) -> str:
    return f"session{'' if len(sessions) == 1 else 's'} {listed(sessions)}"
