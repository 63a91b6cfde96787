"""The guide to receivers: its tables are valid, and its verification accepts what the webhook sends."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from agent.config.loading import loads
from agent.notify.receivers import KINDS
from agent.notify.receivers.webhook import VERSION, body_of, signature
from tests import samples

GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "receivers.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("table", blocks("toml"))
def test_each_table_is_valid(table: str) -> None:
    assert loads(table, "rules.toml", need_clusters=False, receivers=KINDS).receivers


def test_every_kind_has_a_section() -> None:
    shown = {
        next(iter(loads(table, "", need_clusters=False, receivers=KINDS).receivers.values())).kind
        for table in blocks("toml")
    }
    assert shown == set(KINDS)


def test_the_fields_of_the_body_are_documented() -> None:
    section = GUIDE.partition("## Webhook")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` ", section, re.MULTILINE)) == set(body_of(samples.message(), "opened"))
    assert f'"version": {VERSION}' in section


def test_the_verification_accepts_only_what_was_signed_now() -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the page's code
    now, body = str(int(time.time())), b'{"version":1}'
    signed = f"v1={signature('key', now, body)}"
    assert names["is_genuine"]("key", now, signed, body)
    assert not names["is_genuine"]("other", now, signed, body)
    assert not names["is_genuine"]("key", now, signed, body + b" ")
    old = str(int(now) - 400)
    assert not names["is_genuine"]("key", old, f"v1={signature('key', old, body)}", body)
