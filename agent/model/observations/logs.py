"""Facts read in log files."""

from msgspec import field

from agent.model.observations.base import Observation


class LogLine(Observation, frozen=True, kw_only=True, tag="log_line", gc=False):
    """A line of a log that matched a pattern. at: the line's own time, in the time zone configured.

    log: the file's path. component: what wrote it (kafka, zookeeper, consumer, librdkafka, streams, flink).
    pattern: the name of a pattern shipped, or the regex of a `log_pattern` rule. values: its named groups.
    topic, partition, broker, job: what the line names, None where it does not. text: the line, cut to 500 characters.
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
    """A line's value as a whole number; None where there is none, or something else."""
    return int(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 20 else None


class LogFile(Observation, frozen=True, kw_only=True, tag="log_file", gc=False):
    """How far a log file has been read: up to the byte `read`. It is where reading goes on after a restart.

    inode: which file stood under the path. head: a digest of its first bytes, since inodes are used again; of as many
    as `head_bytes`.
    """

    key = ("cluster", "log")

    cluster: str
    log: str
    inode: int
    read: int
    head: str = ""
    head_bytes: int = 0
