"""The messages of the five demos, from journals of real runs, as an operator reads them."""

import pytest

from agent.notify.slack_blocks import content_of
from agent.render.report import MAX_ROWS, WIDTH, report
from testbed import blockkit
from tests.messages.golden import DEMOS, STATES, incidents_of, stored, text_of


@pytest.mark.parametrize("name", [*DEMOS, STATES])
def test_messages_read_as_on_file(name: str) -> None:
    assert text_of(name) == stored(name), "renew with: python -m tests.messages.golden"


@pytest.mark.parametrize("demo", DEMOS)
def test_every_version_fits_a_phone_screen(demo: str) -> None:
    for version in (version for versions in incidents_of(demo) for version in versions):
        rendered = report(version)
        assert len(rendered.timeline) <= MAX_ROWS
        assert len(rendered.do_now) <= 2
        assert len(rendered.prevent) <= 2
        assert all(len(line) <= WIDTH for line in rendered.timeline)
        content = content_of(rendered)
        assert blockkit.block_problems(content["blocks"]) == []
        assert blockkit.attachment_problems(content["attachments"]) == []


@pytest.mark.parametrize("demo", DEMOS)
def test_each_demo_makes_one_notified_incident(demo: str) -> None:
    assert len(incidents_of(demo)) == 1
