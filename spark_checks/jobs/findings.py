"""Findings about Flink jobs and job graphs: severity, labels, and text that says what to do."""

from collections.abc import Sequence
from typing import Any

from agent.model.findings import Finding, Severity
from agent.model.text import count, day_of, instant, join_names
from agent.model.times import clock
from agent.rules.queries.flink import graph_znode
from spark_checks.jobs.context import Context, OtherJob
from spark_checks.jobs.graphs import LeftoverGraph, StrayFile
from spark_checks.jobs.runs import LineageRestart, Resurrection

NAME = "job_history"

_MOST = 3
"""How many leader changes and jobs are named: the last, the newest."""


def came_back(job: Resurrection, context: Context) -> Finding:
    """Report a job that had ended and ran again; info if it was submitted again with a savepoint and a new graph."""
    lineage, made_at = context.lineage, context.made_at
    has_old_graph = made_at is not None and made_at <= job.ended_at
    deliberate = lineage.restored_savepoint and not has_old_graph
    decreased = lineage.old is not None and lineage.new is not None and lineage.new < lineage.old
    labels = ["came_back", *_leader_labels(context)]
    labels += ["old_graph"] if has_old_graph else ["new_graph"] if made_at is not None else []
    labels += _restore_labels(context)
    labels += ["submitted_again"] if deliberate else []
    labels += ["lineage_restarted"] if decreased and lineage.restored_id is None else []
    day = day_of(job.at)
    parts = [
        (
            f"{_job(job.name, job.job)} ended ({job.ending} at {instant(job.ended_at, day)}) and came back: "
            f"{job.state} at {_time(job.at)}{_describe_changes(context, day, ' after the leader changed ')}"
        )
    ]
    parts += [_describe_restore(context)] if lineage.seen else []
    parts += [f"checkpoint ids decreased {lineage.old} -> {lineage.new}"] if decreased else []
    if made_at is not None:
        parts.append(f"its job graph {'was left behind' if has_old_graph else 'is new'}, from {instant(made_at, day)}")
    parts += _describe_others(context, job.name, job.noticed_at)
    if not deliberate:
        parts.append(f"cancel {job.job} and delete its job graph, unless it was submitted again on purpose")
    return _finding(
        Severity.INFO if deliberate else Severity.CRITICAL,
        at=job.at,
        since=job.since,
        subject={"cluster": job.cluster, "job": job.job, "job_name": job.name},
        labels=labels,
        previous={"state": job.ending, "checkpoint": lineage.old},
        current={
            "state": job.state,
            "checkpoint": lineage.new,
            "restored": lineage.restored_id,
            "beside": [other.job for other in context.others],
        },
        parts=parts,
    )


def lineage_restarted(job: LineageRestart, context: Context) -> Finding:
    """Report checkpoint ids that decreased; info if a restore explains it."""
    unexplained = job.restored_id is None
    day = day_of(job.at)
    parts = [
        (
            f"{_job(job.name, job.job)} restarted its checkpoint ids: {job.old} -> {job.new} at {_time(job.at)}"
            f"{_describe_changes(context, day, ' after the leader changed ')}"
        ),
        _describe_restore(context),
    ]
    if unexplained:
        parts += _describe_others(context, job.name, job.since)
        parts.append(f"it runs without its state: if that is needed, restore checkpoint {job.old} or a savepoint")
    return _finding(
        Severity.WARNING if unexplained else Severity.INFO,
        at=job.at,
        since=job.since,
        subject={"cluster": job.cluster, "job": job.job, **({} if job.name is None else {"job_name": job.name})},
        labels=["lineage_restarted", *_leader_labels(context), *_restore_labels(context)],
        previous={"checkpoint": job.old},
        current={"checkpoint": job.new, "restored": job.restored_id},
        parts=parts,
    )


