"""Whether a wrong time zone of [logs.NAME] is noticed: by fresh lines alone, and named by the zones that would fit."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agent.model.observations import Available, Unavailable, millis
from agent.sources.logs.timestamps import LogClock
from tests.sources.logs.test_source import Agent, agent

__all__ = ["agent"]

NOW = millis("2026-11-21T12:00:00Z")


def line(zone: str, at: int, text: str = "INFO all is well") -> str:
    """A line written at that moment, ms, by a clock of that zone."""
    moment = datetime.fromtimestamp(at / 1000, UTC).astimezone(ZoneInfo(zone))
    return f"[{moment:%Y-%m-%d %H:%M:%S},{at % 1000:03}] {text}"


def reason(configured: str, lines: Iterable[tuple[int, str]]) -> str | None:
    """What is said after the lines, each with when it was read."""
    clock = LogClock("brokers", ZoneInfo(configured))
    now = NOW
    for now, text in lines:
        clock.take("/x.log", text, now)
    return clock.reason(now)


def written_in(zone: str, late: int = 400, number: int = 13) -> list[tuple[int, str]]:
    """A line every 10 s, read so much later, ms."""
    return [(at + late, line(zone, at)) for at in range(NOW, NOW + number * 10_000, 10_000)]


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
def test_lines_of_another_zone_are_told_with_the_zone_that_would_fit(
    configured: str, written: str, off: str, fitting: str
) -> None:
    """By how much, and which setting is to be changed."""
    told = reason(configured, written_in(written))
    assert told is not None
    assert f"/x.log are dated {off} the clock: [logs.brokers] has time_zone" in told
    assert f'time_zone = "{configured}", and {fitting}' in told


def test_where_no_zone_fits_how_far_it_is_from_utc_is_told() -> None:
    """Which no place has, so that nothing can be named."""
    off = [(at + 400, line("UTC", at - 17_100_000)) for at in range(NOW, NOW + 130_000, 10_000)]
    told = reason("UTC", off)
    assert told is not None
    assert "are dated 4 h 45 min behind the clock" in told
    assert "and a zone 4 h 45 min behind UTC would fit" in told


def test_a_log_that_is_not_followed_any_more_says_nothing() -> None:
    """It may have been taken away because its writer was wrong."""
    clock = LogClock("brokers", ZoneInfo("UTC"))
    for now, text in written_in("Europe/Berlin"):
        clock.take("/x.log", text, now)
    clock.keep({"/x.log", "/y.log"})
    assert clock.reason(NOW) is None
    assert clock.reason(NOW + 130_000) is not None
    clock.keep({"/y.log"})
    assert clock.reason(NOW + 130_000) is None


def test_lines_of_the_zone_configured_and_lines_that_name_theirs_say_nothing() -> None:
    """Also where they are read half a minute late."""
    assert reason("Europe/Berlin", written_in("Europe/Berlin", late=30_000)) is None
    named = [(at, one.replace("]", "+01:00]")) for at, one in written_in("Europe/Berlin")]
    assert reason("UTC", named) is None
    assert reason("UTC", [(at, "no time at all") for at, _ in named]) is None


def test_lines_that_are_off_by_no_whole_quarter_or_now_and_then_say_nothing() -> None:
    """Clocks that are wrong, a log that is replayed."""
    assert reason("UTC", [(at + 1_200_000, one) for at, one in written_in("UTC")]) is None
    half = [one if number % 3 else (one[0], line("UTC", one[0])) for number, one in enumerate(written_in("Asia/Tokyo"))]
    assert reason("UTC", half) is None
    assert reason("UTC", written_in("Asia/Tokyo", number=6)) is None
    days = [(at + 3 * 86_400_000, one) for at, one in written_in("UTC")]
    assert reason("UTC", days) is None


def test_an_entry_that_goes_on_for_long_grows_old_and_says_nothing() -> None:
    """Undated lines below a dated one, a quarter of an hour later still."""
    first = line("UTC", NOW)
    assert reason("UTC", [(NOW + second * 1000, first) for second in range(850, 1_000)]) is None


def _write(agent: Agent, path: Path, zone: str, polls: int) -> None:
    """A line every ten seconds, each read at once."""
    for _ in range(polls):
        agent.now += 10_000
        with path.open("a", encoding="utf-8") as file:
            file.write(line(zone, agent.now) + "\n")
        agent.sources[-1].poll()


def _sights(agent: Agent) -> list[type]:
    return [type(one) for one in agent.told() if isinstance(one, Unavailable | Available)]


def test_the_source_is_blind_while_fresh_lines_are_of_another_zone(agent: Agent, tmp_path: Path) -> None:
    """Whether or not any of them matches a pattern; it is over with the first line that is dated as it should be."""
    path = tmp_path / "server.log"
    path.touch()
    agent.start(path)
    _write(agent, path, "Europe/Berlin", polls=5)
    assert _sights(agent) == []
    _write(agent, path, "Europe/Berlin", polls=5)
    (blind,) = (one for one in agent.told() if isinstance(one, Unavailable))
    assert (blind.source, blind.cluster, blind.topic) == ("logs", "brokers", None)
    assert '"Europe/Berlin" would fit' in blind.reason
    _write(agent, path, "UTC", polls=2)
    assert _sights(agent) == [Unavailable, Available]


def test_old_lines_that_are_read_at_the_start_say_nothing_of_the_zone(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of hours, read poll by poll."""
    monkeypatch.setattr("agent.sources.logs.files.BLOCK", 4096)
    monkeypatch.setattr("agent.sources.logs.source.BYTES_A_POLL", 4096)
    path = tmp_path / "server.log"
    path.touch()
    agent.start(path).close()
    written = agent.now - int(timedelta(hours=1).total_seconds() * 1000)
    path.write_text("".join(f"{line('UTC', written + number * 10)}\n" for number in range(2_000)))
    source = agent.start(path)
    for _ in range(60):
        agent.now += 2_000
        source.poll()
    assert _sights(agent) == []
