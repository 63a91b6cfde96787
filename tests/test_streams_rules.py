"""What the rules about Kafka Streams do with options that the configuration shipped does not set."""

from pathlib import Path

import pytest

from agent.cases import check
from agent.findings import Finding, Incident, Severity, Status
from agent.report import report
from agent.settings import load

ROOT = Path(__file__).parents[1]
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
    assert "expected finding was not made" in missing


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
    return [sentence for _, sentences in check(cases, load(config, need_clusters=False)) for sentence in sentences]
