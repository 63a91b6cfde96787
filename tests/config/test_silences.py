"""Windows that recur and silences of rules.toml: when they last, by the calendar of their time zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.loading import loads
from agent.config.schedules import Window, cron
from agent.model.times import millis

HOUR = 3_600_000
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> int:
    return millis(text)


def test_a_window_begins_at_the_local_time_of_its_zone() -> None:
    window = Window(cron("0 2 * * sun", BERLIN), 2 * HOUR)
    for begin, hour in (("2026-07-05T00:00:00Z", 0), ("2026-11-22T01:00:00Z", 1)):
        assert window.around(at(begin)) == (at(begin), at(begin) + 2 * HOUR)
        assert window.around(at(begin) + 2 * HOUR - 1) == (at(begin), at(begin) + 2 * HOUR)
        assert window.around(at(begin) - 1) is None, hour
        assert window.around(at(begin) + 2 * HOUR) is None


def test_a_window_across_midnight_and_a_clock_change_keeps_its_length() -> None:
    window = Window(cron("0 22 * * sat", BERLIN), 10 * HOUR)
    begin = at("2026-10-24T20:00:00Z")
    assert window.around(at("2026-10-25T05:59:59Z")) == (begin, begin + 10 * HOUR)
    assert window.around(at("2026-10-25T06:00:00Z")) is None


@given(
    st.integers(0, 23),
    st.sampled_from([(0, 30), (15, 45), (0,)]),
    st.integers(1, 29),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]),
    st.integers(millis("2024-01-01T00:00:00Z"), millis("2027-01-01T00:00:00Z")),
)
def test_windows_are_where_every_minute_of_the_calendar_puts_them(
    hour: int, minutes: tuple[int, ...], lasts: int, zone: str, now: int
) -> None:
    """The oracle looks at each minute in which a window that lasts may have begun."""
    window = Window(cron(f"{','.join(map(str, minutes))} {hour} * * *", ZoneInfo(zone)), lasts * 60_000)
    moment = datetime.fromtimestamp(now // 60_000 * 60, UTC)
    began = [
        minute
        for back in range(lasts + 1)
        if (local := (minute := moment - timedelta(minutes=back)).astimezone(ZoneInfo(zone))).hour == hour
        and local.minute in minutes
        and now < minute.timestamp() * 1000 + lasts * 60_000
    ]
    expected = round(began[0].timestamp() * 1000) if began else None
    assert window.around(now) == (None if expected is None else (expected, expected + lasts * 60_000))


def test_silences_of_the_file_last_from_begin_to_end() -> None:
    settings = loads(
        """
        [[silences]]
        comment = "migration"
        topics = { include = ["orders"] }
        begins = "2026-12-01T06:00:00+01:00"
        until = "2026-12-01T06:00:00Z"
        [[silences]]
        comment = "restarts"
        severities = ["warning"]
        schedule = "0 5 * * *"
        lasts = "10m"
        """,
        "rules.toml",
        need_clusters=False,
    )
    expected = {"2026-12-01T04:59:59Z": [], "2026-12-01T05:00:00Z": [1, 2], "2026-12-01T05:59:59Z": [1]}
    for moment, numbers in ({**expected, "2026-12-01T06:00:00Z": []}).items():
        assert [silence.id for silence in settings.silences_at(at(moment))] == [
            f"silences[{number}]" for number in numbers
        ]
    (first, second) = settings.silences_at(at("2026-12-01T05:00:00Z"))
    assert (first.ends_at, second.ends_at) == (at("2026-12-01T06:00:00Z"), at("2026-12-01T05:10:00Z"))
    assert (first.author, first.comment) == ("rules.toml", "migration")


@pytest.mark.parametrize("schedule", ["0 2 29 2 *", "*/5 * * * *", "0 0 1 1 *"])
def test_rare_and_frequent_windows_are_accepted(schedule: str) -> None:
    assert Window(cron(schedule), 60_000).problem == ""


def test_days_of_the_month_and_of_the_week_are_refused() -> None:
    """To cron they mean either, to APScheduler both."""
    with pytest.raises(ValueError, match="days of the month or days of the week"):
        cron("0 2 1,15 * mon")
    for schedule in ("0 2 */2 * mon", "0 2 1,15 * *", "0 2 * * mon-fri"):
        assert Window(cron(schedule), 60_000).problem == ""


def test_quiet_hours_last_until_the_last_window_ends() -> None:
    notifications = loads(
        """
        [[notifications.quiet_hours]]
        schedule = "0 20 * * *"
        lasts = "11h"
        [[notifications.quiet_hours]]
        schedule = "0 6 * * sat,sun"
        lasts = "4h"
        """,
        "rules.toml",
        need_clusters=False,
    ).notifications
    expected = {
        "2026-11-20T19:59:59Z": None,
        "2026-11-20T20:00:00Z": "2026-11-21T07:00:00Z",
        "2026-11-21T06:30:00Z": "2026-11-21T10:00:00Z",
        "2026-11-21T10:00:00Z": None,
    }
    for moment, end in expected.items():
        assert notifications.quiet_until(at(moment)) == (None if end is None else at(end))


@pytest.mark.parametrize(
    ("schedule", "zone", "lasts", "begin"),
    [
        ("30 2 * * *", "Europe/Berlin", 1, "2027-03-28T01:00:00Z"),  # 02:00 is 03:00
        ("0 0 * * *", "Africa/Cairo", 7, "2027-04-29T22:00:00Z"),  # 00:00 is 01:00
        ("15 2 * * sun", "America/New_York", 2, "2027-03-14T07:00:00Z"),  # 02:00 is 03:00
    ],
)
def test_a_window_whose_time_is_skipped_in_spring_begins_when_it_is_skipped(
    schedule: str, zone: str, lasts: int, begin: str
) -> None:
    window = Window(cron(schedule, ZoneInfo(zone)), lasts * HOUR)
    expected = (at(begin), at(begin) + lasts * HOUR)
    assert window.around(at(begin) - 1) is None
    assert [window.around(moment) for moment in (at(begin), expected[1] - 1)] == [expected, expected]
    assert window.around(expected[1]) is None
    assert window.problem == ""
