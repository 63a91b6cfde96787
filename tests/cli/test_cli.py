"""The command: what a newcomer reads, exit statuses, and what wrong input is answered with."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agent.cli.main import main
from agent.config.settings import shipped

RESET = """\
{"kind":"log_offsets","at":"2026-11-20T09:34:00.000Z","cluster":"any","topic":"t","partition":0,"log_start":0,"log_end":9000}
{"kind":"commit","at":"2026-11-20T09:35:00.000Z","cluster":"any","group":"g","topic":"t","partition":0,"offset":7832}
{"kind":"commit","at":"2026-11-20T09:35:01.711Z","cluster":"any","group":"g","topic":"t","partition":0,"offset":0,"leader_epoch":null}
"""


def run(*arguments: str | Path) -> Result:
    """The command's result."""
    return CliRunner().invoke(main, [str(one) for one in arguments], prog_name="backflow")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of observations with one reset."""
    path = tmp_path / "lines.jsonl"
    path.write_text(RESET, encoding="utf-8")
    return path


def test_help_names_every_command_and_the_exit_statuses() -> None:
    """And each command's own help ends alike."""
    told = run("--help")
    assert told.exit_code == 0
    for command in ("run", "check-config", "test-rules", "replay", "incidents", "check", "digest", "demo"):
        assert command in told.output
        assert "Exit status: 0" in run(command, "--help").output


def test_replay_prints_one_json_object_an_incident_and_exits_with_1(lines: Path) -> None:
    """On any cluster name, with the rules as shipped."""
    told = run("replay", lines, "--json", "--config", shipped())
    assert told.exit_code == 1
    (incident,) = map(msgspec.json.decode, told.output.splitlines())
    assert (incident["severity"], incident["status"], incident["cluster"]) == ("critical", "open", "any")
    assert list(incident) == [
        "id", "status", "sighted", "unseen", "merged_into", "severity", "title", "correlation", "cluster",
        "opened_at", "updated_at", "recovered_at", "records", "causes", "findings",
    ]  # fmt: skip
    (finding,) = incident["findings"]
    assert finding == {
        "rule": "rewind",
        "kind": "offset_rewind",
        "severity": "critical",
        "at": "2026-11-20T09:35:01.711Z",
        "since": None,
        "recovered_at": None,
        "subject": {"cluster": "any", "group": "g", "topic": "t", "partition": 0},
        "labels": ["to_earliest"],
        "position": None,
        "previous": {"offset": 7832},
        "current": {"offset": 0, "log_start": 0},
        "records": {"reread": 7832, "lost": 0, "skipped": 0},
        "detail": "g on t[0] went back from 7,832 to 0 (the log's start)",
    }


def test_replay_of_nothing_worth_telling_exits_with_0(tmp_path: Path) -> None:
    """No incident, status 0."""
    quiet = tmp_path / "quiet.jsonl"
    quiet.write_text(RESET.splitlines()[0], encoding="utf-8")
    told = run("replay", quiet)
    assert (told.exit_code, told.output) == (0, "no incidents\n")


