"""What the addresses of the status page answer, with names that try to be markup."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from agent.daemon.heartbeat import Heartbeat
from agent.daemon.web.routes import make_routes
from agent.daemon.web.server import Request, Response
from agent.engine.check_requests import CheckResult
from agent.model.findings import Acknowledgement, Closure, closed_findings
from agent.model.observations.base import Observation, Unavailable
from agent.model.observations.checks import CheckRun
from agent.model.observations.kafka import Commit, GroupState, LogOffsets, Member
from agent.storage.incidents import IncidentStore
from testbed.waiting import wait_until
from tests import samples
from tests.builders import BEGINNING, CLUSTER, after
from tests.running import ROOT, Running, running

GROUP = "<script>alert('g')</script>\"&\u202e\x00"
TOPIC = "t<img src=x onerror=alert(1)>"
ID = re.compile(r"/incidents/(INC-[0-9A-F]+)")
VOID = {"img", "link", "meta"}
CHECK_RUN = CheckRun(
    at=after(9), cluster=CLUSTER, check="offset_history", started_at=after(1), complete=True, outcome="clean"
)


class Page(HTMLParser):
    """Collects elements and text; every element must be closed."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(body)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def links(self) -> list[str]:
        return [attributes["href"] or "" for tag, attributes in self.elements if tag == "a"]


def rewound() -> list[Observation]:
    """Return a rewind of a group with a hostile name on a topic with another."""
    common: dict[str, Any] = {"cluster": CLUSTER, "topic": TOPIC, "partition": 0}
    reader = Member(id="m", client_id="</td><script>", host="/h", partitions=((TOPIC, 0),))
    commits = [Commit(at=after(second), group=GROUP, offset=9_000 + second, **common) for second in range(1, 20)]
    return [
        GroupState(at=after(0), cluster=CLUSTER, group=GROUP, state="Stable", members=(reader,)),
        LogOffsets(at=after(0), log_start=0, log_end=20_000, **common),
        *commits,
        Commit(at=after(21), since=after(20), group=GROUP, offset=0, **common),
        Unavailable(at=after(22), source="logs", cluster="app", reason="<b>no file</b>"),
    ]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, rewound()) as parts:
        yield parts


def ask(agent: Running, path: str, **query: str) -> Response:
    return make_routes(agent.reader)(Request(path, query))


def page(agent: Running, path: str, **query: str) -> Page:
    response = ask(agent, path, **query)
    assert (response.status, response.content_type) == (HTTPStatus.OK, "text/html; charset=utf-8")
    assert response.policy.startswith("default-src 'none'; style-src 'sha256-")
    found = Page(response.body.decode())
    assert {tag for tag, _ in found.elements} & {"script", "img", "b", "iframe", "form"} == set()
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    return found


def test_pages_and_metrics_show_what_operators_decided(agent: Running) -> None:
    (address,) = [link for link in page(agent, "/").links if ID.fullmatch(link)]
    with IncidentStore(agent.pipeline.read(lambda _, store: store.path, 10)) as store:
        found = store.incident(address.removeprefix("/incidents/"))
        assert found is not None
        store.decisions.acknowledge(found, Acknowledgement(at=after(30), by="lena", severity=found.severity))
        assert "acknowledged by lena" in page(agent, address).text
        assert b'backflow_open_incidents{severity="critical"} 1.0' in ask(agent, "/metrics").body
        closure = Closure(at=after(40), by="ada", reason="planned", findings=closed_findings(found))
        store.decisions.close(found, closure)
    assert "closed by ada" in page(agent, address).text
    assert address not in page(agent, "/").links
    assert b'backflow_open_incidents{severity="critical"} 0.0' in ask(agent, "/metrics").body


def test_every_page_shows_hostile_names_as_text(agent: Running) -> None:
    status = page(agent, "/")
    (incident,) = [link for link in status.links if ID.fullmatch(link)]
    shown = "<script>alert('g')</script>\"&\\u202e\\x00"
    assert shown in status.text
    assert "<b>no file</b>" in status.text
    assert f"/groups?name={quote(GROUP, safe='')}" in status.links
    for found in (page(agent, incident), page(agent, "/groups"), page(agent, "/groups", name=GROUP)):
        assert shown in found.text
        assert "\u202e" not in found.text
    assert TOPIC in page(agent, "/groups", name=GROUP).text
    assert "</td><script>@h" in page(agent, "/groups", name=GROUP).text
    assert "no group <b> is observed" in page(agent, "/groups", name="<b>").text


