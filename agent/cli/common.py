"""What the subcommands of `backflow` share: exit statuses, which are its checks' too, the configuration, how they give
up.
"""

import sys
from pathlib import Path
from typing import NoReturn

import click

from agent.config.problems import SettingsError
from agent.config.settings import Settings, load, shipped

CLEAN, FOUND, WRONG, FAILED = 0, 1, 2, 3
"""Exit statuses: nothing to report, something was found, wrong use or configuration, the work failed."""

EPILOG = "Exit status: 0 nothing to report, 1 something was found, 2 wrong use or configuration, 3 failed."

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration. Default: ./rules.toml if there is one, else the rules as shipped.",
)


def chosen(config: Path | None) -> Path:
    """The configuration that is read."""
    if config is not None:
        return config
    return Path("rules.toml") if Path("rules.toml").exists() else shipped()


def settings_of(config: Path | None, *, need_clusters: bool) -> Settings:
    """The settings that it holds; gives up where it has mistakes."""
    try:
        return load(chosen(config), need_clusters=need_clusters)
    except SettingsError as error:
        fail(WRONG, str(error))


def fail(status: int, message: str) -> NoReturn:
    """Give up with a sentence."""
    click.echo(message, err=True)
    sys.exit(status)
