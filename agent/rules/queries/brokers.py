"""Queries about brokers: when they were unregistered, and whether they hold replicas."""

from collections.abc import Iterator
from typing import NamedTuple

from agent.engine.facts import Facts
from agent.model.observations.kafka import BrokerRegistration, PartitionState


class Absence(NamedTuple):
    """A broker was unregistered from some moment in `down` until `up`; None while it is down.

    known: its last registration before. If only another session or epoch shows the absence, `down` is `up`.
    """

    broker: int
    known: BrokerRegistration
    down: BrokerRegistration
    up: BrokerRegistration | None


def find_absences(facts: Facts, cluster: str, broker: int) -> Iterator[Absence]:
    """Yield each time the broker was unregistered, oldest first; not the time before it was first registered."""
    known: BrokerRegistration | None = None
    down: BrokerRegistration | None = None
    for state in facts.history(BrokerRegistration, cluster, broker):
        if state.gone:
            down = down or (None if known is None else state)
            continue
        if known is not None and down is not None:
            yield Absence(broker, known, down, state)
        elif known is not None and _is_replaced(known, state):
            yield Absence(broker, known, state, state)
        known, down = state, None
    if known is not None and down is not None:
        yield Absence(broker, known, down, None)


def _is_replaced(known: BrokerRegistration, state: BrokerRegistration) -> bool:
    """Return whether the broker was registered again: not if ZooKeeper shows only one of the two, as in a migration."""
    if (known.session is None) != (state.session is None):
        return False
    return (state.session, state.epoch) != (known.session, known.epoch)


def holds_replicas(facts: Facts, cluster: str, broker: int, at: int) -> bool:
    """Return whether the broker held a replica at that moment; True as well if no partition was known by then."""
    is_any_known = False
    for history in facts.histories(PartitionState, cluster=cluster):
        state = history.as_of(at)
        if state is not None and not state.is_deleted:
            is_any_known = True
            if broker in state.replicas:
                return True
    return not is_any_known


def find_last_replica_removal(facts: Facts, cluster: str, broker: int, after: int) -> int | None:
    """Return when the broker's last replica was assigned elsewhere or deleted; None if it holds one or never did."""
    removed_at: int | None = None
    for history in facts.histories(PartitionState, cluster=cluster):
        held = [state.at for state in history if broker in state.replicas]
        if not held:
            continue
        removals = history.after(held[-1])
        if not removals:
            return None
        removed_at = max(removals[0].at, removed_at or after)
    return removed_at
