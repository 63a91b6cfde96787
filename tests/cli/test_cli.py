"""The command line: help, exit statuses and the responses to wrong input."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agent.cli.common import config_path, load_for_state
from agent.cli.main import main
from agent.config.shipped import shipped
from agent.rules import KINDS

RESET = """\
{"kind":"log_offsets","at":"2026-11-20T09:34:00.000Z","cluster":"any","topic":"t","partition":0,"log_start":0,"log_end":9000}
{"kind":"commit","at":"2026-11-20T09:35:00.000Z","cluster":"any","group":"g","topic":"t","partition":0,"offset":7832}
{"kind":"commit","at":"2026-11-20T09:35:01.711Z","cluster":"any","group":"g","topic":"t","partition":0,"offset":0,"leader_epoch":null}
"""

OWN_RULES = "".join(f'[rules.{kind}]\nkind = "{kind}"\n' for kind, rule in KINDS.items() if rule.reports_agent)
"""Rules that report trouble of the agent itself: without them there is a warning."""

LOGIN = ('"sasl.username" = "agent"', '"sasl.password" = { env = "HOME" }')

CLUSTER = '[clusters.main]\nbootstrap_servers = "127.0.0.1:9092"\n[spark]\nenabled = false\n'


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="backflow")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text(RESET, encoding="utf-8")
    return path


def test_help_lists_all_commands_and_exit_statuses() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in (
        "run",
        "check-config",
        "test-alert",
        "test-rules",
        "replay",
        "incidents",
        "check",
        "digest",
        "spark-package",
        "demo",
    ):
        assert command in result.output
        assert "Exit status: 0" in run(command, "--help").output


def test_replay_prints_json_and_exits_with_1(lines: Path) -> None:
    result = run("replay", lines, "--json", "--config", shipped())
    assert result.exit_code == 1
    (incident,) = map(msgspec.json.decode, result.output.splitlines())
    assert (incident["severity"], incident["status"], incident["cluster"]) == ("critical", "open", "any")
    assert list(incident) == [
        "id", "status", "sighted", "unseen", "merged_into", "severity", "title", "correlation", "cluster",
        "opened_at", "updated_at", "recovered_at", "records", "causes", "findings",
        "acknowledged", "closed", "silenced_until",
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
        "current": {
            "offset": 0,
            "log_start": 0,
            "ruled_out": {"after_expiry": "read at 09:35:00.0 and 09:35:01.7"},
            "not_ruled_out": {
                "operator_reset": "the members of g are unknown",
                "topic_recreation": "topic ids are unknown",
            },
        },
        "records": {"reread": 7832, "lost": 0, "skipped": 0},
        "detail": "g on t[0] was reset to the log start: 7,832 -> 0",
    }


def test_replay_without_incidents_exits_with_0(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.jsonl"
    quiet.write_text(RESET.splitlines()[0], encoding="utf-8")
    result = run("replay", quiet)
    assert (result.exit_code, result.output) == (0, "no incidents\n")


def test_replay_of_a_time_window(lines: Path) -> None:
    assert run("replay", lines, "--from", "2026-11-20T09:35:00Z").exit_code == 1, "still lasts"
    assert run("replay", lines, "--to", "2026-11-20T09:35:01.711Z").output == "no incidents\n", "before the reset"
    assert run("replay", lines, "--to", "2026-11-20T09:35:01.712Z").exit_code == 1
    recovered = lines.with_name("recovered.jsonl")
    caught_up = RESET.splitlines()[-1].replace("09:35:01.711", "09:36:00.000").replace('"offset":0', '"offset":99999')
    recovered.write_text(f"{RESET}{caught_up}\n", encoding="utf-8")
    assert run("replay", recovered, "--from", "2026-11-20T09:36:00Z").exit_code == 1
    assert run("replay", recovered, "--from", "2026-11-20T09:36:00.001Z").output == "no incidents\n"


def test_replay_of_a_window_that_ends_before_it_begins_exits_with_2(lines: Path) -> None:
    result = run("replay", lines, "--from", "2026-11-20T09:35:00Z", "--to", "2026-11-20T09:00:00Z")
    assert result.exit_code == 2
    assert result.stderr == "--from 2026-11-20T09:35:00.000Z is not before --to 2026-11-20T09:00:00.000Z\n"


def test_replay_lists_all_invalid_lines_and_exits_with_2(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        RESET + '{"kind":"comit","at":"2026-11-20T09:35:01.711Z"}\n'
        '{"kind":"tick","at":"2026-11-20T09:35:01.711Z","sice":1}\nnot json\n'
        '{"kind":"tick","at":"2026-11-20T09:35:01.711"}\n',
        encoding="utf-8",
    )
    result = run("replay", bad)
    assert result.exit_code == 2
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [
        f"{bad}:{number}" for number in (4, 5, 6, 7)
    ]
    assert "sice" in result.stderr


def test_missing_input_exits_with_2(tmp_path: Path) -> None:
    assert run("replay", tmp_path / "nowhere").exit_code == 2
    missing = run("check-config", "--config", tmp_path / "nowhere.toml")
    assert missing.exit_code == 2
    assert "cannot be read: No such file or directory" in missing.stderr
    config = tmp_path / "rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{tmp_path}/state"\n', encoding="utf-8")
    missing_state = run("incidents", "--config", config)
    assert missing_state.exit_code == 2
    assert "no agent has run" in missing_state.stderr
    unknown = run("demo", "nonsense")
    assert unknown.exit_code == 2
    assert "there are: reset" in unknown.stderr


def test_the_state_of_the_service_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the file, the environment or this folder has another, as an operator's shell does not."""
    service, own = tmp_path / "service", tmp_path / "own"
    monkeypatch.setattr("agent.cli.common._SERVICE_STATE", service)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "rules.toml"
    config.write_text("", encoding="utf-8")

    def state_directory() -> Path:
        return load_for_state(config).agent.state_directory

    assert state_directory() == Path("backflow-state")
    service.mkdir()
    assert state_directory() == service
    Path("backflow-state").mkdir()
    assert state_directory() == Path("backflow-state")
    Path("backflow-state").rmdir()
    config.write_text(f'[agent]\nstate_directory = "{own}"\n', encoding="utf-8")
    assert state_directory() == own
    config.write_text("[agent]\n", encoding="utf-8")
    monkeypatch.setenv("STATE_DIRECTORY", str(own))
    assert state_directory() == own


