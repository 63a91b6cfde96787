"""Times, time zones and encodings of log lines."""

from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.observations import millis
from agent.sources.logs.lines import begins_entry, codec_of, component_of, line_end, lines_end, time_of

UTC, BERLIN = ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")
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
def test_a_line_begins_with_its_time(line: str, at: str) -> None:
    """In the layouts of Kafka, ZooKeeper, Flink, ISO 8601 and librdkafka."""
    assert begins_entry(line)
    assert time_of(line, UTC, LATER) == millis(at)


@pytest.mark.parametrize(
    "line", ["", "\tat java.lang.Thread.run(Thread.java:833)", "Caused by: X: 2018-06-30 09:34:54,799", "12:00:01 text"]
)
def test_other_lines_go_on_with_the_entry_before(line: str) -> None:
    """Stack traces, and times that name no day."""
    assert not begins_entry(line)
    assert time_of(line, UTC, LATER) is None


def test_a_time_that_cannot_be_is_none() -> None:
    """The line begins an entry all the same."""
    assert begins_entry("2018-13-30 09:34:54,799 text")
    assert time_of("2018-13-30 09:34:54,799 text", UTC, LATER) is None


def test_times_without_a_zone_are_in_the_zone_configured() -> None:
    """Summer time and winter time; a zone that the line names wins."""
    assert time_of("2018-06-30 09:34:54,799 x", BERLIN, LATER) == millis("2018-06-30T07:34:54.799Z")
    assert time_of("2018-12-30 09:34:54,799 x", BERLIN, LATER) == millis("2018-12-30T08:34:54.799Z")
    assert time_of("2018-12-30T09:34:54Z x", BERLIN, LATER) == millis("2018-12-30T09:34:54Z")


def test_an_hour_that_comes_twice_is_the_later_one_unless_that_is_still_to_come() -> None:
    """Clocks are put back: 02:30 is 00:30 UTC and 01:30 UTC."""
    line = "2018-10-28 02:30:00,000 x"
    assert time_of(line, BERLIN, millis("2018-10-28T00:30:01Z")) == millis("2018-10-28T00:30:00Z")
    assert time_of(line, BERLIN, millis("2018-10-28T01:30:01Z")) == millis("2018-10-28T01:30:00Z")


def test_an_hour_that_does_not_come_is_the_one_after_it() -> None:
    """Clocks are put forward: there is no 02:30; it is always read as 03:30, which is 01:30 UTC."""
    line = "2018-03-25 02:30:00,000 x"
    assert time_of(line, BERLIN, millis("2018-03-25T00:59:00Z")) == millis("2018-03-25T01:30:00Z")
    assert time_of(line, BERLIN, LATER) == millis("2018-03-25T01:30:00Z")


@pytest.mark.parametrize(
    ("line", "component"),
    [
        ("[2026-11-21 06:21:26,171] INFO x (kafka.server.KafkaServer)", "kafka"),
        ("[2026-11-21 06:21:26,171] INFO x (org.apache.zookeeper.server.ZooKeeperServer)", "zookeeper"),
        ("[2026-11-21 06:21:26,171] INFO x (org.apache.kafka.clients.consumer.internals.Fetcher)", "consumer"),
        ("[2026-11-21 06:21:26,171] INFO stream-thread [a-1] x (org.apache.kafka.streams.X)", "streams"),
        ("2026-11-21 06:21:26,171 INFO  org.apache.flink.runtime.X  - x", "flink"),
        ("%4|1691234567.123|OFFSET|rdkafka#consumer-1| [thrd:main]: x", "librdkafka"),
        ("something else", ""),
    ],
)
def test_a_line_tells_what_wrote_it(line: str, component: str) -> None:
    """Where the settings do not."""
    assert component_of(line) == component


@given(st.sampled_from(["utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]), st.text())
def test_lines_end_where_the_encoding_ends_them(encoding: str, text: str) -> None:
    """Not at a byte of some character that is equal to a line feed, such as U+0A0A's in UTF-16."""
    text = text.replace("\ufeff", "")
    raw = text.encode(encoding, "ignore")
    codec = codec_of(encoding, raw[:4])
    text = raw.decode(encoding)
    assert raw[: lines_end(raw, codec)].decode(encoding) == text[: text.rfind("\n") + 1]
    assert raw[: line_end(raw, codec)].decode(encoding) == text[: text.find("\n") + 1]


@pytest.mark.parametrize(
    ("encoding", "plain"), [("utf-8", True), ("latin-1", True), ("utf-16", False), ("cp037", False)]
)
def test_only_encodings_that_hold_ascii_as_it_is_are_searched_as_bytes(encoding: str, *, plain: bool) -> None:
    """The others are turned into UTF-8 first."""
    assert codec_of(encoding, b"").plain == plain
