"""A scheduled review is posted as a message of its own, with its picture; other checks' reports are not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.config.loading import load
from agent.daemon.pipeline import Pipeline
from agent.engine.check_requests import CheckResult
from agent.engine.engine import Engine
from agent.model.findings import Incident
from agent.model.observations.checks import CheckRun
from agent.notify.base import Receiver
from agent.notify.dispatcher import Dispatcher
from agent.notify.slack import Slack
from agent.notify.slack_webhook import Webhook
from agent.storage.incidents import IncidentStore
from agent.storage.journal.writer import Journal
from agent.storage.outbox import Outbox
from testbed.slack import Slack as Workspace
from tests import samples

RULES = Path(__file__).parents[2] / "rules.toml"
AT = samples.at("06:02:00.0")
RUN = CheckRun(
    at=AT, cluster="main", check="review", started_at=AT - 120_000, complete=False, outcome="clean", reason=""
)
LINES = (
    "Review of main, 16 to 22 November 2026: 2 incidents, 1 critical; 1 group near data loss",
    "Closest to data loss: a<b> on orders[0], 1,000 records or about 1 h from the log start (5.0 % of the log).",
    "Full page: /var/lib/backflow/review/main-2026-11-23.html",
    "Do now:",
    "a<b> nearly lost unread records of orders[0] to retention. Raise retention.ms and retention.bytes of orders.",
)
RESULT = CheckResult(None, [RUN], LINES, samples.PLOT)


@pytest.fixture
def pipeline(tmp_path: Path, store: IncidentStore) -> Iterator[Pipeline]:
    settings = load(RULES, need_clusters=False)
    engine = Engine(settings.rules, settings.correlations, settings.incidents)
    with closing(Journal(tmp_path / "journal")) as journal:
        yield Pipeline(journal, store, engine, retention=86_400_000, wake={"slack": lambda: None})


def deliver(state_file: Path, receiver: Receiver) -> None:
    """Deliver all that is pending, in as many turns as it takes."""
    dispatcher = Dispatcher(state_file, receiver)
    with closing(Outbox(state_file, receiver.name)) as outbox:
        for _ in range(4):
            dispatcher.deliver_due(outbox)


def test_review_is_posted_with_its_picture(pipeline: Pipeline, state_file: Path, slack: Workspace) -> None:
    pipeline.take_check_result(RESULT)
    deliver(state_file, Slack(slack.token, lambda _: "alerts", base_url=slack.url))
    message, picture = slack.messages()
    assert message.words.splitlines()[0] == f"🔵 {LINES[0]}"
    assert "• Closest to data loss: a<b> on orders[0]" in message.words
    assert "*Do now*\na<b> nearly lost unread records" in message.words
    assert slack.workspace.uploads[picture.files[0]].content == samples.PLOT
    assert not slack.threads


def test_review_goes_where_the_route_of_its_cluster_leads(
    pipeline: Pipeline, state_file: Path, slack: Workspace
) -> None:
    def channel_of(incident: Incident) -> str:
        return "payments" if incident.cluster == "main" else "alerts"

    pipeline.take_check_result(RESULT)
    deliver(state_file, Slack(slack.token, channel_of, base_url=slack.url))
    assert (len(slack.messages("payments")), len(slack.messages("alerts"))) == (2, 0)


def test_copies_take_only_what_they_select(pipeline: Pipeline, store: IncidentStore, state_file: Path) -> None:
    with Workspace("alerts") as slack:
        pipeline.take_check_result(RESULT)
        deliver(state_file, Slack(slack.token, lambda _: "alerts", accepts=lambda _: False, base_url=slack.url))
        assert slack.messages() == []
    assert store.pending() == 0


def test_picture_is_not_sent_twice_after_a_lost_answer(pipeline: Pipeline, state_file: Path, slack: Workspace) -> None:
    pipeline.take_check_result(RESULT)
    slack.close_connection(method="files.completeUploadExternal", after=True)
    receiver = Slack(slack.token, lambda _: "alerts", base_url=slack.url)
    dispatcher = Dispatcher(state_file, receiver, clock=iter(range(0, 10**9, 10**7)).__next__)
    with closing(Outbox(state_file, receiver.name)) as outbox:
        for _ in range(6):
            dispatcher.deliver_due(outbox)
    assert [len(message.files) for message in slack.messages()] == [0, 1]


def test_webhook_gets_the_text(pipeline: Pipeline, state_file: Path, slack: Workspace) -> None:
    pipeline.take_check_result(RESULT)
    deliver(state_file, Webhook(slack.webhook_url(), name="slack"))
    (message,) = slack.messages()
    assert LINES[0] in message.words


@pytest.mark.parametrize(
    "result",
    [
        CheckResult(None, [replace(RUN, check="log_segments")], ("12 segments are whole",)),
        CheckResult(None, [replace(RUN, outcome="failed", reason="no memory")], ("failed: no memory",)),
        CheckResult(None, [RUN]),
    ],
)
def test_other_results_are_no_messages(result: CheckResult, pipeline: Pipeline, store: IncidentStore) -> None:
    pipeline.take_check_result(result)
    assert store._db.execute("SELECT count(*) FROM digests").fetchone() == (0,)


def test_report_is_removed_some_time_after_its_delivery(
    pipeline: Pipeline, store: IncidentStore, state_file: Path, slack: Workspace
) -> None:
    pipeline.take_check_result(RESULT)
    store.prune(AT + 1)
    assert store.pending() == 2
    deliver(state_file, Slack(slack.token, lambda _: "alerts", base_url=slack.url))
    store.prune(AT + 1)
    for table in ("digests", "check_reports", "deliveries", "outbox"):
        assert store._db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)  # noqa: S608
