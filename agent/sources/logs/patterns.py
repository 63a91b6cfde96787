"""The shipped patterns: log lines worth a LogLine, as the named versions write them.

The texts come from the projects' sources; tests/sources/logs/samples holds lines that real versions wrote. A topic's
name may contain a dash: the topic is what precedes the last one. Rows with the same name are the same event, worded
differently by other versions.
"""

from typing import Any, NamedTuple

from agent.model.log_text import compile_pattern

_COMPONENTS = {
    "org.apache.kafka.streams": "streams",
    "stream-thread [": "streams",
    "org.apache.kafka.clients.consumer": "consumer",
    "[Consumer client": "consumer",
    "org.apache.flink": "flink",
    "org.apache.zookeeper.server": "zookeeper",
    "|rdkafka#": "librdkafka",
    "kafka.": "kafka",
}
"""Text in a line -> the component that wrote it; the first match counts."""


def find_component(line: str) -> str:
    """Return the component that wrote the line, or "" if the line does not show it."""
    return next((component for text, component in _COMPONENTS.items() if text in line), "")


class Pattern(NamedTuple):
    """A line to find.

    name: becomes LogLine.pattern; for users' patterns, the log_pattern rule's regex. component: what writes the line;
    None: detected from the line. versions: that write it. The groups `topic`, `partition`, `broker` and `job` become
    fields of the LogLine, all groups become its values. regex: compiled by RE2.
    """

    name: str
    component: str | None
    regex: Any
    versions: str = ""

    @property
    def is_about_flink(self) -> bool:
        """Whether it is about a Flink cluster rather than Kafka's topics and brokers."""
        groups = self.regex.groupindex.keys()
        return "job" in groups or (self.component == "flink" and not groups & {"topic", "broker"})


_PLACE = r"(?P<topic>[^\s,/\[\]]+)-(?P<partition>\d+)"
_IDS = r"[\d,]*"
_JOB = r"(?P<job>[0-9a-f]{32})"
_SESSION = r"(?P<session>0x[0-9a-f]+)"
_GROUP = (
    r"(?:groupId=(?:null|(?P<group>[^\]\s]*))\] )?"  # the prefix "[Consumer clientId=.., groupId=..] " came with 1.0
)
_LOG = rf"\[\w*Log\w* partition={_PLACE}, dir=[^\]]+\] "  # Log, MergedLog, UnifiedLog, LogLoader

_AT = r"FetchPosition\{offset="
_CACHED = r"Cached zkVersion \[?(?P<version>\d+)\]? not equal to that in zookeeper, skip updating ISR"
_PARTITION_OLD = r"Partition \[(?P<topic>[^\s,\]]+),(?P<partition>\d+)\] on broker (?P<broker>\d+): "
_PARTITION_NEW = rf"\[Partition {_PLACE} broker=(?P<broker>\d+)\] "
_GRANTED = "was granted leadership with "

_CONSUMER: dict[tuple[str, str], str] = {
    ("fetch_offset_out_of_range", "0.10-2.5"): (
        rf"{_GROUP}Fetch offset (?P<offset>\d+) is out of range for partition {_PLACE}, resetting offset"
    ),
    ("fetch_offset_out_of_range", "2.6+"): (
        rf"{_GROUP}Fetch position {_AT}(?P<offset>\d+), .*\}} is out of range for partition {_PLACE}, resetting offset"
    ),
    ("offset_reset", "1.1-2.6 (DEBUG before)"): (
        rf"{_GROUP}Resetting offset for partition {_PLACE} to offset (?P<to>\d+)\."
    ),
    ("offset_reset", "2.7+"): rf"{_GROUP}Resetting offset for partition {_PLACE} to position {_AT}(?P<to>\d+)",
    ("truncation_detected", "2.3.1+"): (
        rf"{_GROUP}Truncation detected for partition {_PLACE} at offset {_AT}(?P<offset>\d+)"
        rf"(?:.* known to diverge {_AT}(?P<to>\d+))?"
    ),
}

_LIBRDKAFKA = {
    ("offset_reset", "2.x"): (
        r"(?:^|\s)(?P<topic>[^\s\[\]]+) \[(?P<partition>\d+)\]: offset reset \(at offset (?P<offset>\S+) "
        r"\(leader epoch -?\d+\), broker (?P<broker>-?\d+)\) to (?:offset )?(?P<to>\S+)"
    ),
}

_ZOOKEEPER = {
    # ClientCnxn warns so; 3.4 repeats it with ", closing socket connection", 3.8 as the message of an exception.
    ("session_expired", "client 3.4-3.9"): (
        rf"[^:\s]\s+Unable to reconnect to ZooKeeper service, session {_SESSION} has expired(?:\s|$)"
    ),
    ("session_established", "client 3.4-3.9"): (
        rf"Session establishment complete on server (?P<server>[^\s,]+), session ?id = {_SESSION}"
    ),
    ("session_expiring", "server 3.4-3.9"): rf"Expiring session {_SESSION}, timeout of (?P<timeout>\d+)ms exceeded",
}

