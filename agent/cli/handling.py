"""The commands `ack` and `close`: what an operator decides about an incident."""

from pathlib import Path

import click

from agent.cli.common import EPILOG, WRONG, config_option, fail, load_or_exit
from agent.cli.stored import author_option, find_incident, open_store
from agent.model.findings import Acknowledgement, Closure, Incident, Status, closed_findings
from agent.notify.dispatcher import now_ms


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
    with open_store(load_or_exit(config, need_clusters=False)) as store:
        incident = _open_incident(find_incident(store, incident_id))
        taken = Acknowledgement(at=now_ms(), by=author, comment=comment, severity=incident.severity)
        store.decisions.acknowledge(incident, taken)
    click.echo(f"{incident.id} acknowledged by {author}: {incident.title}")


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
    with open_store(load_or_exit(config, need_clusters=False)) as store:
        incident = _open_incident(find_incident(store, incident_id))
        closure = Closure(at=now_ms(), by=author, reason=reason, findings=closed_findings(incident))
        store.decisions.close(incident, closure)
    click.echo(f"{incident.id} closed by {author}: {incident.title}")


def _open_incident(incident: Incident) -> Incident:
    """Return the incident; exit if there is nothing left to decide about it."""
    if incident.merged_into is not None:
        fail(WRONG, f"{incident.id} was merged into {incident.merged_into}: name that")
    if incident.status is Status.CLOSED:
        by = f" by {incident.closed.by}: {incident.closed.reason}" if incident.closed else ""
        fail(WRONG, f"{incident.id} is closed{by}")
    return incident
