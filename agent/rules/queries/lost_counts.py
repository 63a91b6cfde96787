"""The second proof that counts were lost: their sum against what the group has committed of their input. Pure.

Of a plain count, the sum of a partition's last values is the number of records counted. It rises with the committed
offset, and by more where records were counted twice after a crash. What it falls behind was lost.
"""

from collections.abc import Mapping
from typing import Any

from agent.engine.facts import Facts
from agent.model.observations import ChangelogDecreases, Commit, clock
from agent.rules.queries.partitions import CLOCK_SLACK_MS

_REPARTITION = "-repartition"


def missing(facts: Facts, falls: ChangelogDecreases, counts: str | None) -> dict[str, Any]:
    """How many records are surely not in the counts: `missing`, of which topic (`input`), by how much the sum rose
    (`counted`; it sank where negative) and the committed offset at least (`committed`). Empty where nothing is proven.

    counts: the input topic (DeclaredStore.counts). Commits are seen at other moments than sums. What is processed but
    not yet counted, and the reverse, is covered as only commits count that were surely made after the first fall, and
    surely before all that the sum holds was in the log. In a repartition topic, which the application may write in
    transactions, offsets may be markers: there only a sum that sank proves anything.
    """
    if counts is None or falls.sum_before is None or falls.sum_after is None or falls.sum_at is None:
        return {}
    commits = facts.history(Commit, falls.cluster, falls.application, counts, falls.partition)
    before, after = commits.as_of(falls.began_at), commits.as_of(max(falls.sum_at, falls.began_at))
    if _offset(after) < _offset(before) or _offset(before) < 0:
        return {}  # unknown, or read again from further back: counts that begin again do so by right
    begin, end = falls.began_at + CLOCK_SLACK_MS, falls.sum_at - CLOCK_SLACK_MS
    sure = [one.offset for one in commits.between(begin, end) if one.start >= begin and one.offset is not None]
    committed = 0 if counts.endswith(_REPARTITION) or not sure else max(sure[-1] - sure[0], 0)
    counted = falls.sum_after - falls.sum_before
    if committed <= counted:
        return {}
    return {"input": counts, "committed": committed, "counted": counted, "missing": committed - counted}


def proof(current: Mapping[str, Any], group: str, partition: int, began_at: int) -> str:
    """What `missing` has found, as the end of a sentence; empty where it has found nothing."""
    if "missing" not in current:
        return ""
    since, topic, counted = f"{clock(began_at)} UTC", f"{current['input']}[{partition}]", current["counted"]
    how = f"sank by {-counted:,}" if counted < 0 else f"rose by {counted:,}"
    if current["committed"]:
        moved = f"since {since} {group} has committed at least {current['committed']:,} more records of {topic} while"
    else:
        moved = f"{group} has not gone back in {topic} since {since}, but"
    least = f"at least {current['missing']:,} records are not in them"
    return f"; second proof: {moved} the counts {how}: {least}"


def _offset(commit: Commit | None) -> int:
    """The offset committed; -1 where it is not known."""
    return -1 if commit is None or commit.offset is None else commit.offset
