"""job_history: findings of the Spark check of that name, in the journal and Flink's HA storage."""

from agent.engine.check_rule import CheckInput, CheckRule
from agent.engine.facts import Facts
from agent.engine.rule import Scope, recovered
from agent.model.findings import Finding
from agent.model.name_filter import NameFilter
from agent.model.text import place

_LASTING = frozenset({"graph_of_ended_job", "graph_without_job"})

_PHRASES = {
    "came_back": "ran again after it had ended",
    "lineage_restarted": "checkpoint ids started over",
    "graph_of_ended_job": "has ended, its job graph remains",
    "graph_without_job": "job graph without a job",
}


class JobHistory(CheckRule):
    """A Flink job that had ended ran again, checkpoint ids started over, or a job graph is left that no job needs.

    Found by the check `job_history`, independently of the live rules. Severity and labels are the check's: `came_back`
    is critical; `lineage_restarted`, `graph_of_ended_job` and `graph_without_job` are warnings; info if a restore
    explains it.
    Recovers at once; a graph or a file when a complete run of the check no longer finds it.
    """

    summary = "the journal and Flink's storage: jobs that came back, checkpoint ids that started over, stray job graphs"
    input = CheckInput.FLINK_JOBS
    title = "a Flink job of {cluster} came back or left its job graph behind"

    jobs: NameFilter = NameFilter()
    """Names of the jobs that are reported; files of unknown jobs always are."""

    def is_reportable(self, finding: Finding) -> bool:
        name = finding.subject.get("job_name")
        return name is None or self.jobs.match(str(name))

    def follow(self, finding: Finding, scope: Scope, facts: Facts) -> Finding:
        if _LASTING.isdisjoint(finding.labels):
            return recovered(finding, finding.at)
        return super().follow(finding, scope, facts)

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        phrases = (f"{place(finding.subject)}: {_PHRASES[label]}" for label in finding.labels if label in _PHRASES)
        return next(phrases, super().timeline(finding, day))
