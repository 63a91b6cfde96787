"""The period that a review covers, and the equally long periods before it: its weeks."""

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as sf

from agent.model.text import day_of
from agent.model.times import minute

DAY_MS = 86_400_000
STEP_MS = 900_000
"""Lag is sampled once in such a step: longer than a heartbeat, so that each step has the state of each subject."""


class Periods(NamedTuple):
    """Week 0 is [since, until), ms; week n is n times its length earlier. before: how many weeks precede week 0."""

    since: int
    until: int
    before: int

    @property
    def length(self) -> int:
        """How long a week is, ms."""
        return self.until - self.since

    @property
    def first(self) -> int:
        """When the earliest week begins, ms."""
        return self.since - self.before * self.length

    def bounds(self, week: int) -> tuple[int, int]:
        """Return begin and end of a week, ms."""
        return self.since - week * self.length, self.until - week * self.length

    def week_of(self, at: int) -> int | None:
        """Return the week of a time (ms), or None if it is in none of them."""
        return (self.until - 1 - at) // self.length if self.first <= at < self.until else None

    def week_column(self, at: Column) -> Column:
        """Return the column of the week of a time, ms."""
        return sf.floor((sf.lit(self.until - 1) - at) / sf.lit(self.length)).cast("int")

    def step_column(self, at: Column) -> Column:
        """Return the column of the step within the week, from 0."""
        within = self.length - 1 - (sf.lit(self.until - 1) - at) % sf.lit(self.length)
        return sf.floor(within / sf.lit(STEP_MS)).cast("int")

    def time_of_step(self, week: int, step: int) -> int:
        """Return when a step ends, ms."""
        begin, end = self.bounds(week)
        return min(begin + (step + 1) * STEP_MS, end)

    def __str__(self) -> str:
        if self.since % DAY_MS == self.until % DAY_MS == 0:
            return f"{day_of(self.since)} to {day_of(self.until - 1)}"
        return f"{minute(self.since)} to {minute(self.until)}"