def test_help_of_demo_lists_the_scenarios() -> None:
    result = run("demo", "--help").output
    assert "reset " in result
    assert "silently reset to the log start" in " ".join(result.split())


def test_shipped_configuration_is_valid_but_monitors_nothing() -> None:
    result = run("check-config", "--config", shipped())
    assert result.exit_code == 0
    assert "needs [clusters.NAME]" in result.output
    refused = run("run", "--config", shipped())
    assert refused.exit_code == 2
    assert "no cluster to monitor" in refused.stderr


def test_missing_paths_are_warnings_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "server.log").touch()
    (tmp_path / "older").mkdir()
    long = tmp_path / ("long" * 100)
    config = tmp_path / "rules.toml"
    config.write_text(
        '[clusters.main]\nbootstrap_servers = "127.0.0.1:9092"\n[clusters.main.log_directories]\n'
        f'1 = "{tmp_path}/none"\n2 = "hdfs://nn/none"\n3 = "{tmp_path}"\n4 = "{long}"\n'
        f'[logs.brokers]\npaths = ["{tmp_path}/*.log",\n "{tmp_path}/*.txt",\n "{tmp_path}/*/"]\n'
        f'[flink.jobs]\nrest = ["http://127.0.0.1:8081"]\nzookeeper = "127.0.0.1:2181"\n'
        f'storage_directory = "{tmp_path}/ha"\n[spark]\nenabled = false\n{OWN_RULES}',
        encoding="utf-8",
    )
    result = run("check-config", "--config", config)
    assert result.exit_code == 0, result.output
    unattributed = 'names no cluster, so its lines explain no incident; add cluster = "main" or flink = "jobs"'
    assert result.stderr.splitlines() == [
        f"{config}:4: warning: [clusters.main] log_directories.1: {tmp_path}/none does not exist",
        f"{config}:7: warning: [clusters.main] log_directories.4: {long} cannot be accessed: File name too long",
        f"{config}:8: warning: [logs.brokers]: {unattributed}",
        f"{config}:10: warning: [logs.brokers] paths[1]: no file matches {tmp_path}/*.txt",
        f"{config}:11: warning: [logs.brokers] paths[2]: only directories match {tmp_path}/*/; name the files in them",
        f"{config}:15: warning: [flink.jobs] storage_directory: directory {tmp_path}/ha does not exist",
    ]


