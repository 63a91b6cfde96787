"""Value types that configuration and rule options share: durations and name filters."""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_EVERYTHING = ["*"]

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


class NameFilter(ConfigModel):
    """Shell patterns (`*`, `?`, `[ab]`) that select names; a name needs a match in `include` and none in `exclude`."""

    include: list[str] = _EVERYTHING
    """Patterns of the names to include."""
    exclude: list[str] = []
    """Patterns of names to leave out."""

    def match(self, name: str) -> bool:
        """Return whether the name is selected."""
        if self.include == _EVERYTHING and not self.exclude:  # the default, asked for every commit
            return True
        return self.select([name])

    def select(self, names: Collection[str]) -> bool:
        """Return whether names of the same thing select it: some in `include`, none in `exclude`.

        Something without a name is selected unless `include` asks for one.
        """
        included = self.include == _EVERYTHING or any(map(partial(_is_in, self.include), names))
        return included and not any(map(partial(_is_in, self.exclude), names))

    def unmatched(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the patterns of `include` that match none of the names, each with the names most like it."""
        return {
            pattern: get_close_matches(pattern.strip("*?"), names, n=3, cutoff=0.5)
            for pattern in self.include
            if self.include != _EVERYTHING and not any(fnmatchcase(name, pattern) for name in names)
        }


def _is_in(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
