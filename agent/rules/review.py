"""review: groups that nearly lost unread records to retention, as the weekly review of a cluster found them."""

from agent.engine.check_rule import CheckInput, GroupCheckRule
from agent.model.findings import Finding
from agent.model.text import place


class Review(GroupCheckRule):
    """A group with unread records came close to the log start, as the weekly review of its cluster found.

    Found by the check `review`, always info: `retention_margin` and `retention_overrun` report it when it happens. The
    review itself is posted as a message of its own, with its picture. Labels: `near_miss` (in the oldest fifth of the
    log), `overrun` (unread records were deleted).
    Recovers at once.
    """

    summary = "the journal and the incidents: the week of a cluster as a page, with what nearly happened"
    input = CheckInput.JOURNAL
    posts_report = True
    title = "{group} nearly lost unread records on {topic}[{partition}] to retention"

    @classmethod
    def timeline(cls, finding: Finding, day: str) -> str:
        del day
        if "overrun" in finding.labels:
            return f"{finding.subject.get('group')} on {place(finding.subject)}: unread records were deleted"
        return f"{finding.subject.get('group')} on {place(finding.subject)}: close to the log start"
