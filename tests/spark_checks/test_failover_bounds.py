"""What two series of log end offsets prove about a move: bounds, delays, and when they prove nothing."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from agent.model.findings import Records, Severity
from spark_checks.failovers.findings import Limits, findings_of
from spark_checks.failovers.log_ends import LogEnds, find_delay, measure
from spark_checks.failovers.measured import Effect
from spark_checks.failovers.positions import Comparison, Origin, Target
from spark_checks.failovers.tenures import Move

HOUR, MINUTE = 3_600_000, 60_000
JOINED = 4 * HOUR
MOVE = Move(
    "g", "main", "backup", JOINED - MINUTE, JOINED - MINUTE, JOINED - 2_000, JOINED, JOINED + HOUR, JOINED - 2_000
)


def ends(read: Callable[[int], int], begin: int = 0, end: int = 5 * HOUR, step: int = 2_000) -> LogEnds:
    """Return readings of a log whose end at a time (ms) is known."""
    at = np.arange(begin, end, step)
    values = np.array([read(moment) for moment in at.tolist()])
    return LogEnds.of(at, np.full(at.size, -1), np.zeros(at.size, np.int64), values)


def written(at: int) -> int:
    """Return a log end: ten records a second in every second minute."""
    minutes, rest = divmod(max(at, 0), MINUTE)
    return (minutes + 1) // 2 * 600 + (rest // 100 if minutes % 2 == 0 else 0)


def late(by: int, shift: int = 5_000) -> Callable[[int], int]:
    """Return the log end of a mirror that is late, at other offsets."""
    return lambda at: written(at - by) + shift


def compared(left: int, low: int | None, high: int, move: Move = MOVE, at: int = JOINED + 5_000) -> Comparison:
    """Return a comparison of a group that had read up to `left`."""
    return Comparison(move, Origin("t", 0, left, left, JOINED - MINUTE), Target("t", 0, low, high, at))


MAIN = ends(written)
READ = written(JOINED - 30 * MINUTE - 25_000)
"""A group half an hour behind."""


def test_a_mirrored_position_skips_and_repeats_nothing() -> None:
    measured = measure(MAIN, ends(late(3_000)), compared(READ, READ + 5_000, READ + 5_000), 0)
    assert measured is not None
    assert (measured.skipped, measured.repeated) == (0, 0)


@pytest.mark.parametrize("skipped", [4_000, -4_000])
def test_bounds_enclose_what_happened(skipped: int) -> None:
    began = READ + 5_000 + skipped
    measured = measure(MAIN, ends(late(3_000)), compared(READ, began, began), 0)
    assert measured is not None
    least, most = (
        (measured.skipped, measured.most_skipped) if skipped > 0 else (measured.repeated, measured.most_repeated)
    )
    assert most is not None
    assert abs(skipped) - 100 <= least <= abs(skipped) <= most <= abs(skipped) + 100
    assert measured.resume_at is not None
    assert measured.resume_at <= READ + 5_000


@pytest.mark.parametrize("delay", [0, 3_000, 30_000, 600_000])
def test_delay_is_measured(delay: int) -> None:
    found = find_delay(MAIN, ends(late(delay)), 0, JOINED)
    assert found is not None
    assert delay <= found
    if delay < 30_000:  # the log end of a slower mirror varies as much as that of one which is even slower
        assert found <= delay + 4_000


@pytest.mark.parametrize("delay", [0, 600_000])
def test_a_constant_delay_under_steady_traffic_is_not_ruled_out(delay: int) -> None:
    found = find_delay(ends(lambda at: at // 10), ends(lambda at: max(at - delay, 0) // 10, begin=HOUR), HOUR, JOINED)
    assert found is not None
    assert found >= 600_000


def test_no_delay_of_unrelated_logs() -> None:
    assert find_delay(MAIN, ends(lambda at: at // 70), 0, JOINED) is None
    assert find_delay(MAIN, ends(lambda _: 7), 0, JOINED) is None
    assert find_delay(ends(lambda _: 7), ends(late(0)), 0, JOINED) is None


def test_a_mirror_that_copied_older_records_proves_no_skip() -> None:
    began_late = 3 * HOUR + 50 * MINUTE
    mirror = ends(lambda at: late(3_000)(at) if at >= began_late else 5_000)
    measured = measure(MAIN, mirror, compared(READ, READ + 5_000, READ + 5_000), 0)
    assert measured is None or measured.skipped == 0


def test_positions_from_before_the_journal_prove_no_repetition() -> None:
    measured = measure(ends(written, begin=HOUR), ends(late(3_000), begin=HOUR), compared(500, 4_000, 4_000), 0)
    assert measured is None or measured.repeated == 0


def test_a_group_without_offset_begins_at_the_log_end_or_before_it() -> None:
    mirror, end = ends(late(3_000)), late(3_000)(JOINED)
    latest = measure(MAIN, mirror, compared(READ, None, end), 0)
    earliest = measure(MAIN, mirror, compared(READ, None, 6_000), 0)
    assert latest is not None
    assert earliest is not None
    assert not latest.is_early
    assert 0 < latest.skipped <= end - READ - 5_000
    assert (earliest.is_early, earliest.skipped) == (True, 0)
    assert earliest.repeated > 1_000


def test_records_that_retention_deleted_are_not_skipped() -> None:
    mirror, began = ends(late(3_000)), READ + 9_000
    mirror = mirror._replace(start=np.full(mirror.time.size, began - 300))
    measured = measure(MAIN, mirror, compared(READ, began, began), 0)
    assert measured is not None
    assert measured.skipped == 300


@pytest.mark.parametrize(
    ("times", "values", "kept"),
    [
        ([0, 2_000, 4_000, 20_000], [10, 20, 19, 30], [10, 20, 20, 30]),
        ([0, 2_000, 9_000, 20_000], [10, 20, 5, 6], [5, 6]),
        ([0, 2_000, 4_000], [10, 20, 30], [10, 20, 30]),
    ],
)
def test_readings_before_a_truncation_are_left_out(
    times: Sequence[int], values: Sequence[int], kept: Sequence[int]
) -> None:
    at = np.array(times)
    log = LogEnds.of(at, np.full(at.size, -1), np.zeros(at.size, np.int64), np.array(values))
    assert log.end.tolist() == kept


def test_a_value_counts_until_it_was_last_read() -> None:
    at, since = np.array([0, 10_000]), np.array([-1, 8_000])
    log = LogEnds.of(at, since, np.zeros(2, np.int64), np.array([10, 20]))
    assert (log.time.tolist(), log.end.tolist()) == ([0, 8_000, 10_000], [10, 10, 20])


def test_an_offset_beyond_the_log_end_is_reported_before_a_failover() -> None:
    mirror, now = ends(late(3_000), end=JOINED), JOINED - 2_000
    ready = MOVE._replace(is_projected=True, joined=now, until=now, absent_at=now)
    beyond = compared(READ, late(3_000)(JOINED) + 40, late(3_000)(JOINED) + 40, ready, JOINED - MINUTE)
    measured = measure(MAIN, mirror, beyond, 0)
    assert measured is not None
    assert 40 <= measured.beyond <= 80
    (finding,) = findings_of([Effect(beyond, measured)], Limits(1_000, 300_000))
    assert (finding.severity, finding.labels) == (Severity.WARNING, ("beyond_log_end", "projected"))
    assert finding.records == Records()
    assert f"has an offset {measured.beyond} records beyond the log end on backup: if it failed over" in finding.detail


def test_a_group_that_reads_from_the_log_start_skips_nothing_on_its_other_partitions() -> None:
    end = late(3_000)(JOINED)
    found = [compared(READ, None, end), compared(READ, None, 6_000)]
    effects = [Effect(entry, measured) for entry in found if (measured := measure(MAIN, ends(late(3_000)), entry, 0))]
    assert [finding.labels for finding in findings_of(effects[:1], Limits(1_000, 300_000))] == [
        ("skipped", "no_offset")
    ]
    assert [finding.labels for finding in findings_of(effects, Limits(1_000, 300_000))] == [
        ("reprocessed", "no_offset")
    ]
