"""The command `test-alert`: send a marked incident through every receiver and to every channel, and clear it."""

import secrets
import socket
import sys
from pathlib import Path

import click
from msgspec.structs import replace

from agent.cli.common import EPILOG, config_option, config_path, fail, load_or_exit
from agent.clock import now_ms
from agent.config.credentials import CredentialError
from agent.config.warnings import secret_problems
from agent.model.exit_status import CLEAN, FAILED, WRONG
from agent.model.findings import Incident, Severity, Status
from agent.notify.base import Message, NotDelivered, Receiver
from agent.render.report import report


@click.command("test-alert", epilog=EPILOG)
@config_option
def test_alert_command(config: Path | None) -> None:
    """Send a marked incident through every receiver, to each channel that a route names, and clear it at once.

    It needs no running agent, and leaves nothing in its state.
    """
    settings = load_or_exit(config, need_clusters=False)
    from agent.daemon.wiring import make_test_receivers  # noqa: PLC0415 - the clients take a second to load

    try:
        receivers = make_test_receivers(settings, sys.stdout)
    except CredentialError as error:
        problems = [problem for problem, _ in secret_problems(settings, config_path(config))]
        own = [str(problem) for problem in problems if problem.where.startswith(("[slack]", "[receivers."))]
        fail(WRONG, "\n".join(own) or str(error))
    failed = False
    for receiver in receivers:
        incident = _incident()
        channel = receiver.channel(Message(incident, report(incident)), None)
        where = receiver.name if channel == receiver.name else f"{receiver.name} {channel}"
        try:
            _send_and_clear(receiver, incident)
        except NotDelivered as error:
            failed = True
            click.echo(f"{where}: not delivered: {error}", err=True)
        else:
            click.echo(f"{where}: delivered {incident.id} and cleared it")
    if settings.is_console_only:
        click.echo(
            "No one is notified: incidents are printed to the console until [slack] or [receivers.NAME] is configured"
        )
    sys.exit(FAILED if failed else CLEAN)


def _incident() -> Incident:
    now = now_ms()
    return Incident(
        id=f"INC-TEST{secrets.token_hex(2).upper()}",
        status=Status.OPEN,
        severity=Severity.CRITICAL,
        title="test alert: nothing is wrong",
        cluster=None,
        opened_at=now,
        updated_at=now,
    )


def _send_and_clear(receiver: Receiver, incident: Incident) -> None:
    """Post the incident, reply in its thread, and edit it as recovered. Raises NotDelivered."""
    sent = f"Sent by `backflow test-alert` on {socket.gethostname()}. No action is needed."
    opened = replace(report(incident), paragraph=sent)
    handle = receiver.deliver(Message(incident, opened), None)
    receiver.deliver(Message(incident, opened, number=1, lines=("the thread of the test alert",)), handle)
    recovered = replace(incident, status=Status.RECOVERED, recovered_at=incident.opened_at)
    message = Message(recovered, replace(report(recovered), state="RECOVERED", paragraph=sent))
    receiver.deliver(message, handle)
