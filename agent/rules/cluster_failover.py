"""cluster_failover: findings of the Spark check of that name, in the journals of several clusters."""

from collections.abc import Mapping
from typing import ClassVar

from agent.engine.check_rule import CheckInput, GroupCheckRule
from agent.engine.rule import Advice
from agent.model.findings import Finding
from agent.model.text import count, place

_RESUME = "Reset {reader} on {place} to the offset that the finding names, before retention deletes what it skipped."
_SYNC = "Before each failover, compare the offsets of {reader} on both clusters: backflow check cluster_failover."


class ClusterFailover(GroupCheckRule):
    """A group moved to another cluster and skipped or reprocessed records there, or would if it failed over now.

    Found by the check `cluster_failover`, which compares when the log ends of both clusters passed the group's offsets.
    Severity and labels are the check's. `skipped` is critical; a warning if it is not certain (`no_offset`: the group
    did not begin at a committed offset; `origin_unseen`: the cluster that it left was not observed then). `reprocessed`
    is a warning. `projected`: the group has not moved; what it would skip and offsets beyond the log end
    (`beyond_log_end`) are warnings, what it would reprocess is info.
    Not: a group that runs on both clusters, groups of the same name that read different topics, topics that do not
    mirror each other, what the delay of the mirror may explain.
    Recovers at once.
    """

    summary = "the journal of several clusters: records that groups skip or reprocess when they move between clusters"
    input = CheckInput.CLUSTERS
    title = "{group} skipped {records} records on {topic}[{partition}] when it moved to {cluster}"
    titles: ClassVar[Mapping[str, str]] = {
        "beyond_log_end": "{group} has an offset beyond the log end of {topic}[{partition}] on {cluster}",
        "projected": "{group} would not continue on {cluster} where it is on {topic}[{partition}]",
        "reprocessed": "{group} reprocesses {records} records on {topic}[{partition}] after it moved to {cluster}",
    }
    advice: ClassVar[Mapping[str, Advice]] = {
        "projected": Advice(prevent=_SYNC),
        "reprocessed": Advice(now="Deduplicate the output of {reader} since {start}."),
        "": Advice(now=_RESUME, prevent=_SYNC),
    }

    min_records: int = 1000
    """Fewest records reprocessed or skipped that are reported, of moves that happened."""

    def is_reportable(self, finding: Finding) -> bool:
        is_large = max(finding.records.reread, finding.records.skipped) >= self.min_records
        return is_large or "projected" in finding.labels

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        where = f"{finding.subject.get('group')} on {place(finding.subject)}"
        clusters = f"{finding.previous.get('cluster')} -> {finding.current.get('cluster')}"
        if "projected" in finding.labels:
            return f"{where}: not ready to move {clusters}"
        records = finding.records
        skipped, reprocessed = count(records.skipped, "record"), count(records.reread, "record")
        effect = f"{skipped} skipped" if records.skipped else f"{reprocessed} reprocessed"
        return f"{where}: moved {clusters}, {effect}"
