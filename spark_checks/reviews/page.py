"""The page: one HTML file without anything external, from what was measured."""

from agent.model.text import count
from spark_checks.reviews import detections, overview
from spark_checks.reviews.actions import actions
from spark_checks.reviews.facts import Facts
from spark_checks.reviews.markup import Html, element
from spark_checks.reviews.sections import sections
from spark_checks.reviews.style import STYLE
from spark_checks.reviews.words import period


def page(facts: Facts) -> str:
    """Return the HTML of the review: tasks first, then numbers, then a section for each subject."""
    tasks = actions(facts)
    margins, *others = sections(facts)
    head = element(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'),
        element("title", f"Review of {facts.label}, {period(facts.periods)}"),
        element("style", Html(STYLE)),
    )
    body = element(
        "main",
        overview.header(facts, tasks),
        overview.task_list(facts, tasks),
        overview.tiles(facts),
        element("p", overview.weeks_note(facts), of="soft small"),
        detections.incidents(facts),
        margins,
        *others[:-1],
        detections.rules(facts),
        others[-1],
        _footer(facts),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{element("body", body)}</html>\n'


def _footer(facts: Facts) -> Html:
    groups = count(len({lag.group for lag in facts.lags}), "group")
    sentence = (
        f"Made by Backflow from its journal and its incidents: {groups} of cluster {facts.label}. A group nearly "
        "lost records if, with unread records, its committed offset was in the oldest fifth of the log. The time left "
        "assumes that the log start rises as fast as it did on average."
    )
    notes = [sentence, *(f"{note[0].upper()}{note[1:]}: what it held is missing here." for note in facts.notes)]
    return element("footer", *(element("p", note, of="soft small") for note in notes), style="margin-top:18px")