_KAFKA = {
    ("zookeeper_state", "0.8-1.0"): r"zookeeper state changed \((?P<state>\w+)\)",
    ("zookeeper_client_expired", "1.1-3.9"): r"\[ZooKeeperClient(?: (?P<client>[^\]]+))?\] Session expired\.",
    ("broker_reregistering", "0.8-1.0"): r"re-registering broker info in ZK for broker (?P<broker>\d+)",
    ("broker_registered", "0.8-3.9"): (
        r"Registered broker (?P<broker>\d+) at path \S+(?:.*, czxid \(broker epoch\): (?P<epoch>\d+))?"
    ),
    ("isr_not_updated", "0.8-0.11"): rf"{_PARTITION_OLD}{_CACHED}",
    ("isr_not_updated", "1.0-2.7"): rf"{_PARTITION_NEW}{_CACHED}",
    ("isr_shrunk", "0.8-0.11"): (
        rf"{_PARTITION_OLD}Shrinking ISR (?:for partition \S+ )?from (?P<from>{_IDS}) to (?P<to>{_IDS})"
    ),
    ("isr_shrunk", "1.0+"): rf"{_PARTITION_NEW}Shrinking ISR from (?P<from>{_IDS}) to (?P<to>{_IDS})",
    ("brokers_changed", "0.8-3.9 (bounced from 2.4.1)"): (
        rf"Newly added brokers: (?P<added>{_IDS}), deleted brokers: (?P<deleted>{_IDS}), "
        rf"(?:bounced brokers: (?P<bounced>{_IDS}), )?all live brokers: (?P<live>{_IDS})"
    ),
    ("offset_not_appended", "0.8+"): (
        r"Attempt to append an offset \(?(?P<offset>\d+)\)? to (?:position|slot) (?P<slot>\d+) no larger than the "
        rf"last offset appended \((?P<last>\d+)\) to (?P<file>\S*/{_PLACE}/[\w.]*\w)"
    ),
    ("segment_recovered", "0.8-1.0"): rf"Recovering unflushed segment (?P<segment>\d+) in log {_PLACE}\.",
    ("segment_recovered", "1.1+"): rf"{_LOG}Recovering unflushed segment (?P<segment>\d+)",
    ("log_truncated", "0.8-1.0"): rf"Truncating log {_PLACE} to offset (?P<offset>\d+)\.",
    ("log_truncated", "1.1+"): rf"{_LOG}Truncating to offset (?P<offset>\d+)",
}

_STREAMS = {
    ("streams_state", "0.10+"): (r"(?:\[(?P<client>[^\]\s]+)\] )?State transition from (?P<from>\w+) to (?P<to>\w+)"),
    ("store_without_checkpoint", "1.1-2.5"): (
        r"No checkpoint found for task (?P<task>\d+_\d+) state store (?P<store>\S+)"
        rf"(?: changelog {_PLACE})? with EOS turned on"
    ),
    ("store_without_checkpoint", "1.1-2.5, at least once"): (
        r"Restoring task (?P<task>\d+_\d+)'s state store (?P<store>\S+) from beginning of the changelog "
        rf"{_PLACE}\b"
    ),
    ("store_without_checkpoint", "2.6+"): (
        r"State store (?P<store>\S+) did not find checkpoint offset, hence would default to the starting offset at "
        rf"changelog {_PLACE}"
    ),
    ("store_restored", "2.6+"): (
        rf"Finished restoring changelog {_PLACE} to store (?P<store>\S+) "
        r"with a total number of (?P<records>\d+) records"
    ),
    ("stores_restored", "2.6+"): r"Restoration took (?P<took>\d+) ms for all",
}

_FLINK = {
    ("leadership_granted", "1.4"): (
        rf"JobManager (?P<address>\S+) {_GRANTED}leader session ID Some\((?P<leader_id>[^\s)]+)"
    ),
    ("leadership_granted", "1.5+"): rf"(?P<address>https?://\S+) {_GRANTED}leaderSessionID=(?P<leader_id>\S+)",
    ("leadership_revoked", "1.4"): r"JobManager (?P<address>\S+) was revoked leadership",
    ("leadership_revoked", "1.5+"): r"(?P<address>https?://\S+) lost leadership",
    ("job_graphs_to_recover", "1.4"): r"There are (?P<jobs>\d+) jobs to recover",
    ("job_graphs_recovered", "1.9+"): r"Successfully recovered (?P<jobs>\d+) persisted job graphs",
    ("job_recovered", "1.4"): rf"Attempting to recover job {_JOB}",
    ("job_recovered", "1.9+"): rf"Trying to recover job with job id {_JOB}",
    ("checkpoints_found", "1.4+"): (
        r"Found (?P<checkpoints>\d+) checkpoints in ZooKeeper"
        rf"(?:StateHandleStore\{{namespace='[^'\s]*/jobs/{_JOB}/checkpoints)?"
    ),
    ("job_graph_removed", "1.4+"): rf"Removed (?:job graph|execution plan) {_JOB} from ZooKeeper",
    ("restoring_job", "1.4"): (
        rf"Restoring from latest valid checkpoint: (?P<what>\w+) (?P<checkpoint>\d+) .* for {_JOB}"
    ),
    ("restoring_job", "1.5+"): (
        rf"Restoring job {_JOB} from (?:latest valid checkpoint: )?(?P<what>\w+) (?P<checkpoint>\d+)"
    ),
    ("no_checkpoint_found", "1.11+"): r"No checkpoint found during restore",
    ("job_terminal", "1.5+"): rf"Job {_JOB} reached (?:globally )?terminal state (?P<state>[A-Z]+)",
}


SHIPPED: tuple[Pattern, ...] = tuple(
    Pattern(name, component, compile_pattern(regex), versions)
    for component, table in {
        "consumer": _CONSUMER,
        "librdkafka": _LIBRDKAFKA,
        "zookeeper": _ZOOKEEPER,
        "kafka": _KAFKA,
        "streams": _STREAMS,
        "flink": _FLINK,
    }.items()
    for (name, versions), regex in table.items()
)
"""All patterns that every log is searched for."""
