"""What selects incidents, for routes and silences: patterns on what their findings are about. No I/O."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from agent.model.config_types import ConfigModel, non_empty
from agent.model.findings import Finding, Incident, Severity
from agent.model.name_filter import NameFilter

_READERS = ("group", "job", "job_name", "application")
_LASTING_READERS = ("group", "application", "job_name", "job")
"""The same, what outlives a restart first."""

_MOST_NAMES = 50
"""Names in a matcher at most; for more, every name matches."""


def _selection(names: NameFilter) -> NameFilter:
    """Return a filter that selects by something. Raises ValueError."""
    if not names.model_fields_set:
        msg = "give patterns in `include` or `exclude`, or leave it out"
        raise ValueError(msg)
    if not names.include:
        msg = "matches nothing: give at least one pattern in `include`"
        raise ValueError(msg)
    if "" in [*names.include, *names.exclude]:
        msg = 'an empty pattern matches nothing; "*" matches every name'
        raise ValueError(msg)
    return names


Selection = Annotated[NameFilter, AfterValidator(_selection)]
"""A name filter that is not empty."""


class Matchers(ConfigModel):
    """Patterns on an incident's findings. All that are given must match; without any, everything does."""

    rules: Selection | None = None
    """Names of the rules, as in `[rules.NAME]`."""
    clusters: Selection | None = None
    """Names of the clusters."""
    groups: Selection | None = None
    """Consumer groups, Flink jobs or Kafka Streams applications."""
    topics: Selection | None = None
    """Topics."""
    labels: Selection | None = None
    """Labels of the findings, such as `to_earliest`."""
    severities: Annotated[tuple[Severity, ...], AfterValidator(non_empty)] | None = None
    """Severities of the incident."""

    @property
    def given(self) -> list[str]:
        """The names of the matchers that are given."""
        return [name for name in Matchers.model_fields if getattr(self, name) is not None]

    def __str__(self) -> str:
        return " ".join(f"{name}={_patterns(getattr(self, name))}" for name in self.given)

    def match(self, incident: Incident, finding: Finding | None) -> bool:
        """Return whether an incident's finding is selected. None: the incident has no findings."""
        if self.severities is not None and incident.severity not in self.severities:
            return False
        subject = {} if finding is None else finding.subject
        readers = {str(subject[key]) for key in _READERS if subject.get(key) is not None}
        names = (
            (self.rules, () if finding is None else (finding.rule,)),
            (self.clusters, (str(subject.get("cluster") or incident.cluster or ""),)),
            (self.groups, readers),
            (self.topics, (str(subject["topic"]),) if subject.get("topic") is not None else ()),
            (self.labels, () if finding is None else finding.labels),
        )
        return all(chosen is None or chosen.select(found) for chosen, found in names)

    def match_any(self, incident: Incident) -> bool:
        """Return whether an effect of the incident is selected."""
        return any(self.match(incident, finding) for finding in incident.findings or (None,))


def _patterns(chosen: NameFilter | Sequence[Severity]) -> str:
    if not isinstance(chosen, NameFilter):
        return ",".join(chosen)
    return ",".join([*chosen.include, *(f"!{pattern}" for pattern in chosen.exclude)])


class Silence(NamedTuple):
    """A period in which the incidents that match are not posted.

    begins_at, ends_at: ms; it lasts from the first until before the second.
    """

    id: str
    matchers: Matchers
    begins_at: int
    ends_at: int
    author: str
    comment: str

    def is_active(self, now: int) -> bool:
        """Return whether it lasts at `now`, ms."""
        return self.begins_at <= now < self.ends_at


def find_silence(incident: Incident, active: Sequence[Silence]) -> Silence | None:
    """Return the silence that holds the incident back, and of several that do the one that ends first; None if none.

    Each finding that would be posted by itself must match a silence: from warning on, effects and causes. An incident
    whose findings are all info, of which a correlation made more, is held back only if all its effects match.
    """
    lasting = []
    for finding in _decisive(incident):
        matching = [silence for silence in active if silence.matchers.match(incident, finding)]
        if not matching:
            return None
        lasting.append(max(matching, key=lambda silence: silence.ends_at))
    return min(lasting, key=lambda silence: silence.ends_at, default=None)


def _decisive(incident: Incident) -> Iterable[Finding]:
    findings = incident.causes + incident.findings
    return [finding for finding in findings if finding.severity is not Severity.INFO] or incident.findings


def matchers_about(incident: Incident) -> list[Matchers]:
    """Return the narrowest matchers that hold the incident back, each for one rule; none if it has no findings.

    They give the rule and, where its findings have them, cluster, reader and topic. An incident that gets worse does
    not match.
    """
    names: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for finding in _decisive(incident):
        subject = finding.subject
        readers = (str(subject[key]) for key in _LASTING_READERS if subject.get(key) is not None)
        found = {
            "rules": finding.rule,
            "clusters": str(subject.get("cluster") or incident.cluster or ""),
            "groups": next(readers, ""),
            "topics": str(subject.get("topic") or ""),
        }
        given = {dimension: name for dimension, name in found.items() if name}
        chosen = names.setdefault((finding.rule, *given), {})
        for dimension, name in given.items():
            chosen.setdefault(dimension, set()).add(name)
    milder = tuple(severity for severity in Severity if severity.rank <= incident.severity.rank)
    severities = {} if len(milder) == len(Severity) else {"severities": milder}
    return [
        Matchers.model_validate({dimension: _only(found) for dimension, found in chosen.items()} | severities)
        for chosen in names.values()
    ]


def _only(names: Iterable[str]) -> NameFilter:
    """Return a filter that selects these names."""
    patterns = [re.sub(r"[*?\[]", r"[\g<0>]", name) for name in sorted(names)]
    return NameFilter(include=patterns if len(patterns) <= _MOST_NAMES else ["*"])