def test_incident_page_shows_message_findings_and_deliveries(agent: Running) -> None:
    agent.dispatcher.wake()
    (incident,) = [link for link in page(agent, "/").links if ID.fullmatch(link)]
    wait_until(lambda: "console: delivered" in page(agent, incident).text, "the delivery", 30, 0.05)
    text = page(agent, incident).text
    assert "CRITICAL · OPEN" in text
    assert "Timeline (UTC)" in text
    assert "Findings" in text
    assert "rewind (to_earliest)" in text


def test_incident_page_plots_the_readers_offsets(agent: Running) -> None:
    (incident,) = [link for link in page(agent, "/").links if ID.fullmatch(link)]
    found = page(agent, incident)
    (svg,) = [attributes for tag, attributes in found.elements if tag == "svg"]
    label = svg["aria-label"] or ""
    assert label.endswith("9,019 before 23:00:21.0 UTC and 0 then, now 0; log end 20,000, log start 0")
    assert "\u202e" not in label
    assert sum(tag == "polyline" for tag, _ in found.elements) == 3
    assert ask(agent, f"{incident}/plot.png").status is HTTPStatus.NOT_FOUND


def test_incident_page_shows_the_plot_of_the_latest_check(agent: Running) -> None:
    (incident,) = [link for link in page(agent, "/").links if ID.fullmatch(link)]
    name = incident.rpartition("/")[2]
    plots = [b"\x89PNG first", b"\x89PNG latest"]
    record = agent.reader.incident(name)
    assert record is not None
    for plot in plots:
        request = samples.check_request(id=str(plot), finding=record.incident.findings[0].key)
        agent.pipeline.put_check_result(CheckResult(request, [CHECK_RUN], ("one rewind in 14 days",), plot))
    wait_until(lambda: ask(agent, f"{incident}/plot.png").body == plots[1], "the plot", 30, 0.05)
    response = ask(agent, f"{incident}/plot.png")
    assert (response.status, response.content_type) == (HTTPStatus.OK, "image/png")
    shown = ask(agent, incident)
    assert "img-src 'self'" in shown.policy
    (image,) = [attributes for tag, attributes in Page(shown.body.decode()).elements if tag == "img"]
    assert image["src"] == f"{incident}/plot.png"
    assert (image["alt"] or "").startswith("Plot of the latest check about ")
    assert "svg" not in {tag for tag, _ in Page(shown.body.decode()).elements}


@pytest.mark.parametrize(
    "path",
    [
        "/incidents/INC-00000000",
        "/incidents/INC-00000000/plot.png",
        "/incidents/x",
        "/incidents/",
        "/nothing",
        "//",
        "/.",
    ],
)
def test_other_addresses_are_not_found(agent: Running, path: str) -> None:
    assert ask(agent, path).status is HTTPStatus.NOT_FOUND


def test_ready_once_every_source_has_been_read(agent: Running) -> None:
    response = ask(agent, "/ready")
    assert (response.status, response.body) == (HTTPStatus.SERVICE_UNAVAILABLE, b"not read yet: app/logs\n")
    agent.source.poll()
    assert ask(agent, "/ready").status is HTTPStatus.OK


