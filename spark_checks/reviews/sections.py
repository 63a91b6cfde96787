"""The sections of the page about what nearly happened: each says what to do, then shows a table."""

from collections.abc import Mapping, Sequence

from agent.model.text import count
from spark_checks.reviews import charts
from spark_checks.reviews.facts import MUCH_LAG, MUCH_MORE, NEAR_SHARE, Facts, now, of_week
from spark_checks.reviews.markup import Heading, Html, badge, element, joined, share_bar, table, with_code
from spark_checks.reviews.words import distance, factor, lasted, moment, names, percent, short, week_word, where

ROWS = 10
"""How many rows a table has; the rest is counted."""


def section(name: str, title: str, do: str, *content: object) -> Html:
    """Return a section. do: what to do about it; empty if nothing."""
    advice = element("p", with_code(do), of="do") if do else ""
    return element("section", element("h2", title), advice, *content, id=name)


def margins(facts: Facts) -> Html:
    """Return which groups came closest to losing unread records."""
    found = now(facts.margins)
    title = "Closest to data loss"
    alarmed = sorted(facts.alarmed())
    alarms = (
        _quiet(f"Rules reported unread records that retention deletes: {names(alarmed, ROWS)}. See the incidents.")
        if alarmed
        else Html()
    )
    if not found:
        word = week_word(facts.periods)
        quiet = _quiet(f"In no sample of this {word} had a group unread records where retention deletes.")
        return section("margins", title, "", quiet, alarms)
    before = {(row.week, row.group): row.share for row in facts.margins}
    rows = []
    for margin in found[:ROWS]:
        usual = [before[week, margin.group] for week in facts.weeks if (week, margin.group) in before]
        rows.append(
            (
                joined((
                    element("b", margin.group), Html("<br>"),
                    element("span", where(margin.topic, margin.partition), of="soft"),
                )),
                Html(element("span", distance(margin)) + share_bar(margin.share, _danger(margin.share))),
                percent(max(0.0, margin.share)),
                moment(margin.at),
                percent(max(0.0, min(usual))) if usual else "-",
            )
        )  # fmt: skip
    do = (
        f"Below {percent(NEAR_SHARE)} raise retention.ms and retention.bytes of the topic, or speed up the group: one "
        "longer pause and unread records are deleted."
    )
    return section(
        "margins", title, do if facts.near_misses else "",
        table(
            [
                Heading("Group and partition"), Heading("Smallest distance to the log start"),
                Heading("Of the log", "n"), Heading("When", "nowrap wide"), Heading("Worst before", "n wide"),
            ],
            rows,
        ),
        left_out(len(found) - ROWS, "group"),
        alarms,
    )  # fmt: skip


def lags(facts: Facts) -> Html:
    """Return the groups with the largest lag."""
    found = [lag for lag in now(facts.lags) if lag.largest > 0]
    title = "Lag"
    if not found:
        return section("lags", title, "", _quiet("No group had unread records in any sample."))
    before = {(row.week, row.group): row.p95 for row in facts.lags}
    rows = []
    for lag in found[:ROWS]:
        usual = facts.usual({week: before.get((week, lag.group), 0.0) for week in facts.weeks})
        shown = [point.lag for point in facts.points.get(lag.group, ())]
        rows.append(
            (
                element("b", lag.group),
                short(lag.p50),
                short(lag.p95),
                short(lag.largest),
                short(lag.last),
                "-" if usual is None else _change(lag.p95, usual, least=MUCH_LAG),
                charts.curve(shown, f"Lag of {lag.group}, up to {lag.largest:,} records"),
            )
        )
    do = "Look at groups whose p95 has grown. A large but steady lag is how that group works."
    return section(
        "lags", title, do,
        table(
            [
                Heading("Group"), Heading("p50", "n"), Heading("p95", "n"), Heading("Highest", "n"),
                Heading("At the end", "n wide"),
                Heading("p95 compared"), Heading("Over the time", "wide"),
            ],
            rows,
        ),
        left_out(len(found) - ROWS, "group"),
        element("p", "Unread records of all partitions together, sampled every 15 minutes.", of="soft small"),
    )  # fmt: skip


def standstills(facts: Facts) -> Html:
    """Return the groups that have unread records and commit nothing."""
    if not facts.standstills:
        return section(
            "standstills", "Without commits", "", _quiet("Every group with unread records has committed recently.")
        )
    rows = [
        (
            element("b", stand.group),
            f"{count(stand.partitions, 'partition')}{' (others move)' if stand.others else ''}",
            short(stand.unread),
            f"{'before ' if stand.is_bound else ''}{moment(stand.since)}",
        )
        for stand in facts.standstills[:ROWS]
    ]
    return section(
        "standstills", "Without commits",
        "Start the consumers, or delete groups that nothing needs. If other partitions move, a record cannot be "
        "processed.",
        table(
            [Heading("Group"), Heading("Stands still"), Heading("Unread", "n"), Heading("Last commit", "nowrap")], rows
        ),
        left_out(len(facts.standstills) - ROWS, "group"),
    )  # fmt: skip


