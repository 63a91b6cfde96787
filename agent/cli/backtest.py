"""The command `backtest`: run the rules over a recording whose truth is known, and compare."""

import sys
from pathlib import Path

import click

from agent.cli.common import EPILOG, config_option, fail, load_or_exit
from agent.cli.replay import RecordingError, read
from agent.config.credentials import CredentialError
from agent.engine.engine import Engine
from agent.engine.recorded import batches
from agent.model.exit_status import FOUND, WRONG
from agent.storage.journal.failures import ArchiveError


@click.command("backtest", epilog=EPILOG)
@click.argument("journal")
@click.option(
    "--truth",
    type=click.Path(path_type=Path),
    required=True,
    help="What happened, as `python -m testbed.model` writes it.",
)
@config_option
def backtest_command(journal: str, truth: Path, config: Path | None) -> None:
    """Run the rules over recorded observations and compare the incidents with what happened.

    JOURNAL is a journal directory (STATE_DIRECTORY/journal), the URL of an archive, or a file of JSON lines. Exits with
    1 if anything was missed, false or wrong.
    """
    from testbed.model import backtest, evidence, score  # noqa: PLC0415 - only this command needs the testbed
    from testbed.model.truth import from_json  # noqa: PLC0415

    settings = load_or_exit(config, need_clusters=False)
    try:
        known = from_json(truth.read_bytes())
        recorded = list(map(list, batches(read(journal, settings.journal))))
    except (RecordingError, CredentialError, ArchiveError) as error:
        fail(WRONG, str(error))
    except ValueError as error:
        fail(WRONG, f"{truth}: is not a truth: {error}")
    except OSError as error:
        fail(WRONG, f"{error.filename or journal}: cannot be read: {error.strerror or error}")
    outcome = score.run(Engine(settings.rules, settings.correlations, settings.incidents), recorded)
    result = score.Scorer(known, evidence.Evidence(known, recorded), outcome).score()
    click.echo("\n".join(backtest.report([result])))
    sys.exit(FOUND if result.shortfalls else 0)
