"""Facts read from log files."""

from msgspec import field

from agent.model.observations.base import Observation


class LogLine(Observation, frozen=True, kw_only=True, tag="log_line", gc=False):
    """A line of a log that matched a pattern; `at` is the line's own time, in the configured time zone.

    cluster: the cluster that the log is about. log: path of the file. component: what wrote the line (kafka, zookeeper,
    consumer, librdkafka, streams, flink). pattern: name of a shipped pattern, or the regex of a `log_pattern` rule.
    topic, partition, broker, job: what the line names; null if it does not. host: where the file is, as configured;
    null if unknown. values: the pattern's named groups. text: the line, cut to 500 characters.
    """

    key = ("cluster", "log", "pattern", "topic", "partition", "broker", "job")
    is_event = True
    history_floor = 0

    cluster: str
    log: str
    component: str
    pattern: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None
    job: str | None = None
    host: str | None = None
    values: dict[str, str] = field(default_factory=dict)
    text: str


def whole_number(value: str | None) -> int | None:
    """Return a line's value as a whole number, or None if it is missing or something else."""
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 20 else None


class LogFile(Observation, frozen=True, kw_only=True, tag="log_file", gc=False):
    """How far a log file has been read, which is where reading resumes after a restart.

    cluster: the cluster that the log is about. log: path of the file. inode: of the file under that path. read: bytes
    read. head: digest of the file's first bytes, because inodes are reused. head_bytes: how many bytes the digest
    covers.
    """

    key = ("cluster", "log")

    cluster: str
    log: str
    inode: int
    read: int
    head: str = ""
    head_bytes: int = 0
