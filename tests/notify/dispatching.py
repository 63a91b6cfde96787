"""A running dispatcher and a check report, for tests of delivery."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.notify.base import Receiver
from agent.notify.dispatcher import Dispatcher
from agent.storage.incidents import CheckReport, IncidentStore
from testbed.waiting import wait_until
from tests import samples

POLL_MS = 20

CHECK_REPORT = CheckReport(
    "INC-7F3A9C", samples.check_request(), ("Spark, offset_history:", "it fell once"), samples.PLOT
)


@contextmanager
def run_dispatcher(state_file: Path, receiver: Receiver) -> Iterator[Dispatcher]:
    """Run a dispatcher; it stops within two seconds."""
    dispatcher = Dispatcher(state_file, receiver)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        assert dispatcher.close(2)


def wait_until_delivered(store: IncidentStore) -> None:
    wait_until(lambda: store.pending() == 0, "the outbox to be empty", 60, POLL_MS / 1000)
