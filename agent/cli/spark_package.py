"""The command `spark-package`: write the files that spark-submit needs to run checks on a cluster."""

from importlib.resources import files
from pathlib import Path

import click

from agent.cli.common import EPILOG, fail
from agent.config.requirements import find_pyspark_problem
from agent.model.exit_status import FAILED
from agent.model.text import count

_APPLICATION = "backflow-check.py"
_ENVIRONMENT = "backflow-env.tar.gz"


@click.command("spark-package", epilog=EPILOG)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where to write the files.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where each host of the cluster has Python, of the version that runs this. Default: where this host has it.",
)
def spark_package_command(out: Path, python: Path | None) -> None:
    """Write what spark-submit needs to run checks on hosts without Backflow.

    These are the application, and an archive of a Python environment with Backflow and all that it needs, as installed
    here. Each host needs Python itself.
    """
    if problem := find_pyspark_problem():
        fail(FAILED, problem)
    from agent.checks.environment import (  # noqa: PLC0415 - what it imports comes with backflow[spark]
        PYTHON,
        VERSION,
        PackingError,
        find_distributions,
        pack,
    )

    python, application, environment = python or PYTHON, out / _APPLICATION, out / _ENVIRONMENT
    try:
        distributions = find_distributions()
        out.mkdir(parents=True, exist_ok=True)
        pack(environment, distributions, python)
        application.write_bytes(files("spark_checks").joinpath("submitted.py").read_bytes())
    except (PackingError, OSError) as error:
        fail(FAILED, f"the files in {out} are not complete: {error}")
    size = environment.stat().st_size >> 20
    packages = count(len(distributions), "package")
    click.echo(f"{application}: the application for spark-submit")
    click.echo(f"{environment}: {packages}, {size:,} MiB, for hosts with Python {VERSION} at {python}")
