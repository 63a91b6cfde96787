"""Incidents on a terminal: the message in full, log entries line by line."""

from io import StringIO

from agent.notify.console import Console
from agent.render.report import report
from tests import samples


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_an_incident_is_printed_in_full() -> None:
    stream = StringIO()
    Console(stream).deliver(samples.message(samples.incident()), None)
    first, *others = report(samples.incident()).lines()
    assert stream.getvalue().splitlines() == [first, *(f"  {line}" for line in others)]


def test_a_log_entry_prints_its_lines_and_an_edit_nothing() -> None:
    stream = StringIO()
    console = Console(stream)
    handle = console.deliver(samples.message(samples.incident()), None)
    stream.truncate(stream.seek(0))
    assert console.deliver(samples.message(samples.incident(title="another")), handle) == handle
    assert console.deliver(samples.message(samples.incident(), 2, ("first", "second")), handle) == handle
    assert stream.getvalue() == "INC-7F3A9C  first\nINC-7F3A9C  second\n"


def test_a_check_report_is_printed_with_a_note_about_its_plot() -> None:
    stream = StringIO()
    message = samples.message(samples.incident(), 2, ("Spark, offset_history:", "it fell once"), check_report=1)
    Console(stream).deliver(message, {})
    Console(stream).deliver(message._replace(lines=(), plot=samples.PLOT), {})
    assert stream.getvalue().splitlines() == [
        "INC-7F3A9C  Spark, offset_history:",
        "INC-7F3A9C  it fell once",
        "INC-7F3A9C  (a plot is available in Slack only)",
    ]


def test_the_headline_is_coloured_on_a_terminal() -> None:
    stream = Terminal()
    console = Console(stream)
    handle = console.deliver(samples.message(samples.incident()), None)
    assert stream.getvalue().startswith("\x1b[31;1mCRITICAL · flink-job")
    stream.truncate(stream.seek(0))
    console.deliver(samples.message(samples.recovered()), handle)
    assert stream.getvalue().startswith("\x1b[32;1mCRITICAL (RECOVERED) · flink-job")
