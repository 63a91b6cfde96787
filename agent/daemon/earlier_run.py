"""What the journal holds of an earlier run: what was evaluated, and what is still to be."""

from collections.abc import Iterable, Iterator, Sequence

from agent.engine.history import LONG_AGO
from agent.engine.recorded import last_seen, seconds_of
from agent.model.batches import Chunk, ObservationBatch, Part
from agent.model.observations.base import Observation, Subject, not_after
from agent.sources.base import Batch
from agent.storage.journal.reader import Positioned, rows_of


class EarlierRun:
    """The observations of an earlier run, which are read once.

    newest: when the last one that was evaluated was seen, ms. ahead: of what was evaluated and is dated later than now,
    because the clock was ahead, the last of each subject, as of now. Both are known once `evaluated` is exhausted.
    """

    def __init__(self, chunks: Iterable[Sequence[Positioned]], position: int, now: int) -> None:
        """position: before which all observations were evaluated. now: ms."""
        self._chunks, self._position, self._now = chunks, position, now
        self._rest: list[Chunk] = []
        self._ahead: dict[Subject, Observation] = {}
        self.newest = LONG_AGO

    @property
    def ahead(self) -> list[Observation]:
        """See the class."""
        return list(self._ahead.values())

    def evaluated(self) -> Iterator[Batch]:
        """Yield what was evaluated, without what is dated later than now."""
        for chunk in self._chunks:
            before: list[Part] = []
            rest: list[Part] = []
            for positions, part in chunk:
                count = int(positions.searchsorted(self._position))
                if count:
                    before.append(self._without_ahead(rows_of(part, slice(count))))
                if count < len(positions):
                    rest.append(rows_of(part, slice(count, None)))
            if rest:
                self._rest.append(rest)
            for batch in seconds_of(part for part in before if part):
                self.newest = max(self.newest, last_seen(batch))
                yield batch

    def rest(self) -> Iterator[Batch]:
        """Yield what was not evaluated, dated no later than now, once `evaluated` is exhausted."""
        for chunk in self._rest:
            for batch in seconds_of(chunk):
                yield dated_by(self._now, batch)

    def _without_ahead(self, part: Part) -> Part:
        """Return observations without those that are dated later than now; keep these."""
        if last_seen(part) <= self._now:
            return part
        self._ahead |= {fact.subject: not_after(fact, self._now) for fact in part if fact.seen > self._now}
        if isinstance(part, ObservationBatch):
            return part.select(part.seen <= self._now)
        return [observation for observation in part if observation.seen <= self._now]


def dated_by(now: int, batch: Batch) -> Batch:
    """Return the observations dated and seen no later than now (ms)."""
    if isinstance(batch, ObservationBatch):
        return batch.not_after(now)
    return [not_after(observation, now) for observation in batch]
