"""What to do about each kind of finding: at once, at 3 a.m., and later. When it is said lives in report."""

from collections.abc import Mapping
from typing import NamedTuple


class Advice(NamedTuple):
    """What to do at once and what to see to later, for one kind of finding; fields as in `_names`.

    moot: whether nothing is left to be done at once when it is over. Damage stays: records read twice, or lost.
    """

    now: str = ""
    later: str = ""
    moot: bool = False


_DEDUPE = (
    "stop or dedupe what reads {reader}'s output from {start}; "
    "check downstream counts for {place} offsets {low}-{high}."
)
_DURABLE = "acks=all and min.insync.replicas=2 for what writes {topic}; unclean.leader.election.enable=false."

ADVICE: Mapping[str, Advice] = {
    # The first that is a label of the finding or its kind.
    "operator_reset": Advice(),
    "checkpoint_restore": Advice(),
    "after_expiry": Advice(_DEDUPE, "offsets.retention.minutes longer than the longest pause of {reader}."),
    "to_divergence": Advice(_DEDUPE, _DURABLE),
    "offset_rewind": Advice(
        _DEDUPE, "auto.offset.reset=none for {reader}, if stopping is better than reading all again."
    ),
    "hidden_reset": Advice(
        "look for 'offset reset' or 'out of range' on {place} in the log of {reader}'s consumer: "
        "its committed offset hides where it reads; dedupe its output from {start}.",
        "commit offsets explicitly in {reader}: librdkafka's auto-commit never goes back.",
    ),
    "offset_jump": Advice(
        "read {place} offsets {low}-{high} again with {reader} before retention deletes them.",
        "auto.offset.reset=none or earliest for {reader}.",
    ),
    "beyond_end": Advice(
        "watch {reader} on {place}: its next fetch is out of range, and auto.offset.reset decides where it goes on.",
        _DURABLE,
        moot=True,
    ),
    "log_truncated": Advice(
        "have the producers of {topic} send again what they wrote to {place} shortly before {start}.", _DURABLE
    ),
    "topic_recreated": Advice(
        "unless it was meant, find out who deleted {topic}; its consumers begin anew.",
        "auto.create.topics.enable=false, and ACLs on deletion.",
    ),
    "retention_overrun": Advice(
        "raise retention.ms and retention.bytes of {topic} until {reader} has caught up; "
        "what was deleted is to be had only where it came from.",
        "why does {reader} read {topic} more slowly than it is written?",
    ),
    "broker_session_lost": Advice(
        later="why did broker {broker} let its session expire{pause}? (GC log, disk, network)"
    ),
    "broker_down": Advice("start broker {broker} again; its log's last lines say why it went.", moot=True),
    "unclean_election": Advice(later="unclean.leader.election.enable=false for {topic}."),
    "brokers_down_together": Advice(
        later="min.insync.replicas=2 with acks=all, and replicas that do not share a power supply (broker.rack): "
        "{place} were lost together."
    ),
    "replica_divergence": Advice(
        "do not restart {brokers} or move the leadership of {place} before you have copied its segments on both: "
        "who leads decides which records are lost; then choose the leader, not one whose own log is found damaged.",
        "Kafka 2.0 or later (KIP-101, KIP-279) with message.format.version 0.11 or later for {topic}: "
        "replicas then find the point where they differ by leader epochs.",
    ),
    "offsets_went_back": Advice(
        "copy {file} of {place} on broker {broker} before it restarts: after an unclean stop a broker may fail there "
        "('Attempt to append an offset') or empty the segment; then let the replica fetch {place} anew from one that "
        "is whole.",
        "min.insync.replicas=2 with acks=all for {topic}, and Kafka 0.11 or later with its message format (KIP-101).",
    ),
    "torn_tail": Advice(),
    "log_segments": Advice(
        "copy {file} of {place} on broker {broker} before it restarts; "
        "if another replica is whole, let it lead and broker {broker} fetch {place} anew.",
        "check the disk of broker {broker}.",
    ),
    "check_failed": Advice("the last lines of its log say why; `backflow check {source}` runs it by hand.", moot=True),
    # A job that comes back at a failover, in its stages.
    "running": Advice(
        "cancel {reader} ({job}) and delete its job graph, {graph}, before another JobManager leads; then see "
        "that {others} got its slots back, and what {reader} has written since {start}.",
        "Flink 1.5.4, 1.6.1 or later (FLINK-10011).",
    ),
    "ended_with_graph": Advice(
        "delete the job graph of {reader} ({job}), {graph}, before a JobManager fails over.",
        "Flink 1.5.4, 1.6.1 or later (FLINK-10011).",
        moot=True,
    ),
    "foreign_lock": Advice(
        "restart the standby JobManager that holds the lock on the job graph of {reader} ({job}): its session ends, "
        "and its lock with it; do not cancel {reader} before that.",
        "Flink 1.5.4, 1.6.1 or later (FLINK-10011).",
        moot=True,
    ),
    "restart_without_state": Advice(
        "stop {reader} and start it from its last good checkpoint or savepoint before it overwrites its results."
    ),
    "duplicate_job": Advice("cancel the one of the two jobs {reader} that should not run: both write.", moot=True),
    "orphan_job_graph": Advice(later="delete what Flink's high availability keeps of jobs that are no more."),
    "job_restarting": Advice("see the exceptions of {reader} and the free slots in Flink's web page.", moot=True),
    "checkpoint_failing": Advice(
        "see why the checkpoints of {reader} fail: at a failure it goes back to the last one that completed.", moot=True
    ),
    "offset_reset": Advice(later="auto.offset.reset=none for what reads {topic}, if stopping is better."),
    "values_fell": Advice(
        "stop every instance of {reader}: each further record builds on lost state and overwrites more of {topic}; "
        "raise min.compaction.lag.ms of {topic}, for compaction erases the good values. Then list the keys anew with "
        "`backflow check changelog_restore --out keys.parquet` and repair the store (docs/spark.md); those known by "
        "now, with their values before: {listed}.{undeclared}",
        "Kafka Streams 2.2 or later (KAFKA-7672).",
    ),
    "no_move_seen": Advice(
        "see what has written to {topic} since {start}: an instance that came back without its state, an operator's "
        "tool, or another writer. What fell is listed by `backflow check changelog_restore`.{undeclared}"
    ),
    "short_restore": Advice("compare the store behind {place} with its input before you trust it."),
    "precursor": Advice(
        "declare the store behind {place} in rules.toml if its values never fall; compare it with its input.",
        "Kafka Streams 2.2 or later (KAFKA-7672).",
    ),
    "rebalancing": Advice("see which member of {reader} comes and goes, and its log.", moot=True),
    "under_replicated": Advice("see why replicas of {place} do not follow (broker down, disk, network).", moot=True),
    "partition_offline": Advice(
        "bring back a replica of {place} that was in the ISR; an unclean election instead would lose records.",
        moot=True,
    ),
    "source_unavailable": Advice(
        "see why {source} cannot see {sight}; until it does, nothing is known of it.", moot=True
    ),
}
