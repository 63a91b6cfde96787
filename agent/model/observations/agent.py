"""Facts about the agent itself."""

from agent.model.observations.base import Observation

AGENT = "backflow"
"""The cluster that findings about the agent itself belong to."""


def name_of_source(cluster: str, source: str) -> str:
    """Return what operators call a source of a cluster: `main/kafka`."""
    return f"{cluster}/{source}"


class AgentPart(Observation, frozen=True, kw_only=True, tag="agent_part", gc=False):
    """Whether a part of the agent works: a rule, a source, the state file, the journal, the clock.

    cluster: always `backflow`. part: what it is about, as operators call it. problem: what is wrong, what follows and
    what to do, as sentences for an operator; null if the part works.
    """

    key = ("cluster", "part")

    cluster: str = AGENT
    part: str
    problem: str | None = None
