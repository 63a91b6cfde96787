"""`backflow incidents`: the list of stored incidents, and everything about one."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agent.cli.main import main
from agent.model.findings import Severity, Status
from agent.storage.database import FILE
from agent.storage.incidents import CheckReport, IncidentStore
from agent.storage.outbox import Outbox
from tests import samples

Run = Callable[..., Result]

CRITICAL = samples.incident(id="INC-11AA0000")
WARNING = samples.incident(
    id="INC-22BB0000",
    severity=Severity.WARNING,
    opened_at=CRITICAL.opened_at + 60_000,
    findings=(samples.rewind(3, 900, 100, group="billing"),),
)
CLOSED = samples.incident(id="INC-22CC0000", status=Status.CLOSED, recovered_at=CRITICAL.opened_at + 1)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with IncidentStore(tmp_path / FILE, ["slack"]) as store:
        store.save(1, [CRITICAL, WARNING, CLOSED], reports=[CheckReport(CRITICAL.id, None, ("12,223 records",))])
    return tmp_path


@pytest.fixture
def run(state: Path) -> Run:
    config = state / "rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{state}"\n', encoding="utf-8")
    return lambda *arguments: CliRunner().invoke(main, ["incidents", "--config", str(config), *arguments])


def listed(result: Result) -> list[str]:
    return [line.partition("  ")[0] for line in result.output.splitlines()]


def test_the_newest_comes_first(run: Run) -> None:
    result = run()
    assert result.exit_code == 1
    assert listed(result) == [WARNING.id, CRITICAL.id]
    assert result.output.splitlines()[1].startswith("INC-11AA0000  2026-11-20 23:25:08  CRITICAL  OPEN       flink-job")


@pytest.mark.parametrize("mistake", ["state_directry = 1\n", 'log_format = "json\n'])
def test_mistakes_in_the_configuration_do_not_hide_them(run: Run, state: Path, mistake: str) -> None:
    with (state / "rules.toml").open("a", encoding="utf-8") as file:
        file.write(mistake)
    result = run()
    assert result.exit_code == 1
    assert result.stderr.startswith(f"warning: {state}/rules.toml:3: ")
    assert [line.partition("  ")[0] for line in result.stdout.splitlines()] == [WARNING.id, CRITICAL.id]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--all"], [WARNING.id, CLOSED.id, CRITICAL.id]),
        (["--all", "--open"], [WARNING.id, CRITICAL.id]),
        (["--severity", "critical"], [CRITICAL.id]),
        (["--group", "bill*"], [WARNING.id]),
        (["--group", "bill"], []),
        (["--since", "5m"], []),
        (["--since", "10000d"], [WARNING.id, CRITICAL.id]),
    ],
)
def test_options_choose_incidents(run: Run, options: list[str], expected: list[str]) -> None:
    result = run(*options)
    assert result.exit_code == (1 if expected else 0)
    assert listed(result) == (expected or ["no incidents"])


def test_json_has_all_incidents(run: Run) -> None:
    lines = [msgspec.json.decode(line) for line in run("--json").stdout.splitlines()]
    assert {line["id"] for line in lines} == {CRITICAL.id, WARNING.id, CLOSED.id}
    nothing = run("--json", "--severity", "critical", "--group", "nobody")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


def test_an_unknown_duration_is_refused(run: Run) -> None:
    assert 'expected a duration such as "500ms"' in run("--since", "2x").output


def test_show_prints_the_message_and_what_it_rests_on(run: Run, state: Path) -> None:
    shown = run("show", "11aa").output
    assert shown.startswith("CRITICAL · flink-job rewound")
    causes, _, effects = shown.partition("\nCauses\n")[2].partition("\nEffects\n")
    assert [finding.detail in causes for finding in CRITICAL.causes] == [True] * len(CRITICAL.causes)
    assert all(finding.detail in effects for finding in CRITICAL.findings)
    assert "Reported by a check\n  12,223 records\n" in shown
    assert shown.endswith("Deliveries\n  slack: not delivered yet, 3 waiting\n")
    outbox = Outbox(state / FILE, "slack")
    row = outbox.read(outbox.heads()[0][1])
    assert row is not None
    assert row.incident == CRITICAL
    assert outbox.attempt(row, CRITICAL.opened_at + 1_000)
    assert "3 waiting, tried at 23:25:09.3 without an answer" in run("show", CRITICAL.id).output
    outbox.confirmed(row, {"channel": "C1", "ts": "5.6"})
    outbox.close()
    assert "  slack: delivered (channel C1, ts 5.6), 2 waiting\n" in run("show", CRITICAL.id).output


def test_show_prints_names_on_one_line_each(run: Run, state: Path) -> None:
    """A group's name is free text: it must neither obey nor fake anything in a terminal."""
    name = "g\x1b[2J\nINC-FAKE  recovered"
    finding = samples.rewind(group=name, detail=f"{name} was rewound")
    with IncidentStore(state / FILE) as store:
        store.save(2, [samples.incident(id="INC-66FF0000", causes=(), findings=(finding,))])
    shown = run("show", "INC-66FF0000").stdout
    assert "\x1b" not in shown
    assert not [line for line in shown.splitlines() if line.startswith("INC-FAKE")]
    assert "g\\x1b[2J\\nINC-FAKE  recovered was rewound" in shown


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [("99", "no incident 99\n"), ("22", "several incidents begin with 22: INC-22CC0000, INC-22BB0000\n")],
)
def test_show_needs_one_incident(run: Run, wanted: str, reason: str) -> None:
    result = run("show", wanted)
    assert (result.exit_code, result.stderr) == (2, reason)
