"""The status page in a real browser, at desktop and phone width, without JavaScript.

It needs the package `playwright` from PyPI and a Chromium, as Debian's package `chromium` has it.
"""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.config.self_report import Address
from agent.daemon.web.routes import make_routes
from agent.daemon.web.server import Listener
from agent.engine.check_requests import CheckResult
from testbed.processes import free_port
from testbed.waiting import wait_until
from tests import samples
from tests.daemon.web.test_routes import CHECK_RUN, rewound
from tests.running import Running, running

_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel."""

_SIZES = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 360, "height": 640}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium; skip without it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright: see CONTRIBUTING.md")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs the command chromium: see CONTRIBUTING.md")
    with playwright.sync_playwright() as started:
        # Root, as in a container, has no sandbox.
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, rewound()) as parts:
        yield parts


@pytest.fixture
def address(agent: Running) -> Iterator[str]:
    """Serve the agent's pages; return where."""
    port = free_port()
    listener = Listener(Address("127.0.0.1", port), make_routes(agent.reader), agent.health)
    listener.start()
    yield f"http://127.0.0.1:{port}"
    listener.close()


@pytest.fixture(params=_SIZES)
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a tab without JavaScript, in which nothing may be refused or fail to load."""
    context = browser.new_context(viewport=_SIZES[request.param], java_script_enabled=False)
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("requestfailed", lambda failed: complaints.append(failed.url))
    yield tab
    context.close()
    assert complaints == []


def fits(page: Any) -> bool:
    """Return whether nothing is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def open_incident(page: Any, address: str) -> str:
    """Follow the link of the first incident; return its id."""
    wait_until(lambda: _is_open(page, address), "the page to be served", 30)
    assert fits(page)
    page.locator("a[href^='/incidents/']").first.click()
    page.wait_for_url("**/incidents/*")
    return str(page.url).rpartition("/")[2]


def _is_open(page: Any, address: str) -> bool:
    try:
        return bool(page.goto(address).ok)
    except Exception as error:
        if "ERR_CONNECTION_REFUSED" in str(error):  # the listener has only just been started
            return False
        raise


def test_an_incident_shows_its_offsets(page: Any, address: str) -> None:
    open_incident(page, address)
    plot = page.get_by_role("img")
    assert plot.get_attribute("aria-label").startswith("Committed offsets of ")
    box, width = plot.bounding_box(), page.viewport_size["width"]
    assert 0.5 * min(width, 704) < box["width"] <= width
    line = page.locator("polyline.committed")
    assert line.evaluate("line => getComputedStyle(line).stroke") not in ("none", "rgb(0, 0, 0)")
    assert fits(page)


def test_an_incident_shows_the_plot_of_a_check(page: Any, address: str, agent: Running) -> None:
    name = open_incident(page, address)
    record = agent.reader.incident(name)
    assert record is not None
    request = samples.check_request(finding=record.incident.findings[0].key)
    agent.pipeline.put_check_result(CheckResult(request, [CHECK_RUN], ("one rewind in 14 days",), _PNG))
    wait_until(lambda: agent.reader.plot(name), "the plot", 30)
    page.reload()
    picture = page.get_by_role("img")
    assert picture.get_attribute("alt").startswith("Plot of the latest check about ")
    assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
    assert fits(page)
