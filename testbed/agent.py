"""The real agent as a process, for demos and tests: the shipped rules plus addresses and directories."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agent.config.shipped import shipped
from agent.model.observations.base import Observation, Tick
from agent.model.times import rfc3339
from agent.storage.journal.reader import read
from testbed.flink.cluster import FlinkCluster
from testbed.processes import Process
from testbed.slack import Slack
from testbed.waiting import wait_until

_SLACK_ENV = "BACKFLOW_TESTBED_SLACK_TOKEN"


class Agent(Process):
    """A `backflow run` process with its own configuration; it is killed with the process that started it."""

    def __init__(
        self,
        directory: Path,
        clusters: Mapping[str, Mapping[str, Any]],
        slack: Slack | None = None,
        tables: str = "",
        *,
        checks: bool = False,
        options: Mapping[str, str] | None = None,
        program: str = "agent",
    ) -> None:
        """Write the configuration; the process is started separately.

        directory: holds configuration, state and log. clusters: the [clusters.NAME] tables. tables: TOML that is
        appended to the shipped rules. checks: whether Spark checks run, which need 1 GiB and a core. options: options
        of the shipped rules to change, in TOML, by `table.option`. program: the module that runs the agent.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "rules.toml"
        self.state = directory / "state"
        lines = [
            *_shipped_rules(options or {}),
            f"[agent]\nstate_directory = {json.dumps(str(self.state))}\n",
            tables,
        ]
        if not checks:
            lines.append("[spark]\nenabled = false")
        for name, table in clusters.items():
            lines.append(_table(f"clusters.{name}", table))
        if slack is not None:
            lines.append(f'[slack]\nchannel = "alerts"\ntoken_env = "{_SLACK_ENV}"\nbase_url = "{slack.url}"')
            os.environ[_SLACK_ENV] = slack.token
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", program, "run", "--config", str(self.config)]
        super().__init__("the agent", command, directory / "agent.log")

    def wait_until_watching(self) -> None:
        """Wait until its log contains the event `daemon_ready`."""
        self.wait_for_line(r'"daemon_ready"|daemon_ready ')

    def wait_for(self, matches: Callable[[Observation], bool], what: str, seconds: float = 60) -> Observation:
        """Wait until its journal holds an observation that matches, and return the first one."""
        return wait_until(lambda: next(filter(matches, self.observations()), None), what, seconds, every=0.5)

    def observations(self) -> Iterator[Observation]:
        """Yield the observations in its journal."""
        return read(self.state / "journal")

    def wait_until_evaluated(self, at: int, seconds: float = 60) -> None:
        """Wait until all observations taken before `at` (ms) have been evaluated.

        A later tick in the journal shows that.
        """
        self.wait_for(
            lambda observation: isinstance(observation, Tick) and observation.at > at,
            f"a tick after {rfc3339(at)}",
            seconds,
        )

    def wait_for_incident(
        self, wanted: Callable[[dict[str, Any]], bool], what: str, seconds: float = 60
    ) -> dict[str, Any]:
        """Wait until an unmerged incident is `wanted`, and return it."""
        return wait_until(lambda: next(filter(wanted, self.unmerged()), None), what, seconds, every=0.5)

    def unmerged(self) -> list[dict[str, Any]]:
        """Return the incidents that are not merged into another one."""
        return [incident for incident in self.incidents() if incident["merged_into"] is None]

    def incidents(self) -> list[dict[str, Any]]:
        """Return the incidents that `backflow incidents --json` prints."""
        command = [sys.executable, "-m", "agent", "incidents", "--json", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 2 and "no agent has run" in done.stderr:
            return []
        if done.returncode not in (0, 1):
            msg = f"`backflow incidents` exited with status {done.returncode}: {done.stderr}"
            raise RuntimeError(msg)
        return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def flink_table(name: str, flink: FlinkCluster, **more: str) -> str:
    """Return the rules.toml table that watches a Flink cluster of the testbed."""
    keys = {
        "rest": list(flink.rest.values()),
        "zookeeper": flink.zookeeper,
        "cluster_id": f"/{flink.name}",
        "storage_directory": str(flink.storage_dir.absolute()),
        "metrics_interval": "2s",
    }
    return _table(f"flink.{name}", {**keys, **more})


def logs_table(name: str, paths: Sequence[str], **more: str) -> str:
    """Return the rules.toml table that follows log files written in this machine's time zone."""
    zone = os.environ.get("TZ") or str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2] or "UTC"
    return _table(f"logs.{name}", {"paths": list(paths), "time_zone": zone, **more})


def _shipped_rules(options: Mapping[str, str]) -> list[str]:
    """Return the lines of the shipped rules with these options changed. Raises KeyError if one is not there."""
    lines, table, left = [], "", dict(options)
    for line in shipped().read_text(encoding="utf-8").splitlines():
        table = line[1:].partition("]")[0] if line.startswith("[") else table
        name, equals, _ = line.partition(" = ")
        value = left.pop(f"{table}.{name}", None) if equals else None
        lines.append(line if value is None else f"{name} = {value}")
    if left:
        msg = f"The shipped rules do not set {', '.join(left)}."
        raise KeyError(msg)
    return lines


def _table(name: str, keys: Mapping[str, Any]) -> str:
    """Return a TOML table."""
    return "\n".join([f"[{name}]", *(f"{key} = {_value(value)}" for key, value in keys.items()), ""])


def _value(value: object) -> str:
    """Return a TOML value; lists and strings are written as JSON, which is valid TOML."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(name)} = {_value(part)}' for name, part in value.items())} }}"
    return json.dumps(value)
