"""The observations that a source under test emits, and waiting for more."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from agent.model.name_filter import NameFilter
from agent.model.observations.base import Available, Observation, Unavailable
from agent.sources.base import Batch, Source
from agent.sources.kafka.source import KafkaSource, KafkaSourceSettings
from testbed.kafka import Cluster
from testbed.waiting import wait_until

T = TypeVar("T", bound=Observation)


class Seen:
    """Collects what a source emits. `mark` hides what came before from later waits and look-ups."""

    def __init__(self) -> None:
        self.batches: list[list[Observation]] = []
        self._begin = 0

    def __call__(self, batch: Batch) -> None:
        self.batches.append(list(batch))

    def mark(self) -> None:
        """Hide what has been emitted so far."""
        self._begin = len(self.batches)

    def all(self, kind: type[T], **fields: object) -> list[T]:
        """Return the observations of a kind with these fields, in the order of emission."""
        return [
            observation
            for batch in self.batches[self._begin :]
            for observation in batch
            if isinstance(observation, kind)
            and all(getattr(observation, name) == value for name, value in fields.items())
        ]

    @property
    def latest(self) -> list[Observation]:
        """The last observation of each subject, as a restarted source knows them."""
        last = {observation.subject: observation for batch in self.batches for observation in batch}
        return list(last.values())

    def outages(self, **fields: object) -> list[Unavailable]:
        """Return where each outage begins; an outage may be given another reason before it is over."""
        began: list[Unavailable] = []
        lasting = set()
        for batch in self.batches[self._begin :]:
            for fact in batch:
                if not isinstance(fact, Unavailable | Available):
                    continue
                unit = (fact.source, fact.group, fact.topic, fact.partition)
                if isinstance(fact, Available):
                    lasting.discard(unit)
                elif unit not in lasting:
                    lasting.add(unit)
                    began.append(fact)
        return [fact for fact in began if all(getattr(fact, name) == value for name, value in fields.items())]

    def wait_for(
        self,
        source: Source,
        kind: type[T],
        condition: Callable[[T], bool] = lambda _: True,
        seconds: float = 60,
        **fields: object,
    ) -> T:
        """Poll the source until it has emitted such an observation, and return the first one."""

        def find() -> T | None:
            source.poll()
            return next(filter(condition, self.all(kind, **fields)), None)

        return wait_until(find, f"{kind.__name__} with {fields} from {source.name}", seconds)


@contextmanager
def watching(
    cluster: Cluster,
    name: str,
    seen: Seen,
    known: Iterable[Observation] = (),
    *,
    watch_partitions: bool = True,
    commits: Literal["poll", "tail", "auto"] = "poll",
) -> Iterator[KafkaSource]:
    """A source that watches the groups and topics whose names begin with `name`."""
    selected = NameFilter(include=[f"{name}*"])
    settings = KafkaSourceSettings(
        bootstrap_servers=cluster.bootstrap_servers,
        timeout=5_000,
        groups=selected,
        topics=selected,
        watch_partitions=watch_partitions,
        commits=commits,
    )
    source = KafkaSource("main", settings, seen, known)
    try:
        yield source
    finally:
        source.close()


def last(observations: Iterable[T]) -> T:
    """Return the last one. Raises IndexError if there is none."""
    return list(observations)[-1]
