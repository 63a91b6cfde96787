"""Text about stores whose values decreased, for the live rule and the Spark check alike."""

from collections.abc import Iterable, Mapping

from agent.engine.rule import Advice
from agent.model.findings import Finding
from agent.model.text import count, place

PREVENTION = "Upgrade {reader} to Kafka Streams 2.2 or later (KAFKA-7672)."
_COMMAND = "backflow check changelog_restore"

ADVICE: Mapping[str, Advice] = {
    "values_fell": Advice(
        now="Stop every instance of {reader} and raise min.compaction.lag.ms of {topic}, before good values are lost. "
        f"List the keys with `{_COMMAND} --out keys.parquet` and repair the store "
        "(docs/how-to/repair-a-streams-store.md).{listed}{undeclared}",
        prevent=PREVENTION,
    ),
    "no_move_seen": Advice(
        now="Find out what wrote to {topic} since {start}: an instance without its state, an operator's tool or "
        f"another writer. List the keys with `{_COMMAND}`.{{undeclared}}"
    ),
}


def keys_suffix(findings: Iterable[Finding]) -> str:
    """Return how many keys decreased in all, as the end of a title; empty if no finding has a number."""
    numbers = [number for finding in findings if isinstance(number := finding.current.get("keys"), int)]
    return f", {count(sum(numbers), 'key')} decreased" if any(numbers) else ""


def decrease_row(finding: Finding) -> str:
    """Return how many keys of which changelog partition decreased, as a timeline row."""
    keys = finding.current.get("keys")
    number = count(keys, "key") if isinstance(keys, int) else "keys"
    cause = ", store not restored" if "values_fell" in finding.labels else ""
    return f"{place(finding.subject)}: {number} decreased{cause}"
