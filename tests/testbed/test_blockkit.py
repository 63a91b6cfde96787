"""Block Kit's limits: at the limit and one above it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import blockkit

PLAIN = {"type": "plain_text", "text": "x"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "text", "elements", "fields"]), inner),
)


def mrkdwn(length: int) -> dict[str, Any]:
    """Return a mrkdwn text of this length."""
    return {"type": "mrkdwn", "text": "x" * length}


def plain(length: int) -> dict[str, Any]:
    """Return a plain text of this length."""
    return {"type": "plain_text", "text": "x" * length}


def buttons(count: int, **more: Any) -> list[dict[str, Any]]:
    """Return this many buttons."""
    return [{"type": "button", "text": PLAIN, **more} for _ in range(count)]


@pytest.mark.parametrize(
    ("within", "beyond", "problem"),
    [
        ({"type": "header", "text": plain(150)}, {"type": "header", "text": plain(151)}, "less than 151 characters"),
        ({"type": "header", "text": PLAIN}, {"type": "header", "text": mrkdwn(1)}, "of type plain_text"),
        ({"type": "header", "text": PLAIN}, {"type": "header"}, "missing required field: text"),
        ({"type": "section", "text": mrkdwn(3000)}, {"type": "section", "text": mrkdwn(3001)}, "less than 3001"),
        ({"type": "section", "text": mrkdwn(1)}, {"type": "section", "text": mrkdwn(0)}, "more than 0 characters"),
        ({"type": "section", "text": mrkdwn(1)}, {"type": "section"}, "missing required field: text"),
        ({"type": "section", "text": PLAIN}, {"type": "section", "text": "x"}, "must be a text object"),
        (
            {"type": "section", "fields": [PLAIN] * 10},
            {"type": "section", "fields": [PLAIN] * 11},
            "more than 10 items",
        ),
        ({"type": "section", "fields": [mrkdwn(2000)]}, {"type": "section", "fields": [mrkdwn(2001)]}, "than 2001"),
        ({"type": "context", "elements": [PLAIN] * 10}, {"type": "context", "elements": [PLAIN] * 11}, "more than 10"),
        ({"type": "context", "elements": [PLAIN]}, {"type": "context", "elements": []}, "no less than 1 items"),
        ({"type": "actions", "elements": buttons(25)}, {"type": "actions", "elements": buttons(26)}, "more than 25"),
        (
            {"type": "actions", "elements": buttons(1, text=plain(75), url="https://a.example")},
            {"type": "actions", "elements": buttons(1, text=plain(76))},
            "less than 76 characters",
        ),
        (
            {"type": "actions", "elements": buttons(1, action_id="a")},
            {"type": "actions", "elements": buttons(2, action_id="a")},
            "already exists",
        ),
        (
            {"type": "actions", "elements": buttons(1, style="danger")},
            {"type": "actions", "elements": buttons(1, style="loud")},
            "must match",
        ),
        ({"type": "divider", "block_id": "x" * 255}, {"type": "divider", "block_id": "x" * 256}, "less than 256"),
        ({"type": "divider"}, {"type": "divider", "color": "red"}, "additional property: color"),
        ({"type": "divider"}, {"type": "ruler"}, "unsupported type: ruler"),
        ({"type": "divider"}, "divider", "unsupported type: None"),
        (
            {"type": "image", "image_url": "https://a.example/p.png", "alt_text": "offsets"},
            {"type": "image", "image_url": "file:///p.png", "alt_text": "offsets"},
            "must match",
        ),
        (
            {"type": "section", "text": mrkdwn(1), "accessory": buttons(1)[0], "expand": True},
            {"type": "section", "text": mrkdwn(1), "accessory": PLAIN},
            "unsupported type: plain_text",
        ),
        (
            {"type": "section", "text": PLAIN | {"emoji": True}},
            {"type": "section", "text": mrkdwn(1) | {"emoji": True}},
            "additional property: emoji",
        ),
    ],
)
def test_a_block_is_taken_up_to_its_limit(within: Any, beyond: Any, problem: str) -> None:
    assert blockkit.block_problems([within]) == []
    assert any(problem in message for message in blockkit.block_problems([beyond]))


def test_a_message_takes_fifty_blocks_with_ids_of_their_own() -> None:
    assert blockkit.block_problems([]) == []
    assert blockkit.block_problems([{"type": "divider"}] * 50) == []
    assert blockkit.block_problems([{"type": "divider"}] * 51) == [
        "no more than 50 items allowed [json-pointer:/blocks]"
    ]
    assert blockkit.block_problems([{"type": "divider", "block_id": "a"}] * 2) == [
        '`block_id` "a" already exists [json-pointer:/blocks/1/block_id]',
    ]


@pytest.mark.parametrize(
    "text",
    ["a &amp; b &lt;c&gt;", "<https://a.example|runbook> <@U1> <#C1> <!here>", "> quoted\n>>> and more", "12,223 → 0"],
)
def test_text_that_is_escaped_passes(text: str) -> None:
    """Entities, links, mentions and quotes have their own syntax."""
    assert blockkit.text_problem(text) is None


@pytest.mark.parametrize("text", ["a & b", "1 < 2", "12,223 -> 0", "&quot;", "<b>bold</b>", "<javascript:x>"])
def test_text_that_is_not_escaped_is_a_problem(text: str) -> None:
    assert blockkit.text_problem(text) is not None


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"id": "INC-1", "revision": 2, "critical": True}, None),
        ({"subject": {"topic": "t"}, "subjects": [{"topic": "t"}]}, None),
        ({"text": "x" * 9_000}, "metadata_too_large"),
        ({"subject": {"deeper": {"topic": "t"}}}, "invalid_metadata_format"),
        ({"names": ["a", "b"]}, "invalid_metadata_format"),
    ],
)
def test_metadata_is_flat_and_small(payload: dict[str, Any], error: str | None) -> None:
    """Values are scalars, objects of scalars, or lists of such objects; 8 kB in all."""
    assert blockkit.metadata_error({"event_type": "incident", "event_payload": payload}) == error


@given(JSON)
def test_any_json_is_judged_without_an_exception(blocks: Any) -> None:
    assert isinstance(blockkit.block_problems(blocks), list)
    assert isinstance(blockkit.words(blocks), str)
