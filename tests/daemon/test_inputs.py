"""How sources are slowed when the pipeline takes less than they bring."""

import threading

import pytest
from structlog.testing import capture_logs

from agent.daemon.inputs import Inputs
from testbed.waiting import wait_until


@pytest.fixture
def inputs() -> Inputs[str]:
    full: Inputs[str] = Inputs(most=10)
    full.put("first", 7)
    full.put("second", 5)
    return full


def started(inputs: Inputs[str]) -> threading.Thread:
    """Return a thread that adds an item once there is room for it."""
    thread = threading.Thread(target=lambda: inputs.put("third", 1, waits=True), daemon=True)
    thread.start()
    return thread


def test_items_leave_in_their_order_and_are_counted(inputs: Inputs[str]) -> None:
    inputs.put("third")
    taken = [(inputs.get(), inputs.waiting) for _ in range(3)]
    assert taken == [("first", 5), ("second", 0), ("third", 0)]


def test_a_source_waits_for_room_and_both_are_logged(inputs: Inputs[str]) -> None:
    with capture_logs() as lines:
        source = started(inputs)
        wait_until(lambda: bool(lines), "the warning", 10)
        assert source.is_alive()
        assert inputs.waiting == 12
        inputs.get()
        source.join(10)
        assert [inputs.get(), inputs.get()] == ["second", "third"]
    assert [line["event"] for line in lines] == ["sources_slowed", "sources_not_slowed"]


def test_a_source_that_waits_for_a_moment_is_not_logged(inputs: Inputs[str]) -> None:
    with capture_logs() as lines:
        source = started(inputs)
        wait_until(lambda: inputs._slowed_at is not None, "the source to wait", 10)
        inputs.get()
        source.join(10)
        assert [inputs.get(), inputs.get()] == ["second", "third"]
    assert not lines


def test_nothing_waits_for_a_queue_that_is_closed(inputs: Inputs[str]) -> None:
    source = started(inputs)
    inputs.close()
    source.join(10)
    assert not source.is_alive()


def test_one_batch_may_be_larger_than_the_room() -> None:
    inputs: Inputs[str] = Inputs(most=10)
    inputs.put("large", 1_000, waits=True)
    assert inputs.get() == "large"
