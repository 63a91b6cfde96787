"""`backflow silence`, `ack` and `close`: what they refuse, what they write, and what `incidents` shows of it."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from agent.cli.main import main
from agent.clock import now_ms
from agent.model.findings import Severity, Status
from agent.model.times import rfc3339
from agent.storage.database import FILE
from agent.storage.incidents import IncidentStore
from tests import samples

Run = Callable[..., Result]

REWIND = samples.incident(id="INC-11AA0000")
OTHER = samples.incident(
    id="INC-22BB0000", severity=Severity.WARNING, causes=(), findings=(samples.rewind(3, 900, 100, group="billing"),)
)
CLOSED = samples.incident(id="INC-33CC0000", status=Status.CLOSED, recovered_at=REWIND.opened_at + 1)
TABLES = """
[clusters.main]
bootstrap_servers = "127.0.0.1:9092"
[rules.rewind]
kind = "offset_rewind"
[rules.unclean_election]
kind = "unclean_election"
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with IncidentStore(tmp_path / FILE, ["slack"]) as store:
        store.save(1, [REWIND, OTHER, CLOSED])
    return tmp_path


@pytest.fixture
def run(state: Path) -> Run:
    config = state / "rules.toml"
    config.write_text(f'{TABLES}[agent]\nstate_directory = "{state}"\n', encoding="utf-8")

    def call(command: str, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*command.split(), "--config", str(config), *arguments])

    return call


def test_a_silence_is_added_listed_and_expired(run: Run) -> None:
    added = run("silence add", "--group", "flink-*", "--for", "2h", "--comment", "planned", "--author", "lena")
    assert added.exit_code == 0, added.output
    line = re.match(r"(SIL-[0-9A-F]{6})  until (\S+)Z  groups=flink-\*  lena: planned\n", added.output)
    assert line is not None
    silence_id, until = line.groups()
    assert rfc3339(now_ms() + 7_190_000) < until < rfc3339(now_ms() + 7_201_000)
    assert added.output.endswith("incidents that match now: none\n")  # the unclean election has no group
    listed = run("silence list")
    assert (listed.exit_code, listed.output) == (1, added.output.splitlines()[0] + "\n")
    assert run("silence expire", silence_id.lower()).output == f"{silence_id} has ended\n"
    assert (run("silence list").exit_code, run("silence list").output) == (0, "no silences\n")
    assert f"{silence_id}  ended " in run("silence list", "--expired").output
    again = run("silence expire", silence_id)
    assert (again.exit_code, again.stderr) == (2, f"no silence {silence_id} lasts; there is none\n")


def test_a_text_that_is_not_utf_8_is_taken_with_escapes(run: Run) -> None:
    text = os.fsdecode(b"caf\xe9")
    added = run("silence add", "--group", text, "--for", "2h", "--comment", text, "--author", text)
    assert (added.exit_code, r"groups=caf\xe9  caf\xe9: caf\xe9" in added.output) == (0, True)
    unknown = run("silence expire", text)
    assert (unknown.exit_code, unknown.stderr.startswith("no silence caf")) == (2, True)
    taken = run("ack", "11AA", "--comment", text, "--author", text)
    assert (taken.exit_code, r"acknowledged by caf\xe9" in taken.output) == (0, True)
    closed = run("close", "11AA", "--reason", text, "--author", text)
    assert (closed.exit_code, r"closed by caf\xe9" in closed.output) == (0, True)
    assert run("incidents", "--all").output.endswith(": caf\\xe9\n")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], 'give at least one pattern: --rule "*" would silence everything'),
        (["--group", ""], '--group: an empty pattern matches nothing; "*" matches every name'),
        (["--rule", "rewnd"], '--rule: "rewnd" is none of the rules; did you mean `rewind`?'),
        (["--rule", "offset_rewind"], '--rule: "offset_rewind" is a kind; the rule of this kind is "rewind"'),
        (["--cluster", "mian"], '--cluster: "mian" is none of the clusters; did you mean `main`?'),
    ],
)
def test_a_silence_of_nothing_is_refused(run: Run, options: list[str], reason: str) -> None:
    result = run("silence add", "--for", "1h", "--comment", "c", *options)
    assert (result.exit_code, result.stderr) == (2, f"{reason}\n")
    assert run("silence list").output == "no silences\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "a silence must end: give either --for or --until"),
        (["--for", "1h", "--until", "2099-01-01T00:00:00Z"], "a silence must end: give either --for or --until"),
        (["--until", "2020-01-01T00:00:00Z"], "ends at 2020-01-01T00:00:00.000Z has no effect: that has passed"),
        (["--until", "2099-01-01T00:00:00"], "names no time zone; write UTC as a trailing Z"),
        (["--for", "0s"], "has no effect: that has passed"),
        (["--for", "forever"], 'expected a duration such as "500ms"'),
        (["--for", "1h", "--comment", " "], "give a comment"),
    ],
)
def test_a_silence_without_an_end_or_reason_is_refused(run: Run, options: list[str], reason: str) -> None:
    result = run("silence add", "--rule", "*", "--comment", "c", *options)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert run("silence list").output == "no silences\n"