def test_routes_behind_one_that_takes_every_incident_are_warned_of(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    additional, chosen = 'channel = "a"\nadditional = true', 'channel = "b"\ngroups.include = ["g"]'
    routes = (additional, chosen, 'channel = "c"', 'channel = "d"')
    (tmp_path / "token").write_text("xoxb-1-a", encoding="utf-8")
    config.write_text(
        f'[slack]\nchannel = "alerts"\ntoken_file = "{tmp_path}/token"\n'
        + "".join(f"[[slack.routes]]\n{route}\n" for route in routes)
        + f"[spark]\nenabled = false\n{OWN_RULES}",
        encoding="utf-8",
    )
    result = run("check-config", "--config", config)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        f"{config}:12: warning: [slack] routes[3]: gets no incident: the route to c above has no patterns"
    ]


def test_missing_files_of_clients_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "ca").touch()
    config = tmp_path / "rules.toml"
    config.write_text(
        f"""[clusters.main]
bootstrap_servers = "127.0.0.1:9092"
zookeeper = "127.0.0.1:2181"
[clusters.main.kafka]
"security.protocol" = "SSL"
"ssl.ca.location" = "{tmp_path}/ca"
"ssl.certificate.location" = "{tmp_path}/certificate"
"ssl.key.location" = "{tmp_path}/key"
"ssl.keystore.location" = "{tmp_path}/store"
"https.ca.location" = "probe"
[clusters.main.zookeeper_client]
use_ssl = true
ca = "{tmp_path}/ca-of-zookeeper"
[flink.jobs]
rest = ["https://127.0.0.1:8081"]
http_client = {{ ca = "{tmp_path}/ca-of-flink" }}
[spark]
enabled = false
{OWN_RULES}""",
        encoding="utf-8",
    )
    result = run("check-config", "--config", config)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        f'{config}:7: warning: [clusters.main] kafka."ssl.certificate.location": {tmp_path}/certificate does not exist',
        f'{config}:8: warning: [clusters.main] kafka."ssl.key.location": {tmp_path}/key does not exist',
        f'{config}:9: warning: [clusters.main] kafka."ssl.keystore.location": {tmp_path}/store does not exist',
        f"{config}:13: warning: [clusters.main] zookeeper_client.ca: {tmp_path}/ca-of-zookeeper does not exist",
        f"{config}:16: warning: [flink.jobs] http_client.ca: {tmp_path}/ca-of-flink does not exist",
    ]