def brokers(facts: Facts) -> Html:
    """Return the brokers that dropped out, and unclean elections."""
    found, elections = now(facts.brokers), now(facts.elections)
    word = week_word(facts.periods)
    parts: list[Html] = []
    if found:
        rows = [
            (
                f"broker {row.broker}",
                f"{row.losses:,}",
                lasted(row.down) if row.down else "-",
                _before(facts, {other.week: other.losses for other in facts.brokers if other.broker == row.broker}),
                badge("flapping", "warning") if facts.is_flapping(row) else "",
            )
            for row in found[:ROWS]
        ]
        parts.append(
            table(
                [
                    Heading("Broker"), Heading("Dropped out", "n"), Heading("Down for", "n"),
                    Heading("Weeks before" if word == "week" else "Before", "wide"), Heading(""),
                ],
                rows,
            )
        )  # fmt: skip
        parts.append(left_out(len(found) - ROWS, "broker"))
    else:
        parts.append(_quiet("No broker dropped out of the cluster."))
    if elections:
        items = [element("li", f"{moment(row.at)}: {row.detail}") for row in elections[:ROWS]]
        parts += [element("h3", count(len(elections), "unclean leader election")), element("ul", *items)]
        parts.append(left_out(len(elections) - ROWS, "election"))
    elif facts.has_incidents:
        earlier = sum(len(of_week(facts.elections, week)) for week in facts.incident_weeks)
        known = " is known" if facts.lacks_incidents() else ""
        before = f" ({earlier} in the {word}s before)" if facts.incident_weeks else ""
        parts.append(_quiet(f"No unclean leader election{known}{before}."))
    else:
        parts.append(_quiet("Unclean leader elections are unknown, as incidents are."))
    do = []
    if any(map(facts.is_flapping, found)):
        do.append("Check flapping brokers for restarts, GC pauses, slow disks and network errors.")
    if elections:
        do.append(
            "Set `unclean.leader.election.enable=false` on the topics below: each election may have lost records."
        )
    return section("brokers", "Brokers and leaders", " ".join(do), *parts)


def rebalances(facts: Facts) -> Html:
    """Return the groups that rebalanced most."""
    found = now(facts.rebalances)
    if not found:
        return section("rebalances", "Rebalances", "", _quiet("No group rebalanced."))
    rows = [
        (
            element("b", row.group),
            f"{row.times:,}",
            lasted(row.lasted) if row.lasted else "-",
            _before(facts, {other.week: other.times for other in facts.rebalances if other.group == row.group}),
        )
        for row in found[:ROWS]
    ]
    return section(
        "rebalances", "Rebalances",
        "A few come with each deployment. A group with dozens has a member that joins and leaves: read its log, and "
        "check max.poll.interval.ms.",
        table(
            [Heading("Group"), Heading("Rebalances", "n"), Heading("Rebalancing for", "n"), Heading("Before", "wide")],
            rows,
        ),
        left_out(len(found) - ROWS, "group"),
    )  # fmt: skip


def outages(facts: Facts) -> Html:
    """Return what Backflow could not see, and for how long."""
    found = now(facts.outages)
    if not found:
        return section("outages", "What Backflow could not see", "", _quiet("All sources could be read all the time."))
    rows = [
        (
            element("b", row.source),
            "everything" if row.is_whole else "parts",
            lasted(row.lasted),
            f"{row.times:,}",
            row.reason,
        )
        for row in found[:ROWS]
    ]
    return section(
        "outages", "What Backflow could not see",
        "Restore the access. What happened in these times may be missing in this page.",
        table(
            [Heading("Source"), Heading("Could not read"), Heading("For", "n"), Heading("Times", "n"),
             Heading("Why, the longest time", "wide")],
            rows,
        ),
    )  # fmt: skip


def _before(facts: Facts, by_week: Mapping[int, int]) -> str:
    """Return the numbers of the weeks before, the oldest first."""
    return ", ".join(f"{by_week.get(week, 0):,}" for week in sorted(facts.weeks, reverse=True)) or "-"


def _change(number: float, usual: float, least: int) -> Html:
    """Return how a number compares with the usual one, in red if it is much higher and at least so large."""
    is_high = number >= least and number >= MUCH_MORE * usual
    return element("span", factor(number, usual), of="up" if is_high else "soft")


def _danger(share: float) -> str:
    return "critical" if share < NEAR_SHARE / 2 else "warning" if share < NEAR_SHARE else "good"


def _quiet(sentence: str) -> Html:
    return element("p", sentence, of="soft")


def left_out(number: int, noun: str) -> Html:
    """Return how many rows a table has no room for; nothing if it has all."""
    return element("p", f"and {count(number, f'more {noun}')}", of="soft small") if number > 0 else Html()


def sections(facts: Facts) -> Sequence[Html]:
    """Return all of these sections, what costs records first."""
    return [make(facts) for make in (margins, lags, standstills, brokers, rebalances, outages)]
