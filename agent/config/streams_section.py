"""The table [streams.NAME] of rules.toml as a type: its keys, defaults and what they mean."""

from typing import Annotated

from pydantic import AfterValidator, Field

from agent.config.http_address import http_address
from agent.model.config_types import ConfigModel, PositiveDuration


def _metrics_address(value: str) -> str:
    expected = 'the address of an instance\'s metrics such as "http://app-1:9404/metrics"'
    return http_address(value, expected, query=True)


class Streams(ConfigModel):
    """[streams.NAME]: a Kafka Streams application that cannot be found by itself, or whose metrics are to be read."""

    cluster: str | None = None
    """The [clusters.NAME] that it runs on; None: the only one there is."""
    application: Annotated[str, Field(min_length=1)] | None = None
    """Its application.id; None: the table's name."""
    metrics: tuple[Annotated[str, AfterValidator(_metrics_address)], ...] = ()
    """Where its instances give their metrics (3.5 or later) in Prometheus format, one address each."""
    metrics_interval: PositiveDuration = 10_000
    """How often they are read."""
    timeout: PositiveDuration = 5_000
    """How long a poll waits for answers."""
