"""The table of rules.toml about log files: its keys, defaults and what they mean."""

import codecs
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field

from agent.model.config_types import ConfigModel, PositiveDuration, non_empty


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError) as error:  # not known, a directory of zones, no path within them
        msg = f'"{value}" is no time zone; expected an IANA name such as "UTC" or "Europe/Berlin"'
        raise ValueError(msg) from error
    return value


def _encoding(value: str) -> str:
    try:
        "\n".encode(value)
    except (LookupError, UnicodeError) as error:
        msg = f'"{value}" is no text encoding; expected one such as "utf-8", "latin-1" or "utf-16"'
        raise ValueError(msg) from error
    return codecs.lookup(value).name.removesuffix("-sig")  # a byte order mark stands once, at a file's beginning


class Logs(ConfigModel):
    """[logs.NAME]: log files to follow, all written in the same way."""

    paths: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AfterValidator(non_empty)]
    """Shell patterns. A rotated file (server.log.1) belongs to the one it was, and need not be named."""
    component: Literal["kafka", "zookeeper", "consumer", "librdkafka", "streams", "flink"] | None = None
    """What writes them; None: each line tells."""
    cluster: str | None = None
    """The [clusters.NAME] whose topics and brokers the lines name."""
    flink: str | None = None
    """The [flink.NAME] whose jobs they name."""
    host: str | None = None
    """Where they were written."""
    time_zone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    """Of times that name no zone: an IANA name."""
    encoding: Annotated[str, AfterValidator(_encoding)] = "utf-8"
    poll_interval: PositiveDuration = 1_000
