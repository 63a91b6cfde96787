"""Where reading continues, and what is reported as left out once it does."""

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from agent.sources.kafka.tail.positions import Positions
from agent.sources.kafka.tail.resumption import End


def test_reading_begins_at_the_end_but_where_an_earlier_run_stopped() -> None:
    positions = Positions()
    positions.resume({1: End(500, 0)}, 2)
    assert positions.begin(range(2)) == {0: OFFSET_END, 1: 500}


def test_all_of_an_added_partition_is_read() -> None:
    positions = Positions()
    assert positions.begin(range(2)) == {0: OFFSET_END, 1: OFFSET_END}
    assert positions.begin(range(2, 3)) == {2: OFFSET_BEGINNING}
    grown = Positions()
    grown.resume({}, 2)
    assert grown.begin(range(3)) == {0: OFFSET_END, 1: OFFSET_END, 2: OFFSET_BEGINNING}


def test_what_is_known_only_moves_on_unless_reading_is_moved() -> None:
    positions = Positions()
    positions.keep(0, 100)
    positions.keep(0, 90)
    positions.keep(0, -1_001)
    assert positions.get(0) == 100
    positions.move(0, 40)
    positions.move(0, OFFSET_END)
    assert positions.get(0) == 40
    assert positions.get(1) is None


def test_records_are_left_out_from_the_first_offset_that_was_to_be_read() -> None:
    positions = Positions()
    positions.keep_ends({0: End(100, 0)})
    positions.forget([0, 1], "no permission")
    positions.leave_out(0, 150, "their broker was away")
    assert positions.take_left_out([1, 2]) == {}, "nothing is known to be missed where no offset was to be read"
    assert positions.take_left_out([0, 1]) == {0: (100, "no permission")}
    assert positions.take_left_out([0]) == {}, "each is reported once"
    assert positions.begin(range(1)) == {0: OFFSET_END}


def test_what_is_reported_already_is_not_left_out() -> None:
    positions = Positions()
    positions.keep(0, 100)
    positions.forget([0])
    assert (positions.get(0), positions.take_left_out([0])) == (None, {})
