"""Which finding may have caused which, as far as their times, clocks and checks show. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import attrgetter

from agent.engine.rule import ELECTION, cause_checks
from agent.model.findings import Finding, Severity
from agent.model.text import is_leader_change

CLOCK_SLACK_MS = 5_000
"""By how much the interval of each finding is widened before its order is decided: clocks of two sources differ."""

SAME_POLL_MS = 500
"""How far apart one poll reads what it dates: what was still unchanged then explains nothing that the poll shows."""

CLOCK_LEAD_MS = 30_000
"""By how much a source's clock may be ahead if it dates several causes no earlier than they were seen."""


def sort_by_time(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings by event time; of one moment by key."""
    return sorted(findings, key=lambda finding: (finding.at, finding.key))


def can_precede(earlier: Finding, later: Finding, slack: int = 0) -> bool:
    """Return whether `earlier` can have happened before `later`, as far as their intervals and clocks show.

    slack: how much more `later` may be dated too early, ms. A check dates what it finds in a log by the records' own
    timestamps, which are their producers' clocks.
    """
    # What happened between two polls is dated by Backflow's own clock.
    clocks = -SAME_POLL_MS if _is_polled(earlier) and _is_polled(later) else 2 * CLOCK_SLACK_MS
    return earlier.start <= later.at + clocks + slack


def is_cleared(cause: Finding, effect: Finding) -> bool:
    """Return whether a cause about a partition is none: its reader read on since, or a check speaks against it."""
    if "partition" not in cause.subject:
        return False
    is_here = all(cause.subject.get(key) == effect.subject.get(key) for key in ("cluster", "topic", "partition"))
    has_read_on = cause.at + CLOCK_SLACK_MS < (effect.undisturbed_since or 0)
    return has_read_on or (is_here and is_leader_change(cause) and _has_check(effect, ELECTION))


def _has_check(finding: Finding, cause: str) -> bool:
    return any(check.cause == cause for check in cause_checks(finding))


def may_be_effect(finding: Finding) -> bool:
    """Return whether something else can have caused it: no mere information, and nothing that an operator did."""
    return finding.severity is not Severity.INFO and "operator_reset" not in finding.labels


def before_effects(roots: Iterable[Finding], effects: Iterable[Finding], within: int) -> Iterator[Finding]:
    """Yield the roots that an effect may have followed, by their times alone: most leader changes have no effect."""
    by_start = sorted(effects, key=attrgetter("start"))
    starts = [effect.start for effect in by_start]
    ends = list(accumulate((effect.at for effect in by_start), max))
    slack = within + CLOCK_LEAD_MS + 2 * CLOCK_SLACK_MS
    for root in roots:
        count = bisect_right(starts, root.at + within)
        if count and root.start <= ends[count - 1] + slack:
            yield root


def _is_polled(finding: Finding) -> bool:
    return finding.since is not None and finding.since < finding.at


def is_dated_by_source(finding: Finding) -> bool:
    """Return whether the source's own clock dates the finding exactly, such as ZooKeeper's."""
    return finding.since == finding.at


def is_dated_ahead(finding: Finding) -> bool:
    """Return whether that clock is ahead of ours, or dates the finding in the millisecond in which it was seen."""
    return is_dated_by_source(finding) and finding.known_at <= finding.at