def test_health_names_the_loops_that_are_stuck(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(agent, "/health").body == b"ok\n"
    monkeypatch.setattr("agent.daemon.loops.STUCK_S", -1)
    response = ask(agent, "/health")
    assert (response.status, response.body) == (HTTPStatus.SERVICE_UNAVAILABLE, b"without progress: pipeline\n")
    assert agent.reader.impairment() == "without progress: pipeline"


def test_status_names_what_is_wrong(agent: Running) -> None:
    agent.health.failed("journal", "The disk is full.")
    agent.reader.check_runs.add(CHECK_RUN)
    status = json.loads(ask(agent, "/status.json").body)
    assert "journal: The disk is full." in status["problems"]
    assert status["sources"][0]["read_at"] is None
    assert status["problems"][0].startswith("app/logs has not been read since the start")
    assert status["subjects"] == {CLUSTER: {"brokers": 0, "topics": 1, "partitions": 1, "groups": 1}}
    assert (status["checks"][0]["outcome"], status["checks"][0]["took_ms"]) == ("clean", 8_000)
    assert status["checks"][0]["ended_at"] == "2026-11-20T23:00:09.000Z"
    agent.source.poll()
    (source,) = json.loads(ask(agent, "/status.json").body)["sources"]
    assert source["read_at"].endswith("Z")


def test_status_without_an_answer_of_the_pipeline(agent: Running) -> None:
    agent.reader.patience = 0.1
    assert agent.pipeline.close(30)
    status = json.loads(ask(agent, "/status.json").body)
    assert not status["is_complete"]
    assert status["problems"][0].startswith("The pipeline has not answered within 0 s")
    assert "unknown" in page(agent, "/").text
    assert agent.reader.impairment() == "the pipeline has ended"
    with pytest.raises(TimeoutError):
        ask(agent, "/groups.json")


def test_groups_are_listed_with_and_without_partitions(agent: Running) -> None:
    (group,) = json.loads(ask(agent, "/groups.json").body)
    assert (group["lag"], group["members"], group["partitions"]) == (20_000, 1, [])
    (group,) = json.loads(ask(agent, "/groups.json", name="<script>*").body)
    assert group["partitions"][0]["committed_at"] == "2026-11-20T23:00:21.000Z"


def exported(agent: Running) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples of each exported name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(ask(agent, "/metrics").body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture
def complete(agent: Running) -> Running:
    """Return an agent that has run a check, failed to deliver, and sent a heartbeat."""
    agent.reader.check_runs.add(replace(CHECK_RUN, outcome="failed"))
    agent.reader.check_runs.add(replace(CHECK_RUN, at=after(14)))
    agent.dispatcher.failed["refused"] += 2
    agent.reader.heartbeat = Heartbeat(SecretStr("http://127.0.0.1:9"), "GET", lambda: "")
    return agent


def test_metrics_show_what_happened(complete: Running) -> None:
    metrics = exported(complete)
    assert ({"severity": "critical"}, 1.0) in metrics["backflow_open_incidents"]
    assert ({"status": "open", "rule": "rewind"}, 1.0) in metrics["backflow_incidents"]
    assert ({"status": "open", "rule": "session"}, 0.0) in metrics["backflow_incidents"]
    assert ({"check": "offset_history", "outcome": "failed"}, 8.0) in metrics["backflow_check_duration_seconds_sum"]
    assert metrics["backflow_check_last_run_failed"] == [({"check": "offset_history", "cluster": CLUSTER}, 0.0)]
    assert metrics["backflow_check_last_run_timestamp_seconds"][0][1] == (BEGINNING + 14_000) / 1000
    assert ({"receiver": "console", "reason": "refused"}, 2.0) in metrics["backflow_delivery_failures_total"]
    assert metrics["backflow_source_unavailable_parts"] == [({"cluster": "app", "source": "logs"}, 1.0)]
    ((_, age),) = metrics["backflow_source_last_read_age_seconds"]
    assert age == pytest.approx(complete.reader.uptime, abs=30)
    ((_, memory),) = [sample for sample in metrics["backflow_resident_memory_bytes"] if sample[0]["process"] == "agent"]
    assert memory > 10 << 20


def test_no_metric_has_a_label_for_groups_or_topics(complete: Running) -> None:
    labels = {name for samples in exported(complete).values() for sample, _ in samples for name in sample}
    about_incidents = {"status", "rule", "severity"}
    assert labels <= {
        "version",
        "process",
        "cluster",
        "source",
        "receiver",
        "reason",
        "check",
        "outcome",
        *about_incidents,
    }


def test_dashboard_and_alerts_use_metrics_and_labels_that_exist(complete: Running) -> None:
    metrics = exported(complete)
    labels = {name: {label for sample, _ in samples for label in sample} for name, samples in metrics.items()}
    dashboard = json.loads((ROOT / "dashboards" / "backflow.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((ROOT / "dashboards" / "alerts.yml").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    used = set()
    for query in [*queries, *(rule["expr"] for rule in rules)]:
        names = set(re.findall(r"\b(?:backflow|process)_\w+", query))
        assert names or "up{" in query, query
        assert names <= metrics.keys(), query
        for name, matchers in re.findall(r"\b(backflow_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*[=!]~?", matchers)) <= labels[name] | {"job", "instance"}, query
        used |= names
    assert {name for name in metrics if name.startswith("backflow_")} - used == {
        "backflow_check_last_run_timestamp_seconds"
    }
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}
        placeholders = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        named = re.findall(r"\bbackflow_\w+", rule["expr"])
        assert placeholders <= {label for name in named for label in labels[name]} | {"instance"}, rule["alert"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
