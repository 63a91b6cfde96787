"""What the rules about Kafka Streams do with options that the configuration shipped does not set."""

from pathlib import Path
from typing import Any

import pytest

from agent.cli.rule_tests import run_rule_tests
from agent.config.settings import load
from agent.engine.evaluator import Evaluator
from agent.model.findings import Finding, Incident, Severity, Status
from agent.model.observations import Commit, StreamsApplication, Tick
from agent.render.report import report
from agent.rules.offset_rewind import OffsetRewind

ROOT = Path(__file__).parents[2]
RULES = """
[rules.state_not_restored]
kind = "state_not_restored"
{option}
"""


@pytest.mark.parametrize(
    "option", ["precursor = false", 'stores = [{ application = "shop", store = "counts" }]'], ids=["off", "declared"]
)
def test_no_precursor_is_told_where_it_is_switched_off_or_values_are_judged(tmp_path: Path, option: str) -> None:
    """The case in which a task comes back without a checkpoint makes no finding then, and does without the option."""
    case = "1.1 to 2.1: no checkpoint on a thread that had held the task before"
    assert _wrong(tmp_path, "", case) == []
    (missing,) = _wrong(tmp_path, option, case)
    assert "expected finding is missing" in missing


def test_a_reset_application_is_never_told_as_a_consumer_that_went_back() -> None:
    """StreamsResetter deletes the changelogs a moment after it has moved the offsets: nothing is said in between."""
    shop: dict[str, Any] = {"cluster": "main", "application": "shop"}
    commit: dict[str, Any] = {"cluster": "main", "group": "shop", "topic": "orders", "partition": 0}
    evaluator = Evaluator({"rewind": OffsetRewind()})
    told = []
    for fact in (
        StreamsApplication(at=0, **shop, stores=(("counts", 1),), instances=1),
        Commit(at=1_000, **commit, offset=50_000),
        Commit(at=60_000, since=59_000, **commit, offset=0),
        StreamsApplication(at=62_000, since=61_000, **shop, instances=1),
        Tick(at=65_000),
    ):
        evaluator.absorb(fact)
        told.append([one.labels for one in evaluator.evaluate(fact.at).found])
    assert told == [[], [], [], [], [("operator_reset",)]]


@pytest.mark.parametrize(
    ("undeclared", "advice"),
    [
        ([], ()),
        (["latest"], ("Also check store latest, which is not declared.",)),
        (["latest", "max"], ("Also check stores latest and max, which are not declared.",)),
    ],
)
def test_stores_that_nobody_watches_are_named_in_the_advice(undeclared: list[str], advice: tuple[str, ...]) -> None:
    """Those of the application whose store has gone back, and nothing where all are declared."""
    fell = Finding(
        rule="state",
        kind="state_not_restored",
        severity=Severity.CRITICAL,
        at=0,
        subject={"cluster": "main", "group": "shop", "topic": "shop-counts-changelog", "partition": 2},
        labels=("values_fell",),
        current={"undeclared": undeclared},
        detail="it fell",
    )
    incident = Incident(
        id="INC-1",
        status=Status.OPEN,
        severity=Severity.CRITICAL,
        title="t",
        cluster="main",
        opened_at=0,
        updated_at=0,
        findings=(fell,),
    )
    (now,) = (section.lines for section in report(incident).sections if section.heading == "Do now")
    assert tuple(f"Also{line.partition(' Also')[2]}" for line in now if " Also" in line) == advice


def _wrong(tmp_path: Path, option: str, name: str) -> list[str]:
    """What is wrong with the case under a configuration of that rule alone."""
    config, cases = tmp_path / "rules.toml", tmp_path / "cases.toml"
    config.write_text(RULES.format(option=option), encoding="utf-8")
    defaults, *others = (ROOT / "tests/cases/state_not_restored.toml").read_text("utf-8").split("[[cases]]\n")
    (one,) = (other for other in others if other.startswith(f'name = "{name}"'))
    cases.write_text(f"{defaults}[[cases]]\n{one}", encoding="utf-8")
    return [
        sentence for _, sentences in run_rule_tests(cases, load(config, need_clusters=False)) for sentence in sentences
    ]
