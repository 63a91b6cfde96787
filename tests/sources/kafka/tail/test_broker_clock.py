"""How far brokers' clocks are behind or ahead, as the commits that are read show."""

from agent.sources.kafka.tail.broker_clock import BrokerClock

NOW = 1_795_000_000_000
MINUTE = 60


def watch(clock: BrokerClock, begin: int, seconds: int, late: int) -> None:
    """Read a commit a second that is dated so many ms before it is read."""
    for second in range(begin, begin + seconds):
        now = NOW + second * 1_000
        clock.sample(now, now - late, is_current=True)


def test_commits_that_are_all_old_when_they_are_read_show_a_clock_behind() -> None:
    clock = BrokerClock()
    watch(clock, 0, 2 * MINUTE, 45_000)
    assert (clock.behind, clock.ahead) == (45_000, 0)
    watch(clock, 2 * MINUTE, 2 * MINUTE, 30)
    assert clock.behind == 0


def test_a_commit_dated_in_the_future_counts_for_a_while_only() -> None:
    clock = BrokerClock()
    watch(clock, 0, 2 * MINUTE, 30_000)
    clock.sample(NOW, NOW + 86_400_000, is_current=True)
    assert clock.ahead == 86_400_000
    watch(clock, 2 * MINUTE, 3 * MINUTE, 30_000)
    assert (clock.behind, clock.ahead) == (30_000, 0)


def test_what_is_read_late_says_nothing_of_clocks() -> None:
    clock = BrokerClock()
    for second in range(2 * MINUTE):
        clock.sample(NOW + second * 1_000, NOW, is_current=False)
        clock.sample(NOW + second * 1_000, 0, is_current=True)
    assert (clock.behind, clock.ahead) == (0, None)
