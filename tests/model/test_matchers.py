"""Which incidents matchers select, and which silences hold back: never more than every pattern names."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.model.findings import Finding, Incident, Severity
from agent.model.matchers import Matchers, Silence, find_silence, matchers_about
from tests import samples

GROUPS, TOPICS = ("pay-a", "pay-b", "audit"), ("orders", "refunds")


def matchers(**tables: Any) -> Matchers:
    """Return matchers with these patterns to include."""
    filters = {name: {"include": patterns} for name, patterns in tables.items() if name != "severities"}
    severities = {"severities": tuple(tables["severities"])} if "severities" in tables else {}
    return Matchers.model_validate({**filters, **severities})


def silence(chosen: Matchers, ends_at: int = 100) -> Silence:
    return Silence("SIL-1", chosen, 0, ends_at, "lena", "planned")


def found(group: str, topic: str = "orders", severity: Severity = Severity.WARNING, **more: Any) -> Finding:
    return samples.rewind(group=group, topic=topic, severity=severity, **more)


def incident(*findings: Finding, causes: Sequence[Finding] = (), severity: Severity | None = None) -> Incident:
    worst = max((finding.severity for finding in findings), key=lambda severity: severity.rank)
    return samples.incident(findings=findings, causes=tuple(causes), severity=severity or worst)


def test_a_finding_outside_of_the_patterns_ends_the_silence() -> None:
    active = [silence(matchers(groups=["pay-*"]))]
    assert find_silence(incident(found("pay-a"), found("pay-b", "refunds")), active) == active[0]
    assert find_silence(incident(found("pay-a"), found("audit")), active) is None


def test_a_worse_severity_ends_the_silence() -> None:
    active = [silence(matchers(groups=["pay-*"], severities=[Severity.WARNING]))]
    assert find_silence(incident(found("pay-a")), active) == active[0]
    assert find_silence(incident(found("pay-a"), found("pay-b", severity=Severity.CRITICAL)), active) is None
    assert find_silence(incident(found("pay-a"), severity=Severity.CRITICAL), active) is None


def test_a_cause_counts_if_it_would_be_posted_itself() -> None:
    active = [silence(matchers(groups=["pay-a"]))]
    assert find_silence(incident(found("pay-a"), causes=[samples.session_expiry()]), active) == active[0]
    worse = samples.session_expiry(severity=Severity.WARNING)
    assert find_silence(incident(found("pay-a"), causes=[worse]), active) is None


def test_of_info_findings_alone_every_effect_counts() -> None:
    active = [silence(matchers(groups=["pay-*"]))]
    info = [found(group, severity=Severity.INFO) for group in GROUPS]
    assert find_silence(incident(*info[:2], severity=Severity.CRITICAL), active) == active[0]
    assert find_silence(incident(*info, severity=Severity.CRITICAL), active) is None


def test_several_silences_cover_an_incident_together() -> None:
    first, second = silence(matchers(groups=["pay-a"]), 100), silence(matchers(groups=["audit"]), 50)
    longer = silence(matchers(topics=["*"]), 70)
    both = incident(found("pay-a"), found("audit"))
    assert find_silence(both, [first]) is None
    assert find_silence(both, [first, second]) == second
    assert find_silence(both, [first, second, longer]) == longer


def test_what_a_finding_lacks_is_not_matched() -> None:
    lost = incident(samples.session_expiry(severity=Severity.WARNING))
    assert find_silence(lost, [silence(matchers(topics=["a*"]))]) is None
    assert find_silence(lost, [silence(matchers(groups=["the reader"]))]) is None
    assert find_silence(lost, [silence(matchers(clusters=["main"]))]) is not None


def test_flink_jobs_and_streams_applications_are_groups() -> None:
    active = [silence(matchers(groups=["shop"]))]
    for subject in ({"job": "1f2e", "job_name": "shop"}, {"application": "shop", "store": "counts"}):
        assert find_silence(incident(found("", subject={"cluster": "main", **subject})), active)


PATTERNS = {
    "groups": st.sampled_from(["*", "pay-*", "audit", "pay-a"]),
    "topics": st.sampled_from(["*", "orders", "re*"]),
    "rules": st.sampled_from(["rewind", "lag"]),
}
FINDINGS = st.builds(
    found, st.sampled_from(GROUPS), st.sampled_from(TOPICS), st.sampled_from([Severity.WARNING, Severity.CRITICAL])
)
MATCHERS = st.fixed_dictionaries(
    {},
    optional={name: st.lists(patterns, min_size=1, max_size=2) for name, patterns in PATTERNS.items()}
    | {"severities": st.lists(st.sampled_from(Severity), min_size=1, unique=True)},
).filter(bool)


@given(st.lists(FINDINGS, min_size=1, max_size=4), FINDINGS, st.lists(MATCHERS, max_size=3), st.data())
def test_more_findings_never_begin_a_silence(
    findings: list[Finding], more: Finding, tables: list[dict[str, Any]], data: st.DataObject
) -> None:
    """And more silences never end it; neither does the order of either."""
    active = [silence(matchers(**table), 10 * number) for number, table in enumerate(tables, 1)]
    severity = Severity.CRITICAL
    held = find_silence(incident(*findings, severity=severity), active)
    if held is None:
        assert find_silence(incident(*findings, more, severity=severity), active) is None
    else:
        shuffled = data.draw(st.permutations([*active, silence(matchers(rules=["nothing"]), 5)]))
        again = find_silence(incident(*data.draw(st.permutations(findings)), severity=severity), shuffled)
        assert again is not None
        assert again.ends_at == held.ends_at


@pytest.mark.parametrize("incident", [samples.incident(), samples.eventful(), samples.burst()])
def test_matchers_about_an_incident_hold_it_back(incident: Incident) -> None:
    silences = [Silence(f"SIL-{n}", found, 0, 10, "lena", "why") for n, found in enumerate(matchers_about(incident))]
    assert find_silence(incident, silences) is not None
    for missing in silences:
        assert find_silence(incident, [silence for silence in silences if silence != missing]) is None


def test_matchers_about_names_with_wildcards_match_only_these() -> None:
    hostile = "a[b]*?"
    finding = samples.rewind()
    named = replace(finding, subject={**finding.subject, "topic": hostile})
    incident = samples.incident(causes=(), findings=(named,))
    (matchers,) = matchers_about(incident)
    assert matchers.match(incident, named)
    assert not matchers.match(incident, replace(named, subject={**named.subject, "topic": "ab123"}))
    assert not matchers.match(incident, replace(named, subject={**named.subject, "group": "other", "job": "other"}))


def test_matchers_about_very_many_topics_match_all_topics() -> None:
    finding = samples.rewind()
    findings = [replace(finding, subject={**finding.subject, "topic": f"t{number}"}) for number in range(51)]
    (matchers,) = matchers_about(samples.incident(causes=(), findings=tuple(findings)))
    assert str(matchers) == "rules=rewind clusters=main groups=flink-job topics=*"


def test_matchers_about_a_warning_do_not_match_once_it_is_critical() -> None:
    warning = replace(samples.incident(causes=()), severity=Severity.WARNING)
    (matchers,) = matchers_about(warning)
    assert str(matchers).endswith("severities=info,warning")
    assert matchers.match_any(warning)
    assert not matchers.match_any(replace(warning, severity=Severity.CRITICAL))


def test_a_pattern_for_all_groups_matches_only_what_is_about_a_group() -> None:
    """Also once it was stored and read."""
    chosen = Matchers.model_validate_json(matchers(groups=["*"]).model_dump_json(exclude_unset=True))
    about_a_group = found("pay-a")
    about_none = replace(about_a_group, subject={"cluster": "main", "broker": 2005})
    assert chosen.match(incident(about_a_group), about_a_group)
    assert not chosen.match(incident(about_none), about_none)