@pytest.mark.parametrize(
    ("properties", "warnings"),
    [
        (
            ['"sasl.mechanism" = "PLAIN"', '"sasl.username" = "agent"'],
            {3: '"sasl.mechanism": sasl.* has no effect: security.protocol is PLAINTEXT'},
        ),
        (
            ['"security.protocol" = "ssl"', '"sasl.username" = "agent"', '"ssl.cipher.suites" = "x"'],
            {4: '"sasl.username": sasl.* has no effect: security.protocol is SSL'},
        ),
        (
            [
                '"enable.ssl.certificate.verification" = false',
                '"sasl.mechanism" = "PLAIN"',
                '"security.protocol" = "SASL_PLAINTEXT"',
                *LOGIN,
            ],
            {3: '"enable.ssl.certificate.verification": ssl.* has no effect: security.protocol is SASL_PLAINTEXT'},
        ),
        (['"security.protocol" = "SASL_SSL"', '"sasl.mechanism" = "PLAIN"', '"ssl.cipher.suites" = "x"', *LOGIN], {}),
        (['"client.id" = "backflow"'], {}),
    ],
)
def test_properties_without_effect_are_warnings(
    tmp_path: Path, properties: list[str], warnings: dict[int, str]
) -> None:
    config = tmp_path / "rules.toml"
    table = "[clusters.main.kafka]\n" + "\n".join(properties)
    config.write_text(f"{OWN_RULES}{CLUSTER}{table}\n", encoding="utf-8")
    before = len(f"{OWN_RULES}{CLUSTER}".splitlines()) - 1
    lines = run("check-config", "--config", config).stderr.splitlines()
    assert len(lines) == len(warnings)
    for line, (number, text) in zip(lines, warnings.items(), strict=True):
        assert line.startswith(f"{config}:{before + number}: warning: [clusters.main] kafka.{text}; set it to ")


def test_warnings_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    table = f'"sasl.password" = {{ env = "NO_SUCH_PASSWORD" }}\n"ssl.key.location" = "{tmp_path}/key"\n'
    config.write_text(f"{CLUSTER}[clusters.main.kafka]\n{table}", encoding="utf-8")
    lines = run("check-config", "--config", config).stderr.splitlines()
    assert [line.removeprefix(f"{config}:").partition(":")[0].strip() for line in lines] == ["warning", *"6677"]


def test_check_config_warns_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    config = tmp_path / "rules.toml"
    config.write_text(f'[clusters.main]\nbootstrap_servers = "127.0.0.1:9092"\n{OWN_RULES}', encoding="utf-8")
    result = run("check-config", "--config", config)
    assert result.exit_code == 0
    assert result.stderr == (
        f"{config}: warning: Spark checks need Java, but none is in JAVA_HOME, {tmp_path}: install a JDK, 17 or newer, "
        "or set JAVA_HOME; without, set enabled = false in [spark]\n"
    )
    config.write_text(config.read_text(encoding="utf-8") + "[spark]\nenabled = false\n", encoding="utf-8")
    assert run("check-config", "--config", config).stderr == ""


