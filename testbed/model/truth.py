"""The truth about a scenario: what happened, to whom, why, how many records, and what a correct report may say."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Subject: TypeAlias = Mapping[str, str | int]
Measure: TypeAlias = Literal["reread", "lost", "skipped", ""]


class Effect(Struct, kw_only=True):
    """One effect of an event.

    kinds: rule kinds any of which is a correct report of it. subject: the keys that identify it. at: when it began.
    until: when its report ceases to be correct; null if never. measure, records: the number of records concerned.
    before, after: the true positions before and after a move. kept: the position that was committed before it.
    must: whether a report is wanted if the sources can show it. labels: any of which is correct, if not empty.
    labels_forbidden: labels that would be wrong.
    """

    kinds: tuple[str, ...]
    subject: Subject
    at: int
    until: int | None = None
    measure: Measure = ""
    records: int = 0
    before: int | None = None
    after: int | None = None
    kept: int | None = None
    must: bool = True
    labels: tuple[str, ...] = ()
    labels_forbidden: tuple[str, ...] = ()


class Event(Struct, kw_only=True):
    """One thing that happened: what an operator wants as one incident, or as none.

    name: which fault or which part of ordinary life. at, until: when. wanted: `loud` (warning or critical), `quiet`
    (nothing above info) or `either`. causes: kinds any of which names the right cause, if not empty. causes_forbidden:
    kinds that would be a wrong cause. effects: what it did. also: what else a report may truly say of it.
    """

    number: int
    name: str
    at: int
    until: int
    cluster: str
    wanted: Literal["loud", "quiet", "either"] = "quiet"
    causes: tuple[str, ...] = ()
    causes_forbidden: tuple[str, ...] = ()
    effects: list[Effect] = []
    also: list[Effect] = []

    def extend(self, until: int) -> None:
        """Let the event last until then at least."""
        self.until = max(self.until, until)

    def permit(self, kinds: Iterable[str], subject: Subject, at: int, until: int | None = None) -> None:
        """Note what else a report may truly say."""
        self.also.append(Effect(kinds=tuple(kinds), subject=subject, at=at, until=until, must=False))


class Truth(Struct, kw_only=True):
    """Everything that happened in a scenario. seed: of the scenario; began_at, ended_at: what sources watched, ms."""

    seed: int
    began_at: int
    ended_at: int
    events: list[Event] = []

    def begin(self, name: str, at: int, until: int, cluster: str, **fields: object) -> Event:
        """Note an event that begins."""
        event = msgspec.convert(
            {"number": len(self.events), "name": name, "at": at, "until": until, "cluster": cluster, **fields}, Event
        )
        self.events.append(event)
        return event


def matches(subject: Subject, of_finding: Mapping[str, object]) -> bool:
    """Return whether a finding's subject is that of an effect: no key that both have differs, and one is shared."""
    shared = [key for key in subject if key in of_finding]
    return bool(shared) and all(_is_same(subject[key], of_finding[key]) for key in shared)


def _is_same(value: str | int, of_finding: object) -> bool:
    return value in of_finding if isinstance(of_finding, list | tuple) else value == of_finding


def to_json(truth: Truth) -> bytes:
    """Return the truth as JSON."""
    return msgspec.json.format(msgspec.json.encode(truth), indent=1)


def from_json(content: bytes) -> Truth:
    """Return the truth of such a file. Raises ValueError."""
    return msgspec.json.decode(content, type=Truth)
