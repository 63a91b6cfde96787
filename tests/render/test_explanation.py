"""Why an incident is what it is: only what its findings say, in a few lines."""

from msgspec.structs import replace

from agent.model.findings import Status
from agent.model.matchers import Matchers, Silence
from agent.render.explanation import explanation
from agent.render.report import report
from tests import samples


def test_causes_and_what_is_ruled_out_are_named_with_evidence() -> None:
    lines = explanation(samples.incident())
    assert lines[0] == "INC-7F3A9C: flink-job rewound 12,223 records on topic-124[8]"
    assert "  23:25:08.3  broker 2005: session expired; re-registered at 23:25:14.3" in lines
    assert "Ruled out: topic re-creation (same topic id)" in lines


def test_without_a_cause_none_is_claimed() -> None:
    assert "No cause was found in what Backflow observes." in explanation(samples.incident(causes=()))


def test_an_incident_of_many_partitions_is_explained_briefly() -> None:
    assert len(explanation(samples.burst(5_000))) < 20


def test_a_withdrawn_incident_has_no_evidence() -> None:
    withdrawn = replace(samples.incident(), status=Status.CLOSED, causes=(), findings=())
    assert explanation(withdrawn)[1:] == ("It has no findings: those it had no longer apply.",)


def test_names_cannot_fake_a_line() -> None:
    assert "\n" not in "".join(explanation(replace(samples.incident(), title="a\nRuled out: everything")))


def test_a_message_names_the_silence_that_holds_it_back() -> None:
    silence = Silence("SIL-1", Matchers(), 0, samples.at("23:55:00.0"), "lena", "planned")
    assert "silenced until 23:55:00.0 by lena: planned" in report(samples.incident(), silence).context
    assert "silenced" not in report(samples.incident()).context
