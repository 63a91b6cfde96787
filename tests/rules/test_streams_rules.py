"""Options of the Kafka Streams rules that the shipped configuration does not set, and their advice."""

from pathlib import Path
from typing import Any

import pytest

from agent.cli.rule_tests import run_rule_tests
from agent.config.loading import load
from agent.engine.evaluator import Evaluator
from agent.model.findings import Finding, Incident, Severity, Status
from agent.model.observations.base import Observation, Tick
from agent.model.observations.kafka import Commit, PartitionState
from agent.model.observations.streams import StreamsApplication
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
def test_precursor_is_off_by_option_or_for_declared_stores(tmp_path: Path, option: str) -> None:
    case = "1.1 to 2.1: no checkpoint on a thread that had owned the task"
    assert _wrong(tmp_path, "", case) == []
    (missing,) = _wrong(tmp_path, option, case)
    assert "expected finding is missing" in missing


def test_a_store_of_another_cluster_is_not_declared_here(tmp_path: Path) -> None:
    case = "1.1 to 2.1: no checkpoint on a thread that had owned the task"
    stores = 'stores = [{ application = "shop", store = "counts", cluster = "other" }]'
    assert _wrong(tmp_path, f"{stores}\n[clusters.other]\nbootstrap_servers = 'o:9092'", case) == []


SHOP: dict[str, Any] = {"cluster": "main", "application": "shop"}
CHANGELOG: dict[str, Any] = {
    "cluster": "main", "topic": "shop-counts-changelog", "partition": 0, "leader": 1, "leader_epoch": 0,
    "replicas": (1,), "isr": (1,),
}  # fmt: skip


@pytest.mark.parametrize(
    "seen",
    [
        StreamsApplication(at=62_000, since=61_000, **SHOP, instances=1),
        PartitionState(at=60_500, since=59_500, **CHANGELOG, topic_id="new"),
    ],
    ids=["deleted", "created again before it was missed"],
)
def test_application_reset_is_never_reported_as_a_rewind(seen: Observation) -> None:
    """StreamsResetter deletes the changelogs a moment after it has moved the offsets: nothing is reported between."""
    commit: dict[str, Any] = {"cluster": "main", "group": "shop", "topic": "orders", "partition": 0}
    detection = Evaluator({"rewind": OffsetRewind()})
    labels = []
    for fact in (
        StreamsApplication(at=0, **SHOP, stores=(("counts", 1),), instances=1),
        PartitionState(at=500, **CHANGELOG, topic_id="old"),
        Commit(at=1_000, **commit, offset=50_000),
        Commit(at=60_000, since=59_000, **commit, offset=0),
        seen,
        Tick(at=65_000),
    ):
        detection.absorb(fact)
        labels.append([finding.labels for finding in detection.evaluate(fact.at).found])
    assert labels == [[], [], [], [], [], [("operator_reset",)]]


@pytest.mark.parametrize(
    ("undeclared", "advice"),
    [
        ([], ()),
        (["latest"], ("Also check store latest, which is not declared.",)),
        (["latest", "max"], ("Also check stores latest and max, which are not declared.",)),
    ],
)
def test_advice_names_undeclared_stores(undeclared: list[str], advice: tuple[str, ...]) -> None:
    decreased = Finding(
        rule="state",
        kind="state_not_restored",
        severity=Severity.CRITICAL,
        at=0,
        subject={"cluster": "main", "group": "shop", "topic": "shop-counts-changelog", "partition": 2},
        labels=("values_fell",),
        current={"undeclared": undeclared},
        detail="it decreased",
    )
    incident = Incident(
        id="INC-1",
        status=Status.OPEN,
        severity=Severity.CRITICAL,
        title="t",
        cluster="main",
        opened_at=0,
        updated_at=0,
        findings=(decreased,),
    )
    (now,) = (section.lines for section in report(incident).sections() if section.heading == "Do now")
    assert tuple(f"Also{line.partition(' Also')[2]}" for line in now if " Also" in line) == advice


def _wrong(tmp_path: Path, option: str, name: str) -> list[str]:
    """Return what is wrong with the rule test under a configuration of that rule alone."""
    config, cases = tmp_path / "rules.toml", tmp_path / "cases.toml"
    config.write_text(RULES.format(option=option), encoding="utf-8")
    defaults, *others = (ROOT / "tests/cases/state_not_restored.toml").read_text("utf-8").split("[[cases]]\n")
    (case,) = (other for other in others if other.startswith(f'name = "{name}"'))
    cases.write_text(f"{defaults}[[cases]]\n{case}", encoding="utf-8")
    return [
        sentence for _, sentences in run_rule_tests(cases, load(config, need_clusters=False)) for sentence in sentences
    ]
