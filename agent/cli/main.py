"""The command `backflow`, assembled from its subcommands."""

import sys
from io import TextIOWrapper
from typing import Any

import click
import structlog

from agent.cli.alert import test_alert_command
from agent.cli.backtest import backtest_command
from agent.cli.backup import backup_command
from agent.cli.check_config import check_config_command
from agent.cli.checks import check_command, digest_command
from agent.cli.common import EPILOG
from agent.cli.demo import demo_command
from agent.cli.doctor import doctor_command
from agent.cli.handling import ack_command, close_command
from agent.cli.incidents import incidents_command
from agent.cli.init import init_command
from agent.cli.replay import replay_command
from agent.cli.rule_tests import test_rules_command
from agent.cli.run import run_command
from agent.cli.schema import schema_command
from agent.cli.silence import silence_command
from agent.cli.spark_package import spark_package_command
from agent.cli.status import groups_command, status_command


class _Command(click.Group):
    """The whole command: what it prints can be read by people and by programs, whatever is in it."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # names and arrows on a terminal that is not UTF-8
        structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))  # `run` replaces it
        return super().main(*args, **kwargs)


@click.group(
    cls=_Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EPILOG
)
@click.version_option(package_name="backflow")
def main() -> None:
    """Detect data streams that move backwards, and find out why.

    Backflow monitors Kafka, ZooKeeper, Flink and Kafka Streams. It detects committed offsets, logs and state that move
    backwards, joins each effect with its cause in one incident, and posts the incident to Slack or prints it.
    """


for command in (
    init_command,
    run_command,
    check_config_command,
    doctor_command,
    schema_command,
    test_alert_command,
    test_rules_command,
    replay_command,
    backtest_command,
    status_command,
    groups_command,
    incidents_command,
    silence_command,
    ack_command,
    close_command,
    backup_command,
    check_command,
    digest_command,
    spark_package_command,
    demo_command,
):
    main.add_command(command)
