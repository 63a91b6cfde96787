"""Client for the REST API of a JobManager: requests, response types, and what a failed request means.

The meaning of a failure is decided here and nowhere else:

- 404 (`NotFoundError`): the job ended after it was listed, makes no checkpoints, or this is another Flink version.
- Any other status but success, such as 503 or a redirect (`HttpStatusError`): usual in a failover and from standbys.
  For the listing, the other JobManagers are asked. For a job that is listed, see `is_tolerated`.
- No connection, no response before the deadline, or a body that Flink does not send (`RequestError`): the source is
  unavailable at once.

Response formats: the REST API of Flink 1.20 and 2.x; for 1.4 org.apache.flink.runtime.webmonitor.handlers
(/joboverview, /jobs/:jobid, /jobs/:jobid/checkpoints), which omits keys that later versions set to null.
"""

from http import HTTPStatus
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from agent.sources.http import Endpoint, HttpStatusError, RequestError

T = TypeVar("T")
JobId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
Time = Annotated[int, Meta(ge=-62_135_596_800_000, le=253_402_300_799_999)]
"""ms since the epoch, in the years 1 to 9999: no other can be shown."""

_FAILOVER_MS = 30_000
"""How long a JobManager may refuse requests about a job that it lists: it does so around each failover."""


class NotFoundError(HttpStatusError):
    """A response with HTTP status 404."""


class RestEndpoint(Endpoint):
    """One REST address of a Flink cluster."""

    def fetch(self, path: str, response_type: type[T], deadline: float) -> T:
        """Send GET and return the decoded response.

        deadline: of time.monotonic(). Raises RequestError, as the module says.
        """
        try:
            body = self.get(path, "application/json", deadline)
        except HttpStatusError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise NotFoundError(str(error), error.status) from error
            raise
        try:
            # 1.4 sends an empty body while it has no metrics: only this request makes it fetch them from TaskManagers.
            return msgspec.json.decode(body or b"[]", type=response_type)
        except (ValueError, RecursionError) as error:  # msgspec's errors, invalid UTF-8; deep nesting
            msg = f"unexpected response from Flink at {self.url}{path}: {error}"
            raise RequestError(msg) from error


def is_tolerated(refusal: HttpStatusError, refused_since: int, now: int) -> bool:
    """Return whether a refused request about a listed job is no reason to report the source as unavailable."""
    return isinstance(refusal, NotFoundError) or now - refused_since <= _FAILOVER_MS


class Tasks(Struct, frozen=True):
    """Numbers of a job's subtasks. initializing: those that restore their state, from Flink 1.13 on."""

    total: int = 0
    initializing: int = 0
    running: int = 0
    finished: int = 0


class Job(Struct, frozen=True, rename="kebab"):
    """A listed job. Times are ms since the epoch; end_time is -1 until the job has ended."""

    jid: JobId
    name: str
    state: str
    start_time: Time
    end_time: Time = -1
    tasks: Tasks = Tasks()


class JobsOverview(Struct, frozen=True):
    """Response to /jobs/overview, from Flink 1.5 on."""

    jobs: tuple[Job, ...]


class OldJobsOverview(Struct, frozen=True):
    """Response to /joboverview of Flink 1.4."""

    running: tuple[Job, ...]
    finished: tuple[Job, ...]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs, ended ones included."""
        return (*self.running, *self.finished)


class Vertex(Struct, frozen=True):
    """A task of a job: chained operators, which its name lists ("Source: kafka-source -> work")."""

    id: JobId
    name: str = ""


class JobDetails(Struct, frozen=True):
    """Response to /jobs/:jobid. timestamps: when the job last entered each state, 0 if it never did."""

    timestamps: dict[str, Time] = {}
    vertices: tuple[Vertex, ...] = ()


class Subtask(Struct, frozen=True):
    """One subtask of a vertex. endpoint (from 1.19 on) and host: its TaskManager, perhaps with a port."""

    subtask: int
    attempt: int = 0
    host: str | None = None
    endpoint: str | None = None

    @property
    def task_manager_host(self) -> str | None:
        """The TaskManager's host without a port; None while the subtask waits for a slot."""
        address = self.endpoint or self.host
        if address is None or address.startswith("("):  # "(unassigned)"
            return None
        host, colon, port = address.rpartition(":")
        return host if colon and port.isdigit() and (":" not in host or host.endswith("]")) else address


class VertexDetails(Struct, frozen=True):
    """Response to /jobs/:jobid/vertices/:vertexid."""

    subtasks: tuple[Subtask, ...] = ()


class Metric(Struct, frozen=True):
    """An element of /jobs/:jobid/vertices/:vertexid/metrics; only metrics requested by name have a value."""

    id: str
    value: str | None = None


class ConfigEntry(Struct, frozen=True):
    """An element of /jobmanager/config."""

    key: str
    value: str


class CheckpointCounts(Struct, frozen=True):
    """Numbers of checkpoints since the job was started on this JobManager."""

    completed: int
    failed: int
    restored: int = 0


class CompletedCheckpoint(Struct, frozen=True):
    """The latest completed checkpoint, or the latest savepoint."""

    id: int
    trigger_timestamp: Time | None = None
    external_path: str | None = None


class RestoredCheckpoint(Struct, frozen=True):
    """The checkpoint or savepoint that the job was last restored from."""

    id: int
    restore_timestamp: Time
    is_savepoint: bool = False
    external_path: str | None = None


class LatestCheckpoints(Struct, frozen=True):
    """The latest checkpoint of each kind."""

    completed: CompletedCheckpoint | None = None
    savepoint: CompletedCheckpoint | None = None
    restored: RestoredCheckpoint | None = None


class CheckpointStatistics(Struct, frozen=True):
    """Response to /jobs/:jobid/checkpoints; in 1.4 it is empty if the job makes none."""

    counts: CheckpointCounts | None = None
    latest: LatestCheckpoints | None = None
