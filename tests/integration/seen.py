"""What a source under test has emitted, and waiting for more of it."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from agent.model.observations.base import Observation
from agent.sources.base import Batch, Source
from testbed.waiting import wait_until

T = TypeVar("T", bound=Observation)


class Seen:
    """Takes what a source emits. `mark` forgets what came before: waits and looks begin there."""

    def __init__(self) -> None:
        self.batches: list[list[Observation]] = []
        self._begin = 0

    def __call__(self, batch: Batch) -> None:
        self.batches.append(list(batch))

    def mark(self) -> None:
        """From here on only what is emitted later counts."""
        self._begin = len(self.batches)

    def all(self, kind: type[T], **fields: object) -> list[T]:
        """The observations of a kind with these fields, in the order of emission."""
        return [
            one
            for batch in self.batches[self._begin :]
            for one in batch
            if isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items())
        ]

    def wait_for(
        self,
        source: Source,
        kind: type[T],
        condition: Callable[[T], bool] = lambda _: True,
        seconds: float = 60,
        **fields: object,
    ) -> T:
        """Poll the source until it has emitted such an observation, and return the first."""

        def found() -> T | None:
            source.poll()
            return next(filter(condition, self.all(kind, **fields)), None)

        return wait_until(found, f"{kind.__name__} with {fields} from {source.name}", seconds)


def last(observations: Iterable[T]) -> T:
    """The last of them; raises IndexError where there is none."""
    return list(observations)[-1]
