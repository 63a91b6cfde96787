"""Timestamps of log lines, and how a wrong time_zone of [logs.NAME] is detected from newly written lines."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent.model.observations.base import Available, Unavailable
from agent.model.times import millis
from agent.sources.logs.timestamps import TimeZoneCheck, begins_entry, parse_timestamp
from tests.sources.logs.test_source import Agent, agent

__all__ = ["agent"]

NOW = millis("2026-11-21T12:00:00Z")
ZONE_UTC, BERLIN = ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")
LATER = millis("2030-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("[2018-06-30 09:34:54,799] INFO started (kafka.server.KafkaServer)", "2018-06-30T09:34:54.799Z"),
        ("2018-06-30 09:34:54,799 INFO  org.apache.flink.X - text", "2018-06-30T09:34:54.799Z"),
        ("2018-06-30 09:34:54,799 [myid:1] - INFO  [main:X@1] - text", "2018-06-30T09:34:54.799Z"),
        ("2018-06-30T09:34:54.799123Z text", "2018-06-30T09:34:54.799Z"),
        ("2018-06-30T09:34:54+02:00 text", "2018-06-30T07:34:54.000Z"),
        ("[2018-06-30T09:34:54.5-0330] text", "2018-06-30T13:04:54.500Z"),
        ("2018-06-30 09:34:54 text", "2018-06-30T09:34:54.000Z"),
        ("%4|1691234567.123|OFFSET|rdkafka#consumer-1| [thrd:main]: text", "2023-08-05T11:22:47.123Z"),
        ("\ufeff2018-06-30 09:34:54,799 the first line of a file", "2018-06-30T09:34:54.799Z"),
    ],
)
def test_timestamps_of_all_layouts_are_parsed(line: str, at: str) -> None:
    assert begins_entry(line)
    assert parse_timestamp(line, ZONE_UTC, LATER) == millis(at)


@pytest.mark.parametrize(
    "line", ["", "\tat java.lang.Thread.run(Thread.java:833)", "Caused by: X: 2018-06-30 09:34:54,799", "12:00:01 text"]
)
def test_other_lines_continue_the_entry_before(line: str) -> None:
    assert not begins_entry(line)
    assert parse_timestamp(line, ZONE_UTC, LATER) is None


def test_invalid_time_is_none_but_begins_an_entry() -> None:
    assert begins_entry("2018-13-30 09:34:54,799 text")
    assert parse_timestamp("2018-13-30 09:34:54,799 text", ZONE_UTC, LATER) is None


def test_times_without_a_zone_are_in_the_configured_zone() -> None:
    assert parse_timestamp("2018-06-30 09:34:54,799 x", BERLIN, LATER) == millis("2018-06-30T07:34:54.799Z")
    assert parse_timestamp("2018-12-30 09:34:54,799 x", BERLIN, LATER) == millis("2018-12-30T08:34:54.799Z")
    assert parse_timestamp("2018-12-30T09:34:54Z x", BERLIN, LATER) == millis("2018-12-30T09:34:54Z")


def test_repeated_hour_is_the_later_one_unless_in_the_future() -> None:
    """Clocks are set back: 02:30 is 00:30 UTC and 01:30 UTC."""
    line = "2018-10-28 02:30:00,000 x"
    assert parse_timestamp(line, BERLIN, millis("2018-10-28T00:30:01Z")) == millis("2018-10-28T00:30:00Z")
    assert parse_timestamp(line, BERLIN, millis("2018-10-28T01:30:01Z")) == millis("2018-10-28T01:30:00Z")
    # The writer's clock may be a little ahead.
    assert parse_timestamp(line, BERLIN, millis("2018-10-28T01:29:55Z")) == millis("2018-10-28T01:30:00Z")


def test_missing_hour_is_the_one_after_it() -> None:
    """Clocks are set forward: there is no 02:30; it is read as 03:30, which is 01:30 UTC."""
    line = "2018-03-25 02:30:00,000 x"
    assert parse_timestamp(line, BERLIN, millis("2018-03-25T00:59:00Z")) == millis("2018-03-25T01:30:00Z")
    assert parse_timestamp(line, BERLIN, LATER) == millis("2018-03-25T01:30:00Z")


def make_line(zone: str, at: int, text: str = "INFO all is well") -> str:
    """Return a line written at `at`, ms, with the local time of `zone`."""
    moment = datetime.fromtimestamp(at / 1000, UTC).astimezone(ZoneInfo(zone))
    return f"[{moment:%Y-%m-%d %H:%M:%S},{at % 1000:03}] {text}"


def find_mismatch(configured: str, lines: Iterable[tuple[int, str]]) -> str | None:
    """Return the reported mismatch after the lines, each with when it was read, ms."""
    check = TimeZoneCheck("brokers", ZoneInfo(configured))
    now = NOW
    for now, text in lines:
        check.add_line("/x.log", text, now)
    return check.describe_mismatch(now)


def written_in(zone: str, late: int = 400, number: int = 13) -> list[tuple[int, str]]:
    """Return a line every 10 s, each read `late` ms after it was written."""
    return [(at + late, make_line(zone, at)) for at in range(NOW, NOW + number * 10_000, 10_000)]


@pytest.mark.parametrize(
    ("configured", "written", "off", "fitting"),
    [
        ("UTC", "Europe/Berlin", "1 h ahead of", '"Europe/Berlin"'),
        ("Europe/Berlin", "UTC", "1 h behind", '"UTC" or "Europe/London"'),
        ("UTC", "Asia/Kolkata", "5 h 30 min ahead of", '"Asia/Kolkata"'),
        ("UTC", "Asia/Kathmandu", "5 h 45 min ahead of", '"Asia/Kathmandu" or "Asia/Katmandu"'),
        ("Pacific/Auckland", "America/Los_Angeles", "21 h behind", '"America/Los_Angeles"'),
    ],
)
def test_lines_of_another_zone_are_reported_with_a_fitting_zone(
    configured: str, written: str, off: str, fitting: str
) -> None:
    mismatch = find_mismatch(configured, written_in(written))
    assert mismatch is not None
    assert f"/x.log are dated {off} the clock: [logs.brokers] has time_zone" in mismatch
    assert f'time_zone = "{configured}"; set it to {fitting}' in mismatch


def test_offset_from_utc_is_reported_if_no_zone_fits() -> None:
    off = [(at + 400, make_line("UTC", at - 17_100_000)) for at in range(NOW, NOW + 130_000, 10_000)]
    mismatch = find_mismatch("UTC", off)
    assert mismatch is not None
    assert "are dated 4 h 45 min behind the clock" in mismatch
    assert "set it to a zone 4 h 45 min behind UTC." in mismatch


def test_log_no_longer_followed_is_forgotten() -> None:
    check = TimeZoneCheck("brokers", ZoneInfo("UTC"))
    for now, text in written_in("Europe/Berlin"):
        check.add_line("/x.log", text, now)
    check.retain({"/x.log", "/y.log"})
    assert check.describe_mismatch(NOW) is None
    assert check.describe_mismatch(NOW + 130_000) is not None
    check.retain({"/y.log"})
    assert check.describe_mismatch(NOW + 130_000) is None


def test_lines_in_the_zone_or_naming_theirs_are_no_mismatch() -> None:
    assert find_mismatch("Europe/Berlin", written_in("Europe/Berlin", late=30_000)) is None
    named = [(at, line.replace("]", "+01:00]")) for at, line in written_in("Europe/Berlin")]
    assert find_mismatch("UTC", named) is None
    assert find_mismatch("UTC", [(at, "no time at all") for at, _ in named]) is None


def test_irregular_deviations_are_no_mismatch() -> None:
    """Wrong clocks, or a log that is replayed."""
    assert find_mismatch("UTC", [(at + 1_200_000, line) for at, line in written_in("UTC")]) is None
    lines = enumerate(written_in("Asia/Tokyo"))
    mixed = [(at, line if number % 3 else make_line("UTC", at)) for number, (at, line) in lines]
    assert find_mismatch("UTC", mixed) is None
    assert find_mismatch("UTC", written_in("Asia/Tokyo", number=6)) is None
    days = [(at + 3 * 86_400_000, line) for at, line in written_in("UTC")]
    assert find_mismatch("UTC", days) is None


def test_old_line_of_a_long_entry_is_no_mismatch() -> None:
    """Undated lines after a dated one, a quarter of an hour later."""
    first = make_line("UTC", NOW)
    assert find_mismatch("UTC", [(NOW + second * 1000, first) for second in range(850, 1_000)]) is None


def _write_lines(agent: Agent, path: Path, zone: str, polls: int) -> None:
    """Write a line every ten seconds, each read at once."""
    for _ in range(polls):
        agent.now += 10_000
        with path.open("a", encoding="utf-8") as file:
            file.write(make_line(zone, agent.now) + "\n")
        agent.sources[-1].poll()


def _availability(agent: Agent) -> list[type]:
    return [type(fact) for fact in agent.emitted() if isinstance(fact, Unavailable | Available)]


def test_source_is_unavailable_while_lines_are_of_another_zone(agent: Agent, tmp_path: Path) -> None:
    """Whether or not a line matches a pattern; it is available again with the first line in the right zone."""
    path = tmp_path / "server.log"
    path.touch()
    agent.start(path)
    _write_lines(agent, path, "Europe/Berlin", polls=5)
    assert _availability(agent) == []
    _write_lines(agent, path, "Europe/Berlin", polls=5)
    (unavailable,) = (fact for fact in agent.emitted() if isinstance(fact, Unavailable))
    assert (unavailable.source, unavailable.cluster, unavailable.topic) == ("logs", "brokers", None)
    assert 'set it to "Europe/Berlin"' in unavailable.reason
    _write_lines(agent, path, "UTC", polls=2)
    assert _availability(agent) == [Unavailable, Available]


def test_backlog_read_at_the_start_is_no_mismatch(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.logs.files.BLOCK", 4096)
    monkeypatch.setattr("agent.sources.logs.source.BYTES_PER_POLL", 4096)
    path = tmp_path / "server.log"
    path.touch()
    agent.start(path).close()
    written = agent.now - int(timedelta(hours=1).total_seconds() * 1000)
    path.write_text("".join(f"{make_line('UTC', written + number * 10)}\n" for number in range(2_000)))
    source = agent.start(path)
    for _ in range(60):
        agent.now += 2_000
        source.poll()
    assert _availability(agent) == []
