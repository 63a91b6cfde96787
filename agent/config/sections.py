"""[agent], [notifications] and [slack]: the process, when and where incidents go."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.config.credentials import (
    Credential,
    CredentialError,
    CredentialName,
    EnvironmentName,
    SecretFile,
    refuse_slack_secret,
    resolve,
)
from agent.config.silences import RecurringWindow, cron_text
from agent.model.config_types import ConfigModel, Duration, PositiveDuration, duration_text
from agent.model.findings import Incident
from agent.model.matchers import Matchers

_TOKEN = re.compile(r"[!-~]+")
_SHORTEST_INTERVAL_MS = 60_000
_APP_TOKEN = re.compile(r"xapp-[!-~]+")
_WEBHOOK = re.compile(r"https?://[!-~]+")


def _address(value: str) -> str:
    if not re.fullmatch(r"https?://\S+", value):
        msg = f'expected an address such as "https://slack.com/api/", got "{value}"'
        raise ValueError(msg)
    return value


def _interval(value: int) -> int:
    if value < _SHORTEST_INTERVAL_MS:
        msg = f'expected "1m" or more, got "{duration_text(value)}"'
        raise ValueError(msg)
    return value


def _state_directory() -> Path:
    """Return `$STATE_DIRECTORY`, else `"backflow-state"`."""
    return Path((os.environ.get("STATE_DIRECTORY") or "backflow-state").split(":")[0])


def _agent_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", value):
        msg = f'expected up to 100 letters, digits, ".", "_" and "-", got "{value}"'
        raise ValueError(msg)
    return value


def _host_name() -> str:
    """Return the host name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "agent"


class Agent(ConfigModel):
    """The daemon itself."""

    name: Annotated[str, AfterValidator(_agent_name)] = Field(default_factory=_host_name)
    """Name of this agent in an archive that several share: letters, digits, `.`, `_` and `-`."""

    state_directory: Path = Field(default_factory=_state_directory)
    """Directory of the journal, the incidents and the outbox. systemd sets `$STATE_DIRECTORY`."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """Format of the agent's own log; `"auto"` means colours on a terminal and JSON elsewhere."""


class QuietHours(RecurringWindow):
    """A window of time in which warnings wait; what is critical is posted.

    At its end a digest names all that was held back. What is still open is then posted as usual.
    """

    schedule: Annotated[str, AfterValidator(cron_text)]
    """When they begin: a cron expression with days of the week by name (`"0 20 * * mon-fri"`)."""
    lasts: PositiveDuration
    """How long they last."""


class Notifications(ConfigModel):
    """When receivers are notified."""

    quiet_hours: tuple[QuietHours, ...] = ()
    """When warnings wait."""

    repeat_interval: Annotated[Duration, AfterValidator(_interval)] | None = None
    """How often an open critical incident is announced again until it is acknowledged. Default: never."""

    def quiet_until(self, now: int) -> int | None:
        """Return the end of the quiet hours at `now`, both ms, or None if there are none."""
        around = (hours.window.around(now) for hours in self.quiet_hours if hours.window is not None)
        return max((window[1] for window in around if window is not None), default=None)


class Route(Matchers):
    """Incidents that go to another channel.

    A route takes an incident if an effect matches all the patterns that are given. The first route that takes it
    decides; an incident without a route goes to `channel` of `[slack]`.
    """

    channel: str = Field(min_length=1)
    """Id or name of the channel."""
    additional: bool = False
    """Whether the incident goes to this channel in addition to the one that the other routes choose.

    No other route may choose the channel, or one incident would have two messages there.
    """


