"""Responses recorded from real Flink clusters (tests/sources/samples)."""

import json
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agent.sources.flink.rest import Job, JobsOverview, OldJobsOverview

T = TypeVar("T")

VERTEX = "e5a72f353fc1e6bbf3bd96a41384998c"


class RecordedResponses:
    """Responses of one version after a failover: the first job was restored and runs, the second was cancelled."""

    def __init__(self, version: str) -> None:
        text = (Path(__file__).parents[1] / "samples" / f"flink-{version}.json").read_text()
        self._responses: dict[str, Any] = json.loads(text)
        self.is_1_4 = "/joboverview" in self._responses
        overview_type: type[JobsOverview | OldJobsOverview] = OldJobsOverview if self.is_1_4 else JobsOverview
        self.jobs: dict[str, Job] = {job.name: job for job in self.decode("overview", overview_type).jobs}

    def decode(self, path_end: str, response_type: type[T]) -> T:
        """Return the response whose path ends so."""
        (response,) = (response for path, response in self._responses.items() if path.endswith(path_end))
        return msgspec.convert(response, response_type)
