"""The commands `ack` and `close`: what an operator decides about an incident."""

from pathlib import Path

import click

from agent.cli.common import EPILOG, config_option, fail, load_for_state
from agent.cli.stored import author_option, find_incident, open_store
from agent.clock import now_ms
from agent.model.exit_status import WRONG
from agent.model.text import visible
from agent.storage import operators


@click.command("ack", epilog=EPILOG)
@config_option
@click.argument("incident_id", metavar="ID")
@click.option("--comment", default="", help="What the others should know.")
@author_option
def ack_command(config: Path | None, incident_id: str, comment: str, author: str) -> None:
    """Acknowledge an incident: its message and the list of incidents show who looks after it.

    The beginning of an id is enough, with or without INC-. A running agent edits the message within seconds, one that
    does not run when it starts.
    """
    with open_store(load_for_state(config)) as store:
        incident = find_incident(store, incident_id)
        try:
            operators.acknowledge(store, incident, by=author, now=now_ms(), comment=comment)
        except operators.UndecidableError as error:
            fail(WRONG, str(error))
    click.echo(visible(f"{incident.id} acknowledged by {author}: {incident.title}"))


@click.command("close", epilog=EPILOG)
@config_option
@click.argument("incident_id", metavar="ID")
@click.option("--reason", required=True, help="Why it is over, or needs nothing.")
@author_option
def close_command(config: Path | None, incident_id: str, reason: str, author: str) -> None:
    """Close an incident. It reopens only with a new finding, or if a finding becomes more severe.

    The beginning of an id is enough, with or without INC-. A running agent edits the message within seconds, one that
    does not run when it starts.
    """
    if not reason.strip():
        fail(WRONG, "give a reason: it is shown in the message")
    with open_store(load_for_state(config)) as store:
        incident = find_incident(store, incident_id)
        try:
            operators.close(store, incident, by=author, now=now_ms(), reason=reason)
        except operators.UndecidableError as error:
            fail(WRONG, str(error))
    click.echo(visible(f"{incident.id} closed by {author}: {incident.title}"))