def test_names_are_not_refused_while_the_file_has_mistakes(run: Run, state: Path) -> None:
    """The agent goes on with the clusters and rules that it read before, which are unknown here."""
    options = ("--cluster", "main", "--rule", "rewind", "--for", "1h", "--comment", "works")
    other = ("--cluster", "mian", "--for", "1h", "--comment", "works")
    assert '"mian" is none of the clusters' in run("silence add", *other).stderr
    with (state / "rules.toml").open("a", encoding="utf-8") as file:
        file.write("state_directry = 1\n")
    added = run("silence add", *options)
    assert added.exit_code == 0, added.output
    assert "clusters, rules and silences of" in added.stderr
    assert "rules=rewind" in added.stdout


def test_silenced_incidents_are_listed_with_their_end(run: Run, state: Path) -> None:
    run("silence add", "--group", "bill*", "--until", "2099-01-01T00:00:00Z", "--comment", "planned")
    lines = {line[:12]: line for line in run("incidents").output.splitlines()}
    assert lines[OTHER.id].endswith(" · silenced until 2099-01-01 00:00:00.0")
    assert "silenced" not in lines[REWIND.id]
    found = {line["id"]: line for line in map(msgspec.json.decode, run("incidents", "--json").stdout.splitlines())}
    assert found[OTHER.id]["silenced_until"] == "2099-01-01T00:00:00.000Z"
    assert found[REWIND.id]["silenced_until"] is None
    assert "Silenced until 2099-01-01 00:00:00.0 UTC by" in run("incidents show", "22bb").output
    tables = '[[silences]]\ncomment = "the file"\nrules = { include = ["*"] }\nuntil = "2098-01-01T00:00:00Z"\n'
    with (state / "rules.toml").open("a", encoding="utf-8") as file:
        file.write(tables)
    assert run("incidents").output.count("silenced until") == 2
    assert run("silence list").output.startswith("silences[1]  until 2098-01-01T00:00:00Z  rules=*  rules.toml: the fi")
    refused = run("silence expire", "silences[1]")
    assert (refused.exit_code, "change it there" in refused.stderr) == (2, True)


def test_acknowledged_is_shown_with_who_and_when(run: Run) -> None:
    result = run("ack", "11aa", "--comment", "on it", "--author", "lena")
    assert (result.exit_code, result.output) == (0, f"INC-11AA0000 acknowledged by lena: {REWIND.title}\n")
    (line,) = [line for line in run("incidents").output.splitlines() if line.startswith(REWIND.id)]
    assert re.search(r" · acknowledged by lena \d\d:\d\d:\d\d\.\d$", line)
    assert "acknowledged by lena" in run("incidents show", "11aa").output
    (found,) = [line for line in map(msgspec.json.decode, run("incidents", "--json").stdout.splitlines())
                if line["id"] == REWIND.id]  # fmt: skip
    assert {**found["acknowledged"], "at": ""} == {"at": "", "by": "lena", "comment": "on it"}


def test_a_closed_incident_leaves_the_list(run: Run) -> None:
    result = run("close", "INC-22BB", "--reason", "a test", "--author", "omar")
    assert (result.exit_code, result.output) == (0, f"INC-22BB0000 closed by omar: {OTHER.title}\n")
    assert OTHER.id not in run("incidents").output
    assert " · closed by omar" in run("incidents", "--all").output
    assert "CLOSED" in run("incidents show", "22bb").output
    again = run("close", "22bb", "--reason", "twice")
    assert (again.exit_code, again.stderr) == (2, "INC-22BB0000 is closed by omar: a test\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ack", "99"], "no incident 99"),
        (["ack", "33"], "INC-33CC0000 is closed"),
        (["close", "11", "--reason", ""], "give a reason"),
        (["close", "11"], "Missing option '--reason'"),
    ],
)
def test_what_cannot_be_decided_is_refused(run: Run, arguments: list[str], reason: str) -> None:
    command, *options = arguments
    result = run(command, *options)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_without_a_state_nothing_is_made(tmp_path: Path) -> None:
    config = tmp_path / "rules.toml"
    config.write_text(f'[agent]\nstate_directory = "{tmp_path}/none"\n', encoding="utf-8")
    for command in (
        ["silence", "list"],
        ["ack", "1"],
        ["silence", "add", "--rule", "*", "--for", "1h", "--comment", "c"],
    ):
        result = CliRunner().invoke(main, [*command, "--config", str(config)])
        assert (result.exit_code, "no agent has run" in result.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
