"""Text that the rules about logs on disks share."""

from agent.model.findings import Finding
from agent.model.text import instant, recovery


def on_disk(finding: Finding, detail: str, day: str) -> str:
    """Return the detail with the time of the records concerned, and when a check no longer found it."""
    return (
        f"{detail.rstrip('.')} (records of {instant(finding.at, day)} UTC){recovery(finding, day, 'no longer found')}"
    )
