"""The agent's reports as rows of text, for the status page and the command line."""

from collections.abc import Iterator, Mapping

from agent.daemon.groups import GroupProgress, PartitionProgress
from agent.daemon.reports import ArchiveStatus, ButtonsStatus, CheckStatus, ReceiverStatus, SourceStatus
from agent.model.findings import Finding
from agent.model.observations.agent import name_of_source
from agent.model.text import count, instant, place, span
from agent.model.times import minute
from agent.storage.incidents import Delivery

SOURCE_COLUMNS = ("source", "state", "last read", "unavailable")
RECEIVER_COLUMNS = ("receiver", "pending", "oldest", "delivered", "failed", "problem")
CHECK_COLUMNS = ("check", "cluster", "last run (UTC)", "took", "outcome", "reason")
GROUP_COLUMNS = ("group", "cluster", "state", "members", "partitions", "lag", "read/s", "written/s", "kept for")
PARTITION_COLUMNS = ("topic", "partition", "member", "committed", "end", "lag", "read/s", "written/s", "kept for")

NUMBERS = frozenset(
    {"members", "partitions", "partition", "committed", "end", "lag", "read/s", "written/s", "pending", "delivered"}
)
"""The columns of numbers, which are aligned to the right."""

_MOST_REASONS = 3


def source_row(source: SourceStatus, now: int) -> tuple[str, ...]:
    """Return the cells of a source. now: ms."""
    reasons = [*source.unavailable[:_MOST_REASONS]]
    if len(source.unavailable) > _MOST_REASONS:
        reasons.append(f"and {len(source.unavailable) - _MOST_REASONS:,} more")
    state = "unavailable" if not source.is_readable else "not read yet" if source.read_at is None else "ok"
    if state == "ok" and reasons:
        state = "partly"
    last_read = "never" if source.read_at is None else f"{span(max(0, now - source.read_at))} ago"
    return name_of_source(source.cluster, source.source), state, last_read, "; ".join(reasons)


def receiver_row(receiver: ReceiverStatus) -> tuple[str, ...]:
    """Return the cells of a receiver."""
    failed = ", ".join(f"{number:,} {reason}" for reason, number in sorted(receiver.failed.items()) if number)
    oldest = span(receiver.oldest_ms) if receiver.pending else ""
    return receiver.receiver, f"{receiver.pending:,}", oldest, f"{receiver.delivered:,}", failed, receiver.problem


def describe_buttons(buttons: ButtonsStatus) -> str:
    """Return whether presses of buttons in Slack arrive, and how many did."""
    state = "connected" if buttons.is_connected else f"not connected: {buttons.problem}"
    counts = {"pressed": sum(buttons.pressed.values()), "failed": buttons.failed, "malformed": buttons.malformed}
    numbers = (f"{number:,} {noun}" for noun, number in counts.items() if number or noun == "pressed")
    return f"Slack buttons: {state}; {', '.join(numbers)}"


def describe_archive(archive: ArchiveStatus) -> str:
    """Return how far the archive of the journal is behind."""
    pending = f"{count(archive.pending, 'file')} pending"
    waiting = f" for {span(archive.oldest_ms)}" if archive.pending else ""
    problem = f": {archive.problem}" if archive.problem else ""
    return f"journal archive: {archive.archived:,} archived, {archive.failed:,} failed, {pending}{waiting}{problem}"


def check_row(check: CheckStatus) -> tuple[str, ...]:
    """Return the cells of a check's last run."""
    reason = check.reason.partition("\n")[0]
    return check.check, check.cluster, minute(check.ended_at), span(check.took_ms), check.outcome, reason


def group_row(group: GroupProgress) -> tuple[str, ...]:
    """Return the cells of a group."""
    numbers = (_number(group.lag), _rate(group.read_rate), _rate(group.write_rate))
    kept = _kept(group.kept_ms, is_bound=group.kept_is_bound)
    state = group.state or "unknown"
    return group.group, group.cluster, state, f"{group.members:,}", f"{group.partition_count:,}", *numbers, kept


def describe_group(group: GroupProgress) -> str:
    """Return what the row of a group says besides its name and cluster, in one line."""
    cells = zip(GROUP_COLUMNS[2:], group_row(group)[2:], strict=True)
    return ", ".join(f"{column} {value}" for column, value in cells if value)


def partition_row(part: PartitionProgress) -> tuple[str, ...]:
    """Return the cells of a group's partition."""
    numbers = (_number(part.log_end), _number(part.lag), _rate(part.read_rate), _rate(part.write_rate))
    kept = _kept(part.kept_ms, is_bound=part.kept_is_bound)
    return part.topic, str(part.partition), part.member or "", f"{part.committed:,}", *numbers, kept


def describe_subjects(subjects: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a line for each cluster with what is watched of it."""
    for cluster, counts in subjects.items():
        yield f"{cluster}: {', '.join(count(number, noun.removesuffix('s')) for noun, number in counts.items())}"


def describe_finding(finding: Finding, day: str) -> tuple[str, str]:
    """Return a line with time, severity, rule and place, and the finding's sentence."""
    labels = f" ({', '.join(finding.labels)})" if finding.labels else ""
    where = f" {place(finding.subject)}" if "topic" in finding.subject else ""
    over = "" if finding.recovered_at is None else f", over {instant(finding.recovered_at, day)}"
    return (
        f"{instant(finding.at, day)}  {finding.severity.upper():<8}  {finding.rule}{labels}{where}{over}",
        finding.detail,
    )


def describe_delivery(delivery: Delivery, day: str) -> str:
    """Return how far the incident has come with a receiver."""
    handle = delivery.handle or {}
    where = ", ".join(f"{key} {value}" for key, value in handle.items() if type(value) in (str, int))
    # What was looked up in vain at a receiver that knows incidents by their ids has an empty handle.
    is_delivered = bool(handle) or (delivery.handle is not None and not delivery.waiting)
    state = f"delivered{f' ({where})' if where else ''}" if is_delivered else "not delivered yet"
    waiting = f", {delivery.waiting} waiting" if delivery.waiting else ""
    tried = (
        "" if delivery.attempted_at is None else f", tried at {instant(delivery.attempted_at, day)} without an answer"
    )
    return f"{delivery.receiver}: {state}{waiting}{tried}"


def _number(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _kept(kept: int | None, *, is_bound: bool) -> str:
    """Return how long the next record to read is still kept; at most that long if that is a bound."""
    return "" if kept is None else f"{'≤ ' if is_bound else ''}{span(kept)}"
