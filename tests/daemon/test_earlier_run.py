"""What an earlier run had evaluated and what it had not, by the positions in its journal."""

from collections.abc import Iterable

import numpy as np

from agent.daemon.earlier_run import EarlierRun
from agent.model.batches import CommitBatch
from agent.model.observations.base import Observation
from agent.model.observations.kafka import Commit
from agent.storage.journal.reader import Positioned
from tests.builders import after, commit, log_offsets

DAY_S = 86_400


def offsets(batches: Iterable[Iterable[Observation]]) -> list[int | None]:
    return [made.offset for batch in batches for made in batch if isinstance(made, Commit)]


def test_a_chunk_is_cut_at_the_saved_position() -> None:
    columns = CommitBatch.of(commit(second, 100 + second) for second in range(40))
    assert columns is not None
    logs = [log_offsets(second, 1_000) for second in (3, 30)]
    chunk = [Positioned(np.arange(40), columns), Positioned(np.array([40, 41]), logs)]
    earlier = EarlierRun([chunk], 25, after(DAY_S))
    assert offsets(earlier.evaluated()) == list(range(100, 125))
    assert earlier.newest == after(24)
    rest = list(map(list, earlier.rest()))
    assert offsets(rest) == list(range(125, 140))
    assert [fact for batch in rest for fact in batch if fact in logs] == logs


def test_what_is_dated_ahead_is_kept_apart_and_dated_back() -> None:
    """In columns and in rows; of each subject the last."""
    now = after(100)
    columns = CommitBatch.of([*(commit(second, second) for second in range(40)), commit(DAY_S, 700)])
    assert columns is not None
    rows = [log_offsets(1, 10), log_offsets(DAY_S, 20), log_offsets(DAY_S + 1, 30)]
    chunks = [[Positioned(np.arange(41), columns)], [Positioned(np.arange(41, 44), rows)]]
    earlier = EarlierRun(chunks, 1_000, now)
    evaluated = [fact for batch in earlier.evaluated() for fact in batch]
    assert [fact.at for fact in evaluated] == [*map(after, range(40)), after(1)]
    ahead = earlier.ahead
    assert [fact.at for fact in ahead] == [now, now]
    assert [getattr(fact, "offset", None) or getattr(fact, "log_end", None) for fact in ahead] == [700, 30]
    assert list(earlier.rest()) == []