def graph_of_ended_job(graph: LeftoverGraph, context: Context) -> Finding:
    """Report a job graph in ZooKeeper of a job that has ended."""
    day = day_of(graph.ended_at)
    foreign = [lock for lock in graph.locks if graph.session is not None and lock != graph.session]
    parts = [
        (
            f"{_job(graph.name, graph.job)} ended ({graph.ending} at {_time(graph.ended_at)}), but its job graph of "
            f"{instant(graph.made_at, day)} is still in ZooKeeper"
            f"{_describe_changes(context, day, '; since then the leader changed ')}"
        )
    ]
    if foreign:
        parts.append(f"it is locked by {_sessions(foreign)}, but the leader's session is {graph.session}")
    elif graph.locks:
        parts.append(f"it is locked by {_sessions(graph.locks)}")
    parts += _describe_others(context, graph.name, graph.ended_at)
    file = f" and the file {graph.file}" if graph.file else ""
    parts.append(
        f"the next leading JobManager may run the job again: delete {graph_znode(graph.job, graph.file)} in "
        f"ZooKeeper{file}"
    )
    return _finding(
        Severity.WARNING,
        at=graph.ended_at,
        subject={"cluster": graph.cluster, "job": graph.job, "job_name": graph.name},
        labels=["graph_of_ended_job", *(["foreign_lock"] if foreign else [])],
        current={"state": graph.ending, "locks": list(graph.locks), "file": graph.file},
        parts=parts,
    )


def graph_without_job(file: StrayFile, directory: str | None, context: Context) -> Finding:
    """Report a graph file that no job graph points to. directory: where it is, None if only the journal has it."""
    day = day_of(file.modified_at)
    where = f"in {directory}" if directory is not None else "in the HA storage directory"
    parts = [
        (
            f"no job graph in ZooKeeper points to the job graph file {file.file} {where} "
            f"({count(file.size, 'byte')}, written {_time(file.modified_at)})"
            f"{_describe_changes(context, day, '; since then the leader changed ')}"
        )
    ]
    if file.job is not None:
        state = f", last seen {file.state}" if file.state is not None else ""
        gone = f"; that graph was removed by {instant(file.gone_at, day)}" if file.gone_at is not None else ""
        parts.append(f"it was the graph of {_job(file.name, file.job)}{state}{gone}")
    parts.append("delete it when no JobManager is starting and no job is being submitted")
    return _finding(
        Severity.WARNING,
        at=file.modified_at,
        subject={"cluster": file.cluster, "file": file.file},
        labels=["graph_without_job"],
        current={"size": file.size, "job": file.job, "job_name": file.name, "state": file.state},
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


def _time(at: int) -> str:
    return f"{day_of(at)} {clock(at)} UTC"


def _sessions(sessions: Sequence[str]) -> str:
    return f"session{'' if len(sessions) == 1 else 's'} {join_names(sessions)}"


def _leader_labels(context: Context) -> list[str]:
    return ["after_leader_change"] if context.changes else []


def _restore_labels(context: Context) -> list[str]:
    lineage = context.lineage
    if not lineage.seen:
        return []
    if lineage.restored_id is None:
        return ["not_restored"]
    return ["savepoint_restore" if lineage.restored_savepoint else "checkpoint_restore"]


def _describe_changes(context: Context, day: str, introduction: str) -> str:
    changes = [
        f"{change.old} -> {change.new} at {instant(change.at, day)}"
        if change.old != change.new
        else f"to {change.new} again at {instant(change.at, day)}"
        for change in context.changes[-_MOST:]
    ]
    return f"{introduction}{join_names(changes)}" if changes else ""


def _describe_restore(context: Context) -> str:
    lineage = context.lineage
    if lineage.restored_id is None:
        return "nothing was restored"
    kind = "savepoint" if lineage.restored_savepoint else "checkpoint"
    path = f" ({lineage.restored_path})" if lineage.restored_path else ""
    return f"restored from {kind} {lineage.restored_id}{path}"


def _describe_others(context: Context, name: str | None, after: int) -> list[str]:
    """Describe the other jobs, successors first: those of the same name, and those first seen after `after` (ms)."""
    if not context.others:
        return []

    def describe(other: OtherJob) -> str:
        last = f"last checkpoint {other.last}" if other.last is not None else "no checkpoint yet"
        who = "its successor " if other in successors else ""
        return f"{who}{other.name} ({other.job}, {other.state}, {last})"

    successors = [other for other in context.others if other.name == name or other.first_at > after]
    rest = [other for other in context.others if other not in successors]
    named = [describe(other) for other in (*successors, *rest)[:_MOST]]
    more = len(context.others) - len(named)
    return [f"running beside it: {join_names([*named, *([count(more, 'more job')] if more else [])])}"]
