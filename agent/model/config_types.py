"""Value types that configuration and rule options share."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")

LONGEST_MS = 10_000 * 86_400_000
"""Upper limit of a duration, ms: longer ones lead out of the calendar."""


def duration(value: Any) -> int:
    """Return a duration such as "500ms", "10s", "5m", "24h" or "7d" in ms.

    Raises ValueError; a number without a unit is none.
    """
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        msg = f'expected a duration such as "500ms", "10s", "5m" or "7d", got {value!r}'
        raise ValueError(msg)
    milliseconds = int(float(match[1]) * _UNITS[match[2]])
    if milliseconds > LONGEST_MS:
        msg = f'expected at most "{duration_text(LONGEST_MS)}", got {value!r}'
        raise ValueError(msg)
    return milliseconds


def duration_text(value: int) -> str:
    """Return a duration in ms as it is written in rules.toml: 300000 is "5m"."""
    unit, size = next((unit, size) for unit, size in reversed(_UNITS.items()) if value % size == 0)
    return f"{value // size}{unit}"


Duration = Annotated[int, BeforeValidator(duration)]
"""A duration, ms."""

PositiveDuration = Annotated[Duration, Field(gt=0)]
"""A duration that is not zero, ms."""


def non_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a list that is not empty. Raises ValueError."""
    if not value:
        msg = "name at least one"
        raise ValueError(msg)
    return value


class ConfigModel(BaseModel):
    """A table of rules.toml: strict types, unknown keys refused, frozen once read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)