def test_replay_lists_every_bad_line_with_its_number_and_exits_with_2(tmp_path: Path) -> None:
    """Unknown kinds and keys, no JSON, no time zone."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        RESET + '{"kind":"comit","at":"2026-11-20T09:35:01.711Z"}\n'
        '{"kind":"tick","at":"2026-11-20T09:35:01.711Z","sice":1}\nnot json\n'
        '{"kind":"tick","at":"2026-11-20T09:35:01.711"}\n',
        encoding="utf-8",
    )
    told = run("replay", bad)
    assert told.exit_code == 2
    assert [line.split(": ")[0] for line in told.stderr.splitlines()] == [f"{bad}:{number}" for number in (4, 5, 6, 7)]
    assert "sice" in told.stderr


def test_what_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    """A path, a configuration, a state directory, a scenario: status 2."""
    assert run("replay", tmp_path / "nowhere").exit_code == 2
    missing = run("check-config", "--config", tmp_path / "nowhere.toml")
    assert missing.exit_code == 2
    assert "cannot be read: No such file or directory" in missing.stderr
    config = tmp_path / "rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{tmp_path}/state"\n', encoding="utf-8")
    untold = run("incidents", "--config", config)
    assert untold.exit_code == 2
    assert "no agent has run" in untold.stderr
    unknown = run("demo", "nonsense")
    assert unknown.exit_code == 2
    assert "there are: reset" in unknown.stderr


def test_the_help_of_the_demo_lists_its_scenarios() -> None:
    """Each in one line, from its own file."""
    told = run("demo", "--help").output
    assert "reset " in told
    assert "silently goes back to the log's start" in " ".join(told.split())


def test_the_configuration_shipped_is_right_but_watches_nothing_yet() -> None:
    """`check-config` says what is missing; `run` refuses."""
    told = run("check-config", "--config", shipped())
    assert told.exit_code == 0
    assert "needs [clusters.NAME]" in told.output
    refused = run("run", "--config", shipped())
    assert refused.exit_code == 2
    assert "no cluster to watch" in refused.stderr


def test_paths_that_lead_nowhere_are_warnings_with_their_lines(tmp_path: Path) -> None:
    """Of logs, of Flink's storage, of brokers' log directories, those too that cannot be looked at; what is there, and
    URLs, are passed over; status 0.
    """
    (tmp_path / "server.log").touch()
    (tmp_path / "older").mkdir()
    long = tmp_path / ("long" * 100)
    config = tmp_path / "rules.toml"
    config.write_text(
        '[clusters.main]\nbootstrap_servers = "127.0.0.1:9092"\n[clusters.main.log_directories]\n'
        f'1 = "{tmp_path}/none"\n2 = "hdfs://nn/none"\n3 = "{tmp_path}"\n4 = "{long}"\n'
        f'[logs.brokers]\npaths = ["{tmp_path}/*.log",\n "{tmp_path}/*.txt",\n "{tmp_path}/*/"]\n'
        f'[flink.jobs]\nrest = ["http://127.0.0.1:8081"]\nzookeeper = "127.0.0.1:2181"\n'
        f'storage_directory = "{tmp_path}/ha"\n',
        encoding="utf-8",
    )
    told = run("check-config", "--config", config)
    assert told.exit_code == 0, told.output
    assert told.stderr.splitlines() == [
        f"{config}:10: warning: [logs.brokers] paths: no file matches {tmp_path}/*.txt",
        f"{config}:11: warning: [logs.brokers] paths: only directories match {tmp_path}/*/; name the files in them",
        f"{config}:15: warning: [flink.jobs] storage_directory: there is no directory {tmp_path}/ha",
        f"{config}:4: warning: [clusters.main] log_directories: there is no {tmp_path}/none",
        f"{config}:7: warning: [clusters.main] log_directories: {long} cannot be looked at: File name too long",
    ]


def test_a_configuration_with_mistakes_lists_them_all(tmp_path: Path) -> None:
    """Each with its line; status 2."""
    config = tmp_path / "rules.toml"
    config.write_text(
        '[rules.rewind]\nkind = "offset_rewnd"\n[rules.session]\nkind = "broker_session_lost"\nafter = "5m"\n'
        '[correlations.c]\nsteps = [{ rule = "session" }, { rule = "rewnd", shares = ["cluster"] }]\n',
        encoding="utf-8",
    )
    told = run("check-config", "--config", config)
    assert told.exit_code == 2
    assert [line.split(": ")[0] for line in told.stderr.splitlines()] == [f"{config}:{line}" for line in (2, 5, 7)]
    assert "did you mean" in told.stderr


def test_a_case_that_does_not_hold_exits_with_1(tmp_path: Path) -> None:
    """What was expected and what was made are both told."""
    cases = tmp_path / "cases.toml"
    cases.write_text(
        'defaults = { cluster = "main", topic = "t", partition = 0, group = "g" }\n[[cases]]\nname = "wrong"\n'
        'observations = [{ kind = "commit", at = "0s", offset = 5000 }, { kind = "commit", at = "1s", offset = 0 }]\n'
        'findings = [{ rule = "truncated" }]\n',
        encoding="utf-8",
    )
    told = run("test-rules", cases)
    assert told.exit_code == 1
    assert "expected finding was not made" in told.output
    assert "finding was not expected" in told.output
    assert told.output.endswith("0 cases hold, 1 do not\n")