class Slack(ConfigModel):
    """Delivery of incidents to Slack. Without this table and `[receivers.NAME]` they are printed to the console.

    Exactly one of `token_file`, `token_env`, `token_credential`, `webhook_file`, `webhook_env` and
    `webhook_credential` is required. With a bot token (`xoxb-...`) messages are edited as the incident changes; an
    incoming webhook sends plain messages that are never edited.
    """

    channel: Annotated[str, Field(min_length=1), AfterValidator(refuse_slack_secret)] | None = None
    """Id or name of the channel. Required with a bot token."""
    token_file: SecretFile | None = None
    """File that holds the bot token."""
    token_env: EnvironmentName | None = None
    """Environment variable that holds the bot token."""
    token_credential: CredentialName | None = None
    """systemd credential that holds the bot token."""
    webhook_file: SecretFile | None = None
    """File that holds the address of an incoming webhook."""
    webhook_env: EnvironmentName | None = None
    """Environment variable that holds the address of an incoming webhook."""
    webhook_credential: CredentialName | None = None
    """systemd credential that holds the address of an incoming webhook."""
    app_token: Credential | None = None
    """App-level token (`xapp-...`) with the scope connections:write, for buttons in messages. Default: no buttons."""
    base_url: Annotated[str, AfterValidator(_address)] = "https://slack.com/api/"
    """Address of Slack's Web API."""
    proxy: Annotated[str, AfterValidator(_address)] | None = None
    """Address of an HTTP proxy for Slack. Default: that of the environment (`https_proxy`)."""
    ca: Path | None = None
    """PEM file with the certificates of trusted authorities, such as a proxy's. Default: those of the system."""
    routes: tuple[Route, ...] = ()
    """Channels for some of the incidents."""

    @model_validator(mode="after")
    def _require_one_secret(self) -> Self:
        names = self._secret_names
        if len(names) != 1:
            msg = (
                "exactly one of token_file, token_env, token_credential, webhook_file, webhook_env, webhook_credential "
                f"is required; given: {' and '.join(names) or 'none'}"
            )
            raise ValueError(msg)
        if names[0].startswith("token") and self.channel is None:
            msg = "`channel` is required with a token"
            raise ValueError(msg)
        if names[0].startswith("webhook") and (self.channel is not None or self.routes):
            msg = "an incoming webhook posts to its own channel; `channel` and `routes` need a bot's token"
            raise ValueError(msg)
        if names[0].startswith("webhook") and self.app_token is not None:
            msg = "an incoming webhook has no buttons; `app_token` needs a bot's token"
            raise ValueError(msg)
        if twice := set(self.chosen_channels).intersection(self.additional_channels):
            msg = f"`routes` with `additional`: {min(twice)} is chosen by `channel` or another route too"
            raise ValueError(msg)
        return self

    @property
    def _secret_names(self) -> list[str]:
        names = [f"{secret}_{source}" for secret in ("token", "webhook") for source in Credential.model_fields]
        return [name for name in names if getattr(self, name) is not None]

    @property
    def secret_key(self) -> str:
        """The key that names the source of the secret."""
        return self._secret_names[0]

    @property
    def secret(self) -> Credential:
        """The source of the token or of the webhook's address."""
        return Credential(**{self.secret_key.partition("_")[2]: getattr(self, self.secret_key)})

    @property
    def is_webhook(self) -> bool:
        """Whether the secret is the address of an incoming webhook, not a bot token."""
        return self.secret_key.startswith("webhook")

    def read_secret(self, environment: Mapping[str, str] = os.environ) -> SecretStr:
        """Return the token or the webhook's address. Raises CredentialError, also if it cannot be one."""
        pattern, expected = (_WEBHOOK, "the address of an incoming webhook") if self.is_webhook else (_TOKEN, "a token")
        return _read(self.secret, environment, pattern, expected)

    def read_app_token(self, environment: Mapping[str, str] = os.environ) -> SecretStr | None:
        """Return the app-level token, None if none is configured. Raises CredentialError, also if it cannot be one."""
        if self.app_token is None:
            return None
        return _read(self.app_token, environment, _APP_TOKEN, "an app-level token (xapp-...)")

    def channel_for(self, incident: Incident) -> str | None:
        """Return the channel of the first route that takes the incident, else the default; None for a webhook."""
        chosen = (route.channel for route in self.routes if not route.additional and route.match_any(incident))
        return next(chosen, self.channel)

    @property
    def chosen_channels(self) -> list[str]:
        """The channels that `channel_for` may return."""
        routes = (route.channel for route in self.routes if not route.additional)
        return [channel for channel in dict.fromkeys((self.channel, *routes)) if channel is not None]

    @property
    def additional_channels(self) -> list[str]:
        """The channels that get incidents in addition."""
        return list(dict.fromkeys(route.channel for route in self.routes if route.additional))

    def is_copied(self, incident: Incident, channel: str) -> bool:
        """Return whether the incident goes to this channel in addition to the one that is chosen for it."""
        routes = (route for route in self.routes if route.additional and route.channel == channel)
        return any(route.match_any(incident) for route in routes)


def _read(source: Credential, environment: Mapping[str, str], pattern: re.Pattern[str], expected: str) -> SecretStr:
    """Return a secret that must match as a whole. Raises CredentialError, which says what is expected instead."""
    secret = resolve(source, environment)
    if not pattern.fullmatch(secret.get_secret_value()):
        place = next(f"{name} {value}" for name, value in source.model_dump(exclude_none=True).items())
        msg = f"{place} must hold {expected} and nothing else, in one line"
        raise CredentialError(msg)
    return secret
