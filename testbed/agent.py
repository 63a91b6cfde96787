"""The real agent as a process of its own, for demos and tests: the shipped rules, only addresses and places added."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent.cli import shipped
from testbed.processes import Process
from testbed.slack import Slack

_TOKEN_ENV = "BACKFLOW_TESTBED_SLACK_TOKEN"


class Agent(Process):
    """`backflow run` on a configuration of its own; killed with whoever started it."""

    def __init__(
        self,
        directory: Path,
        clusters: Mapping[str, Mapping[str, Any]],
        slack: Slack | None = None,
        tables: str = "",
    ) -> None:
        """directory: takes configuration, state and log. clusters: their tables. tables: TOML laid under the shipped
        rules.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "rules.toml"
        self.state = directory / "state"
        lines = [
            shipped().read_text(encoding="utf-8"),
            f"[agent]\nstate_directory = {json.dumps(str(self.state))}\n",
            tables,
        ]
        for name, table in clusters.items():
            lines.append(f"[clusters.{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        if slack is not None:
            lines.append(f'[slack]\nchannel = "alerts"\ntoken_env = "{_TOKEN_ENV}"\nbase_url = "{slack.url}"')
            os.environ[_TOKEN_ENV] = slack.token
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "agent", "run", "--config", str(self.config)]
        super().__init__("the agent", command, directory / "agent.log")

    def wait_until_watching(self) -> None:
        """Wait until it has said that it watches."""
        self.wait_for_line(r'"watching"|watching ')

    def incidents(self) -> list[dict[str, Any]]:
        """What `backflow incidents --json` prints."""
        command = [sys.executable, "-m", "agent", "incidents", "--json", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            msg = f"backflow incidents ended with {done.returncode}: {done.stderr}"
            raise RuntimeError(msg)
        return [msgspec.json.decode(line) for line in done.stdout.splitlines()]