def test_a_file_without_rules_is_warned_about(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    config.write_text(CLUSTER, encoding="utf-8")
    result = run("check-config", "--config", config)
    assert (result.exit_code, result.stderr) == (
        0,
        f"{config}: warning: no rules, so nothing is detected; add [rules.NAME] as in {shipped()}\n",
    )
    assert "not configured" not in result.stdout


def test_rules_about_the_agent_itself_are_missed(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    own = '[rules.own]\nkind = "agent_impaired"\n'
    config.write_text(f'{CLUSTER}{own}[rules.rewind]\nkind = "offset_rewind"\n', encoding="utf-8")
    result = run("check-config", "--config", config)
    assert result.exit_code == 0
    assert result.stderr == (
        f"{config}: warning: trouble of Backflow itself goes unreported without rules of kind check_failed, "
        f"commits_unread and source_unavailable; add them as in {shipped()}\n"
    )


def test_shipped_kinds_that_a_file_lacks_are_listed(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    rules = shipped().read_text(encoding="utf-8")
    without = rules.replace('kind = "controller_moved"', 'kind = "leader_moved"')
    config.write_text(without, encoding="utf-8")
    assert run("check-config", "--config", config).stdout.splitlines()[:-1] == [
        f"not configured: controller_moved; see {shipped()}"
    ]
    config.write_text(rules, encoding="utf-8")
    assert len(run("check-config", "--config", config).stdout.splitlines()) == 1


def test_check_config_lists_all_mistakes(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    config.write_text(
        '[rules.rewind]\nkind = "offset_rewnd"\n[rules.session]\nkind = "broker_session_lost"\nafter = "5m"\n'
        '[correlations.c]\nsteps = [{ rule = "session" }, { rule = "rewnd", shares = ["cluster"] }]\n',
        encoding="utf-8",
    )
    result = run("check-config", "--config", config)
    assert result.exit_code == 2
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [f"{config}:{line}" for line in (2, 5, 7)]
    assert "did you mean" in result.stderr


def test_failed_rule_test_exits_with_1(tmp_path: Path) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text(
        'defaults = { cluster = "main", topic = "t", partition = 0, group = "g" }\n[[cases]]\nname = "wrong"\n'
        'observations = [{ kind = "commit", at = "0s", offset = 5000 }, { kind = "commit", at = "1s", offset = 0 }]\n'
        'findings = [{ rule = "truncated" }]\n',
        encoding="utf-8",
    )
    result = run("test-rules", cases)
    assert result.exit_code == 1
    assert "expected finding is missing" in result.output
    assert "unexpected finding" in result.output
    assert result.output.endswith("0 rule tests passed, 1 failed\n")


def test_replay_of_a_directory_without_journal_exits_with_2(tmp_path: Path) -> None:
    empty = run("replay", tmp_path)
    assert (empty.exit_code, empty.stderr) == (2, f"{tmp_path}: is not a journal\n")
    (tmp_path / "journal" / "tick" / "date=2026-11-20").mkdir(parents=True)
    parent = run("replay", tmp_path)
    assert (parent.exit_code, parent.stderr) == (
        2,
        f"{tmp_path}: is not a journal; did you mean {tmp_path}/journal?\n",
    )


def test_run_without_a_possible_state_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "rules.toml"
    config.write_text(
        f'[agent]\nstate_directory = "{tmp_path}/file/state"\n[clusters.main]\nbootstrap_servers = "127.0.0.1:9092"\n',
        encoding="utf-8",
    )
    parent = tmp_path / "file"
    message = f"{config}:2: [agent] state_directory: cannot create {parent}/state: {parent} is not a directory\n"
    for command in ("check-config", "run"):
        result = run(command, "--config", config)
        assert (result.exit_code, result.stderr.splitlines(keepends=True)[-1]) == (2, message)


def test_run_says_why_it_cannot_create_the_state_directory(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    config.write_text(
        '[agent]\nstate_directory = "/proc/none/state"\n[clusters.main]\nbootstrap_servers = "127.0.0.1:9092"\n',
        encoding="utf-8",
    )
    result = run("run", "--config", config)
    assert result.exit_code == 2
    assert result.stderr == (
        "cannot create the state directory /proc/none/state: No such file or directory; "
        "set state_directory in [agent]\n"
    )


def test_text_is_printed_on_a_terminal_that_is_not_utf_8() -> None:
    command = [sys.executable, "-m", "agent", "groups", "--help"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"\\u2264" in shown.stdout


def test_a_folder_that_is_closed_to_the_user_has_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root's home is to the agent's user with sudo."""
    folder = tmp_path / "closed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("agent.cli.common.shipped", lambda: tmp_path)
    folder.chmod(0)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65_534)
    try:
        found = config_path(None)
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o700)
    assert found == tmp_path


def test_warnings_do_not_mix_with_json(tmp_path: Path) -> None:
    """A journal file that is damaged is left out, which is said on standard error."""
    place = tmp_path / "tick" / "date=2026-11-20"
    place.mkdir(parents=True)
    (place / f"{1:019}-{9:019}.parquet").write_bytes(b"no parquet")
    result = run("replay", "--json", tmp_path)
    assert result.stdout == ""
    assert "journal_left_out" in result.stderr
