"""The command `demo`: break a real cluster on this machine and show what Backflow reports."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import click

from agent.cli.common import EPILOG, fail
from agent.config.requirements import find_spark_problem
from agent.model.exit_status import FAILED, WRONG


class _DemoCommand(click.Command):
    """A command whose help lists the scenarios."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from testbed.demos import SCENARIOS  # noqa: PLC0415 - the testbed takes a second to load

        with formatter.section("Scenarios"):
            formatter.write_dl([(name, _summary(run)) for name, run in SCENARIOS.items()])
        super().format_epilog(ctx, formatter)


def _summary(scenario: Callable[..., int]) -> str:
    """Return the first paragraph of the docstring of the scenario's module, without its name."""
    first = (inspect.getdoc(inspect.getmodule(scenario)) or "").partition("\n\n")[0]
    return " ".join(first.partition(": ")[2].split())


@click.command("demo", cls=_DemoCommand, epilog=EPILOG)
@click.argument("scenario", default="reset", required=False)
@click.option("--seed", type=int, help="Repeat the partition and brokers of an earlier run.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("build/demo"),
    show_default=True,
    help="Where the files of the run are kept.",
)
def demo_command(scenario: str, seed: int | None, directory: Path) -> None:
    """Break a real cluster on this machine and show what Backflow reports. The default SCENARIO is reset."""
    from testbed import demos  # noqa: PLC0415 - the testbed takes a second to load
    from testbed.processes import ProcessEndedError  # noqa: PLC0415

    if scenario not in demos.SCENARIOS:
        fail(WRONG, f"no scenario {scenario!r}; there are: {', '.join(demos.SCENARIOS)}")
    if problem := find_spark_problem(remote=None):
        fail(FAILED, problem)
    try:
        status = demos.SCENARIOS[scenario](directory, seed)
    except (TimeoutError, ProcessEndedError) as error:
        fail(FAILED, f"the demo has failed, perhaps because this machine is busy: {error}\nIts logs: {directory}")
    sys.exit(status)
