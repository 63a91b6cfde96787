"""job_history: what the Spark check of that name finds in the journal and in the HA storage of Flink."""

from agent.engine.check_rule import CheckRule
from agent.engine.facts import Facts
from agent.engine.rule import Scope, recovered
from agent.model.config_types import NameFilter
from agent.model.findings import Finding

_LASTING = frozenset({"graph_of_ended_job", "graph_without_job"})


class JobHistory(CheckRule):
    """A Flink job that had ended ran again, checkpoint ids began anew, or a job graph is left that no job needs.

    Found by the check `job_history`, independently of the live rules. Severity and labels are the check's: `came_back`
    is critical, `lineage_restarted`, `graph_of_ended_job` and `graph_without_job` are warnings; info where a restore
    explains it.
    What happened is over at once; a graph or a file recovers when a run over all that there is no longer finds it.
    """

    reads = "the journal and Flink's storage: jobs that came back, checkpoint ids begun anew, stray job graphs"
    title = "a Flink job of {cluster} came back or left its job graph behind, as the history shows"

    jobs: NameFilter = NameFilter()
    """Jobs judged, by name; files whose job nobody knows always are."""

    def counts(self, finding: Finding) -> bool:
        """Whether it is about a job that is judged."""
        name = finding.subject.get("job_name")
        return name is None or self.jobs.match(str(name))

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        """Over at once, but for what is still there."""
        if _LASTING.isdisjoint(finding.labels):
            return recovered(finding, finding.at)
        return super().follow(finding, scope, facts)
