"""Filters of names by shell patterns: of groups, topics, jobs, clusters."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial

from agent.model.config_types import ConfigModel

_EVERYTHING = ["*"]


class NameFilter(ConfigModel):
    """Shell patterns (`*`, `?`, `[ab]`) that select names; a name needs a match in `include` and none in `exclude`."""

    include: list[str] = _EVERYTHING
    """Patterns of the names to include."""
    exclude: list[str] = []  # noqa: RUF012 - pydantic copies it
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
        included = "include" not in self.model_fields_set or any(map(partial(_is_in, self.include), names))
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
